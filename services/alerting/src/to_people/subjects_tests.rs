#![allow(clippy::unwrap_used)]

use contracts::alerts::{AlertState, Notice, NoticeOutcome};
use store::{
    AlertsBatch, DeviceEntry, GatewayEntry, NoticesBatch, PatientEntry, Spo2Scale, SqliteStore,
};
use vitals::silence::{DEVICE, GATEWAY};

use super::*;

struct Site {
    _directory: tempfile::TempDir,
    store: Arc<dyn Store>,
    subjects: Subjects,
}

impl Site {
    fn new() -> Site {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path()).unwrap());
        Site {
            subjects: Subjects::new(Arc::clone(&store)),
            store,
            _directory: directory,
        }
    }

    async fn gateway(&self, tenant: &str, id: &str) {
        let (id, tenant) = (id.to_owned(), tenant.to_owned());
        let entry = GatewayEntry { id, tenant };
        self.store.put_gateway(&entry).await.unwrap();
    }

    async fn wear(&self, tenant: &str, patient: &str, gateway: &str) {
        let entry = PatientEntry {
            id: patient.into(),
            tenant: tenant.into(),
            name: format!("{patient} Example"),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        self.store.put_patient(&entry).await.unwrap();
        let entry = DeviceEntry {
            id: format!("{patient}-belt"),
            tenant: tenant.into(),
            gateway: gateway.into(),
            patient: patient.into(),
            registered_us: i64::MIN,
        };
        self.store.put_device(&entry).await.unwrap();
    }

    async fn raise(&self, alerts: &[Alert]) {
        let batch = AlertsBatch {
            transitions: alerts.to_vec(),
            ..AlertsBatch::default()
        };
        self.store.write_alerts(batch, Vec::new()).await.unwrap();
    }

    async fn tell(&self, alert: &Alert, tenant: &str, result: Option<NoticeResult>) {
        let id = format!("{}/1@{tenant}/email/{result:?}", alert.id);
        let notice = Notice {
            id: id.clone(),
            alert: Some(alert.clone()),
            tenant: tenant.into(),
            channel: "email".into(),
            ..Notice::default()
        };
        let outcome = result.map(|result| NoticeOutcome {
            notice: id,
            result: result.into(),
            ..NoticeOutcome::default()
        });
        let batch = NoticesBatch {
            notices: vec![notice],
            outcomes: outcome.into_iter().collect(),
            timers: Vec::new(),
        };
        self.store.write_notices(batch).await.unwrap();
    }

    async fn by(&self, alert: &Alert, tenant: &str, now_us: i64) -> Option<String> {
        // Each question is a new process, so nothing is remembered.
        let subjects = Subjects::new(Arc::clone(&self.store));
        subjects.inhibiting(alert, tenant, now_us).await.unwrap()
    }
}

fn silent(rule: &str, gateway: &str, since_us: i64) -> Alert {
    Alert {
        id: format!("{rule}-{gateway}-{since_us}"),
        gateway: gateway.into(),
        rule: rule.into(),
        state: AlertState::Active.into(),
        since_us,
        recorded_us: since_us,
        revision: 1,
        ..Alert::default()
    }
}

#[tokio::test]
async fn one_tenants_many_silent_gateways_hide_no_others() {
    let site = Site::new();
    site.gateway("small", "g-small").await;
    site.gateway("large", "g-large").await;
    let own = silent(GATEWAY, "g-small", 1);
    let mut alerts = vec![own.clone()];
    alerts.extend((2..OF_TENANT_MAX as i64 + 3).map(|n| silent(GATEWAY, "g-large", n)));
    site.raise(&alerts).await;
    let behind_it = Alert {
        device: "belt".into(),
        ..silent(DEVICE, "g-small", 1)
    };
    assert_eq!(site.by(&behind_it, "small", 1).await, Some(own.id));
}

