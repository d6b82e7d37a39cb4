//! Steering rules at the gateway: which accesses its session may use, and which flows are let in.
//!
//! The document comes from path-telemetry, which serves the documents of `braid steering put`. It
//! is kept on disk and applies at the next start before any network is up. Before the first
//! document the file of `--steering` applies.
//!
//! A session has one schedule for all its flows: the strictest of their decisions. A flow without
//! an allowed living access is refused. An open one waits, because its bytes would use an access
//! reserved for alerts, and is closed after `BLOCKED_MAX`.

mod copied;
mod document;
mod hold;
mod keeper;
mod rule_bytes;
mod series;
mod table;
mod usage;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use service_kit::Shutdown;
use tokio::{sync::watch, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tunnel::{
    CopySwitch, PathSnapshot, PathState, Tunnel,
    steering_rules::{
        AccessState, Decision, Flow, Measurement, Measurements, Schedule, Urgency, decide, schedule,
    },
};

pub use copied::Copied;
use copied::CopiedFlow;
pub use document::{InForce, Kept};
use keeper::Keeper;
use rule_bytes::{RuleBytes, RuleKey};
use series::Series;
use usage::Usage;

use crate::{alarms::Alarms, clock::Clock};

/// How often measurements are looked at while there are rules.
const DECIDE_EVERY: Duration = Duration::from_millis(250);
/// Copies of a packet that a schedule without rules plans for while an alert is open. They take
/// other paths than their originals.
const COPIES_ALARMED: u8 = 2;
/// An open flow that may use no living access is closed after so long.
const BLOCKED_MAX: Duration = Duration::from_secs(5);
/// Weight of a new interval in the loss of a path, which falls slowly and rises at once.
const LOSS_FALLS: f64 = 0.05;
/// Fewer packets in an interval do not measure loss.
const LOSS_PACKETS_MIN: u64 = 10;

/// Why a flow is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the steering rule {rule} leaves it no access: {reasons}")]
pub struct Blocked {
    pub rule: String,
    pub reasons: String,
}

/// The flows that are open, and what decides about them. Clones share it.
#[derive(Clone, Default)]
pub struct Flows(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    in_force: Arc<InForce>,
    states: Vec<AccessState>,
    measurements: Measurements,
    /// A high alert is open.
    alarmed: bool,
    /// Schedule of the session after the last decision.
    schedule: Schedule,
    /// Bounded by the bounds on connections of applications and on flows of packets.
    open: BTreeMap<u64, OpenFlow>,
    next: u64,
    rule_bytes: RuleBytes,
}

/// Bytes that a flow has carried so far, both ways.
type Bytes = Box<dyn Fn() -> u64 + Send>;

struct OpenFlow {
    flow: Flow,
    cut: CancellationToken,
    blocked_since: Option<Instant>,
    held: watch::Sender<bool>,
    /// The rule that decides about it.
    key: RuleKey,
    bytes: Option<Bytes>,
    /// The part of them that is added to a rule.
    settled: u64,
    copied: CopiedFlow,
}

impl OpenFlow {
    fn hold(&self, holds: bool) {
        self.held
            .send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Adds what has passed since the last call to the rule that decided meanwhile.
    fn settle(&mut self, rule_bytes: &mut RuleBytes) {
        if let Some(bytes) = &self.bytes {
            let bytes = bytes();
            rule_bytes.add(&self.key, bytes.saturating_sub(self.settled));
            self.settled = bytes;
        }
    }
}

/// A flow that is open; it ends with this.
pub struct FlowGuard {
    flows: Flows,
    number: u64,
    cut: CancellationToken,
    copied: Copied,
    held: watch::Receiver<bool>,
}

impl FlowGuard {
    /// Whether the flow's datagrams go by two paths at once.
    pub fn copied(&self) -> &Copied {
        &self.copied
    }

    /// The stream that carries the flow, which goes by two paths while the rules say so.
    pub fn carried_by(&self, stream: CopySwitch) {
        if let Some(open) = self.flows.0.lock().open.get_mut(&self.number) {
            open.copied.carried_by(stream);
        }
    }

    /// Whether the rules leave the flow no access any more.
    pub fn has_been_cut(&self) -> bool {
        self.cut.is_cancelled()
    }

    /// Polls the future that carries the flow, but not while the rules leave it no living access.
    /// None: that was so for `BLOCKED_MAX`.
    pub async fn carry<T>(&self, carrying: impl Future<Output = T>) -> Option<T> {
        hold::carried(self.held.clone(), &self.cut, carrying).await
    }

    /// Returns when the rules leave the flow no access any more.
    pub async fn is_cut(&self) {
        self.cut.cancelled().await;
    }

    /// Where the flow's bytes are counted, both ways in sum.
    pub fn counts(&self, bytes: impl Fn() -> u64 + Send + 'static) {
        if let Some(open) = self.flows.0.lock().open.get_mut(&self.number) {
            open.bytes = Some(Box::new(bytes));
        }
    }
}

impl Drop for FlowGuard {
    fn drop(&mut self) {
        let mut table = self.flows.0.lock();
        if let Some(mut open) = table.open.remove(&self.number) {
            open.settle(&mut table.rule_bytes);
        }
    }
}

impl Flows {
    /// Open flows.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.0.lock().open.len()
    }

    /// Lets a flow in, or says which rule leaves it no access.
    pub fn enter(&self, flow: Flow) -> Result<FlowGuard, Blocked> {
        let mut table = self.0.lock();
        let decision = table.decide(&flow);
        if let Some(blocked) = table.blocked(&decision) {
            metrics::counter!("braid_gateway_steering_refused_total").increment(1);
            return Err(blocked);
        }
        let number = table.next;
        table.next += 1;
        let cut = CancellationToken::new();
        let mut copied_flow = CopiedFlow::default();
        copied_flow.set(decision.copies > 1);
        let copied = copied_flow.now.clone();
        let (held, holds) = watch::channel(false);
        let open = OpenFlow {
            flow,
            cut: cut.clone(),
            blocked_since: None,
            held,
            key: RuleKey::of(&decision),
            bytes: None,
            settled: 0,
            copied: copied_flow,
        };
        table.open.insert(number, open);
        let flows = self.clone();
        Ok(FlowGuard {
            flows,
            number,
            cut,
            copied,
            held: holds,
        })
    }

    /// Measures, decides anew, and returns the schedule of the session.
    fn decide_all(
        &self,
        now: Instant,
        states: Vec<AccessState>,
        measurements: Measurements,
    ) -> Schedule {
        let mut table = self.0.lock();
        table.states = states;
        table.measurements = measurements;
        table.schedule = Schedule::default();
        table.settle();
        if table.in_force.is_empty() {
            for open in table.open.values_mut() {
                open.key = RuleKey::free();
                open.copied.set(false);
                open.hold(false);
                open.blocked_since = None;
            }
            if table.alarmed {
                table.schedule.copies = COPIES_ALARMED;
            }
            return table.schedule.clone();
        }
        let alarmed = table.alarmed;
        let mut decisions: Vec<Decision> = own_flows(alarmed)
            .iter()
            .map(|flow| table.decide(flow))
            // Without an alert nothing is copied, and other flows stay as they are.
            .map(|decision| match alarmed {
                true => decision,
                false => decision.at_rest(),
            })
            .collect();
        let mut decided: BTreeMap<u64, (RuleKey, Option<Blocked>, bool)> = BTreeMap::new();
        for (number, open) in &table.open {
            let decision = table.decide(&open.flow);
            let (key, copied) = (RuleKey::of(&decision), decision.copies > 1);
            decided.insert(*number, (key, table.blocked(&decision), copied));
            if !decisions.contains(&decision) {
                decisions.push(decision);
            }
        }
        for (number, open) in &mut table.open {
            let Some((key, blocked, copied)) = decided.remove(number) else {
                continue;
            };
            open.key = key;
            open.copied.set(copied);
            open.hold(blocked.is_some());
            open.blocked_since = blocked.as_ref().map(|_| open.blocked_since.unwrap_or(now));
            let is_over = open
                .blocked_since
                .is_some_and(|since| now >= since + BLOCKED_MAX);
            if let Some(blocked) = blocked.filter(|_| is_over && !open.cut.is_cancelled()) {
                tracing::info!(application = open.flow.application, %blocked, "a flow is closed");
                metrics::counter!("braid_gateway_steering_closed_total").increment(1);
                open.cut.cancel();
            }
        }
        table.schedule = schedule(&decisions);
        table.schedule.clone()
    }
}

/// The flows of the gateway's own readings, which are always open.
fn own_flows(alarmed: bool) -> [Flow; 2] {
    let mut vitals = Flow::new("vitals", Urgency::Prompt);
    vitals.raised = alarmed;
    [Flow::new("alerts", Urgency::Alert), vitals]
}

impl Table {
    /// Adds the bytes of open flows to their rules.
    fn settle(&mut self) {
        for open in self.open.values_mut() {
            open.settle(&mut self.rule_bytes);
        }
    }

    fn decide(&self, flow: &Flow) -> Decision {
        decide(
            &self.in_force.document,
            flow,
            &self.states,
            &self.measurements,
        )
    }

    /// Only rules block: without a living access at all a flow waits for one, as without rules.
    fn blocked(&self, decision: &Decision) -> Option<Blocked> {
        let lives = |name: &str| self.states.iter().any(|it| it.usable && it.name == name);
        let any_lives = self.states.iter().any(|state| state.usable);
        if !any_lives || decision.order.iter().any(|choice| lives(&choice.access)) {
            return None;
        }
        let reasons: Vec<String> = decision
            .why
            .iter()
            .map(|why| format!("{}: {}", why.access, why.reason))
            .collect();
        Some(Blocked {
            rule: decision
                .rule
                .clone()
                .unwrap_or_else(|| "of caps".to_owned()),
            reasons: reasons.join("; "),
        })
    }
}

/// Follows the document and the measurements, until shutdown is requested.
pub struct Steering {
    pub tunnel: Tunnel,
    pub flows: Flows,
    pub in_force: watch::Receiver<Arc<InForce>>,
    pub data_dir: PathBuf,
    pub clock: Clock,
    pub alarms: Alarms,
    /// Name of this gateway.
    pub gateway: String,
    /// Receiver of what the document says about the age of its vitals.
    pub freshness: watch::Sender<Option<Duration>>,
}

impl Steering {
    pub async fn run(mut self, shutdown: Shutdown) {
        let file = self.data_dir.join("steering-usage.json");
        let mut usage = Usage::read(file);
        let mut losses = Losses::default();
        let mut series = Series::default();
        let mut keeper = Keeper::new(Instant::now());
        let mut alarmed = self.alarms.watch();
        let mut ticks = tokio::time::interval(DECIDE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_over = false;
        while !is_over {
            tokio::select! {
                _ = ticks.tick() => self.alarms.expire(Instant::now()),
                // At once: the alert itself is about to be sent.
                Ok(()) = alarmed.changed() => {}
                () = shutdown.requested() => is_over = true,
            }
            let in_force = self.in_force.borrow_and_update().clone();
            let freshness = in_force.document.freshness_of(&self.gateway);
            self.freshness
                .send_if_modified(|before| std::mem::replace(before, freshness) != freshness);
            let now = Instant::now();
            let (carried, of_current) = self.tunnel.paths_with_former();
            let paths = &carried[..of_current];
            let accesses = self.tunnel.interfaces();
            let wall_us = (self.clock)().wall_us;
            usage.add(&carried, &accesses, wall_us, &in_force.document);
            losses.observe(paths);
            let names: Vec<String> = accesses.into_iter().map(|it| it.0).collect();
            let reachable = self.tunnel.reachable();
            let (states, measurements) = measure(names, (paths, &reachable), &losses, &usage);
            series.publish(&carried, &measurements, &in_force.document);
            usage.publish();
            {
                let mut table = self.flows.0.lock();
                table.in_force = in_force;
                table.alarmed = *alarmed.borrow_and_update();
            }
            let schedule = self.flows.decide_all(now, states, measurements);
            self.tunnel.set_schedule(schedule);
            keeper.keep(&mut usage, now);
        }
        keeper.keep_last(usage).await;
    }
}

/// Share of packets that each path lost lately.
#[derive(Default)]
struct Losses {
    /// Packets sent and lost so far, and the share; the paths are the tunnel's.
    paths: BTreeMap<(u64, u64), (u64, u64, f64)>,
}

impl Losses {
    fn observe(&mut self, paths: &[PathSnapshot]) {
        self.paths
            .retain(|id, _| paths.iter().any(|it| (it.session, it.path_id) == *id));
        for path in paths {
            let id = (path.session, path.path_id);
            let entry = self.paths.entry(id).or_insert((0, 0, 0.0));
            let sent = path.sent_packets.saturating_sub(entry.0);
            let lost = path.lost_packets.saturating_sub(entry.1);
            if sent >= LOSS_PACKETS_MIN {
                let share = (lost as f64 / sent as f64).min(1.0);
                let fallen = entry.2 + (share - entry.2) * LOSS_FALLS;
                *entry = (path.sent_packets, path.lost_packets, fallen.max(share));
            }
        }
    }
}

/// `reachable` are accesses without a path that the session would move to.
fn measure(
    names: Vec<String>,
    (paths, reachable): (&[PathSnapshot], &[String]),
    losses: &Losses,
    usage: &Usage,
) -> (Vec<AccessState>, Measurements) {
    let mut measurements = Measurements::new();
    let mut states = Vec::new();
    for name in names {
        let alive = paths.iter().filter(|path| {
            path.name == name && matches!(path.state, PathState::Available | PathState::Backup)
        });
        let best = alive.min_by_key(|path| path.rtt);
        let loss = best.and_then(|path| losses.paths.get(&(path.session, path.path_id)));
        let measurement = Measurement {
            rtt: best.map(|path| path.rtt).filter(|rtt| !rtt.is_zero()),
            loss: loss.map(|entry| entry.2),
            rate_bytes_per_s: None,
            month_bytes: usage.month_bytes(&name),
        };
        states.push(AccessState {
            usable: best.is_some() || reachable.contains(&name),
            name: name.clone(),
        });
        measurements.insert(name, measurement);
    }
    (states, measurements)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tunnel::steering_rules::{Document, Rank};

    use super::*;

    const BULK_BY_WIFI: &str = "format = 1\n[[rule]]\nname = \"bulk\"\naccesses = [\"wifi\"]\n\
                                match = { urgency = [\"bulk\"] }\n";

    fn states(usable: [bool; 2]) -> Vec<AccessState> {
        let pairs = ["wifi", "lte"].into_iter().zip(usable);
        pairs
            .map(|(name, usable)| AccessState {
                name: name.to_owned(),
                usable,
            })
            .collect()
    }

    fn flows(text: &str) -> Flows {
        let flows = Flows::default();
        flows.0.lock().in_force = Arc::new(InForce {
            version: 3,
            document: Document::from_toml(text, "test").unwrap(),
        });
        flows
    }

    #[test]
    fn a_flow_without_a_living_access_is_refused_and_an_open_one_is_closed() {
        let flows = flows(BULK_BY_WIFI);
        let start = Instant::now();
        let nothing = Measurements::new;
        flows.decide_all(start, states([true, true]), nothing());
        let bulk = || Flow::new("applications", Urgency::Bulk);
        let open = flows.enter(bulk()).unwrap();
        let schedule = flows.decide_all(start, states([true, true]), nothing());
        assert_eq!(schedule.of("wifi").rank, Some(Rank::Active));
        assert_eq!(schedule.of("lte").rank, Some(Rank::Standby), "for alerts");
        flows.decide_all(start, states([false, true]), nothing());
        let refused = flows.enter(bulk()).map(drop).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the steering rule bulk leaves it no access: wifi: no path over it answers; \
             lte: the rule does not list it"
        );
        assert!(!open.cut.is_cancelled(), "it may come back");
        flows.decide_all(start + BLOCKED_MAX, states([false, true]), nothing());
        assert!(open.cut.is_cancelled());
        drop(open);
        let schedule = flows.decide_all(start, states([true, true]), nothing());
        assert_eq!(
            schedule.of("lte").rank,
            Some(Rank::Active),
            "nothing is strict any more"
        );
        assert!(flows.enter(Flow::new("vitals", Urgency::Prompt)).is_ok());
    }

    #[tokio::test]
    async fn an_open_flow_waits_while_no_living_access_may_carry_it() {
        let flows = flows(BULK_BY_WIFI);
        let start = Instant::now();
        let decide = |at, usable| flows.decide_all(at, states(usable), Measurements::new());
        decide(start, [true, true]);
        let open = flows
            .enter(Flow::new("applications", Urgency::Bulk))
            .unwrap();
        decide(start, [false, true]);
        let mut carrying = std::pin::pin!(open.carry(std::future::ready(7)));
        let waits = std::future::poll_fn(|cx| carrying.as_mut().poll(cx).is_pending().into());
        assert!(waits.await);
        decide(start, [true, true]);
        assert_eq!(carrying.await, Some(7));
        decide(start, [false, true]);
        decide(start + BLOCKED_MAX, [false, true]);
        assert_eq!(open.carry(std::future::pending::<()>()).await, None);
    }

    #[test]
    fn a_flow_waits_as_ever_while_no_access_lives() {
        let flows = flows(BULK_BY_WIFI);
        flows.decide_all(Instant::now(), states([false, false]), Measurements::new());
        assert!(
            flows
                .enter(Flow::new("applications", Urgency::Bulk))
                .is_ok()
        );
    }

    #[test]
    fn an_access_that_the_session_would_move_to_is_usable() {
        let folder = tempfile::tempdir().unwrap();
        let usage = Usage::read(folder.path().join("usage.json"));
        let names = || vec!["wifi".to_owned(), "lte".to_owned()];
        let over_lte = PathSnapshot {
            name: "lte".to_owned(),
            state: PathState::Backup,
            ..PathSnapshot::default()
        };
        let usable = |reachable: &[String]| {
            let found = (std::slice::from_ref(&over_lte), reachable);
            let (states, _) = measure(names(), found, &Losses::default(), &usage);
            [states[0].usable, states[1].usable]
        };
        assert_eq!(usable(&[]), [false, true]);
        assert_eq!(usable(&["wifi".to_owned()]), [true, true]);
    }

    #[test]
    fn a_redundant_rule_copies_its_flows_and_a_changed_one_ends_that() {
        const REDUNDANT: &str = "format = 1\n[[rule]]\nname = \"call\"\nmode = \"redundant\"\n\
                                 match = { port = [\"5060\"], urgency = [\"bulk\"] }\n";
        let flows = flows(REDUNDANT);
        let decide = |usable| flows.decide_all(Instant::now(), states(usable), Measurements::new());
        decide([true, true]);
        let bulk = || Flow::new("applications", Urgency::Bulk);
        let other = flows.enter(bulk().to("192.0.2.9:443")).unwrap();
        let call = flows.enter(bulk().to("192.0.2.9:5060")).unwrap();
        assert_eq!((call.copied().get(), other.copied().get()), (true, false));
        assert_eq!(decide([true, true]).copies, 2);
        flows.0.lock().in_force = Arc::new(InForce {
            version: 4,
            document: Document::from_toml(BULK_BY_WIFI, "test").unwrap(),
        });
        decide([true, true]);
        assert!(!call.copied().get());
        flows.0.lock().in_force = Arc::default();
        decide([true, true]);
        assert!(!call.copied().get());
    }

    #[test]
    fn while_an_alert_is_open_packets_change_their_path_with_rules_and_without() {
        for text in ["format = 1\n", BULK_BY_WIFI] {
            let flows = flows(text);
            let decide =
                || flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
            assert_eq!(decide().copies, 1, "{text}");
            flows.0.lock().alarmed = true;
            assert_eq!(decide().copies, 2, "{text}");
            flows.0.lock().alarmed = false;
            assert_eq!(decide().copies, 1, "{text}");
        }
    }

    #[test]
    fn without_rules_nothing_is_scheduled() {
        let flows = Flows::default();
        let schedule = flows.decide_all(Instant::now(), states([true, true]), Measurements::new());
        assert_eq!(schedule, Schedule::default());
        assert!(flows.enter(Flow::new("tun", Urgency::Bulk)).is_ok());
    }
}
