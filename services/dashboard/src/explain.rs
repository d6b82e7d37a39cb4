//! Which accesses a flow of a gateway takes, and why. The page and `braid steering explain` answer
//! from the gateway's newest reports and the document that it obeys. They call the function that
//! decides at the gateway itself.

use std::collections::BTreeMap;
use std::time::Duration;

use calendar::duration_text;
use contracts::alerts::Document as Stored;
use contracts::paths::{AccessRank, End, PathReport, PathState};
use multipath::steering_rules::{
    AccessState, Decision, Document, Flow, Measurement, Measurements, Protocol, Urgency, Used,
    decide,
};
use store::{DOCUMENTS_MAX, QueryError, STEERING, Scope, Store};

/// The subject of steering documents; one document of a tenant has the rules of all its groups.
pub const SUBJECT: &str = "default";
/// A path whose newest report is older does not count as answering. A gateway reports at least
/// every five minutes unless it is told otherwise.
const SILENT_US: i64 = 15 * 60 * 1_000_000;
/// An access that was not reported for this time is no longer one of the gateway.
const FORGOTTEN_US: i64 = 86_400 * 1_000_000;
/// Fewer packets in an interval do not measure loss.
const LOSS_PACKETS_MIN: u64 = 10;
/// Characters of a destination, and of an application or a group; longer ones match no rule.
const DESTINATION_CHARS_MAX: usize = 262;
const NAME_CHARS_MAX: usize = 80;

#[derive(Debug, thiserror::Error)]
pub enum ExplainError {
    #[error("{field}: {reason}")]
    Flow { field: &'static str, reason: String },
    #[error("there is no such gateway")]
    NoGateway,
    #[error("the gateway has reported no path for a day")]
    NoPaths,
    #[error(
        "{gateway} obeys a steering file of its own, which the core does not have; \
         to ask by that file: braid steering explain DESTINATION --gateway {gateway} --file FILE"
    )]
    OwnFile { gateway: String },
    #[error("steering version {version} cannot be read: {reason}")]
    Document { version: u32, reason: String },
    #[error(transparent)]
    Store(#[from] QueryError),
}

/// A flow as people describe it; empty fields have their usual value.
#[derive(Debug, Clone, Default)]
pub struct Described<'a> {
    pub destination: &'a str,
    pub application: &'a str,
    pub urgency: &'a str,
    pub protocol: &'a str,
    /// In place of the groups that the gateway is in.
    pub group: &'a str,
}

impl Described<'_> {
    pub fn flow(&self) -> Result<Flow, ExplainError> {
        let wrong = |field, reason: String| ExplainError::Flow { field, reason };
        let is_text = |text: &str, chars_max| {
            text.chars().count() <= chars_max && contracts::text::is_plain(text)
        };
        let or = |text: &str, usual: &'static str| match text {
            "" => usual.to_owned(),
            text => text.to_owned(),
        };
        if self.destination.is_empty() || !is_text(self.destination, DESTINATION_CHARS_MAX) {
            let reason = "is no name or address, for example deb.example.org:443".to_owned();
            return Err(wrong("destination", reason));
        }
        for (field, text) in [("application", self.application), ("group", self.group)] {
            if !is_text(text, NAME_CHARS_MAX) {
                let reason =
                    format!("is longer than {NAME_CHARS_MAX} characters or has control characters");
                return Err(wrong(field, reason));
            }
        }
        let urgency = or(self.urgency, "bulk");
        let urgency = Urgency::named(&urgency).ok_or_else(|| {
            let reason = format!("{urgency:?} is none of alert, prompt and bulk");
            wrong("urgency", reason)
        })?;
        let protocol = or(self.protocol, "tcp");
        let protocol = Protocol::named(&protocol).ok_or_else(|| {
            let reason = format!("{protocol:?} is none of tcp, udp and ip");
            wrong("protocol", reason)
        })?;
        let application = or(self.application, "applications");
        let mut flow = Flow::new(application, urgency).to(self.destination);
        flow.protocol = protocol;
        flow.group = (!self.group.is_empty()).then(|| self.group.to_owned());
        Ok(flow)
    }
}

