//! Notices by every channel: recipients, escalation, silence, and stored outcomes.

use std::sync::Arc;

use crate::peers::{Broker, MailServer, Security};
use crate::stage::{S, World, pulses, until};
use contracts::alerts::{
    AcknowledgeRequest, Alert, AlertState, Document, ListNoticesRequest, NoticeReason,
    NoticeResult, PutDocumentRequest,
};
use service_kit::{
    Secret,
    tls::{Identity, PeerId},
};
use store::{PatientEntry, Spo2Scale};
use tonic::Code;

const HIGH: &str = "heart-rate-very-high";

fn server_tls(world: &World) -> Arc<rustls::ServerConfig> {
    let files = world
        .authority
        .issue(&PeerId::service("peer"), &[])
        .unwrap();
    Identity::load(&files).unwrap().server_config(false, &[])
}

/// Raises an alert of high priority.
async fn raise(world: &World, patient: &str) -> Alert {
    world
        .publish(
            patient,
            pulses(patient, 1, contracts::now_us() - 30 * S, &[150.0; 15]),
        )
        .await;
    world.alert_of(patient, HIGH, AlertState::Active).await
}

async fn register(world: &World, tenant: &str, patient: &str) {
    let entry = PatientEntry {
        id: patient.into(),
        tenant: tenant.into(),
        name: patient.into(),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    };
    world.store.put_patient(&entry).await.unwrap();
}

async fn put(world: &World, kind: &str, tenant: &str, version: u32, until_us: i64, body: &str) {
    let document = Document {
        kind: kind.into(),
        tenant: tenant.into(),
        subject: "default".into(),
        version,
        author: "Eve".into(),
        reason: "test".into(),
        at_us: contracts::now_us(),
        until_us,
        body: body.into(),
    };
    alerting::documents::check(&document).unwrap();
    world.store.put_document(&document).await.unwrap();
}

/// The person at once, on-call a second later. The shift never ends.
const TEAM: &str = r#"{
  "contacts": [
    {"id": "ann-self", "name": "Ann", "email": "ann@example.org"},
    {"id": "nurse", "name": "Nurse", "email": "nurse@example.org"}
  ],
  "rota": [{"shifts": [{"from": "mon 00:00", "to": "mon 00:00", "contact": "nurse"}]}],
  "patients": {"ann": {"person": ["ann-self"]}, "ben": {"person": ["ann-self"]}},
  "escalation": {
    "low": {"steps": []},
    "medium": {"steps": []},
    "high": {
      "steps": [{"after_s": 0, "tell": ["person"]}, {"after_s": 3, "tell": ["on-call"]}],
      "remind_every_s": 10,
      "reminders_max": 3
    }
  }
}"#;

