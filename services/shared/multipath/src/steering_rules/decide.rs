//! The decision: which accesses a flow takes, in which order, with which parts, and why.
//!
//! Invariants: it is total and deterministic; the order never holds a forbidden access; neither a
//! cap nor a rule takes an access from an alert.

use std::cmp::Ordering;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::check::ACCESSES_MAX;
use super::document::{AccessTerms, Cap, Document, Kind, Mode, Period, Rule, SortedBy, Urgency};
use super::flow::{AccessState, Flow, Measurement, Measurements, is_meant};

/// Instruction to the scheduler for an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rank {
    Active,
    /// Used while every living access before it in the order is full.
    Spill,
    /// Used while no access before it in the order lives.
    Standby,
}

/// An access of the order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Choice {
    pub access: String,
    pub rank: Rank,
    /// A fixed part of the traffic among those that have one.
    pub weight: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Chosen,
    /// Behind all that are chosen.
    Demoted,
    /// Not in the order.
    Rejected,
}

/// Why an access has its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    Allowed,
    NotListed,
    Metered,
    Roaming,
    CapReached { period: Period, cap_bytes: u64 },
    Unusable,
    Slow { rtt_ms: u64, rtt_ms_max: u32 },
    Lossy { loss: f64, loss_max: f64 },
    NoWeight,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Why {
    pub access: String,
    pub kind: Option<Kind>,
    pub verdict: Verdict,
    pub reason: Reason,
    /// The cap of which the least is left, where there is one.
    pub cap: Option<Cap>,
}

/// The decision for a flow.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Name of the rule; none where no rule matches.
    pub rule: Option<String>,
    pub mode: Mode,
    pub order: Vec<Choice>,
    /// Expected part of the flow's bytes on each access of the order.
    pub share: Vec<f64>,
    /// How often each byte is sent.
    pub copies: u8,
    /// Small flows stay on the fastest active access.
    pub gathers: bool,
    /// The flow is an alert, or vitals of a patient with an open one.
    #[serde(skip)]
    pub raised: bool,
    /// Each access once.
    pub why: Vec<Why>,
}

/// An access that may be used.
struct Candidate<'a> {
    name: &'a str,
    kind: Option<Kind>,
    price: f64,
    /// Place in the rule's list, or in the list of accesses.
    place: usize,
    rtt: Option<Duration>,
    rate: Option<f64>,
    weight: Option<u32>,
    demoted: bool,
}

/// See the module's head. Accesses beyond the 64th, and repeated names, are left out.
pub fn decide(
    document: &Document,
    flow: &Flow,
    accesses: &[AccessState],
    measurements: &Measurements,
) -> Decision {
    let rule = document.rules.iter().find(|rule| rule.matches.holds(flow));
    let mode = mode_of(rule, flow);
    let shape = mode.shape();
    let mut why: Vec<Why> = Vec::new();
    let mut candidates = Vec::new();
    for (place, access) in accesses.iter().take(ACCESSES_MAX).enumerate() {
        let name = access.name.as_str();
        if why.iter().any(|why| why.access == name) {
            continue;
        }
        let (terms, kind) = document.terms_of(name);
        let measured = measurements.get(name).copied().unwrap_or_default();
        let cap = terms.and_then(|terms| terms.nearest_cap(&measured.used));
        let (verdict, reason) = judge(rule, flow, access, (terms, kind), &measured);
        why.push(Why {
            access: name.to_owned(),
            kind,
            verdict,
            reason,
            cap,
        });
        if verdict == Verdict::Rejected {
            continue;
        }
        let listed = rule.and_then(|rule| {
            let mut words = rule.accesses.iter();
            words.position(|word| is_meant(word, name, kind))
        });
        candidates.push(Candidate {
            name,
            kind,
            price: terms.map_or(0.0, |terms| terms.price_per_gb),
            place: listed.unwrap_or(place),
            rtt: measured.rtt,
            rate: measured
                .rate_bytes_per_s
                .filter(|rate| rate.is_finite() && *rate > 0.0),
            weight: None,
            demoted: verdict == Verdict::Demoted,
        });
    }
    if shape.takes_weights
        && let Some(rule) = rule.filter(|rule| !rule.weights.is_empty())
    {
        weigh(rule, &mut candidates, &mut why);
    }
    let is_ordered = rule.is_some_and(|rule| !rule.accesses.is_empty());
    candidates.sort_by(|a, b| compare(shape.sorted_by, is_ordered, a, b));
    let order: Vec<Choice> = candidates
        .iter()
        .enumerate()
        .map(|(place, candidate)| Choice {
            access: candidate.name.to_owned(),
            rank: match place {
                _ if candidate.demoted => Rank::Standby,
                0 => Rank::Active,
                _ if !shape.first_only => Rank::Active,
                _ if shape.spills => Rank::Spill,
                _ => Rank::Standby,
            },
            weight: candidate.weight.filter(|_| !candidate.demoted),
        })
        .collect();
    let copies = shape
        .copies
        .min(u8::try_from(order.len()).unwrap_or(u8::MAX))
        .max(1);
    Decision {
        rule: rule.map(|rule| rule.name.clone()),
        mode,
        share: shares(&order, &candidates, copies),
        order,
        copies,
        gathers: shape.gathers,
        raised: flow.raised || flow.urgency == Urgency::Alert,
        why,
    }
}

