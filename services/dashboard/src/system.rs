//! Watches the whole installation, so that a page whose alerts have stopped says so even when
//! alerting does not know.
//!
//! Three sources: the progress of every group against the bus's ends, this replica's own readers,
//! and the canaries, one for each partition of `vitals`. A failure is a banner on the page
//! ([`crate::warnings`]), a warning in `/readyz`, and a gauge. People are also told of a failure
//! that keeps alerts from them ([`crate::to_people`]). A failure of another service never takes
//! this page out of service, because people read of it there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Topic};
use consumer_health::{Duty, Level, Moment, Own, Pace, Seen, Source, Standing, duty, watch};
use contracts::{alerts::NoticeResult, query::WarningSeverity};
use parking_lot::Mutex;
use service_kit::{Context, Shutdown, Warning};
use store::{QueryError, Scope, Store};
use tokio::time::MissedTickBehavior;

use crate::{
    canary::{Missing, Untold},
    live::Live,
    outage::Outage,
    to_people::People,
    warnings::warning,
};

/// How often the canary is checked and failures are posted.
const TICK: Duration = Duration::from_secs(1);

const CANARY: &str = "canary";
/// How often the notices of test alerts are looked for, and the partitions counted.
const LOOK_FOR_NOTICES: Duration = Duration::from_secs(2);
/// A slower answer counts as none.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The positions of the three readers of this replica.
#[derive(Default)]
pub(crate) struct Readers {
    pub vitals: Arc<Seen>,
    pub alerts: Arc<Seen>,
    pub paths: Arc<Seen>,
}

/// Current failures that keep alerts from people, by code.
type Critical = Arc<Mutex<BTreeMap<&'static str, (String, Moment)>>>;

pub(crate) fn start(
    bus: &Arc<dyn Bus>,
    store: &Arc<dyn Store>,
    live: &Arc<Live>,
    readers: &Readers,
    canary_within: Option<Duration>,
    people: People,
    context: &Context,
) {
    let critical = Critical::default();
    let watched = duty::ALL.into_iter().map(group);
    let own = [
        reader(
            "live-vitals",
            Topic::Vitals,
            &readers.vitals,
            [
                "this page does not show new readings",
                "this page shows new readings",
            ],
        ),
        reader(
            "live-alerts",
            Topic::Alerts,
            &readers.alerts,
            [
                "this page does not show new alerts",
                "this page shows new alerts",
            ],
        ),
        reader(
            "live-paths",
            Topic::Paths,
            &readers.paths,
            [
                "this page does not show new path reports",
                "this page shows new path reports",
            ],
        ),
    ];
    for (mut own, severity, pace) in watched.chain(own) {
        let (live, critical) = (Arc::clone(live), Arc::clone(&critical));
        let (code, stands, does) = (own.name, own.stands, own.does);
        own.heard = Some(Arc::new(move |standing: &Standing| {
            match sentence(stands, does, standing) {
                Some((text, since)) => raise(&live, &critical, code, severity, text, since),
                None => end(&live, &critical, code),
            }
        }));
        let (bus, store) = (Arc::clone(bus), Arc::clone(store));
        context
            .tasks()
            .spawn(watch(bus, store, own, pace, context.clone()));
    }
    if canary_within.is_some() {
        context.tasks().spawn(follow_canaries(
            Arc::clone(bus),
            Arc::clone(store),
            Arc::clone(live),
            context.shutdown().clone(),
        ));
    }
    context.tasks().spawn(tick(
        Arc::clone(live),
        critical,
        canary_within,
        people,
        context.clone(),
    ));
}

/// A group of another service. A restart of this service would not help it.
fn group(duty: Duty) -> (Own, WarningSeverity, Pace) {
    let own = Own {
        lag_metric: "braid_dashboard_watched_lag_records",
        still_metric: "braid_dashboard_watched_standing_still_seconds",
        label: Some(("duty", duty.name)),
        ..Own::duty(duty, Level::Warning, None)
    };
    let severity = match duty.name {
        "storing-paths" => WarningSeverity::Note,
        "storing-vitals" => WarningSeverity::Warning,
        _ => WarningSeverity::Critical,
    };
    let pace = Pace {
        restart_after: Duration::MAX,
        ..Pace::default()
    };
    (own, severity, pace)
}