fn with_mail(config: &mut alerting::Config, server: &MailServer) {
    config.people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
    config.people.email_from = Some("braid@example.org".into());
    config.people.email_to = vec!["ward@example.org".into()];
    config.people.group_s = 0;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_goes_out_by_mail_over_starttls_and_is_sent_again_when_refused_for_now() {
    let world = World::new();
    let server = MailServer::start(Security::StartTls, server_tls(&world)).await;
    *server.refusals.lock() = 2;
    let running = world.start_with(|config| {
        let people = &mut config.people;
        people.smtp = Some(format!("smtp://localhost:{}", server.address.port()));
        people.smtp_ca = Some(world.files.ca.clone());
        people.smtp_user = Some("braid".into());
        people.smtp_password = Some(Secret::new("letters"));
        people.email_from = Some("Braid <braid@example.org>".into());
        people.email_to = vec!["ward@example.org".into()];
    });
    let alert = raise(&world, "ann").await;
    let of_it = || {
        let letters = server.letters.lock();
        let of_it: Vec<_> = letters
            .iter()
            .filter(|letter| letter.text.contains(&alert.id))
            .cloned()
            .collect();
        of_it
    };
    until("a letter", || !of_it().is_empty()).await;
    let letter = of_it().remove(0);
    assert!(letter.tls, "nothing is said before TLS");
    // NUL, name, NUL, password, in base64.
    assert_eq!(letter.login, "AUTH PLAIN AGJyYWlkAGxldHRlcnM=");
    assert!(letter.to.contains("ward@example.org"), "{}", letter.to);
    for part in [
        "From: Braid <braid@example.org>",
        "Message-ID: <",
        "ann",
        "priority high",
        HIGH,
    ] {
        assert!(letter.text.contains(part), "{part} in {}", letter.text);
    }
    // The outcome is stored with the number of attempts.
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_server_without_tls_gets_nothing() {
    let world = World::new();
    // The server answers unencrypted and offers no STARTTLS.
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let running = world.start_with(|config| {
        let people = &mut config.people;
        people.smtp = Some(format!("smtp://localhost:{}", server.address.port()));
        people.smtp_ca = Some(world.files.ca.clone());
        people.email_from = Some("braid@example.org".into());
        people.email_to = vec!["ward@example.org".into()];
        people.give_up_s = 1;
    });
    let alert = raise(&world, "ann").await;
    until("the channel fails", || server.calls() > 1).await;
    assert!(server.letters.lock().is_empty());
    running.stop().await;

    // Unencrypted delivery to this machine must be requested by name.
    let running = world.start_with(|config| {
        let people = &mut config.people;
        people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
        people.email_from = Some("braid@example.org".into());
        people.email_to = vec!["ward@example.org".into()];
    });
    // Notices that waited go out by then.
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let alert = raise(&world, "ben").await;
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_goes_out_by_mqtt_over_tls_and_is_published_again_when_unacknowledged() {
    let world = World::new();
    register(&world, "one", "ann").await;
    let broker = Broker::start(Some(server_tls(&world))).await;
    *broker.losses.lock() = 3;
    let running = world.start_with(|config| {
        let people = &mut config.people;
        people.mqtt = Some(format!("mqtts://localhost:{}", broker.address.port()));
        people.mqtt_ca = Some(world.files.ca.clone());
        people.mqtt_user = Some("braid".into());
        people.mqtt_password = Some(Secret::new("topics"));
    });
    let alert = raise(&world, "ann").await;
    let of_it = || {
        let all = broker.publications.lock();
        let of_it: Vec<_> = all
            .iter()
            .filter(|it| it.payload["id"] == alert.id.as_str())
            .cloned()
            .collect();
        of_it
    };
    until("a publication", || !of_it().is_empty()).await;
    let publication = of_it().remove(0);
    assert_eq!(
        (publication.topic.as_str(), publication.qos),
        ("braid/alerts/one/ann/high", 1)
    );
    assert_eq!(publication.payload["key"], format!("{}/1", alert.id));
    assert_eq!(publication.payload["state"], "active");
    assert!(
        broker
            .logins
            .lock()
            .contains(&("braid".into(), "topics".into()))
    );
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    running.stop().await;
}

/// The channel fails for longer than `--give-up-s`. The notice waits for its return, as long as it
/// takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_no_receiver_takes_waits_and_goes_out_when_the_channel_returns() {
    let world = World::new();
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let with_mqtt = |config: &mut alerting::Config, port: u16| {
        config.people.mqtt = Some(format!("mqtt://127.0.0.1:{port}"));
        config.people.give_up_s = 1;
    };
    let running = world.start_with(|config| with_mqtt(config, port));
    let alert = raise(&world, "ann").await;
    let begun = tokio::time::Instant::now();
    let tried = || async {
        let now_us = contracts::now_us();
        world
            .store
            .untried_notices(now_us, now_us, 1)
            .await
            .unwrap()
            == 0
    };
    until("longer than the limit", || begun.elapsed().as_secs() >= 2).await;
    assert!(tried().await);
    let waiting = world.store.notices(&store::Scope::Service, &alert.id).await;
    let waiting = waiting.unwrap();
    assert!(
        !waiting.is_empty() && waiting.iter().all(|it| it.outcome.is_none()),
        "{waiting:?}"
    );
    running.stop().await;
    let broker = Broker::start(None).await;
    let running = world.start_with(|config| with_mqtt(config, broker.address.port()));
    let records = world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    assert!(
        records[0].outcome.as_ref().unwrap().attempts > 1,
        "{records:?}"
    );
    running.stop().await;
}

#[test]
fn health_data_leaves_the_machine_under_tls_only() {
    let world = World::new();
    let refused = |change: fn(&mut alerting::Config)| {
        use service_kit::ServiceConfig;
        let mut config = World::config(&world.files);
        change(&mut config);
        config.validate().unwrap_err().field
    };
    assert_eq!(
        refused(|c| c.people.mqtt = Some("mqtt://broker.example.org".into())),
        "mqtt"
    );
    assert_eq!(
        refused(|c| c.people.mqtt = Some("mqtts://broker.example.org".into())),
        "mqtt_ca"
    );
    assert_eq!(
        refused(|c| c.people.smtp = Some("smtp-plain://mail.example.org".into())),
        "smtp"
    );
    assert_eq!(
        refused(|c| c.people.smtp = Some("http://mail.example.org".into())),
        "smtp"
    );
    assert_eq!(
        refused(|c| c.people.smtp = Some("smtps://mail.example.org".into())),
        "email_from"
    );
    assert_eq!(refused(|c| c.people.group_s = 301), "group_s");
}

/// The mail server refuses the person's address. On-call is told at once, not after ten minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_final_refusal_is_followed_by_the_next_step_at_once() {
    let world = World::new();
    register(&world, "one", "ann").await;
    let slow = TEAM.replace(r#""after_s": 3"#, r#""after_s": 600"#);
    assert_ne!(slow, TEAM);
    put(&world, "team", "one", 1, 0, &slow).await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    server.unknown.lock().push("ann@example.org".into());
    let running = world.start_with(|config| with_mail(config, &server));
    let alert = raise(&world, "ann").await;
    let refused = world.outcomes(&alert.id, 1, NoticeResult::GivenUp).await;
    let detail = &refused[0].outcome.as_ref().unwrap().detail;
    assert!(detail.contains("550"), "{detail}");
    let told = world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let notice = told[0].notice.as_ref().unwrap();
    assert_eq!(
        (notice.recipient.as_str(), notice.reason(), notice.step),
        ("nurse@example.org", NoticeReason::Escalation, 2)
    );
    running.stop().await;
}

/// The member that notified the person ends, and another takes over the timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alert_escalates_over_a_restart_until_somebody_acknowledges() {
    let world = World::new();
    for (tenant, patient) in [("one", "ann"), ("two", "ben")] {
        register(&world, tenant, patient).await;
    }
    put(&world, "team", "one", 1, 0, TEAM).await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let alert = raise(&world, "ann").await;
    let first = world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let told = |record: &contracts::alerts::NoticeRecord| {
        let notice = record.notice.clone().unwrap();
        (notice.recipient.clone(), notice.reason(), notice.step)
    };
    assert_eq!(
        told(&first[0]),
        ("ann@example.org".into(), NoticeReason::News, 0)
    );
    running.stop().await;

    let running = world.start_with(|config| with_mail(config, &server));
    let both = world.outcomes(&alert.id, 2, NoticeResult::Delivered).await;
    assert_eq!(
        told(&both[1]),
        ("nurse@example.org".into(), NoticeReason::Escalation, 2)
    );
    let waited_us =
        both[1].notice.as_ref().unwrap().created_us - both[0].notice.as_ref().unwrap().created_us;
    assert!(waited_us >= 3 * S, "{waited_us}");
    // The reminder goes to both.
    let all = world.outcomes(&alert.id, 4, NoticeResult::Delivered).await;
    assert!(
        all[2..]
            .iter()
            .all(|record| told(record).1 == NoticeReason::Reminder)
    );

    // A team belongs to its tenant. A patient of another tenant notifies the ward alone.
    let other = raise(&world, "ben").await;
    let records = world.outcomes(&other.id, 1, NoticeResult::Delivered).await;
    assert_eq!(told(&records[0]).0, "ward@example.org");

    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    let request = AcknowledgeRequest {
        id: alert.id.clone(),
        by: "Nurse".into(),
        note: "on my way".into(),
    };
    client.acknowledge(request).await.unwrap();
    let of_it = || {
        let letters = server.letters.lock();
        let seen = letters.iter().filter(|letter| {
            letter.text.contains(&alert.id) && letter.text.contains("acknowledged by Nurse")
        });
        seen.count()
    };
    until("both hear of it", || of_it() == 2).await;
    let timer = world.store.timer(&alert.id).await.unwrap().unwrap();
    assert_eq!(timer.due_us, None, "no timer is left");
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_written_to_about_somebody_who_has_died() {
    let world = World::new();
    for patient in ["ann", "ben"] {
        register(&world, "one", patient).await;
    }
    put(&world, "team", "one", 1, 0, TEAM).await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let alert = raise(&world, "ann").await;
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let died = contracts::patients::Change {
        patient: "ann".into(),
        operation: contracts::patients::Operation::Die.into(),
        ..Default::default()
    };
    let by = store::Change {
        author: "Eve".into(),
        reason: "certified".into(),
        at_us: contracts::now_us(),
    };
    let changed = world.store.change_patients("one", &[died], &by).await;
    changed.unwrap();
    let died_us = contracts::now_us();
    // A reading that was under way, and a step for somebody else that is due later than hers.
    let late = pulses("ann", 100, contracts::now_us() - 30 * S, &[150.0; 15]);
    world.publish("ann", late).await;
    let other = raise(&world, "ben").await;
    world.outcomes(&other.id, 2, NoticeResult::Delivered).await;
    let query = store::AlertsQuery {
        patient: Some("ann".into()),
        include_resolved: true,
        ..Default::default()
    };
    let all = store::Scope::Service;
    for alert in world.store.alerts(&all, &query).await.unwrap() {
        let notices = world.store.notices(&all, &alert.id).await.unwrap();
        let mut notices = notices.into_iter().filter_map(|it| it.notice);
        let later = notices.find(|it| it.created_us > died_us);
        assert_eq!(later, None, "after the death");
    }
    let ended = world.store.alert(&store::Scope::Service, &alert.id).await;
    assert_eq!(ended.unwrap().unwrap().state(), AlertState::Resolved);
    assert_eq!(world.store.timer(&alert.id).await.unwrap(), None);
    running.stop().await;
}

/// The alert of the earliest timer is unreadable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timer_that_fails_holds_up_no_other() {
    let world = World::new();
    for patient in ["ann", "ben"] {
        register(&world, "one", patient).await;
    }
    put(&world, "team", "one", 1, 0, TEAM).await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let damaged = raise(&world, "ann").await;
    world
        .outcomes(&damaged.id, 1, NoticeResult::Delivered)
        .await;
    let other = raise(&world, "ben").await;
    let file = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    let spoil = "UPDATE alerts SET payload = x'ff' WHERE id = ?1";
    assert_eq!(file.execute(spoil, [&damaged.id]).unwrap(), 1);
    let records = world.outcomes(&other.id, 2, NoticeResult::Delivered).await;
    let escalated = records[1].notice.as_ref().unwrap();
    assert_eq!(escalated.reason(), NoticeReason::Escalation);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_keeps_people_from_being_told_until_it_ends() {
    let world = World::new();
    register(&world, "one", "ann").await;
    register(&world, "one", "ben").await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let hour_us = contracts::now_us() + 3600 * S;
    put(
        &world,
        "silence",
        "one",
        1,
        hour_us,
        r#"{"patient": "ann"}"#,
    )
    .await;
    // A silence of another tenant covers nothing here.
    put(
        &world,
        "silence",
        "two",
        1,
        hour_us,
        r#"{"patient": "ben"}"#,
    )
    .await;
    let running = world.start_with(|config| with_mail(config, &server));
    let silent = raise(&world, "ann").await;
    let told = raise(&world, "ben").await;
    world.outcomes(&told.id, 1, NoticeResult::Delivered).await;
    let records = world.outcomes(&silent.id, 1, NoticeResult::Silenced).await;
    assert_eq!(
        records[0].outcome.as_ref().unwrap().detail,
        "default by Eve"
    );
    // The alert was not acknowledged, so its notice follows when the silence ends. Here a person
    // ends it early.
    let ended_us = contracts::now_us();
    put(
        &world,
        "silence",
        "one",
        2,
        ended_us,
        r#"{"patient": "ann"}"#,
    )
    .await;
    let late = world.outcomes(&silent.id, 1, NoticeResult::Delivered).await;
    assert!(late[0].notice.as_ref().unwrap().created_us >= ended_us);
    running.stop().await;
}

fn put_of(document: Option<Document>) -> PutDocumentRequest {
    PutDocumentRequest {
        document,
        dry_run: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silence_of_a_rule_that_nothing_is_of_is_refused() {
    let world = World::new();
    let running = world.start_with(|_| {});
    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    let mut silence = async |subject: &str, rule: &str, version, length_us| {
        let document = Document {
            kind: "silence".into(),
            tenant: "one".into(),
            subject: subject.into(),
            version,
            author: "Eve".into(),
            reason: "test".into(),
            until_us: contracts::now_us() + length_us,
            body: format!(r#"{{"rule": "{rule}"}}"#),
            ..Document::default()
        };
        let document = Some(document);
        let put = client.put_document(put_of(document)).await;
        put.map(drop)
    };
    let refused = silence("s-1", "batery-low", 1, 3600 * S).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for part in ["batery-low", "battery-low", "gateway-silent", HIGH] {
        assert!(refused.message().contains(part), "{refused}");
    }
    silence("s-1", "battery-low", 1, 3600 * S).await.unwrap();
    silence("s-2", "gateway-silent", 1, 3600 * S).await.unwrap();
    assert!(
        refused.message().contains("near are battery-low"),
        "{refused}"
    );
    // A silence stored before the check existed can be ended.
    silence("s-1", "batery-low", 2, -S).await.unwrap();
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patients_own_rules_hold_without_a_restart() {
    let world = World::new();
    register(&world, "one", "ann").await;
    register(&world, "one", "ben").await;
    let running = world.start_with(|_| {});
    // The built-in limit is 131, so 125 raises no alert.
    let start = contracts::now_us() - 120 * S;
    for patient in ["ann", "ben"] {
        world
            .publish(patient, pulses(patient, 1, start, &[125.0; 15]))
            .await;
    }
    let mut rules = vitals::RuleSet::default_set();
    for rule in &mut rules.rules {
        if let vitals::Condition::Above { limit, clear, .. } = &mut rule.condition
            && rule.id == HIGH
        {
            (*limit, *clear) = (120.0, 110.0);
        }
    }
    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    let document = Document {
        kind: "rules".into(),
        tenant: "one".into(),
        subject: "patient:ann".into(),
        version: 1,
        author: "Dr. Eve".into(),
        reason: "beta blocker".into(),
        body: serde_json::to_string(&rules).unwrap(),
        ..Document::default()
    };
    let request = put_of(Some(document.clone()));
    let checked = PutDocumentRequest {
        dry_run: true,
        ..request.clone()
    };
    let lost = client.put_document(checked).await.unwrap().into_inner();
    assert_eq!(
        lost.rules_lost,
        Vec::<String>::new(),
        "version 1 is still free"
    );
    let put = client
        .put_document(request.clone())
        .await
        .unwrap()
        .into_inner()
        .document
        .unwrap();
    assert!(put.at_us > 0, "the time is the server's");
    let again = client.put_document(request.clone()).await.unwrap_err();
    assert_eq!(again.code(), Code::Aborted, "not the next version");
    let of_nobody = put_of(Some(Document {
        subject: "patient:anne".into(),
        ..document.clone()
    }));
    let of_nobody = client.put_document(of_nobody).await.unwrap_err();
    assert_eq!(of_nobody.code(), Code::InvalidArgument);
    assert!(of_nobody.message().contains("near are ann"), "{of_nobody}");
    let unsigned = put_of(Some(Document {
        author: String::new(),
        ..document
    }));
    let unsigned = client.put_document(unsigned).await.unwrap_err();
    assert_eq!(unsigned.code(), Code::InvalidArgument);
    let mut ingest = world.client(&running, &PeerId::service("ingest")).await;
    let denied = ingest.put_document(request).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);

    // The member reads changed rules within about a second. Each stretch is long enough for the
    // rule's delay.
    let mut sequence = 16;
    let deadline = tokio::time::Instant::now() + crate::stage::LIMIT;
    let raised = loop {
        for patient in ["ann", "ben"] {
            let from_us = start + sequence as i64 * S;
            world
                .publish(patient, pulses(patient, sequence, from_us, &[125.0; 15]))
                .await;
        }
        sequence += 15;
        let alerts = world.alerts().await;
        if let Some(alert) = alerts.into_iter().find(|alert| alert.rule == HIGH) {
            break alert;
        }
        assert!(tokio::time::Instant::now() < deadline, "nothing is raised");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    };
    assert_eq!((raised.patient.as_str(), raised.rule_version), ("ann", 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_became_of_an_alert_is_told_to_its_tenant() {
    let world = World::new();
    register(&world, "one", "ann").await;
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let alert = raise(&world, "ann").await;
    world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let mut client = world.client(&running, &PeerId::service("dashboard")).await;
    let mut count = async |tenant: &str| {
        let request = ListNoticesRequest {
            alert: alert.id.clone(),
            tenant: tenant.into(),
        };
        let listed = client.list_notices(request).await;
        listed
            .map(|notices| notices.into_inner().notices.len())
            .map_err(|status| status.code())
    };
    assert_eq!(count("one").await, Ok(1));
    assert_eq!(count("two").await, Ok(0));
    assert_eq!(count("").await, Err(Code::InvalidArgument));
    running.stop().await;
}

/// A gateway and all its devices fall silent: one letter about the gateway, none about the devices.
/// Alerts from a patient's readings are never inhibited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_gateway_is_told_once_and_inhibits_its_devices() {
    let world = World::new();
    register(&world, "one", "ann").await;
    register(&world, "one", "ben").await;
    for (patient, gateway) in [("ann", "gateway-1"), ("ben", "gateway-2")] {
        let entry = store::DeviceEntry {
            id: format!("{patient}-belt"),
            tenant: "one".into(),
            gateway: gateway.into(),
            patient: patient.into(),
            registered_us: i64::MIN,
        };
        world.store.put_device(&entry).await.unwrap();
    }
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    // Rows as ingest stores them: a patient heard in the past, and one behind another gateway who
    // is still heard.
    let heard = async |patient: &str, gateway: &str, sequence: u64, ago_s: i64| {
        let mut record = pulses(patient, sequence, contracts::now_us() - ago_s * S, &[70.0]);
        for sample in &mut record.samples {
            sample.gateway = gateway.into();
            sample.ingest_time_us = contracts::now_us() - ago_s * S;
        }
        let batch = Arc::new(store::VitalsBatch {
            samples: record.samples,
            ..store::VitalsBatch::default()
        });
        world.store.write_vitals(batch, Vec::new()).await.unwrap();
    };
    heard("ann", "gateway-1", 1, 3600).await;
    heard("ben", "gateway-2", 1, 0).await;
    let running = world.start_with(|config| {
        with_mail(config, &server);
        config.silent_after_s = 1800;
    });
    let gateway = world.alert("gateway-silent", AlertState::Active).await;
    let device = world.alert("device-silent", AlertState::Active).await;
    assert_eq!(
        (gateway.gateway.as_str(), gateway.patient.as_str()),
        ("gateway-1", "")
    );
    assert_eq!(
        (device.patient.as_str(), device.device.as_str()),
        ("ann", "ann-belt")
    );
    world
        .outcomes(&gateway.id, 1, NoticeResult::Delivered)
        .await;
    let inhibited = world.outcomes(&device.id, 1, NoticeResult::Inhibited).await;
    let by = &inhibited[0].outcome.as_ref().unwrap().detail;
    assert!(by.contains(&gateway.id), "{by}");
    // An alert from readings of the same gateway does notify.
    let ill = raise(&world, "ann").await;
    assert_eq!(ill.gateway, "gateway-1");
    world.outcomes(&ill.id, 1, NoticeResult::Delivered).await;
    let of_device = server
        .letters
        .lock()
        .iter()
        .filter(|letter| letter.text.contains(&device.id))
        .count();
    assert_eq!(of_device, 0);

    // When heard again, both alerts end by themselves.
    heard("ann", "gateway-1", 2, 0).await;
    world.alert("gateway-silent", AlertState::Resolved).await;
    world.alert("device-silent", AlertState::Resolved).await;
    running.stop().await;
}

/// The store goes back to a copy from before the alert. The engines raise it again from the bus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_store_notifies_nobody_a_second_time() {
    use bus::Topic;
    use store::{SqliteStore, sqlite::backup};
    let mut world = World::new();
    let server = MailServer::start(Security::Plain, server_tls(&world)).await;
    let copies = tempfile::tempdir().unwrap();
    let (data, copy) = (world.dir.path().to_owned(), copies.path().join("copy"));
    for patient in ["ann", "ben"] {
        register(&world, "home", patient).await;
    }
    backup::make(&data, &copy, contracts::now_us()).unwrap();
    let letters = |alert: &Alert| {
        let letters = server.letters.lock();
        let of_it = letters.iter().filter(|it| it.text.contains(&alert.id));
        of_it.count()
    };
    let running = world.start_with(|config| with_mail(config, &server));
    let before = raise(&world, "ann").await;
    world.outcomes(&before.id, 1, NoticeResult::Delivered).await;
    let deadline = tokio::time::Instant::now() + crate::stage::LIMIT;
    loop {
        let committed = world.bus.committed(Topic::Alerts, "alerting-people");
        let ends = world.bus.extents(Topic::Alerts).await.unwrap();
        let ends: u64 = ends.values().map(|it| it.next).sum();
        if committed.await.unwrap().values().sum::<u64>() == ends {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "no commit");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    running.stop().await;

    // Closes the store that is replaced.
    world.store = Arc::new(SqliteStore::open(copies.path()).unwrap());
    backup::restore(&data, &copy, [], contracts::now_us()).unwrap();
    world.store = Arc::new(SqliteStore::open(&data).unwrap());
    assert!(world.alerts().await.is_empty(), "it is not in the copy");
    let running = world.start_with(|config| with_mail(config, &server));
    let after = world.alert_of("ann", HIGH, AlertState::Active).await;
    assert_eq!(after.id, before.id);
    let kept = world.outcomes(&after.id, 1, NoticeResult::Silenced).await;
    let detail = &kept[0].outcome.as_ref().unwrap().detail;
    assert!(
        detail.starts_with("made before the restore of 20"),
        "{detail}"
    );
    let new = raise(&world, "ben").await;
    world.outcomes(&new.id, 1, NoticeResult::Delivered).await;
    assert_eq!((letters(&before), letters(&new)), (1, 1));
    running.stop().await;
}
