//! The one thread of the process that keeps its members' beats, leases and commits in
//! `bus-groups.db`. [`super::membership`] decides which partitions to take and to give; this file
//! reads, writes and informs the assignments.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    assignment::Assignment,
    instance::Instance,
    membership::{Member, Tables, View},
    schema,
};
use crate::{CommitError, Topic};

/// Interval of the search for other processes' changes.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interval of a member's beats: a tenth of the time after which it counts as dead.
const BEAT_EVERY: Duration = Duration::from_millis(500);

pub enum Command {
    Join {
        id: u64,
        group: String,
        topic: Topic,
        partitions: u32,
        assignment: Arc<Assignment>,
    },
    Leave {
        id: u64,
    },
    /// An assignment has partitions to give back.
    Released,
    Commit {
        id: u64,
        offsets: Vec<(u32, u64)>,
        reply: oneshot::Sender<Result<(), CommitError>>,
    },
    Committed {
        group: String,
        topic: Topic,
        partition: u32,
        reply: oneshot::Sender<Result<Option<u64>, String>>,
    },
    /// Ends the thread; `tidy` leaves the groups first.
    Stop {
        tidy: bool,
    },
}

struct Registration {
    group: String,
    topic: Topic,
    partitions: u32,
    /// Its name in the tables.
    member: String,
    assignment: Arc<Assignment>,
    view: View,
    beat: u64,
}

pub struct Groups {
    connection: Connection,
    instance: Instance,
    started: Instant,
    /// One per live consumer of this process.
    registrations: BTreeMap<u64, Registration>,
    data_version: i64,
}

impl Groups {
    pub fn new(connection: Connection, instance: Instance) -> Groups {
        Groups {
            connection,
            instance,
            started: Instant::now(),
            registrations: BTreeMap::new(),
            data_version: 0,
        }
    }

