//! Reports of the gateway's path measurements, through the tunnel to path-telemetry, and the policy
//! in the answers.
//!
//! The gateway reports on change and at a slow interval. Reports are a convenience: without a
//! connection the oldest are dropped, and nothing waits for them.

mod beat;
mod in_journals;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use contracts::{
    paths::{
        End, PathReport, PathState, ReportRequest, RuleUse,
        path_telemetry_service_client::PathTelemetryServiceClient,
    },
    policy::{GetPolicyRequest, policy_service_client::PolicyServiceClient},
};
use service_kit::{Backoff, Shutdown};
use tokio::{
    sync::{mpsc, watch},
    time::MissedTickBehavior,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tonic::transport::Channel;
use tunnel::{Keepalive, PathSnapshot, Tunnel, Urgency};

use beat::Beat;
pub use in_journals::{InJournals, JournalsWaiting};

use crate::{
    clock::Clock,
    steering::{Flows, InForce, Kept},
    to_proxy::Uplink,
};

/// Intervals whose reports wait for a connection. Beyond it the oldest are dropped.
const WAITING_MAX: usize = 64;
/// Reports passed to the stream that it has not taken.
const HANDED_MAX: usize = 8;
/// Rules with bytes in one report, those with most bytes; further ones are left out.
const RULE_USES_MAX: usize = 64;
/// Each question costs a SIM card 400 bytes.
const POLICY_INTERVAL: Duration = Duration::from_secs(120);
const POLICY_INTERVAL_RETRY: Duration = Duration::from_secs(30);
/// Longest wait for a policy; then it is asked for again later.
const POLICY_LIMIT: Duration = Duration::from_secs(10);
/// A policy outside these bounds is not obeyed.
const KEEPALIVE_INTERVAL_MS: std::ops::RangeInclusive<u32> = 10..=10_000;
const KEEPALIVE_K: std::ops::RangeInclusive<u32> = 1..=100;

/// Turns cumulative counters into reports of one interval each.
#[derive(Debug, Default)]
pub struct Reporter {
    gateway: String,
    last: HashMap<(u64, u64), PathSnapshot>,
    /// By (path's name, session): the sequence of its reports.
    sequences: HashMap<(String, u64), u64>,
}

impl Reporter {
    pub fn new(gateway: impl Into<String>) -> Self {
        Self {
            gateway: gateway.into(),
            ..Self::default()
        }
    }

    /// Reports on every present path, and once more on a closed one. The tables have the tunnel's
    /// paths: one that the tunnel has dropped is dropped here.
    pub fn report(
        &mut self,
        paths: &[PathSnapshot],
        time_us: i64,
        interval: Duration,
    ) -> Vec<PathReport> {
        let mut reports = Vec::with_capacity(paths.len());
        for path in paths {
            let before = self.last.get(&(path.session, path.path_id));
            let closed = tunnel::PathState::Closed;
            if path.name.is_empty()
                || before.is_some_and(|before| before.state == closed && path.state == closed)
            {
                continue;
            }
            let since = |now: u64, counter: fn(&PathSnapshot) -> u64| {
                now.saturating_sub(before.map_or(0, counter))
            };
            let sequence = self
                .sequences
                .entry((path.name.clone(), path.session))
                .and_modify(|sequence| *sequence += 1)
                .or_insert(1);
            reports.push(PathReport {
                gateway: self.gateway.clone(),
                path: path.name.clone(),
                end: End::Gateway.into(),
                session: path.session,
                path_id: path.path_id,
                state: state_of(path.state).into(),
                time_us,
                interval_ms: u32::try_from(interval.as_millis()).unwrap_or(u32::MAX),
                sent_bytes: since(path.sent_bytes, |path| path.sent_bytes),
                received_bytes: since(path.received_bytes, |path| path.received_bytes),
                sent_packets: since(path.sent_packets, |path| path.sent_packets),
                lost_packets: since(path.lost_packets, |path| path.lost_packets),
                rtt_ms: path.rtt.as_secs_f64() * 1e3,
                rtt_min_ms: path.rtt_min.as_secs_f64() * 1e3,
                congestion_window_bytes: path.congestion_window_bytes,
                local_address: path.local_ip.map(|ip| ip.to_string()).unwrap_or_default(),
                remote_address: path
                    .remote_address
                    .map(|address| address.to_string())
                    .unwrap_or_default(),
                sequence: *sequence,
                // The certificate says it.
                tenant: String::new(),
                journal_waiting: None,
                journal_filled_permille: None,
                steering_version: 0,
                steering_is_own: false,
                access: None,
                rule_uses: Vec::new(),
            });
        }
        self.last = paths
            .iter()
            .map(|path| ((path.session, path.path_id), path.clone()))
            .collect();
        self.sequences
            .retain(|(_, session), _| paths.iter().any(|path| path.session == *session));
        reports
    }
}

fn state_of(state: tunnel::PathState) -> PathState {
    match state {
        tunnel::PathState::Validating => PathState::Validating,
        tunnel::PathState::Available => PathState::Available,
        tunnel::PathState::Backup => PathState::Backup,
        tunnel::PathState::Suspect => PathState::Suspect,
        tunnel::PathState::Closed => PathState::Closed,
    }
}

pub struct Telemetry {
    pub gateway: String,
    pub uplink: Arc<dyn Uplink>,
    pub url: String,
    /// How often the paths are looked at.
    pub interval: Duration,
    /// Time between two reports while nothing changes.
    pub beat: Duration,
    pub clock: Clock,
    pub journals: JournalsWaiting,
    /// The tunnel whose keepalive follows the policy.
    pub tunnel: Option<Tunnel>,
    /// Receiver of the policy's steering document, and its file.
    pub steering: Option<(watch::Sender<Arc<InForce>>, Kept)>,
    /// Counts and decisions of each access.
    pub flows: Flows,
}

impl Telemetry {
    /// Reports until shutdown is requested.
    pub async fn run(self, shutdown: Shutdown) {
        tokio::select! {
            () = shutdown.requested() => {}
            () = self.report_for_ever() => {}
            () = self.follow_policy_for_ever() => {}
        }
    }

    async fn report_for_ever(&self) {
        let mut reporter = Reporter::new(&self.gateway);
        let mut beat = Beat::new(self.beat);
        let mut waiting: VecDeque<ReportRequest> = VecDeque::new();
        let mut stream: Option<mpsc::Sender<ReportRequest>> = None;
        let (ended, mut ends) = mpsc::channel::<String>(1);
        let mut backoff = Backoff::for_reconnect();
        let mut retry_at = tokio::time::Instant::now();
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                Some(reason) = ends.recv() => {
                    tracing::debug!(reason, "the stream to path-telemetry ended");
                    stream = None;
                    retry_at = tokio::time::Instant::now() + backoff.next_delay();
                    continue;
                }
            }
            let paths = self.uplink.paths();
            let in_journals = self.journals.look();
            let (steering_version, steering_is_own) = self.steering_in_force();
            let now = tokio::time::Instant::now().into_std();
            let due = beat.take(now, &paths, steering_version, in_journals);
            let mut reports = match due {
                Some(since) => {
                    let interval = since.unwrap_or(self.interval);
                    reporter.report(&paths, (self.clock)().wall_us, interval)
                }
                None => Vec::new(),
            };
            if !reports.is_empty() {
                self.add_steering(&mut reports);
            }
            for report in &mut reports {
                report.journal_waiting = in_journals.map(|it| it.waiting);
                report.journal_filled_permille = in_journals.map(|it| it.filled_permille);
                report.steering_version = steering_version;
                report.steering_is_own = steering_is_own;
            }
            if !reports.is_empty() {
                if waiting.len() >= WAITING_MAX {
                    waiting.pop_front();
                    metrics::counter!("braid_gateway_path_reports_dropped_total").increment(1);
                }
                waiting.push_back(ReportRequest {
                    reports,
                    sent_time_us: 0,
                });
            }
            if waiting.is_empty() {
                continue;
            }
            if stream.is_none() && tokio::time::Instant::now() >= retry_at {
                stream = self.open(ended.clone());
            }
            if let Some(requests) = &stream {
                while let Some(request) = waiting.pop_front() {
                    if let Err(error) = requests.try_send(request) {
                        waiting.push_front(match error {
                            mpsc::error::TrySendError::Full(request)
                            | mpsc::error::TrySendError::Closed(request) => request,
                        });
                        break;
                    }
                    backoff.reset();
                }
            }
        }
    }

    fn open(&self, ended: mpsc::Sender<String>) -> Option<mpsc::Sender<ReportRequest>> {
        let channel = self.channel()?;
        let (requests, queue) = mpsc::channel(HANDED_MAX);
        let clock = self.clock;
        tokio::spawn(async move {
            let reason = match carry(channel, queue, clock).await {
                Ok(()) => "ended".to_owned(),
                Err(status) => status.to_string(),
            };
            // The receiver may be gone.
            let _ = ended.send(reason).await;
        });
        Some(requests)
    }

    fn channel(&self) -> Option<Channel> {
        self.uplink
            .channel(&self.url, Urgency::Bulk, None)
            .inspect_err(|error| tracing::warn!(%error, "no connection to path-telemetry"))
            .ok()
    }

    async fn follow_policy_for_ever(&self) {
        let Some(tunnel) = &self.tunnel else {
            return std::future::pending().await;
        };
        let mut current = Keepalive::default();
        let mut pause = Duration::ZERO;
        // Kept open, because the handshakes of a new one cost ten times as much as a question.
        let mut channel = None;
        loop {
            tokio::time::sleep(pause).await;
            let policy = self.fetch_policy(&mut channel).await;
            pause = match channel {
                Some(_) => POLICY_INTERVAL,
                None => POLICY_INTERVAL_RETRY,
            };
            let Some(keepalive) = policy else {
                continue;
            };
            if keepalive != current {
                tracing::info!(
                    interval_ms = keepalive.interval.as_millis(),
                    silent_intervals = keepalive.silent_intervals,
                    "keepalive set by policy"
                );
                tunnel.set_keepalive(keepalive);
                current = keepalive;
            }
        }
    }

    /// The month, the cap and the rules of each access; bytes by rule once for all paths.
    fn add_steering(&self, reports: &mut [PathReport]) {
        let uses = self.flows.access_uses();
        for report in reports.iter_mut() {
            report.access = uses.get(&report.path).cloned();
        }
        let rules = with_rest(self.flows.take_rule_uses(), reports);
        if let Some(first) = reports.first_mut() {
            first.rule_uses = rules;
        }
    }

    /// The version, and whether it is a file of the gateway's own.
    fn steering_in_force(&self) -> (u32, bool) {
        self.steering.as_ref().map_or((0, false), |(in_force, _)| {
            let in_force = in_force.borrow();
            (in_force.version, in_force.is_own())
        })
    }

    /// Puts a newer steering document in force, without a reconnect. A wrong one is reported and
    /// changes nothing.
    fn take_steering(&self, version: u32, body: &str) {
        let Some((in_force, kept)) = &self.steering else {
            return;
        };
        if version == 0 || version == in_force.borrow().version {
            return;
        }
        match kept.take(version, body) {
            Ok(taken) => {
                tracing::info!(version, "steering document in force");
                in_force.send_replace(Arc::new(taken));
            }
            Err(error) => tracing::warn!(version, %error, "steering document refused"),
        }
    }

    /// The most cautious keepalive of all paths, for the tunnel has one for all.
    async fn fetch_policy(&self, kept: &mut Option<Channel>) -> Option<Keepalive> {
        let channel = match kept.take() {
            Some(channel) => channel,
            None => self.channel()?,
        };
        let mut client = PolicyServiceClient::new(channel.clone());
        let request = GetPolicyRequest {
            gateway: self.gateway.clone(),
            steering_version: self.steering_in_force().0,
        };
        let response = tokio::time::timeout(POLICY_LIMIT, client.get_policy(request))
            .await
            .ok()?
            .inspect_err(|status| tracing::debug!(%status, "no policy"))
            .ok()?
            .into_inner();
        *kept = Some(channel);
        self.take_steering(response.steering_version, &response.steering_document);
        response
            .paths
            .iter()
            .filter(|path| {
                KEEPALIVE_INTERVAL_MS.contains(&path.keepalive_interval_ms)
                    && KEEPALIVE_K.contains(&path.keepalive_k)
            })
            .min_by_key(|path| path.keepalive_interval_ms)
            .map(|path| Keepalive {
                interval: Duration::from_millis(path.keepalive_interval_ms.into()),
                silent_intervals: path.keepalive_k,
            })
    }
}