/// Alerts, and vitals of a patient with an unacknowledged high alert, go redundantly.
fn mode_of(rule: Option<&Rule>, flow: &Flow) -> Mode {
    if flow.raised || rule.is_none() && flow.urgency == Urgency::Alert {
        return Mode::Redundant;
    }
    rule.map_or(Mode::Auto, |rule| rule.mode)
}

fn judge(
    rule: Option<&Rule>,
    flow: &Flow,
    access: &AccessState,
    (terms, kind): (Option<&AccessTerms>, Option<Kind>),
    measured: &Measurement,
) -> (Verdict, Reason) {
    use Verdict::{Chosen, Demoted, Rejected};
    // An alert may always take an access that is left.
    let forbidden = match flow.urgency {
        Urgency::Alert => Demoted,
        Urgency::Prompt | Urgency::Bulk => Rejected,
    };
    if let Some(rule) = rule {
        let is_listed = |word: &String| is_meant(word, &access.name, kind);
        if !rule.accesses.is_empty() && !rule.accesses.iter().any(is_listed) {
            return (forbidden, Reason::NotListed);
        }
        if !rule.metered && terms.is_some_and(|terms| terms.metered) {
            return (forbidden, Reason::Metered);
        }
        if !rule.roaming && terms.is_some_and(|terms| terms.roaming) {
            return (forbidden, Reason::Roaming);
        }
    }
    let cap = terms.and_then(|terms| terms.nearest_cap(&measured.used));
    if let Some(cap) = cap.filter(|cap| cap.left_bytes == 0) {
        let reason = Reason::CapReached {
            period: cap.period,
            cap_bytes: cap.bytes,
        };
        match flow.urgency {
            Urgency::Bulk => return (Rejected, reason),
            // Vitals are small, and go on where nothing else lives.
            Urgency::Prompt if !flow.raised => return (Demoted, reason),
            Urgency::Prompt | Urgency::Alert => {}
        }
    }
    if !access.usable {
        return (Demoted, Reason::Unusable);
    }
    let slow = rule.and_then(|rule| rule.rtt_ms_max).zip(measured.rtt);
    if let Some((rtt_ms_max, rtt)) = slow
        && rtt > Duration::from_millis(rtt_ms_max.into())
    {
        let rtt_ms = u64::try_from(rtt.as_millis()).unwrap_or(u64::MAX);
        return (Demoted, Reason::Slow { rtt_ms, rtt_ms_max });
    }
    let lossy = rule.and_then(|rule| rule.loss_max).zip(measured.loss);
    if let Some((loss_max, loss)) = lossy
        && loss > loss_max
    {
        return (Demoted, Reason::Lossy { loss, loss_max });
    }
    (Chosen, Reason::Allowed)
}

