use async_trait::async_trait;
use bytes::Bytes;
use contracts::alerts::{Alert, AlertState, Notice, NoticeOutcome, NoticeRecord, NoticeResult};
use contracts::vitals::Priority;

use crate::{
    Scope,
    error::{QueryError, WriteError},
};

/// The timer of one alert's escalation, named by [`timer_of`]. A change names the version that it
/// follows. If two members act on one timer, one of them loses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EscalationTimer {
    pub alert: String,
    /// From 1 on.
    pub version: u32,
    /// `None`: waits for the alert's end only.
    pub due_us: Option<i64>,
    pub state: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimerChange {
    /// Version 1 creates; any other replaces the one before it, else `Conflict` with the alert's
    /// id.
    Set(EscalationTimer),
    /// No person waits for this alert any more.
    End(String),
    /// A waiting timer is due at `at_us`, if not before. Its version rises, so that a decision
    /// under way is made again. Changes nothing if the alert has no timer, or one that waits for
    /// the end only.
    Hasten { timer: String, at_us: i64 },
}

/// Name of the timer of an alert's escalation: the alert's id. An alert of neither a patient nor a
/// gateway concerns several tenants, and each has a timer of its own.
pub fn timer_of(alert: &Alert, tenant: &str) -> String {
    if tenant.is_empty() || !alert.patient.is_empty() || !alert.gateway.is_empty() {
        return alert.id.clone();
    }
    // No id of an alert or a tenant contains the separator.
    format!("{}@{tenant}", alert.id)
}

/// The alert and, for an alert of several tenants, the tenant of a timer.
pub fn alert_of_timer(timer: &str) -> (&str, Option<&str>) {
    match timer.split_once('@') {
        Some((alert, tenant)) => (alert, Some(tenant)),
        None => (timer, None),
    }
}

/// The result of one decision; stored as a whole or not at all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NoticesBatch {
    /// Unique by id; one that is there is left out. A new one is queued for delivery unless the
    /// batch has its outcome.
    pub notices: Vec<Notice>,
    /// The first outcome of a notice counts; it leaves the queue.
    pub outcomes: Vec<NoticeOutcome>,
    pub timers: Vec<TimerChange>,
}

/// A notice to be delivered by the member that took it, until its lease ends.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedNotice {
    pub notice: Notice,
    /// With this one, from 1 on.
    pub attempts: u32,
}

/// Which notices to lease.
#[derive(Debug, Clone, Copy)]
pub struct Take<'a> {
    pub channel: &'a str,
    pub now_us: i64,
    /// End of the lease.
    pub until_us: i64,
    pub limit: usize,
    /// Only notices of at least this urgency.
    pub least: Priority,
}

#[async_trait]
pub trait NoticesStore: Send + Sync {
    /// Returns how many notices were new.
    async fn write_notices(&self, batch: NoticesBatch) -> Result<u64, WriteError>;

