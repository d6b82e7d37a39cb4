//! Finds tenants and patients whose alerts notify nobody. Sans-IO: takes documents, register and
//! channels; returns gaps.
//!
//! Only a proven channel reaches anybody ([`unproven`]). A step reaches only people with a working
//! address. That is a proven e-mail address where e-mail is configured, else their name in a
//! webhook or MQTT message ([`Channels::reaches`]). A webhook and MQTT get every transition, so no
//! alert is without a receiver there. A plan without steps is a valid choice for low priority only.

mod unproven;

use std::collections::{BTreeMap, BTreeSet};

use contracts::vitals::Priority;
use store::PatientEntry;

use crate::{
    proof::Proofs,
    routing::Channels,
    team::{Role, Team},
};

/// Gaps named in one answer. The rest is counted.
pub(crate) const GAPS_MAX: usize = 100;
/// Patients named in one gap. The rest is counted.
const NAMED_MAX: usize = 5;

/// Alerts that notify nobody, or an escalation step that reaches nobody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Gap {
    /// Whether no step reaches a person. False: another step does.
    pub is_total: bool,
    /// Empty: every tenant.
    pub tenant: String,
    /// One sentence for people.
    pub says: String,
    pub to_do: &'static str,
}

/// Input of one check.
pub(crate) struct Known<'a> {
    pub channels: &'a Channels,
    pub proofs: &'a Proofs,
    pub now_us: i64,
    pub team_of: &'a dyn Fn(&str) -> Option<&'a Team>,
    pub tenants: &'a BTreeSet<String>,
    pub patients: &'a [PatientEntry],
}

/// Total gaps come first.
pub(crate) fn gaps(known: &Known<'_>) -> Vec<Gap> {
    let channels = known.channels;
    if !channels.email && !channels.webhook && !channels.mqtt {
        return vec![Gap {
            is_total: true,
            tenant: String::new(),
            says: "no channel is configured, so nobody is notified of any alert".to_owned(),
            to_do: "configure --webhook, --mqtt or --smtp of alerting",
        }];
    }
    let mut patients: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for patient in known.patients {
        let of_tenant = patients.entry(&patient.tenant).or_default();
        of_tenant.push(&patient.id);
    }
    let mut gaps = known.unproven();
    for tenant in known.tenants {
        let patients = patients.remove(tenant.as_str()).unwrap_or_default();
        match (known.team_of)(tenant) {
            Some(team) => of_team(known, tenant, team, &patients, &mut gaps),
            None if channels.email && !known.reaches_all() => gaps.push(Gap {
                is_total: true,
                tenant: tenant.clone(),
                says: format!(
                    "tenant {tenant} has no team, so nobody is notified of the alerts of its {} patients",
                    patients.len()
                ),
                to_do: "put a team (`braid alerts team put`), or name --email-to",
            }),
            None => {}
        }
    }
    gaps.sort_by(|a, b| b.is_total.cmp(&a.is_total).then_with(|| a.cmp(b)));
    gaps
}

const MEND_TEAM: &str = "put a team with people who have addresses (`braid alerts team put`)";

const MEND_CLOCK: &str =
    "put a team with the time_zone of its people, for example \"Europe/Berlin\"";
const MEND_LOW: &str = "add \"on-call\" to the low escalation of the team, or mark a patient who cares for themself with \"self_care\": true";

/// Gaps of one tenant's team.
struct OfTeam<'a, 'k> {
    known: &'a Known<'k>,
    tenant: &'a str,
    team: &'a Team,
    gaps: &'a mut Vec<Gap>,
}

impl OfTeam<'_, '_> {
    fn add(&mut self, is_total: bool, says: &str, to_do: &'static str) {
        self.gaps.push(Gap {
            is_total,
            tenant: self.tenant.to_owned(),
            says: format!("tenant {}: {says}", self.tenant),
            to_do,
        });
    }

    /// Whether the team's recipients do not matter for an alert's being told at all.
    fn has_others(&self) -> bool {
        self.known.reaches_all()
    }

