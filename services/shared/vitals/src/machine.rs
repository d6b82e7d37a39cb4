//! Finds the stretches in which the condition of one rule holds, for one patient: normal -> pending
//! -> active -> normal.
//!
//! Invariants:
//! - A machine sees only the readings of its own engine, so its result does not depend on other
//!   observers. [`crate::episodes`] merges the observers.
//! - A delay ends at the event time that the rule gives, never at the time of the call. A stretch
//!   from `since` is reported at `since + for`. Its end is the first normal reading `+ clear_for`.
//! - A reading at the very end of a delay is judged before the delay ends.

use serde::{Deserialize, Serialize};

use crate::rules::Rule;

/// A step back by this much exceeds the age of any live reading.
const SET_BACK_US: i64 = 1_800_000_000;

/// Whether the core's clock was set back since `before_us`, because live readings are never that
/// much older. The edge cannot tell live readings and counts its clock steps instead.
pub(crate) fn is_set_back(before_us: i64, now_us: i64, origin: Origin, backfill: bool) -> bool {
    origin == Origin::Core && !backfill && before_us.saturating_sub(now_us) >= SET_BACK_US
}

/// State of a condition at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Ended,
    /// Between the two limits, or decided by stale readings: the phase stays.
    Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Version 1 of the stored state kept here that an acknowledgement is pending.
    #[default]
    #[serde(alias = "latched")]
    Normal,
    Pending,
    Active,
}

/// Where a verdict comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Edge,
    Core,
}

/// Fields of an alert that are not part of the machine's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    pub time_us: i64,
    #[serde(with = "exact")]
    pub value: f64,
    pub device: String,
    pub gateway: String,
    pub summary: String,
    pub traceparent: String,
    /// The reading came long after its event time.
    pub backfill: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    pub phase: Phase,
    /// Event time at which the current or the last stretch began.
    pub since_us: i64,
    /// Event time of the newest verdict.
    pub last_us: i64,
    /// Since when readings have been normal despite an open episode.
    pub ended_since_us: Option<i64>,
    /// The newest reading of a pending stretch, shown when the delay ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

/// Input of a machine: its rule, and facts about its episodes.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub rule: &'a Rule,
    /// A longer silence breaks a pending stretch.
    pub hold_us: i64,
    pub origin: Origin,
    /// Newest event time of an open episode that only another observer has seen. Normal readings
    /// after it end it.
    pub unseen_until_us: Option<i64>,
}

/// Result of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// A stretch has lasted for the delay. The evidence carries the end of the delay.
    Began {
        since_us: i64,
        evidence: Evidence,
    },
    /// A reading shows that the stretch continues.
    Lasts {
        since_us: i64,
    },
    Ended {
        at_us: i64,
    },
}

impl Machine {
    /// Advances event time to `before_us`: no reading from before will come.
    pub fn pass(&mut self, frame: Frame<'_>, before_us: i64) -> Option<Fact> {
        let deadline_us = self.deadline_us(frame)?;
        if deadline_us >= before_us {
            return None;
        }
        match self.phase {
            Phase::Pending => self.activate(frame),
            Phase::Normal | Phase::Active => self.end(frame),
        }
    }

    /// When a delay ends if no reading comes before.
    pub fn deadline_us(&self, frame: Frame<'_>) -> Option<i64> {
        if self.phase == Phase::Pending {
            let due_us = self.since_us.saturating_add(delay_us(frame.rule.for_ms));
            return (due_us.saturating_sub(self.last_us) <= frame.hold_us).then_some(due_us);
        }
        let ended_us = self.ended_since_us?;
        Some(ended_us.saturating_add(delay_us(frame.rule.clear_for_ms)))
    }

    /// The clock was set back to `now_us`.
    pub(crate) fn set_back(&mut self, now_us: i64) {
        self.since_us = self.since_us.min(now_us);
        self.last_us = self.last_us.min(now_us);
        self.ended_since_us = self.ended_since_us.map(|it| it.min(now_us));
    }

    pub fn is_waiting(&self) -> bool {
        self.phase == Phase::Pending || self.ended_since_us.is_some()
    }

