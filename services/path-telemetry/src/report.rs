//! Rules for one report: its form, and which end may report on which gateway. Sans-IO.

use std::fmt;

use contracts::paths::{End, PathReport, RuleUse};
use contracts::text;
use service_kit::tls::GatewayId;

use crate::owners::Owners;

/// Bytes of a gateway's name and of an address; longer values are refused.
const NAME_BYTES_MAX: usize = 128;
/// Bytes of a path's name; a longer name is refused. A tunnel's path names have at most 32 bytes.
pub(crate) const PATH_BYTES_MAX: usize = 64;
/// Age of a report in microseconds, one day; an older report is dated to its arrival. No sender
/// keeps reports that long, so the sender's clock is wrong or the time is invented. The bound
/// limits how many daily tables one gateway can create in the store.
pub(crate) const AGE_US_MAX: i64 = 86_400_000_000;
/// Interval of a report in milliseconds, one hour; a longer interval is refused.
const INTERVAL_MS_MAX: u32 = 3_600_000;
/// Rules in each of a report's two lists; more than both may hold are refused. A gateway sends no
/// more.
const RULES_MAX: usize = 64;
/// Characters of the name of a rule or a mode, as in a steering document.
const RULE_CHARS_MAX: usize = 64;
/// Highest price of a gigabyte, as in a steering document.
const PRICE_MAX: f64 = 1e6;
/// Last day of a month on which a cap may begin anew, as in a steering document.
const RESET_DAY_MAX: u32 = 31;
/// Longest name of a time zone in a report; a report with a longer one is refused.
const TIME_ZONE_BYTES_MAX: usize = 64;

/// Why a report is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{reporter} may not report on gateway {gateway:?} from this end")]
    NotYours { reporter: String, gateway: String },
    #[error("gateway {gateway:?} of tenant {tenant} bears the name of another tenant's gateway")]
    Anothers { tenant: String, gateway: String },
    #[error("{field}: {reason}; for example {example}")]
    Invalid {
        field: &'static str,
        reason: String,
        example: &'static str,
    },
}

/// The sender of a report, from its certificate.
#[derive(Clone, Debug)]
pub(crate) enum Reporter {
    Gateway(GatewayId),
    /// A service, by its noun.
    Proxy(String),
}

impl fmt::Display for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reporter::Gateway(gateway) => write!(f, "{gateway}"),
            Reporter::Proxy(noun) => write!(f, "service {noun}"),
        }
    }
}

impl Reporter {
    /// Checks the report's form, and that this sender may report it.
    pub(crate) fn admit(&self, report: &PathReport, owners: &Owners) -> Result<(), Refused> {
        check(report)?;
        match self {
            Reporter::Gateway(gateway) => of_gateway(gateway, report, owners),
            Reporter::Proxy(noun) => of_proxy(noun, report),
        }
    }

    /// The gateway, if a gateway reports.
    pub(crate) fn gateway(&self) -> Option<&GatewayId> {
        match self {
            Reporter::Gateway(gateway) => Some(gateway),
            Reporter::Proxy(_) => None,
        }
    }

    /// A label of metrics.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Reporter::Gateway(_) => "gateway",
            Reporter::Proxy(_) => "proxy",
        }
    }
}

/// A gateway reports only on itself, and only from its own end.
fn of_gateway(gateway: &GatewayId, report: &PathReport, owners: &Owners) -> Result<(), Refused> {
    if report.gateway != gateway.id || report.end() != End::Gateway {
        return Err(Refused::NotYours {
            reporter: format!("gateway {}", gateway.id),
            gateway: report.gateway.clone(),
        });
    }
    if owners.is_anothers(gateway) {
        return Err(Refused::Anothers {
            tenant: gateway.tenant.clone(),
            gateway: gateway.id.clone(),
        });
    }
    Ok(())
}

