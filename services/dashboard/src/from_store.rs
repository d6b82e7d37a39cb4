//! Reads the store: the beginning and the repair of the ward view, and answers for people.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use contracts::alerts::{Alert, AlertCount, Document};
use contracts::query::{
    GetSeriesRequest, GetSeriesResponse, ListQuarantineResponse, QuarantineCase, Series,
};
use contracts::vitals::{Metric, Sample};
use service_kit::{Backoff, Context, Shutdown};
use store::{
    AlertsQuery, Assignment, DeviceEntry, OpenAlerts, Otherwise, QueryError, RULES, Reported,
    Scope, SeriesPoints, SeriesQuery, Store, TEAM, in_force,
};
use vitals::{RuleSet, RulesInForce, TeamGroups};

use crate::live::Live;
use crate::to_people::{SharedRecipients, TeamPeople};
use crate::ward_view::unit;

/// New patients and changed names show within this time even without a notification.
const REGISTER_INTERVAL: Duration = Duration::from_secs(10);
/// Pause before the register is read for a new name that it did not have. Each further one in a row
/// that it still does not have doubles the pause, up to [`REGISTER_INTERVAL`]. So invented names
/// cause no endless reading.
const REGISTER_INTERVAL_MIN: Duration = Duration::from_millis(250);
/// Open alerts of one tenant folded into the ward view at once; of more, the most important.
const OPEN_ALERTS_MAX: usize = 10_000;

/// Open alerts are counted at least this often, because another replica may have seen changes that
/// this one missed.
const COUNTS_INTERVAL: Duration = Duration::from_secs(10);
/// However many alerts change, they are counted at most this often.
const COUNTS_INTERVAL_MIN: Duration = Duration::from_millis(500);

const POINTS_DEFAULT: usize = 600;
/// Points of one series in an answer.
const POINTS_MAX: usize = 4_000;
/// Longest stretch of a series: 31 days.
const STRETCH_US_MAX: i64 = 31 * 86_400 * 1_000_000;

/// Time of the recent samples that a new viewer gets, so that the strip does not start empty.
const RECENT_US: i64 = 8_000_000;
/// Recent samples that a new viewer gets of one patient.
const RECENT_SAMPLES_MAX: usize = 600;

/// Keeps the ward view in step with the store until shutdown.
pub(crate) async fn keep_fresh(
    store: Arc<dyn Store>,
    live: Arc<Live>,
    recipients: SharedRecipients,
    context: Context,
) {
    // People who are signed in continue to watch by the bus.
    let check = context.health().check_at_start(
        "store",
        "see why the database does not answer; nobody can sign in meanwhile",
    );
    let shutdown = context.shutdown().clone();
    let mut backoff = Backoff::for_reconnect();
    let mut unknown = Backoff::new(REGISTER_INTERVAL_MIN, REGISTER_INTERVAL);
    let mut everything = true;
    let mut documents = Documents {
        recipients,
        ..Documents::default()
    };
    loop {
        match refresh(store.as_ref(), &live, everything, &mut documents).await {
            Ok(has_found) => {
                check.ok();
                backoff.reset();
                everything = false;
                if has_found {
                    unknown.reset();
                }
            }
            Err(error) => {
                check.failing(error.to_string());
                everything = true;
                tokio::select! {
                    () = shutdown.requested() => return,
                    () = backoff.wait() => continue,
                }
            }
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(REGISTER_INTERVAL) => unknown.reset(),
            () = live.missed.notified() => everything = true,
            // The first samples of an unknown patient were not shown to its tenant.
            () = live.register_outdated.notified() => tokio::select! {
                () = shutdown.requested() => return,
                () = live.missed.notified() => everything = true,
                () = unknown.wait() => {}
            },
        }
    }
}

/// Whether the register has all names that it was read for.
async fn refresh(
    store: &dyn Store,
    live: &Live,
    everything: bool,
    documents: &mut Documents,
) -> Result<bool, QueryError> {
    let scope = Scope::Service;
    documents.follow(store, live).await?;
    live.on_reading();
    let patients = store.patients(&scope).await?;
    let gateways = store.gateways(&scope).await?;
    let assigned = store.all_assignments_at(&scope, live.now_us()).await?;
    let devices: Vec<DeviceEntry> = assigned.into_iter().map(Assignment::entry).collect();
    let has_found = live.on_register(&patients, &gateways, &devices);
    let tenants = patients.iter().map(|patient| &patient.tenant);
    let tenants = tenants.chain(gateways.iter().map(|gateway| &gateway.tenant));
    let tenants = tenants.cloned().collect();
    documents.recipients.lock().on_tenants(tenants);
    if everything {
        let latest = store.latest_vitals(&scope, None).await?;
        let of_gateways = gateways.iter().map(|gateway| &*gateway.tenant);
        let tenants = patients.iter().map(|patient| &*patient.tenant);
        let known = live.open_alerts();
        let mut alerts = open_alerts(store, tenants.chain(of_gateways).collect()).await?;
        alerts.extend(of_the_core(store).await?);
        alerts.extend(ended(store, known, &alerts).await?);
        live.on_stored(&latest, alerts);
    }
    Ok(has_found)
}