#[derive(Debug, Clone)]
pub struct Explanation {
    /// The version that decided; 0: none was ever put.
    pub version: u32,
    /// In force at the gateway; 0: none.
    pub gateway_version: u32,
    /// Lines for people.
    pub text: String,
    pub decision: Decision,
}

/// Decides as the gateway does. `tenant` owns the gateway and the document. `own`: the gateway's
/// own file, in place of the document in force.
pub async fn explain(
    store: &dyn Store,
    tenant: &str,
    (gateway, own): (&str, Option<Document>),
    flow: &Flow,
    now_us: i64,
) -> Result<Explanation, ExplainError> {
    let scope = Scope::tenant(tenant);
    let known = store.gateways(&scope).await?;
    if !known.iter().any(|entry| entry.id == gateway) {
        return Err(ExplainError::NoGateway);
    }
    let reports = store.latest_paths(&scope, Some(gateway)).await?;
    let (states, measurements) = accesses(&reports, now_us);
    if states.is_empty() {
        return Err(ExplainError::NoPaths);
    }
    let reported = Reported::of(&reports, now_us);
    let (gateway_version, is_own) = in_force_at(&reports);
    if is_own && own.is_none() {
        let gateway = gateway.to_owned();
        return Err(ExplainError::OwnFile { gateway });
    }
    let newest_of = async |most| store.stored_history(&scope, STEERING, SUBJECT, most).await;
    let mut history = newest_of(1).await?;
    let newest = history.first().map_or(0, |stored| stored.version);
    // Usually the gateway has the newest one.
    if gateway_version != 0 && gateway_version != newest {
        history = newest_of(DOCUMENTS_MAX).await?;
    }
    // A gateway with a version that is not stored any more is judged by the newest one.
    let obeyed = history.iter().find(|it| it.version == gateway_version);
    let is_by_file = own.is_some();
    let (version, document) = match (own, obeyed.or(history.first())) {
        (Some(own), _) => (0, own),
        (None, Some(stored)) => (stored.version, read(stored.version, &stored.document)?),
        (None, None) => (0, Document::default()),
    };
    // The gateway obeys the rules of its own groups; a question may name another one instead.
    let (groups, document) = match &flow.group {
        Some(group) => (format!("as of group {group}\n"), document),
        None => {
            let groups = match document.groups_of(gateway).as_slice() {
                [] => String::new(),
                groups => format!("of groups: {}\n", groups.join(", ")),
            };
            (groups, document.for_gateway(gateway))
        }
    };
    let decision = decide(&document, flow, &states, &measurements);
    let head = match (version, gateway_version) {
        _ if is_by_file && is_own => format!("by a file, as {gateway} obeys one of its own"),
        (_, held) if is_by_file => format!("by a file; {gateway} obeys version {held}"),
        (0, 0) => format!("no steering document; {gateway} uses every access"),
        (version, held) if version == held && version == newest => {
            format!("steering version {version}, in force at {gateway}")
        }
        (version, held) if version == held => {
            format!("steering version {version}, in force at {gateway}; version {newest} is put")
        }
        (version, 0) => format!("steering version {version}; {gateway} has none yet"),
        (version, held) => format!("steering version {version}; {gateway} has version {held}"),
    };
    Ok(Explanation {
        version,
        gateway_version,
        text: format!(
            "{}{head}\n{groups}{}{}",
            reported.warning(),
            decision.explained(&document),
            reported.ranks(),
        ),
        decision,
    })
}

/// The newest reports of the gateway itself.
struct Reported<'a> {
    /// None: it has reported nothing.
    age_us: Option<i64>,
    /// The accesses with their rank in the schedule of the session.
    accesses: BTreeMap<&'a str, AccessRank>,
}

