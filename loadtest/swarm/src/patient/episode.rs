//! Episodes of a patient, and their strength in each second.

use std::str::FromStr;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Concurrent episodes; further ones are not begun.
const EPISODES_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Episode {
    Tachycardia,
    Desaturation,
    Fever,
    Fall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEpisode(String);

impl std::fmt::Display for UnknownEpisode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} is no episode; there are tachycardia, desaturation, fever and fall",
            self.0
        )
    }
}

impl std::error::Error for UnknownEpisode {}

impl FromStr for Episode {
    type Err = UnknownEpisode;

    fn from_str(text: &str) -> Result<Self, UnknownEpisode> {
        Self::ALL
            .into_iter()
            .find(|episode| episode.name() == text)
            .ok_or_else(|| UnknownEpisode(text.to_owned()))
    }
}

/// Seconds of an episode's rise, plateau and fall.
struct Course {
    rise: f64,
    hold: f64,
    fall: f64,
}

impl Episode {
    pub const ALL: [Self; 4] = [
        Self::Tachycardia,
        Self::Desaturation,
        Self::Fever,
        Self::Fall,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Tachycardia => "tachycardia",
            Self::Desaturation => "desaturation",
            Self::Fever => "fever",
            Self::Fall => "fall",
        }
    }

    fn course(self) -> Course {
        let (rise, hold, fall) = match self {
            Self::Tachycardia => (6.0, 120.0, 30.0),
            Self::Desaturation => (30.0, 120.0, 60.0),
            Self::Fever => (90.0, 300.0, 180.0),
            Self::Fall => (1.0, 150.0, 60.0),
        };
        Course { rise, hold, fall }
    }
}

/// The sum of all episodes' effects on the body in one second; every share is between 0 and 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Influence {
    pub tachycardia: f64,
    pub desaturation: f64,
    pub fever: f64,
    pub fall: f64,
    /// The second in which a fall hits the ground.
    pub impact: bool,
    /// The patient gets oxygen.
    pub oxygen: bool,
}

#[derive(Clone, Debug)]
pub struct Schedule {
    rng: ChaCha8Rng,
    interval_s: f64,
    next_at: f64,
    /// Active episodes, with the second of their begin.
    active: Vec<(Episode, i64)>,
}

impl Schedule {
    pub fn new(seed: u64, interval_s: f64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(2);
        let mut schedule = Self {
            rng,
            interval_s,
            next_at: 0.0,
            active: Vec::new(),
        };
        schedule.draw(0.0);
        schedule
    }

    pub fn begin(&mut self, episode: Episode, second: i64) -> bool {
        let room = self.active.len() < EPISODES_MAX;
        if room {
            self.active.push((episode, second));
        }
        room
    }

    pub fn active(&self) -> Vec<Episode> {
        self.active.iter().map(|(episode, _)| *episode).collect()
    }

    pub fn step(&mut self, second: i64) -> Influence {
        let now = second as f64;
        if self.interval_s > 0.0 && now >= self.next_at {
            let episode = Episode::ALL[self.rng.random_range(0..Episode::ALL.len())];
            self.begin(episode, second);
            self.draw(now);
        }
        let mut influence = Influence::default();
        self.active.retain(|(episode, since)| {
            let age = (second - since) as f64;
            let Course { rise, hold, fall } = episode.course();
            let share = if age < rise {
                age / rise
            } else if age < rise + hold {
                1.0
            } else {
                1.0 - (age - rise - hold) / fall
            };
            if share < 0.0 {
                return false;
            }
            let felt = match episode {
                Episode::Tachycardia => &mut influence.tachycardia,
                Episode::Desaturation => &mut influence.desaturation,
                Episode::Fever => &mut influence.fever,
                Episode::Fall => &mut influence.fall,
            };
            *felt = felt.max(share);
            influence.impact |= *episode == Episode::Fall && age == 1.0;
            influence.oxygen |= *episode == Episode::Desaturation && age >= 75.0;
            true
        });
        influence
    }

    /// Exponential times between episodes, after a quiet minute.
    fn draw(&mut self, now: f64) {
        let uniform: f64 = self.rng.random_range(f64::EPSILON..1.0);
        self.next_at = now + 60.0 - self.interval_s * uniform.ln();
    }
}