/// The rules with most bytes, and what the paths carried for no counted flow.
fn with_rest(mut rules: Vec<RuleUse>, reports: &[PathReport]) -> Vec<RuleUse> {
    let carried = reports
        .iter()
        .map(|report| report.sent_bytes.saturating_add(report.received_bytes))
        .fold(0, u64::saturating_add);
    let of_flows = rules.iter().map(|it| it.bytes);
    let rest = carried.saturating_sub(of_flows.fold(0, u64::saturating_add));
    // A report of more rules would be refused.
    rules.truncate(RULE_USES_MAX - 1);
    if rest > 0 {
        rules.push(RuleUse {
            bytes: rest,
            ..RuleUse::default()
        });
    }
    rules
}

async fn carry(
    channel: Channel,
    queue: mpsc::Receiver<ReportRequest>,
    clock: Clock,
) -> Result<(), tonic::Status> {
    let mut client = PathTelemetryServiceClient::new(channel);
    // As late as possible, because time in the queue would count as an error of the clock.
    let requests = ReceiverStream::new(queue).map(move |request| ReportRequest {
        sent_time_us: clock().wall_us,
        ..request
    });
    let mut answers = client.report(requests).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(session: u64, path_id: u64, sent_bytes: u64, state: tunnel::PathState) -> PathSnapshot {
        PathSnapshot {
            session,
            path_id,
            name: "wifi".into(),
            state,
            rtt: Duration::from_millis(20),
            rtt_min: Duration::from_millis(10),
            sent_bytes,
            ..PathSnapshot::default()
        }
    }

    #[test]
    fn what_no_flow_carried_is_a_rule_use_without_a_name() {
        let rule = |rule: &str, bytes| RuleUse {
            rule: rule.to_owned(),
            mode: "auto".to_owned(),
            bytes,
        };
        let report = PathReport {
            sent_bytes: 60,
            received_bytes: 40,
            ..PathReport::default()
        };
        let uses = with_rest(vec![rule("bulk", 70)], std::slice::from_ref(&report));
        let rest = RuleUse {
            bytes: 30,
            ..RuleUse::default()
        };
        assert_eq!(uses, [rule("bulk", 70), rest]);
        let many = vec![rule("bulk", 70); RULE_USES_MAX + 9];
        assert!(with_rest(many, &[report]).len() <= RULE_USES_MAX);
    }

    #[test]
    fn reports_hold_what_an_interval_added_and_the_end_of_a_path_once() {
        use tunnel::PathState::{Available, Closed};
        let mut reporter = Reporter::new("g");
        let second = Duration::from_secs(1);
        let mut report = |paths: &[PathSnapshot]| -> Vec<(u64, u64, u64)> {
            reporter
                .report(paths, 0, second)
                .iter()
                .map(|report| (report.path_id, report.sent_bytes, report.sequence))
                .collect()
        };
        assert_eq!(report(&[path(1, 0, 100, Available)]), [(0, 100, 1)]);
        assert_eq!(report(&[path(1, 0, 250, Available)]), [(0, 150, 2)]);
        let closed = path(1, 0, 260, Closed);
        assert_eq!(
            report(&[closed.clone(), path(1, 1, 5, Available)]),
            [(0, 10, 3), (1, 5, 4)]
        );
        assert_eq!(report(&[closed, path(1, 1, 7, Available)]), [(1, 2, 5)]);
        assert_eq!(report(&[path(2, 0, 30, Available)]), [(0, 30, 1)]);
    }
}
