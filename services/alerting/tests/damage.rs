//! Rows that a medium has damaged keep nobody else from being told.

#![allow(clippy::unwrap_used)]

#[path = "support/peers.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod peers;
#[path = "support/stage.rs"]
mod stage;

use contracts::{
    alerts::{Alert, AlertState, Notice, NoticeResult},
    vitals::Priority,
};
use peers::{MailServer, Security};
use service_kit::tls::{Identity, PeerId};
use stage::{LIMIT, World, until};
use store::{AlertsBatch, NoticesBatch, Scope, Watch, WatchChange};

/// No alert and no notice: the length of its first field is missing.
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
    let timer = Watch {
        alert: "damaged".into(),
        version: 1,
        due_us: Some(now_us),
        state: b"{\"opened_us\":1,\"steps\":1,\"reminders\":0,\"told\":[]}"
            .to_vec()
            .into(),
    };
    let batch = NoticesBatch {
        notices: vec![notice("damaged"), notice("sound")],
        watches: vec![WatchChange::Set(timer)],
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
    // What was decided before, and what comes out of the outbox.
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
    // The timer is put off, and alerting is ready for who acknowledges.
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let watch = world.store.watch("damaged").await.unwrap().unwrap();
        if watch.version > 1 && running.context.health().failing().is_empty() {
            assert!(watch.due_us.unwrap() > now_us + 1_800_000_000);
            break;
        }
        let failing = running.context.health().failing();
        assert!(
            tokio::time::Instant::now() < deadline,
            "{watch:?} {failing:?}"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    running.stop().await;
}
