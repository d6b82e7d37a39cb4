//! Attributes the newest readings to the patients who wear the sensors at present.
//!
//! Silence follows the wearing intervals. A sensor that changed hands is missed for the patient who
//! wears it now, from the change on. A sensor that no patient wears is missed for none.

use std::collections::{BTreeMap, BTreeSet};

use contracts::alerts::Alert;
use store::{Assignment, LatestVital};
use vitals::silence::{DEVICE, GATEWAY, SIGNAL};

/// The assignments that hold at present, by sensor; as many as the register has.
#[derive(Debug, Default)]
pub(crate) struct Worn {
    devices: BTreeMap<String, Wearing>,
    gateways: BTreeSet<String>,
}

#[derive(Debug)]
struct Wearing {
    patient: String,
    gateway: String,
    from_us: i64,
}

impl Worn {
    pub(crate) fn add(&mut self, assignment: Assignment) {
        self.gateways.insert(assignment.gateway.clone());
        let wearing = Wearing {
            patient: assignment.patient,
            gateway: assignment.gateway,
            from_us: assignment.from_us,
        };
        self.devices.insert(assignment.device, wearing);
    }

    /// Gives each sensor's newest readings to the patient who wears it now and leaves out sensors
    /// that no patient wears. A reading from before the change counts as heard at the change.
    /// The newest reading of each metric of a sensor remains.
    pub(crate) fn attribute(&self, latest: Vec<LatestVital>) -> Vec<LatestVital> {
        let mut newest: BTreeMap<(String, i32), LatestVital> = BTreeMap::new();
        for mut row in latest {
            let Some(wearing) = self.devices.get(&row.device) else {
                continue;
            };
            row.ingest_time_us = row.ingest_time_us.max(wearing.from_us);
            row.gateway.clone_from(&wearing.gateway);
            // The wearer's own reading, if there is one, says more than that of the patient before.
            let is_own = row.patient == wearing.patient;
            row.patient.clone_from(&wearing.patient);
            let key = (row.device.clone(), i32::from(row.metric));
            match newest.get_mut(&key) {
                Some(there) if is_own || there.ingest_time_us < row.ingest_time_us => {
                    row.ingest_time_us = row.ingest_time_us.max(there.ingest_time_us);
                    *there = row;
                }
                Some(_) => {}
                None => {
                    newest.insert(key, row);
                }
            }
        }
        newest.into_values().collect()
    }

    /// Whether the register no longer lists the subject of an open silence.
    pub(crate) fn has_ended(&self, silence: &Alert) -> bool {
        match silence.rule.as_str() {
            SIGNAL | DEVICE => self
                .devices
                .get(&silence.device)
                .is_none_or(|wearing| wearing.patient != silence.patient),
            GATEWAY => !self.gateways.contains(&silence.gateway),
            _ => false,
        }
    }
}
