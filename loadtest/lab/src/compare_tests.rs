#![allow(clippy::unwrap_used)]

use super::*;

fn seed(figures: &[(&str, f64)]) -> Vec<Figure> {
    let figures = figures.iter().map(|(id, measured)| match *id {
        "gap" => Figure::at_most(*id, "ms", None, 100.0, *measured),
        "shown" => Figure::shown(*id, "", None, *measured),
        _ => Figure::at_least(*id, "", None, 0.9, *measured),
    });
    figures.collect()
}

fn of(rows: &[Row], id: &str) -> Row {
    rows.iter().find(|row| row.id == id).unwrap().clone()
}

fn rows(old: &[f64], new: &[f64], id: &str) -> Row {
    let file = |values: &[f64]| -> Vec<Vec<Figure>> {
        values.iter().map(|value| seed(&[(id, *value)])).collect()
    };
    of(&compare(&file(old), &file(new)).unwrap(), id)
}

#[test]
fn a_loss_beyond_its_interval_is_worse_on_either_side_of_a_goal() {
    // Differences of -0.02, -0.03, -0.02, -0.03: mean -0.025, t 3.182, error 0.002887.
    let row = rows(
        &[0.95, 0.94, 0.96, 0.93],
        &[0.93, 0.91, 0.94, 0.90],
        "share",
    );
    assert_eq!((row.pairs, row.verdict), (4, Verdict::Worse));
    assert!((row.difference + 0.025).abs() < 1e-9);
    assert!((row.half.unwrap() - 3.182 * 0.002_886_75).abs() < 1e-6);
    let row = rows(&[80.0, 90.0, 85.0], &[90.0, 101.0, 95.0], "gap");
    assert_eq!(row.verdict, Verdict::Worse);
    let row = rows(&[90.0, 101.0, 95.0], &[80.0, 90.0, 85.0], "gap");
    assert_eq!(row.verdict, Verdict::Better);
}

#[test]
fn a_difference_within_its_interval_and_a_single_pair_are_open() {
    let row = rows(&[0.95, 0.90], &[0.90, 0.94], "share");
    assert_eq!(row.verdict, Verdict::Open);
    let row = rows(&[0.95], &[0.90], "share");
    assert_eq!((row.half, row.verdict), (None, Verdict::Open));
}

#[test]
fn equal_figures_are_the_same_also_where_a_value_never_came() {
    let row = rows(&[f64::INFINITY, 3.0], &[f64::INFINITY, 3.0], "gap");
    assert_eq!(row.verdict, Verdict::Same);
    let row = rows(&[50.0], &[f64::INFINITY], "gap");
    assert_eq!(row.verdict, Verdict::Worse);
    let row = rows(&[f64::INFINITY, 50.0], &[50.0, 50.0], "gap");
    assert_eq!(row.verdict, Verdict::Better);
}

#[test]
fn the_last_row_judges_one_seed_by_all_ids() {
    let old = [seed(&[
        ("a", 1.0),
        ("b", 2.0),
        ("gap", 100.0),
        ("shown", 5.0),
    ])];
    let new = [seed(&[
        ("a", 0.9),
        ("b", 1.82),
        ("gap", 109.0),
        ("shown", 9.0),
    ])];
    let rows = compare(&old, &new).unwrap();
    assert_eq!(of(&rows, "shown").verdict, Verdict::Shown);
    let all = overall(&rows).unwrap();
    assert_eq!((all.pairs, all.verdict), (3, Verdict::Worse));
    assert!((all.difference + 28.0 / 3.0).abs() < 1e-9, "{all:?}");
    assert!(table(&rows).contains("difference"));
}

#[test]
fn seeds_pair_by_their_order_and_ids_by_name() {
    let old = [seed(&[("a", 1.0), ("b", 2.0)]), seed(&[("b", 4.0)])];
    let new = [seed(&[("b", 3.0), ("c", 1.0)]), seed(&[("b", 5.0)])];
    let rows = compare(&old, &new).unwrap();
    assert_eq!(rows.len(), 1);
    let only = of(&rows, "b");
    assert_eq!((only.pairs, only.old, only.new), (2, 3.0, 4.0));
    assert_eq!(only.half, Some(0.0), "both gained 1");
    assert_eq!(missing(&old, &new), ["a"]);
    assert_eq!(missing(&new, &old), ["c"]);
    let refused = compare(&old, &new[..1]).unwrap_err().to_string();
    assert!(refused.contains("2 arrays before and 1 after"), "{refused}");
}

#[test]
fn a_file_holds_what_several_runs_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("old.json");
    let print = |seed: &Vec<Figure>| serde_json::to_string_pretty(seed).unwrap();
    let text = format!(
        "{}\n{}\n",
        print(&seed(&[("a", 1.0)])),
        print(&seed(&[("a", 2.0)]))
    );
    std::fs::write(&file, text).unwrap();
    let measured: Vec<f64> = read(&file)
        .unwrap()
        .iter()
        .map(|it| it[0].measured)
        .collect();
    assert_eq!(measured, [1.0, 2.0]);
    std::fs::write(&file, "not figures").unwrap();
    assert!(matches!(read(&file), Err(CompareError::Parse { .. })));
    let absent = folder.path().join("absent.json");
    assert!(matches!(read(&absent), Err(CompareError::Read { .. })));
}
