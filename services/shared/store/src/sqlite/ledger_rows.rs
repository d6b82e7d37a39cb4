//! Rows of the gateways' accounts.

use contracts::vitals::Ledger;
use rusqlite::Connection;

pub fn enter(connection: &Connection, ledgers: &[Ledger]) -> rusqlite::Result<()> {
    for ledger in ledgers {
        let journal = ledger.journal.cast_signed();
        connection
            .prepare_cached(
                "INSERT INTO journals VALUES (?1, ?2, ?3, ?3, ?4) ON CONFLICT DO UPDATE SET
                     since_us = min(since_us, excluded.since_us), as_of_us = max(as_of_us, excluded.as_of_us),
                     waiting = CASE WHEN excluded.as_of_us >= as_of_us THEN excluded.waiting ELSE waiting END",
            )?
            .execute((&ledger.gateway, journal, ledger.at_us, ledger.waiting))?;
        let mut insert = connection.prepare_cached(
            "INSERT INTO ledgers VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT DO UPDATE SET next = max(next, excluded.next)",
        )?;
        for it in &ledger.streams {
            insert.execute((
                &it.device,
                &it.stream,
                &ledger.gateway,
                journal,
                it.first_sequence,
                it.next_sequence,
            ))?;
        }
    }
    Ok(())
}

/// Accounts of journals that were last heard of before `before_us`.
pub fn expire(connection: &Connection, before_us: i64) -> rusqlite::Result<()> {
    let old = "SELECT gateway, journal FROM journals WHERE as_of_us < ?1";
    for sql in [
        format!("DELETE FROM ledgers WHERE (gateway, journal) IN ({old})"),
        "DELETE FROM journals WHERE as_of_us < ?1".to_owned(),
    ] {
        connection.prepare_cached(&sql)?.execute([before_us])?;
    }
    Ok(())
}
