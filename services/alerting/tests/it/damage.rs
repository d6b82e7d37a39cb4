//! Rows that a disk has damaged do not keep other alerts from notifying.

use crate::peers::{MailServer, Security};
use crate::stage::{LIMIT, S, World, pulses, until};
use alerting::team::Team;
use contracts::{
    alerts::{Alert, AlertState, Document, Notice, NoticeResult},
    vitals::Priority,
};
use service_kit::tls::{Identity, PeerId};
use store::{AlertsBatch, EscalationTimer, NoticesBatch, RULES, Scope, TEAM, TimerChange};
use vitals::{Condition, RuleSet};

/// Neither an alert nor a notice: the length of its first field is missing.
const DAMAGED: &str = "x'0a'";

fn alert(id: &str) -> Alert {
    Alert {
        id: id.into(),
        patient: "ann".into(),
        rule: "fall".into(),
        priority: Priority::High.into(),
        state: AlertState::Active.into(),
        since_us: contracts::now_us(),
        revision: 1,
        ..Alert::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_keeps_nobody_else_from_being_told() {
    let world = World::new();
    let transitions = ["damaged", "sound"].map(alert).to_vec();
    let batch = AlertsBatch {
        transitions,
        ..AlertsBatch::default()
    };
    world.store.write_alerts(batch, Vec::new()).await.unwrap();
    let now_us = contracts::now_us();
    let notice = |of: &str| Notice {
        id: format!("{of}/before"),
        alert: Some(alert(of)),
        channel: "email".into(),
        recipient: "nurse@example.org".into(),
        created_us: now_us,
        due_us: now_us,
        ..Notice::default()
    };
    let timer = EscalationTimer {
        alert: "damaged".into(),
        version: 1,
        due_us: Some(now_us),
        state: b"{\"opened_us\":1,\"steps\":1,\"reminders\":0,\"told\":[]}"
            .to_vec()
            .into(),
    };
    let batch = NoticesBatch {
        notices: vec![notice("damaged"), notice("sound")],
        timers: vec![TimerChange::Set(timer)],
        ..NoticesBatch::default()
    };
    world.store.write_notices(batch).await.unwrap();
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.execute_batch(&format!(
        "UPDATE alerts SET payload = {DAMAGED} WHERE id = 'damaged';
         UPDATE outbox SET payload = {DAMAGED} WHERE id = 1;
         DROP TRIGGER notices_immutable;
         UPDATE notices SET payload = {DAMAGED} WHERE id = 'damaged/before';"
    ))
    .unwrap();

    let peer = PeerId::service("peer");
    let files = world.authority.issue(&peer, &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let server = MailServer::start(Security::Plain, tls).await;
    let running = world.start_with(|config| {
        config.people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
        config.people.email_from = Some("braid@example.org".into());
        config.people.email_to = vec!["ward@example.org".into()];
    });
    // The notice decided earlier, and the one from the outbox.
    let told = world.outcomes("sound", 2, NoticeResult::Delivered).await;
    assert_eq!(told.len(), 2);
    let question = "SELECT count(*) FROM notice_outcomes WHERE id = 'damaged/before'";
    until("an outcome of the damaged notice", || {
        rows.query_row(question, [], |row| row.get::<_, i64>(0))
            .unwrap()
            == 1
    })
    .await;
    assert_eq!(world.store.outbox(10).await.unwrap(), []);
    let open = store::AlertsQuery::default();
    let open = world.store.alerts(&Scope::Service, &open).await.unwrap();
    assert!(open.iter().any(|alert| alert.id == "sound"));
    // The timer is postponed, and alerting is ready for acknowledgements.
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let timer = world.store.timer("damaged").await.unwrap().unwrap();
        if timer.version > 1 && running.context.health().failing().is_empty() {
            assert!(timer.due_us.unwrap() > now_us + 1_800_000_000);
            break;
        }
        let failing = running.context.health().failing();
        assert!(
            tokio::time::Instant::now() < deadline,
            "{timer:?} {failing:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    running.stop().await;
}

/// The built-in rules with another heart rate limit.
fn rules_above(beats: f64) -> String {
    let mut set = RuleSet::default_set();
    for rule in &mut set.rules {
        if let Condition::Above {
            metric: contracts::vitals::Metric::HeartRate,
            limit,
            clear,
        } = &mut rule.condition
        {
            (*limit, *clear) = (beats, beats - 5.0);
        }
    }
    serde_json::to_string(&set).unwrap()
}

async fn put(world: &World, kind: &str, subject: &str, version: u32, body: &str) {
    let document = Document {
        kind: kind.into(),
        tenant: "default".into(),
        subject: subject.into(),
        version,
        author: "Eve".into(),
        reason: "test".into(),
        at_us: contracts::now_us(),
        body: body.into(),
        ..Document::default()
    };
    world.store.put_document(&document).await.unwrap();
}

/// Damages a version in the store's file.
fn damage(world: &World, kind: &str, subject: &str, version: u32) {
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    let changed = format!(
        "UPDATE documents SET payload = {DAMAGED} WHERE kind = '{kind}' AND subject = '{subject}' AND version = {version}"
    );
    rows.execute_batch("DROP TRIGGER IF EXISTS documents_immutable")
        .unwrap();
    assert_eq!(rows.execute(&changed, []).unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_cannot_be_read_takes_nobody_elses_rules() {
    let world = World::new();
    // Ann's newest rules are damaged, so the version before applies. Ben's only version is damaged,
    // so the tenant's applies. Cleo's are intact.
    put(&world, RULES, "default", 1, &rules_above(150.0)).await;
    put(&world, RULES, "patient:ann", 1, &rules_above(80.0)).await;
    put(&world, RULES, "patient:ann", 2, &rules_above(200.0)).await;
    put(&world, RULES, "patient:ben", 1, &rules_above(200.0)).await;
    put(&world, RULES, "patient:cleo", 1, &rules_above(90.0)).await;
    let team = r#"{"contacts": [], "patients": {"dora": {"group": "copd"}}}"#;
    put(&world, TEAM, "default", 1, team).await;
    put(&world, RULES, "group:copd", 1, &rules_above(70.0)).await;
    // A document of a newer version of the program.
    put(
        &world,
        TEAM,
        "default",
        2,
        r#"{"contacts": [], "pagers": []}"#,
    )
    .await;
    damage(&world, RULES, "patient:ann", 2);
    damage(&world, RULES, "patient:ben", 1);
    for patient in ["ann", "ben", "cleo", "dora"] {
        let device = store::DeviceEntry {
            id: format!("{patient}-belt"),
            tenant: "default".into(),
            gateway: "gateway-1".into(),
            patient: patient.into(),
            registered_us: 0,
        };
        world.store.put_device(&device).await.unwrap();
    }

    let running = world.start_with(|_| ());
    let from_us = contracts::now_us() - 120 * S;
    for (patient, beats) in [
        ("ann", 100.0),
        ("ben", 180.0),
        ("cleo", 100.0),
        ("dora", 75.0),
    ] {
        let readings = pulses(patient, 1, from_us, &[beats; 120]);
        world.publish(patient, readings).await;
    }
    for (patient, version) in [("ann", 1), ("ben", 1), ("cleo", 1), ("dora", 1)] {
        let alert = world
            .alert_of(patient, "heart-rate-high", AlertState::Active)
            .await;
        assert_eq!(alert.rule_version, version, "{alert:?}");
    }
    let says = || {
        let warnings = running.context.health().warnings();
        let mut ours = warnings
            .into_iter()
            .filter(|(name, _)| *name == "damaged-documents");
        ours.next().map(|(_, warning)| warning.says)
    };
    let said = says().expect("a warning");
    for part in [
        "version 2 of rules patient:ann of tenant default cannot be read",
        "version 1 holds for it",
        "version 1 of rules patient:ben",
        "version 2 of team default",
    ] {
        assert!(said.contains(part), "{said}");
    }
    // A new version ends the warning.
    put(&world, RULES, "patient:ann", 3, &rules_above(200.0)).await;
    put(&world, RULES, "patient:ben", 2, "").await;
    put(&world, TEAM, "default", 3, team).await;
    until("no warning", || says().is_none()).await;
    running.stop().await;
}

/// A damaged register entry concerns one patient only.
#[tokio::test]
async fn a_row_of_the_register_that_cannot_be_read_hides_no_other() {
    let world = World::new();
    for patient in ["ann", "ben"] {
        let device = store::DeviceEntry {
            id: format!("{patient}-belt"),
            tenant: "default".into(),
            gateway: format!("gateway-{patient}"),
            patient: patient.into(),
            registered_us: 7,
        };
        world.store.put_device(&device).await.unwrap();
    }
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.execute_batch(
        "UPDATE patients SET name = CAST(x'61ff' AS TEXT) WHERE id = 'ann';
         UPDATE assignments SET patient = CAST(x'61ff' AS TEXT) WHERE device = 'ann-belt';
         UPDATE gateways SET id = CAST(x'67ff' AS TEXT) WHERE id = 'gateway-ann';",
    )
    .unwrap();
    let store = &world.store;
    let patients = store.patients(&Scope::Service).await.unwrap();
    assert_eq!(patients.len(), 1);
    assert_eq!(patients[0].id, "ben");
    assert_eq!(store.gateways(&Scope::Service).await.unwrap().len(), 1);
    let devices = store.devices(&Scope::Service, None).await.unwrap();
    assert_eq!(devices.len(), 1);
    let of_ann = store.assignments(&Scope::Service, store::Of::Device("ann-belt"));
    assert_eq!(of_ann.await.unwrap(), []);
}

/// A store that contradicts every decision about one alert does not stop the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_whose_timer_is_contested_for_ever_holds_up_no_other() {
    let world = World::new();
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.execute_batch(
        "CREATE TRIGGER contested BEFORE INSERT ON watches WHEN NEW.alert = 'contested'
         BEGIN SELECT RAISE(IGNORE); END;",
    )
    .unwrap();
    // Timers exist for teams, and teams for registered patients.
    let ann = store::PatientEntry {
        id: "ann".into(),
        tenant: "default".into(),
        name: "Ann".into(),
        spo2_scale: store::Spo2Scale::One,
        ..store::PatientEntry::default()
    };
    world.store.put_patient(&ann).await.unwrap();
    let team = r#"{
        "contacts": [{"id": "self", "name": "Ann", "email": "ann@example.org"}],
        "patients": {"ann": {"person": ["self"]}},
        "escalation": {
            "low": {"steps": []},
            "medium": {"steps": []},
            "high": {"steps": [{"after_s": 0, "tell": ["person"]}]}
        }
    }"#;
    Team::from_json(team).unwrap();
    put(&world, TEAM, "default", 1, team).await;
    let peer = PeerId::service("peer");
    let files = world.authority.issue(&peer, &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    let server = MailServer::start(Security::Plain, tls).await;
    let running = world.start_with(|config| {
        config.people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
        config.people.email_from = Some("braid@example.org".into());
        config.people.email_to = vec!["ward@example.org".into()];
        config.people.group_s = 0;
    });
    // More than one batch, so the last alert follows the first. A backfill notifies nobody.
    let between = (0..100).map(|n| Alert {
        backfill: true,
        ..alert(&format!("between-{n}"))
    });
    let first = std::iter::once(alert("contested"));
    let transitions = first.chain(between).chain([alert("later")]).collect();
    let batch = AlertsBatch {
        transitions,
        ..AlertsBatch::default()
    };
    world.store.write_alerts(batch, Vec::new()).await.unwrap();
    world.outcomes("later", 1, NoticeResult::Delivered).await;
    assert_eq!(
        world
            .store
            .notices(&Scope::Service, "contested")
            .await
            .unwrap(),
        []
    );
    running.stop().await;
}
