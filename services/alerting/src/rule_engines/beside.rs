//! Stored state of a patient beside the engine: the learned clocks of its devices, and the notes of
//! a backlog.
//!
//! It is one more member of the engine's JSON object. So it is written in the transaction of the
//! engine's transitions, and a version that does not know it ignores it.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{lateness::Lateness, unheard::Unheard};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Beside {
    /// By device.
    #[serde(default)]
    pub(super) clocks: BTreeMap<String, Lateness>,
    #[serde(default)]
    pub(super) unheard: Unheard,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    beside: Beside,
}

impl Beside {
    /// The state of the engine with this beside it.
    pub(super) fn join(&self, engine: Vec<u8>) -> Bytes {
        // Maps with string keys, numbers and strings: serialisation cannot fail.
        let Ok(beside) = serde_json::to_vec(self) else {
            return engine.into();
        };
        let Some(members) = engine.strip_prefix(b"{") else {
            return engine.into();
        };
        let mut state = br#"{"beside":"#.to_vec();
        state.extend(beside);
        if members != b"}" {
            state.push(b',');
        }
        state.extend(members);
        state.into()
    }

    /// Nothing, if a version without it wrote the state. Unreadable clocks are learned again.
    pub(super) fn of(state: &[u8]) -> Beside {
        serde_json::from_slice(state).map_or_else(
            |error| {
                tracing::error!(%error, "what is stored beside the rules cannot be read");
                Beside::default()
            },
            |stored: Stored| stored.beside,
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_is_one_more_member_that_the_engine_ignores() {
        let mut beside = Beside::default();
        beside.clocks.insert("belt".into(), Lateness::default());
        let state = beside.join(br#"{"version":2}"#.to_vec());
        assert_eq!(Beside::of(&state), beside);
        let whole: serde_json::Value = serde_json::from_slice(&state).unwrap();
        assert_eq!(whole["version"], 2);
        for other in [&br#"{"version":2}"#[..], b"{}", b"", b"no"] {
            assert_eq!(Beside::of(other), Beside::default());
        }
        assert_eq!(Beside::of(&beside.join(b"{}".to_vec())), beside);
        assert_eq!(beside.join(b"no".to_vec()), "no");
    }
}
