//! Input of a decision about one alert: the alert, the documents in force, and the channels.

use calendar::Zone;
use contracts::alerts::Alert;
use store::{EscalationTimer, timer_of};

use super::unmonitored::Unmonitored;
use crate::{silence::SilenceInForce, team::Team};

pub(crate) const WEBHOOK: &str = "webhook";
pub(crate) const EMAIL: &str = "email";
pub(crate) const MQTT: &str = "mqtt";

/// The configured channels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Channels {
    pub webhook: bool,
    pub mqtt: bool,
    pub email: bool,
    /// Recipients of alerts of a tenant without a team, and of alerts for which the team has no
    /// person with an address.
    pub email_to: Vec<String>,
    pub group_us: i64,
    /// Time zone of messages about a tenant whose team names none.
    pub zone: Zone,
}

/// Result of the notices of the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastStep {
    /// One was delivered.
    Delivered,
    /// None was delivered, and one was decided a moment ago.
    #[default]
    UnderWay,
    /// No receiver took one.
    Failed,
}

/// One alert with everything that a decision needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub alert: &'a Alert,
    pub tenant: &'a str,
    /// The patient's registered name.
    pub patient_name: &'a str,
    pub team: Option<&'a Team>,
    pub silence: Option<&'a SilenceInForce>,
    /// Id of the open alert that explains this alert.
    pub inhibited_by: Option<&'a str>,
    pub timer: Option<&'a EscalationTimer>,
    /// Patients who are not monitored while the alert lasts.
    pub unmonitored: &'a Unmonitored,
    /// Asked for only when the timer is hastened.
    pub last_step: LastStep,
    /// The patient was discharged, died or was merged: no person is told anything.
    pub has_departed: bool,
    pub now_us: i64,
}

impl Case<'_> {
    pub(super) fn timer_name(self) -> String {
        timer_of(self.alert, self.tenant)
    }
}
