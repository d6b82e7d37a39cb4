use async_trait::async_trait;
use contracts::alerts::AlertState;
use rusqlite::OptionalExtension;

use super::{SqliteStore, alerts, writer::Writing};
use crate::{
    AlertsBatch, QueryError, Silent, SilentBatch, SilentPage, SilentStore, WriteError, Written,
    alerts::ALERT, error::readable,
};

const RESOLVED: i32 = AlertState::Resolved as i32;

fn write(writing: &Writing<'_>, batch: &SilentBatch) -> Result<Written, WriteError> {
    let transitions = AlertsBatch {
        transitions: batch.transitions(),
        states: Vec::new(),
    };
    let written = alerts::write(writing, &transitions)?;
    let connection = writing.connection;
    for alert in &batch.ended {
        connection
            .prepare_cached("DELETE FROM silent WHERE alert = ?1")?
            .execute([&alert.id])?;
    }
    let mut conflicts = Vec::new();
    for silent in &batch.begun {
        let there: Option<String> = connection
            .prepare_cached(&format!(
                "SELECT s.alert FROM silent s JOIN alerts a ON a.id = s.alert
                 WHERE s.subject = ?1 AND a.state <> {RESOLVED}"
            ))?
            .query_row([&silent.subject], |row| row.get(0))
            .optional()?;
        match there {
            Some(alert) if alert != silent.alert.id => conflicts.push(silent.alert.id.clone()),
            Some(_) => {}
            None => {
                connection
                    .prepare_cached("INSERT OR REPLACE INTO silent VALUES (?1, ?2, ?3, ?4)")?
                    .execute((
                        &silent.subject,
                        &silent.alert.id,
                        silent.reading_us,
                        silent.report_us,
                    ))?;
            }
        }
    }
    if conflicts.is_empty() {
        Ok(written)
    } else {
        Err(WriteError::Conflict(conflicts))
    }
}

#[async_trait]
impl SilentStore for SqliteStore {
    async fn write_silent(&self, batch: SilentBatch) -> Result<Written, WriteError> {
        self.write(move |writing| write(writing, &batch)).await
    }

    async fn silent_page(&self, after: &str, limit: usize) -> Result<SilentPage, QueryError> {
        let after = after.to_owned();
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "SELECT s.subject, s.reading_us, s.report_us, a.payload
                 FROM silent s JOIN alerts a ON a.id = s.alert
                 WHERE s.subject > ?1 AND a.state <> {RESOLVED} ORDER BY s.subject LIMIT ?2"
            ))?;
            let mut rows = statement.query((after, limit))?;
            let (mut page, mut last, mut count) = (Vec::new(), None, 0);
            while let Some(row) = rows.next()? {
                count += 1;
                let subject: String = row.get(0)?;
                last = Some(subject.clone());
                let payload = row.get_ref(3)?.as_blob().map_err(rusqlite::Error::from)?;
                if let Some(alert) = readable(ALERT, payload) {
                    page.push(Silent {
                        alert,
                        subject,
                        reading_us: row.get(1)?,
                        report_us: row.get(2)?,
                    });
                }
            }
            Ok((page, last.filter(|_| count >= limit)))
        })
        .await
    }

    async fn silent_look_us(&self) -> Result<Option<i64>, QueryError> {
        self.read(move |connection| {
            Ok(connection
                .prepare_cached("SELECT at_us FROM silent_look")?
                .query_row([], |row| row.get(0))
                .optional()?)
        })
        .await
    }

    async fn note_silent_look(&self, at_us: i64) -> Result<(), WriteError> {
        self.write(move |writing| {
            writing
                .connection
                .prepare_cached("INSERT OR REPLACE INTO silent_look VALUES (1, ?1)")?
                .execute([at_us])?;
            Ok(())
        })
        .await
    }
}
