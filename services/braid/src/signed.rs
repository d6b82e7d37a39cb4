//! Author and reason of a decision on the command line.

/// Author and reason of a decision.
#[derive(Debug, Clone, clap::Args)]
pub struct Signed {
    /// Author of the decision.
    #[arg(long, value_name = "NAME")]
    pub by: String,
    /// Reason, stored with the decision.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}
