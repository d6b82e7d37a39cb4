//! The gateway under test, from a sensor's view.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use clap::Parser;
use contracts::vitals::FollowRulesResponse;
use prost::Message;
use service_kit::{Context, Secret};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::broadcast,
    task::JoinHandle,
};
use tunnel::TunnelEvent;

use super::{
    direct::Direct,
    fake_ingest::{FakeIngest, Got},
    serve,
};
use crate::{Config, LISTENER, RunError, config::CommandLine};

/// Longest wait for a condition; then the test fails.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// The settings of a gateway with this data directory.
pub fn config_at(data: &Path) -> Config {
    let mut config = CommandLine::parse_from(["gateway", "--listen", "127.0.0.1:0"]).config;
    config.data_dir = data.to_path_buf();
    config
}

/// The core's rules that a gateway has stored here.
pub fn stored_rules(data: &Path) -> Option<FollowRulesResponse> {
    let bytes = std::fs::read(data.join("journal/rules/rules")).ok()?;
    let keys = config_at(data).existing_keys().unwrap();
    let bytes = keys.for_folder("rules").unseal("rules", bytes).unwrap();
    Some(FollowRulesResponse::decode(&bytes[4..]).unwrap())
}

pub struct Gateway {
    pub address: SocketAddr,
    pub context: Context,
    pub events: broadcast::Sender<TunnelEvent>,
    task: JoinHandle<Result<(), RunError>>,
}

impl Gateway {
    pub async fn start(directory: &Path, ingest: SocketAddr, token: Option<&str>) -> Self {
        Self::start_with(directory, ingest, token, |_| {}).await
    }

    pub async fn start_with(
        directory: &Path,
        ingest: SocketAddr,
        token: Option<&str>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let mut config = config_at(directory);
        config.ingest = format!("http://{ingest}");
        config.sensor_token = token.map(Secret::new);
        change(&mut config);
        let context = Context::new("gateway");
        let (events, _) = broadcast::channel(16);
        let uplink = Arc::new(Direct {
            identity: None,
            events: events.clone(),
        });
        let task = tokio::spawn({
            let context = context.clone();
            async move {
                let result = serve(config, "g1".into(), uplink, &context).await;
                context.end();
                result
            }
        });
        let address = context.address(LISTENER).await.unwrap();
        Self {
            address,
            context,
            events,
            task,
        }
    }

    pub async fn stop(self) {
        self.context.shutdown().request();
        tokio::time::timeout(DEADLINE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }

    pub async fn post(&self, body: &str) -> (u16, serde_json::Value) {
        let (status, body) = self.post_with("", body).await;
        (status, serde_json::from_str(&body).unwrap())
    }

    pub async fn post_with(&self, headers: &str, body: &str) -> (u16, String) {
        self.post_to("/v1/samples", headers, body).await
    }

    pub async fn post_to(&self, path: &str, headers: &str, body: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        post_over(stream, path, headers, body).await
    }
}

pub async fn post_over(
    mut stream: TcpStream,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, String) {
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: g\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             {headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer[9..12].parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    (status, body.to_owned())
}

pub async fn until(what: &str, ingest: &FakeIngest, holds: impl Fn(&Got) -> bool) {
    let waiting = async {
        while !holds(&ingest.got.lock()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, waiting).await.is_ok(),
        "{what}"
    );
}

pub fn line(device: &str, value: f64) -> String {
    format!(r#"{{"device":"{device}","metric":"heart-rate","value":{value}}}"#)
}