/// A proxy reports on every gateway that it serves, and only from the proxy's end.
fn of_proxy(noun: &str, report: &PathReport) -> Result<(), Refused> {
    if report.end() == End::Proxy {
        return Ok(());
    }
    Err(Refused::NotYours {
        reporter: format!("service {noun}"),
        gateway: report.gateway.clone(),
    })
}

/// Refuses a report whose form is wrong, whichever end sends it.
fn check(report: &PathReport) -> Result<(), Refused> {
    let is_name = |name: &str, bytes_max: usize| {
        !name.is_empty()
            && name.len() <= bytes_max
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte))
    };
    let invalid = |field, reason: String, example| {
        Err(Refused::Invalid {
            field,
            reason,
            example,
        })
    };
    if !is_name(&report.gateway, NAME_BYTES_MAX) {
        return invalid(
            "gateway",
            "is missing or no identifier".into(),
            "\"gateway-1\"",
        );
    }
    if !is_name(&report.path, PATH_BYTES_MAX) {
        return invalid("path", "is missing or no identifier".into(), "\"wifi\"");
    }
    if !(1..=INTERVAL_MS_MAX).contains(&report.interval_ms) {
        return invalid(
            "interval_ms",
            format!("{} is outside 1 to {INTERVAL_MS_MAX}", report.interval_ms),
            "1000",
        );
    }
    if report.time_us <= 0 {
        return invalid("time_us", "is missing".into(), "1800000000000000");
    }
    for (field, rtt_ms) in [("rtt_ms", report.rtt_ms), ("rtt_min_ms", report.rtt_min_ms)] {
        if !(0.0..=600_000.0).contains(&rtt_ms) {
            return invalid(field, format!("{rtt_ms} is outside 0 to 600000"), "42.5");
        }
    }
    let is_wrong = |it: &str| it.len() > NAME_BYTES_MAX || !text::is_plain(it);
    if is_wrong(&report.local_address) || is_wrong(&report.remote_address) {
        let reason = "is too long or has control characters".to_owned();
        return invalid("local_address", reason, "\"192.0.2.1:4433\"");
    }
    check_steering(report)
}