#[tokio::test]
async fn a_wider_alert_explains_only_where_its_people_are_told() {
    let site = Site::new();
    site.gateway("one", "g-1").await;
    let pipeline = silent(PIPELINE, "", 5);
    let gateway = silent(GATEWAY, "g-1", 5);
    site.raise(&[gateway.clone(), pipeline.clone()]).await;
    let soon_us = 5 + TOLD_WITHIN_US - 1;
    let late_us = 5 + TOLD_WITHIN_US;
    // Its notices are expected for a while.
    assert!(site.by(&gateway, "one", soon_us).await.is_some());
    assert_eq!(site.by(&gateway, "one", late_us).await, None);
    // Those of another tenant, and those that nobody got, explain nothing here.
    site.tell(&pipeline, "two", Some(NoticeResult::Delivered))
        .await;
    assert_eq!(site.by(&gateway, "one", late_us).await, None);
    site.tell(&pipeline, "one", Some(NoticeResult::Silenced))
        .await;
    assert_eq!(site.by(&gateway, "one", late_us).await, None);
    site.tell(&pipeline, "one", Some(NoticeResult::GivenUp))
        .await;
    assert_eq!(site.by(&gateway, "one", late_us).await, None);
    site.tell(&pipeline, "one", None).await;
    assert_eq!(
        site.by(&gateway, "one", late_us).await,
        Some(pipeline.id.clone())
    );
    // The device is behind a gateway that is explained in its turn.
    let device = Alert {
        device: "belt".into(),
        ..silent(DEVICE, "g-1", 5)
    };
    assert_eq!(site.by(&device, "one", late_us).await, None);
    site.tell(&gateway, "one", Some(NoticeResult::Inhibited))
        .await;
    assert_eq!(site.by(&device, "one", late_us).await, Some(gateway.id));
}

#[tokio::test]
async fn a_silent_pipeline_concerns_each_tenant_whose_patients_wear_sensors() {
    let site = Site::new();
    for (tenant, patient, gateway) in [
        ("one", "ada", "g-1"),
        ("one", "ben", "g-1"),
        ("two", "cal", "g-2"),
    ] {
        site.wear(tenant, patient, gateway).await;
    }
    site.gateway("empty", "g-3").await;
    let pipeline = silent(PIPELINE, "", 5);
    let found = site.subjects.of(&pipeline, None, 9).await.unwrap();
    let tenants: Vec<&str> = found.iter().map(|it| it.tenant.as_str()).collect();
    assert_eq!(tenants, ["one", "two"]);
    let mut expected = Unmonitored::new(&BTreeSet::from(["ada".to_owned(), "ben".to_owned()]));
    for (id, name) in expected.named() {
        *name = format!("{id} Example");
    }
    assert_eq!(found[0].unmonitored, expected);
    site.raise(std::slice::from_ref(&pipeline)).await;
    // People who were notified of it hear of its end, whatever they wear by then.
    site.tell(&pipeline, "gone", None).await;
    let over = Alert {
        revision: 2,
        ..pipeline.clone()
    };
    let found = site.subjects.of(&over, None, 9).await.unwrap();
    let tenants: Vec<&str> = found.iter().map(|it| it.tenant.as_str()).collect();
    assert_eq!(tenants, ["one", "two", "gone"]);
    let only = site.subjects.of(&over, Some("two"), 9).await.unwrap();
    assert_eq!((only.len(), only[0].tenant.as_str()), (1, "two"));
}

#[tokio::test]
async fn a_patient_who_is_not_registered_is_in_the_care_of_the_gateways_tenant() {
    let site = Site::new();
    site.wear("one", "ada", "g-1").await;
    let of = async |patient: &str, gateway: &str| {
        let alert = Alert {
            patient: patient.into(),
            gateway: gateway.into(),
            ..Alert::default()
        };
        let found = site.subjects.of(&alert, None, 9).await.unwrap();
        assert_eq!(found.len(), 1);
        found[0].tenant.clone()
    };
    assert_eq!(of("ada", "unknown").await, "one");
    assert_eq!(of("stranger", "g-1").await, "one");
    assert_eq!(of("stranger", "unknown").await, "");
    assert_eq!(of("", "g-1").await, "one");
    assert_eq!(of("", "unknown").await, "");
}
