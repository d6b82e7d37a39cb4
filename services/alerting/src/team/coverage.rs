//! People whom a team's roles can reach, and gaps in the rota.

use std::collections::BTreeSet;

use calendar::{WEEK_MINUTES, WeekTime};

use super::{Contact, Role, Team};

impl Team {
    /// Contacts who have the role for the patient at some time of the week.
    pub(crate) fn ever_in_role(&self, role: Role, patient: &str) -> Vec<&Contact> {
        let care = self.patients.get(patient);
        let ids: BTreeSet<&str> = match role {
            Role::Person => care.map(|care| &care.person),
            Role::Emergency => care.map(|care| &care.emergency),
            Role::OnCall => {
                let shifts = self.rota.iter().flat_map(|rota| &rota.shifts);
                let ids = shifts.map(|shift| shift.contact.as_str()).collect();
                return self.of_ids(ids);
            }
        }
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
        self.of_ids(ids)
    }

    fn of_ids(&self, ids: BTreeSet<&str>) -> Vec<&Contact> {
        ids.into_iter().filter_map(|id| self.contact(id)).collect()
    }

    /// A sentence about the first time of the week without anybody on call. Rotas with different
    /// clocks are not compared.
    pub(crate) fn rota_hole(&self) -> Option<String> {
        let mut clocks = self.rota.iter().map(|rota| rota.utc_offset_min);
        let first = clocks.next();
        if clocks.any(|other| Some(other) != first) {
            return None;
        }
        let covered = |minute: i64| {
            let mut shifts = self.rota.iter().flat_map(|rota| &rota.shifts);
            shifts.any(|shift| shift.covers(minute))
        };
        let covered: Vec<bool> = (0..WEEK_MINUTES).map(covered).collect();
        let holes = covered.iter().filter(|is_covered| !**is_covered).count();
        if holes == 0 {
            return None;
        }
        if holes == covered.len() {
            return Some("nobody is on call at any time".to_owned());
        }
        // The gap begins after a covered minute, perhaps over the end of the week.
        let week = covered.len();
        let begin = (0..week).find(|at| !covered[*at] && covered[(at + week - 1) % week])?;
        let length = (0..week).find(|after| covered[(begin + after) % week])?;
        Some(format!(
            "nobody is on call from {} to {} ({holes} minutes of the week in all)",
            WeekTime::of_minute(begin as i64),
            WeekTime::of_minute((begin + length) as i64)
        ))
    }
}
