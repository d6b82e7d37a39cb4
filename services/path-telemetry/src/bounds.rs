//! Bounds of one gateway: reports a second, paths, sessions, and questions for its policy. Sans-IO:
//! the caller passes the time.
//!
//! Both ends report on a gateway, and each end has its own rate. So a gateway cannot use up the
//! rate of the proxy. A gateway beyond its rate is read more slowly. A proxy reports on many
//! gateways, so beyond the rate of one gateway only the reports on that gateway are left out.

use std::time::{Duration, Instant};

use contracts::paths::{End, PathReport};
use service_kit::{
    names::{Bound, Named, Names},
    quota::{Quota, Quotas, Wait},
    tls::GatewayId,
};
use store::PATHS_PER_GATEWAY_MAX;

/// Time over which an unused rate of reports accumulates; a gateway may send the saved reports at
/// once.
const REPORTS_SAVED: Duration = Duration::from_secs(600);
/// A path without a report for this time may be replaced by a new path.
const PATH_UNUSED: Duration = Duration::from_secs(600);
/// Sessions of one gateway's paths, of both ends, within [`SESSION_UNUSED`]; reports of further
/// sessions are left out. A gateway with three paths reaches the bound if it reconnects every 15 s.
pub(crate) const SESSIONS_MAX: usize = 240;
const SESSION_UNUSED: Duration = Duration::from_secs(600);
/// Questions of one gateway for its policy per second; further questions are refused. A gateway
/// asks every 30 s.
pub(crate) const POLICIES_PER_S_MAX: u64 = 10;
const POLICIES_SAVED: Duration = Duration::from_secs(60);

/// A path at one end, and the session in which it was reported.
type Session = (String, i32, u64);

/// Why a report is left out; a label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeftOut {
    Rate,
    Paths,
    Sessions,
}

impl LeftOut {
    pub(crate) const fn label(self) -> &'static str {
        match self {
            LeftOut::Rate => "rate",
            LeftOut::Paths => "paths",
            LeftOut::Sessions => "sessions",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Bounds {
    reports: Quotas<(GatewayId, End)>,
    policies: Quotas<GatewayId>,
    paths: Names<GatewayId, String>,
    sessions: Names<GatewayId, Session>,
}

impl Bounds {
    /// `reports_per_s` is the rate of one gateway at one end; 0 means no bound.
    pub(crate) fn new(reports_per_s: u64) -> Bounds {
        Bounds {
            reports: Quotas::new(Quota::items(reports_per_s, REPORTS_SAVED)),
            policies: Quotas::new(Quota::items(POLICIES_PER_S_MAX, POLICIES_SAVED)),
            paths: Names::new(Bound {
                names_max: PATHS_PER_GATEWAY_MAX,
                unused: PATH_UNUSED,
            }),
            sessions: Names::new(Bound {
                names_max: SESSIONS_MAX,
                unused: SESSION_UNUSED,
            }),
        }
    }

    /// Time that the next reports of a gateway have to wait.
    pub(crate) fn owed(&mut self, gateway: &GatewayId, now: Instant) -> Wait {
        self.reports.owed(&(gateway.clone(), End::Gateway), now)
    }

    /// Charges reports that a gateway has sent, whether or not they are left out.
    pub(crate) fn take(&mut self, gateway: &GatewayId, now: Instant, reports: usize) {
        let payer = (gateway.clone(), End::Gateway);
        self.reports.take(&payer, now, reports, 0);
    }

    /// Whether a report of this gateway is kept. A proxy's report is charged to the gateway here.
    pub(crate) fn admit(
        &mut self,
        gateway: &GatewayId,
        report: &PathReport,
        now: Instant,
    ) -> Result<(), LeftOut> {
        if report.end() == End::Proxy {
            let payer = (gateway.clone(), End::Proxy);
            if self.reports.room(&payer, now) == 0 {
                return Err(LeftOut::Rate);
            }
            self.reports.take(&payer, now, 1, 0);
        }
        if self.paths.enter(gateway, &report.path, now) == Named::Refused {
            return Err(LeftOut::Paths);
        }
        let session = (report.path.clone(), report.end, report.session);
        match self.sessions.enter(gateway, &session, now) {
            Named::Refused => Err(LeftOut::Sessions),
            Named::Known | Named::New | Named::Replaces => Ok(()),
        }
    }

    /// Whether a gateway may ask for its policy.
    pub(crate) fn may_ask(&mut self, gateway: &GatewayId, now: Instant) -> bool {
        let may_ask = self.policies.room(gateway, now) > 0;
        if may_ask {
            self.policies.take(gateway, now, 1, 0);
        }
        may_ask
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(id: &str) -> GatewayId {
        GatewayId::new("t", id)
    }

    fn report(path: usize, session: u64, end: End) -> PathReport {
        PathReport {
            path: format!("path-{path}"),
            session,
            end: end.into(),
            ..PathReport::default()
        }
    }

    #[test]
    fn new_names_are_bounded() {
        let mut bounds = Bounds::new(0);
        let (thief, other, start) = (named("thief"), named("other"), Instant::now());
        let mut admit = |of: &GatewayId, path: usize, session: u64| {
            bounds.admit(of, &report(path, session, End::Gateway), start)
        };
        let passed = (0..10_000).filter(|n| admit(&thief, *n, 1).is_ok());
        assert_eq!(passed.count(), PATHS_PER_GATEWAY_MAX);
        assert_eq!(admit(&thief, 10_000, 1), Err(LeftOut::Paths));
        let passed = (2..10_000).filter(|session| admit(&thief, 0, *session).is_ok());
        assert_eq!(passed.count(), SESSIONS_MAX - PATHS_PER_GATEWAY_MAX);
        assert_eq!(admit(&thief, 0, 20_000), Err(LeftOut::Sessions));
        assert_eq!(admit(&thief, 0, 1), Ok(()), "what it has goes on");
        assert_eq!(admit(&other, 10_000, 20_000), Ok(()));
    }

    #[test]
    fn each_end_has_a_rate_of_its_own() {
        let mut bounds = Bounds::new(1);
        let (gateway, start) = (named("g"), Instant::now());
        let saved = REPORTS_SAVED.as_secs() as usize;
        bounds.take(&gateway, start, saved + 5);
        assert_eq!(bounds.owed(&gateway, start).wait, Duration::from_secs(5));
        let mut of_proxy = |now| {
            bounds
                .admit(&gateway, &report(1, 1, End::Proxy), now)
                .is_ok()
        };
        assert_eq!((0..2 * saved).filter(|_| of_proxy(start)).count(), saved);
        assert!(of_proxy(start + Duration::from_secs(1)));
        assert!(!of_proxy(start + Duration::from_secs(1)));
    }

    #[test]
    fn a_gateway_beyond_its_rate_of_questions_is_refused() {
        let mut bounds = Bounds::new(0);
        let (gateway, start) = (named("g"), Instant::now());
        let asked = (0..10_000).filter(|_| bounds.may_ask(&gateway, start));
        let saved = POLICIES_PER_S_MAX * POLICIES_SAVED.as_secs();
        assert_eq!(asked.count() as u64, saved);
        assert!(bounds.may_ask(&gateway, start + Duration::from_secs(1)));
        assert!(bounds.may_ask(&named("other"), start));
    }
}
