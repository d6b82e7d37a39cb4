//! The mail server of the people on call: stores every letter.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{facts::Letter, letters};

/// Letters that are stored. At the bound the server refuses, and the alerts count as unmailed.
const LETTERS_MAX: usize = 200_000;
/// Bytes of one conversation. Beyond it the connection ends, and the client repeats the letter.
const CONVERSATION_BYTES_MAX: u64 = 16 << 20;

#[derive(Default)]
pub(super) struct Mailbox {
    pub letters: Mutex<Vec<Letter>>,
    pub is_away: AtomicBool,
}

impl Mailbox {
    pub async fn serve(self: Arc<Self>, address: SocketAddr) -> io::Result<()> {
        let listener = TcpListener::bind(address).await?;
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let own = Arc::clone(&self);
                tokio::spawn(async move {
                    // A client that ends the conversation repeats its letter.
                    let _ = own.converse(stream).await;
                });
            }
        });
        Ok(())
    }

    async fn converse(&self, stream: TcpStream) -> io::Result<()> {
        let (from, mut to) = stream.into_split();
        let mut lines = BufReader::new(from.take(CONVERSATION_BYTES_MAX));
        let mut recipient = String::new();
        to.write_all(b"220 chaos ESMTP\r\n").await?;
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            let is_away = self.is_away.load(Ordering::Relaxed);
            let verb = line.get(..4).unwrap_or_default().to_uppercase();
            let answer = match verb.as_str() {
                "QUIT" => "221 bye",
                _ if is_away => "421 away",
                "EHLO" | "HELO" | "MAIL" | "RSET" | "NOOP" => "250 ok",
                "RCPT" => {
                    recipient = letters::address(line);
                    "250 ok"
                }
                "DATA" => {
                    to.write_all(b"354 end with a dot\r\n").await?;
                    let mut text = String::new();
                    while !text.ends_with("\r\n.\r\n") {
                        if lines.read_line(&mut text).await? == 0 {
                            return Ok(());
                        }
                    }
                    self.take(&recipient, &text)
                }
                _ => "502 unknown",
            };
            to.write_all(format!("{answer}\r\n").as_bytes()).await?;
        }
    }

    fn take(&self, recipient: &str, text: &str) -> &'static str {
        let mut letters = self.letters.lock();
        if self.is_away.load(Ordering::Relaxed) || letters.len() >= LETTERS_MAX {
            return "451 away";
        }
        letters.push(Letter {
            to: recipient.to_owned(),
            alerts: letters::alerts(text),
        });
        "250 taken"
    }
}