    /// Whether a contact with a proven address has one of the roles. A shift at any time of the
    /// week counts.
    fn reaches(&self, roles: &[Role], patient: &str) -> bool {
        roles.iter().any(|role| {
            let mut people = self.team.ever_in_role(*role, patient).into_iter();
            people.any(|contact| self.known.reaches(self.tenant, contact))
        })
    }

    fn of_priority(&mut self, name: &str, priority: Priority, patients: &[&str]) {
        let plan = self.team.plan(priority);
        // Patients whose alerts notify no person, and patients that one step misses.
        let mut untold: Vec<&str> = Vec::new();
        let mut missed: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for patient in patients {
            let reached = plan
                .steps
                .iter()
                .map(|step| self.reaches(&step.tell, patient));
            let reached: Vec<bool> = reached.collect();
            if !reached.contains(&true) {
                untold.push(patient);
                continue;
            }
            let failing = reached
                .iter()
                .enumerate()
                .filter(|(_, is_reached)| !**is_reached);
            for (index, _) in failing {
                missed.entry(index).or_default().push(patient);
            }
        }
        if !untold.is_empty() {
            let says = format!(
                "nobody is notified of alerts of {name} priority of {}",
                some_of(&untold)
            );
            let is_total = !self.has_others();
            self.add(is_total, &says, MEND_TEAM);
        }
        for (index, patients) in missed {
            let says = format!(
                "step {} of {name} priority reaches nobody for {}",
                index + 1,
                some_of(&patients)
            );
            self.add(false, &says, MEND_TEAM);
        }
    }

    /// Patients whose low alerts reach no person who cares for them, although somebody is on call.
    fn left_to_themselves(&mut self, patients: &[&str]) {
        let mut roles = self.team.plan(Priority::Low).steps.iter();
        let is_for_person = roles.all(|step| step.tell.iter().all(|role| *role == Role::Person));
        if !is_for_person || self.team.rota.is_empty() {
            return;
        }
        let own = |patient: &&&str| !self.team.cares_for_self(patient);
        let left: Vec<&str> = patients.iter().filter(own).copied().collect();
        if !left.is_empty() {
            let says = format!(
                "low alerts, such as a sensor that fell off, go to no one on call for {}",
                some_of(&left)
            );
            self.add(false, &says, MEND_LOW);
        }
    }
}

fn of_team(known: &Known<'_>, tenant: &str, team: &Team, patients: &[&str], gaps: &mut Vec<Gap>) {
    let channels = known.channels;
    let mut of_team = OfTeam {
        known,
        tenant,
        team,
        gaps,
    };
    let plans = [
        ("high", Priority::High),
        ("medium", Priority::Medium),
        ("low", Priority::Low),
    ];
    let mut asks_on_call = false;
    for (name, priority) in plans {
        let plan = team.plan(priority);
        if plan.steps.is_empty() {
            if priority != Priority::Low {
                let says = format!("the escalation of {name} priority has no step");
                let is_total = !of_team.has_others();
                of_team.add(is_total, &says, MEND_TEAM);
            }
            continue;
        }
        of_team.of_priority(name, priority, patients);
        let mut roles = plan.steps.iter().flat_map(|step| &step.tell);
        asks_on_call |= roles.any(|role| *role == Role::OnCall);
    }
    of_team.left_to_themselves(patients);
    if asks_on_call && let Some(hole) = team.rota_hole() {
        of_team.add(false, &hole, MEND_TEAM);
    }
    for doubt in team.clock_doubts() {
        of_team.add(false, &doubt, MEND_CLOCK);
    }
    let without = team.contacts.iter().filter(|it| !channels.reaches(it));
    let without: Vec<&str> = without.map(|contact| contact.id.as_str()).collect();
    if !without.is_empty() {
        let says = format!(
            "these contacts have no working address: {}",
            some_of(&without)
        );
        of_team.add(false, &says, MEND_TEAM);
    }
}

