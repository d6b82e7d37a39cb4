//! People whom a team's roles can reach, and gaps in the rota.

use std::collections::BTreeSet;

use calendar::{WEEK_MINUTES, WeekTime};

use super::{Contact, Role, Team};

/// Stretches without anybody on call that one sentence names; further ones are counted.
const STRETCHES_SHOWN_MAX: usize = 20;
/// Part of the week that one person may be alone on call without a warning.
const ALONE_PERCENT_MAX: usize = 80;

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
        let week = self.week()?;
        let holes = week.iter().filter(|on_call| on_call.is_empty()).count();
        if holes == week.len() {
            return Some("nobody is on call at any time".to_owned());
        }
        let first = stretches(&week).into_iter().next()?;
        Some(format!(
            "nobody is on call from {first} ({holes} minutes of the week in all)"
        ))
    }

    /// Doubts about who is on call when: each uncovered stretch of the week, and a person who is
    /// alone nearly always.
    pub fn cover_doubts(&self) -> Vec<String> {
        let Some(week) = self.week() else {
            return vec![
                "rotas have different clocks, so hours without anybody are not looked for"
                    .to_owned(),
            ];
        };
        let mut doubts = Vec::new();
        let holes = week.iter().filter(|on_call| on_call.is_empty()).count();
        if holes > 0 {
            let found = match holes == week.len() {
                true => vec!["at any time".to_owned()],
                false => stretches(&week),
            };
            let shown = &found[..found.len().min(STRETCHES_SHOWN_MAX)];
            let more = match found.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more times"),
            };
            doubts.push(format!(
                "nobody is on call for {} of the 168 hours of the week: {}{more}",
                hours(holes),
                shown.join(", ")
            ));
        }
        for contact in &self.contacts {
            let alone = week
                .iter()
                .filter(|on_call| on_call.as_slice() == [&*contact.id]);
            let alone = alone.count();
            if alone * 100 > week.len() * ALONE_PERCENT_MAX {
                doubts.push(format!(
                    "{} alone is on call for {} of the 168 hours of the week; share the shifts",
                    contact.id,
                    hours(alone)
                ));
            }
        }
        doubts
    }

    /// The contacts on call in each minute of the week, each once. `None`: the rotas have different
    /// clocks.
    fn week(&self) -> Option<Vec<Vec<&str>>> {
        let mut clocks = self.rota.iter().map(|rota| rota.utc_offset_min);
        let first = clocks.next();
        if clocks.any(|other| Some(other) != first) {
            return None;
        }
        let shifts: Vec<_> = self.rota.iter().flat_map(|rota| &rota.shifts).collect();
        let on_call = |minute: i64| {
            let covering = shifts.iter().filter(|shift| shift.covers(minute));
            let mut ids: Vec<&str> = covering.map(|shift| shift.contact.as_str()).collect();
            ids.sort_unstable();
            ids.dedup();
            ids
        };
        Some((0..WEEK_MINUTES).map(on_call).collect())
    }
}

/// `mon 20:00 to tue 08:00` for each stretch without anybody, if somebody is on call at some time.
fn stretches(week: &[Vec<&str>]) -> Vec<String> {
    let is_hole = |at: usize| week[at % week.len()].is_empty();
    // A stretch begins after a covered minute, perhaps over the end of the week.
    let begins = (0..week.len()).filter(|at| is_hole(*at) && !is_hole(at + week.len() - 1));
    let stretch = |begin: usize| {
        let length = (0..week.len()).find(|after| !is_hole(begin + after))?;
        let end = (begin + length) % week.len();
        Some(format!(
            "{} to {}",
            WeekTime::of_minute(begin as i64),
            WeekTime::of_minute(end as i64)
        ))
    };
    begins.filter_map(stretch).collect()
}

/// Hours without a needless fraction.
fn hours(minutes: usize) -> String {
    match minutes % 60 {
        0 => (minutes / 60).to_string(),
        _ => format!("{:.1}", minutes as f64 / 60.0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::team::{EXAMPLE, Team};

    fn with_shifts(shifts: &[(&str, &str, &str)]) -> Team {
        let mut team = Team::from_json(EXAMPLE).unwrap();
        let shifts: Vec<_> = shifts
            .iter()
            .map(|(from, to, contact)| {
                serde_json::json!({"from": from, "to": to, "contact": contact})
            })
            .collect();
        let rota = serde_json::json!([{ "shifts": shifts }]);
        team.rota = serde_json::from_value(rota).unwrap();
        team
    }

    #[test]
    fn hours_without_anybody_and_a_person_alone_are_named() {
        let example = Team::from_json(EXAMPLE).unwrap();
        assert_eq!(example.cover_doubts(), Vec::<String>::new());
        let day = with_shifts(&[("mon 08:00", "mon 20:00", "nurse-day")]);
        assert_eq!(
            day.cover_doubts(),
            ["nobody is on call for 156 of the 168 hours of the week: mon 20:00 to mon 08:00"]
        );
        let gaps = with_shifts(&[
            ("mon 08:00", "mon 20:00", "nurse-day"),
            ("tue 08:00", "sun 23:30", "nurse-night"),
        ]);
        assert_eq!(
            gaps.cover_doubts(),
            [
                "nobody is on call for 20.5 of the 168 hours of the week: \
                 mon 20:00 to tue 08:00, sun 23:30 to mon 08:00",
                "nurse-night alone is on call for 135.5 of the 168 hours of the week; share the shifts",
            ]
        );
        let alone = with_shifts(&[
            ("mon 08:00", "mon 20:00", "nurse-day"),
            ("mon 20:00", "mon 08:00", "nurse-night"),
        ]);
        assert_eq!(
            alone.cover_doubts(),
            ["nurse-night alone is on call for 156 of the 168 hours of the week; share the shifts"]
        );
        assert!(with_shifts(&[]).cover_doubts()[0].contains("168 of the 168 hours"));
    }
}
