//! Which rows are new: the heads of devices (and of gateways, for path reports), locked for the
//! transaction.
//!
//! A head holds the newest run of stored sequences for each stream of its owner, and the newest
//! value for each series. Nearly every batch continues at the end of the head. So the decision
//! takes one read and one write per owner, however many rows come. Older runs (see
//! [`runs`](super::runs)) have a table of their own, which is read only for late or repeated rows.

use std::collections::{BTreeMap, HashMap};

use deadpool_postgres::Transaction;
use prost::Message;

use super::{
    fault::Fault,
    runs::{self, Run},
};

/// Streams whose newest run is in the head; the one that was longest silent moves to the table of
/// older runs.
pub const STREAMS_MAX: usize = 64;
/// Series whose newest value is in the head; the oldest value is forgotten (its samples stay).
pub const LATEST_MAX: usize = 256;

/// Where heads and older runs are.
pub struct Ledger {
    lock: &'static str,
    older: &'static str,
    remove: &'static str,
    add: &'static str,
}

macro_rules! ledger {
    ($heads:literal, $runs:literal) => {
        Ledger {
            // In order of the key, as everybody locks.
            lock: concat!("SELECT key, head FROM ", $heads, " WHERE key = ANY($1) ORDER BY key FOR NO KEY UPDATE"),
            older: concat!(
                "SELECT w.stream, r.first, r.last FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS w (stream, first, last)
                 JOIN ", $runs, " r ON r.stream = w.stream AND r.last >= w.first AND r.first <= w.last ORDER BY 1, 2"
            ),
            remove: concat!(
                "DELETE FROM ", $runs, " r USING unnest($1::int[], $2::bigint[]) AS w (stream, last)
                 WHERE r.stream = w.stream AND r.last = w.last"
            ),
            add: concat!("INSERT INTO ", $runs, " (stream, first, last) SELECT * FROM unnest($1::int[], $2::bigint[], $3::bigint[])"),
        }
    };
}

pub const DEVICES: Ledger = ledger!("device_heads", "stream_runs");
pub const GATEWAYS: Ledger = ledger!("gateway_heads", "session_runs");

#[derive(Clone, PartialEq, Message)]
pub struct Head {
    /// The one that was longest silent first.
    #[prost(message, repeated, tag = "1")]
    pub streams: Vec<StreamHead>,
    #[prost(message, repeated, tag = "2")]
    pub latest: Vec<Latest>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct StreamHead {
    #[prost(int32, tag = "1")]
    pub stream: i32,
    #[prost(sint64, tag = "2")]
    pub first: i64,
    #[prost(sint64, tag = "3")]
    pub last: i64,
}

/// The newest value of one series by device time.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Latest {
    #[prost(int32, tag = "1")]
    pub series: i32,
    #[prost(int64, tag = "2")]
    pub time_us: i64,
    /// From the device's clock to ingest's.
    #[prost(sint64, tag = "3")]
    pub ingest_step_us: i64,
    #[prost(double, tag = "4")]
    pub value: f64,
}

impl Head {
    fn run(&self, stream: i32) -> Option<Run> {
        let head = self.streams.iter().rev().find(|s| s.stream == stream)?;
        Some(Run {
            first: head.first,
            last: head.last,
        })
    }

    /// Keeps the newer of what is there and `latest`, as far as it is not of the future.
    pub fn observe(&mut self, latest: Latest, future_us: i64) {
        match self.latest.iter_mut().find(|l| l.series == latest.series) {
            Some(there)
                if there.time_us <= latest.time_us
                    || (there.time_us > future_us && latest.time_us <= future_us) =>
            {
                *there = latest;
            }
            Some(_) => {}
            None => {
                self.latest.push(latest);
                if self.latest.len() > LATEST_MAX {
                    self.latest.sort_unstable_by_key(|l| l.time_us);
                    self.latest.remove(0);
                }
            }
        }
    }
}

/// A batch's sequences of one stream, in order and distinct.
pub struct Wanted {
    pub owner: i32,
    pub stream: i32,
    pub sequences: Vec<i64>,
}

/// Heads under lock, and the changes of older runs that go with them.
pub struct Locked {
    pub heads: BTreeMap<i32, Head>,
    removed: Vec<(i32, Run)>,
    added: Vec<(i32, Run)>,
}