fn some_of(names: &[&str]) -> String {
    let named = names.iter().take(NAMED_MAX).copied();
    let named: Vec<&str> = named.collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use store::Spo2Scale;

    use super::*;
    use crate::{proof::proven_except, team::EXAMPLE};

    fn by_email(email_to: &[&str]) -> Channels {
        Channels {
            email: true,
            email_to: email_to.iter().map(|&it| it.to_owned()).collect(),
            ..Channels::default()
        }
    }

    /// Every recipient has confirmed a heartbeat.
    fn said(channels: &Channels, team: Option<&Team>, patients: &[&str]) -> Vec<(bool, String)> {
        said_without(&[], channels, team, patients)
    }

    /// Every recipient but these has.
    fn said_without(
        unproven: &[&str],
        channels: &Channels,
        team: Option<&Team>,
        patients: &[&str],
    ) -> Vec<(bool, String)> {
        let patients: Vec<PatientEntry> = patients
            .iter()
            .map(|id| PatientEntry {
                id: (*id).to_owned(),
                tenant: "one".to_owned(),
                name: "Ada Example".to_owned(),
                spo2_scale: Spo2Scale::One,
                ..PatientEntry::default()
            })
            .collect();
        let tenant = "one".to_owned();
        let proofs = proven_except(unproven, channels, team.map(|team| (&tenant, team)));
        let found = gaps(&Known {
            channels,
            proofs: &proofs,
            now_us: 0,
            team_of: &|_| team,
            tenants: &BTreeSet::from(["one".to_owned()]),
            patients: &patients,
        });
        found
            .into_iter()
            .map(|gap| (gap.is_total, gap.says))
            .collect()
    }

    fn example(from: &str, to: &str) -> Team {
        assert!(EXAMPLE.contains(from), "{from}");
        Team::from_json(&EXAMPLE.replacen(from, to, 1)).unwrap()
    }

    #[test]
    fn without_a_channel_or_a_team_nobody_is_told() {
        let none = said(&Channels::default(), None, &["ada"]);
        assert!(none[0].0 && none[0].1.contains("no channel"), "{none:?}");
        let teamless = said(&by_email(&[]), None, &["ada"]);
        assert!(teamless[0].0 && teamless[0].1.contains("has no team"));
        // The recipients of the configuration close the gap.
        assert_eq!(said(&by_email(&["ward@example.org"]), None, &["ada"]), []);
        for (webhook, mqtt) in [(true, false), (false, true)] {
            let channels = Channels {
                webhook,
                mqtt,
                ..Channels::default()
            };
            assert_eq!(said(&channels, None, &["ada"]), []);
        }
    }

    #[test]
    fn a_complete_team_leaves_no_gap_and_each_thing_that_is_missing_is_said() {
        let team = Team::from_json(EXAMPLE).unwrap();
        assert_eq!(said(&by_email(&[]), Some(&team), &["ada"]), []);
        let found = |team: &Team, patient: &str| said(&by_email(&[]), Some(team), &[patient]);
        // A patient whom the team does not list is in the care of those on call.
        let unlisted = found(&team, "ben");
        assert!(
            unlisted.iter().all(|(is_total, _)| !is_total),
            "{unlisted:?}"
        );
        assert!(unlisted.iter().any(|(is_total, says)| {
            !is_total && says.contains("step 2 of medium priority reaches nobody for ben")
        }));
        let without = example(r#", "email": "ada@example.org""#, "");
        let found_without = found(&without, "ada");
        assert!(
            found_without
                .iter()
                .any(|(_, says)| says.contains("have no working address: ada"))
        );
        assert!(
            found_without
                .iter()
                .any(|(_, says)| says.contains("step 1 of medium priority reaches nobody for ada"))
        );
        let hole = example(
            "sun 20:00\", \"to\": \"mon 08:00",
            "sun 20:00\", \"to\": \"mon 06:00",
        );
        let found_hole = found(&hole, "ada");
        assert_eq!(found_hole.len(), 1, "{found_hole:?}");
        assert!(
            found_hole[0]
                .1
                .contains("nobody is on call from mon 06:00 to mon 08:00"),
            "{found_hole:?}"
        );
        let silent = example(
            r#""high": {
      "steps": [{"after_s": 0, "tell": ["person", "emergency"]}, {"after_s": 120, "tell": ["on-call"]}],"#,
            r#""high": {"steps": [],"#,
        );
        assert!(
            found(&silent, "ada")[0]
                .1
                .contains("high priority has no step")
        );
    }

    #[test]
    fn low_alerts_that_go_to_no_one_on_call_are_a_gap() {
        let person_alone = example(r#"["person", "on-call"]"#, r#"["person"]"#);
        let found = |team: &Team, channels: &Channels| said(channels, Some(team), &["ada"]);
        let is_said = |found: &[(bool, String)]| {
            let mut says = found.iter().map(|(_, says)| says);
            says.any(|says| says.contains("go to no one on call for ada"))
        };
        assert!(is_said(&found(&person_alone, &by_email(&[]))));
        let by_webhook = Channels {
            webhook: true,
            ..Channels::default()
        };
        assert!(is_said(&found(&person_alone, &by_webhook)));
        let mut self_care = person_alone;
        for care in self_care.patients.values_mut() {
            care.self_care = true;
        }
        assert_eq!(found(&self_care, &by_email(&[])), []);
    }

    #[test]
    fn a_webhook_hides_no_contact_without_an_address() {
        let team = example(r#", "email": "day@example.org""#, "");
        let both = Channels {
            webhook: true,
            ..by_email(&[])
        };
        let found = said(&both, Some(&team), &["ada"]);
        let contact = "these contacts have no working address: nurse-day";
        assert!(
            found.iter().any(|(_, says)| says.contains(contact)),
            "{found:?}"
        );
        let zone = example("\"time_zone\": \"Europe/Berlin\",", "");
        let found = said(&both, Some(&zone), &["ada"]);
        assert!(found[0].1.contains("no time_zone"), "{found:?}");
    }

    #[test]
    fn what_is_configured_and_has_confirmed_nothing_reaches_nobody() {
        for (webhook, mqtt, name) in [(true, false, "webhook"), (false, true, "MQTT")] {
            let channels = Channels {
                webhook,
                mqtt,
                ..Channels::default()
            };
            let found = said_without(&[""], &channels, None, &["ada"]);
            let (is_total, says) = &found[0];
            assert!(
                is_total & says.contains(name) && says.contains("never"),
                "{found:?}"
            );
        }
        // It hides no gap of the channel beside it.
        let both = Channels {
            webhook: true,
            ..by_email(&[])
        };
        let found = said_without(&[""], &both, None, &["ada"]);
        assert!(
            found[0].0 && found[0].1.contains("has no team"),
            "{found:?}"
        );
        assert!(
            found
                .iter()
                .any(|(_, says)| says.contains("the webhook has never"))
        );
        assert_eq!(said(&both, None, &["ada"]), [], "the webhook is proven");
        let ward = by_email(&["ward@example.org"]);
        let found = said_without(&["ward@example.org"], &ward, None, &["ada"]);
        assert!(
            found[0].0 && found[0].1.contains("has no team"),
            "{found:?}"
        );
    }

    #[test]
    fn a_person_who_has_confirmed_nothing_is_named_and_not_counted_on() {
        let team = Team::from_json(EXAMPLE).unwrap();
        let found =
            |unproven: &[&str]| said_without(unproven, &by_email(&[]), Some(&team), &["ada"]);
        let both_nurses = found(&["day@example.org", "night@example.org"]);
        let has = |text: &str| both_nurses.iter().any(|(_, says)| says.contains(text));
        assert!(has("reach them: nurse-day, nurse-night"), "{both_nurses:?}");
        assert!(
            has("step 2 of high priority reaches nobody for ada"),
            "{both_nurses:?}"
        );
        // One of those who are told at once is enough for the step.
        let son = found(&["ben@example.org"]);
        assert!(
            !son.iter().any(|(_, says)| says.contains("high priority")),
            "{son:?}"
        );
        assert!(
            son.iter()
                .any(|(_, says)| says.contains("reach them: ada-son"))
        );
    }

    #[test]
    fn many_patients_are_counted() {
        let ids: Vec<String> = (0..50).map(|n| format!("p{n:02}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let team = Team::from_json(EXAMPLE).unwrap();
        let found = said(&by_email(&[]), Some(&team), &ids);
        assert!(
            found[0].1.ends_with("p00, p01, p02, p03, p04 and 45 more"),
            "{found:?}"
        );
        assert!(found.len() < 10);
    }
}