impl<'a> Reported<'a> {
    fn of(reports: &'a [PathReport], now_us: i64) -> Self {
        let own = || reports.iter().filter(|it| it.end() == End::Gateway);
        let newest_us = own().map(|it| it.time_us).max();
        let mut oldest_first: Vec<&PathReport> = own().collect();
        oldest_first.sort_by_key(|it| it.time_us);
        let ranks = oldest_first.into_iter().filter_map(|it| {
            let is_recent = it.time_us >= now_us - FORGOTTEN_US;
            let access = it.access.as_ref().filter(|_| is_recent)?;
            Some((it.path.as_str(), access.rank()))
        });
        Self {
            age_us: newest_us.map(|it| now_us.saturating_sub(it).max(0)),
            accesses: ranks.collect(),
        }
    }

    /// Said before the answer, which may be wrong by now.
    fn warning(&self) -> String {
        match self.age_us {
            None => "OLD: the gateway itself has reported nothing\n".to_owned(),
            Some(..=SILENT_US) => String::new(),
            Some(us) => format!(
                "OLD: the gateway's newest report is {} old; paths, bytes and caps may have \
                 changed\n",
                duration_text(us)
            ),
        }
    }

    /// Rules of other flows bind the session too, so its ranks may be stricter than the answer.
    fn ranks(&self) -> String {
        let named = self.accesses.iter().filter_map(|(access, rank)| {
            let rank = match rank {
                AccessRank::Active => "active",
                AccessRank::Spill => "spill",
                AccessRank::Standby => "standby",
                AccessRank::Forbidden => "forbidden",
                AccessRank::Unspecified => return None,
            };
            Some(format!("{access} {rank}"))
        });
        let named: Vec<String> = named.collect();
        let Some(age) = self.age_us.map(duration_text) else {
            return String::new();
        };
        match named.as_slice() {
            [] => format!("reported {age} ago\n"),
            named => format!(
                "reported {age} ago; with all flows then open: {}\n",
                named.join(", ")
            ),
        }
    }
}

fn read<E: std::fmt::Display>(
    version: u32,
    stored: &Result<Stored, E>,
) -> Result<Document, ExplainError> {
    let wrong = |reason: String| ExplainError::Document { version, reason };
    let stored = stored.as_ref().map_err(|error| wrong(error.to_string()))?;
    match stored.body.as_str() {
        // Taken back.
        "" => Ok(Document::default()),
        body => Document::from_json(body, STEERING).map_err(|error| wrong(error.to_string())),
    }
}

/// The version by the gateway's newest report, and whether it obeys a file of its own.
fn in_force_at(reports: &[PathReport]) -> (u32, bool) {
    let own = reports.iter().filter(|it| it.end() == End::Gateway);
    own.max_by_key(|it| it.time_us)
        .map_or((0, false), |it| (it.steering_version, it.steering_is_own))
}

