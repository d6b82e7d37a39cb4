//! A receiver of the webhook that keeps its calls and answers as it is told.
#![allow(dead_code, reason = "each test file uses its part")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

#[derive(Clone)]
pub struct Hook {
    pub address: SocketAddr,
    pub calls: Arc<Mutex<Vec<Value>>>,
    /// Status and body for a call.
    answer: Arc<Mutex<Answer>>,
}

type Answer = Box<dyn Fn(&Value) -> (u16, String) + Send>;

impl Hook {
    pub async fn start(answer: impl Fn(&Value) -> (u16, String) + Send + 'static) -> Hook {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let hook = Hook {
            address: listener.local_addr().unwrap(),
            calls: Arc::default(),
            answer: Arc::new(Mutex::new(Box::new(answer))),
        };
        let own = hook.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let own = own.clone();
                tokio::spawn(async move { own.converse(stream).await });
            }
        });
        hook
    }

    pub fn url(&self) -> service_kit::Secret {
        service_kit::Secret::new(format!("http://{}/hook", self.address))
    }

    pub fn answers(&self, answer: impl Fn(&Value) -> (u16, String) + Send + 'static) {
        *self.answer.lock() = Box::new(answer);
    }

    async fn converse(self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 || line == "\r\n" {
                break;
            }
            let line = line.to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let call: Value = serde_json::from_slice(&body)?;
        let (status, text) = (self.answer.lock())(&call);
        self.calls.lock().push(call);
        // A receiver takes some time, so that calls overlap.
        tokio::time::sleep(Duration::from_millis(2)).await;
        let head = format!(
            "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all(format!("{head}{text}").as_bytes()).await
    }
}

/// Confirms heartbeats, and takes everything else.
pub fn confirming(call: &Value) -> (u16, String) {
    match call["kind"].as_str() {
        Some("heartbeat") => (
            200,
            serde_json::json!({"confirmed": call["challenge"]}).to_string(),
        ),
        _ => (204, String::new()),
    }
}
