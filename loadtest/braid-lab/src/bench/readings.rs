//! Readings of a measured process: its memory, its metrics, and whether it is ready.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use crate::failure::Failure;

/// Longest wait for an action of a process; then the measurement fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Resident memory.
pub(super) fn memory_mib(child: &Child) -> Result<f64, Failure> {
    let path = format!("/proc/{}/status", child.id());
    let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path, &error))?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kib| kib / 1024.0)
        .ok_or_else(|| Failure::other(format!("{path} has no VmRSS")))
}

/// A metric's value, summed over the labels that `name` leaves open; 0 without an answer or without
/// the metric.
pub(super) async fn metric(admin: SocketAddr, name: &str) -> f64 {
    let text = scrape(admin).await.unwrap_or_default();
    text.lines()
        .filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['{', ' ']))
        })
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

pub(super) async fn is_ready(admin: SocketAddr) -> bool {
    let answer = ask(admin, "/readyz").await;
    answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

pub(super) async fn scrape(admin: SocketAddr) -> std::io::Result<String> {
    ask(admin, "/metrics").await
}

async fn ask(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(admin).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nhost: braid\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

pub(super) fn unusable(path: impl AsRef<Path>, error: &std::io::Error) -> Failure {
    Failure::other(format!("{}: {error}", path.as_ref().display()))
}
