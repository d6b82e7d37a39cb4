use super::*;

const S: i64 = SECOND_US;
const HOUR: i64 = 3600 * S;
const T0: i64 = 1_800_000_000 * S;

/// One process: the true time is `T0` plus its monotonic clock.
struct Process {
    clock: OwnClock,
    monotonic_us: i64,
    /// The wall clock minus the true time.
    error_us: i64,
}

impl Process {
    fn new(error_us: i64) -> Process {
        let first = Moment {
            wall_us: T0 + error_us,
            monotonic_us: 0,
        };
        Process {
            clock: OwnClock::new(first),
            monotonic_us: 0,
            error_us,
        }
    }

    fn look(&mut self) -> Seen {
        self.clock.look(Moment {
            wall_us: T0 + self.monotonic_us + self.error_us,
            monotonic_us: self.monotonic_us,
        })
    }

    /// Runs this many seconds, each with another machine's time that is off by `others_us`.
    fn run(&mut self, seconds: i64, others_us: Option<i64>) {
        for _ in 0..seconds {
            self.monotonic_us += S;
            self.look();
            if let Some(off_us) = others_us {
                let time_us = T0 + self.monotonic_us + off_us - S / 10;
                self.clock.witness(time_us, self.monotonic_us);
            }
        }
    }

    /// The trusted time minus the true time.
    fn trusted_error_us(&self) -> i64 {
        self.clock.now_us(self.monotonic_us) - T0 - self.monotonic_us
    }
}

#[test]
fn a_step_that_others_contradict_is_never_adopted() {
    for by_us in [90 * S, -90 * S, HOUR, -HOUR] {
        let mut process = Process::new(0);
        process.run(60, Some(0));
        process.error_us = by_us;
        process.monotonic_us += S;
        let expected = if by_us > 0 {
            Seen::StepForward { by_us }
        } else {
            Seen::StepBack { by_us: -by_us }
        };
        assert_eq!(process.look(), expected);
        process.run(7200, Some(0));
        assert_eq!(process.trusted_error_us(), 0, "{by_us}");
        assert!(process.clock.is_contradicted());
        assert_eq!(process.clock.open_us(), by_us);
        // The operator corrects the clock.
        process.error_us = 0;
        process.run(2, Some(0));
        assert_eq!(process.clock.open_us(), 0);
        assert_eq!(process.clock.adopted_since(0).count(), 0);
    }
}

#[test]
fn a_step_that_others_made_too_is_adopted() {
    for (by_us, within_s) in [(90 * S, 2), (HOUR, 2), (-90 * S, 62), (-HOUR, 62)] {
        let mut process = Process::new(0);
        process.run(60, Some(0));
        process.error_us = by_us;
        process.run(within_s, Some(by_us));
        assert_eq!(process.trusted_error_us(), by_us);
        let adopted: Vec<Adoption> = process.clock.adopted_since(0).collect();
        assert_eq!(adopted.len(), 1);
        assert_eq!(adopted[0].by_us(), by_us);
        assert_eq!(process.clock.adopted_since(1).count(), 0);
    }
}

#[test]
fn a_step_that_nobody_contradicts_is_adopted_in_the_end() {
    for by_us in [90 * S, -HOUR] {
        let mut process = Process::new(0);
        process.error_us = by_us;
        process.run(SETTLE_US / S, None);
        assert_eq!(process.trusted_error_us(), 0);
        process.run(2, None);
        assert_eq!(process.trusted_error_us(), by_us);
        assert!(process.clock.unstepped_us(0) >= T0.max(T0 + by_us));
    }
}

#[test]
fn what_waited_in_a_queue_decides_nothing() {
    let mut process = Process::new(0);
    process.error_us = -90 * S;
    process.run(300, Some(-HOUR));
    assert_eq!(process.trusted_error_us(), 0);
    assert!(!process.clock.is_contradicted());
}

#[test]
fn a_disturbance_is_remembered_by_the_monotonic_clock() {
    let mut process = Process::new(0);
    assert!(process.clock.is_steady_for(HOUR, process.monotonic_us));
    process.error_us = 90 * S;
    process.run(120, Some(90 * S));
    assert!(!process.clock.is_steady_for(120 * S, process.monotonic_us));
    process.run(1, None);
    assert!(process.clock.is_steady_for(120 * S, process.monotonic_us));
    process.monotonic_us += PAUSE_US + S;
    assert_eq!(
        process.look(),
        Seen::Paused {
            for_us: PAUSE_US + S
        }
    );
    assert!(!process.clock.is_steady_for(S, process.monotonic_us));
}

#[test]
fn a_clock_that_is_slewed_is_followed() {
    let mut process = Process::new(0);
    for _ in 0..100_000 {
        process.error_us += S / 2000;
        process.run(1, None);
    }
    assert_eq!(process.trusted_error_us(), process.error_us);
    assert!(process.clock.is_steady_for(HOUR, process.monotonic_us));
}

/// Steps of up to an hour at random times, while other machines are right and their times arrive
/// late or not at all.
#[test]
fn random_steps_that_others_contradict_move_the_trusted_time_by_nothing() {
    for seed in 1..200_u64 {
        let mut random = Random(seed);
        let mut process = Process::new(0);
        for _ in 0..40 {
            process.error_us = if random.below(3) == 0 {
                0
            } else {
                (random.below(7200) as i64 - 3600) * S
            };
            // Shorter than the time after which a step is adopted without others; then their times
            // arrive again.
            let outage_s = random.below((SETTLE_US / S) as u64 - 60) as i64;
            process.run(outage_s, None);
            process.run(1 + random.below(900) as i64, Some(0));
            let error_us = process.trusted_error_us();
            assert!(error_us.abs() <= STEP_US, "seed {seed}: {error_us} us");
        }
    }
}

#[test]
fn adoptions_are_bounded_and_lose_nothing() {
    let mut process = Process::new(0);
    for n in 1..=2 * ADOPTIONS_MAX as i64 {
        process.error_us = n * 90 * S;
        process.run(3, Some(process.error_us));
    }
    let by_us: i64 = process.clock.adopted_since(0).map(Adoption::by_us).sum();
    assert_eq!(by_us, 2 * ADOPTIONS_MAX as i64 * 90 * S);
    assert_eq!(process.clock.adopted_since(0).count(), ADOPTIONS_MAX);
}

#[test]
fn nonsense_is_survived() {
    let mut process = Process::new(0);
    for wall_us in [i64::MAX, i64::MIN, 0, T0] {
        process.clock.look(Moment {
            wall_us,
            monotonic_us: S,
        });
        process.clock.witness(i64::MAX, S);
        process.clock.witness(i64::MIN, i64::MAX);
        process.clock.now_us(i64::MAX);
    }
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
