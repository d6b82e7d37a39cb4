//! The schedule of a session on the way to the proxy, which obeys it for what it sends.
//!
//! A line `schedule <gathers> <copies> <paths> [<number>]` begins it, and so many lines `rank
//! <access> <place> <rank> <weight>` follow. It holds once the last of them has arrived. The header
//! `braid-schedule: v=1` says that a proxy reads these lines, and `braid-schedule-number: v=1` that
//! it reads the number. They leave out which paths carry copies of alerts: the gateway sends those,
//! and the proxy's answers need no second path.

use std::{fmt::Write, sync::Arc};

use multipath::steering_rules::{PathSchedule, Rank, Schedule};

use crate::paths::{name::is_name, orders::Order};

/// Paths of one schedule; the gateway sends the first ones.
const PATHS_MAX: usize = 64;
/// Copies beyond this are a mistake of the sender.
const COPIES_MAX: u8 = 8;
const FORBIDDEN: &str = "forbidden";

/// The lines of a schedule.
pub(super) fn lines(schedule: &Schedule, number: Option<u64>) -> String {
    let paths = || {
        schedule
            .paths
            .iter()
            .filter(|it| is_name(&it.0))
            .take(PATHS_MAX)
    };
    let gathers = u8::from(schedule.gathers);
    let number = number.map_or_else(String::new, |number| format!(" {number}"));
    let mut text = format!(
        "schedule {gathers} {} {}{number}\n",
        schedule.copies,
        paths().count()
    );
    for (name, path) in paths() {
        let rank = path.rank.map_or(FORBIDDEN, name_of);
        // A string never refuses what is written to it.
        let _ = writeln!(
            text,
            "rank {name} {} {rank} {}",
            path.place,
            path.weight.unwrap_or(0)
        );
    }
    text
}

fn name_of(rank: Rank) -> &'static str {
    match rank {
        Rank::Active => "active",
        Rank::Spill => "spill",
        Rank::Standby => "standby",
    }
}

/// A schedule whose lines are arriving.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    schedule: Schedule,
    number: u64,
    missing: usize,
}

/// A line of a schedule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum RankLine<'a> {
    Begin {
        gathers: bool,
        copies: u8,
        paths: usize,
        /// 0: the client of an older release sends none.
        number: u64,
    },
    Path(&'a str, PathSchedule),
}

impl Arriving {
    /// Returns the schedule with its last line. None: a line that belongs to none.
    pub(super) fn on_line(&mut self, line: &RankLine<'_>) -> Option<Option<Order>> {
        match line {
            RankLine::Begin {
                gathers,
                copies,
                paths,
                number,
            } => {
                self.missing = *paths;
                self.number = *number;
                self.schedule = Schedule {
                    paths: Vec::with_capacity(*paths),
                    copies: *copies,
                    gathers: *gathers,
                };
            }
            RankLine::Path(name, path) => {
                self.missing = self.missing.checked_sub(1)?;
                self.schedule.paths.push(((*name).to_owned(), *path));
            }
        }
        Some((self.missing == 0).then(|| Order {
            number: self.number,
            schedule: Arc::new(self.schedule.clone()),
        }))
    }
}

/// The text after the first word of a line.
pub(super) fn parse<'a>(first: &str, rest: &'a str) -> Option<RankLine<'a>> {
    let mut words = rest.split(' ');
    let line = match first {
        "schedule" => {
            let gathers = match words.next()? {
                "0" => false,
                "1" => true,
                _ => return None,
            };
            let copies: u8 = words.next()?.parse().ok()?;
            let paths: usize = words.next()?.parse().ok()?;
            let number: u64 = match words.next() {
                Some(number) => number.parse().ok()?,
                None => 0,
            };
            let valid = (1..=COPIES_MAX).contains(&copies) && paths <= PATHS_MAX;
            valid.then_some(RankLine::Begin {
                gathers,
                copies,
                paths,
                number,
            })?
        }
        "rank" => {
            let name = words.next().filter(|name| is_name(name))?;
            let place = words.next()?.parse().ok()?;
            let rank = match words.next()? {
                "active" => Some(Rank::Active),
                "spill" => Some(Rank::Spill),
                "standby" => Some(Rank::Standby),
                FORBIDDEN => None,
                _ => return None,
            };
            let weight: u32 = words.next()?.parse().ok()?;
            let weight = (weight > 0).then_some(weight);
            RankLine::Path(
                name,
                PathSchedule {
                    place,
                    rank,
                    weight,
                    carries_copies: false,
                },
            )
        }
        _ => return None,
    };
    words.next().is_none().then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_arrives_as_it_was_sent() {
        let path = |name: &str, place, rank, weight| {
            (
                name.to_owned(),
                PathSchedule {
                    place,
                    rank,
                    weight,
                    carries_copies: false,
                },
            )
        };
        let schedule = Schedule {
            paths: vec![
                path("wifi", 0, Some(Rank::Active), Some(70)),
                path("lte", 1, Some(Rank::Spill), None),
                path("sat", 2, Some(Rank::Standby), None),
                path("usb", 255, None, None),
            ],
            copies: 2,
            gathers: false,
        };
        let mut arriving = Arriving::default();
        let mut arrived = Vec::new();
        for line in lines(&schedule, Some(7)).lines() {
            assert!(line.len() <= super::super::LINE_BYTES_MAX);
            let (first, rest) = line.split_once(' ').unwrap();
            let line = parse(first, rest).unwrap();
            arrived.push(arriving.on_line(&line).unwrap());
        }
        let last = arrived.pop().unwrap();
        assert!(arrived.iter().all(Option::is_none));
        let whole = last.unwrap();
        assert_eq!((whole.number, &*whole.schedule), (7, &schedule));
        assert!(lines(&schedule, None).starts_with("schedule 0 2 4\n"));
        let line = parse("rank", "lte 1 spill 0").unwrap();
        assert_eq!(arriving.on_line(&line), None, "a line too many");
    }

    #[test]
    fn malformed_lines_are_refused() {
        for (first, rest) in [
            ("schedule", "2 1 1"),
            ("schedule", "1 0 1"),
            ("schedule", "1 1 65"),
            ("schedule", "1 1"),
            ("schedule", "1 1 1 1 1"),
            ("schedule", "1 1 1 x"),
            ("rank", "wi/fi 0 active 0"),
            ("rank", "wifi 256 active 0"),
            ("rank", "wifi 0 best 0"),
            ("rank", "wifi 0 active"),
            ("rank", "wifi 0 active -1"),
        ] {
            assert_eq!(parse(first, rest), None, "{first} {rest}");
        }
    }
}
