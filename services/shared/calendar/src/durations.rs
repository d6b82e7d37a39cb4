//! Durations in words.

const SECOND_US: i64 = 1_000_000;

/// For people, in the largest unit of which at least two have passed, such as `9 s` or `3 h`.
/// Rounded down; a negative duration is `0 s`.
pub fn duration_text(us: i64) -> String {
    let seconds = us.max(0) / SECOND_US;
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_the_largest_unit_of_which_two_have_passed() {
        let cases = [
            (i64::MIN, "0 s"),
            (-1, "0 s"),
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (172_799, "47 h"),
            (172_800, "2 days"),
            (900 * 86_400, "900 days"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration_text(seconds.saturating_mul(SECOND_US)), text);
        }
        assert_eq!(duration_text(120 * SECOND_US - 1), "119 s");
    }
}