    /// Leases due notices of a channel to the caller. The most urgent alerts come first. Within one
    /// urgency, notices that were never tried come first, then failed ones by due time. Failed ones
    /// have at most half of the answer while others wait. New notices are taken in turn by gateway,
    /// in the order of writing. So many notices of one gateway delay no other's. A notice is not
    /// taken while an earlier one of the same alert and recipient waits or is in hand. Behind a
    /// notice that is taken come the due ones of the same alert and recipient, in order.
    async fn take_notices(&self, take: Take<'_>) -> Result<Vec<QueuedNotice>, WriteError>;

    /// Counts notices that were due before `due_us` and that no member has ever taken, up to
    /// `limit`. One behind a notice that has failed waits for its turn and is not counted.
    async fn untried_notices(
        &self,
        due_us: i64,
        now_us: i64,
        limit: usize,
    ) -> Result<u64, QueryError>;

    /// Not before `due_us` again. Ends the lease.
    async fn delay_notices(&self, ids: &[String], due_us: i64) -> Result<(), WriteError>;

    /// Makes every failed notice of a channel due, except those in hand. Returns their number.
    async fn hasten_notices(&self, channel: &str, now_us: i64) -> Result<u64, WriteError>;

    async fn timer(&self, alert: &str) -> Result<Option<EscalationTimer>, QueryError>;

    /// The most overdue first.
    async fn due_timers(
        &self,
        now_us: i64,
        limit: usize,
    ) -> Result<Vec<EscalationTimer>, QueryError>;

    /// In the order of deciding.
    async fn notices(&self, scope: &Scope, alert: &str) -> Result<Vec<NoticeRecord>, QueryError>;
}

/// No notice waits for longer: a lease and a pause are half a minute, a window for grouping five.
/// One that is due later was written by a clock that has been set back since, and is due at once.
pub(crate) const WAIT_US_MAX: i64 = 600_000_000;

pub(crate) fn is_due(due_us: i64, now_us: i64) -> bool {
    due_us <= now_us || due_us > now_us + WAIT_US_MAX
}

/// For a notice that cannot be read: it cannot be delivered, and no other notice waits for it.
pub(crate) fn unreadable(id: &str, attempts: u32) -> NoticeOutcome {
    NoticeOutcome {
        notice: id.to_owned(),
        result: NoticeResult::GivenUp.into(),
        attempts,
        at_us: contracts::now_us(),
        detail: "the notice cannot be read".to_owned(),
    }
}

/// Due notices of one lane that are taken together.
pub(crate) const LANE_MAX: usize = 32;

/// Urgencies of the queue, the most urgent first.
pub(crate) fn urgencies(least: Priority) -> impl Iterator<Item = i32> {
    (least as i32..=Priority::High as i32).rev()
}

/// In doubt the urgency is the highest. The end of an alert has the lowest.
pub(crate) fn urgency(notice: &Notice) -> i32 {
    let Some(alert) = &notice.alert else {
        return Priority::High.into();
    };
    match alert.state() {
        AlertState::Acknowledged | AlertState::Resolved => Priority::Unspecified.into(),
        _ => known(alert.priority()).into(),
    }
}

/// The same for each transition of an alert, which go in their order.
pub(crate) fn urgency_of(alert: &Alert) -> i32 {
    known(alert.priority()).into()
}

fn known(priority: Priority) -> Priority {
    match priority {
        Priority::Unspecified => Priority::High,
        known => known,
    }
}

/// The first due notice of a lane.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub lane: String,
    pub urgency: i32,
    pub is_tried: bool,
}

/// The heads to take, in order. Both lists are sorted. Tried ones take at most half of the answer
/// while others wait.
pub(crate) fn choose(fresh: Vec<Head>, tried: Vec<Head>, limit: usize) -> Vec<Head> {
    let tried_max = (limit / 2).max(limit.saturating_sub(fresh.len()));
    let mut all: Vec<Head> = fresh;
    all.extend(tried.into_iter().take(tried_max));
    all.sort_by_key(|head| (std::cmp::Reverse(head.urgency), head.is_tried));
    all.truncate(limit);
    all
}

/// Notices of one lane are delivered in their order.
pub(crate) fn lane(notice: &Notice) -> String {
    let alert = notice.alert.as_ref().map_or("", |alert| alert.id.as_str());
    format!("{alert}/{}", notice.recipient)
}

/// Notices of one share are taken in turn with those of others.
pub(crate) fn share(notice: &Notice) -> &str {
    let alert = notice.alert.as_ref();
    let of = |field: fn(&Alert) -> &str| alert.map_or("", field);
    match of(|alert| &alert.gateway) {
        "" => of(|alert| &alert.patient),
        gateway => gateway,
    }
}

pub(crate) fn alert_of(notice: &Notice) -> &str {
    notice.alert.as_ref().map_or("", |alert| alert.id.as_str())
}

/// `0` of a document means for good.
pub(crate) fn until(until_us: i64) -> i64 {
    if until_us == 0 { i64::MAX } else { until_us }
}

/// Rows of notices with their outcomes, as encoded, in the order of deciding.
pub(crate) fn records(
    rows: impl IntoIterator<Item = (Vec<u8>, Option<Vec<u8>>)>,
) -> Result<Vec<NoticeRecord>, QueryError> {
    use prost::Message;
    let mut records = rows
        .into_iter()
        .map(|(notice, outcome)| {
            Ok(NoticeRecord {
                notice: Some(Notice::decode(notice.as_slice())?),
                outcome: outcome
                    .map(|outcome| NoticeOutcome::decode(outcome.as_slice()))
                    .transpose()?,
            })
        })
        .collect::<Result<Vec<_>, QueryError>>()?;
    records.sort_by_cached_key(|record| {
        record
            .notice
            .as_ref()
            .map(|notice| (notice.created_us, notice.id.clone()))
    });
    Ok(records)
}
