//! `braid dead-letters`: records that a consumer could not understand, and a second chance for them.
//!
//! A replayed record goes to its topic as it was, and a note about it to the dead letters; `list` leaves out what has a note.
//! Consumers are idempotent, so a record that one of them had understood is left out there. One that fails again comes back as a new
//! dead letter.

mod letter;
mod readmit;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use bus::{Bus, Consumer, Event, Topic};
use ingest::readmission::Readmission;
use store::{AuditEntry, Scope};

use crate::alerts::Signed;
use crate::engines::{BusChoice, Engines, EnginesChoice};
use crate::process::{self, Failure, say};
use letter::{Letter, LetterId};

/// Records taken from the bus at once.
const BATCH_RECORDS_MAX: usize = 500;
/// Letters that one command looks at, the newest; older ones are counted and left. Dead letters are few, or something is broken.
const LETTERS_MAX: usize = 10_000;

#[derive(Debug, clap::Subcommand)]
pub enum DeadLettersCommand {
    /// List them: id, when, from where, who could not use it and why.
    #[command(
        after_help = "Examples:\n  braid dead-letters list\n  braid dead-letters list --consumer ingest-store --bus kafka://localhost:9092"
    )]
    List {
        /// Also those that were replayed.
        #[arg(long, default_value_t = false)]
        all: bool,
        /// Print JSON.
        #[arg(long, default_value_t = false)]
        json: bool,
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        bus: BusChoice,
    },
    /// Print one with everything it holds, which may be somebody's readings. Stands in the audit log.
    #[command(
        after_help = "Example:\n  braid dead-letters show 0-12 --by \"Eve Operator\" --reason \"what is it\""
    )]
    Show {
        /// Its id in the list.
        #[arg(value_name = "ID")]
        id: LetterId,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        engines: EnginesChoice,
    },
    /// Publish them again to the topics they came from, for example after the consumer was mended.
    #[command(
        after_help = "Examples:\n  braid dead-letters replay 0-12 0-13\n  braid dead-letters replay --every --consumer alerting"
    )]
    Replay {
        /// Their ids in the list.
        #[arg(value_name = "ID", required_unless_present = "every")]
        ids: Vec<LetterId>,
        /// All that were not replayed before; not uploads of gateways, which were on no topic.
        #[arg(long, conflicts_with = "ids", default_value_t = false)]
        every: bool,
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        bus: BusChoice,
    },
    /// Let kept uploads of newer gateways in again, after an upgrade: as ingest does with every upload, as the gateway they came from.
    ///
    /// What came in at the first time is left out. Readings go to whoever wore the device at their time. What is refused is said, and the
    /// letter stays in the list. Stands in the audit log.
    #[command(
        after_help = "Example:\n  braid dead-letters readmit --every --by \"Eve Operator\" \\\n      --reason \"ingest is upgraded\""
    )]
    Readmit {
        /// Their ids in the list.
        #[arg(value_name = "ID", required_unless_present = "every")]
        ids: Vec<LetterId>,
        /// All that were not let in before.
        #[arg(long, conflicts_with = "ids", default_value_t = false)]
        every: bool,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        engines: EnginesChoice,
    },
}

#[derive(Clone, Debug, clap::Args)]
pub struct Filter {
    /// Only what this consumer could not use.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only those whose reason contains this.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Filter {
    fn admits(&self, letter: &Letter) -> bool {
        let consumer = self.consumer.as_deref();
        let reason = self.reason.as_deref();
        consumer.is_none_or(|name| letter.consumer == name)
            && reason.is_none_or(|text| letter.reason.contains(text))
    }
}

impl DeadLettersCommand {
    pub fn run(self) -> Result<(), Failure> {
        process::block_on(async move {
            match self {
                Self::List {
                    all,
                    json,
                    filter,
                    bus,
                } => list(&*bus.open().await?, all, json, &filter).await,
                Self::Show {
                    id,
                    signed,
                    engines,
                } => show(&engines.open().await?, id, &signed).await,
                Self::Replay {
                    ids,
                    every,
                    filter,
                    bus,
                } => replay(&*bus.open().await?, &ids, every, &filter).await,
                Self::Readmit {
                    ids,
                    every,
                    signed,
                    engines,
                } => {
                    let engines = engines.open().await?;
                    readmit::run(engines, &ids, every, &signed).await
                }
            }
        })?
    }
}

