//! The cost of resumption: one bulk stream over loopback, plain and resumable in turns, in both
//! directions.
//!
//! `cargo run --release -p tunnel --example resume_cost`

#![allow(clippy::unwrap_used)]

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use service_kit::tls::{Identity, PeerId, authority::LocalAuthority};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tunnel::{
    Authority, ConnectRequest, Interface, ServerConfig, Tunnel, TunnelConfig, TunnelServer,
    TunnelStream, Urgency,
};

/// Bytes of one transfer.
const BYTES: usize = 200_000_000;

/// Transfers of each kind.
const ROUNDS: usize = 5;

/// Bytes that the splices of gateway and proxy read at once.
const CHUNK_BYTES: usize = 32 * 1024;

async fn send(stream: &mut TunnelStream) {
    let chunk = vec![7; CHUNK_BYTES];
    for _ in 0..BYTES / CHUNK_BYTES {
        stream.write_all(&chunk).await.unwrap();
    }
    stream.shutdown().await.unwrap();
}

async fn receive(stream: &mut TunnelStream) -> usize {
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut sum = 0;
    loop {
        match stream.read(&mut chunk).await.unwrap() {
            0 => return sum,
            count => sum += count,
        }
    }
}

/// Port 1 reads, any other port sends.
async fn serve(request: ConnectRequest) {
    let takes = request.authority().port_u16() == Some(1);
    let mut stream = request.accept().await.unwrap();
    if takes {
        let sum = receive(&mut stream).await;
        stream.write_u64(sum as u64).await.unwrap();
        stream.shutdown().await.unwrap();
    } else {
        send(&mut stream).await;
        // Until the other end is done.
        let _ = stream.read(&mut [0]).await;
    }
}

/// Megabytes per second of one transfer.
async fn transfer(tunnel: &Tunnel, port: u16, resumable: bool) -> f64 {
    let authority: Authority = format!("any.test:{port}").parse().unwrap();
    let opened = if resumable {
        tunnel.open_tcp(&authority, Urgency::Bulk).await
    } else {
        tunnel.open_plain_tcp(&authority, Urgency::Bulk).await
    };
    let mut stream = opened.unwrap();
    assert_eq!(stream.is_resumable(), resumable);
    let start = Instant::now();
    if port == 1 {
        send(&mut stream).await;
        assert!(stream.read_u64().await.unwrap() as usize > BYTES - CHUNK_BYTES);
    } else {
        assert!(receive(&mut stream).await > BYTES - CHUNK_BYTES);
        stream.shutdown().await.unwrap();
    }
    BYTES as f64 / start.elapsed().as_secs_f64() / 1e6
}

/// Processor time of this process so far, both ends together, in ticks of 10 ms: fields 14 and 15
/// of proc(5)'s stat.
fn cpu_ticks() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.filter_map(|field| field.parse::<f64>().ok()).sum()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[tokio::main]
async fn main() {
    service_kit::tls::install_provider();
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
    let issue = |id: PeerId| {
        let files = authority.issue(&id, &["localhost".to_owned()]).unwrap();
        Identity::load(&files).unwrap()
    };
    let tls = issue(PeerId::service("proxy")).server_config(true, &[tunnel::ALPN]);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Arc::new(TunnelServer::bind(ServerConfig::new(listen, tls)).unwrap());
    let address = server.local_addr();
    tokio::spawn(async move {
        while let Some(mut session) = server.accept().await {
            tokio::spawn(async move {
                while let Some(request) = session.accept().await {
                    tokio::spawn(serve(request));
                }
            });
        }
    });
    let tls = issue(PeerId::gateway("acme", "gw-1")).client_config(&[tunnel::ALPN]);
    let interface = Interface::bind("any", IpAddr::from([127, 0, 0, 1]), None).unwrap();
    let config = TunnelConfig::new(address, "localhost", tls);
    let tunnel = Tunnel::start(config, vec![interface]).unwrap();
    assert!(tunnel.up().await);
    for (direction, port) in [("upload", 1), ("download", 2)] {
        let (mut plain, mut resumable) = (Vec::new(), Vec::new());
        let mut ticks = [0.0, 0.0];
        // One transfer of each kind to warm up.
        for round in 0..=ROUNDS {
            let start = cpu_ticks();
            let rate_plain = transfer(&tunnel, port, false).await;
            let between = cpu_ticks();
            let rate_resumable = transfer(&tunnel, port, true).await;
            if round > 0 {
                plain.push(rate_plain);
                resumable.push(rate_resumable);
                ticks[0] += between - start;
                ticks[1] += cpu_ticks() - between;
            }
        }
        let (plain, resumable) = (median(plain), median(resumable));
        println!(
            "{direction}: plain {plain:.0} MB/s, resumable {resumable:.0} MB/s, ratio {:.3}; processor time {:.3} of plain",
            resumable / plain,
            ticks[1] / ticks[0]
        );
    }
    tunnel.close().await;
}
