//! Programs of others through gateway and proxy: many new connections a second, and `curl` and
//! `iperf3` by each way (SOCKS5, HTTP CONNECT, TUN). Skips on hosts without namespaces; a program
//! that is not installed is left out, unless BRAID_REQUIRE_PROGRAMS is set.

#![allow(clippy::unwrap_used)]

#[path = "tun/stage.rs"]
mod stage;

use std::{
    io::{Read, Write},
    net::{IpAddr, TcpListener},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

use stage::{LISTED, PORT, Stage, ping, until};
use testkit::{DEADLINE, noise};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PER_SECOND: u32 = 200;
const CONNECTIONS: u32 = 1_000;

/// Answers each connection with the bytes that it sends.
async fn echo() {
    let listener = tokio::net::TcpListener::bind((LISTED, PORT)).await.unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            let (mut reading, mut writing) = stream.split();
            let _ = tokio::io::copy(&mut reading, &mut writing).await;
        });
    }
}

/// One short exchange; how long it took.
async fn exchange() -> std::io::Result<Duration> {
    let start = Instant::now();
    let mut stream = tokio::net::TcpStream::connect((LISTED, PORT)).await?;
    stream.write_all(b"hello").await?;
    stream.shutdown().await?;
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await?;
    match heard == b"hello" {
        true => Ok(start.elapsed()),
        false => Err(std::io::ErrorKind::UnexpectedEof.into()),
    }
}

#[test]
fn two_hundred_new_connections_a_second_all_succeed() {
    let Some(stage) = Stage::start("100mbit", "--tun-routes") else {
        return;
    };
    let echoing = stage.world.spawn("far", || async {
        // Ends with the test's process.
        let _ = tokio::time::timeout(Duration::from_secs(120), echo()).await;
    });
    let asking = stage.world.spawn("gw", || async {
        tokio::task::spawn_blocking(|| until(|| ping(IpAddr::from(LISTED), 1)))
            .await
            .unwrap();
        while exchange().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
        let mut exchanges = Vec::new();
        for _ in 0..CONNECTIONS {
            ticks.tick().await;
            exchanges.push(tokio::spawn(tokio::time::timeout(DEADLINE, exchange())));
        }
        let mut times = Vec::new();
        let mut failed = Vec::new();
        for exchange in exchanges {
            match exchange.await.unwrap() {
                Ok(Ok(took)) => times.push(took),
                Ok(Err(error)) => failed.push(error.to_string()),
                Err(elapsed) => failed.push(elapsed.to_string()),
            }
        }
        times.sort();
        (times, failed)
    });
    let (times, failed) = asking.join().unwrap();
    println!(
        "{} of {CONNECTIONS} connections succeeded at {PER_SECOND} a second (target all), p50 {:?}, p99 {:?}",
        times.len(),
        times[times.len() / 2],
        times[(times.len() - 1) * 99 / 100],
    );
    assert_eq!(failed, [""; 0]);
    stage.stop();
    drop(echoing);
}

const BYTES: usize = 2_000_000;

/// Serves the same file to each client.
fn serve_file(listener: TcpListener, file: Vec<u8>) {
    while let Ok((mut stream, _)) = listener.accept() {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
            head.push(byte[0]);
        }
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            file.len()
        );
        let _ = stream.write_all(answer.as_bytes());
        let _ = stream.write_all(&file);
    }
}

fn is_installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok();
    assert!(
        found || std::env::var_os("BRAID_REQUIRE_PROGRAMS").is_none(),
        "{program} is required here: infra/dev/need.sh programs"
    );
    if !found {
        println!("SKIPPED: {program} is not installed");
    }
    found
}

