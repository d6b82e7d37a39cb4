//! Watches the whole installation, so that a page whose alerts have stopped says so even when
//! alerting does not know.
//!
//! Three sources: the progress of every group against the bus's ends, this replica's own readers,
//! and the canary. A failure is a banner on the page ([`crate::warnings`]), a warning in `/readyz`,
//! and a gauge. People are also told of a failure that keeps alerts from them
//! ([`crate::to_people`]). A failure of another service never takes this page out of service,
//! because people read of it there.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bus::{Bus, Topic};
use consumer_health::{Duty, Level, Moment, Own, Pace, Seen, Source, Standing, duty, watch};
use contracts::query::WarningSeverity;
use parking_lot::Mutex;
use service_kit::{Context, Warning};
use store::Store;
use tokio::time::MissedTickBehavior;

use crate::{live::Live, outage::Outage, to_people::People, warnings::warning};

/// How often the canary is checked and failures are posted.
const TICK: Duration = Duration::from_secs(1);

const CANARY: &str = "canary";
const CANARY_SAYS: &str = "Alerts may not come through: the test alert of every minute is missing.";

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
    let mut is_missing = false;
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
            let (age, since) = {
                let canary = live.canary.lock();
                (canary.age(now), canary.since())
            };
            metrics::gauge!("braid_dashboard_canary_age_seconds").set(age.as_secs_f64());
            let was_missing = std::mem::replace(&mut is_missing, age > within);
            match (was_missing, is_missing) {
                (false, true) => {
                    let says = format!("the test alert has not come through since {}", since.utc());
                    tracing::warn!(says, "alerts may not come through");
                    let to_do = "see infra/runbooks.md#canarymissing".to_owned();
                    handle.set(Some(Warning { says, to_do }));
                    let (severity, text) = (WarningSeverity::Critical, CANARY_SAYS.to_owned());
                    raise(&live, &critical, CANARY, severity, text, since);
                }
                (true, false) => {
                    tracing::info!("the test alert comes through again");
                    handle.set(None);
                    end(&live, &critical, CANARY);
                }
                _ => {}
            }
        }
        let troubles: Vec<(String, Moment)> = critical.lock().values().cloned().collect();
        if let Some(post) = outage.on_look(&troubles, now) {
            people.tell(post);
        }
    }
}
