//! The duties of an installation: how each is named and measured.

use bus::Topic;

/// Source of a consumer's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The store, with the rows that come from the records.
    InStore,
    /// The bus, by the group's commits.
    OnBus,
    /// The store's outbox of alerts, which is not a topic.
    Outbox,
    /// The store's queue of notices: those that are due and that no member has ever taken.
    Notices,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duty {
    /// Name of the check, and of the duty in the API.
    pub name: &'static str,
    /// The service that does it.
    pub service: &'static str,
    pub topic: Topic,
    pub group: &'static str,
    pub kept: Kept,
    /// Message for a standstill.
    pub stands: &'static str,
    /// Message while the duty cannot be measured.
    pub does: &'static str,
    /// Name of the warning that the bus of this group was replaced. Empty: no topic is consumed.
    pub log_warning: &'static str,
    /// Gauges of the service.
    pub lag_metric: &'static str,
    pub still_metric: &'static str,
}

pub const JUDGING: Duty = Duty {
    name: "judging",
    service: "alerting",
    topic: Topic::Vitals,
    group: "alerting",
    kept: Kept::InStore,
    stands: "alerts are not being judged",
    does: "alerts are being judged",
    log_warning: "judging-log",
    lag_metric: "braid_alerting_lag_records",
    still_metric: "braid_alerting_standing_still_seconds",
};

pub const PUBLISHING: Duty = Duty {
    name: "publishing",
    service: "alerting",
    topic: Topic::Alerts,
    group: "",
    kept: Kept::Outbox,
    stands: "alerts do not leave the store",
    does: "alerts leave the store",
    log_warning: "",
    lag_metric: "braid_alerting_outbox_lag_records",
    still_metric: "braid_alerting_outbox_standing_still_seconds",
};

pub const TELLING: Duty = Duty {
    name: "telling",
    service: "alerting",
    topic: Topic::Alerts,
    group: "alerting-people",
    kept: Kept::OnBus,
    stands: "people are not being notified of alerts",
    does: "alerts are handed on to the channels that are configured",
    log_warning: "telling-log",
    lag_metric: "braid_alerting_people_lag_records",
    still_metric: "braid_alerting_people_standing_still_seconds",
};

pub const DELIVERING: Duty = Duty {
    name: "delivering",
    service: "alerting",
    topic: Topic::Alerts,
    group: "",
    kept: Kept::Notices,
    stands: "notices wait and their delivery is not tried",
    does: "the delivery of notices is tried",
    log_warning: "",
    lag_metric: "braid_alerting_untried_notices",
    still_metric: "braid_alerting_untried_standing_still_seconds",
};

pub const STORING_VITALS: Duty = Duty {
    name: "storing-vitals",
    service: "ingest",
    topic: Topic::Vitals,
    group: "ingest-store",
    kept: Kept::InStore,
    stands: "readings are not being stored",
    does: "readings are being stored",
    log_warning: "storing-vitals-log",
    lag_metric: "braid_ingest_lag_records",
    still_metric: "braid_ingest_standing_still_seconds",
};

pub const STORING_PATHS: Duty = Duty {
    name: "storing-paths",
    service: "path-telemetry",
    topic: Topic::Paths,
    group: "path-telemetry-store",
    kept: Kept::InStore,
    stands: "path reports are not being stored",
    does: "path reports are being stored",
    log_warning: "storing-paths-log",
    lag_metric: "braid_path_telemetry_lag_records",
    still_metric: "braid_path_telemetry_standing_still_seconds",
};

/// In order of importance.
pub const ALL: [Duty; 6] = [
    JUDGING,
    PUBLISHING,
    TELLING,
    DELIVERING,
    STORING_VITALS,
    STORING_PATHS,
];
