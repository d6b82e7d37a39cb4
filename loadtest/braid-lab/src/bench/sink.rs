//! The sink on TimescaleDB against a raw binary COPY, on a separate server.

use store::TimescaleOptions;
use store::timescale::measure::{Measured, Shape, sink_vs_copy};
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};

use crate::failure::{Failure, block_on};

/// A thousand patients whose gateways upload ten seconds at a time.
const SHAPE: Shape = Shape {
    patients: 1000,
    record_s: 10,
    rows: 300_000,
    rounds: 5,
};

pub fn measure() -> Result<Measured, Failure> {
    block_on(async {
        let server = TimescaleServer::start(ServerOptions {
            durable: true,
            ..ServerOptions::default()
        });
        let options = TimescaleOptions::new(server.database().await, PASSWORD);
        sink_vs_copy(&options, SHAPE).await.map_err(Failure::other)
    })?
}
