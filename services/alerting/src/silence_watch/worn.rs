//! Attributes the newest readings to the patients who wear the sensors at present.
//!
//! Silence follows the wearing intervals. A sensor that changed hands is missed for the patient who
//! wears it now, from the change on. A sensor that no patient wears is missed for none.

use std::collections::{BTreeMap, BTreeSet};

use contracts::{alerts::Alert, vitals::Metric};
use store::{Assignment, LatestVital};
use vitals::silence::{DEVICE, GATEWAY, PATH, PIPELINE, SIGNAL};

use crate::signs_of_life::{CLOCKS_DIFFER_US, Sign};

/// The newest reading of one metric of a sensor.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub patient: String,
    pub device: String,
    /// Beginning of the assignment.
    pub gateway: String,
    /// The gateway that delivered the reading.
    pub via: String,
    pub metric: Metric,
    pub value: f64,
    /// By the sensor's clock.
    pub time_us: i64,
    pub sign: Sign,
    /// Beginning of the assignment. No reading is expected before it.
    pub from_us: i64,
}

impl Arrival {
    /// As stored: attributed by [`Worn::attribute`] afterwards.
    pub(crate) fn new(latest: LatestVital, sign: Sign) -> Arrival {
        Arrival {
            patient: latest.patient,
            device: latest.device,
            via: latest.gateway.clone(),
            gateway: latest.gateway,
            metric: latest.metric,
            value: latest.value,
            time_us: latest.device_time_us,
            sign,
            from_us: i64::MIN,
        }
    }

    /// Stands for a sensor of which the store shows no newest value.
    fn of_wearing(device: &str, wearing: &Wearing, metric: Metric, sign: Sign) -> Arrival {
        Arrival {
            patient: wearing.patient.clone(),
            device: device.to_owned(),
            gateway: wearing.gateway.clone(),
            via: wearing.gateway.clone(),
            metric,
            value: f64::NAN,
            time_us: i64::MIN,
            sign,
            from_us: wearing.expected_us,
        }
    }

    pub(crate) fn is_unheard(&self) -> bool {
        self.sign == Sign::NONE
    }

    /// When silence began, if it is silent.
    pub(crate) fn since_us(&self) -> i64 {
        self.sign.at_us.max(self.from_us)
    }
}

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
    /// A reading is expected from here on.
    expected_us: i64,
}

impl Worn {
    /// An assignment that is about to end begins no silence. Another member, whose clock is a
    /// little ahead, may have ended the silence with it already.
    pub(crate) fn add(&mut self, assignment: Assignment, now_us: i64) {
        if assignment.until_us <= now_us.saturating_add(CLOCKS_DIFFER_US) {
            return;
        }
        self.gateways.insert(assignment.gateway.clone());
        let wearing = Wearing {
            patient: assignment.patient,
            gateway: assignment.gateway,
            from_us: assignment.from_us,
            // If the beginning is unknown, the entry counts.
            expected_us: match assignment.from_us {
                i64::MIN => assignment.entered.at_us,
                from_us => from_us,
            },
        };
        self.devices.insert(assignment.device, wearing);
    }

    /// Gives each sensor's newest readings to the patient who wears it now and leaves out sensors
    /// that no patient wears. A reading from before the change counts as heard at the change.
    /// The newest reading of each metric of a sensor remains.
    pub(crate) fn attribute(&self, latest: Vec<Arrival>) -> Vec<Arrival> {
        let mut newest: BTreeMap<(String, i32), Arrival> = BTreeMap::new();
        for mut row in latest {
            let Some(wearing) = self.devices.get(&row.device) else {
                continue;
            };
            row.from_us = wearing.from_us;
            row.gateway.clone_from(&wearing.gateway);
            // The wearer's own reading, if there is one, says more than that of the patient before.
            let is_own = row.patient == wearing.patient;
            row.patient.clone_from(&wearing.patient);
            let key = (row.device.clone(), i32::from(row.metric));
            match newest.get_mut(&key) {
                Some(there) if is_own || there.sign.at_us < row.sign.at_us => {
                    row.sign = row.sign.or(there.sign);
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

    /// Assigned sensors of which no newest reading is known.
    pub(crate) fn without(&self, arrivals: &[Arrival]) -> BTreeSet<String> {
        let heard: BTreeSet<&str> = arrivals.iter().map(|it| it.device.as_str()).collect();
        let devices = self.devices.keys();
        let devices = devices.filter(|device| !heard.contains(device.as_str()));
        devices.cloned().collect()
    }

    /// Sensors that were assigned and have never sent.
    pub(crate) fn unheard(&self, devices: &BTreeSet<String>) -> Vec<Arrival> {
        let wearing = |device: &String| {
            let wearing = self.devices.get(device)?;
            let unheard = Arrival::of_wearing(device, wearing, Metric::default(), Sign::NONE);
            Some(unheard)
        };
        devices.iter().filter_map(wearing).collect()
    }

    /// Sensors whose readings came by the bus, and which the store does not show.
    pub(crate) fn heard(&self, heard: BTreeMap<String, (i32, Sign)>) -> Vec<Arrival> {
        let wearing = |(device, (metric, sign)): (String, (i32, Sign))| {
            let wearing = self.devices.get(&device)?;
            let metric = Metric::from_number(metric);
            Some(Arrival::of_wearing(&device, wearing, metric, sign))
        };
        heard.into_iter().filter_map(wearing).collect()
    }

    /// Whether the assignments at present do not list the subject of an open silence. A member
    /// whose clock is wrong sees other assignments, so the register is asked before a silence ends.
    pub(crate) fn lacks(&self, silence: &Alert) -> bool {
        match silence.rule.as_str() {
            SIGNAL | DEVICE => self
                .devices
                .get(&silence.device)
                .is_none_or(|wearing| wearing.patient != silence.patient),
            GATEWAY | PATH => !self.gateways.contains(&silence.gateway),
            PIPELINE => self.devices.is_empty(),
            _ => false,
        }
    }
}

/// Whether none of these assignments lets the silence go on. One that begins later does.
pub(crate) fn has_ended(silence: &Alert, assignments: &[Assignment], now_us: i64) -> bool {
    let is_of_subject = |it: &&Assignment| match silence.rule.as_str() {
        SIGNAL | DEVICE => it.patient == silence.patient && it.device == silence.device,
        PIPELINE => true,
        _ => it.gateway == silence.gateway,
    };
    let mut of_subject = assignments.iter().filter(is_of_subject);
    of_subject.all(|it| it.until_us <= now_us)
}