/// The accesses of a gateway with what its newest reports measured, from both ends of each path.
fn accesses(reports: &[PathReport], now_us: i64) -> (Vec<AccessState>, Measurements) {
    let mut by_path: BTreeMap<&str, Vec<&PathReport>> = BTreeMap::new();
    for report in reports {
        if report.time_us >= now_us - FORGOTTEN_US {
            by_path.entry(&report.path).or_default().push(report);
        }
    }
    let mut states = Vec::new();
    let mut measurements = Measurements::new();
    for (path, mut ends) in by_path {
        ends.sort_by_key(|report| std::cmp::Reverse(report.time_us));
        let Some(newest) = ends.first() else {
            continue;
        };
        let answers = matches!(newest.state(), PathState::Available | PathState::Backup)
            && newest.time_us >= now_us - SILENT_US;
        let rtt_ms = ends.iter().map(|it| it.rtt_ms).find(|rtt_ms| *rtt_ms > 0.0);
        let own = ends.iter().find(|it| it.end() == End::Gateway);
        let loss = own.filter(|it| it.sent_packets >= LOSS_PACKETS_MIN);
        let loss = loss.map(|it| (it.lost_packets as f64 / it.sent_packets as f64).min(1.0));
        let month = own.and_then(|it| it.access.as_ref());
        let measurement = Measurement {
            rtt: rtt_ms.and_then(|rtt_ms| Duration::try_from_secs_f64(rtt_ms / 1e3).ok()),
            loss,
            rate_bytes_per_s: None,
            used: month.map_or_else(Used::default, |access| Used {
                day_bytes: access.day_bytes,
                week_bytes: access.week_bytes,
                month_bytes: access.month_bytes,
            }),
        };
        states.push(AccessState {
            name: path.to_owned(),
            usable: answers,
        });
        measurements.insert(path.to_owned(), measurement);
    }
    (states, measurements)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::paths::AccessUse;

    use super::*;

    const NOW_US: i64 = 1_800_000_000_000_000;

    fn report(path: &str, end: End, age_us: i64, state: PathState) -> PathReport {
        PathReport {
            gateway: "g".into(),
            path: path.into(),
            end: end.into(),
            state: state.into(),
            time_us: NOW_US - age_us,
            ..PathReport::default()
        }
    }

    #[test]
    fn an_access_is_what_both_ends_reported_last() {
        let own = PathReport {
            rtt_ms: 45.0,
            sent_packets: 100,
            lost_packets: 2,
            steering_version: 3,
            access: Some(AccessUse {
                month_bytes: 7,
                ..AccessUse::default()
            }),
            ..report("lte", End::Gateway, 60_000_000, PathState::Available)
        };
        let reports = [
            own,
            report("lte", End::Proxy, 1_000_000, PathState::Suspect),
            report("wifi", End::Gateway, SILENT_US + 1, PathState::Available),
            report("usb", End::Gateway, FORGOTTEN_US + 1, PathState::Available),
        ];
        let (states, measurements) = accesses(&reports, NOW_US);
        let usable: Vec<_> = states
            .iter()
            .map(|it| (it.name.as_str(), it.usable))
            .collect();
        assert_eq!(usable, [("lte", false), ("wifi", false)]);
        let lte = measurements["lte"];
        assert_eq!((lte.loss, lte.used.month_bytes), (Some(0.02), 7));
        assert_eq!(lte.rtt, Some(Duration::from_millis(45)));
        assert_eq!(in_force_at(&reports), (3, false));
    }

    #[test]
    fn an_answer_from_old_reports_says_so_and_names_the_ranks_of_the_session() {
        let of = |age_us: i64, rank: AccessRank| PathReport {
            access: Some(AccessUse {
                rank: rank.into(),
                ..AccessUse::default()
            }),
            ..report("lte", End::Gateway, age_us, PathState::Available)
        };
        let reports = [
            of(9_000_000, AccessRank::Standby),
            of(60_000_000, AccessRank::Active),
            report("lte", End::Proxy, 0, PathState::Available),
        ];
        let fresh = Reported::of(&reports, NOW_US);
        assert_eq!(fresh.warning(), "");
        assert_eq!(
            fresh.ranks(),
            "reported 9 s ago; with all flows then open: lte standby\n"
        );
        let old = [of(3 * 3_600_000_000, AccessRank::Active)];
        let old = Reported::of(&old, NOW_US);
        assert!(
            old.warning()
                .starts_with("OLD: the gateway's newest report is 3 h old")
        );
        let none = Reported::of(&reports[2..], NOW_US);
        assert!(none.warning().starts_with("OLD: the gateway itself"));
        assert_eq!(none.ranks(), "");
    }

    #[test]
    fn a_flow_is_read_or_refused() {
        let good = Described {
            destination: "Deb.example.org:443",
            ..Described::default()
        };
        let flow = good.flow().unwrap();
        assert_eq!(flow.destination.as_deref(), Some("deb.example.org"));
        assert_eq!(
            (flow.port, flow.application.as_str()),
            (Some(443), "applications")
        );
        let long = "x".repeat(300);
        for wrong in [
            Described::default(),
            Described {
                destination: "a\nb",
                ..Described::default()
            },
            Described {
                destination: &long,
                ..Described::default()
            },
            Described {
                urgency: "now",
                ..good.clone()
            },
            Described {
                protocol: "sctp",
                ..good.clone()
            },
            Described {
                application: &long,
                ..good.clone()
            },
            Described {
                group: &long,
                ..good.clone()
            },
        ] {
            assert!(wrong.flow().is_err(), "{wrong:?}");
        }
    }
}
