//! Bytes of each access by day, kept on disk, and their sum since its last reset day.
//!
//! Days are kept because the reset day of an access may change: a new document then asks for the
//! sum since another day.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::IpAddr,
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tunnel::{PathSnapshot, steering_rules::Document};

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
const DAY_US: i64 = 86_400_000_000;

/// One access. Releases before `days` wrote and read only the other two.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Month {
    /// Day since 1970 on which it began.
    began: i64,
    bytes: u64,
    #[serde(default)]
    days: BTreeMap<i64, u64>,
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

    /// Days after today count as well, since a clock that goes back forgets nothing.
    fn begin(&mut self, began: i64) {
        self.began = began;
        let counted = self.days.range(began..);
        self.bytes = counted.fold(0, |sum: u64, day| sum.saturating_add(*day.1));
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
        for month in months.values_mut().filter(|month| month.days.is_empty()) {
            month.add(month.began, month.bytes);
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

    /// The day since 1970, by a clock that was set. Until then the last day that is known, or none.
    pub(super) fn day(&self, wall_us: i64) -> Option<i64> {
        if clock::is_set(wall_us) {
            return Some(wall_us.div_euclid(DAY_US));
        }
        self.months.values().filter_map(Month::used_last).max()
    }

    /// Adds what the paths have carried since the last look. `accesses` with their addresses, `day`
    /// since 1970.
    pub(super) fn add(
        &mut self,
        paths: &[PathSnapshot],
        accesses: &[(String, IpAddr)],
        day: i64,
        document: &Document,
    ) {
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
            self.count(carrier(path, accesses), total.saturating_sub(before), day);
        }
        let before = std::mem::replace(&mut self.waiting, waiting);
        for (id, bytes) in before {
            if !seen.contains_key(&id) && !self.waiting.contains_key(&id) {
                self.count(UNNAMED, bytes, day);
            }
        }
        self.seen = seen;
        for (name, month) in &mut self.months {
            let reset_day = document.terms_of(name).0.map_or(1, |terms| terms.reset_day);
            month.begin(began(day, reset_day));
        }
    }

    fn count(&mut self, access: &str, bytes: u64, day: i64) {
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

    pub(super) fn month_bytes(&self, access: &str) -> u64 {
        self.months.get(access).map_or(0, |month| month.bytes)
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

/// The day since 1970 of the last reset day (1 to 31), in UTC. A month without that day begins on
/// its last one.
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

/// The reset day of the month that begins on this day.
fn reset_in(first: i64, reset_day: u8) -> i64 {
    let days = 32 - day_of_month(first + 31);
    first + i64::from(reset_day).min(days) - 1
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
        usage.add(&[path(1, 100)], &[], LEAP_DAY, &document);
        usage.add(&[path(1, 150)], &[], LEAP_DAY, &document);
        usage.add(&[path(1, 150), path(2, 30)], &[], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.write().unwrap();
        let mut usage = Usage::read(file);
        assert_eq!(usage.month_bytes("lte"), 180);
        usage.add(&[path(3, 20)], &[], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 200);
        usage.add(&[path(3, 20)], &[], LEAP_DAY + 1, &document);
        assert_eq!(usage.month_bytes("lte"), 0, "a new month");
        usage.add(&[path(3, 25)], &[], LEAP_DAY, &document);
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
        usage.add(&[unnamed(1, 70), unnamed(2, 5)], &[], LEAP_DAY, &document);
        usage.add(&[unnamed(1, 90), unnamed(2, 8)], &[], LEAP_DAY, &document);
        assert_eq!(usage.months, BTreeMap::new());
        usage.add(&[path(1, 100)], &[], LEAP_DAY, &document);
        usage.add(&[path(1, 130)], &[], LEAP_DAY, &document);
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
                LEAP_DAY - day,
                &Document::default(),
            );
        }
        assert_eq!(usage.month_bytes("lte"), 135);
        usage.add(&[], &[], LEAP_DAY, &with_reset_day(15));
        assert_eq!(usage.month_bytes("lte"), 35);
        usage.add(&[], &[], LEAP_DAY, &with_reset_day(25));
        assert_eq!(usage.month_bytes("lte"), 5);
        usage.add(&[], &[], LEAP_DAY, &Document::default());
        assert_eq!(usage.month_bytes("lte"), 135);
    }

    #[test]
    fn a_clock_that_was_ahead_for_a_while_stops_no_later_reset() {
        let folder = tempfile::tempdir().unwrap();
        let document = Document::default();
        let mut usage = usage(&folder);
        usage.add(&[path(1, 100)], &[], LEAP_DAY, &document);
        usage.add(&[path(1, 103)], &[], LEAP_DAY + 4_000, &document);
        assert_eq!(usage.month_bytes("lte"), 3);
        usage.add(&[path(1, 110)], &[], LEAP_DAY, &document);
        assert_eq!(usage.month_bytes("lte"), 110, "nothing is forgotten");
        usage.add(&[path(1, 111)], &[], LEAP_DAY + 1, &document);
        assert_eq!(usage.month_bytes("lte"), 4, "a new month");
        for day in 2..2 + DAYS_MAX as i64 {
            usage.add(&[path(1, 111)], &[], LEAP_DAY + day, &document);
        }
        assert_eq!(usage.month_bytes("lte"), 0);
        assert!(usage.months["lte"].days.len() <= DAYS_MAX);
    }

    #[test]
    fn a_clock_that_was_never_set_names_no_day() {
        let folder = tempfile::tempdir().unwrap();
        let mut usage = usage(&folder);
        let (unset_us, set_us) = (3 * DAY_US, 1_800_000_000_000_000);
        assert_eq!(usage.day(unset_us), None);
        assert_eq!(usage.day(set_us), Some(20_833));
        usage.add(&[path(1, 100)], &[], 20_833, &Document::default());
        assert_eq!(usage.day(unset_us), Some(20_833), "the last one known");
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
        usage.add(&[path(1, 5)], &[], LEAP_DAY, &Document::default());
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
        usage.add(&[path(1, 100)], &[], LEAP_DAY, &Document::default());
        assert!(!usage.is_due(s(59)) && usage.is_due(s(60)));
        usage.add(&[path(1, KEEP_BYTES)], &[], LEAP_DAY, &Document::default());
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
            LEAP_DAY,
            &Document::default(),
        );
        assert_eq!(usage.month_bytes("lte"), 1_280);
        let over_ipv6 = PathSnapshot {
            session: 2,
            ..over("[2001:db8::1]:443", 10)
        };
        usage.add(&[over_ipv6], &[], LEAP_DAY, &Document::default());
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
        let mut add = |path| usage.add(&[path], &accesses, LEAP_DAY, &Document::default());
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
            usage.add(&[named(number)], &[], LEAP_DAY, &Document::default());
        }
        assert_eq!(usage.month_bytes("wwan64"), 0, "all are in use");
        let later = LEAP_DAY + DAYS_MAX as i64 + 1;
        usage.add(&[named(99)], &[], later, &Document::default());
        assert_eq!(usage.month_bytes("wwan99"), 9);
        assert_eq!(usage.months.len(), ACCESSES_MAX);
    }
}
