//! Bytes of each access since its last reset day, kept on disk.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    path::PathBuf,
};

use serde::{Deserialize, Serialize};
use tunnel::{PathSnapshot, steering_rules::Document};

/// IPv4 and UDP headers of a packet. The transport counts UDP payloads, and the operator packets.
const HEADER_BYTES: u64 = 28;
/// Accesses that are counted; further ones are not.
const ACCESSES_MAX: usize = 64;
/// Stands for the access of paths that ended before their name was known.
const UNNAMED: &str = "unnamed";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Month {
    /// Day since 1970 on which it began.
    began: i64,
    bytes: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Usage {
    file: PathBuf,
    months: BTreeMap<String, Month>,
    /// Bytes that were counted of each path; the paths are the tunnel's.
    seen: HashMap<(u64, u64), u64>,
    /// Bytes of paths whose name is not known yet. They count once it is.
    waiting: HashMap<(u64, u64), u64>,
}

impl Usage {
    /// A damaged file counts from zero and is reported.
    pub(super) fn read(file: PathBuf) -> Self {
        let months = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text)
                .inspect_err(|error| tracing::warn!(%error, "bytes of the month begin at zero"))
                .unwrap_or_default(),
            Err(_) => BTreeMap::new(),
        };
        Self {
            file,
            months,
            seen: HashMap::new(),
            waiting: HashMap::new(),
        }
    }

    pub(super) fn write(&self) -> io::Result<()> {
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, serde_json::to_vec(&self.months)?)?;
        std::fs::rename(&fresh, &self.file)
    }

    /// Adds what the paths have carried since the last look. `day` since 1970.
    pub(super) fn add(&mut self, paths: &[PathSnapshot], day: i64, document: &Document) {
        for (name, month) in &mut self.months {
            let reset_day = document.terms_of(name).0.map_or(1, |terms| terms.reset_day);
            let began = began(day, reset_day);
            // A clock that goes back forgets nothing.
            if began > month.began {
                *month = Month { began, bytes: 0 };
            }
        }
        let mut seen = HashMap::with_capacity(paths.len());
        let mut waiting = HashMap::new();
        for path in paths {
            let id = (path.session, path.path_id);
            let packets = path.sent_packets + path.received_datagrams;
            let total = path.sent_bytes + path.received_bytes + packets * HEADER_BYTES;
            if path.name.is_empty() {
                waiting.insert(id, total);
                continue;
            }
            let before = self.seen.get(&id).copied().unwrap_or(0);
            seen.insert(id, total);
            self.count(&path.name, total.saturating_sub(before), day, document);
        }
        let before = std::mem::replace(&mut self.waiting, waiting);
        for (id, bytes) in before {
            if !seen.contains_key(&id) && !self.waiting.contains_key(&id) {
                self.count(UNNAMED, bytes, day, document);
            }
        }
        self.seen = seen;
    }

    fn count(&mut self, access: &str, bytes: u64, day: i64, document: &Document) {
        let is_known = self.months.contains_key(access);
        if !is_known && self.months.len() >= ACCESSES_MAX {
            return;
        }
        let reset_day = document
            .terms_of(access)
            .0
            .map_or(1, |terms| terms.reset_day);
        let month = self
            .months
            .entry(access.to_owned())
            .or_insert_with(|| Month {
                began: began(day, reset_day),
                bytes: 0,
            });
        month.bytes = month.bytes.saturating_add(bytes);
    }

    /// One series for each access, also for those without a path at present.
    pub(super) fn publish(&self) {
        for (name, month) in &self.months {
            metrics::gauge!("braid_gateway_path_month_bytes", "path" => name.clone())
                .set(month.bytes as f64);
        }
    }

    pub(super) fn month_bytes(&self, access: &str) -> u64 {
        self.months.get(access).map_or(0, |month| month.bytes)
    }
}

/// The day since 1970 of the last reset day (1 to 28), in UTC.
fn began(day: i64, reset_day: u8) -> i64 {
    let today = day_of_month(day);
    let reset_day = i64::from(reset_day);
    if today >= reset_day {
        return day - (today - reset_day);
    }
    let last_of_previous = day - today;
    last_of_previous - (day_of_month(last_of_previous) - reset_day)
}

/// Day of the month, 1 to 31, in the Gregorian calendar.
fn day_of_month(day: i64) -> i64 {
    // Days since 0000-03-01, in eras of 400 years.
    let shifted = day + 719_468;
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    day_of_year - (153 * month + 2) / 5 + 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::PathState;

    use super::*;

    /// 2024-02-29.
    const LEAP_DAY: i64 = 19_782;

    fn path(session: u64, sent_bytes: u64) -> PathSnapshot {
        PathSnapshot {
            session,
            name: "lte".into(),
            state: PathState::Available,
            sent_bytes,
            ..PathSnapshot::default()
        }
    }

    #[test]
    fn a_month_begins_on_its_reset_day() {
        assert_eq!(day_of_month(0), 1);
        assert_eq!(day_of_month(LEAP_DAY), 29);
        assert_eq!(day_of_month(LEAP_DAY + 1), 1);
        assert_eq!(began(LEAP_DAY, 1), LEAP_DAY - 28);
        assert_eq!(began(LEAP_DAY, 28), LEAP_DAY - 1);
        assert_eq!(began(LEAP_DAY + 1, 28), LEAP_DAY - 1);
        assert_eq!(began(LEAP_DAY + 1, 1), LEAP_DAY + 1);
    }

    #[test]
    fn bytes_of_all_sessions_count_until_the_reset_day_and_over_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.json");
        let document = Document::default();
        let mut usage = Usage::read(file.clone());
        usage.add(&[path(1, 100)], LEAP_DAY, &document);
        usage.add(&[path(1, 150)], LEAP_DAY, &document);
        usage.add(&[path(1, 150), path(2, 30)], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.write().unwrap();
        let mut usage = Usage::read(file);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.add(&[path(3, 20)], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 200);
        usage.add(&[path(3, 20)], LEAP_DAY + 1, &document);
        assert_eq!(usage.month_bytes("lte"), 0, "a new month");
        usage.add(&[path(3, 25)], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 5, "the clock went back");
    }

    #[test]
    fn bytes_before_a_name_is_known_count_and_so_do_those_of_a_path_that_ends_without() {
        let folder = tempfile::tempdir().unwrap();
        let document = Document::default();
        let mut usage = Usage::read(folder.path().join("usage.json"));
        let unnamed = |session, sent_bytes| PathSnapshot {
            name: String::new(),
            ..path(session, sent_bytes)
        };
        usage.add(&[unnamed(1, 70), unnamed(2, 5)], LEAP_DAY, &document);
        usage.add(&[unnamed(1, 90), unnamed(2, 8)], LEAP_DAY, &document);
        assert_eq!(usage.months, BTreeMap::new());
        usage.add(&[path(1, 100)], LEAP_DAY, &document);
        usage.add(&[path(1, 130)], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 130);
        assert_eq!(usage.month_bytes(UNNAMED), 8);
    }
}