/// Gives each access its weight; one without stands by.
fn weigh(rule: &Rule, candidates: &mut [Candidate<'_>], why: &mut [Why]) {
    for candidate in candidates.iter_mut().filter(|candidate| !candidate.demoted) {
        let by_kind = || {
            candidate
                .kind
                .and_then(|kind| rule.weights.get(kind.name()))
        };
        candidate.weight = rule.weights.get(candidate.name).or_else(by_kind).copied();
        candidate.demoted = candidate.weight.is_none();
        let entry = why.iter_mut().find(|why| why.access == candidate.name);
        if let Some(entry) = entry.filter(|_| candidate.demoted) {
            entry.verdict = Verdict::Demoted;
            entry.reason = Reason::NoWeight;
        }
    }
}

/// Without an order of the rule the cheaper one comes first.
fn compare(by: SortedBy, is_ordered: bool, a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
    let delay = |it: &Candidate<'_>| it.rtt.unwrap_or(Duration::MAX);
    let sorted = match by {
        SortedBy::Delay => delay(a).cmp(&delay(b)),
        SortedBy::Document if is_ordered => Ordering::Equal,
        SortedBy::Document => a.price.total_cmp(&b.price),
    };
    a.demoted
        .cmp(&b.demoted)
        .then(sorted)
        .then(a.place.cmp(&b.place))
        .then(a.name.cmp(b.name))
}

fn shares(order: &[Choice], candidates: &[Candidate<'_>], copies: u8) -> Vec<f64> {
    let weights: u64 = order.iter().filter_map(|it| it.weight).map(u64::from).sum();
    let actives = order.iter().filter(|it| it.rank == Rank::Active).count();
    // Where nothing is active the first one that stands by carries all.
    let carries =
        |place: usize, choice: &Choice| choice.rank == Rank::Active || actives == 0 && place == 0;
    let carrying = || order.iter().zip(candidates).enumerate();
    let carrying = || carrying().filter(|(place, (choice, _))| carries(*place, choice));
    let rates: Option<Vec<f64>> = carrying().map(|(_, (_, it))| it.rate).collect();
    let total: f64 = rates.iter().flatten().sum();
    let share = |place: usize, choice: &Choice, candidate: &Candidate<'_>| {
        if !carries(place, choice) {
            0.0
        } else if copies > 1 {
            if place < usize::from(copies) {
                1.0
            } else {
                0.0
            }
        } else if let Some(weight) = choice.weight {
            f64::from(weight) / weights as f64
        } else if let (Some(rate), true) = (candidate.rate, total > 0.0) {
            rate / total
        } else {
            1.0 / carrying().count().max(1) as f64
        }
    };
    let pairs = order.iter().zip(candidates).enumerate();
    pairs
        .map(|(place, (choice, candidate))| share(place, choice, candidate))
        .collect()
}

impl Decision {
    /// No access may carry the flow.
    pub fn is_blocked(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether copies of an alert are to take this access.
    pub(super) fn copies_over(&self, access: &str) -> bool {
        let takes = |it: &Choice| it.access == access && it.rank == Rank::Active;
        self.raised && self.copies > 1 && self.order.iter().any(takes)
    }

    /// The same for a flow that has nothing to send at the moment. It claims its accesses, but
    /// neither copies nor a spread of other flows.
    pub fn at_rest(mut self) -> Self {
        self.copies = 1;
        self.gathers = true;
        self
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("allowed"),
            Self::NotListed => f.write_str("the rule does not list it"),
            Self::Metered => f.write_str("it is metered, and the rule forbids that"),
            Self::Roaming => f.write_str("it is roaming, and the rule forbids that"),
            Self::CapReached { period, cap_bytes } => {
                write!(
                    f,
                    "the {}'s cap of {:.3} GB is reached",
                    period.noun(),
                    *cap_bytes as f64 / 1e9
                )
            }
            Self::Unusable => f.write_str("no path over it answers"),
            Self::Slow { rtt_ms, rtt_ms_max } => {
                write!(f, "its round trip of {rtt_ms} ms is above {rtt_ms_max} ms")
            }
            Self::Lossy { loss, loss_max } => {
                write!(
                    f,
                    "its loss of {:.1} % is above {:.1} %",
                    loss * 100.0,
                    loss_max * 100.0
                )
            }
            Self::NoWeight => f.write_str("the rule gives it no weight"),
        }
    }
}