impl Ledger {
    /// Locks the heads of all owners. Returns for each of `wanted` which sequences are new.
    pub async fn admit(
        &self,
        transaction: &Transaction<'_>,
        wanted: &[Wanted],
    ) -> Result<(Locked, Vec<Vec<i64>>), Fault> {
        let mut owners: Vec<i32> = wanted.iter().map(|w| w.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        let statement = transaction.prepare_cached(self.lock).await?;
        let mut heads = BTreeMap::new();
        for row in transaction.query(&statement, &[&owners]).await? {
            let head = Head::decode(row.get::<_, &[u8]>(1))
                .map_err(|e| Fault::Unavailable(format!("a head cannot be read: {e}")))?;
            heads.insert(row.get::<_, i32>(0), head);
        }
        if heads.len() != owners.len() {
            return Err(Fault::Unavailable("a head was removed by hand".to_owned()));
        }
        let mut older = self.older(transaction, &heads, wanted).await?;
        let mut locked = Locked {
            heads,
            removed: Vec::new(),
            added: Vec::new(),
        };
        let mut new = Vec::with_capacity(wanted.len());
        for want in wanted {
            let older = older.remove(&want.stream).unwrap_or_default();
            new.push(locked.take(want, &older));
        }
        locked.evict();
        Ok((locked, new))
    }

    async fn older(
        &self,
        transaction: &Transaction<'_>,
        heads: &BTreeMap<i32, Head>,
        wanted: &[Wanted],
    ) -> Result<HashMap<i32, Vec<Run>>, Fault> {
        let (mut streams, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
        for want in wanted {
            let run = heads
                .get(&want.owner)
                .and_then(|head| head.run(want.stream));
            if let Some((first, last)) = runs::needs(run, &want.sequences) {
                streams.push(want.stream);
                from.push(first);
                to.push(last);
            }
        }
        let mut older: HashMap<i32, Vec<Run>> = HashMap::new();
        if streams.is_empty() {
            return Ok(older);
        }
        let statement = transaction.prepare_cached(self.older).await?;
        for row in transaction
            .query(&statement, &[&streams, &from, &to])
            .await?
        {
            older.entry(row.get(0)).or_default().push(Run {
                first: row.get(1),
                last: row.get(2),
            });
        }
        Ok(older)
    }

    /// Writes the changes of older runs; the heads are the caller's to write.
    pub async fn settle(
        &self,
        transaction: &Transaction<'_>,
        locked: &Locked,
    ) -> Result<(), Fault> {
        if !locked.removed.is_empty() {
            let statement = transaction.prepare_cached(self.remove).await?;
            let streams: Vec<i32> = locked.removed.iter().map(|(stream, _)| *stream).collect();
            let lasts: Vec<i64> = locked.removed.iter().map(|(_, run)| run.last).collect();
            transaction.execute(&statement, &[&streams, &lasts]).await?;
        }
        if !locked.added.is_empty() {
            let statement = transaction.prepare_cached(self.add).await?;
            let streams: Vec<i32> = locked.added.iter().map(|(stream, _)| *stream).collect();
            let firsts: Vec<i64> = locked.added.iter().map(|(_, run)| run.first).collect();
            let lasts: Vec<i64> = locked.added.iter().map(|(_, run)| run.last).collect();
            transaction
                .execute(&statement, &[&streams, &firsts, &lasts])
                .await?;
        }
        Ok(())
    }
}

impl Locked {
    fn take(&mut self, want: &Wanted, older: &[Run]) -> Vec<i64> {
        let Some(head) = self.heads.get_mut(&want.owner) else {
            return Vec::new();
        };
        let taken = runs::take(head.run(want.stream), older, &want.sequences);
        let stream = want.stream;
        self.removed
            .extend(taken.removed.into_iter().map(|run| (stream, run)));
        self.added
            .extend(taken.added.into_iter().map(|run| (stream, run)));
        if let Some(run) = taken.head {
            head.streams.retain(|s| s.stream != stream);
            head.streams.push(StreamHead {
                stream,
                first: run.first,
                last: run.last,
            });
        }
        taken.new
    }

    /// Only after all were taken: what is taken next must find the run either in the head or in
    /// what was read of the table.
    fn evict(&mut self) {
        for head in self.heads.values_mut() {
            let surplus = head.streams.len().saturating_sub(STREAMS_MAX);
            self.added
                .extend(head.streams.drain(..surplus).map(|silent| {
                    let run = Run {
                        first: silent.first,
                        last: silent.last,
                    };
                    (silent.stream, run)
                }));
        }
    }
}
