//! Times in the audit log and on the command line, as RFC 3339.

/// In UTC to the second, with words for an open end.
pub fn shown(us: i64) -> String {
    match us {
        i64::MIN | 0 => "the beginning".to_owned(),
        i64::MAX => "further notice".to_owned(),
        us => calendar::rfc3339(us).unwrap_or_else(|| "a time after the year 9999".to_owned()),
    }
}

/// A window of time: `2026-03-01T12:00:00Z to further notice`.
pub fn window(from_us: i64, to_us: i64) -> String {
    // A request without an end asks up to now.
    let to_us = if to_us == 0 { i64::MAX } else { to_us };
    match to_us {
        i64::MAX => format!("{} to now", shown(from_us)),
        to_us => format!("{} to {}", shown(from_us), shown(to_us)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_is_shown_as_a_number() {
        let day_us = 86_400_000_000;
        for (from_us, to_us, expected) in [
            (0, i64::MAX, "the beginning to now"),
            (i64::MIN, 0, "the beginning to now"),
            (
                day_us,
                2 * day_us,
                "1970-01-02T00:00:00Z to 1970-01-03T00:00:00Z",
            ),
            (
                day_us,
                i64::MAX - 1,
                "1970-01-02T00:00:00Z to a time after the year 9999",
            ),
        ] {
            assert_eq!(window(from_us, to_us), expected);
        }
        assert_eq!(shown(i64::MAX), "further notice");
    }
}
