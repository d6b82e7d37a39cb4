//! Where partitions begin, asked of the account that a group keeps for itself.

use std::sync::Arc;

use futures::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;

use crate::{Start, StartAt, StartAtError, Topic};

type Asking = BoxFuture<'static, Result<Vec<(u32, Start)>, StartAtError>>;

/// Continues where a cancelled call stopped. A member does other work every second, and an account
/// may need longer than that for all partitions. A member that asked for all of them anew each time
/// would never begin.
pub struct Beginning {
    topic: Topic,
    start: Arc<dyn StartAt>,
    /// The partitions without an answer yet, and the question. Never locked: a future alone could
    /// not be shared between threads.
    asking: Mutex<Option<(Vec<u32>, Asking)>>,
}

impl Beginning {
    pub fn new(topic: Topic, start: Arc<dyn StartAt>) -> Beginning {
        Beginning {
            topic,
            start,
            asking: Mutex::default(),
        }
    }

    /// A call for other partitions than the cancelled one asks for all of them anew.
    pub async fn of(&mut self, partitions: &[u32]) -> Result<Vec<(u32, Start)>, StartAtError> {
        let asking = self.asking.get_mut();
        asking.take_if(|(of, _)| of != partitions);
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let (_, answer) = asking.get_or_insert_with(|| {
            let of = partitions.to_vec();
            let answer = ask(Arc::clone(&self.start), self.topic, of.clone());
            (of, answer.boxed())
        });
        let starts = answer.await;
        *asking = None;
        starts
    }
}

async fn ask(
    start: Arc<dyn StartAt>,
    topic: Topic,
    partitions: Vec<u32>,
) -> Result<Vec<(u32, Start)>, StartAtError> {
    let mut starts = Vec::with_capacity(partitions.len());
    for partition in partitions {
        starts.push((partition, start.start(topic, partition).await?));
    }
    Ok(starts)
}
