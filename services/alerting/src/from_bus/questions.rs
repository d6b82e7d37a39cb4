//! Questions to the register about patients without a profile, beside the judging.
//!
//! A question without an answer goes to the end of the queue. So in each round a patient waits for
//! another one's answer for [`QUESTION_LIMIT`] at most.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use store::{PatientEntry, QueryError};
use tokio::{sync::Notify, task::JoinSet, time::timeout};

use super::register::Entries;

/// Concurrent queries to the register. Fewer than a member's connections, so that other queries
/// find one.
pub(super) const ASKED_AT_ONCE: usize = 3;
/// Limit of one question. Then the question counts as not answered.
const QUESTION_LIMIT: Duration = Duration::from_secs(2);
/// Pause after a question without an answer, so that a register that is away is not flooded.
const PAUSE: Duration = Duration::from_millis(250);

/// The register's entry of a patient; `None` if there is none.
pub(super) type Answered = (String, Option<PatientEntry>);

#[derive(Default)]
struct Queue {
    /// Patients to ask for. Bounded by the patients of this member, whose records are bounded.
    waiting: VecDeque<String>,
    /// Patients that wait, or whose question or answer is on its way.
    open: BTreeSet<String>,
    answers: Vec<Answered>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    asked: Notify,
    answered: Notify,
}

pub(super) struct Questions {
    shared: Arc<Shared>,
    /// Ends with this.
    _workers: JoinSet<()>,
}

impl Questions {
    pub(super) fn new(register: &Arc<dyn Entries>) -> Questions {
        let shared = Arc::<Shared>::default();
        let mut workers = JoinSet::new();
        for _ in 0..ASKED_AT_ONCE {
            workers.spawn(work(Arc::clone(register), Arc::clone(&shared)));
        }
        Questions {
            shared,
            _workers: workers,
        }
    }

    /// Asks for a patient. False: the question is open already.
    pub(super) fn ask(&self, key: &str) -> bool {
        let mut queue = self.shared.queue.lock();
        let is_new = queue.open.insert(key.to_owned());
        if is_new {
            queue.waiting.push_back(key.to_owned());
            self.shared.asked.notify_one();
        }
        is_new
    }

    /// The answers since the last call.
    pub(super) fn answers(&self) -> Vec<Answered> {
        let mut queue = self.shared.queue.lock();
        let answers = std::mem::take(&mut queue.answers);
        for (key, _) in &answers {
            queue.open.remove(key);
        }
        answers
    }

    /// Returns when there may be an answer.
    pub(super) async fn answered(&self) {
        self.shared.answered.notified().await;
    }
}

async fn work(register: Arc<dyn Entries>, shared: Arc<Shared>) {
    loop {
        let next = shared.queue.lock().waiting.pop_front();
        let Some(key) = next else {
            shared.asked.notified().await;
            continue;
        };
        match ask(&*register, &key).await {
            Some(entry) => {
                shared.queue.lock().answers.push((key, entry));
                shared.answered.notify_one();
            }
            None => {
                tokio::time::sleep(PAUSE).await;
                shared.queue.lock().waiting.push_back(key);
            }
        }
    }
}

/// `None`: no answer. The patient is not judged before the register answers, because other rules
/// would end open alerts.
async fn ask(register: &dyn Entries, key: &str) -> Option<Option<PatientEntry>> {
    match timeout(QUESTION_LIMIT, register.entry(key)).await {
        Ok(Ok(entry)) => Some(entry),
        // A damaged entry stays damaged. The default rules are better than no judgement.
        Ok(Err(error @ QueryError::Unreadable(_))) => {
            tracing::error!(patient = key, %error, "the register entry is unreadable; judged as an unregistered patient");
            Some(None)
        }
        Ok(Err(error)) => {
            tracing::warn!(patient = key, %error, "the patient's scale and rules are unknown");
            None
        }
        Err(_) => {
            tracing::warn!(
                patient = key,
                "the register does not answer; the patient's scale and rules are unknown"
            );
            None
        }
    }
}
