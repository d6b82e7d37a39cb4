//! The engine's state as bytes, stored together with the transitions that led to it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Engine, Latest, Profile, Stream};
use crate::{
    machine::{Machine, Origin},
    memory::Memory,
    rules::{Rule, RuleSet},
};

/// The serialised state. Machines go by rule id, so that a new version of a set takes over those it still has.
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
}

#[derive(Serialize, Deserialize)]
struct StoredMachine {
    rule: Rule,
    machine: Machine,
}

const STORED_VERSION: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("the stored rule state cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("the stored rule state has version {0}, this program reads {STORED_VERSION}")]
    Version(u32),
}

impl Engine {
    /// An engine that goes on where `state` left off. What it remembers for rules that the set does not have is kept until it is
    /// settled: whoever takes a patient over may learn only afterwards which rules hold.
    pub fn restore(
        patient: impl Into<String>,
        rules: Arc<RuleSet>,
        profile: Profile,
        origin: Origin,
        state: &[u8],
    ) -> Result<Engine, RestoreError> {
        let stored: Stored = serde_json::from_slice(state)?;
        if stored.version != STORED_VERSION {
            return Err(RestoreError::Version(stored.version));
        }
        let mut engine = Engine::new(patient, rules, profile, origin);
        for StoredMachine { rule, machine } in stored.machines {
            match engine.index(&rule.id) {
                Some(index) => engine.machines[index] = machine,
                None => engine.retired.push((rule, machine)),
            }
        }
        engine.latest = stored.latest;
        engine.streams = stored.streams;
        engine.impacts = stored.impacts;
        engine.cancelled = stored.cancelled;
        engine.memories = stored.memories;
        engine.clock_us = stored.clock_us;
        engine.persisted_turn = engine.persist_turn();
        Ok(engine)
    }

    /// These are the rules: what is remembered for others, or for one of the same name and another length, is forgotten.
    pub fn settle(&mut self) {
        let rules = &self.rules.rules;
        let has = |id: &str| rules.iter().any(|own| own.id == id);
        self.impacts.retain(|rule, _| has(rule));
        self.cancelled.retain(|rule, _| has(rule));
        self.memories.retain(|rule, memory| {
            let mut rules = rules.iter();
            rules.any(|own| own.id == *rule && memory.fits(&own.condition))
        });
    }

    /// The same patient under other rules: what both have goes on, open episodes of what is gone end with the next event.
    pub fn with_rules(&self, rules: Arc<RuleSet>) -> Engine {
        let restored = Engine::restore(
            self.patient.clone(),
            Arc::clone(&rules),
            self.profile,
            self.origin,
            &self.state(),
        );
        // What was just written can be read.
        let mut engine = restored.unwrap_or_else(|_| {
            Engine::new(self.patient.clone(), rules, self.profile, self.origin)
        });
        engine.settle();
        engine.backfill = self.backfill;
        engine.skipped = self.skipped;
        engine.dirty = true;
        engine
    }

    /// The state to store together with the transitions that led to it.
    pub fn state(&self) -> Vec<u8> {
        let stored = Stored {
            version: STORED_VERSION,
            clock_us: self.clock_us,
            machines: self
                .rules
                .rules
                .iter()
                .zip(&self.machines)
                .filter(|(_, machine)| **machine != Machine::default())
                .chain(self.retired.iter().map(|(rule, machine)| (rule, machine)))
                .map(|(rule, machine)| StoredMachine {
                    rule: rule.clone(),
                    machine: machine.clone(),
                })
                .collect(),
            latest: self.latest.clone(),
            streams: self.streams.clone(),
            impacts: self.impacts.clone(),
            cancelled: self.cancelled.clone(),
            memories: self.memories.clone(),
        };
        // Maps with string or integer keys and finite numbers: serialisation has no way to fail.
        serde_json::to_vec(&stored).unwrap_or_default()
    }
}
