//! A place in a full ward. Sans-IO.

use std::collections::BTreeMap;

use super::bed::Bed;
use super::{PATIENTS_MAX, WardView};

impl WardView {
    /// False: the table is full, and no patient leaves it for this one. `urgent`: an alert of high
    /// priority is open.
    pub(super) fn make_room(&mut self, patient: &str, tenant: Option<&str>, urgent: bool) -> bool {
        if self.patients.len() < PATIENTS_MAX || self.patients.contains_key(patient) {
            return true;
        }
        let Some(id) = self.leaving(tenant, urgent) else {
            return false;
        };
        self.patients.remove(&id);
        true
    }

    /// Chosen among patients without open alerts, unregistered ones first, then those who wear no
    /// sensor. Any other patient leaves only for a smaller tenant's patient or for an urgent alert,
    /// because a patient who leaves and returns has no score.
    fn leaving(&self, tenant: Option<&str>, urgent: bool) -> Option<String> {
        let mut counts: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        let calm = |bed: &&Bed| bed.open().next().is_none();
        let is_needless =
            |bed: &Bed| bed.tenant.is_some() && bed.assigned_us.is_none() && calm(&bed);
        for bed in self.patients.values().filter(calm) {
            *counts.entry(bed.tenant.as_deref()).or_default() += 1;
        }
        let crowded = if counts.contains_key(&None) {
            None
        } else if let Some((id, _)) = self
            .patients
            .iter()
            .filter(|(_, bed)| is_needless(bed))
            .min_by_key(|(id, bed)| (bed.heard_us, *id))
        {
            return Some(id.clone());
        } else {
            let (largest, _) = counts.into_iter().max_by_key(|(_, count)| *count)?;
            let is_smaller = tenant.is_some() && tenant != largest;
            if !is_smaller && !urgent {
                return None;
            }
            largest
        };
        self.patients
            .iter()
            .filter(|(_, bed)| bed.tenant.as_deref() == crowded)
            .filter(|(_, bed)| calm(bed))
            .min_by_key(|(id, bed)| (bed.heard_us, *id))
            .map(|(id, _)| id.clone())
    }
}
