//! The state that all viewers share: the ward view, and a broadcast of what arrives.
//!
//! The broadcast is bounded. A viewer that falls behind skips the missed updates and takes a new
//! snapshot; it never slows down the others. Every update carries the tenant that may see it. Data
//! of no known tenant is not broadcast; instead the register is read again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use clocks::CheckedClock;
use consumer_health::Moment;
use contracts::alerts::{Alert, AlertCount, AlertState};
use contracts::canary::is_canary;
use contracts::paths::PathReport;
use contracts::query::{ListPatientsResponse, WarningSeverity};
use contracts::vitals::Sample;
use parking_lot::Mutex;
use service_kit::Shutdown;
use store::{DeviceEntry, GatewayEntry, LatestVital, OpenAlerts, PatientEntry, is_namesakes};
use tokio::sync::{Notify, broadcast, watch};
use vitals::{RuleSet, RulesInForce, silence};

use crate::canary::Canaries;
use crate::unregistered::Unregistered;
use crate::ward_view::{Snapshot, WardView};
use crate::warnings::{Warnings, warning};

/// Updates that a viewer may fall behind; beyond it the viewer takes a new snapshot.
pub(crate) const UPDATES_MAX: usize = 2_048;
/// Alerts of patients and gateways that are not in the register yet. At the bound the oldest is not
/// sent to viewers; a reload finds it in the store.
const UNOWNED_MAX: usize = 256;
/// Begins the name of an unregistered gateway. No patient's name has a NUL.
const GATEWAY: &str = "gateway\0";
/// The ward view is published at most this often.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(400);
/// And at least this often, because scores change as time passes.
const SNAPSHOT_INTERVALS_MAX: u32 = 10;

#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub tenant: Arc<str>,
    pub what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Samples of one patient.
    Samples(Arc<Vec<Sample>>),
    Alert(Arc<Alert>),
    /// Path reports of one gateway.
    Paths(Arc<Vec<PathReport>>),
}

pub(crate) struct Live {
    ward: Mutex<WardView>,
    /// Gateway to tenant, by the register.
    gateways: Mutex<HashMap<String, Arc<str>>>,
    /// Alerts that are sent once the register names their owner.
    unowned: Mutex<VecDeque<Alert>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    updates: broadcast::Sender<Update>,
    /// Warnings about the system.
    pub warnings: Mutex<Warnings>,
    /// Totals of open alerts by tenant, by the store.
    counts: Mutex<HashMap<String, Vec<AlertCount>>>,
    /// Notified when an alert has changed.
    pub alerts_changed: Notify,
    /// The state of the system's own test alerts.
    pub canaries: Mutex<Canaries>,
    /// Patients and gateways that the register did not have.
    unregistered: Mutex<Unregistered>,
    /// Notified when a record names such a patient or gateway for the first time.
    pub register_outdated: Notify,
    /// Notified when records may have been missed.
    pub missed: Notify,
    /// A step of this machine's clock makes no patient silent, and no test alert late.
    clock: CheckedClock,
}

impl Live {
    pub(crate) fn new(rules: RuleSet, clock: CheckedClock) -> Live {
        let begun = Moment::by(&clock);
        Live {
            ward: Mutex::new(WardView::new(rules)),
            gateways: Mutex::new(HashMap::new()),
            unowned: Mutex::new(VecDeque::new()),
            snapshots: watch::Sender::new(Arc::new(Snapshot::default())),
            updates: broadcast::Sender::new(UPDATES_MAX),
            warnings: Mutex::default(),
            counts: Mutex::default(),
            alerts_changed: Notify::new(),
            canaries: Mutex::new(Canaries::new(begun)),
            unregistered: Mutex::default(),
            register_outdated: Notify::new(),
            missed: Notify::new(),
            clock,
        }
    }

    /// The present, by the checked clock of this service.
    pub(crate) fn now_us(&self) -> i64 {
        self.clock.now_us()
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment::by(&self.clock)
    }

    pub(crate) fn updates(&self) -> broadcast::Receiver<Update> {
        self.updates.subscribe()
    }

