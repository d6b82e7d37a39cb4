//! Looks keys up in the cache of a store, and makes those that are missing.

use super::{
    TimescaleStore,
    fault::Fault,
    keys::{Keys, Missing, make},
};

/// Rounds of queries for unknown keys: one for each kind of key, and one to spare.
const ROUNDS_MAX: usize = 5;

/// Looks everything up with `look`, making what is missing, until `look` misses nothing.
pub async fn resolve<T>(
    store: &TimescaleStore,
    mut look: impl FnMut(&Keys, &mut Missing) -> Option<T>,
) -> Result<T, Fault> {
    for round in 0..=ROUNDS_MAX {
        let mut missing = Missing::default();
        {
            let mut keys = store.keys.lock();
            if round == 0 {
                keys.trim();
            }
            if let Some(found) = look(&keys, &mut missing)
                && missing.is_empty()
            {
                return Ok(found);
            }
        }
        let connection = store.writer().await?;
        make(&store.keys, &connection, &missing).await?;
    }
    Err(Fault::Unavailable(
        "keys vanish as they are made".to_owned(),
    ))
}
