//! A channel is proven by what comes back from its receiver, not by its configuration.

use std::{sync::Arc, time::Duration};

use crate::hook::Hook;
use crate::peers::{Broker, MailServer, Security};
use crate::stage::{Running, World, until};
use service_kit::tls::{Identity, PeerId};
use store::Proof;

fn warning(running: &Running, name: &str) -> Option<String> {
    let warnings = running.context.health().warnings();
    let found = warnings.into_iter().find(|(it, _)| *it == name);
    found.map(|(_, warning)| warning.says)
}

/// Waits for the proof of a channel that the condition accepts.
async fn proof(world: &World, channel: &str, accepts: impl Fn(&Proof) -> bool) -> Proof {
    let deadline = tokio::time::Instant::now() + crate::stage::LIMIT;
    loop {
        let proofs = world.store.proofs().await.unwrap();
        let found = proofs
            .iter()
            .find(|it| it.channel == channel && accepts(it));
        if let Some(found) = found {
            return found.clone();
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "{channel}: {proofs:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A receiver that answers every call with success, or repeats it, proves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_only_answers_2xx_is_a_gap_and_one_that_confirms_is_none() {
    let world = World::new();
    let hook = Hook::start(|call| (200, call.to_string())).await;
    let start = |hook: &Hook| {
        let url = hook.url();
        world.start_with(|config| config.people.webhook = Some(url))
    };
    let running = start(&hook);
    until("a heartbeat", || {
        hook.calls
            .lock()
            .iter()
            .any(|call| call["kind"] == "heartbeat")
    })
    .await;
    until("a gap", || {
        warning(&running, "nobody-told").is_some_and(|says| says.contains("the webhook has never"))
    })
    .await;
    assert_eq!(proof(&world, "webhook", |_| true).await.confirmed_us, None);
    running.stop().await;

    // Another address needs a proof of its own, at once.
    let other = Hook::start(crate::hook::confirming).await;
    let running = start(&other);
    let confirmed = proof(&world, "webhook", |it| it.confirmed_us.is_some()).await;
    let secret = other.calls.lock()[0]["challenge"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(confirmed.token, Proof::token_of(&secret));
    assert_eq!(secret.len(), 64);
    running.stop().await;
    // A proof holds after a restart, from its first look on.
    let running = start(&other);
    let mut seen = false;
    until("no gap", || {
        seen |= warning(&running, "nobody-told").is_some();
        running.context.health().is_ready()
    })
    .await;
    assert!(!seen);
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mqtt_is_proven_by_a_reply_and_not_by_the_brokers_acknowledgement() {
    for confirms in [false, true] {
        let world = World::new();
        let broker = Broker::start_with(None, confirms).await;
        let port = broker.address.port();
        let running = world.start_with(|config| {
            config.people.mqtt = Some(format!("mqtt://127.0.0.1:{port}"));
        });
        until("a heartbeat", || {
            let all = broker.publications.lock();
            all.iter().any(|it| it.topic == "braid/alerts/heartbeat")
        })
        .await;
        if confirms {
            proof(&world, "mqtt", |it| it.confirmed_us.is_some()).await;
        } else {
            assert_eq!(proof(&world, "mqtt", |_| true).await.confirmed_us, None);
        }
        running.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_letter_carries_the_link_that_confirms_it() {
    let world = World::new();
    let files = world
        .authority
        .issue(&PeerId::service("peer"), &[])
        .unwrap();
    let tls: Arc<rustls::ServerConfig> = Identity::load(&files).unwrap().server_config(false, &[]);
    let server = MailServer::start(Security::Plain, tls).await;
    let running = world.start_with(|config| {
        let people = &mut config.people;
        people.smtp = Some(format!("smtp-plain://127.0.0.1:{}", server.address.port()));
        people.email_from = Some("braid@example.org".into());
        people.email_to = vec!["ward@example.org".into()];
        people.public_url = Some("https://braid.example.org".into());
    });
    until("a letter", || !server.letters.lock().is_empty()).await;
    let letter = server.letters.lock()[0].clone();
    assert!(letter.to.contains("ward@example.org"), "{}", letter.to);
    // Quoted-printable breaks long lines.
    let text = letter.text.replace("=\r\n", "");
    let link = text
        .split("https://braid.example.org/confirm/")
        .nth(1)
        .unwrap();
    let secret: String = link.chars().take_while(char::is_ascii_hexdigit).collect();
    assert_eq!(secret.len(), 64, "{text}");
    let sent = proof(&world, "email", |_| true).await;
    assert_eq!(
        (sent.confirmed_us, sent.recipient.as_str()),
        (None, "ward@example.org")
    );
    let token = Proof::token_of(&secret);
    assert_eq!(token, sent.token);
    let confirmed = world
        .store
        .confirm_proof(&token, "a link", 7)
        .await
        .unwrap();
    assert_eq!(confirmed.unwrap().confirmed_us, Some(7));
    running.stop().await;
}
