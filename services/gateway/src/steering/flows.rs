//! The flows that are open, and the schedule that they leave to their session.
//!
//! Invariants: the schedule is published before `enter` returns a flow whose decision changes it; a
//! decision ends with its flow, after the moment of `ended`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tunnel::{
    StreamSwitch,
    steering_rules::{
        AccessState, Decision, Flow, Measurements, Schedule, Urgency, decide, schedule,
    },
};

use super::{
    copied::{Copied, CopiedFlow},
    document::InForce,
    ended::EndedFlows,
    hold,
    rule_bytes::{RuleBytes, RuleKey},
};

/// Copies of a packet that a schedule without rules plans for while an alert is open. They take
/// other paths than their originals.
const COPIES_ALARMED: u8 = 2;
/// An open flow that may use no living access is closed after so long.
const BLOCKED_MAX: Duration = Duration::from_secs(5);

/// Why a flow is not let in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the steering rule {rule} leaves it no access: {reasons}")]
pub struct Blocked {
    pub rule: String,
    pub reasons: String,
}

/// The flows that are open, and what decides about them. Clones share it.
#[derive(Clone, Default)]
pub struct Flows(pub(super) Arc<Mutex<Table>>);

/// Takes each schedule, in order.
type Publish = Box<dyn Fn(Schedule) + Send>;

#[derive(Default)]
pub(super) struct Table {
    pub(super) in_force: Arc<InForce>,
    pub(super) states: Vec<AccessState>,
    pub(super) measurements: Measurements,
    /// A high alert is open.
    pub(super) alarmed: bool,
    /// Some access is near its cap: a flow that begins may soon reach it.
    is_near_cap: bool,
    wakes: Arc<Notify>,
    /// Schedule of the session after the last decision.
    pub(super) schedule: Schedule,
    /// The decisions that make it, each once: as many as the rules and their urgencies.
    decisions: Vec<Decision>,
    publish: Option<Publish>,
    /// Bounded by the bounds on connections of applications and on flows of packets.
    pub(super) open: BTreeMap<u64, OpenFlow>,
    ended: EndedFlows,
    next: u64,
    pub(super) rule_bytes: RuleBytes,
}

/// Bytes that a flow has carried so far, both ways.
type Bytes = Box<dyn Fn() -> u64 + Send>;

pub(super) struct OpenFlow {
    pub(super) flow: Flow,
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
        let changed = self
            .held
            .send_if_modified(|held| std::mem::replace(held, holds) != holds);
        if changed {
            self.copied.hold(holds);
        }
    }

    /// Obeys a decision that may leave it no living access.
    fn look(&mut self, now: Instant, blocked: Option<Blocked>, is_unmeasured: bool) {
        self.hold(blocked.is_some() || is_unmeasured);
        self.blocked_since = blocked.as_ref().map(|_| self.blocked_since.unwrap_or(now));
        let is_over = (self.blocked_since).is_some_and(|since| now >= since + BLOCKED_MAX);
        if let Some(blocked) = blocked.filter(|_| is_over && !self.cut.is_cancelled()) {
            tracing::info!(application = self.flow.application, %blocked, "a flow is closed");
            metrics::counter!("braid_gateway_steering_closed_total").increment(1);
            self.cut.cancel();
        }
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
    is_news: bool,
}

impl FlowGuard {
    /// Whether the schedule has changed with the begin of the flow.
    pub fn is_news(&self) -> bool {
        self.is_news
    }

    /// True while the rules leave the flow no living access. Its datagrams are dropped then.
    pub fn held(&self) -> watch::Receiver<bool> {
        self.held.clone()
    }

    /// The same at the moment, or for good.
    pub fn may_not_send(&self) -> bool {
        *self.held.borrow() || self.cut.is_cancelled()
    }

    /// Whether the flow's datagrams go by two paths at once.
    pub fn copied(&self) -> &Copied {
        &self.copied
    }

    /// The stream that carries the flow, which goes by two paths while the rules say so.
    pub fn carried_by(&self, stream: StreamSwitch) {
        if let Some(open) = self.flows.0.lock().open.get_mut(&self.number) {
            open.copied.carried_by(stream);
            open.copied.hold(*open.held.borrow());
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
            if !table.in_force.is_empty() {
                table.ended.add(open.key, open.flow);
            }
        }
    }
}

impl Flows {
    /// Returns when a flow begins while some access is near its cap.
    pub(super) fn wakes(&self) -> Arc<Notify> {
        self.0.lock().wakes.clone()
    }

