//! Bytes of each access by day, kept on disk, and their sum since its last reset day.
//!
//! Days are those of the access's time zone. They are kept because its reset day may change: a new
//! document then asks for the sum since another day. After a change of the time zone, kept days
//! keep their numbers, so the sum changes by the hours between both midnights at most.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

use calendar::day_of_month;
use serde::{Deserialize, Serialize};
use tunnel::{
    PathSnapshot,
    steering_rules::{AccessTerms, Document, Used},
};

use crate::clock;

/// The header of IP. The transport counts payloads, and the operator packets.
const HEADER_BYTES: u64 = 20;
const HEADER_BYTES_IPV6: u64 = 40;
/// Accesses that are counted. At the bound the least recently used one is dropped, if it carried
/// nothing in the last `DAYS_MAX`. Otherwise the new one is not counted.
const ACCESSES_MAX: usize = 64;
/// Days kept of each access, at least two whole months; the farthest from today is dropped.
const DAYS_MAX: usize = 64;
/// Stands for the access of paths that ended before their name was known.
const UNNAMED: &str = "unnamed";
/// Bytes that a crash may forget, as long as a second does not carry more.
const KEEP_BYTES: u64 = 4_000_000;
/// Longest time until fewer bytes are written down.
const KEEP_EVERY: Duration = Duration::from_secs(60);
/// Shortest time between two writes.
const KEEP_PAUSE: Duration = Duration::from_secs(1);

/// One access, by local days since 1970. Releases before `days` wrote and read only the other two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Month {
    /// Day on which it began.
    began: i64,
    bytes: u64,
    #[serde(default)]
    days: BTreeMap<i64, u64>,
    #[serde(skip)]
    used: Used,
}

impl Month {
    fn add(&mut self, today: i64, bytes: u64) {
        let day = self.days.entry(today).or_default();
        *day = day.saturating_add(bytes);
        while self.days.len() > DAYS_MAX {
            let farthest = self
                .days
                .keys()
                .copied()
                .max_by_key(|day| today.abs_diff(*day));
            farthest.and_then(|day| self.days.remove(&day));
        }
    }

    /// Days after today count as well: a clock that goes back forgets nothing, and neither does a
    /// time zone further west.
    fn begin(&mut self, began: i64, today: i64) {
        self.began = began;
        self.bytes = self.since(began);
        self.used = Used {
            day_bytes: self.since(today),
            week_bytes: self.since(monday(today)),
            month_bytes: self.bytes,
        };
    }

    fn since(&self, day: i64) -> u64 {
        let counted = self.days.range(day..);
        counted.fold(0, |sum: u64, day| sum.saturating_add(*day.1))
    }

    fn used_last(&self) -> Option<i64> {
        self.days.last_key_value().map(|day| *day.0)
    }
}

#[derive(Debug, Clone)]
pub(super) struct Usage {
    file: PathBuf,
    months: BTreeMap<String, Month>,
    /// Bytes that were counted of each path; the paths are the tunnel's.
    seen: HashMap<(u64, u64), u64>,
    /// Bytes of paths whose name is not known yet. They count once it is.
    waiting: HashMap<(u64, u64), u64>,
    /// Bytes since the last write.
    unkept_bytes: u64,
}

impl Usage {
    /// A damaged file counts from zero and is reported.
    pub(super) fn read(file: PathBuf) -> Self {
        let read = || -> io::Result<BTreeMap<String, Month>> {
            match std::fs::read(&file) {
                Ok(text) => Ok(serde_json::from_slice(&text)?),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
                Err(error) => Err(error),
            }
        };
        let mut months = read()
            .inspect_err(|error| tracing::warn!(%error, "bytes of the month begin at zero"))
            .unwrap_or_default();
        for month in months.values_mut() {
            if month.days.is_empty() {
                month.add(month.began, month.bytes);
            }
            month.begin(month.began, month.used_last().unwrap_or(month.began));
        }
        Self {
            file,
            months,
            seen: HashMap::new(),
            waiting: HashMap::new(),
            unkept_bytes: 0,
        }
    }

    pub(super) fn write(&self) -> io::Result<()> {
        private_files::replace(&self.file, &serde_json::to_vec(&self.months)?)
    }

    /// Whether the bytes should be written down, so long after the last time.
    pub(super) fn is_due(&self, since: Duration) -> bool {
        match self.unkept_bytes {
            0 => false,
            KEEP_BYTES.. => since >= KEEP_PAUSE,
            _ => since >= KEEP_EVERY,
        }
    }

