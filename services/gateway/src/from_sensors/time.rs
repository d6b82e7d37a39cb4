//! The clock of the edge, and times in text form.

/// RFC 3339, such as `2026-03-01T12:00:00.250Z` or `...+01:00`. A leap second counts as the second
/// after it.
pub fn parse_rfc3339_us(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().try_fold(0, |sum, digit| {
            digit
                .is_ascii_digit()
                .then(|| sum * 10 + i64::from(digit - b'0'))
        })
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month)
        || !(1..=days_in(year, month)).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let mut at = 19;
    let mut fraction_us = 0;
    if is(at, b".") {
        let digits = bytes[at + 1..]
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        if digits == 0 {
            return None;
        }
        let taken = digits.min(6);
        fraction_us = number(at + 1, at + 1 + taken)? * 10_i64.pow(6 - taken as u32);
        at += 1 + digits;
    }
    let offset_minutes = match bytes.get(at)? {
        b'Z' | b'z' if bytes.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if bytes.len() == at + 6 && is(at + 3, b":") => {
            let (hours, minutes) = (number(at + 1, at + 3)?, number(at + 4, at + 6)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours * 60 + minutes;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    let seconds = days_since_epoch(year, month, day) * 86_400
        + hour * 3_600
        + (minute - offset_minutes) * 60
        + second;
    Some(seconds * 1_000_000 + fraction_us)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Proleptic Gregorian calendar, with the year beginning in March so that the leap day comes last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
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
            "2026-03-01",
            "2026-03-01T12:00:00",
            "2026-02-29T12:00:00Z",
            "2026-13-01T12:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.Z",
            "2026-03-01T12:00:00Z ",
            "2026-03-01T12:00:00+1:00",
            "é026-03-01T12:00:00Z",
        ] {
            assert_eq!(parse_rfc3339_us(text), None, "{text}");
        }
    }
}
