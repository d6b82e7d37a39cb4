//! People's accounts: passwords as Argon2 hashes in the store.

use rand::RngExt;
use store::{Account, Accounts, DEFAULT_TENANT, QueryError, Role, WriteError};

use crate::hashing::hashing;

/// Name of the account that the embedded shape makes on its first start.
pub const FIRST_ACCOUNT: &str = "admin";
/// Longer passwords are refused before anything is computed.
pub const PASSWORD_BYTES_MAX: usize = 256;
/// Bytes of the shortest password of a new account.
pub const PASSWORD_BYTES_MIN: usize = 8;
/// Bytes of an account's name; no account has a longer one.
pub const NAME_BYTES_MAX: usize = 64;
/// In front of a wall display's name, as the audit log has it.
pub(crate) const KIOSK_PREFIX: &str = "kiosk:";
/// RFC 9106 recommends 128 bits.
const SALT_BYTES: usize = 16;
/// Verified against when there is no such account, so that the duration does not reveal which names
/// exist.
const NOBODY: &str = "$argon2id$v=19$m=19456,t=2,p=1$c29tZXNhbHRzb21lc2FsdA$L5C2G4XcYJjBEFgOL1XGHkvEMQdI2dcRBlSkN2zN8Ag";

#[derive(Debug, thiserror::Error)]
pub enum EnsureError {
    #[error(
        "a name has 1 to {NAME_BYTES_MAX} bytes in one line and neither `sso:` nor `kiosk:` in front, a password {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes"
    )]
    Length,
    #[error("the password cannot be hashed: {0}")]
    Hash(String),
    #[error(transparent)]
    Query(#[from] QueryError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

#[derive(Debug, PartialEq, Eq)]
pub enum Ensured {
    Created,
    /// The account existed; its password was left unchanged.
    Existed,
}

/// Creates the account unless the name is taken. Safe to call from several processes at once.
pub async fn ensure(
    store: &(impl Accounts + ?Sized),
    name: &str,
    password: &str,
    role: Role,
) -> Result<Ensured, EnsureError> {
    if store.account(name).await?.is_some() {
        return Ok(Ensured::Existed);
    }
    let account = account(name, DEFAULT_TENANT, password, role).await?;
    Ok(if store.create_account(&account).await? {
        Ensured::Created
    } else {
        Ensured::Existed
    })
}

/// Creates the account or gives it a new password and role.
pub async fn set_password(
    store: &(impl Accounts + ?Sized),
    name: &str,
    tenant: &str,
    password: &str,
    role: Role,
) -> Result<(), EnsureError> {
    let account = account(name, tenant, password, role).await?;
    Ok(store.put_account(&account).await?)
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("name: {0:?} is taken; choose another")]
    Taken(String),
    #[error("name: there is no account {0:?}")]
    Unknown(String),
    #[error("name: this is your own account; another administrator changes it")]
    Own,
    #[error(transparent)]
    Ensure(#[from] EnsureError),
}

/// A change of an account by an administrator of its tenant.
pub struct AccountChange<'a> {
    pub name: &'a str,
    pub role: Role,
    /// Empty: as it is.
    pub password: &'a str,
    /// Refuse a name that is taken.
    pub create: bool,
}

/// Changes an account of the tenant. The last administrator stays one, since nobody takes away the
/// own role.
pub async fn put(
    store: &(impl Accounts + ?Sized),
    (tenant, by): (&str, &str),
    change: &AccountChange<'_>,
) -> Result<Account, ChangeError> {
    let AccountChange { name, role, .. } = *change;
    let known = store.account(name).await.map_err(EnsureError::from)?;
    match &known {
        // The names of another tenant's people are not told apart from own ones.
        Some(known) if change.create || known.tenant != tenant => {
            return Err(ChangeError::Taken(name.to_owned()));
        }
        Some(known) if name == by && known.role != role => return Err(ChangeError::Own),
        None if !change.create => return Err(ChangeError::Unknown(name.to_owned())),
        _ => {}
    }
    let put = match known {
        Some(known) if change.password.is_empty() => Account { role, ..known },
        _ => account(name, tenant, change.password, role).await?,
    };
    if !change.create {
        store.put_account(&put).await.map_err(EnsureError::from)?;
    } else if !store
        .create_account(&put)
        .await
        .map_err(EnsureError::from)?
    {
        return Err(ChangeError::Taken(name.to_owned()));
    }
    Ok(put)
}