    pub(super) fn has_been_kept(&mut self) {
        self.unkept_bytes = 0;
    }

    /// Today in the access's time zone, by a clock that was set. Until then the last day that is
    /// known, or none.
    fn today(&self, access: &str, wall_us: i64, document: &Document) -> Option<i64> {
        if clock::is_set(wall_us) {
            let zone = document.terms_of(access).0.map(AccessTerms::zone);
            return Some(zone.unwrap_or_default().day(wall_us));
        }
        self.months.values().filter_map(Month::used_last).max()
    }

    /// Adds what the paths have carried since the last look. `accesses` with their addresses.
    /// Before the first known day nothing is added: counters go on, so it counts on that day.
    pub(super) fn add(
        &mut self,
        paths: &[PathSnapshot],
        accesses: &[(String, IpAddr)],
        wall_us: i64,
        document: &Document,
    ) {
        if self.today(UNNAMED, wall_us, document).is_none() {
            return;
        }
        let at = (wall_us, document);
        let mut seen = HashMap::with_capacity(paths.len());
        let mut waiting = HashMap::new();
        for path in paths {
            let id = (path.session, path.path_id);
            let packets = path.sent_packets + path.received_datagrams;
            let total = path.sent_bytes + path.received_bytes + packets * header_bytes(path);
            if path.name.is_empty() {
                waiting.insert(id, total);
                continue;
            }
            let before = self.seen.get(&id).copied().unwrap_or(0);
            seen.insert(id, total);
            self.count(carrier(path, accesses), total.saturating_sub(before), at);
        }
        let before = std::mem::replace(&mut self.waiting, waiting);
        for (id, bytes) in before {
            if !seen.contains_key(&id) && !self.waiting.contains_key(&id) {
                self.count(UNNAMED, bytes, at);
            }
        }
        self.seen = seen;
        self.begin_months(wall_us, document);
    }

    fn begin_months(&mut self, wall_us: i64, document: &Document) {
        let names: Vec<String> = self.months.keys().cloned().collect();
        for name in names {
            let reset_day = (document.terms_of(&name).0).map_or(1, |terms| terms.reset_day);
            let today = self.today(&name, wall_us, document);
            if let (Some(today), Some(month)) = (today, self.months.get_mut(&name)) {
                month.begin(began(today, reset_day), today);
            }
        }
    }

    fn count(&mut self, access: &str, bytes: u64, (wall_us, document): (i64, &Document)) {
        let Some(day) = self.today(access, wall_us, document) else {
            return;
        };
        if !self.months.contains_key(access) && !self.has_room(day) {
            return;
        }
        self.unkept_bytes = self.unkept_bytes.saturating_add(bytes);
        let month = self.months.entry(access.to_owned()).or_default();
        month.add(day, bytes);
    }

    /// Devices by pattern may have a new name each time.
    fn has_room(&mut self, today: i64) -> bool {
        if self.months.len() < ACCESSES_MAX {
            return true;
        }
        let oldest = self
            .months
            .iter()
            .min_by_key(|(_, month)| month.used_last());
        let is_over = |day| today.saturating_sub(day) > DAYS_MAX as i64;
        let oldest = oldest.filter(|(_, month)| month.used_last().is_none_or(is_over));
        let oldest = oldest.map(|(name, _)| name.clone());
        oldest.is_some_and(|name| self.months.remove(&name).is_some())
    }

    /// One series for each access, also for those without a path at present.
    pub(super) fn publish(&self) {
        for (name, month) in &self.months {
            metrics::gauge!("braid_gateway_path_month_bytes", "path" => name.clone())
                .set(month.bytes as f64);
        }
    }

    pub(super) fn used(&self, access: &str) -> Used {
        (self.months.get(access)).map_or_else(Used::default, |month| month.used)
    }
}

/// The access that carries the packets. A dead path uses another one until it closes. TCP has the
/// name of its transport where the kernel does not show its counters.
fn carrier<'a>(path: &'a PathSnapshot, accesses: &'a [(String, IpAddr)]) -> &'a str {
    let at = |it: &&(String, IpAddr)| Some(it.1) == path.local_ip;
    // Two networks may have given the same private address.
    let own = accesses.iter().find(|it| it.0 == path.name && at(it));
    let found = own.or_else(|| accesses.iter().find(at));
    found.map_or(&path.name, |it| &it.0)
}

