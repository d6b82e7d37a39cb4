use fluid::Experiment;
fn main() {
    let name = std::env::args().nth(1).unwrap();
    let e = Experiment::from_toml(&std::fs::read_to_string(name).unwrap()).unwrap();
    let began = std::time::Instant::now();
    let run = e.solve().unwrap();
    eprintln!("{:?} for {} steps", began.elapsed(), run.steps);
    for i in (0..run.times_s.len()).step_by(100) {
        print!("{:6.1}", run.times_s[i]);
        for r in 0..run.rates.len() {
            print!(
                " {:6.3}/{:6.3}",
                run.rates[r][i],
                run.capacities[r.min(6)][i]
            );
        }
        println!();
    }
}
