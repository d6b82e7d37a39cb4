//! Replicas that tell people of one outage, with a store and a mail server of their own.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use clocks::CheckedClock;
use consumer_health::Moment;
use contracts::alerts::Document;
use store::SqliteStore;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::*;

/// Reached only by a failing test.
const STUCK_AFTER: Duration = Duration::from_secs(20);

/// A mail server on this machine, without TLS.
#[derive(Clone, Default)]
struct MailServer {
    /// Recipient, and the letter with its head.
    letters: Arc<Mutex<Vec<(String, String)>>>,
    /// Letters that are refused for now, with 451.
    refusals: Arc<Mutex<u32>>,
    /// An address that is refused for good, with 550.
    unknown: Arc<Mutex<String>>,
}

impl MailServer {
    async fn start(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let own = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // A client that disconnects ends its conversation, not the server.
                let _ = own.converse(stream).await;
            }
        });
        address
    }

    async fn converse(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        stream.write_all(b"220 peer ESMTP\r\n").await?;
        let (mut to, mut line) = (String::new(), String::new());
        while stream.read_line(&mut line).await? > 0 {
            let answer = match line.get(..4).unwrap_or_default() {
                "RCPT" if line.contains(&format!("<{}>", self.unknown.lock())) => "550 nobody",
                "RCPT" => {
                    to = line.split(['<', '>']).nth(1).unwrap_or_default().to_owned();
                    "250 ok"
                }
                "DATA" => {
                    stream.write_all(b"354 end with a dot\r\n").await?;
                    let mut text = String::new();
                    while !text.ends_with("\r\n.\r\n") {
                        stream.read_line(&mut text).await?;
                    }
                    let mut refusals = self.refusals.lock();
                    match *refusals {
                        0 => {
                            self.letters.lock().push((to.clone(), text));
                            "250 taken"
                        }
                        _ => {
                            *refusals -= 1;
                            "451 try again"
                        }
                    }
                }
                _ => "250 ok",
            };
            stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
            line.clear();
        }
        Ok(())
    }

    /// Recipients of the letters so far.
    fn told(&self) -> Vec<String> {
        let letters = self.letters.lock();
        letters.iter().map(|(to, _)| to.clone()).collect()
    }
}

fn recipients() -> SharedRecipients {
    let team = Document {
        tenant: "one".to_owned(),
        body: r#"{
          "contacts": [
            {"id": "day", "name": "Day", "email": "day@example.org"},
            {"id": "night", "name": "Night", "email": "night@example.org"}
          ],
          "rota": [{"shifts": [
            {"from": "mon 00:00", "to": "mon 00:00", "contact": "day"},
            {"from": "mon 00:00", "to": "mon 00:00", "contact": "night"}
          ]}]
        }"#
        .to_owned(),
        ..Document::default()
    };
    let people = TeamPeople::read(&team).unwrap();
    let mut recipients = Recipients::new(&[]);
    recipients.on_teams([(team, people)]);
    SharedRecipients::new(recipients.into())
}

fn outage() -> Post {
    Post::Outage {
        since: Moment::by(&CheckedClock::of_machine()),
        says: vec!["alerts are late".to_owned()],
    }
}

fn replica(store: &Arc<dyn Store>, webhook: Option<u16>, smtp: Option<SocketAddr>) -> Teller {
    let mail = MailConfig {
        smtp: smtp.map(|address| format!("smtp-plain://{address}")),
        email_from: Some("braid@example.org".to_owned()),
        ..MailConfig::default()
    };
    let webhook = webhook.map(|port| Webhook::at(format!("http://127.0.0.1:{port}/pager")));
    let ways = Ways {
        webhook,
        mailer: mail.mailer().unwrap().map(Arc::new),
    };
    let clock = CheckedClock::of_machine();
    let turns = OutageTurns::new(Arc::clone(store), clock.clone());
    let mut teller = Teller::new(ways, recipients(), turns, clock);
    teller.begin(outage());
    teller
}

async fn round(teller: &mut Teller) {
    timeout(STUCK_AFTER, teller.round()).await.unwrap();
}

async fn refused_port() -> u16 {
    let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
    refusing.local_addr().unwrap().port()
}

fn sqlite() -> (tempfile::TempDir, Arc<dyn Store>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(dir.path()).unwrap());
    (dir, store)
}

#[tokio::test]
async fn an_outage_that_one_replica_cannot_post_is_posted_by_another_one() {
    let (_dir, store) = sqlite();
    let mut cut = replica(&store, Some(refused_port().await), None);
    for _ in 0..TRIES_MAX {
        round(&mut cut).await;
    }
    assert!(cut.told.is_empty(), "nobody was told");

    let pager = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = pager.local_addr().unwrap().port();
    let mut other = replica(&store, Some(port), None);
    let told = tokio::spawn(async move {
        let (mut stream, _) = pager.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        length
    });
    round(&mut other).await;
    assert!(other.told.contains(WEBHOOK));
    assert!(timeout(STUCK_AFTER, told).await.unwrap().unwrap() > 0);
    // The first one learns that the installation has posted.
    round(&mut cut).await;
    assert!(cut.told.is_empty());
}

#[tokio::test]
async fn the_people_of_the_team_get_one_letter_of_all_replicas_and_one_at_the_end() {
    let (_dir, store) = sqlite();
    let server = MailServer::default();
    let address = server.start().await;
    let mut first = replica(&store, None, Some(address));
    let mut second = replica(&store, None, Some(address));
    for _ in 0..2 {
        round(&mut first).await;
        round(&mut second).await;
    }
    assert_eq!(server.told(), ["day@example.org", "night@example.org"]);
    let (_, text) = server.letters.lock()[0].clone();
    assert!(
        text.contains("Subject: [high] Alerts may not reach you"),
        "{text}"
    );
    assert!(text.contains("  alerts are late"), "{text}");

    let over = Post::Recovered {
        since: Moment::by(&CheckedClock::of_machine()),
        until: Moment::by(&CheckedClock::of_machine()),
    };
    first.begin(over.clone());
    round(&mut first).await;
    assert_eq!(server.told().len(), 2, "the second replica is not well");
    second.begin(over);
    round(&mut second).await;
    round(&mut first).await;
    let told = server.told();
    assert_eq!(told[2..], ["day@example.org", "night@example.org"]);
    assert!(first.current.is_none() && second.current.is_none());
}

#[tokio::test]
async fn whom_the_server_refuses_now_is_told_later_and_whom_it_does_not_know_stops_nobody() {
    let (_dir, store) = sqlite();
    let server = MailServer::default();
    "day@example.org".clone_into(&mut server.unknown.lock());
    *server.refusals.lock() = 2;
    let mut teller = replica(&store, None, Some(server.start().await));
    for _ in 0..4 {
        round(&mut teller).await;
    }
    assert_eq!(server.told(), ["night@example.org"]);
}

#[tokio::test]
async fn without_a_store_people_are_told_all_the_same_and_once_by_each_replica() {
    let (dir, store) = sqlite();
    let server = MailServer::default();
    let address = server.start().await;
    let mut teller = replica(&store, None, Some(address));
    let file = rusqlite::Connection::open(dir.path().join("store.db")).unwrap();
    file.execute_batch("ALTER TABLE documents RENAME TO away")
        .unwrap();
    let nobody = BTreeSet::new();
    assert!(teller.turns.enter(&nobody, &nobody).await.is_none());
    round(&mut teller).await;
    round(&mut teller).await;
    assert_eq!(server.told(), ["day@example.org", "night@example.org"]);
}