/// A program in a namespace, which must succeed.
fn run_in(namespace: &str, line: &str) -> Output {
    let output = Command::new("ip")
        .args(["netns", "exec", namespace])
        .args(["timeout", "60"])
        .args(line.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    output
}

/// Bits per second at the receiver, as iperf3 reports them.
fn bits_per_s(report: &[u8], sum: &str) -> f64 {
    let report: serde_json::Value = serde_json::from_slice(report).unwrap();
    report["end"][sum]["bits_per_second"].as_f64().unwrap()
}

fn proxychains(dir: &Path, kind: &str) -> String {
    let file = dir.join(format!("{kind}.conf"));
    let text = format!("strict_chain\n[ProxyList]\n{kind} 127.0.0.1 1080\n");
    std::fs::write(&file, text).unwrap();
    format!("proxychains4 -q -f {} ", file.display())
}

#[test]
fn curl_and_iperf3_pass_by_each_way() {
    let flags = "--tun-routes --applications 127.0.0.1:1080";
    let Some(stage) = Stage::start("50mbit", flags) else {
        return;
    };
    let answered = stage.run("gw", || until(|| ping(IpAddr::from(LISTED), 1)));
    answered.join().unwrap();
    let (gw, far) = (stage.world.name("gw"), stage.world.name("far"));
    let dir = tempfile::tempdir().unwrap();
    if is_installed("curl") {
        let listener = stage.run("far", || TcpListener::bind((LISTED, PORT)).unwrap());
        let (listener, file) = (listener.join().unwrap(), noise(BYTES, 3));
        std::thread::spawn({
            let file = file.clone();
            move || serve_file(listener, file)
        });
        let got = dir.path().join("got");
        for (way, by) in [
            ("SOCKS5", "--socks5-hostname 127.0.0.1:1080"),
            (
                "HTTP CONNECT",
                "--proxytunnel --proxy http://127.0.0.1:1080",
            ),
            ("TUN", ""),
        ] {
            let line = format!(
                "curl --silent --show-error --fail {by} --output {} http://{LISTED}:{PORT}/file",
                got.display()
            );
            run_in(&gw, &line);
            assert!(std::fs::read(&got).unwrap() == file, "{way}: bytes differ");
            println!("curl by {way}: {BYTES} bytes");
        }
    }
    if is_installed("iperf3") {
        let mut server = Command::new("ip")
            .args(["netns", "exec", &far, "iperf3", "--server", "--bind"])
            .arg(LISTED.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut ways = vec![("TUN", String::new())];
        if is_installed("proxychains4") {
            ways.push(("SOCKS5", proxychains(dir.path(), "socks5")));
            ways.push(("HTTP CONNECT", proxychains(dir.path(), "http")));
        }
        let client = format!("iperf3 --json --client {LISTED}");
        // The server needs a moment to listen.
        until(|| stage_accepts(&stage));
        for (way, by) in ways {
            for (direction, flag) in [("up", ""), ("down", "--reverse")] {
                // A time instead of bytes, which buffers on the way would hold. The server stops
                // counting at the client's end.
                let line = format!("{by}{client} {flag} --time 1");
                let rate = bits_per_s(&run_in(&gw, &line).stdout, "sum_received") / 1e6;
                println!("iperf3 by {way}, {direction}: {rate:.1} Mbit/s");
                assert!(rate > 1.0, "{way} {direction}: {rate}");
            }
        }
        let line = format!("{client} --udp --bitrate 5M --length 1200 --time 1");
        let report = run_in(&gw, &line).stdout;
        let parsed: serde_json::Value = serde_json::from_slice(&report).unwrap();
        let lost = parsed["end"]["sum"]["lost_percent"].as_f64().unwrap();
        println!("iperf3 by TUN, UDP: 5 Mbit/s, {lost:.2} % lost");
        assert!(lost < 20.0, "{lost}");
        server.kill().unwrap();
        server.wait().unwrap();
    }
    stage.stop();
}

/// Whether iperf3's server listens.
fn stage_accepts(stage: &Stage) -> Option<()> {
    let trying = stage.run("far", || {
        std::net::TcpStream::connect((LISTED, 5_201)).is_ok()
    });
    trying.join().unwrap().then_some(())
}
