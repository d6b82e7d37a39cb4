//! The TimescaleDB store passes the suite on a real server.

#![allow(clippy::unwrap_used)]

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use store::{
    TimescaleOptions, TimescaleStore,
    conformance::{Harness, Process},
    timescale::Ages,
};
use testkit::timescale_server::{PASSWORD, TimescaleServer};

struct Timescale {
    url: String,
}

impl Timescale {
    async fn new() -> Timescale {
        Timescale {
            url: TimescaleServer::shared().database().await,
        }
    }
}

/// The suite's samples have fixed times, which retention by age would find old some day.
fn options(url: &str) -> TimescaleOptions {
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

#[async_trait]
impl Harness for Timescale {
    async fn start(&self) -> Process {
        let store = TimescaleStore::open(&options(&self.url)).await.unwrap();
        Process {
            store: Arc::new(store),
            // Everything that was answered is committed; `tests/timescale_failures.rs` kills real servers.
            kill: Box::new(|| ()),
        }
    }
}

store::conformance_suite!(Timescale::new().await);
