//! The sink beside a raw binary COPY, on a server of its own: `cargo run --release -p store --example sink_vs_copy [-- RECORD_S]`.

#![allow(clippy::unwrap_used)]

use store::{
    TimescaleOptions,
    timescale::measure::{Shape, sink_vs_copy},
};
use testkit::timescale_server::{PASSWORD, ServerOptions, TimescaleServer};

#[tokio::main]
async fn main() {
    let record_s = std::env::args()
        .nth(1)
        .map_or(10, |text| text.parse().unwrap());
    let server = TimescaleServer::start(ServerOptions {
        durable: true,
        ..ServerOptions::default()
    });
    let options = TimescaleOptions::new(server.database().await, PASSWORD);
    let shape = Shape {
        patients: 1000,
        record_s,
        rows: 300_000,
        rounds: 3,
    };
    let measured = sink_vs_copy(&options, shape).await.unwrap();
    println!("{measured:?}");
    println!(
        "sink {:.0}/s copy {:.0}/s ratio {:.2}",
        measured.sink_per_s(),
        measured.copy_per_s(),
        measured.sink_per_s() / measured.copy_per_s()
    );
}
