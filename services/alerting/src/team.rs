//! Contacts, on-call shifts and escalation steps: who is notified of an alert, and when. One
//! document per tenant.

mod clocks;
mod coverage;

use std::collections::{BTreeMap, BTreeSet};

use calendar::{Rota, Zone};
use contracts::vitals::Priority;
use serde::{Deserialize, Serialize};
use vitals::{Invalid, validate_identifier, validate_text};

use crate::names::Names;

/// Contacts of one team; a larger team is refused.
pub const CONTACTS_MAX: usize = 10_000;
/// Patients of one team; a larger team is refused.
pub const PATIENTS_MAX: usize = 50_000;
/// Shifts of one team, in all rotas together; a larger team is refused.
pub const SHIFTS_MAX: usize = 500;
/// Escalation steps of one plan; a plan with more is refused.
pub const STEPS_MAX: usize = 10;
/// Contacts of one patient in one role.
const ROLE_CONTACTS_MAX: usize = 20;
/// Longest delay of a step: one day.
const AFTER_S_MAX: u32 = 86_400;
/// Largest `reminders_max` of a plan: reminders at its interval, before the interval grows.
const REMINDERS_MAX: u32 = 100;
/// Shortest interval of reminders, in seconds.
const REMIND_EVERY_S_MIN: u32 = 10;
/// Bytes of an e-mail address (RFC 5321, 4.5.3.1); a contact with a longer one is refused.
const ADDRESS_BYTES_MAX: usize = 254;
/// Bytes of a contact's name; a longer one is refused.
const NAME_BYTES_MAX: usize = 200;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Team {
    pub contacts: Vec<Contact>,
    /// Zone of the times in messages, and of shifts without `utc_offset_min`. Default: UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<Zone>,
    /// How much of patients' names messages carry. Default: nothing.
    #[serde(default)]
    pub names: Names,
    #[serde(default)]
    pub rota: Vec<Rota>,
    /// By patient's id.
    #[serde(default)]
    pub patients: BTreeMap<String, Care>,
    #[serde(default)]
    pub escalation: Escalation,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contact {
    pub id: String,
    pub name: String,
    pub email: Option<String>,
}

/// People who belong to a patient.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Care {
    /// Rule sets of the group apply to the patient.
    pub group: Option<String>,
    /// The patient, or a person who lives with them.
    #[serde(default)]
    pub person: Vec<String>,
    #[serde(default)]
    pub emergency: Vec<String>,
    /// The patient cares for themself: alerts of low priority go to the person alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub self_care: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Person,
    Emergency,
    OnCall,
}

/// Escalation until the alert is acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub steps: Vec<Step>,
    /// Interval of reminders to all notified people after the last step. They go on until somebody
    /// acknowledges. 0: each hour at medium and high priority, never at low.
    #[serde(default)]
    pub remind_every_s: u32,
    /// Reminders at that interval. After them it doubles up to an hour. Reminders do not end.
    #[serde(default)]
    pub reminders_max: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Delay after the alert.
    pub after_s: u32,
    pub tell: Vec<Role>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Escalation {
    pub low: Plan,
    pub medium: Plan,
    pub high: Plan,
}

impl Default for Escalation {
    /// Low: the person and on-call at once. Medium: person, contacts, on-call. High: person and
    /// contacts at once, then on-call.
    fn default() -> Escalation {
        use Role::{Emergency, OnCall, Person};
        let plan = |steps: &[(u32, &[Role])], remind_every_s, reminders_max| Plan {
            steps: steps
                .iter()
                .map(|(after_s, tell)| Step {
                    after_s: *after_s,
                    tell: tell.to_vec(),
                })
                .collect(),
            remind_every_s,
            reminders_max,
        };
        Escalation {
            low: plan(&[(0, &[Person, OnCall])], 14_400, 0),
            medium: plan(
                &[(0, &[Person]), (300, &[Emergency]), (900, &[OnCall])],
                900,
                8,
            ),
            high: plan(&[(0, &[Person, Emergency]), (120, &[OnCall])], 300, 24),
        }
    }
}

impl Escalation {
    pub(crate) fn plan(&self, priority: Priority) -> &Plan {
        match priority {
            Priority::High => &self.high,
            Priority::Medium => &self.medium,
            Priority::Low | Priority::Unspecified => &self.low,
        }
    }
}

