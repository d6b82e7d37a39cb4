//! The rules of the core and who wears what at this gateway: followed over the links that carry vitals, kept on disk, and judged by from then on.
//!
//! One link follows at a time; when it is lost the next one does. What was judged by last is on disk before it is judged by, so that a
//! gateway that starts without a network goes on by it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use contracts::vitals::{
    FollowRulesRequest, FollowRulesResponse, ingest_service_client::IngestServiceClient,
};
use prost::Message;
use service_kit::{Backoff, Warning, WarningHandle};
use tokio::sync::{Semaphore, mpsc};
use tonic::{Code, Status, transport::Channel};

use crate::{
    intake::Intake,
    journal::{Disk, DiskFile},
    rulebook::{Refused, Rulebook},
};

/// Answers that wait for the disk; then the core's next one waits.
const ANSWERS_MAX: usize = 1;
/// A core that does not know the call, or cannot answer, is asked again after so long: it may be upgraded meanwhile.
const ASK_AGAIN: Duration = Duration::from_secs(60);
/// A larger file is no book of ours: a core hands out 3 MiB at most.
const FILE_BYTES_MAX: usize = 8 << 20;
const FILE: &str = "rules";
const FILE_NEW: &str = "rules.new";

/// Whether the core tells at present what changes. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Following(Arc<AtomicBool>);

impl Following {
    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub fn set(&self, is_on: bool) {
        self.0.store(is_on, Ordering::Relaxed);
    }
}

/// What links hand the core's answers to. Clones are the same.
#[derive(Clone)]
pub struct Follower {
    turn: Arc<Semaphore>,
    answers: mpsc::Sender<FollowRulesResponse>,
    following: Following,
}

impl Follower {
    pub fn new() -> (Follower, mpsc::Receiver<FollowRulesResponse>) {
        let (answers, taken) = mpsc::channel(ANSWERS_MAX);
        let turn = Arc::new(Semaphore::new(1));
        let follower = Follower {
            turn,
            answers,
            following: Following::default(),
        };
        (follower, taken)
    }

    pub fn following(&self) -> Following {
        self.following.clone()
    }

    /// Follows by this link, once no other does, for as long as the link lasts or somebody takes the answers.
    pub async fn follow(&self, mut link: IngestServiceClient<Channel>) {
        let Ok(_turn) = self.turn.acquire().await else {
            return;
        };
        let mut backoff = Backoff::for_reconnect();
        // Also when the link, and with it this future, is dropped.
        let _off = Off(&self.following);
        loop {
            let status = match link.follow_rules(FollowRulesRequest {}).await {
                Ok(answers) => {
                    let mut answers = answers.into_inner();
                    loop {
                        match answers.message().await {
                            Ok(Some(answer)) => {
                                backoff.reset();
                                if self.answers.send(answer).await.is_err() {
                                    return;
                                }
                                self.following.set(true);
                            }
                            Ok(None) => break Status::unavailable("ingest ended the stream"),
                            Err(status) => break status,
                        }
                    }
                }
                Err(status) => status,
            };
            self.following.set(false);
            tracing::debug!(%status, "the core's rules are not followed");
            match status.code() {
                Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                _ => backoff.wait().await,
            }
        }
    }
}

struct Off<'a>(&'a Following);

impl Drop for Off<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("the rules that were kept cannot be read: {0}")]
    Storage(#[from] io::Error),
    #[error("the rules that were kept are damaged")]
    Damaged,
}

/// The book on disk: a checksum and the answer that makes it.
#[derive(Clone)]
pub struct BookFile<D>(pub D);

impl<D: Disk> BookFile<D> {
    /// An empty book when none was kept. Blocks on the disk.
    pub fn load(&self) -> Result<Rulebook, LoadError> {
        if !self.0.list()?.iter().any(|name| name == FILE) {
            return Ok(Rulebook::default());
        }
        let bytes = self.0.read_at(FILE, 0, FILE_BYTES_MAX)?;
        let (checksum, answer) = bytes.split_first_chunk().ok_or(LoadError::Damaged)?;
        if crc32fast::hash(answer) != u32::from_le_bytes(*checksum) {
            return Err(LoadError::Damaged);
        }
        let answer = FollowRulesResponse::decode(answer).map_err(|_| LoadError::Damaged)?;
        let (book, refused) = Rulebook::default().take(answer);
        // Another version of this program kept them.
        for refused in refused {
            tracing::warn!("{refused}");
        }
        Ok(book)
    }

    /// Whole or not at all, durable when it returns. Blocks on the disk.
    pub fn store(&self, book: &Rulebook) -> io::Result<()> {
        let answer = book.to_answer().encode_to_vec();
        let mut file = self.0.create(FILE_NEW)?;
        file.append(&crc32fast::hash(&answer).to_le_bytes())?;
        file.append(&answer)?;
        file.sync()?;
        self.0.rename(FILE_NEW, FILE)?;
        self.0.sync_directory()
    }
}

/// Takes the core's answers until nobody follows any more.
pub async fn keep<D: Disk, B: Disk>(
    mut answers: mpsc::Receiver<FollowRulesResponse>,
    mut book: Rulebook,
    file: BookFile<B>,
    intake: Arc<Intake<D>>,
    warning: WarningHandle,
) {
    let mut is_kept = true;
    while let Some(answer) = answers.recv().await {
        let (next, refused) = book.take(answer);
        metrics::counter!("braid_gateway_rules_refused_total").increment(refused.len() as u64);
        for refused in &refused {
            tracing::error!("{refused}");
        }
        warning.set(warning_of(&refused));
        if next == book && is_kept {
            continue;
        }
        let (to, of) = (file.clone(), next.clone());
        let stored = tokio::task::spawn_blocking(move || to.store(&of)).await;
        let stored = stored.map_err(io::Error::other).flatten();
        is_kept = stored.is_ok();
        if let Err(error) = stored {
            // Judged by all the same: the next start may go by older ones, this run must not.
            tracing::error!(%error, "the core's rules cannot be kept");
        }
        let versions: Vec<String> = next
            .versions()
            .map(|(subject, version)| format!("{subject} {version}"))
            .collect();
        tracing::info!(rules = versions.join(", "), "judging by the core's rules");
        metrics::counter!("braid_gateway_rules_taken_total").increment(1);
        intake.judge_by(next.clone());
        book = next;
    }
}

fn warning_of(refused: &[Refused]) -> Option<Warning> {
    let first = refused.first()?;
    Some(Warning {
        says: match refused.len() {
            1 => first.to_string(),
            more => format!("{first}; and {} more", more - 1),
        },
        to_do: "put a rule set that `braid rules check` of the gateway's version accepts"
            .to_owned(),
    })
}
