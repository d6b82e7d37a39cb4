//! Asks the store whether this replica notifies people of an outage for the installation.

use std::{collections::BTreeSet, sync::Arc};

use clocks::CheckedClock;
use store::Store;

use crate::{
    outage::shared::{OutageDocument, Turn},
    shared_document::{Changed, SharedDocument},
};

/// The document is of this kind, and has one subject.
const KIND: &str = "outage-posts";
const SUBJECT: &str = "canary-webhook";

pub(crate) struct OutageTurns {
    document: SharedDocument,
}

impl OutageTurns {
    pub(crate) fn new(store: Arc<dyn Store>, clock: CheckedClock) -> OutageTurns {
        OutageTurns {
            document: SharedDocument::new(store, clock, KIND, SUBJECT),
        }
    }

    /// Names letters of this replica when the store does not answer.
    pub(crate) fn replica(&self) -> &str {
        self.document.replica()
    }

    /// See [`OutageDocument::enter`]. `None`: the store does not answer, so the replica notifies
    /// people by itself.
    pub(crate) async fn enter(
        &self,
        told: &BTreeSet<String>,
        wanted: &BTreeSet<String>,
    ) -> Option<(Turn, OutageDocument)> {
        let changed = self.document.change(|shared: &mut OutageDocument, now_us| {
            let turn = shared.enter(self.replica(), told, wanted, now_us);
            (turn, shared.clone())
        });
        match changed.await {
            Changed::To(turn) => Some(turn),
            Changed::Contended => Some((Turn::Wait, OutageDocument::default())),
            Changed::Away => None,
        }
    }

    /// See [`OutageDocument::pass_on`]. Without an answer the turn ends by itself.
    pub(crate) async fn pass_on(&self) {
        self.document
            .change(|shared: &mut OutageDocument, _| shared.pass_on(self.replica()))
            .await;
    }

    /// See [`OutageDocument::leave`], with the name of the outage. The outer `None`: the store does
    /// not answer.
    pub(crate) async fn leave(&self) -> Option<Option<(BTreeSet<String>, String)>> {
        let changed = self.document.change(|shared: &mut OutageDocument, now_us| {
            let outage = shared.outage.clone();
            let told = shared.leave(self.replica(), now_us)?;
            Some((told, outage))
        });
        match changed.await {
            Changed::To(left) => Some(left),
            Changed::Contended => Some(None),
            Changed::Away => None,
        }
    }
}