/// A reader of this replica. While the bus answers, another replica may do better.
fn reader(
    name: &'static str,
    topic: Topic,
    seen: &Arc<Seen>,
    [stands, does]: [&'static str; 2],
) -> (Own, WarningSeverity, Pace) {
    let own = Own {
        name,
        source: Source::Reader {
            topic,
            seen: Arc::clone(seen),
        },
        stands,
        does,
        lag_metric: "braid_dashboard_lag_records",
        still_metric: "braid_dashboard_standing_still_seconds",
        label: Some(("topic", topic.name())),
        still: Level::Failing,
        unanswered: Level::Warning,
        held: None,
        to_do: "see infra/runbooks.md#liveviewstale",
        heard: None,
    };
    let severity = match topic {
        Topic::Paths => WarningSeverity::Note,
        _ => WarningSeverity::Critical,
    };
    (own, severity, Pace::default())
}

/// One sentence for the page, without the time and without an engine's words.
fn sentence(stands: &str, does: &str, standing: &Standing) -> Option<(String, Moment)> {
    let (text, since) = match standing {
        Standing::Unknown | Standing::Well { .. } => return None,
        Standing::Still { since, .. } => (format!("{stands}."), since),
        Standing::Unanswered { since, .. } => {
            let text = format!("it is not known whether {does}: bus or store do not answer.");
            (text, since)
        }
    };
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    Some((first.chain(letters).collect(), *since))
}

fn raise(
    live: &Live,
    critical: &Critical,
    code: &'static str,
    severity: WarningSeverity,
    text: String,
    since: Moment,
) {
    if severity == WarningSeverity::Critical {
        critical.lock().insert(code, (text.clone(), since));
    }
    let warning = warning(code, severity, since.wall_us, text);
    live.warnings.lock().raise("", warning);
}

fn end(live: &Live, critical: &Critical, code: &'static str) {
    critical.lock().remove(code);
    live.warnings.lock().end("", code);
}

async fn tick(
    live: Arc<Live>,
    critical: Critical,
    canary_within: Option<Duration>,
    people: People,
    context: Context,
) {
    let handle = context.health().warning(CANARY);
    let mut missing_before = None;
    let mut outage = Outage::default();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.shutdown().requested() => return,
            _ = ticks.tick() => {}
        }
        let now = live.moment();
        if let Some(within) = canary_within {
            let (age, missing) = {
                let canaries = live.canaries.lock();
                (canaries.oldest(now), canaries.missing(within, now))
            };
            metrics::gauge!("braid_dashboard_canary_age_seconds").set(age.as_secs_f64());
            let count = missing.as_ref().map_or(0, |it| it.partitions.len());
            metrics::gauge!("braid_dashboard_canaries_missing").set(count as f64);
            if missing != missing_before {
                match &missing {
                    Some(missing) => {
                        let says = format!("{} since {}", lacking(missing), missing.since.utc());
                        let to_do = "see infra/runbooks.md#canarymissing".to_owned();
                        handle.set(Some(Warning { says, to_do }));
                        let text = format!("Alerts may not come through: {}.", lacking(missing));
                        let (severity, since) = (WarningSeverity::Critical, missing.since);
                        raise(&live, &critical, CANARY, severity, text, since);
                    }
                    None => {
                        handle.set(None);
                        end(&live, &critical, CANARY);
                    }
                }
                missing_before = missing;
            }
        }
        let troubles: Vec<(String, Moment)> = critical.lock().values().cloned().collect();
        if let Some(post) = outage.on_look(&troubles, now) {
            people.tell(post);
        }
    }
}

/// The missing test alerts, without the time.
fn lacking(missing: &Missing) -> String {
    let all = usize::try_from(missing.of).unwrap_or(usize::MAX);
    if missing.partitions.len() >= all {
        return "the test alert of every minute is missing".to_owned();
    }
    let named = bus::listed(&missing.partitions);
    format!("of some patients the test alert is missing (partition {named} of {all})")
}

/// Looks for the delivered notices of the test alerts, and counts the partitions.
async fn follow_canaries(
    bus: Arc<dyn Bus>,
    store: Arc<dyn Store>,
    live: Arc<Live>,
    shutdown: Shutdown,
) {
    loop {
        let look = async {
            match bus.partitions(Topic::Vitals).await {
                Ok(partitions) => live
                    .canaries
                    .lock()
                    .on_partitions(partitions, live.moment()),
                Err(error) => tracing::debug!(%error, "the partitions are not counted"),
            }
            let untold = live.canaries.lock().untold();
            for untold in untold {
                match is_told(store.as_ref(), &untold).await {
                    Ok(true) => live.canaries.lock().on_told(&untold),
                    Ok(false) => {}
                    // A notice that is never found counts as missing in the end.
                    Err(error) => {
                        tracing::debug!(%error, "notices of test alerts are not found");
                        break;
                    }
                }
            }
        };
        tokio::select! {
            () = shutdown.requested() => return,
            _ = tokio::time::timeout(ANSWER_WITHIN, look) => {}
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(LOOK_FOR_NOTICES) => {}
        }
    }
}

async fn is_told(store: &dyn Store, untold: &Untold) -> Result<bool, QueryError> {
    let records = store.notices(&Scope::Service, &untold.alert).await?;
    Ok(records.iter().any(|record| {
        let notice = record.notice.as_ref();
        let alert = notice.and_then(|notice| notice.alert.as_ref());
        let outcome = record.outcome.as_ref();
        alert.is_some_and(|alert| alert.revision == untold.revision)
            && outcome.is_some_and(|outcome| outcome.result() == NoticeResult::Delivered)
    }))
}
