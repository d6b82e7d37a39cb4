use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row};

use super::SqliteStore;
use crate::{Account, Accounts, AuditEntry, AuditQuery, QueryError, Role, Scope, WriteError};

/// Entries of an audit query that sets no limit.
const AUDIT_LIMIT_DEFAULT: usize = 1000;

fn account(row: &Row<'_>) -> rusqlite::Result<Account> {
    let role: String = row.get(2)?;
    Ok(Account {
        name: row.get(0)?,
        tenant: row.get(1)?,
        // A role of a newer version gets the least that there is.
        role: Role::from_name(&role).unwrap_or(Role::Viewer),
        password_hash: row.get(3)?,
        created_us: row.get(4)?,
    })
}

impl SqliteStore {
    async fn insert_account(&self, account: &Account, replace: bool) -> Result<bool, WriteError> {
        let account = account.clone();
        self.write(move |writing| {
            let or = if replace { "REPLACE" } else { "IGNORE" };
            let inserted = writing
                .connection
                .prepare_cached(&format!(
                    "INSERT OR {or} INTO accounts VALUES (?1, ?2, ?3, ?4, ?5)"
                ))?
                .execute((
                    &account.name,
                    &account.tenant,
                    account.role.name(),
                    &account.password_hash,
                    account.created_us,
                ))?;
            Ok(inserted > 0)
        })
        .await
    }
}

pub fn insert_audit(connection: &Connection, entries: &[AuditEntry]) -> Result<(), WriteError> {
    let mut insert =
        connection.prepare_cached("INSERT INTO audit VALUES (NULL, ?1, ?2, ?3, ?4, ?5, ?6)")?;
    for entry in entries {
        insert.execute((
            entry.time_us,
            &entry.tenant,
            &entry.who,
            &entry.action,
            &entry.patient,
            &entry.detail,
        ))?;
    }
    Ok(())
}

#[async_trait]
impl Accounts for SqliteStore {
    async fn put_account(&self, account: &Account) -> Result<(), WriteError> {
        self.insert_account(account, true).await.map(drop)
    }

    async fn create_account(&self, account: &Account) -> Result<bool, WriteError> {
        self.insert_account(account, false).await
    }

    async fn remove_account(&self, name: &str) -> Result<bool, WriteError> {
        let name = name.to_owned();
        self.write(move |writing| {
            let removed = writing
                .connection
                .execute("DELETE FROM accounts WHERE name = ?1", [name])?;
            Ok(removed > 0)
        })
        .await
    }

    async fn account(&self, name: &str) -> Result<Option<Account>, QueryError> {
        let name = name.to_owned();
        self.read(move |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT name, tenant, role, password_hash, created_us FROM accounts WHERE name = ?1",
                )?
                .query_row([name], account)
                .optional()?)
        })
        .await
    }

    async fn accounts(&self, scope: &Scope) -> Result<Vec<Account>, QueryError> {
        let tenant = scope.as_tenant().map(str::to_owned);
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT name, tenant, role, password_hash, created_us FROM accounts
                 WHERE ?1 IS NULL OR tenant = ?1 ORDER BY name",
            )?;
            let rows = statement.query_map([tenant], account)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<(), WriteError> {
        self.write(move |writing| insert_audit(writing.connection, &entries))
            .await
    }

    async fn audit(
        &self,
        scope: &Scope,
        query: &AuditQuery,
    ) -> Result<Vec<AuditEntry>, QueryError> {
        let (tenant, query) = (scope.as_tenant().map(str::to_owned), query.clone());
        self.read(move |connection| {
            let limit = if query.limit == 0 {
                AUDIT_LIMIT_DEFAULT
            } else {
                query.limit
            };
            let mut statement = connection.prepare_cached(
                "SELECT time_us, tenant, who, action, patient, detail FROM audit
                 WHERE (?1 IS NULL OR tenant = ?1) AND (?2 IS NULL OR patient = ?2) AND time_us >= ?3 AND time_us < ?4
                 ORDER BY time_us DESC, key DESC LIMIT ?5",
            )?;
            let rows = statement.query_map(
                (tenant, query.patient, query.from_us, query.to_us, limit),
                |row| {
                    Ok(AuditEntry {
                        time_us: row.get(0)?,
                        tenant: row.get(1)?,
                        who: row.get(2)?,
                        action: row.get(3)?,
                        patient: row.get(4)?,
                        detail: row.get(5)?,
                    })
                },
            )?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }
}
