//! The steering of a gateway's report, as `jsonb` for dashboards.

use contracts::paths::{PathReport, RuleUse};
use serde_json::json;

/// The form of `jsonb` in binary COPY.
const VERSION: u8 = 1;

/// None for a report that says nothing about steering.
pub(super) fn binary(report: &PathReport) -> Option<Vec<u8>> {
    if report.access.is_none() && report.rule_uses.is_empty() {
        return None;
    }
    let access = report.access.clone().unwrap_or_default();
    // An enum value of a newer release is shown as unknown.
    let rank = access.rank().as_str_name();
    let rank = rank.trim_start_matches("ACCESS_RANK_").to_lowercase();
    let rules = report.rule_uses.iter().map(|RuleUse { rule, mode, bytes }| {
        json!({ "rule": plain(rule), "mode": plain(mode), "bytes": bytes })
    });
    let steering = json!({
        "version": report.steering_version,
        "month_bytes": report.access.is_some().then_some(access.month_bytes),
        "cap_bytes": access.cap_bytes,
        "reset_day": access.reset_day,
        "time_zone": plain(&access.time_zone),
        "price_per_gb": access.price_per_gb,
        "rank": rank,
        "rules": rules.collect::<Vec<_>>(),
    });
    let mut binary = vec![VERSION];
    binary.extend_from_slice(steering.to_string().as_bytes());
    Some(binary)
}

/// PostgreSQL refuses NUL, and the whole batch with it.
fn plain(text: &str) -> String {
    text.chars().filter(|it| !it.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use contracts::paths::{AccessRank, AccessUse};

    use super::*;

    #[test]
    fn a_report_with_steering_is_json_that_the_server_takes() {
        assert_eq!(binary(&PathReport::default()), None);
        let report = PathReport {
            steering_version: 3,
            access: Some(AccessUse {
                month_bytes: u64::MAX,
                price_per_gb: f64::NAN,
                rank: AccessRank::Spill.into(),
                time_zone: "Europe/Zurich".to_owned(),
                ..AccessUse::default()
            }),
            rule_uses: vec![RuleUse {
                rule: "bu\0lk".to_owned(),
                mode: "auto".to_owned(),
                bytes: 7,
            }],
            ..PathReport::default()
        };
        let binary = binary(&report).unwrap_or_default();
        assert_eq!(binary.first(), Some(&VERSION));
        let value: serde_json::Value = serde_json::from_slice(&binary[1..]).unwrap_or_default();
        assert_eq!(value["rules"][0]["rule"], "bulk");
        assert_eq!(value["month_bytes"], u64::MAX);
        assert_eq!(value["price_per_gb"], serde_json::Value::Null);
        assert_eq!(value["rank"], "spill");
        assert_eq!(value["time_zone"], "Europe/Zurich");
    }
}