fn check_steering(report: &PathReport) -> Result<(), Refused> {
    let invalid = |field, reason: String, example| {
        Err(Refused::Invalid {
            field,
            reason,
            example,
        })
    };
    let is_gateway = report.end() == End::Gateway;
    if !is_gateway && (report.access.is_some() || !report.rule_uses.is_empty()) {
        return invalid(
            "access",
            "comes from gateways only".into(),
            "none from a proxy",
        );
    }
    let of_access = report.access.iter().flat_map(|access| &access.rules);
    let rules = || of_access.clone().chain(&report.rule_uses);
    let is_no_name = |it: &str| it.chars().count() > RULE_CHARS_MAX || !text::is_plain(it);
    let is_wrong = |it: &RuleUse| is_no_name(&it.rule) || is_no_name(&it.mode);
    if rules().count() > 2 * RULES_MAX || rules().any(is_wrong) {
        let reason = format!("more than {RULES_MAX}, or no names of {RULE_CHARS_MAX} characters");
        return invalid("rule_uses", reason, "\"bulk\"");
    }
    if let Some(access) = &report.access {
        if access.reset_day > RESET_DAY_MAX {
            let reason = format!("{} is outside 0 to {RESET_DAY_MAX}", access.reset_day);
            return invalid("reset_day", reason, "15");
        }
        // A gateway of a newer release may know more zones.
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_+-/".contains(c);
        if access.time_zone.len() > TIME_ZONE_BYTES_MAX || !access.time_zone.chars().all(allowed) {
            let reason = format!("is no name of at most {TIME_ZONE_BYTES_MAX} characters");
            return invalid("time_zone", reason, "\"Europe/Zurich\"");
        }
        if !(0.0..=PRICE_MAX).contains(&access.price_per_gb) {
            let reason = format!("{} is outside 0 to {PRICE_MAX}", access.price_per_gb);
            return invalid("price_per_gb", reason, "4.0");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::paths::AccessUse;

    use super::*;

    fn report(end: End) -> PathReport {
        PathReport {
            gateway: "gateway-1".into(),
            path: "wifi".into(),
            end: end.into(),
            time_us: 1,
            interval_ms: 1000,
            rtt_ms: 20.0,
            ..PathReport::default()
        }
    }

    fn gateway(id: &str) -> Reporter {
        Reporter::Gateway(GatewayId::new("default", id))
    }

    #[test]
    fn each_end_speaks_for_itself() {
        let nobodys = Owners::default();
        let other = gateway("gateway-2");
        let gateway = gateway("gateway-1");
        let proxy = Reporter::Proxy("proxy".into());
        assert!(gateway.admit(&report(End::Gateway), &nobodys).is_ok());
        assert!(proxy.admit(&report(End::Proxy), &nobodys).is_ok());
        for (reporter, end) in [
            (&gateway, End::Proxy),
            (&gateway, End::Unspecified),
            (&other, End::Gateway),
            (&proxy, End::Gateway),
            (&proxy, End::Unspecified),
        ] {
            let refused = reporter.admit(&report(end), &nobodys).unwrap_err();
            assert!(
                matches!(refused, Refused::NotYours { .. }),
                "{reporter:?} {end:?}"
            );
        }
    }

    #[test]
    fn invalid_fields_are_refused() {
        let gateway = gateway("gateway-1");
        let refused = |edit: fn(&mut PathReport)| {
            let mut report = report(End::Gateway);
            edit(&mut report);
            matches!(
                gateway.admit(&report, &Owners::default()),
                Err(Refused::Invalid { .. })
            )
        };
        assert!(refused(|report| report.gateway = String::new()));
        assert!(refused(|report| report.path = "a b".into()));
        assert!(refused(
            |report| report.path = "x".repeat(PATH_BYTES_MAX + 1)
        ));
        assert!(refused(|report| report.rtt_ms = f64::NAN));
        assert!(refused(|report| report.rtt_min_ms = -1.0));
        assert!(refused(|report| report.interval_ms = 0));
        assert!(refused(|report| report.time_us = 0));
        let refused_access = |access: AccessUse| {
            let report = PathReport {
                access: Some(access),
                ..report(End::Gateway)
            };
            gateway.admit(&report, &Owners::default()).is_err()
        };
        assert!(!refused_access(AccessUse::default()));
        let rule = |rule: String| RuleUse {
            rule,
            ..RuleUse::default()
        };
        assert!(refused_access(AccessUse {
            price_per_gb: f64::NAN,
            ..AccessUse::default()
        }));
        assert!(refused_access(AccessUse {
            reset_day: 32,
            ..AccessUse::default()
        }));
        let zoned = |time_zone: &str| AccessUse {
            time_zone: time_zone.to_owned(),
            ..AccessUse::default()
        };
        for known in ["America/Port-au-Prince", "Etc/GMT+1", "Mars/Base_1"] {
            assert!(!refused_access(zoned(known)), "{known}");
        }
        for wrong in ["a b", "<b>", &"x".repeat(TIME_ZONE_BYTES_MAX + 1)] {
            assert!(refused_access(zoned(wrong)), "{wrong}");
        }
        assert!(refused_access(AccessUse {
            rules: vec![rule("x".repeat(RULE_CHARS_MAX + 1))],
            ..AccessUse::default()
        }));
        assert!(refused_access(AccessUse {
            rules: vec![rule("a\0b".to_owned())],
            ..AccessUse::default()
        }));
        assert!(refused_access(AccessUse {
            rules: vec![rule(String::new()); 2 * RULES_MAX + 1],
            ..AccessUse::default()
        }));
        let proxy = Reporter::Proxy("proxy".into());
        let of_proxy = PathReport {
            access: Some(AccessUse::default()),
            ..report(End::Proxy)
        };
        assert!(proxy.admit(&of_proxy, &Owners::default()).is_err());
    }
}