    /// Applies a verdict. Call [`Machine::pass`] first, up to the time of the evidence.
    pub fn step(
        &mut self,
        frame: Frame<'_>,
        verdict: Verdict,
        evidence: &Evidence,
    ) -> Option<Fact> {
        let t = evidence.time_us;
        let fact = match (self.phase, verdict) {
            (_, Verdict::Unknown) => None,
            (Phase::Normal | Phase::Pending, Verdict::Ended) => {
                self.phase = Phase::Normal;
                self.evidence = None;
                let is_denied = frame.unseen_until_us.is_some_and(|until_us| {
                    t > until_us || is_set_back(until_us, t, frame.origin, evidence.backfill)
                });
                self.normal_since(frame, t, is_denied)
            }
            (Phase::Normal, Verdict::Holds) => {
                self.phase = Phase::Pending;
                self.since_us = t;
                self.ended_since_us = None;
                self.hold(frame, evidence)
            }
            (Phase::Pending, Verdict::Holds) => {
                // After a clock step back or a silence the stretch restarts.
                if t < self.since_us || t.saturating_sub(self.last_us) > frame.hold_us {
                    self.since_us = t;
                }
                self.hold(frame, evidence)
            }
            (Phase::Active, Verdict::Holds) => {
                self.ended_since_us = None;
                Some(Fact::Lasts {
                    since_us: self.since_us,
                })
            }
            // A reading from before the stretch does not end it. After a clock was set back the
            // episode must still end.
            (Phase::Active, Verdict::Ended) => {
                let is_of_now = t >= self.since_us
                    || is_set_back(self.since_us, t, frame.origin, evidence.backfill);
                self.normal_since(frame, t, is_of_now)
            }
        };
        self.last_us = t;
        fact
    }

    fn hold(&mut self, frame: Frame<'_>, evidence: &Evidence) -> Option<Fact> {
        self.evidence = Some(evidence.clone());
        if evidence.time_us.saturating_sub(self.since_us) < delay_us(frame.rule.for_ms) {
            return None;
        }
        self.activate(frame)
    }

    fn activate(&mut self, frame: Frame<'_>) -> Option<Fact> {
        self.phase = Phase::Active;
        self.ended_since_us = None;
        let at_us = self.since_us.saturating_add(delay_us(frame.rule.for_ms));
        Some(Fact::Began {
            since_us: self.since_us,
            evidence: Evidence {
                time_us: at_us,
                // Evidence exists since the stretch began, except in a state stored by an older
                // version.
                ..self.evidence.take().unwrap_or_default()
            },
        })
    }

    fn normal_since(&mut self, frame: Frame<'_>, t: i64, counts: bool) -> Option<Fact> {
        if !counts {
            return None;
        }
        let ended_us = self.ended_since_us.get_or_insert(t);
        *ended_us = (*ended_us).min(t);
        if t.saturating_sub(*ended_us) < delay_us(frame.rule.clear_for_ms) {
            return None;
        }
        self.end(frame)
    }

    fn end(&mut self, frame: Frame<'_>) -> Option<Fact> {
        let ended_us = self.ended_since_us.take()?;
        let due_us = ended_us.saturating_add(delay_us(frame.rule.clear_for_ms));
        let began_us = match self.phase {
            Phase::Active => self.since_us.saturating_add(delay_us(frame.rule.for_ms)),
            Phase::Normal | Phase::Pending => frame.unseen_until_us.unwrap_or(due_us),
        };
        self.phase = Phase::Normal;
        // After a clock step, an end is not before its beginning.
        Some(Fact::Ended {
            at_us: due_us.max(began_us),
        })
    }
}

/// The same id for every observer of the episode: FNV-1a of patient, rule and beginning, in
/// hexadecimal.
pub fn episode_id(patient: &str, rule: &str, since_us: i64) -> String {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    // A separator that no identifier contains keeps ("a", "bc") apart from ("ab", "c").
    let bytes = patient
        .bytes()
        .chain([0])
        .chain(rule.bytes())
        .chain([0])
        .chain(since_us.to_be_bytes());
    let hash = bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u128::from(byte)).wrapping_mul(PRIME)
    });
    format!("{hash:032x}")
}

/// Numbers as their shortest exact text, because JSON numbers may be read back wrong by one bit.
pub(crate) mod exact {
    use serde::Deserialize;

    pub(crate) fn serialize<S: serde::Serializer>(value: &f64, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

pub(crate) fn delay_us(delay_ms: u64) -> i64 {
    i64::try_from(delay_ms.saturating_mul(1000)).unwrap_or(i64::MAX)
}
