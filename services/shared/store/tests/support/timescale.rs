//! A store and a plain client on a real server.
#![allow(dead_code, reason = "each test file uses its part")]

use std::time::Duration;

use store::{TimescaleOptions, TimescaleStore, timescale::Ages};
use testkit::timescale_server::{PASSWORD, TimescaleServer};

/// Samples of tests have fixed times, which retention by age would find old some day.
pub fn options(url: &str) -> TimescaleOptions {
    TimescaleOptions {
        ages: Ages {
            vitals: Duration::MAX,
            waveforms: Duration::MAX,
            minutes: Duration::MAX,
            hours: Duration::MAX,
            paths: Duration::MAX,
            alerts: Duration::MAX,
            audit: Duration::MAX,
        },
        ..TimescaleOptions::new(url, PASSWORD)
    }
}

pub async fn connect(url: &str) -> tokio_postgres::Client {
    let mut config: tokio_postgres::Config = url.parse().unwrap();
    let (client, connection) = config
        .password(PASSWORD)
        .connect(tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client
}

/// Both, on a database of their own.
pub async fn fresh() -> (TimescaleStore, tokio_postgres::Client) {
    let url = TimescaleServer::shared().database().await;
    let store = TimescaleStore::open(&options(&url)).await.unwrap();
    (store, connect(&url).await)
}