impl Team {
    pub fn from_json(text: &str) -> Result<Team, Invalid> {
        let team: Team = serde_json::from_str(text).map_err(|error| {
            Invalid::new(
                "team",
                error.to_string(),
                "what `braid alerts team example` prints",
            )
        })?;
        team.validate()?;
        Ok(team)
    }

    fn validate(&self) -> Result<(), Invalid> {
        bounded("contacts", self.contacts.len(), CONTACTS_MAX)?;
        bounded("patients", self.patients.len(), PATIENTS_MAX)?;
        let shifts = self.rota.iter().map(|rota| rota.shifts.len()).sum();
        bounded("rota.shifts", shifts, SHIFTS_MAX)?;
        let mut ids = BTreeSet::new();
        for contact in &self.contacts {
            contact.validate()?;
            if !ids.insert(contact.id.as_str()) {
                return Err(Invalid::new(
                    "contacts.id",
                    format!("{:?} occurs twice", contact.id),
                    format!("{:?}", format!("{}-2", contact.id)),
                ));
            }
        }
        let known = |field, id: &str| {
            if ids.contains(id) {
                return Ok(());
            }
            Err(Invalid::new(
                field,
                format!("{id:?} is no contact of this team"),
                ids.first().copied().unwrap_or("nurse-1"),
            ))
        };
        for rota in &self.rota {
            let offset_min = rota.utc_offset_min.unwrap_or_default();
            if offset_min.unsigned_abs() > 14 * 60 {
                return Err(Invalid::new(
                    "rota.utc_offset_min",
                    format!("{offset_min} is more than 14 hours"),
                    "60",
                ));
            }
            for shift in &rota.shifts {
                known("rota.shifts.contact", &shift.contact)?;
            }
        }
        for (patient, care) in &self.patients {
            validate_identifier("patients", patient, "patient-12")?;
            if let Some(group) = &care.group {
                validate_identifier("patients.group", group, "copd")?;
            }
            for (field, role) in [
                ("patients.person", &care.person),
                ("patients.emergency", &care.emergency),
            ] {
                bounded(field, role.len(), ROLE_CONTACTS_MAX)?;
                role.iter().try_for_each(|id| known(field, id))?;
            }
        }
        let Escalation { low, medium, high } = &self.escalation;
        [low, medium, high].into_iter().try_for_each(Plan::validate)
    }

    /// How alerts of this priority go on.
    pub fn plan(&self, priority: Priority) -> &Plan {
        self.escalation.plan(priority)
    }

    /// Contacts with these roles for the patient at this time, each once.
    pub fn people(&self, roles: &[Role], patient: &str, now_us: i64) -> Vec<&Contact> {
        let care = self.patients.get(patient);
        let mut ids: Vec<&str> = Vec::new();
        for role in roles {
            match role {
                Role::Person => ids.extend(
                    care.iter()
                        .flat_map(|care| care.person.iter().map(String::as_str)),
                ),
                Role::Emergency => ids.extend(
                    care.iter()
                        .flat_map(|care| care.emergency.iter().map(String::as_str)),
                ),
                Role::OnCall => ids.extend(self.on_call(now_us)),
            }
        }
        let mut seen = BTreeSet::new();
        ids.retain(|id| seen.insert(*id));
        ids.into_iter().filter_map(|id| self.contact(id)).collect()
    }

    pub fn contact(&self, id: &str) -> Option<&Contact> {
        self.contacts.iter().find(|contact| contact.id == id)
    }

    pub fn group(&self, patient: &str) -> Option<&str> {
        self.patients.get(patient)?.group.as_deref()
    }

    /// Whether alerts of low priority go to the patient alone. A patient without contacts of their
    /// own is in the care of those on call.
    pub(crate) fn cares_for_self(&self, patient: &str) -> bool {
        let care = self.patients.get(patient);
        care.is_some_and(|care| care.self_care && !care.person.is_empty())
    }

    fn on_call(&self, now_us: i64) -> impl Iterator<Item = &str> {
        let zone = self.time_zone.as_ref();
        self.rota
            .iter()
            .flat_map(move |rota| rota.on_call(zone, now_us))
    }
}

