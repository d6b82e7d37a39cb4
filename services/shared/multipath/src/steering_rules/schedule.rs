//! One session carries many flows, and the library's scheduler knows no flow. So the decisions of
//! all flows of a session are joined to one schedule for its paths: for each access the strictest
//! rank.
//!
//! An access that some flow may take and another may not stands by. It carries data only while no
//! other lives, so that an alert gets through. Flows that may not take it are held by the gateway
//! then.
//!
//! Copies of alerts take the accesses of their own decision, also where another flow lets them
//! stand by. So do copies of vitals while an alert is open. All copies would use one access
//! otherwise.

use super::decide::{Decision, Rank};

/// The rule that the path scheduler obeys for one path. Paths without one are used as by mode
/// `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathSchedule {
    /// Place in the order; a lower one comes first.
    pub place: u8,
    /// None: the path is forbidden, and carries nothing but what keeps it alive.
    pub rank: Option<Rank>,
    pub weight: Option<u32>,
    /// Copies of alerts may take it, whatever its rank. Only the end that decided knows this.
    pub carries_copies: bool,
}

impl PathSchedule {
    /// All traffic may take it, as without any rule.
    pub const FREE: Self = Self {
        place: 0,
        rank: Some(Rank::Active),
        weight: None,
        carries_copies: false,
    };
    pub const FORBIDDEN: Self = Self {
        place: u8::MAX,
        rank: None,
        weight: None,
        carries_copies: false,
    };

    /// Copies of alerts take the path while it leaves other data to those before it.
    pub fn is_held_for_copies(&self) -> bool {
        self.carries_copies && matches!(self.rank, Some(Rank::Spill | Rank::Standby))
    }

    /// The rank as tables show it.
    pub fn rank_name(&self) -> &'static str {
        match self.rank {
            Some(Rank::Active) => "active",
            Some(Rank::Spill) => "spill",
            Some(Rank::Standby) => "standby",
            None => "forbidden",
        }
    }
}

/// The schedule of a session, by name of the access.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub paths: Vec<(String, PathSchedule)>,
    pub copies: u8,
    /// Small flows stay on the fastest active access.
    pub gathers: bool,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            paths: Vec::new(),
            copies: 1,
            gathers: true,
        }
    }
}

impl Schedule {
    /// An access that the schedule does not name is free while it names none, and forbidden
    /// otherwise.
    pub fn of(&self, access: &str) -> PathSchedule {
        let named = self.paths.iter().find(|(name, _)| name == access);
        match named {
            Some((_, schedule)) => *schedule,
            None if self.paths.is_empty() => PathSchedule::FREE,
            None => PathSchedule::FORBIDDEN,
        }
    }
}

impl Schedule {
    /// The schedule of a path whose access is not known yet: it stands by for all others.
    pub fn of_unknown(&self) -> PathSchedule {
        if self.paths.is_empty() {
            return PathSchedule::FREE;
        }
        PathSchedule {
            place: u8::MAX,
            rank: Some(Rank::Standby),
            weight: None,
            carries_copies: false,
        }
    }
}

/// Joins the decisions of a session's flows. No flow: nothing is restricted.
pub fn schedule(decisions: &[Decision]) -> Schedule {
    let mut names: Vec<&str> = Vec::new();
    for choice in decisions.iter().flat_map(|decision| &decision.order) {
        if !names.contains(&choice.access.as_str()) {
            names.push(&choice.access);
        }
    }
    let mut entries: Vec<(&str, usize, Rank, Option<u32>)> = names
        .into_iter()
        .map(|name| {
            let mut rank = Rank::Active;
            let mut places = 0;
            let mut weight = None;
            for decision in decisions.iter().filter(|it| !it.is_blocked()) {
                let found = decision
                    .order
                    .iter()
                    .enumerate()
                    .find(|(_, it)| it.access == name);
                match found {
                    Some((place, choice)) => {
                        rank = rank.max(choice.rank);
                        // Where all are active the order has no meaning.
                        let orders = decision.order.iter().any(|it| it.rank != Rank::Active);
                        places += if orders { place } else { 0 };
                        weight = weight.or(choice.weight);
                    }
                    None => {
                        rank = Rank::Standby;
                        places += decision.order.len();
                    }
                }
            }
            (name, places, rank, weight)
        })
        .collect();
    entries.sort_by_key(|(_, places, rank, _)| (*rank, *places));
    let place = |index: usize| u8::try_from(index).unwrap_or(u8::MAX - 1);
    Schedule {
        paths: entries
            .iter()
            .enumerate()
            .map(|(index, (name, _, rank, weight))| {
                let schedule = PathSchedule {
                    place: place(index),
                    rank: Some(*rank),
                    weight: weight.filter(|_| *rank == Rank::Active),
                    carries_copies: decisions.iter().any(|it| it.copies_over(name)),
                };
                ((*name).to_owned(), schedule)
            })
            .collect(),
        copies: decisions.iter().map(|it| it.copies).max().unwrap_or(1),
        gathers: decisions.iter().all(|it| it.gathers),
    }
}
