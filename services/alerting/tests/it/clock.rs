//! Notices after the core stood still for hours, or after its clock was set back by hours.

use crate::peers::{MailServer, Security};
use crate::stage::{S, World};
use contracts::{
    alerts::{Alert, AlertState, Document, Notice, NoticeResult},
    vitals::Priority,
};
use service_kit::tls::{Identity, PeerId};
use store::{AlertsBatch, EscalationTimer, NoticesBatch, PatientEntry, Spo2Scale, TimerChange};

const HOUR: i64 = 3600 * S;
const WARD: &str = "ward@example.org";

async fn mail_server(world: &World) -> MailServer {
    let peer = PeerId::service("peer");
    let files = world.authority.issue(&peer, &[]).unwrap();
    let tls = Identity::load(&files).unwrap().server_config(false, &[]);
    MailServer::start(Security::Plain, tls).await
}

fn with_mail(config: &mut alerting::Config, server: &MailServer) {
    config.people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
    config.people.email_from = Some("braid@example.org".into());
    config.people.email_to = vec![WARD.into()];
}

/// A stored alert whose first `notices` are already decided.
async fn stored(world: &World, recorded_us: i64, batch: NoticesBatch) -> Alert {
    let alert = Alert {
        id: "a".into(),
        patient: "ann".into(),
        rule: "fall".into(),
        priority: Priority::High.into(),
        state: AlertState::Active.into(),
        since_us: recorded_us,
        changed_us: recorded_us,
        recorded_us,
        revision: 1,
        ..Alert::default()
    };
    let transitions = AlertsBatch {
        transitions: vec![alert.clone()],
        ..AlertsBatch::default()
    };
    world
        .store
        .write_alerts(transitions, Vec::new())
        .await
        .unwrap();
    let entries = world.store.outbox(10).await.unwrap();
    let published: Vec<u64> = entries.iter().map(|entry| entry.id).collect();
    world.store.clear_outbox(&published).await.unwrap();
    world.store.write_notices(batch).await.unwrap();
    alert
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notice_of_before_a_night_without_power_is_not_given_up_at_the_first_failure() {
    let world = World::new();
    let server = mail_server(&world).await;
    // The receiver starts a little later than alerting.
    *server.refusals.lock() = 2;
    let then_us = contracts::now_us() - 8 * HOUR;
    let alert = Alert {
        id: "a".into(),
        patient: "ann".into(),
        ..Alert::default()
    };
    let notice = Notice {
        id: format!("a/1/email/{WARD}"),
        alert: Some(alert),
        channel: "email".into(),
        recipient: WARD.into(),
        created_us: then_us,
        due_us: then_us,
        ..Notice::default()
    };
    let batch = NoticesBatch {
        notices: vec![notice],
        ..NoticesBatch::default()
    };
    let alert = stored(&world, then_us, batch).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let told = world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    assert_eq!(told[0].outcome.as_ref().unwrap().attempts, 3);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_escalation_does_not_wait_for_a_clock_that_was_set_back() {
    let world = World::new();
    let server = mail_server(&world).await;
    let entry = PatientEntry {
        id: "ann".into(),
        tenant: "one".into(),
        name: "Ann".into(),
        spo2_scale: Spo2Scale::One,
        ..PatientEntry::default()
    };
    world.store.put_patient(&entry).await.unwrap();
    let team = Document {
        kind: "team".into(),
        tenant: "one".into(),
        subject: "default".into(),
        version: 1,
        author: "Eve".into(),
        reason: "test".into(),
        at_us: contracts::now_us(),
        body: r#"{
          "contacts": [{"id": "nurse", "name": "Nurse", "email": "nurse@example.org"}],
          "rota": [{"shifts": [{"from": "mon 00:00", "to": "mon 00:00", "contact": "nurse"}]}],
          "escalation": {
            "low": {"steps": []},
            "medium": {"steps": []},
            "high": {"steps": [{"after_s": 0, "tell": ["person"]}, {"after_s": 2, "tell": ["on-call"]}]}
          }
        }"#
        .into(),
        ..Document::default()
    };
    world.store.put_document(&team).await.unwrap();
    // Raised while the clock was three hours ahead.
    let ahead_us = contracts::now_us() + 3 * HOUR;
    let state = format!(
        r#"{{"opened_us": {ahead_us}, "set_us": {ahead_us}, "steps": 1, "reminders": 0, "told": []}}"#
    );
    let timer = EscalationTimer {
        alert: "a".into(),
        version: 1,
        due_us: Some(ahead_us + 2 * S),
        state: state.into_bytes().into(),
    };
    let batch = NoticesBatch {
        timers: vec![TimerChange::Set(timer)],
        ..NoticesBatch::default()
    };
    let alert = stored(&world, ahead_us, batch).await;
    let running = world.start_with(|config| with_mail(config, &server));
    let told = world.outcomes(&alert.id, 1, NoticeResult::Delivered).await;
    let notice = told[0].notice.as_ref().unwrap();
    assert_eq!(notice.id, "a/step-2/email/nurse@example.org");
    running.stop().await;
}