fn header_bytes(path: &PathSnapshot) -> u64 {
    let far = path
        .remote_address
        .map(|address| address.ip().to_canonical());
    let of_ip = match far.or(path.local_ip) {
        Some(IpAddr::V6(_)) => HEADER_BYTES_IPV6,
        Some(IpAddr::V4(_)) | None => HEADER_BYTES,
    };
    of_ip + u64::from(path.packet_header_bytes)
}

/// The day since 1970 of the last reset day (1 to 31). A month without that day begins on its last
/// one.
fn began(day: i64, reset_day: u8) -> i64 {
    let first = day - day_of_month(day) + 1;
    let this_month = reset_in(first, reset_day);
    if this_month <= day {
        return this_month;
    }
    let last_of_previous = first - 1;
    reset_in(
        last_of_previous - day_of_month(last_of_previous) + 1,
        reset_day,
    )
}

/// The last Monday. Day 0 of 1970 was a Thursday.
fn monday(day: i64) -> i64 {
    day - (day + 3).rem_euclid(7)
}

/// The reset day of the month that begins on this day.
fn reset_in(first: i64, reset_day: u8) -> i64 {
    let days = 32 - day_of_month(first + 31);
    first + i64::from(reset_day).min(days) - 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::PathState;

    use super::*;

    const DAY_US: i64 = 86_400_000_000;
    /// 2028-02-29.
    const LEAP_DAY: i64 = 21_243;

    /// The end of a day in UTC.
    fn at(day: i64) -> i64 {
        (day + 1) * DAY_US - 1
    }

    fn path(session: u64, sent_bytes: u64) -> PathSnapshot {
        PathSnapshot {
            session,
            name: "lte".into(),
            state: PathState::Available,
            sent_bytes,
            ..PathSnapshot::default()
        }
    }

    impl Usage {
        fn month_bytes(&self, access: &str) -> u64 {
            self.used(access).month_bytes
        }
    }

    #[test]
    fn days_begin_at_midnight_and_weeks_on_monday() {
        assert_eq!(monday(4), 4, "1970-01-05");
        assert_eq!((monday(10), monday(11), monday(0)), (4, 11, -3));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.json");
        let document = Document::default();
        let mut usage = Usage::read(file.clone());
        // A Tuesday: 2028-02-29.
        let used = |usage: &Usage| {
            let used = usage.used("lte");
            (used.day_bytes, used.week_bytes, used.month_bytes)
        };
        let mut sent = 0;
        for (day, bytes, expected) in [
            (LEAP_DAY - 2, 7, (7, 7, 7)),
            (LEAP_DAY - 1, 20, (20, 20, 27)),
            (LEAP_DAY, 300, (300, 320, 327)),
            (LEAP_DAY + 1, 4_000, (4_000, 4_320, 4_000)),
        ] {
            sent += bytes;
            usage.add(&[path(1, sent)], &[], at(day), &document);
            assert_eq!(used(&usage), expected, "{day}");
            usage.write().unwrap();
            assert_eq!(
                used(&Usage::read(file.clone())),
                expected,
                "{day}, a restart"
            );
        }
        usage.add(&[path(1, sent)], &[], at(LEAP_DAY + 2), &document);
        assert_eq!(used(&usage), (0, 4_320, 4_000));
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
        // A month without the day begins on its last one.
        assert_eq!(began(LEAP_DAY - 1, 31), LEAP_DAY - 29);
        assert_eq!(began(LEAP_DAY, 31), LEAP_DAY);
        assert_eq!(began(LEAP_DAY + 30, 31), LEAP_DAY);
        assert_eq!(began(LEAP_DAY + 31, 31), LEAP_DAY + 31);
        assert_eq!(began(LEAP_DAY + 60, 30), LEAP_DAY + 30);
        for day in 0..3 * 365 {
            for reset_day in 1..=31 {
                let begins = began(day, reset_day);
                assert!((0..31).contains(&(day - begins)), "{day} {reset_day}");
                let last_day = day_of_month(begins + 1) == 1;
                let is_it = day_of_month(begins) == i64::from(reset_day);
                assert!(is_it || last_day && day_of_month(begins) < reset_day.into());
            }
        }
    }

    #[test]
    fn bytes_of_all_sessions_count_until_the_reset_day_and_over_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.json");
        let document = Document::default();
        let mut usage = Usage::read(file.clone());
        usage.add(&[path(1, 100)], &[], at(LEAP_DAY), &document);
        usage.add(&[path(1, 150)], &[], at(LEAP_DAY), &document);
        usage.add(&[path(1, 150), path(2, 30)], &[], at(LEAP_DAY), &document);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.write().unwrap();
        let mut usage = Usage::read(file);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.add(&[path(3, 20)], &[], at(LEAP_DAY), &document);
        assert_eq!(usage.month_bytes("lte"), 200);
        usage.add(&[path(3, 20)], &[], at(LEAP_DAY + 1), &document);
        assert_eq!(usage.month_bytes("lte"), 0, "a new month");
        usage.add(&[path(3, 25)], &[], at(LEAP_DAY), &document);
        assert_eq!(usage.month_bytes("lte"), 205, "the clock went back");
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
        usage.add(
            &[unnamed(1, 70), unnamed(2, 5)],
            &[],
            at(LEAP_DAY),
            &document,
        );
        usage.add(
            &[unnamed(1, 90), unnamed(2, 8)],
            &[],
            at(LEAP_DAY),
            &document,
        );
        assert_eq!(usage.months, BTreeMap::new());
        usage.add(&[path(1, 100)], &[], at(LEAP_DAY), &document);
        usage.add(&[path(1, 130)], &[], at(LEAP_DAY), &document);
        assert_eq!(usage.month_bytes("lte"), 130);
        assert_eq!(usage.month_bytes(UNNAMED), 8);
    }

    fn with_reset_day(reset_day: u8) -> Document {
        let text = format!("format = 1\n[[access]]\nname = \"lte\"\nreset_day = {reset_day}\n");
        Document::from_toml(&text, "test").unwrap()
    }

    fn usage(folder: &tempfile::TempDir) -> Usage {
        Usage::read(folder.path().join("usage.json"))
    }

    #[test]
    fn another_reset_day_counts_the_days_since_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        // 10, 20 and 28 February.
        for (day, sent_bytes) in [(19, 100), (9, 130), (1, 135)] {
            usage.add(
                &[path(1, sent_bytes)],
                &[],
                at(LEAP_DAY - day),
                &Document::default(),
            );
        }
        assert_eq!(usage.month_bytes("lte"), 135);
        usage.add(&[], &[], at(LEAP_DAY), &with_reset_day(15));
        assert_eq!(usage.month_bytes("lte"), 35);
        usage.add(&[], &[], at(LEAP_DAY), &with_reset_day(25));
        assert_eq!(usage.month_bytes("lte"), 5);
        usage.add(&[], &[], at(LEAP_DAY), &Document::default());
        assert_eq!(usage.month_bytes("lte"), 135);
    }

    #[test]
    fn a_clock_that_was_ahead_for_a_while_stops_no_later_reset() {
        let folder = tempfile::tempdir().unwrap();
        let document = Document::default();
        let mut usage = usage(&folder);
        usage.add(&[path(1, 100)], &[], at(LEAP_DAY), &document);
        usage.add(&[path(1, 103)], &[], at(LEAP_DAY + 4_000), &document);
        assert_eq!(usage.month_bytes("lte"), 3);
        usage.add(&[path(1, 110)], &[], at(LEAP_DAY), &document);
        assert_eq!(usage.month_bytes("lte"), 110, "nothing is forgotten");
        usage.add(&[path(1, 111)], &[], at(LEAP_DAY + 1), &document);
        assert_eq!(usage.month_bytes("lte"), 4, "a new month");
        for day in 2..2 + DAYS_MAX as i64 {
            usage.add(&[path(1, 111)], &[], at(LEAP_DAY + day), &document);
        }
        assert_eq!(usage.month_bytes("lte"), 0);
        assert!(usage.months["lte"].days.len() <= DAYS_MAX);
    }

    #[test]
    fn a_clock_that_was_never_set_names_no_day() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let (unset_us, set_us) = (3 * DAY_US, 1_800_000_000_000_000);
        let document = Document::default();
        usage.add(&[path(1, 30)], &[], unset_us, &document);
        assert_eq!(usage.months, BTreeMap::new(), "no day is known");
        usage.add(&[path(1, 100)], &[], set_us, &document);
        usage.add(&[path(1, 107)], &[], unset_us, &document);
        let counted = BTreeMap::from([(20_833, 107)]);
        assert_eq!(usage.months["lte"].days, counted, "the last day known");
    }

    fn in_zone(zone: &str) -> Document {
        let text = format!("format = 1\n[[access]]\nname = \"lte\"\ntime_zone = \"{zone}\"\n");
        Document::from_toml(&text, "test").unwrap()
    }

    const HOUR_US: i64 = DAY_US / 24;
    /// 2028-03-01 00:00 in UTC.
    const MARCH_US: i64 = (LEAP_DAY + 1) * DAY_US;

    #[test]
    fn a_month_begins_at_the_midnight_of_its_access() {
        // Hours after the midnight of UTC.
        let cases = [
            ("UTC", 0),
            ("Europe/Zurich", -1),
            ("Pacific/Auckland", -13),
            ("America/Los_Angeles", 8),
        ];
        for (zone, hours) in cases {
            let folder = tempfile::tempdir().unwrap();
            let (mut usage, document) = (usage(&folder), in_zone(zone));
            let midnight_us = MARCH_US + hours * HOUR_US;
            usage.add(&[path(1, 100)], &[], midnight_us - 1, &document);
            assert_eq!(usage.month_bytes("lte"), 100, "{zone}");
            usage.add(&[path(1, 107)], &[], midnight_us, &document);
            assert_eq!(usage.month_bytes("lte"), 7, "{zone}");
        }
    }

    #[test]
    fn each_access_has_a_month_of_its_own_zone() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let document = in_zone("Europe/Zurich");
        let wifi = |sent_bytes| PathSnapshot {
            name: "wifi".into(),
            ..path(2, sent_bytes)
        };
        let half_past_us = MARCH_US - HOUR_US / 2;
        usage.add(&[path(1, 10), wifi(20)], &[], at(LEAP_DAY - 9), &document);
        usage.add(&[path(1, 13), wifi(24)], &[], half_past_us, &document);
        assert_eq!(
            (usage.month_bytes("lte"), usage.month_bytes("wifi")),
            (3, 24)
        );
    }

    #[test]
    fn another_time_zone_neither_loses_nor_doubles_what_was_counted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.json");
        let mut usage = usage(&folder);
        let utc = Document::default();
        usage.add(&[path(1, 100)], &[], at(LEAP_DAY - 20), &utc);
        usage.add(&[path(1, 107)], &[], MARCH_US - 9 * HOUR_US, &utc);
        usage.write().unwrap();
        // A gateway that did not know the zone goes on with the same file.
        let mut usage = Usage::read(file);
        let at_us = MARCH_US - 8 * HOUR_US;
        for zone in ["Europe/Zurich", "America/Los_Angeles", "UTC"] {
            usage.add(&[], &[], at_us, &in_zone(zone));
            assert_eq!(usage.month_bytes("lte"), 107, "{zone}");
        }
        // There it is 1 March, and no byte was counted on that day yet.
        let east = in_zone("Pacific/Auckland");
        usage.add(&[path(2, 9)], &[], at_us, &east);
        assert_eq!(usage.month_bytes("lte"), 9);
        // Back to February, as by a clock that goes back.
        usage.add(&[path(2, 9)], &[], at_us, &utc);
        assert_eq!(usage.month_bytes("lte"), 116);
        usage.add(&[path(2, 10)], &[], MARCH_US, &utc);
        assert_eq!(usage.month_bytes("lte"), 10, "March of UTC has begun");
    }

    #[test]
    fn a_midnight_that_does_not_exist_or_exists_twice_begins_one_month() {
        // Zone, reset day, days after 1 March and the hour in UTC.
        let cases = [
            // Clocks go from 24:00 to 23:00 on 1 April, an hour before.
            ("America/Santiago", 2, 32, 4),
            // Clocks go from 24:00 to 01:00 on 3 September.
            ("America/Santiago", 3, 186, 4),
            // Clocks go from 01:00 to 00:00 on 5 November, an hour later.
            ("America/Havana", 5, 249, 4),
        ];
        for (zone, reset_day, days, hour) in cases {
            let folder = tempfile::tempdir().unwrap();
            let (mut usage, mut document) = (usage(&folder), in_zone(zone));
            document.accesses[0].reset_day = reset_day;
            let begins_us = MARCH_US + days * DAY_US + hour * HOUR_US;
            let looks = [
                (-2 * HOUR_US, 50, 50),
                (-HOUR_US, 70, 70),
                (-1, 100, 100),
                (0, 107, 7),
                (HOUR_US - 1, 110, 10),
                (HOUR_US, 111, 11),
            ];
            for (after_us, sent_bytes, month_bytes) in looks {
                usage.add(&[path(1, sent_bytes)], &[], begins_us + after_us, &document);
                assert_eq!(usage.month_bytes("lte"), month_bytes, "{zone} {after_us}");
            }
        }
    }

    #[test]
    fn a_file_of_an_older_release_goes_on_and_an_older_release_reads_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("usage.json");
        let began = LEAP_DAY - 28;
        let older = format!(r#"{{"lte":{{"began":{began},"bytes":70}}}}"#);
        std::fs::write(&file, older).unwrap();
        let mut usage = Usage::read(file.clone());
        assert_eq!(usage.month_bytes("lte"), 70);
        usage.add(&[path(1, 5)], &[], at(LEAP_DAY), &Document::default());
        assert_eq!(usage.month_bytes("lte"), 75);
        usage.write().unwrap();
        let written: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(written["lte"]["began"], began);
        assert_eq!(written["lte"]["bytes"], 75);
        std::fs::write(&file, "").unwrap();
        assert_eq!(Usage::read(file).month_bytes("lte"), 0, "damaged");
    }

    #[test]
    fn much_traffic_is_written_down_within_a_second() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let s = Duration::from_secs;
        assert!(!usage.is_due(s(600)), "nothing was carried");
        usage.add(&[path(1, 100)], &[], at(LEAP_DAY), &Document::default());
        assert!(!usage.is_due(s(59)) && usage.is_due(s(60)));
        usage.add(
            &[path(1, KEEP_BYTES)],
            &[],
            at(LEAP_DAY),
            &Document::default(),
        );
        assert!(!usage.is_due(Duration::ZERO) && usage.is_due(s(1)));
        usage.has_been_kept();
        assert!(!usage.is_due(s(600)));
    }

    #[test]
    fn headers_follow_the_family_of_the_addresses() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let over = |remote: &str, sent_packets| PathSnapshot {
            remote_address: Some(remote.parse().unwrap()),
            sent_packets,
            packet_header_bytes: 8,
            ..path(1, 1_000)
        };
        usage.add(
            &[over("192.0.2.1:443", 10)],
            &[],
            at(LEAP_DAY),
            &Document::default(),
        );
        assert_eq!(usage.month_bytes("lte"), 1_280);
        let over_ipv6 = PathSnapshot {
            session: 2,
            ..over("[2001:db8::1]:443", 10)
        };
        usage.add(&[over_ipv6], &[], at(LEAP_DAY), &Document::default());
        assert_eq!(usage.month_bytes("lte"), 1_280 + 1_480);
    }

    #[test]
    fn a_detour_and_tcp_count_for_the_access_that_carries_them() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        let accesses = [("wifi".to_owned(), ip(1)), ("lte".to_owned(), ip(2))];
        let over = |name: &str, last, sent_bytes| PathSnapshot {
            name: name.to_owned(),
            local_ip: Some(ip(last)),
            ..path(1, sent_bytes)
        };
        let mut add = |path| usage.add(&[path], &accesses, at(LEAP_DAY), &Document::default());
        add(over("wifi", 1, 100));
        // Wi-Fi is cut, and the path drains over LTE.
        add(over("wifi", 2, 130));
        add(over("mptcp", 1, 137));
        add(over("other", 9, 142));
        let counted = ["wifi", "lte", "mptcp", "other"].map(|name| usage.month_bytes(name));
        assert_eq!(counted, [107, 30, 0, 5]);
    }

    #[test]
    fn devices_with_new_names_are_counted_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let named = |number: u64| PathSnapshot {
            name: format!("wwan{number}"),
            ..path(number, 9)
        };
        for number in 0..ACCESSES_MAX as u64 + 1 {
            usage.add(&[named(number)], &[], at(LEAP_DAY), &Document::default());
        }
        assert_eq!(usage.month_bytes("wwan64"), 0, "all are in use");
        let later = LEAP_DAY + DAYS_MAX as i64 + 1;
        usage.add(&[named(99)], &[], at(later), &Document::default());
        assert_eq!(usage.month_bytes("wwan99"), 9);
        assert_eq!(usage.months.len(), ACCESSES_MAX);
    }
}
