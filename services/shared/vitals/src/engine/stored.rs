//! The engine's state as bytes, stored together with the transitions that led to it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Engine, Foreign, Latest, Look, Profile, RuleState, Stream};
use crate::{
    episodes::{Episode, Episodes},
    frozen::Frozen,
    machine::{Machine, Origin, Phase},
    memory::Memory,
    past::Past,
    rules::{Rule, RuleSet},
};

/// The serialised state. Machines are keyed by rule id, so a new version of a set keeps those of
/// its rules.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    clock_us: i64,
    machines: Vec<StoredMachine>,
    latest: BTreeMap<i32, Latest>,
    streams: BTreeMap<String, Stream>,
    #[serde(default)]
    impacts: BTreeMap<String, i64>,
    #[serde(default)]
    cancelled: BTreeMap<String, i64>,
    #[serde(default)]
    memories: BTreeMap<String, Memory>,
    #[serde(default)]
    frozen: BTreeMap<String, Frozen>,
    /// Apart from the others, because a program without this kind of rule could not read any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    frozen_machines: Vec<StoredMachine>,
    #[serde(default)]
    foreign: BTreeMap<String, Foreign>,
}

#[derive(Serialize, Deserialize)]
struct StoredMachine {
    rule: Rule,
    machine: Machine,
    #[serde(default)]
    episodes: Episodes,
    #[serde(default, skip_serializing_if = "Past::is_empty")]
    past: Past,
}

const STORED_VERSION: u32 = 2;

/// Version 1 kept one episode in each machine, and a phase for an episode that waits for an
/// acknowledgement.
#[derive(Deserialize)]
struct StoredBefore {
    machines: Vec<MachineBefore>,
}

#[derive(Deserialize)]
struct MachineBefore {
    machine: EpisodeBefore,
}

#[derive(Deserialize)]
struct EpisodeBefore {
    episode: Option<Episode>,
}

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the stored rule state cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the stored rule state has version {0}, this program reads 1 to {STORED_VERSION}")]
    Version(u32),
}

impl Engine {
    /// An engine that continues from `state`. Memory of rules outside the set is kept until
    /// [`Engine::settle`], because a member that takes over may learn the rules in force later.
    pub fn restore(
        patient: impl Into<String>,
        rules: Arc<RuleSet>,
        profile: Profile,
        origin: Origin,
        state: &[u8],
    ) -> Result<Engine, RestoreError> {
        let mut stored: Stored = serde_json::from_slice(state)?;
        match stored.version {
            STORED_VERSION => {}
            1 => {
                let before: StoredBefore = serde_json::from_slice(state)?;
                for (new, old) in stored.machines.iter_mut().zip(before.machines) {
                    let is_active = new.machine.phase == Phase::Active;
                    let episode = old.machine.episode;
                    new.episodes = episode
                        .map(|episode| Episodes::of_version_1(episode, is_active))
                        .unwrap_or_default();
                }
            }
            other => return Err(RestoreError::Version(other)),
        }
        let mut engine = Engine::new(patient, rules, profile, origin);
        for StoredMachine {
            rule,
            machine,
            mut episodes,
            past,
        } in stored.machines.into_iter().chain(stored.frozen_machines)
        {
            episodes.past = past;
            let rule_state = RuleState {
                machine,
                episodes,
                look: Look::default(),
            };
            match engine.index(&rule.id) {
                Some(index) => engine.rule_states[index] = rule_state,
                None => engine.retired.push((rule, rule_state)),
            }
        }
        for (rule, foreign) in stored.foreign {
            match engine.index(&rule) {
                Some(index) if engine.rule_states[index].episodes.is_empty() => {
                    engine.rule_states[index].episodes = foreign.episodes;
                }
                Some(_) => {}
                None => {
                    engine.foreign.insert(rule, foreign);
                }
            }
        }
        engine.latest = stored.latest;
        engine.streams = stored.streams;
        engine.impacts = stored.impacts;
        engine.cancelled = stored.cancelled;
        engine.memories = stored.memories;
        engine.frozen = stored.frozen;
        engine.clock_us = stored.clock_us;
        engine.persisted_turn = engine.persist_turn();
        Ok(engine)
    }

    /// The rules are final: memory of other rules is dropped, also of a rule with the same name and
    /// another length.
    pub fn settle(&mut self) {
        let rules = &self.rules.rules;
        let has = |id: &str| rules.iter().any(|own| own.id == id);
        self.frozen.retain(|rule, _| has(rule));
        self.impacts.retain(|rule, _| has(rule));
        self.cancelled.retain(|rule, _| has(rule));
        self.memories.retain(|rule, memory| {
            let mut rules = rules.iter();
            rules.any(|own| own.id == *rule && memory.fits(&own.condition))
        });
    }

    /// The same patient under other rules. Common rules continue; open episodes of removed rules
    /// end with the next event.
    pub fn with_rules(&self, rules: Arc<RuleSet>) -> Engine {
        let restored = Engine::restore(
            self.patient.clone(),
            Arc::clone(&rules),
            self.profile,
            self.origin,
            &self.state(),
        );
        // The state was just written, so it can be read.
        let mut engine = restored.unwrap_or_else(|_| {
            Engine::new(self.patient.clone(), rules, self.profile, self.origin)
        });
        engine.settle();
        engine.backfill = self.backfill;
        engine.skipped = self.skipped;
        engine.dirty = true;
        engine
    }

    /// The state to store together with its transitions, trimmed as by [`Engine::trim`].
    pub fn state(&self) -> Vec<u8> {
        let own = self.rules.rules.iter().zip(&self.rule_states);
        let retired = self.retired.iter().map(|(rule, state)| (rule, state));
        let all = own.chain(retired).map(|(rule, rule_state)| {
            let episodes = rule_state.episodes.trimmed(self.clock_us);
            StoredMachine {
                rule: rule.clone(),
                machine: rule_state.machine.clone(),
                past: episodes.past.clone(),
                episodes,
            }
        });
        let has_memory = |it: &StoredMachine| {
            it.machine != Machine::default() || !it.episodes.is_empty() || !it.past.is_empty()
        };
        let (frozen_machines, machines) = all
            .filter(has_memory)
            .partition(|it| it.rule.condition.is_frozen());
        let stored = Stored {
            version: STORED_VERSION,
            clock_us: self.clock_us,
            machines,
            latest: self.latest.clone(),
            streams: self.streams.clone(),
            impacts: self.impacts.clone(),
            cancelled: self.cancelled.clone(),
            memories: self.memories.clone(),
            frozen: self.frozen.clone(),
            frozen_machines,
            foreign: self.foreign.clone(),
        };
        // Maps with string or integer keys and finite numbers: serialisation cannot fail.
        serde_json::to_vec(&stored).unwrap_or_default()
    }
}