/// The rule sets and teams that the ward view uses.
#[derive(Default)]
struct Documents {
    /// Number of the newest document when they were read.
    newest: Option<u64>,
    damaged: Reported,
    /// Told of an outage by the teams.
    recipients: SharedRecipients,
}

impl Documents {
    /// Reads them when there is a new document. Alerting also reports a document that cannot be
    /// read.
    async fn follow(&mut self, store: &dyn Store, live: &Live) -> Result<(), QueryError> {
        // Read first, so that a document put meanwhile is found the next time.
        let newest = store.newest_document().await?;
        if self.newest == Some(newest) {
            return Ok(());
        }
        let now_us = contracts::now_us();
        // Before the rules, which may name metrics of it.
        let catalogue = store::take_catalogue(store).await?;
        let teams = in_force(store, TEAM, now_us, Otherwise::Earlier, TeamGroups::read).await?;
        let people = in_force(store, TEAM, now_us, Otherwise::Earlier, TeamPeople::read).await?;
        let rules = in_force(store, RULES, now_us, Otherwise::Earlier, rule_set).await?;
        let damaged = [catalogue.damaged, teams.damaged, rules.damaged].concat();
        self.damaged.report("dashboard", damaged);
        self.recipients.lock().on_teams(people.documents);
        live.on_rules(RulesInForce::new(teams.documents, rules.documents));
        self.newest = Some(newest);
        Ok(())
    }
}

/// `None`: withdrawn by an empty body.
fn rule_set(document: &Document) -> Result<Option<RuleSet>, String> {
    if document.body.is_empty() {
        return Ok(None);
    }
    let set = RuleSet::from_json(&document.body);
    set.map(Some).map_err(|error| error.to_string())
}

/// Reads each tenant separately, so that the many alerts of one tenant hide no other's.
async fn open_alerts(store: &dyn Store, tenants: BTreeSet<&str>) -> Result<Vec<Alert>, QueryError> {
    let query = AlertsQuery {
        patient: None,
        include_resolved: false,
        limit: OPEN_ALERTS_MAX,
        ..AlertsQuery::default()
    };
    let mut alerts = Vec::new();
    // Data without a tenant is shown to nobody.
    for tenant in tenants.into_iter().filter(|tenant| !tenant.is_empty()) {
        alerts.extend(store.alerts(&Scope::tenant(tenant), &query).await?);
    }
    Ok(alerts)
}

/// The alert that nothing arrives from anybody. It belongs to no tenant, so no tenant's list has
/// it.
async fn of_the_core(store: &dyn Store) -> Result<Vec<Alert>, QueryError> {
    let query = AlertsQuery {
        patient: Some(String::new()),
        limit: OPEN_ALERTS_MAX,
        ..AlertsQuery::default()
    };
    let mut alerts = store.alerts(&Scope::Service, &query).await?;
    alerts.retain(|alert| alert.rule == vitals::silence::PIPELINE);
    Ok(alerts)
}

