//! A webhook for alerting.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use parking_lot::Mutex;

/// A webhook that accepts everything and keeps the keys of the notices.
pub struct Webhook {
    pub address: SocketAddr,
    keys: Arc<Mutex<Vec<String>>>,
}

impl Webhook {
    pub fn start() -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let keys = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&keys);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let head = lines.by_ref().map_while(Result::ok);
                let head = head.take_while(|line| !line.is_empty());
                let key = head.filter_map(|line| {
                    let (name, key) = line.split_once(": ")?;
                    (name == "idempotency-key").then(|| key.to_owned())
                });
                kept.lock().extend(key);
                // A caller that has gone is no fault here.
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
            }
        });
        Webhook { address, keys }
    }

    /// Notices about the news of alerts of this patient.
    pub fn told(&self, alerts: &[String]) -> usize {
        let keys = self.keys.lock();
        let of = |key: &&String| alerts.iter().any(|id| key.starts_with(&format!("{id}/")));
        keys.iter().filter(of).count()
    }
}
