//! A clean start: migrations run once, whichever process is first. A fault of the server is
//! reported in one sentence.

#![allow(clippy::unwrap_used)]

#[path = "support/timescale.rs"]
mod support;

use std::process::{Command, Stdio};

use store::{Maintenance, Of, Register, Scope, VitalsStore};
use store::{
    TimescaleOptions, TimescaleStore,
    conformance::{batch, ok, sample},
    timescale::OpenError,
};
use support::connect;
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};

const CHILD: &str = "STORE_TEST_MIGRATE_URL";

async fn refused(options: TimescaleOptions) -> OpenError {
    match TimescaleStore::open(&options).await {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

/// Not a test by itself: one of the processes that race.
#[tokio::test]
async fn child() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let store = TimescaleStore::open(&TimescaleOptions::new(url, PASSWORD))
        .await
        .unwrap();
    ok(store.ready().await);
    println!("migrated from {}", store.applied().from);
}

#[tokio::test]
async fn of_four_processes_that_start_at_once_one_migrates() {
    let url = TimescaleServer::shared().database().await;
    let children: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "child", "--nocapture"])
                .env(CHILD, &url)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut from_nothing = 0;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("migrated from "), "{text}");
        from_nothing += u32::from(text.contains("migrated from 0"));
    }
    assert_eq!(from_nothing, 1);
    let client = connect(&url).await;
    let row = client
        .query_one("SELECT count(*), max(version) FROM schema_migrations", &[])
        .await
        .unwrap();
    let (count, newest): (i64, i32) = (row.get(0), row.get(1));
    assert!(newest > 0);
    assert_eq!(count, i64::from(newest), "each migration once");
}

#[tokio::test]
async fn a_schema_of_another_version_is_refused() {
    let url = TimescaleServer::shared().database().await;
    let options = TimescaleOptions::new(&url, PASSWORD);
    let by_hand = TimescaleOptions {
        migrate: false,
        ..options.clone()
    };
    assert!(matches!(
        refused(by_hand.clone()).await,
        OpenError::Older { found: 0, .. }
    ));
    let applied = TimescaleStore::migrate(&options).await.unwrap();
    assert_eq!(applied.from, 0);
    let again = TimescaleStore::migrate(&options).await.unwrap();
    assert_eq!(again.from, applied.to, "nothing is left to do");
    drop(TimescaleStore::open(&by_hand).await.unwrap());

    let client = connect(&url).await;
    client
        .execute(
            "INSERT INTO schema_migrations (version, name, checksum, program) VALUES (99, 'later', '', '9')",
            &[],
        )
        .await
        .unwrap();
    for options in [&options, &by_hand] {
        let error = refused(options.clone()).await;
        assert!(matches!(error, OpenError::Newer { found: 99, .. }));
        assert!(error.to_string().contains("newer program"), "{error}");
    }
    client
        .batch_execute("DELETE FROM schema_migrations WHERE version = 99; UPDATE schema_migrations SET checksum = 'x'")
        .await
        .unwrap();
    assert!(matches!(
        refused(options).await,
        OpenError::Changed { version: 1 }
    ));
}

#[tokio::test]
async fn a_register_without_times_becomes_one_with_assignments() {
    let url = TimescaleServer::shared().database().await;
    let client = connect(&url).await;
    client
        .batch_execute(
            "CREATE EXTENSION IF NOT EXISTS timescaledb;
             CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
                 applied timestamptz NOT NULL DEFAULT now(), program text NOT NULL)",
        )
        .await
        .unwrap();
    for (version, sql) in [
        (
            1,
            include_str!("../src/timescale/migrations/0001_tables.sql"),
        ),
        (
            2,
            include_str!("../src/timescale/migrations/0002_notices.sql"),
        ),
    ] {
        client.batch_execute(sql).await.unwrap();
        client
            .execute(
                "INSERT INTO schema_migrations (version, name, checksum, program)
                 VALUES ($1, 'before', encode(sha256($2), 'hex'), 'before')",
                &[&version, &sql.as_bytes()],
            )
            .await
            .unwrap();
    }
    client
        .batch_execute(
            "INSERT INTO patients (id, tenant, name, spo2_scale) VALUES ('ada', 'one', 'Ada', 2);
             INSERT INTO devices VALUES ('belt', 'one', 'gw', 'ada', 1700000000000000)",
        )
        .await
        .unwrap();
    let options = TimescaleOptions::new(&url, PASSWORD);
    let store = TimescaleStore::open(&options).await.unwrap();
    assert_eq!(store.applied().from, 2);
    let found = ok(store.assignments(&Scope::Service, Of::Everything).await);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (&*found[0].patient, found[0].from_us, found[0].is_open()),
        ("ada", 1_700_000_000_000_000, true)
    );
    let of_one = ok(store.devices(&Scope::tenant("one"), Some("gw")).await);
    assert_eq!(of_one.len(), 1);
}