/// Alerts that are open here and no longer open in the store, in their stored state: they ended
/// while the bus was not followed.
async fn ended(
    store: &dyn Store,
    known: Vec<String>,
    open: &[Alert],
) -> Result<Vec<Alert>, QueryError> {
    let open: BTreeSet<&str> = open.iter().map(|alert| alert.id.as_str()).collect();
    let mut ended = Vec::new();
    for id in known.iter().filter(|id| !open.contains(id.as_str())) {
        ended.extend(store.alert(&Scope::Service, id).await?);
    }
    Ok(ended)
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SeriesError {
    /// The request is wrong.
    #[error("{0}")]
    Request(&'static str),
    #[error(transparent)]
    Store(#[from] QueryError),
}

pub(crate) async fn series(
    store: &dyn Store,
    scope: &Scope,
    request: &GetSeriesRequest,
) -> Result<GetSeriesResponse, SeriesError> {
    if request.patient.is_empty() {
        return Err(SeriesError::Request("patient: empty, for example `p1`"));
    }
    let stretch = request.to_us.checked_sub(request.from_us);
    if !stretch.is_some_and(|stretch| (1..=STRETCH_US_MAX).contains(&stretch)) {
        return Err(SeriesError::Request(
            "from_us, to_us: from must be before to, by at most 31 days",
        ));
    }
    let metrics = request.metrics.iter();
    let mut metrics: Vec<_> = metrics.map(|it| Metric::from_number(*it)).collect();
    // A metric that is named many times would be read and sent as often.
    metrics.sort_unstable_by_key(|metric| metric.number());
    metrics.dedup();
    let points = match request.points as usize {
        0 => POINTS_DEFAULT,
        points => points.clamp(2, POINTS_MAX),
    };
    let query = SeriesQuery {
        patient: request.patient.clone(),
        metrics,
        from_us: request.from_us,
        to_us: request.to_us,
        points,
    };
    let mut series = store.series(scope, &query).await?;
    let (from_us, to_us) = (request.from_us, request.to_us);
    let mut gaps = store.gaps(scope, &request.patient, from_us, to_us).await?;
    // Records of the same person, from before they were merged.
    for record in store.merged_records(scope, &request.patient).await? {
        gaps.extend(store.gaps(scope, &record.id, from_us, to_us).await?);
        let of_record = SeriesQuery {
            patient: record.id,
            ..query.clone()
        };
        join(&mut series, store.series(scope, &of_record).await?);
    }
    let series = series
        .into_iter()
        .map(|points| Series {
            metric: points.metric.number(),
            unit: unit(points.metric.number()).to_owned(),
            times_us: points.times_us,
            values: points.values,
        })
        .collect();
    Ok(GetSeriesResponse { series, gaps })
}

/// Adds points to those of the same metric, in order of time.
fn join(series: &mut Vec<SeriesPoints>, others: Vec<SeriesPoints>) {
    for other in others {
        let Some(known) = series.iter_mut().find(|it| it.metric == other.metric) else {
            series.push(other);
            continue;
        };
        let times = known.times_us.iter().chain(&other.times_us).copied();
        let values = known.values.iter().chain(&other.values).copied();
        let mut points: Vec<(i64, f64)> = times.zip(values).collect();
        points.sort_by_key(|(time_us, _)| *time_us);
        (known.times_us, known.values) = points.into_iter().unzip();
    }
}

/// The latest samples of a patient, waveforms included.
pub(crate) async fn recent_samples(
    store: &dyn Store,
    scope: &Scope,
    patient: &str,
    now_us: i64,
) -> Result<Vec<Sample>, QueryError> {
    store
        .samples(
            scope,
            patient,
            now_us - RECENT_US,
            now_us + RECENT_US,
            RECENT_SAMPLES_MAX,
        )
        .await
}

/// A list of alerts with the number of alerts, and how many the list leaves out.
pub(crate) async fn alerts(
    store: &dyn Store,
    scope: &Scope,
    query: &AlertsQuery,
) -> Result<(Vec<Alert>, Vec<AlertCount>), QueryError> {
    let alerts = store.alerts(scope, query).await?;
    let totals = store.open_alerts(scope, query.patient.as_deref()).await?;
    let counts = OpenAlerts::beside(&totals, &alerts);
    Ok((alerts, counts))
}

/// The readings of no patient of a tenant: the cases that arrived last, and how much the list
/// leaves out.
pub(crate) async fn quarantine(
    store: &dyn Store,
    scope: &Scope,
    limit: usize,
) -> Result<ListQuarantineResponse, QueryError> {
    let cases = store.quarantine_cases(scope).await?;
    let totals = store.quarantine_totals(scope).await?;
    let listed = cases.iter().take(limit);
    let cases: Vec<QuarantineCase> = listed
        .map(|case| QuarantineCase {
            device: case.device.clone(),
            gateway: case.gateway.clone(),
            kind: case.kind.clone(),
            entries: case.entries,
            first_us: case.first_us,
            last_us: case.last_us,
            arrived_us: case.arrived_us,
        })
        .collect();
    // Entries may have arrived between the two questions.
    let in_list: u64 = cases.iter().map(|case| case.entries).sum();
    Ok(ListQuarantineResponse {
        entries: totals.entries.max(in_list),
        cases_omitted: totals.cases.saturating_sub(cases.len() as u64),
        entries_omitted: totals.entries.saturating_sub(in_list),
        cases,
    })
}

/// Keeps the totals of open alerts, which every ward view carries, until shutdown.
pub(crate) async fn keep_counts(store: Arc<dyn Store>, live: Arc<Live>, shutdown: Shutdown) {
    loop {
        match store.open_alerts(&Scope::Service, None).await {
            Ok(totals) => live.on_alert_counts(&totals),
            // The check of `keep_fresh` reports it. Meanwhile the last totals hold.
            Err(error) => tracing::warn!(%error, "open alerts could not be counted"),
        }
        tokio::select! {
            () = shutdown.requested() => return,
            () = tokio::time::sleep(COUNTS_INTERVAL) => {}
            () = live.alerts_changed.notified() => {
                tokio::time::sleep(COUNTS_INTERVAL_MIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use contracts::alerts::AlertState;
    use contracts::vitals::sample::Reading;
    use store::{AlertsBatch, PatientEntry, Spo2Scale, SqliteStore, VitalsBatch};

    use super::*;
    use crate::live::What;

    fn ada() -> PatientEntry {
        PatientEntry {
            id: "ada".into(),
            tenant: "t".into(),
            name: "Ada".into(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        }
    }

    #[tokio::test]
    async fn one_tenants_many_open_alerts_hide_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        for (id, tenant) in [("ada", "small"), ("ben", "large")] {
            let patient = PatientEntry {
                id: id.into(),
                tenant: tenant.into(),
                name: id.into(),
                spo2_scale: Spo2Scale::One,
                ..PatientEntry::default()
            };
            store.put_patient(&patient).await.unwrap();
        }
        let alert = |patient: &str, number: usize| Alert {
            id: format!("{patient}-{number}"),
            patient: patient.into(),
            state: AlertState::Active.into(),
            since_us: number as i64,
            revision: 1,
            ..Alert::default()
        };
        let mut transitions = vec![alert("ada", 1)];
        transitions.extend((0..OPEN_ALERTS_MAX).map(|n| alert("ben", 2 + n)));
        let batch = AlertsBatch {
            transitions,
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        let open = open_alerts(store, BTreeSet::from(["", "small", "large"])).await;
        let open = open.unwrap();
        assert_eq!(open.len(), 1 + OPEN_ALERTS_MAX);
        assert!(open.iter().any(|alert| alert.patient == "ada"));
    }

    #[tokio::test]
    async fn a_patient_is_unknown_by_the_rules_that_hold_for_the_patient() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        let now_us = contracts::now_us();
        for id in ["ada", "ben"] {
            let patient = PatientEntry {
                id: id.into(),
                ..ada()
            };
            store.put_patient(&patient).await.unwrap();
            let cuff = DeviceEntry {
                id: format!("{id}-cuff"),
                tenant: "t".into(),
                gateway: "g".into(),
                patient: id.into(),
                registered_us: 0,
            };
            store.put_device(&cuff).await.unwrap();
        }
        let sample = |patient: &str| Sample {
            device: format!("{patient}-cuff"),
            stream: "cuff".into(),
            sequence: 1,
            patient: patient.into(),
            gateway: "g".into(),
            metric: Metric::SystolicPressure.into(),
            device_time_us: now_us - 2 * 3_600_000_000,
            ingest_time_us: now_us - 2 * 3_600_000_000,
            reading: Some(Reading::Value(120.0)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample("ada"), sample("ben")],
            ..VitalsBatch::default()
        };
        store
            .write_vitals(Arc::new(batch), Vec::new())
            .await
            .unwrap();
        let live = Live::new(RuleSet::default_set(), clocks::CheckedClock::of_machine());
        let mut documents = Documents::default();
        let mut unknown = async || {
            refresh(store, &live, true, &mut documents).await.unwrap();
            live.publish(now_us);
            let patients = live.look("t").patients.into_iter();
            let unknown = patients.filter(|it| it.unknown.is_some());
            unknown.map(|it| it.id).collect::<Vec<_>>()
        };
        assert_eq!(unknown().await, [""; 0], "four hours by the built-in rules");
        // Ben belongs to a group whose blood pressure is taken each hour.
        let mut set = RuleSet::default_set();
        set.stale_after_s.insert("systolic-pressure".into(), 3600);
        let document = |kind: &str, subject: &str, body: String| Document {
            kind: kind.into(),
            tenant: "t".into(),
            subject: subject.into(),
            version: 1,
            body,
            ..Document::default()
        };
        let team = r#"{"patients": {"ben": {"group": "hourly"}}}"#.to_owned();
        let rules = serde_json::to_string(&set).unwrap();
        for put in [
            document(TEAM, "default", team),
            document(RULES, "group:hourly", rules),
        ] {
            store.put_document(&put).await.unwrap();
        }
        assert_eq!(unknown().await, ["ben"]);
    }

    #[tokio::test]
    async fn an_alert_that_ended_unheard_does_not_stay_open() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        store.put_patient(&ada()).await.unwrap();
        let alert = |id: &str, revision, state: AlertState| Alert {
            id: id.into(),
            patient: "ada".into(),
            state: state.into(),
            // The store removes alerts that ended long ago.
            changed_us: contracts::now_us(),
            revision,
            ..Alert::default()
        };
        let raised = alert("fall", 1, AlertState::Active);
        let live = Live::new(
            vitals::RuleSet::default_set(),
            clocks::CheckedClock::of_machine(),
        );
        refresh(store, &live, true, &mut Documents::default())
            .await
            .unwrap();
        live.on_alert(raised.clone());
        let mut updates = live.updates();
        // The end was published while the bus was away.
        let batch = AlertsBatch {
            transitions: vec![
                raised,
                alert("fall", 2, AlertState::Resolved),
                alert("other", 1, AlertState::Active),
            ],
            ..AlertsBatch::default()
        };
        store.write_alerts(batch, Vec::new()).await.unwrap();
        refresh(store, &live, true, &mut Documents::default())
            .await
            .unwrap();
        assert_eq!(live.open_alerts(), ["other"]);
        let mut told = Vec::new();
        while let Ok(update) = updates.try_recv() {
            if let What::Alert(alert) = update.what {
                told.push((alert.id.clone(), alert.revision));
            }
        }
        assert_eq!(told, [("other".to_owned(), 1), ("fall".to_owned(), 2)]);
    }

    #[tokio::test]
    async fn a_chart_has_the_readings_of_merged_records() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        store.put_patient(&ada()).await.unwrap();
        let twin = PatientEntry {
            id: "twin".into(),
            ..ada()
        };
        store.put_patient(&twin).await.unwrap();
        let sample = |patient: &str, sequence: u64| Sample {
            device: patient.into(),
            stream: "hr".into(),
            sequence,
            patient: patient.into(),
            gateway: "g".into(),
            metric: Metric::HeartRate.into(),
            device_time_us: sequence.cast_signed(),
            reading: Some(Reading::Value(60.0 + sequence as f64)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample("ada", 2), sample("ada", 4), sample("twin", 3)],
            ..VitalsBatch::default()
        };
        let written = store.write_vitals(Arc::new(batch), Vec::new());
        written.await.unwrap();
        let request = GetSeriesRequest {
            patient: "ada".into(),
            to_us: 10,
            ..GetSeriesRequest::default()
        };
        let values = async || {
            let answer = series(store, &Scope::tenant("t"), &request).await.unwrap();
            answer.series[0].values.clone()
        };
        assert_eq!(values().await, [62.0, 64.0]);
        let merge = contracts::patients::Change {
            patient: "twin".into(),
            operation: contracts::patients::Operation::Merge.into(),
            into: "ada".into(),
            ..Default::default()
        };
        let by = store::Change::by_program("one person");
        let merged = store.change_patients("t", &[merge], &by).await;
        merged.unwrap();
        assert_eq!(values().await, [62.0, 63.0, 64.0]);
    }

    #[tokio::test]
    async fn a_metric_is_answered_once_however_often_it_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let store: &dyn Store = &SqliteStore::open(directory.path()).unwrap();
        store.put_patient(&ada()).await.unwrap();
        let now_us = contracts::now_us();
        let sample = |metric: Metric, sequence| Sample {
            device: "d".into(),
            stream: vitals::name(metric).into(),
            sequence,
            patient: "ada".into(),
            gateway: "g".into(),
            metric: metric.into(),
            device_time_us: now_us,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        let batch = VitalsBatch {
            samples: vec![sample(Metric::HeartRate, 1), sample(Metric::Spo2, 1)],
            ..VitalsBatch::default()
        };
        store
            .write_vitals(Arc::new(batch), Vec::new())
            .await
            .unwrap();
        let asked = [Metric::HeartRate.number(), Metric::Spo2.number()].repeat(1_000);
        let request = GetSeriesRequest {
            patient: "ada".into(),
            metrics: asked,
            from_us: now_us - 1_000_000,
            to_us: now_us + 1_000_000,
            ..GetSeriesRequest::default()
        };
        let answer = series(store, &Scope::tenant("t"), &request).await.unwrap();
        assert_eq!(answer.series.len(), 2);
        assert!(answer.series.iter().all(|one| one.values == [70.0]));
    }
}