    pub(crate) fn snapshots(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// Must be called before each reading of the register.
    pub(crate) fn on_reading(&self) {
        self.unregistered.lock().on_reading();
    }

    /// Whether the register has all names that it was read for.
    pub(crate) fn on_register(
        &self,
        patients: &[PatientEntry],
        gateways: &[GatewayEntry],
        devices: &[DeviceEntry],
    ) -> bool {
        *self.gateways.lock() = gateways
            .iter()
            .map(|gateway| (gateway.id.clone(), Arc::from(gateway.tenant.as_str())))
            .collect();
        self.ward.lock().on_register(patients, devices);
        let unowned = std::mem::take(&mut *self.unowned.lock());
        for alert in unowned {
            match self.owner(&alert) {
                None => self.unowned.lock().push_back(alert),
                Some(owner) => self.send(owner, What::Alert(Arc::new(alert))),
            }
        }
        let (ward, gateways) = (self.ward.lock(), self.gateways.lock());
        self.unregistered
            .lock()
            .on_register(|name| match name.strip_prefix(GATEWAY) {
                Some(gateway) => gateways.contains_key(gateway),
                None => ward.tenant_of(name).is_some(),
            })
    }

    pub(crate) fn on_rules(&self, rules: RulesInForce<RuleSet>) {
        self.ward.lock().on_rules(rules);
    }

    /// Viewers missed what was missed here, so they are sent the news, too.
    pub(crate) fn on_stored(&self, latest: &[LatestVital], alerts: Vec<Alert>) {
        {
            let mut ward = self.ward.lock();
            latest.iter().for_each(|latest| ward.on_latest(latest));
        }
        alerts.into_iter().for_each(|alert| self.on_alert(alert));
    }

    pub(crate) fn on_alert_counts(&self, totals: &[OpenAlerts]) {
        let mut by_tenant: HashMap<&str, Vec<OpenAlerts>> = HashMap::new();
        for total in totals {
            by_tenant
                .entry(&total.tenant)
                .or_default()
                .push(total.clone());
        }
        // These totals stand beside no list, so nothing is left out.
        let counts = |totals: Vec<OpenAlerts>| {
            let mut counts = OpenAlerts::beside(&totals, &[]);
            counts.iter_mut().for_each(|count| count.omitted = 0);
            counts
        };
        *self.counts.lock() = by_tenant
            .into_iter()
            .map(|(tenant, totals)| (tenant.to_owned(), counts(totals)))
            .collect();
    }

    /// Ids of the open alerts.
    pub(crate) fn open_alerts(&self) -> Vec<String> {
        self.ward.lock().open_alerts()
    }

    /// Samples of one record. Its key is the patient and decides who may see them, so samples that
    /// name another patient are left out.
    pub(crate) fn on_samples(&self, patient: &str, mut samples: Vec<Sample>) {
        samples.retain(|sample| sample.patient == patient);
        if samples.is_empty() || is_canary(patient) {
            return;
        }
        let tenant: Option<Arc<str>> = {
            let mut ward = self.ward.lock();
            for sample in &samples {
                ward.on_sample(sample);
            }
            ward.tenant_of(patient).map(Arc::from)
        };
        match tenant {
            Some(tenant) => self.send(tenant, What::Samples(Arc::new(samples))),
            None => self.heard_unregistered(patient),
        }
    }

    pub(crate) fn on_alert(&self, alert: Alert) {
        if is_canary(&alert.patient) {
            return self.canaries.lock().on_alert(&alert, self.moment());
        }
        if !self.ward.lock().on_alert(&alert) {
            return;
        }
        if alert.rule == silence::PIPELINE {
            return self.on_silent_pipeline(&alert);
        }
        self.alerts_changed.notify_one();
        if let Some(owner) = self.owner(&alert) {
            return self.send(owner, What::Alert(Arc::new(alert)));
        }
        match alert.patient.as_str() {
            "" => self.heard_unregistered(&gateway_name(&alert.gateway)),
            patient => self.heard_unregistered(patient),
        }
        let mut unowned = self.unowned.lock();
        if unowned.len() >= UNOWNED_MAX {
            unowned.pop_front();
        }
        unowned.push_back(alert);
    }

    /// The alert belongs to no patient and no gateway, so to no tenant: everybody is warned.
    fn on_silent_pipeline(&self, alert: &Alert) {
        let mut warnings = self.warnings.lock();
        if alert.state() == AlertState::Resolved {
            warnings.end("", silence::PIPELINE);
        } else {
            let (severity, since_us) = (WarningSeverity::Critical, alert.since_us);
            let cause = silence::cause_of(&alert.summary).map(|it| format!(" The cause is {it}."));
            let text = format!(
                "Nobody is watched: no readings arrive from any gateway.{}",
                cause.unwrap_or_default()
            );
            warnings.raise("", warning(silence::PIPELINE, severity, since_us, text));
        }
    }

    /// An alert without a patient, such as that of a silent gateway, belongs to the tenant of its
    /// gateway, as in the store.
    fn owner(&self, alert: &Alert) -> Option<Arc<str>> {
        match alert.patient.as_str() {
            "" => self.gateways.lock().get(&alert.gateway).cloned(),
            patient => self.ward.lock().tenant_of(patient).map(Arc::from),
        }
    }

    /// Reports of one record. Its key is the gateway and decides as for samples.
    pub(crate) fn on_paths(&self, gateway: &str, mut reports: Vec<PathReport>) {
        let tenant = self.gateways.lock().get(gateway).cloned();
        let owner = tenant.as_deref().unwrap_or_default();
        reports.retain(|report| report.gateway == gateway && !is_namesakes(report, owner));
        if reports.is_empty() {
            return;
        }
        self.ward.lock().on_paths(gateway, &reports);
        match tenant {
            Some(tenant) => self.send(tenant, What::Paths(Arc::new(reports))),
            None => self.heard_unregistered(&gateway_name(gateway)),
        }
    }

    fn send(&self, tenant: Arc<str>, what: What) {
        // An error means that there are no viewers.
        let _ = self.updates.send(Update { tenant, what });
    }

    fn heard_unregistered(&self, name: &str) {
        if self.unregistered.lock().heard(name) {
            self.register_outdated.notify_one();
        }
    }

    pub(crate) fn publish(&self, now_us: i64) {
        let snapshot = self.ward.lock().snapshot(now_us);
        self.snapshots.send_replace(Arc::new(snapshot));
    }

    /// The ward view of a tenant at this moment.
    pub(crate) fn look(&self, tenant: &str) -> ListPatientsResponse {
        let snapshot = self.snapshots.borrow().clone();
        ListPatientsResponse {
            patients: snapshot.of(tenant).to_vec(),
            patients_omitted: snapshot.omitted(tenant),
            patients_unassigned: snapshot.unassigned(tenant),
            now_us: self.now_us(),
            warnings: self.warnings.lock().of(tenant),
            alert_counts: self.counts.lock().get(tenant).cloned().unwrap_or_default(),
        }
    }

    fn is_changed(&self) -> bool {
        self.ward.lock().version() != self.snapshots.borrow().version
    }
}

/// The name of an unregistered gateway.
fn gateway_name(gateway: &str) -> String {
    format!("{GATEWAY}{gateway}")
}

pub(crate) async fn publish_snapshots(live: Arc<Live>, shutdown: Shutdown) {
    let mut ticks = tokio::time::interval(SNAPSHOT_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut unchanged = 0;
    loop {
        tokio::select! {
            () = shutdown.requested() => return,
            _ = ticks.tick() => {}
        }
        unchanged += 1;
        if live.is_changed() || unchanged >= SNAPSHOT_INTERVALS_MAX {
            unchanged = 0;
            live.publish(live.now_us());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use store::Spo2Scale;

    fn sample() -> Sample {
        Sample {
            patient: "p".to_owned(),
            ..Sample::default()
        }
    }

    fn report() -> PathReport {
        PathReport {
            gateway: "g".to_owned(),
            ..PathReport::default()
        }
    }

    fn register(live: &Live) {
        let patient = PatientEntry {
            id: "p".to_owned(),
            tenant: "t".to_owned(),
            name: "P".to_owned(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        let gateway = GatewayEntry {
            id: "g".to_owned(),
            tenant: "t".to_owned(),
        };
        live.on_register(&[patient], &[gateway], &[]);
    }

    #[tokio::test]
    async fn what_no_tenant_owns_is_not_broadcast_and_asks_for_the_register() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        let mut updates = live.updates();
        live.on_samples("p", vec![sample()]);
        live.on_paths("g", vec![report()]);
        assert!(updates.try_recv().is_err());
        live.register_outdated.notified().await;
        register(&live);
        live.on_samples("p", vec![sample()]);
        live.on_paths("g", vec![report()]);
        assert!(matches!(updates.try_recv().unwrap().what, What::Samples(_)));
        assert_eq!(&*updates.try_recv().unwrap().tenant, "t");
        let of = |tenant: &str| PathReport {
            tenant: tenant.to_owned(),
            ..report()
        };
        live.on_paths("g", vec![of("a namesake's")]);
        assert!(updates.try_recv().is_err());
        live.on_paths("g", vec![of("t")]);
        assert!(updates.try_recv().is_ok());
    }

    #[tokio::test]
    async fn an_alert_of_a_gateway_reaches_those_who_watch() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        register(&live);
        let mut updates = live.updates();
        let silent = Alert {
            gateway: "g".to_owned(),
            rule: "gateway-silent".to_owned(),
            ..Alert::default()
        };
        live.on_alert(silent.clone());
        let update = updates.try_recv().unwrap();
        assert_eq!(&*update.tenant, "t");
        assert!(matches!(update.what, What::Alert(alert) if *alert == silent));
        live.on_alert(Alert {
            gateway: "of-nobody".to_owned(),
            ..silent
        });
        assert!(updates.try_recv().is_err());
    }

    #[test]
    fn a_silent_pipeline_is_a_warning_to_everybody_until_it_ends() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        register(&live);
        let alert = |state: AlertState| Alert {
            rule: silence::PIPELINE.to_owned(),
            state: state.into(),
            since_us: 7,
            ..Alert::default()
        };
        live.on_alert(alert(AlertState::Active));
        for tenant in ["t", "another"] {
            let warnings = live.look(tenant).warnings;
            assert_eq!((warnings.len(), warnings[0].since_us), (1, 7));
            assert_eq!(warnings[0].severity(), WarningSeverity::Critical);
        }
        live.on_alert(alert(AlertState::Resolved));
        assert!(live.look("t").warnings.is_empty());
    }

    #[tokio::test]
    async fn an_alert_of_somebody_just_registered_reaches_those_who_watch() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        let mut updates = live.updates();
        let alert = |patient: &str| Alert {
            id: format!("of {patient}"),
            patient: patient.to_owned(),
            revision: 1,
            ..Alert::default()
        };
        live.on_alert(alert("p"));
        live.on_alert(alert("nobody"));
        assert!(updates.try_recv().is_err());
        live.register_outdated.notified().await;
        for _ in 0..2 {
            register(&live);
        }
        let update = updates.try_recv().unwrap();
        assert_eq!(&*update.tenant, "t");
        assert!(matches!(update.what, What::Alert(told) if *told == alert("p")));
        assert!(updates.try_recv().is_err(), "once, and nobody's to nobody");
        // The register is not read endlessly for unknown patients.
        let again = live.register_outdated.notified();
        let rang = tokio::time::timeout(Duration::ZERO, again).await;
        assert!(rang.is_err());
    }

    #[tokio::test]
    async fn nobody_new_waits_for_a_gateway_that_stays_unregistered() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        let is_read_at_once = async || {
            let outdated = live.register_outdated.notified();
            tokio::time::timeout(Duration::ZERO, outdated).await.is_ok()
        };
        let stray = || {
            let report = PathReport {
                gateway: "stray".to_owned(),
                ..PathReport::default()
            };
            live.on_paths("stray", vec![report]);
        };
        let alert = |patient: &str| Alert {
            id: format!("of {patient}"),
            patient: patient.to_owned(),
            revision: 1,
            ..Alert::default()
        };
        stray();
        assert!(is_read_at_once().await, "it may have just been registered");
        live.on_reading();
        register(&live);
        stray();
        assert!(!is_read_at_once().await);
        live.on_alert(alert("new"));
        assert!(is_read_at_once().await);
        live.on_reading();
        let new = PatientEntry {
            id: "new".to_owned(),
            tenant: "t".to_owned(),
            name: String::new(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        let mut updates = live.updates();
        assert!(live.on_register(&[new], &[], &[]), "all are found");
        assert!(
            matches!(updates.try_recv().unwrap().what, What::Alert(told) if *told == alert("new"))
        );
        stray();
        assert!(!is_read_at_once().await);
    }

    #[test]
    fn what_names_another_patient_than_its_key_is_shown_to_nobody() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        register(&live);
        let mut updates = live.updates();
        let of_another = Sample {
            patient: "z".to_owned(),
            ..Sample::default()
        };
        live.on_samples("p", vec![of_another.clone()]);
        assert!(updates.try_recv().is_err());
        live.on_samples("p", vec![of_another, sample()]);
        let What::Samples(shown) = updates.try_recv().unwrap().what else {
            panic!("not samples");
        };
        assert_eq!(shown.as_slice(), [sample()]);
    }

    #[test]
    fn a_slow_viewer_skips_and_the_others_do_not() {
        let live = Live::new(RuleSet::default_set(), CheckedClock::of_machine());
        register(&live);
        let mut slow = live.updates();
        let mut quick = live.updates();
        for n in 0..UPDATES_MAX + 5 {
            live.on_samples("p", vec![sample()]);
            assert!(quick.try_recv().is_ok(), "update {n}");
        }
        assert!(matches!(
            slow.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(5))
        ));
        assert!(slow.try_recv().is_ok());
    }
}
