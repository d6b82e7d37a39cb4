//! Time zones by IANA name. The zone data is compiled in, so a container needs none.

use jiff::{ZonedDateTime, tz::TimeZone};
use serde::{Deserialize, Serialize};

const DAY_MINUTES: i64 = 1440;
const SECOND_US: i64 = 1_000_000;
const DAY_US: i64 = 86_400 * SECOND_US;

/// A time zone. Default: UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Default for Zone {
    fn default() -> Zone {
        Zone(TimeZone::UTC)
    }
}

impl Zone {
    pub fn parse(name: &str) -> Option<Zone> {
        // Only names of the database are accepted. jiff also accepts POSIX rules, which lack the
        // past.
        let zone = TimeZone::get(name).ok()?;
        zone.iana_name()?;
        // `Etc/Unknown` would be taken for UTC.
        (!zone.is_unknown()).then_some(Zone(zone))
    }

    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// For people, such as `Sun 29 Mar 2026 03:30:00 CEST (Europe/Berlin)`.
    pub fn text(&self, us: i64) -> String {
        match self.at(us) {
            Some(at) => format!(
                "{} ({})",
                at.strftime("%a %d %b %Y %H:%M:%S %Z"),
                self.name()
            ),
            None => format!("{us} us after 1970"),
        }
    }

    /// For people, within a sentence that need not name the year or the zone: `Sun 29 Mar 03:30`.
    pub fn minute_text(&self, us: i64) -> String {
        match self.at(us) {
            Some(at) => at.strftime("%a %d %b %H:%M").to_string(),
            None => format!("{us} us after 1970"),
        }
    }

    /// For machines, such as `2026-03-29T03:30:00+02:00`.
    pub fn rfc3339(&self, us: i64) -> Option<String> {
        self.at(us)
            .map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
    }

    /// Days since 1970 by the local calendar. The day begins at its first moment, also where
    /// midnight does not exist or exists twice.
    pub fn day(&self, us: i64) -> i64 {
        let local_us = self.at(us).map_or(us, |at| {
            us.saturating_add(i64::from(at.offset().seconds()) * SECOND_US)
        });
        local_us.div_euclid(DAY_US)
    }

    /// Minutes since Monday 00:00 by the local clock.
    pub fn week_minute(&self, us: i64) -> i64 {
        self.at(us).map_or(0, |at| {
            i64::from(at.weekday().to_monday_zero_offset()) * DAY_MINUTES
                + i64::from(at.hour()) * 60
                + i64::from(at.minute())
        })
    }

    /// `None` beyond the year 9999.
    fn at(&self, us: i64) -> Option<ZonedDateTime> {
        let timestamp = crate::moment::timestamp(us)?;
        Some(timestamp.to_zoned_datetime(self.0.clone()))
    }
}

impl Serialize for Zone {
    fn serialize<S: serde::Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Zone, D::Error> {
        let name = String::deserialize(from)?;
        Zone::parse(&name).ok_or_else(|| {
            serde::de::Error::custom(format!(
                "{name:?} is not an IANA time zone; an example is \"Europe/Berlin\""
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MINUTE_US: i64 = 60_000_000;
    /// 2026-03-29T00:59:00Z: a minute before summer time begins in Berlin.
    const SPRING_US: i64 = 1_774_745_940_000_000;
    /// 2026-10-25T00:59:00Z: a minute before it ends.
    const AUTUMN_US: i64 = 1_792_889_940_000_000;

    #[test]
    fn local_time_follows_summer_time() {
        let zone = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(
            zone.text(SPRING_US),
            "Sun 29 Mar 2026 01:59:00 CET (Europe/Berlin)"
        );
        assert_eq!(
            zone.text(SPRING_US + MINUTE_US),
            "Sun 29 Mar 2026 03:00:00 CEST (Europe/Berlin)"
        );
        let rfc = |us| zone.rfc3339(us).unwrap();
        assert_eq!(rfc(AUTUMN_US), "2026-10-25T02:59:00+02:00");
        assert_eq!(rfc(AUTUMN_US + MINUTE_US), "2026-10-25T02:00:00+01:00");
        let sunday = 6 * DAY_MINUTES;
        assert_eq!(zone.week_minute(SPRING_US), sunday + 119);
        assert_eq!(zone.week_minute(SPRING_US + MINUTE_US), sunday + 180);
    }

    #[test]
    fn only_names_of_the_database_are_taken() {
        for name in [
            "",
            "Europe/Nowhere",
            "Etc/Unknown",
            "CET-1CEST",
            "../etc/passwd",
            "+01:00",
        ] {
            assert_eq!(Zone::parse(name), None, "{name}");
        }
        assert_eq!(Zone::default().name(), "UTC");
        assert_eq!(Zone::parse("UTC").unwrap().name(), "UTC");
        assert!(!Zone::default().text(i64::MAX).is_empty());
    }

    #[test]
    fn a_day_begins_with_its_first_local_moment() {
        // 2026-01-01 is day 20454.
        const NEW_YEAR: i64 = 20_454;
        let day = |zone: &str, at: &str| {
            let at: jiff::Timestamp = format!("2026-{at}Z").parse().unwrap();
            Zone::parse(zone).unwrap().day(at.as_microsecond()) - NEW_YEAR
        };
        // The last second before a day, its first second, and the day of the year.
        let cases = [
            ("UTC", "01-31T23:59:59", "02-01T00:00:00", 31),
            // East and west of Greenwich, and with half an hour.
            ("Europe/Zurich", "01-31T22:59:59", "01-31T23:00:00", 31),
            ("Europe/Zurich", "06-30T21:59:59", "06-30T22:00:00", 181),
            (
                "America/Los_Angeles",
                "02-01T07:59:59",
                "02-01T08:00:00",
                31,
            ),
            ("Asia/Kolkata", "01-31T18:29:59", "01-31T18:30:00", 31),
            ("Pacific/Kiritimati", "01-31T09:59:59", "01-31T10:00:00", 31),
            // Clocks go from 24:00 to 01:00: there is no midnight.
            ("America/Santiago", "09-06T03:59:59", "09-06T04:00:00", 248),
            // Clocks go from 24:00 to 23:00: the second midnight counts.
            ("America/Santiago", "04-05T03:59:59", "04-05T04:00:00", 94),
            // Clocks go from 01:00 to 00:00: the first midnight counts.
            ("America/Havana", "11-01T03:59:59", "11-01T04:00:00", 304),
        ];
        for (zone, last, first, day_of_year) in cases {
            assert_eq!(day(zone, last), day_of_year - 1, "{zone} {last}");
            assert_eq!(day(zone, first), day_of_year, "{zone} {first}");
        }
        assert_eq!(day("America/Santiago", "04-05T03:00:00"), 93, "again 23:00");
        assert_eq!(day("America/Havana", "11-01T05:00:00"), 304, "again 00:00");
        assert_eq!(Zone::default().day(-1), -1);
        assert_eq!(Zone::default().day(i64::MAX), i64::MAX / DAY_US);
    }
}
