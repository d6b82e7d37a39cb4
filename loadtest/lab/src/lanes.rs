//! Order in which a report makes its experiments: kernel time beside virtual time.
//!
//! Kernel time waits for its sockets, and its threads have real-time priority. So one thread makes
//! the experiments of kernel time, one after another, while virtual time has all cores. Without
//! that priority virtual time would make packets late, and all experiments follow one another.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::LabError;
use crate::exhibit::{Exhibit, Finished};
use crate::kernel::priority;
use crate::runner::Runner;
use crate::task::{Experiment, Time};

/// Weight of the listed costs against those that were measured, in seconds.
const LISTED_WEIGHT_S: f64 = 20.0;

/// An experiment that was made, or taken from an earlier run.
pub(crate) struct Made {
    pub(crate) exhibit: Exhibit,
    pub(crate) is_new: bool,
}

/// Makes all experiments, and returns them in their order. The first error ends every lane after
/// the experiment that it makes.
pub(crate) fn run(
    experiments: &[Experiment],
    quick: bool,
    runner: &Runner,
    make: &(impl Fn(&Experiment) -> Result<Made, LabError> + Sync),
) -> Result<Vec<Finished>, LabError> {
    let lanes = lanes(experiments, priority::is_permitted());
    let state = State {
        experiments,
        quick,
        runner,
        progress: Mutex::new(Progress::new(experiments, &lanes, quick)),
        ended: AtomicBool::new(false),
    };
    let made = std::thread::scope(|scope| {
        let each: Vec<_> = lanes
            .iter()
            .enumerate()
            .map(|(lane, numbers)| {
                let state = &state;
                scope.spawn(move || state.follow(lane, numbers, make))
            })
            .collect();
        let joined = each.into_iter().map(|thread| match thread.join() {
            Ok(made) => made,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect::<Result<Vec<_>, LabError>>()
    })?;
    let mut made: Vec<(usize, Exhibit)> = made.into_iter().flatten().collect();
    made.sort_by_key(|entry| entry.0);
    let finished = made.into_iter().map(|(number, exhibit)| Finished {
        id: experiments[number].id,
        section: experiments[number].section,
        exhibit,
    });
    Ok(finished.collect())
}

/// The numbers of the experiments that follow one another, for each lane.
fn lanes(experiments: &[Experiment], beside: bool) -> Vec<Vec<usize>> {
    let all = 0..experiments.len();
    let (kernel, other): (Vec<usize>, Vec<usize>) =
        all.partition(|&number| beside && experiments[number].time == Time::Kernel);
    let lanes = [other, kernel].into_iter();
    lanes.filter(|lane| !lane.is_empty()).collect()
}

fn cost(experiment: &Experiment, quick: bool) -> f64 {
    let (own, whole) = experiment.cost_s;
    f64::from(if quick { own } else { whole }.max(1))
}

struct State<'a> {
    experiments: &'a [Experiment],
    quick: bool,
    runner: &'a Runner,
    progress: Mutex<Progress>,
    ended: AtomicBool,
}

impl State<'_> {
    /// Makes these experiments, one after another.
    fn follow(
        &self,
        lane: usize,
        numbers: &[usize],
        make: &impl Fn(&Experiment) -> Result<Made, LabError>,
    ) -> Result<Vec<(usize, Exhibit)>, LabError> {
        let mut all = Vec::new();
        for &number in numbers {
            if self.ended.load(Ordering::Relaxed) {
                break;
            }
            let experiment = &self.experiments[number];
            let line = self.progress.lock().begins(experiment.id);
            self.runner.say(&line);
            let made =
                make(experiment).inspect_err(|_| self.ended.store(true, Ordering::Relaxed))?;
            let own = cost(experiment, self.quick);
            self.progress.lock().ends(lane, own, made.is_new);
            all.push((number, made.exhibit));
        }
        Ok(all)
    }
}

/// Listed costs of one lane, in seconds.
struct Costs {
    rest: f64,
    /// The part that was made, and not taken from an earlier run.
    made: f64,
}

struct Progress {
    started: Instant,
    all: usize,
    begun: usize,
    lanes: Vec<Costs>,
}

impl Progress {
    fn new(experiments: &[Experiment], lanes: &[Vec<usize>], quick: bool) -> Self {
        let rest = |lane: &Vec<usize>| {
            let costs = lane.iter().map(|&number| cost(&experiments[number], quick));
            costs.sum()
        };
        let lanes = lanes.iter().map(|lane| Costs {
            rest: rest(lane),
            made: 0.0,
        });
        Self {
            started: Instant::now(),
            all: experiments.len(),
            begun: 0,
            lanes: lanes.collect(),
        }
    }

