//! Mechanisms of the transport that a run can go without.

use multipath::Rest;

/// Which mechanisms are in use; all but for the table of what each one is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mechanisms {
    pub steer_acknowledgements: bool,
    pub startup_floor: bool,
    pub liveness: bool,
    pub reroute: bool,
    pub path_scheduler: bool,
    pub coupling: bool,
    pub rest: Rest,
}

impl Default for Mechanisms {
    fn default() -> Self {
        Self {
            steer_acknowledgements: true,
            startup_floor: true,
            liveness: true,
            reroute: true,
            path_scheduler: true,
            coupling: true,
            rest: Rest::AGREED,
        }
    }
}
