//! The steering rules of a scenario.

mod follower;

use multipath::steering_rules::{Document, Flow};

pub(crate) use follower::RuleFollower;

/// The rules of a scenario, and the flow that its transfer is.
#[derive(Debug, Clone)]
pub struct Steered {
    pub document: Document,
    pub flow: Flow,
}
