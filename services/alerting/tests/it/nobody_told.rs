//! Alerts that would notify nobody raise a warning until the gap is closed.

use crate::stage::{Running, S, World, pulses, until};
use bus::{Event, Topic};
use contracts::alerts::{Alert, AlertState, Document, ListUntoldRequest, Notice, NoticeResult};
use contracts::vitals::Priority;
use prost::Message;
use service_kit::tls::PeerId;
use store::{NoticesBatch, PatientEntry, Scope, Spo2Scale, Take};

fn warning(running: &Running, name: &str) -> Option<String> {
    let warnings = running.context.health().warnings();
    let found = warnings.into_iter().find(|(it, _)| *it == name);
    found.map(|(_, warning)| warning.says)
}

async fn put_team(world: &World, version: u32, body: &str) {
    put_team_of(world, "one", version, body).await;
}

async fn put_team_of(world: &World, tenant: &str, version: u32, body: &str) {
    let document = Document {
        kind: "team".into(),
        tenant: tenant.into(),
        subject: "default".into(),
        version,
        author: "Eve".into(),
        reason: "test".into(),
        at_us: contracts::now_us(),
        body: body.into(),
        ..Document::default()
    };
    world.store.put_document(&document).await.unwrap();
}

/// As the link in a letter does. A letter that was not sent may be replaced meanwhile.
async fn confirm(world: &World, recipient: &str) {
    let deadline = tokio::time::Instant::now() + crate::stage::LIMIT;
    loop {
        let proofs = world.store.proofs().await.unwrap();
        let proof = proofs.iter().find(|it| it.recipient == recipient);
        if let Some(proof) = proof {
            let confirmed = world
                .store
                .confirm_proof(&proof.token, "a test", contracts::now_us());
            if confirmed.await.unwrap().is_some() {
                return;
            }
        }
        assert!(tokio::time::Instant::now() < deadline, "{proofs:?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_a_team_is_a_warning_until_it_has_one() {
    let world = World::new();
    let entry = PatientEntry {
        id: "ada".into(),
        tenant: "one".into(),
        name: "Ada Example".into(),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    };
    world.store.put_patient(&entry).await.unwrap();
    let running = world.start_with(|config| {
        config.people.smtp = Some("smtp-plain://127.0.0.1:9".into());
        config.people.email_from = Some("braid@example.org".into());
    });
    until("a warning that there is no team", || {
        warning(&running, "nobody-told").is_some_and(|says| says.contains("one has no team"))
    })
    .await;
    assert!(warning(&running, "no-link").is_some(), "no --public-url");
    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    let untold = client.list_untold(ListUntoldRequest {}).await.unwrap();
    let untold = untold.into_inner().untold;
    assert_eq!(untold.len(), 1);
    assert!(untold[0].total && untold[0].tenant == "one");

    // A team with a person without an address.
    let team = r#"{
      "time_zone": "Europe/Berlin",
      "contacts": [{"id": "son", "name": "Ben"}],
      "patients": {"ada": {"person": ["son"], "emergency": ["son"]}},
      "escalation": {
        "low": {"steps": []},
        "medium": {"steps": [{"after_s": 0, "tell": ["emergency"]}]},
        "high": {"steps": [{"after_s": 0, "tell": ["person"]}]}
      }
    }"#;
    put_team(&world, 1, team).await;
    until("a warning that nobody has an address", || {
        warning(&running, "nobody-told").is_some_and(|says| says.contains("high priority of ada"))
    })
    .await;

    let with_address = r#""name": "Ben", "email": "ben@example.org""#;
    let team = team.replace(r#""name": "Ben""#, with_address);
    put_team(&world, 2, &team).await;
    // An address alone is no receipt.
    until("a warning that Ben has confirmed nothing", || {
        warning(&running, "nobody-told").is_some_and(|says| says.contains("reach them: son"))
    })
    .await;
    confirm(&world, "ben@example.org").await;
    put_team(&world, 3, &team).await;
    until("no warning", || warning(&running, "nobody-told").is_none()).await;
    let untold = client.list_untold(ListUntoldRequest {}).await.unwrap();
    assert_eq!(untold.into_inner().untold, []);
    running.stop().await;
}

/// No worker has the channel `email` here, so the notice stays queued.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_that_is_not_tried_is_a_warning_before_it_is_30_s_old() {
    let world = World::new();
    let running = world.start_with(|_| {});
    let due_us = contracts::now_us();
    let notice = Notice {
        id: "a/1/email".into(),
        channel: "email".into(),
        created_us: due_us,
        due_us,
        ..Notice::default()
    };
    let batch = NoticesBatch {
        notices: vec![notice.clone()],
        ..NoticesBatch::default()
    };
    world.store.write_notices(batch).await.unwrap();
    until("a warning that a notice is not tried", || {
        warning(&running, "delivering").is_some_and(|says| says.contains("not tried since"))
    })
    .await;
    let age_s = (contracts::now_us() - due_us) / 1_000_000;
    assert!(age_s < 30, "{age_s} s");
    assert!(running.context.health().is_ready());
    let taken = world
        .store
        .take_notices(Take {
            channel: "email",
            now_us: due_us,
            until_us: due_us + 1,
            limit: 1,
            least: Priority::Unspecified,
        })
        .await;
    assert_eq!(taken.unwrap().len(), 1);
    until("no warning", || warning(&running, "delivering").is_none()).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_channel_it_is_said_from_the_start() {
    let world = World::new();
    let running = world.start_with(|_| {});
    until("a warning that there is no channel", || {
        warning(&running, "nobody-told").is_some_and(|says| says.contains("no channel"))
    })
    .await;
    assert_eq!(warning(&running, "no-link"), None, "there is no message");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_that_cannot_be_stored_is_a_dead_letter_and_a_warning() {
    let world = World::new();
    let mut letters = world.bus.tail(Topic::DeadLetters).await.unwrap();
    let file = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON watches
                  BEGIN SELECT RAISE(ABORT, 'no timer fits'); END";
    file.execute_batch(refuse).unwrap();
    let running = world.start_with(|config| {
        config.people.smtp = Some("smtp-plain://127.0.0.1:9".into());
        config.people.email_from = Some("braid@example.org".into());
        config.people.email_to = vec!["ward@example.org".into()];
    });
    let start_us = contracts::now_us() - 30 * S;
    world
        .publish("ann", pulses("ann", 1, start_us, &[150.0; 15]))
        .await;
    let alert = world
        .alert_of("ann", "heart-rate-very-high", AlertState::Active)
        .await;
    until("a warning that stays", || {
        warning(&running, "undecided").is_some_and(|says| says.contains("no timer fits"))
    })
    .await;
    // The same readings raise more than one alert.
    let letter = loop {
        let event = tokio::time::timeout(crate::stage::LIMIT, letters.next(1)).await;
        let Event::Batch(batch) = event.unwrap().unwrap() else {
            continue;
        };
        let found = batch.into_iter().find(|letter| {
            Alert::decode(letter.value.clone()).is_ok_and(|buried| buried.id == alert.id)
        });
        if let Some(letter) = found {
            break letter;
        }
    };
    let reason = letter.header(bus::dead_letter::REASON).unwrap();
    assert!(String::from_utf8_lossy(reason).contains("no timer fits"));
    running.stop().await;
}

/// A patient of the tenant who wears a sensor at a gateway of their own.
async fn enter(world: &World, tenant: &str, patient: &str) {
    let entry = PatientEntry {
        id: patient.into(),
        tenant: tenant.into(),
        name: format!("{} Example", patient.to_uppercase()),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    };
    world.store.put_patient(&entry).await.unwrap();
    let entry = store::DeviceEntry {
        id: format!("{patient}-belt"),
        tenant: tenant.into(),
        gateway: format!("gw-{patient}"),
        patient: patient.into(),
        registered_us: i64::MIN,
    };
    world.store.put_device(&entry).await.unwrap();
}

/// All gateways fall silent. Each tenant's people get one letter about it, with the names of their
/// own patients, and none about each gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_pipeline_is_told_to_each_tenant_once_with_its_patients() {
    let world = World::new();
    for (tenant, patient) in [("one", "ada"), ("one", "ben"), ("two", "cal")] {
        enter(&world, tenant, patient).await;
        let team = format!(
            r#"{{
              "time_zone": "Europe/Berlin",
              "names": {{"email": "full"}},
              "contacts": [{{"id": "nurse", "name": "Nurse", "email": "nurse@{tenant}.example.org"}}],
              "rota": [{{"shifts": [{{"from": "mon 00:00", "to": "mon 00:00", "contact": "nurse"}}]}}]
            }}"#
        );
        if patient != "ben" {
            put_team_of(&world, tenant, 1, &team).await;
        }
    }
    let running = world.start_with(|config| {
        config.people.smtp = Some("smtp-plain://127.0.0.1:9".into());
        config.people.email_from = Some("braid@example.org".into());
        // The test raises the alerts itself.
        config.silent_after_s = 0;
    });
    let silent = |rule: &str, gateway: &str| Alert {
        id: format!("{rule}-{gateway}"),
        gateway: gateway.into(),
        rule: rule.into(),
        priority: Priority::Medium.into(),
        state: AlertState::Active.into(),
        summary: "Nothing is heard".into(),
        since_us: contracts::now_us(),
        changed_us: contracts::now_us(),
        recorded_us: contracts::now_us(),
        revision: 1,
        ..Alert::default()
    };
    let pipeline = silent("pipeline-silent", "");
    let gateways = ["gw-ada", "gw-ben", "gw-cal"].map(|it| silent("gateway-silent", it));
    let batch = store::AlertsBatch {
        transitions: std::iter::once(pipeline.clone())
            .chain(gateways.clone())
            .collect(),
        ..store::AlertsBatch::default()
    };
    world.store.write_alerts(batch, Vec::new()).await.unwrap();
    let letters = async || {
        let records = world.store.notices(&Scope::Service, &pipeline.id).await;
        let notices = records.unwrap().into_iter().filter_map(|it| it.notice);
        let mut letters: Vec<(String, String)> = notices
            .map(|notice| (notice.recipient, notice.alert.unwrap_or_default().summary))
            .collect();
        letters.sort();
        letters
    };
    let deadline = tokio::time::Instant::now() + crate::stage::LIMIT;
    while letters().await.len() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "nobody is told");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let letters = letters().await;
    assert_eq!(letters.len(), 2, "{letters:?}");
    for (letter, recipient, patients) in [
        (
            &letters[0],
            "nurse@one.example.org",
            "2 patients: ADA Example (ada), BEN Example (ben).",
        ),
        (
            &letters[1],
            "nurse@two.example.org",
            "1 patient: CAL Example (cal).",
        ),
    ] {
        assert_eq!(letter.0, recipient);
        assert!(
            letter.1.contains(&format!("Not monitored: {patients}")),
            "{letter:?}"
        );
    }
    // Each gateway's silence is withheld from those who got the letter.
    for gateway in &gateways {
        let withheld = world
            .outcomes(&gateway.id, 1, NoticeResult::Inhibited)
            .await;
        let outcome = withheld[0].outcome.as_ref().unwrap();
        assert!(outcome.detail.contains(&pipeline.id), "{outcome:?}");
    }
    running.stop().await;
}