#[tokio::test]
async fn each_mistake_has_its_own_sentence() {
    let server = TimescaleServer::shared();
    let url = server.database().await;
    let error = refused(TimescaleOptions::new(&url, "wrong")).await;
    assert!(matches!(error, OpenError::Credentials { .. }), "{error:?}");
    let error = refused(TimescaleOptions::new(&url, "")).await;
    assert!(matches!(error, OpenError::Credentials { .. }), "{error:?}");
    let error = refused(TimescaleOptions::new(server.url("none"), PASSWORD)).await;
    assert!(matches!(error, OpenError::NoDatabase { .. }), "{error:?}");
    let error = refused(TimescaleOptions::new(
        "postgres://postgres@127.0.0.1:1/none",
        PASSWORD,
    ))
    .await;
    assert!(error.may_pass(), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");

    // Somebody who may use the database but not create anything in it.
    let superuser = server.superuser().await;
    superuser
        .batch_execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
        .await
        .unwrap();
    let guest = |url: &str| url.replace("postgres@", "guest@");
    let error = refused(TimescaleOptions::new(guest(&url), "guest")).await;
    assert!(matches!(error, OpenError::Extension(_)), "{error:?}");
    connect(&url)
        .await
        .batch_execute("CREATE EXTENSION timescaledb")
        .await
        .unwrap();
    let error = refused(TimescaleOptions::new(guest(&url), "guest")).await;
    assert!(
        matches!(&error, OpenError::Migration { reason, .. } if reason.contains("permission denied")),
        "{error:?}"
    );
    // With the schema there and the rights to use it, a service needs no others.
    TimescaleStore::migrate(&TimescaleOptions::new(&url, PASSWORD))
        .await
        .unwrap();
    connect(&url)
        .await
        .batch_execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest",
        )
        .await
        .unwrap();
    let store = TimescaleStore::open(&TimescaleOptions {
        migrate: false,
        ..TimescaleOptions::new(guest(&url), "guest")
    })
    .await
    .unwrap();
    ok(store
        .write_vitals(
            batch(vec![sample(
                "belt",
                "ann",
                contracts::vitals::Metric::Spo2,
                1,
            )]),
            Vec::new(),
        )
        .await);
}

#[tokio::test]
async fn a_server_without_the_extension_is_named() {
    let server = TimescaleServer::start(ServerOptions {
        configuration: "shared_preload_libraries = ''\n".to_owned(),
        ..ServerOptions::default()
    });
    let url = server.database().await;
    let error = refused(TimescaleOptions::new(&url, PASSWORD)).await;
    assert!(matches!(error, OpenError::Extension(_)), "{error:?}");
    assert!(!error.may_pass());
}

#[tokio::test]
async fn tls_is_checked_against_the_authority_and_the_name() {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = rcgen::Issuer::new(params, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["localhost".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let server = TimescaleServer::start(ServerOptions {
        configuration:
            "ssl = on\nssl_cert_file = '/data/server.crt'\nssl_key_file = '/data/server.key'\n"
                .to_owned(),
        files: vec![
            ("server.crt".to_owned(), certificate.pem().into_bytes()),
            ("server.key".to_owned(), key.serialize_pem().into_bytes()),
        ],
        ..ServerOptions::default()
    });
    let by_address = server.database().await;
    let by_name = by_address.replace("127.0.0.1", "localhost");
    let with_roots = |url: &str, pem: String| TimescaleOptions {
        tls_roots: Some(pem.into_bytes()),
        ..TimescaleOptions::new(url, PASSWORD)
    };
    let store = TimescaleStore::open(&with_roots(&by_name, authority.pem()))
        .await
        .unwrap();
    ok(store.ready().await);
    let client = connect(&by_address).await;
    let encrypted: i64 = client
        .query_one(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND version = 'TLSv1.3' AND application_name = 'braid'",
            &[],
        )
        .await
        .unwrap()
        .get(0);
    assert!(encrypted >= 1);

    let other_key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let other_authority = params.self_signed(&other_key).unwrap();
    for (url, pem) in [
        (&by_name, other_authority.pem()),
        (&by_address, authority.pem()),
        (&by_name, "no certificate".to_owned()),
    ] {
        let error = refused(with_roots(url, pem)).await;
        assert!(matches!(error, OpenError::Tls { .. }), "{error:?}");
        assert!(!error.may_pass());
    }
    // A server that offers none is not talked to in the clear.
    let plain = TimescaleServer::shared().database().await;
    let error = refused(with_roots(&plain, authority.pem())).await;
    assert!(matches!(error, OpenError::Tls { .. }), "{error:?}");
}
