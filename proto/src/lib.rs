//! The contracts between Braid's services, generated from `proto/braid/**/*.proto`.

pub mod canary;
pub mod codec;
pub mod compact;
mod metric;
pub mod text;

macro_rules! package {
    ($noun:ident, $file:literal) => {
        pub mod $noun {
            pub mod v1 {
                #![allow(clippy::all, clippy::unwrap_used)]
                tonic::include_proto!($file);
            }
        }
    };
}

pub mod braid {
    package!(vitals, "braid.vitals.v1");
    package!(alerts, "braid.alerts.v1");
    package!(paths, "braid.paths.v1");
    package!(query, "braid.query.v1");
    package!(policy, "braid.policy.v1");
    package!(identity, "braid.identity.v1");
    package!(patients, "braid.patients.v1");
}

pub use braid::{
    alerts::v1 as alerts, identity::v1 as identity, paths::v1 as paths, patients::v1 as patients,
    policy::v1 as policy, query::v1 as query,
};

/// The messages, with the open code of a metric in place of the enum.
pub mod vitals {
    pub use crate::{braid::vitals::v1::*, metric::Metric};
}

/// The present time in the form of all times in the contracts: microseconds since the Unix epoch.
/// Zero on a clock before it.
pub fn now_us() -> i64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
        })
}