impl Contact {
    fn validate(&self) -> Result<(), Invalid> {
        validate_identifier("contacts.id", &self.id, "nurse-1")?;
        let example = "\"Ada Nurse\"";
        validate_text("contacts.name", &self.name, NAME_BYTES_MAX, example).map_err(|wrong| {
            Invalid::new(
                wrong.field,
                format!("of {:?} {}", self.id, wrong.reason),
                example,
            )
        })?;
        let Some(email) = &self.email else {
            return Ok(());
        };
        let is_address = email.len() <= ADDRESS_BYTES_MAX && mail::is_address(email);
        if is_address {
            return Ok(());
        }
        Err(Invalid::new(
            "contacts.email",
            format!("of {:?} is no address", self.id),
            "\"ada@example.org\"",
        ))
    }
}

impl Plan {
    fn validate(&self) -> Result<(), Invalid> {
        bounded("escalation.steps", self.steps.len(), STEPS_MAX)?;
        let rises = self.steps.is_sorted_by_key(|step| step.after_s);
        let short = self.steps.iter().all(|step| step.after_s <= AFTER_S_MAX);
        if !rises || !short {
            return Err(Invalid::new(
                "escalation.steps.after_s",
                format!("falls from one step to the next, or is above {AFTER_S_MAX}"),
                "0, 120, 600",
            ));
        }
        if (1..REMIND_EVERY_S_MIN).contains(&self.remind_every_s)
            || self.reminders_max > REMINDERS_MAX
        {
            return Err(Invalid::new(
                "escalation.remind_every_s",
                format!("is below {REMIND_EVERY_S_MIN}, or reminders_max above {REMINDERS_MAX}"),
                "300 and 12",
            ));
        }
        Ok(())
    }
}

fn bounded(field: &'static str, count: usize, max: usize) -> Result<(), Invalid> {
    if count <= max {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("has {count} entries"),
        format!("at most {max}"),
    ))
}