    pub fn run(mut self, commands: &Receiver<Command>) {
        let mut beat_at = Instant::now();
        loop {
            let mut changed = false;
            match commands.recv_timeout(LOOK_EVERY) {
                Ok(Command::Stop { tidy: true }) | Err(RecvTimeoutError::Disconnected) => {
                    let ids: Vec<u64> = self.registrations.keys().copied().collect();
                    ids.into_iter().for_each(|id| self.leave(id));
                    return;
                }
                Ok(Command::Stop { tidy: false }) => {
                    self.instance.abandon();
                    return;
                }
                Ok(command) => changed |= self.handle(command),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let beat = Instant::now() >= beat_at;
            if beat {
                beat_at = Instant::now() + BEAT_EVERY;
            }
            if self.registrations.is_empty() || !(changed | self.others_wrote() | beat) {
                continue;
            }
            let ids: Vec<u64> = self.registrations.keys().copied().collect();
            for id in ids {
                if let Err(e) = self.turn(id) {
                    metrics::counter!("braid_bus_group_errors_total").increment(1);
                    tracing::warn!(error = %e, "a consumer group's tables do not answer");
                }
            }
        }
    }

    /// True when the members of a group should look at once.
    fn handle(&mut self, command: Command) -> bool {
        match command {
            Command::Join {
                id,
                group,
                topic,
                partitions,
                assignment,
            } => {
                let registration = Registration {
                    member: format!("{}-{id}", self.instance.name),
                    group,
                    topic,
                    partitions,
                    assignment,
                    view: View::default(),
                    beat: 0,
                };
                self.registrations.insert(id, registration);
                true
            }
            Command::Leave { id } => {
                self.leave(id);
                true
            }
            Command::Released => true,
            Command::Commit { id, offsets, reply } => {
                let _ = reply.send(self.commit(id, &offsets));
                false
            }
            Command::Committed {
                group,
                topic,
                partition,
                reply,
            } => {
                let committed = schema::committed(&self.connection, &group, topic, partition);
                let _ = reply.send(committed.map_err(|e| e.to_string()));
                false
            }
            Command::Stop { .. } => false,
        }
    }

    fn others_wrote(&mut self) -> bool {
        let version = self
            .connection
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .unwrap_or(self.data_version + 1);
        let changed = version != self.data_version;
        self.data_version = version;
        changed
    }

    /// One look of one member at the tables, and the resulting changes, in one transaction.
    fn turn(&mut self, id: u64) -> rusqlite::Result<()> {
        let Some(registration) = self.registrations.get_mut(&id) else {
            return Ok(());
        };
        let connection = &self.connection;
        let assignment = registration.assignment.clone();
        let now = self.started.elapsed();
        let instance = &self.instance;
        let (held, give) = in_transaction(connection, || {
            if assignment.is_stuck() {
                remove_member(connection, registration)?;
                return Ok((BTreeSet::new(), Vec::new()));
            }
            beat(connection, registration, &instance.name)?;
            for partition in assignment.released() {
                release(connection, registration, partition)?;
            }
            let tables = read(connection, registration)?;
            let plan = registration.view.look(
                now,
                &registration.member,
                registration.partitions,
                &tables,
                |other| instance.gone(other),
            );
            let mut held: BTreeSet<u32> = tables
                .leases
                .iter()
                .filter(|(_, holder)| **holder == registration.member)
                .map(|(partition, _)| *partition)
                .collect();
            for name in &plan.bury {
                bury(connection, registration, name)?;
            }
            for partition in &plan.take {
                connection
                    .prepare_cached("INSERT OR REPLACE INTO leases VALUES (?1, ?2, ?3, ?4)")?
                    .execute((
                        &registration.group,
                        registration.topic.name(),
                        partition,
                        &registration.member,
                    ))?;
                held.insert(*partition);
            }
            for partition in assignment.unseen(&plan.give) {
                release(connection, registration, partition)?;
                held.remove(&partition);
            }
            Ok((held, plan.give))
        })?;
        assignment.settle(&held, &give);
        Ok(())
    }

    fn commit(&mut self, id: u64, offsets: &[(u32, u64)]) -> Result<(), CommitError> {
        let Some(registration) = self.registrations.get(&id) else {
            return Err(CommitError::NotOwner(offsets.iter().map(|o| o.0).collect()));
        };
        let connection = &self.connection;
        let refused = in_transaction(connection, || {
            let mut refused = Vec::new();
            for (partition, next) in offsets {
                let committed = connection
                    .prepare_cached(
                        "INSERT INTO commits SELECT grp, topic, part, ?5 FROM leases
                             WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND member = ?4
                         ON CONFLICT DO UPDATE SET next_offset = excluded.next_offset",
                    )?
                    .execute((
                        &registration.group,
                        registration.topic.name(),
                        partition,
                        &registration.member,
                        next,
                    ))?;
                if committed == 0 {
                    refused.push(*partition);
                }
            }
            Ok(refused)
        })
        .map_err(|e| CommitError::Unavailable(e.to_string()))?;
        if refused.is_empty() {
            Ok(())
        } else {
            Err(CommitError::NotOwner(refused))
        }
    }

    fn leave(&mut self, id: u64) {
        if let Some(registration) = self.registrations.remove(&id) {
            let connection = &self.connection;
            if let Err(e) = in_transaction(connection, || remove_member(connection, &registration))
            {
                // The other members remove it when its beat stands still.
                tracing::warn!(error = %e, group = registration.group, "could not leave the group");
            }
        }
    }
}

fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let result = work().and_then(|value| {
        connection.execute_batch("COMMIT")?;
        Ok(value)
    });
    if result.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    result
}

fn beat(connection: &Connection, me: &mut Registration, instance: &str) -> rusqlite::Result<()> {
    me.beat += 1;
    connection
        .prepare_cached("INSERT OR REPLACE INTO members VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute((&me.group, me.topic.name(), &me.member, instance, me.beat))
        .map(drop)
}

fn read(connection: &Connection, me: &Registration) -> rusqlite::Result<Tables> {
    let key = (&me.group, me.topic.name());
    let members = connection
        .prepare_cached("SELECT member, instance, beat FROM members WHERE grp = ?1 AND topic = ?2")?
        .query_map(key, |row| {
            Ok(Member {
                name: row.get(0)?,
                instance: row.get(1)?,
                beat: row.get(2)?,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let leases = connection
        .prepare_cached("SELECT part, member FROM leases WHERE grp = ?1 AND topic = ?2")?
        .query_map(key, |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Tables { members, leases })
}

fn release(connection: &Connection, me: &Registration, partition: u32) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM leases WHERE grp = ?1 AND topic = ?2 AND part = ?3 AND member = ?4",
        )?
        .execute((&me.group, me.topic.name(), partition, &me.member))
        .map(drop)
}

fn bury(connection: &Connection, me: &Registration, name: &str) -> rusqlite::Result<()> {
    let key = (&me.group, me.topic.name(), name);
    connection
        .prepare_cached("DELETE FROM members WHERE grp = ?1 AND topic = ?2 AND member = ?3")?
        .execute(key)?;
    connection
        .prepare_cached("DELETE FROM leases WHERE grp = ?1 AND topic = ?2 AND member = ?3")?
        .execute(key)
        .map(drop)
}

fn remove_member(connection: &Connection, me: &Registration) -> rusqlite::Result<()> {
    bury(connection, me, &me.member)
}
