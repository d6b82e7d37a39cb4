//! Moments in microseconds since 1970, as text in UTC and as days of the month.

use jiff::{Timestamp, tz::TimeZone};

const SECOND_US: i64 = 1_000_000;
const DAY_S: i64 = 86_400;

/// RFC 3339, such as `2026-03-01T12:00:00.250Z` or `...+01:00`. Digits beyond a microsecond are
/// cut.
pub fn parse_rfc3339_us(text: &str) -> Option<i64> {
    // The parser also takes names of zones and other additions. A sensor has no use for them.
    let is_plain = |byte: u8| byte.is_ascii_digit() || b"Tt :.+-Zz".contains(&byte);
    let has_seconds = text.as_bytes().get(16) == Some(&b':');
    if !has_seconds || !text.bytes().all(is_plain) {
        return None;
    }
    text.parse::<Timestamp>().ok().map(|it| it.as_microsecond())
}

/// To the second. `None`: the year does not have four digits.
pub fn rfc3339(us: i64) -> Option<String> {
    text(us, 0)
}

/// To the millisecond. `None`: the year does not have four digits.
pub fn rfc3339_ms(us: i64) -> Option<String> {
    text(us, 3)
}

fn text(us: i64, digits: usize) -> Option<String> {
    let at = timestamp(us)?;
    let at = match digits {
        0 => Timestamp::from_second(us.div_euclid(SECOND_US))
            .ok()?
            .to_string(),
        _ => format!("{at:.digits$}"),
    };
    (!at.starts_with('-')).then_some(at)
}

/// Day of the month, 1 to 31, of a day since 1970 in UTC. 1 beyond the year 9999.
pub fn day_of_month(day: i64) -> i64 {
    let at = Timestamp::from_second(day.saturating_mul(DAY_S));
    at.map_or(1, |at| i64::from(at.to_zoned_datetime(TimeZone::UTC).day()))
}

pub(crate) fn timestamp(us: i64) -> Option<Timestamp> {
    let nanosecond = us.rem_euclid(SECOND_US) * 1_000;
    Timestamp::new(us.div_euclid(SECOND_US), nanosecond as i32).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_by_rfc_3339() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600_000_000),
            ("2026-03-01T12:00:00.25Z", 1_772_366_400_250_000),
            ("2026-03-01T13:00:00+01:00", 1_772_366_400_000_000),
            ("2026-03-01t06:30:00.1234567-05:30", 1_772_366_400_123_456),
            ("1969-12-31T23:59:59Z", -1_000_000),
        ] {
            assert_eq!(parse_rfc3339_us(text), Some(us), "{text}");
        }
        for text in [
            "",
            "noon",
            "2026-03-01",
            "2026-03-01T12:00Z",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00Z ",
            "2026-03-01T12:00:00+1:00",
            "2026-03-01T12:00:00+01:00[Europe/Berlin]",
            "é026-03-01T12:00:00Z",
        ] {
            assert_eq!(parse_rfc3339_us(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_written_by_rfc_3339() {
        let us = 1_772_366_400_250_999;
        assert_eq!(rfc3339(us).as_deref(), Some("2026-03-01T12:00:00Z"));
        assert_eq!(rfc3339_ms(us).as_deref(), Some("2026-03-01T12:00:00.250Z"));
        assert_eq!(rfc3339_ms(0).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(rfc3339(-1).as_deref(), Some("1969-12-31T23:59:59Z"));
        for us in [i64::MIN, i64::MAX] {
            assert_eq!(rfc3339(us), None);
        }
    }

    #[test]
    fn days_have_their_number_in_the_month() {
        // 2028-02-29 and the days beside it.
        let days: Vec<i64> = (21_242..21_245).map(day_of_month).collect();
        assert_eq!(days, [28, 29, 1]);
        assert_eq!((day_of_month(0), day_of_month(-1)), (1, 31));
    }
}
