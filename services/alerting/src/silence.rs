//! A silence: alerts that notify nobody for a while. It has an author, a reason and an end. The
//! alerts themselves are still raised and stored.

use contracts::alerts::{Alert, Document};
use serde::{Deserialize, Serialize};
use vitals::{Invalid, validate_identifier};

/// Longest silence: one week. A longer one is refused.
pub const SILENCE_US_MAX: i64 = 7 * 24 * 3_600_000_000;

/// An empty field matches all. At least one field must be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Silence {
    #[serde(default)]
    pub patient: String,
    #[serde(default)]
    pub rule: String,
}

impl Silence {
    pub fn from_json(text: &str) -> Result<Silence, Invalid> {
        let silence: Silence = serde_json::from_str(text).map_err(|error| {
            Invalid::new(
                "silence",
                error.to_string(),
                r#"{"patient": "ada", "rule": "battery-low"}"#,
            )
        })?;
        if silence.patient.is_empty() && silence.rule.is_empty() {
            return Err(Invalid::new(
                "patient",
                "neither patient nor rule is set, which would silence everything",
                r#"{"patient": "ada"}"#,
            ));
        }
        for (field, value) in [("patient", &silence.patient), ("rule", &silence.rule)] {
            if !value.is_empty() {
                validate_identifier(field, value, "ada")?;
            }
        }
        Ok(silence)
    }

    pub fn covers(&self, alert: &Alert) -> bool {
        (self.patient.is_empty() || self.patient == alert.patient)
            && (self.rule.is_empty() || self.rule == alert.rule)
    }
}

/// A silence in force: its coverage and its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SilenceInForce {
    pub id: String,
    pub tenant: String,
    pub author: String,
    pub until_us: i64,
    pub silence: Silence,
}

impl SilenceInForce {
    pub(crate) fn read(document: &Document) -> Result<SilenceInForce, Invalid> {
        Ok(SilenceInForce {
            id: document.subject.clone(),
            tenant: document.tenant.clone(),
            author: document.author.clone(),
            until_us: document.until_us,
            silence: Silence::from_json(&document.body)?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_silence_covers_what_it_names() {
        let alert = |patient: &str, rule: &str| Alert {
            patient: patient.into(),
            rule: rule.into(),
            ..Alert::default()
        };
        let both = Silence::from_json(r#"{"patient": "ada", "rule": "fall"}"#).unwrap();
        assert!(both.covers(&alert("ada", "fall")));
        assert!(!both.covers(&alert("ada", "battery-low")));
        assert!(!both.covers(&alert("ben", "fall")));
        let patient = Silence::from_json(r#"{"patient": "ada"}"#).unwrap();
        assert!(patient.covers(&alert("ada", "battery-low")));
        for wrong in [
            "{}",
            r#"{"patient": "a b"}"#,
            r#"{"patients": "ada"}"#,
            "",
            r#"{"rule": ""}"#,
        ] {
            assert!(Silence::from_json(wrong).is_err(), "{wrong}");
        }
    }
}
