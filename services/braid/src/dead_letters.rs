//! `braid dead-letters`: records that a consumer could not process, and their replay.
//!
//! A replayed record goes to its topic unchanged, and a note about it goes to the dead letters;
//! `list` leaves out records with a note. Consumers are idempotent, so a consumer that had
//! processed the record ignores it. A record that fails again becomes a new dead letter.

mod letter;
mod reading;
mod readmit;

use bus::{Bus, Topic};
use ingest::readmission::Readmission;
use store::{AuditEntry, Scope};

use crate::engines::{BusChoice, Engines, EnginesChoice};
use crate::process::{self, Failure, say};
use crate::signed::Signed;
use letter::{Letter, LetterId};
use reading::{read, unknown};

#[derive(Debug, clap::Subcommand)]
pub enum DeadLettersCommand {
    /// List dead letters: id, time, origin, consumer and reason.
    #[command(
        after_help = "Examples:\n  braid dead-letters list\n  braid dead-letters list --consumer ingest-store --bus kafka://localhost:9092"
    )]
    List {
        /// Also list replayed letters.
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
    /// Print a letter with its content, which may be a patient's readings. Recorded in the audit
    /// log.
    #[command(
        after_help = "Example:\n  braid dead-letters show 0-12 --by \"Eve Operator\" --reason \"what is it\""
    )]
    Show {
        /// The letter's id in the list.
        #[arg(value_name = "ID")]
        id: LetterId,
        #[command(flatten)]
        signed: Signed,
        #[command(flatten)]
        engines: EnginesChoice,
    },
    /// Publish letters again to their topics, for example after the consumer was corrected.
    #[command(
        after_help = "Examples:\n  braid dead-letters replay 0-12 0-13\n  braid dead-letters replay --every --consumer alerting"
    )]
    Replay {
        /// The letters' ids in the list.
        #[arg(value_name = "ID", required_unless_present = "every")]
        ids: Vec<LetterId>,
        /// All letters that were not replayed before, except uploads of gateways and messages of
        /// the hospital, which were on no topic.
        #[arg(long, conflicts_with = "ids", default_value_t = false)]
        every: bool,
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        bus: BusChoice,
    },
    /// Admit stored uploads of newer gateways again, after an upgrade, and messages of the hospital
    /// once the cause of their refusal is corrected. Ingest admits uploads like any upload, as the
    /// gateway that they came from.
    ///
    /// Samples that were admitted at the first time are left out. Readings are attributed to the
    /// wearer at their time. Refused samples are printed, and the letter stays in the list.
    /// Recorded in the audit log.
    #[command(
        after_help = "Example:\n  braid dead-letters readmit --every --by \"Eve Operator\" \\\n      --reason \"ingest is upgraded\""
    )]
    Readmit {
        /// The letters' ids in the list.
        #[arg(value_name = "ID", required_unless_present = "every")]
        ids: Vec<LetterId>,
        /// All uploads and messages that were not admitted before.
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
    /// Only letters of this consumer.
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Only letters whose reason contains this text.
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
        return process::json(&shown);
    }
    for letter in &shown {
        say(&letter.line())?;
    }
    let replayed = letters.values().filter(|letter| letter.replayed).count();
    say(&format!(
        "{} shown, {replayed} replayed before",
        shown.len()
    ))
}

async fn show(engines: &Engines, id: LetterId, signed: &Signed) -> Result<(), Failure> {
    let letters = read(&*engines.bus).await?;
    let letter = letters.get(&id).ok_or_else(|| unknown(id))?;
    let patient = letter.patient().unwrap_or_default();
    // The tenant whose audit log records it: for a patient that of the register, for an upload its
    // gateway's.
    let tenant = if letter.is_upload() {
        Readmission::identity(&letter.upload()).map_or(None, |gateway| Some(gateway.tenant))
    } else {
        let entry = engines.store.patient(&Scope::Service, patient).await;
        entry.map_err(Failure::other)?.map(|entry| entry.tenant)
    };
    let tenant = tenant.unwrap_or_else(|| store::DEFAULT_TENANT.to_owned());
    let entry = AuditEntry {
        time_us: contracts::now_us(),
        who: signed.by.who(&*engines.store, &tenant).await?,
        tenant,
        action: "show dead letter".to_owned(),
        patient: patient.to_owned(),
        detail: letter.whence(),
    };
    // Written before the recorded action happens.
    let audited = engines
        .store
        .append_audit(vec![entry.because(&signed.reason)]);
    audited.await.map_err(Failure::other)?;
    process::print(&format!("{letter}\n"))
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
        // The record first: a note without a replay would hide the letter.
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
