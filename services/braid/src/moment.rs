//! Times on the command line, as RFC 3339.

use std::str::FromStr;

/// A time in microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(pub i64);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        let moment = calendar::parse_rfc3339_us(text).map(Moment);
        moment
            .ok_or_else(|| "is not a time of RFC 3339; for example 2026-03-01T12:00:00Z".to_owned())
    }
}

pub use dashboard::moment::shown;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_moment_is_shown_as_it_was_typed() {
        let moment: Moment = "2026-03-01T12:00:00Z".parse().unwrap();
        assert_eq!(shown(moment.0), "2026-03-01T12:00:00Z");
        let same: Moment = "2026-03-01T13:00:00+01:00".parse().unwrap();
        assert_eq!(same, moment);
        assert!("noon".parse::<Moment>().unwrap_err().contains("RFC 3339"));
        assert_eq!(shown(i64::MAX), "further notice");
    }
}
