//! The TimescaleDB store passes the suite on a real server.

use std::sync::Arc;

use crate::support::options;
use async_trait::async_trait;
use store::{
    TimescaleStore,
    conformance::{Harness, Process},
};
use testkit::timescale_server::TimescaleServer;

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

#[async_trait]
impl Harness for Timescale {
    async fn start(&self) -> Process {
        let store = TimescaleStore::open(&options(&self.url)).await.unwrap();
        Process {
            store: Arc::new(store),
            // Everything that was answered is committed; `tests/timescale_failures.rs` kills real
            // servers.
            kill: Box::new(|| ()),
        }
    }
}

store::conformance_suite!(Timescale::new().await);
