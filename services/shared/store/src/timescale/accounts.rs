use async_trait::async_trait;
use deadpool_postgres::Transaction;
use tokio_postgres::Row;

use super::{TimescaleStore, fault::Fault, transaction};
use crate::{Account, Accounts, AuditEntry, AuditQuery, QueryError, Role, Scope, WriteError};

/// Entries of an audit query that sets no limit.
const AUDIT_LIMIT_DEFAULT: usize = 1000;

fn account(row: &Row) -> Account {
    Account {
        name: row.get(0),
        tenant: row.get(1),
        // A role of a newer version gets the least that there is.
        role: Role::from_name(row.get(2)).unwrap_or(Role::Viewer),
        password_hash: row.get(3),
        created_us: row.get(4),
    }
}

impl TimescaleStore {
    async fn insert_account(&self, account: &Account, taken: &str) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            let inserted = tx
                .execute(
                    &format!("INSERT INTO accounts VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) {taken}"),
                    &[
                        &account.name,
                        &account.tenant,
                        &account.role.name(),
                        &account.password_hash,
                        &account.created_us,
                    ],
                )
                .await?;
            Ok::<_, Fault>(inserted > 0)
        })
    }
}

pub async fn insert_audit(
    transaction: &Transaction<'_>,
    entries: &[AuditEntry],
) -> Result<(), Fault> {
    let times: Vec<i64> = entries.iter().map(|e| e.time_us).collect();
    let column = |of: fn(&AuditEntry) -> &str| entries.iter().map(of).collect::<Vec<&str>>();
    let (tenants, who) = (column(|e| &e.tenant), column(|e| &e.who));
    let (actions, patients) = (column(|e| &e.action), column(|e| &e.patient));
    let details = column(|e| &e.detail);
    let statement = transaction
        .prepare_cached(
            "INSERT INTO audit (time_us, tenant, who, action, patient, detail)
             SELECT time_us, tenant, who, action, patient, detail
             FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
                 WITH ORDINALITY AS w (time_us, tenant, who, action, patient, detail, n) ORDER BY n",
        )
        .await?;
    transaction
        .execute(
            &statement,
            &[&times, &tenants, &who, &actions, &patients, &details],
        )
        .await?;
    Ok(())
}

#[async_trait]
impl Accounts for TimescaleStore {
    async fn put_account(&self, account: &Account) -> Result<(), WriteError> {
        let replace = "DO UPDATE SET tenant = excluded.tenant, role = excluded.role, password_hash = excluded.password_hash,
            created_us = excluded.created_us";
        self.insert_account(account, replace).await.map(drop)
    }

    async fn create_account(&self, account: &Account) -> Result<bool, WriteError> {
        self.insert_account(account, "DO NOTHING").await
    }

    async fn remove_account(&self, name: &str) -> Result<bool, WriteError> {
        transaction!(self, tx => async {
            let removed = tx.execute("DELETE FROM accounts WHERE name = $1", &[&name]).await?;
            Ok::<_, Fault>(removed > 0)
        })
    }

    async fn account(&self, name: &str) -> Result<Option<Account>, QueryError> {
        let row = self
            .reader()
            .await?
            .query_opt(
                "SELECT name, tenant, role, password_hash, created_us FROM accounts WHERE name = $1",
                &[&name],
            )
            .await?;
        Ok(row.as_ref().map(account))
    }

    async fn accounts(&self, scope: &Scope) -> Result<Vec<Account>, QueryError> {
        let rows = self
            .reader()
            .await?
            .query(
                "SELECT name, tenant, role, password_hash, created_us FROM accounts
                 WHERE $1::text IS NULL OR tenant = $1 ORDER BY name COLLATE \"C\"",
                &[&scope.as_tenant()],
            )
            .await?;
        Ok(rows.iter().map(account).collect())
    }

    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<(), WriteError> {
        transaction!(self, tx => insert_audit(tx, &entries))
    }

    async fn audit(
        &self,
        scope: &Scope,
        query: &AuditQuery,
    ) -> Result<Vec<AuditEntry>, QueryError> {
        let limit = if query.limit == 0 {
            AUDIT_LIMIT_DEFAULT
        } else {
            query.limit
        };
        let patient = match query.patient {
            Some(_) => "patient = $2",
            None => "$2::text IS NULL",
        };
        let rows = self
            .reader()
            .await?
            .query(
                &format!(
                    "SELECT time_us, tenant, who, action, patient, detail FROM audit
                     WHERE ($1::text IS NULL OR tenant = $1) AND {patient} AND time_us >= $3 AND time_us < $4
                     ORDER BY time_us DESC, key DESC LIMIT $5"
                ),
                &[
                    &scope.as_tenant(),
                    &query.patient,
                    &query.from_us,
                    &query.to_us,
                    &i64::try_from(limit).unwrap_or(i64::MAX),
                ],
            )
            .await?;
        let entry = |row: &Row| AuditEntry {
            time_us: row.get(0),
            tenant: row.get(1),
            who: row.get(2),
            action: row.get(3),
            patient: row.get(4),
            detail: row.get(5),
        };
        Ok(rows.iter().map(entry).collect())
    }
}