/// A team to begin from.
pub const EXAMPLE: &str = r#"{
  "contacts": [
    {"id": "ada", "name": "Ada Example", "email": "ada@example.org"},
    {"id": "ada-son", "name": "Ben Example", "email": "ben@example.org"},
    {"id": "nurse-day", "name": "Nurse by day", "email": "day@example.org"},
    {"id": "nurse-night", "name": "Nurse by night", "email": "night@example.org"}
  ],
  "time_zone": "Europe/Berlin",
  "names": {"email": "initials", "webhook": "id", "mqtt": "id"},
  "rota": [
    {
      "shifts": [
        {"from": "mon 08:00", "to": "mon 20:00", "contact": "nurse-day"},
        {"from": "mon 20:00", "to": "tue 08:00", "contact": "nurse-night"},
        {"from": "tue 08:00", "to": "tue 20:00", "contact": "nurse-day"},
        {"from": "tue 20:00", "to": "wed 08:00", "contact": "nurse-night"},
        {"from": "wed 08:00", "to": "wed 20:00", "contact": "nurse-day"},
        {"from": "wed 20:00", "to": "thu 08:00", "contact": "nurse-night"},
        {"from": "thu 08:00", "to": "thu 20:00", "contact": "nurse-day"},
        {"from": "thu 20:00", "to": "fri 08:00", "contact": "nurse-night"},
        {"from": "fri 08:00", "to": "fri 20:00", "contact": "nurse-day"},
        {"from": "fri 20:00", "to": "sat 08:00", "contact": "nurse-night"},
        {"from": "sat 08:00", "to": "sat 20:00", "contact": "nurse-day"},
        {"from": "sat 20:00", "to": "sun 08:00", "contact": "nurse-night"},
        {"from": "sun 08:00", "to": "sun 20:00", "contact": "nurse-day"},
        {"from": "sun 20:00", "to": "mon 08:00", "contact": "nurse-night"}
      ]
    }
  ],
  "patients": {
    "ada": {"group": "copd", "person": ["ada"], "emergency": ["ada-son"]}
  },
  "escalation": {
    "low": {
      "steps": [{"after_s": 0, "tell": ["person", "on-call"]}],
      "remind_every_s": 14400
    },
    "medium": {
      "steps": [{"after_s": 0, "tell": ["person"]}, {"after_s": 300, "tell": ["emergency"]}, {"after_s": 900, "tell": ["on-call"]}],
      "remind_every_s": 900,
      "reminders_max": 8
    },
    "high": {
      "steps": [{"after_s": 0, "tell": ["person", "emergency"]}, {"after_s": 120, "tell": ["on-call"]}],
      "remind_every_s": 300,
      "reminders_max": 24
    }
  }
}"#;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const MINUTE_US: i64 = 60_000_000;
    const HOUR_US: i64 = 60 * MINUTE_US;
    /// Monday, 5 January 1970.
    const MONDAY_US: i64 = 4 * 24 * HOUR_US;

    fn names(team: &Team, roles: &[Role], now_us: i64) -> Vec<String> {
        let people = team.people(roles, "ada", now_us);
        people
            .into_iter()
            .map(|contact| contact.id.clone())
            .collect()
    }

    #[test]
    fn the_example_is_valid_and_survives_json() {
        let team = Team::from_json(EXAMPLE).unwrap();
        let text = serde_json::to_string(&team).unwrap();
        assert_eq!(Team::from_json(&text).unwrap(), team);
        assert_eq!(team.escalation, Escalation::default());
        assert_eq!(team.group("ada"), Some("copd"));
        assert_eq!(
            names(&team, &[Role::Person, Role::Emergency, Role::Person], 0),
            ["ada", "ada-son"]
        );
        assert!(team.people(&[Role::Person], "unlisted", 0).is_empty());
    }

    #[test]
    fn shifts_follow_the_local_week() {
        let team = Team::from_json(EXAMPLE).unwrap();
        let on_call = |hours: i64, minutes: i64| {
            names(
                &team,
                &[Role::OnCall],
                MONDAY_US + hours * HOUR_US + minutes * MINUTE_US,
            )
        };
        // In Berlin 08:00 is 07:00 in Greenwich, in winter.
        assert_eq!(on_call(6, 59), ["nurse-night"]);
        assert_eq!(on_call(7, 0), ["nurse-day"]);
        assert_eq!(on_call(18, 59), ["nurse-day"]);
        assert_eq!(on_call(19, 0), ["nurse-night"]);
        assert_eq!(
            on_call(6 * 24 + 23, 30),
            ["nurse-night"],
            "over the end of the week"
        );
    }

    #[test]
    fn shifts_begin_at_the_same_local_time_in_summer_and_in_winter() {
        let team = Team::from_json(EXAMPLE).unwrap();
        // 08:00 in Berlin: on Monday 23 March 2026 at 07:00 UTC, on the Monday after at 06:00.
        for eight_us in [1_774_249_200_000_000, 1_774_850_400_000_000] {
            let on_call = |us| names(&team, &[Role::OnCall], us);
            assert_eq!(on_call(eight_us - MINUTE_US), ["nurse-night"]);
            assert_eq!(on_call(eight_us), ["nurse-day"]);
        }
        // A rota with an offset of its own keeps it.
        let fixed = EXAMPLE.replacen("\"shifts\"", "\"utc_offset_min\": 60, \"shifts\"", 1);
        let fixed = Team::from_json(&fixed).unwrap();
        let seven_us = 1_774_850_400_000_000;
        assert_eq!(names(&fixed, &[Role::OnCall], seven_us), ["nurse-night"]);
    }

    #[test]
    fn wrong_teams_are_refused_by_field() {
        let refused = |from: &str, to: &str| {
            assert!(EXAMPLE.contains(from), "{from}");
            Team::from_json(&EXAMPLE.replacen(from, to, 1))
                .unwrap_err()
                .field
        };
        assert_eq!(
            refused("\"id\": \"ada-son\"", "\"id\": \"ada\""),
            "contacts.id"
        );
        assert_eq!(refused("ben@example.org", "nobody"), "contacts.email");
        assert_eq!(refused("\"Ben Example\"", "\" \""), "contacts.name");
        assert_eq!(refused("mon 20:00", "moon 20:00"), "team");
        assert_eq!(refused("mon 20:00", "mon 24:00"), "team");
        assert_eq!(
            refused("\"contact\": \"nurse-day\"", "\"contact\": \"x\""),
            "rota.shifts.contact"
        );
        assert_eq!(refused("[\"ada-son\"]", "[\"x\"]"), "patients.emergency");
        assert_eq!(
            refused("\"shifts\"", "\"utc_offset_min\": 6000, \"shifts\""),
            "rota.utc_offset_min"
        );
        assert_eq!(refused("Europe/Berlin", "Europe/Nowhere"), "team");
        assert_eq!(refused("\"initials\"", "\"everything\""), "team");
        assert_eq!(
            refused("\"after_s\": 300", "\"after_s\": 3000"),
            "escalation.steps.after_s"
        );
        assert_eq!(
            refused("\"remind_every_s\": 900", "\"remind_every_s\": 1"),
            "escalation.remind_every_s"
        );
        assert_eq!(refused("\"rota\"", "\"roster\""), "team");
    }
}
