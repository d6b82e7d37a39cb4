use async_trait::async_trait;

use crate::{
    Scope,
    error::{QueryError, WriteError},
};

/// Each may do what the one before may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    Viewer,
    Clinician,
    Administrator,
}

impl Role {
    pub const fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Clinician => "clinician",
            Role::Administrator => "administrator",
        }
    }

    pub fn from_name(name: &str) -> Option<Role> {
        [Role::Viewer, Role::Clinician, Role::Administrator]
            .into_iter()
            .find(|role| role.name() == name)
    }
}

/// A person who signs in with a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// The name that the person types; unique over all tenants.
    pub name: String,
    pub tenant: String,
    pub role: Role,
    /// Argon2 in PHC string format.
    pub password_hash: String,
    pub created_us: i64,
}

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account")
            .field("name", &self.name)
            .field("tenant", &self.tenant)
            .field("role", &self.role)
            .field("password_hash", &"***")
            .field("created_us", &self.created_us)
            .finish()
    }
}

/// A person's or a program's act on a person's data. Rows are never changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    pub time_us: i64,
    pub tenant: String,
    /// Account name, or the noun of a service.
    pub who: String,
    /// Verb and object: `read series`, `acknowledge alert`, `sign in`.
    pub action: String,
    /// Empty when it concerns no single patient.
    pub patient: String,
    pub detail: String,
}

impl AuditEntry {
    /// With the reason, where one was given.
    #[must_use]
    pub fn because(mut self, reason: &str) -> AuditEntry {
        if !reason.is_empty() {
            let and = if self.detail.is_empty() { "" } else { "; " };
            self.detail += &format!("{and}reason: {reason}");
        }
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditQuery {
    pub patient: Option<String>,
    pub from_us: i64,
    pub to_us: i64,
    /// 0: 1,000.
    pub limit: usize,
}

#[async_trait]
pub trait Accounts: Send + Sync {
    /// Creates or replaces.
    async fn put_account(&self, account: &Account) -> Result<(), WriteError>;
    /// Creates; false when the name is taken, by this or a concurrent caller.
    async fn create_account(&self, account: &Account) -> Result<bool, WriteError>;
    async fn remove_account(&self, name: &str) -> Result<bool, WriteError>;
    async fn account(&self, name: &str) -> Result<Option<Account>, QueryError>;
    async fn accounts(&self, scope: &Scope) -> Result<Vec<Account>, QueryError>;

    async fn append_audit(&self, entries: Vec<AuditEntry>) -> Result<(), WriteError>;
    /// Newest first.
    async fn audit(&self, scope: &Scope, query: &AuditQuery)
    -> Result<Vec<AuditEntry>, QueryError>;
}