    /// Whether some flow is open, so that an access near its cap may reach it.
    pub(super) fn note_near_cap(&self, is_near_cap: bool) -> bool {
        let mut table = self.0.lock();
        table.is_near_cap = is_near_cap;
        !table.open.is_empty()
    }

    /// The schedule goes there from now on. Must be called before the first flow.
    pub fn publish_to(&self, publish: impl Fn(Schedule) + Send + 'static) {
        self.0.lock().publish = Some(Box::new(publish));
    }

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
        let (held, holds) = watch::channel(table.is_unmeasured());
        let open = OpenFlow {
            flow,
            cut: cut.clone(),
            blocked_since: None,
            held,
            key: match table.in_force.is_empty() {
                true => RuleKey::free(),
                false => RuleKey::of(&decision),
            },
            bytes: None,
            settled: 0,
            copied: copied_flow,
        };
        table.open.insert(number, open);
        let is_news = table.add(decision);
        if table.is_near_cap {
            table.wakes.notify_one();
        }
        let flows = self.clone();
        Ok(FlowGuard {
            flows,
            number,
            cut,
            copied,
            held: holds,
            is_news,
        })
    }

    /// Decides anew, and publishes the schedule of the session.
    pub(super) fn decide_all(
        &self,
        now: Instant,
        states: Vec<AccessState>,
        measurements: Measurements,
    ) -> Schedule {
        let table = &mut *self.0.lock();
        table.states = states;
        table.measurements = measurements;
        table.settle();
        if table.in_force.is_empty() {
            table.decide_freely();
        } else {
            table.decide_by_rules(now);
        }
        table.publish();
        table.schedule.clone()
    }
}

/// The flows of the gateway's own readings, which are always open.
pub(super) fn own_flows(alarmed: bool) -> [Flow; 2] {
    let mut vitals = Flow::new("vitals", Urgency::Prompt);
    vitals.raised = alarmed;
    [Flow::new("alerts", Urgency::Alert), vitals]
}

impl Table {
    /// Without a document.
    fn decide_freely(&mut self) {
        for open in self.open.values_mut() {
            open.key = RuleKey::free();
            open.copied.set(false);
            open.hold(false);
            open.blocked_since = None;
        }
        self.decisions.clear();
        self.ended.clear();
        self.schedule = Schedule::default();
        if self.alarmed {
            self.schedule.copies = COPIES_ALARMED;
        }
    }

    fn decide_by_rules(&mut self, now: Instant) {
        let alarmed = self.alarmed;
        let own = own_flows(alarmed);
        let own = own.iter().map(|flow| match (self.decide(flow), alarmed) {
            (decision, true) => decision,
            // Without an alert nothing is copied, and other flows stay as they are.
            (decision, false) => decision.at_rest(),
        });
        self.decisions = own.collect();
        let mut open = std::mem::take(&mut self.open);
        for open in open.values_mut() {
            let decision = self.decide(&open.flow);
            let blocked = self.blocked(&decision);
            open.key = RuleKey::of(&decision);
            open.copied.set(decision.copies > 1);
            open.look(now, blocked, self.is_unmeasured());
            self.join(decision);
        }
        self.open = open;
        let mut ended = std::mem::take(&mut self.ended);
        for flow in ended.look(now) {
            self.join(self.decide(flow));
        }
        self.ended = ended;
        self.schedule = schedule(&self.decisions);
    }

    fn join(&mut self, decision: Decision) -> bool {
        let is_news = !self.decisions.contains(&decision);
        if is_news {
            self.decisions.push(decision);
        }
        is_news
    }

    /// The decision of a flow that begins. Returns whether it changes the schedule.
    fn add(&mut self, decision: Decision) -> bool {
        if self.in_force.is_empty() || self.is_unmeasured() || !self.join(decision) {
            return false;
        }
        let before = std::mem::replace(&mut self.schedule, schedule(&self.decisions));
        self.publish();
        before != self.schedule
    }

    fn publish(&self) {
        if let Some(publish) = &self.publish {
            publish(self.schedule.clone());
        }
    }

    /// There are rules, and no access is known yet. A flow that begins now waits for the first
    /// decision.
    fn is_unmeasured(&self) -> bool {
        !self.in_force.is_empty() && self.states.is_empty()
    }

    /// Adds the bytes of open flows to their rules.
    pub(super) fn settle(&mut self) {
        for open in self.open.values_mut() {
            open.settle(&mut self.rule_bytes);
        }
    }

    pub(super) fn decide(&self, flow: &Flow) -> Decision {
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

#[cfg(test)]
mod tests;
