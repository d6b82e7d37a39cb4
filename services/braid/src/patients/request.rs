//! Author, reason, form of the answer, and the store of a change.

use contracts::patients::Change as PatientChange;
use dashboard::patients::{self as changes, Changed};
use store::{Change, Store};

use super::shown;
use crate::process::Failure;
use crate::signed::Signed;
use crate::tenancy::Tenancy;

#[derive(Debug, clap::Args)]
pub struct Request {
    /// Print JSON.
    #[arg(long, default_value_t = false)]
    pub json: bool,
    #[command(flatten)]
    pub signed: Signed,
    #[command(flatten)]
    pub tenancy: Tenancy,
}

impl Request {
    pub async fn by(&self, store: &dyn Store) -> Result<Change, Failure> {
        Ok(Change {
            author: self.signed.by.who(store, &self.tenancy.tenant).await?,
            reason: self.signed.reason.trim().to_owned(),
            at_us: contracts::now_us(),
        })
    }

    pub async fn make(&self, store: &dyn Store, change: PatientChange) -> Result<Changed, Failure> {
        let by = self.by(store).await?;
        let made = changes::change(store, &self.tenancy.tenant, &[change], &by).await;
        made.map_err(Failure::other)
    }

    pub fn show(&self, changed: &Changed) -> Result<(), Failure> {
        shown::changed(changed, self.json)
    }
}