/// Removes an account of the tenant.
pub async fn remove(
    store: &(impl Accounts + ?Sized),
    (tenant, by): (&str, &str),
    name: &str,
) -> Result<(), ChangeError> {
    let known = store.account(name).await.map_err(EnsureError::from)?;
    if known.is_none_or(|it| it.tenant != tenant) {
        return Err(ChangeError::Unknown(name.to_owned()));
    }
    if name == by {
        return Err(ChangeError::Own);
    }
    store
        .remove_account(name)
        .await
        .map_err(EnsureError::from)?;
    Ok(())
}

async fn account(
    name: &str,
    tenant: &str,
    password: &str,
    role: Role,
) -> Result<Account, EnsureError> {
    if name.is_empty()
        || name.starts_with(crate::to_identity_provider::NAME_PREFIX)
        || name.starts_with(KIOSK_PREFIX)
        || name.len() > NAME_BYTES_MAX
        || !contracts::text::is_plain(name)
        || !(PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len())
    {
        return Err(EnsureError::Length);
    }
    Ok(Account {
        name: name.to_owned(),
        tenant: tenant.to_owned(),
        role,
        password_hash: hash(password.to_owned()).await?,
        created_us: contracts::now_us(),
    })
}

async fn hash(password: String) -> Result<String, EnsureError> {
    let hashed = hashing(move |memory| {
        let salt: [u8; SALT_BYTES] = rand::rng().random();
        memory.hash(&password, &salt)
    });
    match hashed.await {
        Some(Ok(hash)) => Ok(hash),
        Some(Err(error)) => Err(EnsureError::Hash(error.to_string())),
        None => Err(EnsureError::Hash("nobody computes it".to_owned())),
    }
}

/// The account, if name and password belong together. Takes about the same time if they do not.
pub async fn verify(
    store: &(impl Accounts + ?Sized),
    name: &str,
    password: &str,
) -> Result<Option<Account>, QueryError> {
    verify_if(store, name, password, || true).await
}

/// The same, unless the attempt is no longer allowed when it would be computed. Then no account is
/// found.
pub async fn verify_if(
    store: &(impl Accounts + ?Sized),
    name: &str,
    password: &str,
    is_allowed: impl FnOnce() -> bool + Send + 'static,
) -> Result<Option<Account>, QueryError> {
    if name.len() > NAME_BYTES_MAX || password.len() > PASSWORD_BYTES_MAX {
        return Ok(None);
    }
    let account = store.account(name).await?;
    let expected = account.as_ref().map_or_else(
        || NOBODY.to_owned(),
        |account| account.password_hash.clone(),
    );
    let password = password.to_owned();
    let matches =
        hashing(move |memory| is_allowed() && memory.verify(&password, &expected).unwrap_or(false));
    let matches = matches.await.unwrap_or(false);
    Ok(account.filter(|_| matches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use argon2::password_hash::PasswordHash;

    #[test]
    fn the_hash_of_nobody_costs_what_a_real_one_costs() {
        let parsed = PasswordHash::new(NOBODY).expect("a PHC string");
        let real = argon2::Params::default();
        let params = argon2::Params::try_from(&parsed).expect("parameters");
        assert_eq!(
            (params.m_cost(), params.t_cost(), params.p_cost()),
            (real.m_cost(), real.t_cost(), real.p_cost())
        );
        assert!(
            parsed.hash.is_some(),
            "without a hash nothing would be computed"
        );
    }
}