    /// The line for an experiment that begins.
    fn begins(&mut self, id: &str) -> String {
        self.begun += 1;
        let elapsed = self.started.elapsed();
        let lanes = self.lanes.iter();
        let longest = lanes
            .map(|lane| left_s(elapsed, lane.made, lane.rest))
            .fold(0.0, f64::max);
        format!("[{}/{}] {id}{}", self.begun, self.all, words(longest))
    }

    fn ends(&mut self, lane: usize, cost: f64, is_new: bool) {
        let lane = &mut self.lanes[lane];
        lane.rest -= cost;
        if is_new {
            lane.made += cost;
        }
    }
}

/// The time left, by how long the experiments took so far. At first the listed cost counts too, so
/// that one cheap experiment does not stand for all.
fn left_s(elapsed: Duration, made: f64, rest: f64) -> f64 {
    let slowness = (elapsed.as_secs_f64() + LISTED_WEIGHT_S) / (made + LISTED_WEIGHT_S);
    slowness * rest
}

fn words(seconds: f64) -> String {
    if seconds >= 90.0 {
        format!(", about {:.0} min left", seconds / 60.0)
    } else {
        format!(", about {seconds:.0} s left")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Barrier;

    use super::*;
    use crate::exhibit::Section;
    use crate::identity::Identity;

    fn experiment(id: &'static str, time: Time) -> Experiment {
        Experiment {
            id,
            section: Section::Pals,
            time,
            cost_s: (30, 600),
            run: |_| Ok(Exhibit::default()),
        }
    }

    fn three() -> [Experiment; 3] {
        [
            experiment("a", Time::Virtual),
            experiment("b", Time::Kernel),
            experiment("c", Time::Virtual),
        ]
    }

    fn runner() -> Runner {
        Runner::new(Identity::new().unwrap(), false)
    }

    #[test]
    fn the_time_left_follows_what_was_measured() {
        let after = |elapsed_s, made| words(left_s(Duration::from_secs(elapsed_s), made, 600.0));
        assert_eq!(after(0, 0.0), ", about 10 min left");
        // Ten times slower than listed, after a while.
        assert_eq!(after(10_000, 1000.0), ", about 98 min left");
    }

    #[test]
    fn the_time_left_is_that_of_the_longer_lane() {
        let experiments = three();
        let lanes = lanes(&experiments, true);
        assert_eq!(lanes, [vec![0, 2], vec![1]]);
        let mut progress = Progress::new(&experiments, &lanes, true);
        assert_eq!(progress.begins("a"), "[1/3] a, about 60 s left");
        progress.ends(0, 30.0, false);
        progress.ends(0, 30.0, false);
        assert_eq!(progress.begins("b"), "[2/3] b, about 30 s left");
    }

    #[test]
    fn kernel_time_follows_where_it_has_no_priority() {
        assert_eq!(lanes(&three(), false), [[0, 1, 2]]);
        assert_eq!(lanes(&three()[..1], true), [[0]]);
    }

    #[test]
    fn kernel_time_runs_beside_virtual_time_and_keeps_its_place() {
        if !priority::is_permitted() {
            assert!(std::env::var_os("BRAID_REQUIRE_NETNS").is_none());
            eprintln!("skipped: no real-time priority");
            return;
        }
        // Passed only by two experiments at once: one lane alone would wait for good.
        let both = Barrier::new(2);
        let make = |experiment: &Experiment| {
            if experiment.id != "c" {
                both.wait();
            }
            let exhibit = Exhibit::new(experiment.id, "");
            let is_new = true;
            Ok(Made { exhibit, is_new })
        };
        let finished = run(&three(), true, &runner(), &make).unwrap();
        let titles: Vec<&str> = finished
            .iter()
            .map(|entry| entry.exhibit.title.as_str())
            .collect();
        assert_eq!(titles, ["a", "b", "c"]);
    }

    #[test]
    fn an_error_ends_the_report() {
        let make = |experiment: &Experiment| match experiment.id {
            "a" => Err(LabError::NoSection("a".to_owned())),
            "c" => panic!("begun after an error"),
            _ => Ok(Made {
                exhibit: Exhibit::default(),
                is_new: true,
            }),
        };
        assert!(run(&three(), true, &runner(), &make).is_err());
    }
}