async fn list(bus: &dyn Bus, all: bool, json: bool, filter: &Filter) -> Result<(), Failure> {
    let letters = read(bus).await?;
    let shown: Vec<&Letter> = letters
        .values()
        .filter(|letter| (all || !letter.replayed) && filter.admits(letter))
        .collect();
    if json {
        let shown: Vec<serde_json::Value> = shown.iter().map(|letter| letter.json()).collect();
        let text = serde_json::to_string_pretty(&shown).map_err(Failure::other)?;
        return say(&text);
    }
    let mut text = String::new();
    for letter in &shown {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}", letter.line());
    }
    let replayed = letters.values().filter(|letter| letter.replayed).count();
    let _ = write!(text, "{} shown, {replayed} replayed before", shown.len());
    say(&text)
}

async fn show(engines: &Engines, id: LetterId, signed: &Signed) -> Result<(), Failure> {
    let letters = read(&*engines.bus).await?;
    let letter = letters.get(&id).ok_or_else(|| unknown(id))?;
    let patient = letter.patient().unwrap_or_default();
    // Whose log tells of it: of a patient the register's tenant, of an upload its gateway's.
    let tenant = if letter.is_upload() {
        Readmission::identity(&letter.upload()).map_or(None, |gateway| Some(gateway.tenant))
    } else {
        let entry = engines.store.patient(&Scope::Service, patient).await;
        entry.map_err(Failure::other)?.map(|entry| entry.tenant)
    };
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        tenant: tenant.unwrap_or_else(|| store::DEFAULT_TENANT.to_owned()),
        who: signed.by.clone(),
        action: "show dead letter".to_owned(),
        patient: patient.to_owned(),
        detail: letter.whence(),
    };
    // Written before what it records happens, as everywhere.
    let audited = engines
        .store
        .append_audit(vec![entry.because(&signed.reason)]);
    audited.await.map_err(Failure::other)?;
    say(&letter.to_string())
}

async fn replay(
    bus: &dyn Bus,
    ids: &[LetterId],
    every: bool,
    filter: &Filter,
) -> Result<(), Failure> {
    let letters = read(bus).await?;
    let chosen: Vec<&Letter> = if every {
        let waiting = letters.values();
        let waiting = waiting.filter(|letter| !letter.replayed && letter.can_go_back());
        waiting.filter(|letter| filter.admits(letter)).collect()
    } else {
        let named = ids
            .iter()
            .map(|id| letters.get(id).ok_or_else(|| unknown(*id)));
        named.collect::<Result<_, _>>()?
    };
    let mut replayed = 0;
    for letter in &chosen {
        // The record first: a note about something that did not happen would hide it.
        let published = async {
            let (topic, record) = letter.record()?;
            let retry = "nothing is lost; try again";
            let failed = |error| Failure::other(format!("{}: {error}; {retry}", letter.id));
            bus.publish(topic, vec![record]).await.map_err(failed)?;
            let note = vec![letter.note()];
            bus.publish(Topic::DeadLetters, note).await.map_err(failed)
        };
        if let Err(failure) = published.await {
            say(&format!("{replayed} of {} replayed", chosen.len()))?;
            return Err(failure);
        }
        replayed += 1;
    }
    say(&format!("{replayed} of {} replayed", chosen.len()))
}

/// All letters up to the present end of the topic, and which of them were replayed.
async fn read(bus: &dyn Bus) -> Result<BTreeMap<LetterId, Letter>, Failure> {
    let mut reader = bus
        .read_back(Topic::DeadLetters)
        .await
        .map_err(Failure::other)?;
    let mut letters = BTreeMap::new();
    let mut replayed = Vec::new();
    let mut older = 0;
    while left(&mut reader).await? > 0 {
        let event = reader.next(BATCH_RECORDS_MAX).await;
        let Event::Batch(batch) = event.map_err(Failure::other)? else {
            continue;
        };
        for delivery in batch {
            match letter::read(delivery) {
                letter::Read::Letter(letter) => {
                    letters.insert(letter.id, letter);
                }
                letter::Read::Note(id) => replayed.push(id),
            }
        }
        while letters.len() > LETTERS_MAX {
            letters.pop_first();
            older += 1;
        }
    }
    for id in replayed {
        if let Some(letter) = letters.get_mut(&id) {
            letter.replayed = true;
        }
    }
    if older > 0 {
        eprintln!("{older} older letters are left out");
    }
    Ok(letters)
}

async fn left(reader: &mut Box<dyn Consumer>) -> Result<u64, Failure> {
    reader.lag().await.map_err(Failure::other)
}

fn unknown(id: LetterId) -> Failure {
    Failure::other(format!(
        "no dead letter {id}; `braid dead-letters list --all` shows them"
    ))
}
