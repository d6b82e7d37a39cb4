//! The tenant and the store that a command works on.

use crate::engines::StoreChoice;

#[derive(Debug, Clone, clap::Args)]
pub struct Tenancy {
    /// Tenant.
    #[arg(long, value_name = "ID", default_value = store::DEFAULT_TENANT)]
    pub tenant: String,
    #[command(flatten)]
    pub store: StoreChoice,
}
