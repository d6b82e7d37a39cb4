//! Trials of a larger window. From time to time two rounds have one. While the rate grows the next
//! two follow; otherwise the pause doubles.

/// Rounds until the first trial.
pub(super) const PAUSE_MIN: u32 = 4;
/// Rounds of a trial: packets of the first are acknowledged in the second.
pub(super) const TRIAL_ROUNDS: u32 = 2;

#[derive(Debug, Clone)]
pub(super) struct Trials {
    /// Longest number of rounds between two trials.
    pause_max: u32,
    /// Growth of the rate that a trial has to show.
    growth: f64,
    pause: u32,
    waited: u32,
    trial: Option<Trial>,
}

#[derive(Debug, Clone, Copy)]
struct Trial {
    rounds: u32,
    rate_before: f64,
}

/// Which trial begins after a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begins {
    /// The first, or one after a pause.
    Anew,
    /// The rate has grown with the window of the trial before.
    NextOne,
}

impl Trials {
    pub(super) fn new(pause_max: u32, growth: f64) -> Self {
        Self {
            pause_max,
            growth,
            pause: PAUSE_MIN,
            waited: 0,
            trial: None,
        }
    }

    pub(super) fn is_on_trial(&self) -> bool {
        self.trial.is_some()
    }

    /// A round has ended in which the window limited the sender. `is_wanted`: a trial may begin
    /// after a pause.
    pub(super) fn on_limited_round(&mut self, rate: f64, is_wanted: bool) -> Option<Begins> {
        let Some(trial) = &mut self.trial else {
            self.waited += 1;
            return (is_wanted && self.waited >= self.pause)
                .then(|| self.begin(rate, Begins::Anew));
        };
        trial.rounds += 1;
        if trial.rounds < TRIAL_ROUNDS {
            return None;
        }
        if rate >= trial.rate_before * self.growth {
            self.pause = PAUSE_MIN;
            return Some(self.begin(rate, Begins::NextOne));
        }
        self.pause = (self.pause * 2).min(self.pause_max);
        self.waited = 0;
        self.trial = None;
        None
    }

    /// A round has ended that says nothing about the window.
    pub(super) fn on_other_round(&mut self) {
        self.trial = None;
    }

    fn begin(&mut self, rate_before: f64, begins: Begins) -> Begins {
        self.trial = Some(Trial {
            rounds: 0,
            rate_before,
        });
        begins
    }
}
