//! Whom an outage concerns: the people of each tenant's team, and those of the configuration.
//! Sans-IO.
//!
//! The team is read by this contract; alerting validates it. The last team that could be read
//! stays, because an outage may be one of the store.

use std::collections::{BTreeMap, BTreeSet};

use calendar::{Rota, Zone};
use contracts::alerts::Document;
use serde::Deserialize;
use sha2::{Digest, Sha256};

/// People of one outage. Those beyond are not told; it is logged and counted.
const PEOPLE_MAX: usize = 1_000;

/// The part of a team's document that says who is on call.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub(crate) struct TeamPeople {
    #[serde(default)]
    contacts: Vec<Contact>,
    #[serde(default)]
    time_zone: Option<Zone>,
    #[serde(default)]
    rota: Vec<Rota>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Contact {
    id: String,
    email: Option<String>,
}

impl TeamPeople {
    pub(crate) fn read(team: &Document) -> Result<TeamPeople, String> {
        serde_json::from_str(&team.body).map_err(|error| error.to_string())
    }

    /// Addresses of those on call. If none of them has one: of all with a shift, else of all
    /// contacts.
    fn to_tell(&self, now_us: i64) -> Vec<&str> {
        let zone = self.time_zone.as_ref();
        let on_call = self.rota.iter().flat_map(|rota| rota.on_call(zone, now_us));
        let shifts = self.rota.iter().flat_map(|rota| &rota.shifts);
        let with_shift = shifts.map(|shift| shift.contact.as_str());
        let mut found = self.addresses(&on_call.collect());
        if found.is_empty() {
            found = self.addresses(&with_shift.collect());
        }
        if found.is_empty() {
            found = self.contacts.iter().filter_map(Contact::address).collect();
        }
        found
    }

    fn addresses(&self, ids: &BTreeSet<&str>) -> Vec<&str> {
        let contacts = self.contacts.iter();
        let named = contacts.filter(|contact| ids.contains(contact.id.as_str()));
        named.filter_map(Contact::address).collect()
    }
}

impl Contact {
    fn address(&self) -> Option<&str> {
        self.email.as_deref().filter(|email| !email.is_empty())
    }
}

/// One person, by address.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipient {
    pub address: String,
    /// Zone of the times in the letter.
    pub zone: Zone,
}

impl Recipient {
    /// Names the person in the store without the address.
    pub(crate) fn key(&self) -> String {
        let hash = Sha256::digest(self.address.to_lowercase().as_bytes());
        let hash = hash.iter().take(8).map(|byte| format!("{byte:02x}"));
        format!("mail-{}", hash.collect::<String>())
    }
}

/// A tenant nobody of which would be told, in one sentence.
pub(crate) type Untold = BTreeMap<String, String>;

#[derive(Debug, Default)]
pub(crate) struct Recipients {
    /// Addresses of the configuration, which are told of every outage.
    always: Vec<String>,
    teams: BTreeMap<String, TeamPeople>,
    tenants: BTreeSet<String>,
}

impl Recipients {
    pub(crate) fn new(always: &[String]) -> Recipients {
        Recipients {
            always: always.to_vec(),
            ..Recipients::default()
        }
    }

    pub(crate) fn on_teams(&mut self, teams: impl IntoIterator<Item = (Document, TeamPeople)>) {
        let teams = teams.into_iter();
        self.teams = teams.map(|(team, people)| (team.tenant, people)).collect();
    }

    pub(crate) fn on_tenants(&mut self, tenants: BTreeSet<String>) {
        self.tenants = tenants;
    }

    /// Those to tell now, each once.
    pub(crate) fn now(&self, now_us: i64) -> Vec<Recipient> {
        let of_teams = self.teams.values().flat_map(|team| {
            let people = team.to_tell(now_us).into_iter();
            people.map(|address| (address, team.time_zone.clone()))
        });
        let mut found = self.once(of_teams);
        if found.len() > PEOPLE_MAX {
            let left = found.len() - PEOPLE_MAX;
            tracing::error!(left, "people are not told of an outage: there are too many");
            metrics::gauge!("braid_dashboard_outage_people_left_out").set(left as f64);
            found.truncate(PEOPLE_MAX);
        }
        found
    }

    /// The administrators of the configuration; without any, those of the tenant to tell now.
    pub(crate) fn administrators_of(&self, tenant: &str, now_us: i64) -> Vec<Recipient> {
        let team = self.teams.get(tenant).filter(|_| self.always.is_empty());
        let of_team = team.into_iter().flat_map(|team| {
            let people = team.to_tell(now_us).into_iter();
            people.map(|address| (address, team.time_zone.clone()))
        });
        self.once(of_team)
    }

    /// Everybody whom an earlier call of [`Recipients::now`] may have named.
    pub(crate) fn ever(&self) -> Vec<Recipient> {
        let of_teams = self.teams.values().flat_map(|team| {
            let people = team.contacts.iter().filter_map(Contact::address);
            people.map(|address| (address, team.time_zone.clone()))
        });
        self.once(of_teams)
    }

    fn once<'a>(
        &'a self,
        of_teams: impl Iterator<Item = (&'a str, Option<Zone>)>,
    ) -> Vec<Recipient> {
        let always = self.always.iter().map(|address| (address.as_str(), None));
        let mut seen = BTreeSet::new();
        always
            .chain(of_teams)
            .filter(|(address, _)| seen.insert(address.to_lowercase()))
            .map(|(address, zone)| Recipient {
                address: address.to_owned(),
                zone: zone.unwrap_or_default(),
            })
            .collect()
    }

    /// Tenants of which nobody would be told by e-mail.
    pub(crate) fn untold(&self, now_us: i64) -> Untold {
        if !self.always.is_empty() {
            return Untold::new();
        }
        let tenants = self.tenants.iter();
        let untold = tenants.filter(|tenant| {
            let team = self.teams.get(*tenant);
            team.is_none_or(|team| team.to_tell(now_us).is_empty())
        });
        let says = |tenant: &String| {
            let why = match self.teams.contains_key(tenant) {
                true => "no contact of its team has an address",
                false => "it has no team",
            };
            let says = format!("nobody of tenant {tenant} is told when alerting fails: {why}");
            (tenant.clone(), says)
        };
        untold.map(says).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOUR_US: i64 = 3_600_000_000;
    /// Monday, 5 January 1970, 00:00 UTC.
    const MONDAY_US: i64 = 4 * 24 * HOUR_US;
    const TEAM: &str = r#"{
      "contacts": [
        {"id": "ada", "name": "Ada", "email": "Ada@example.org"},
        {"id": "day", "name": "Day", "email": "day@example.org"},
        {"id": "night", "name": "Night", "email": "night@example.org"}
      ],
      "time_zone": "Europe/Berlin",
      "names": {"email": "full"},
      "rota": [{"shifts": [
        {"from": "mon 08:00", "to": "mon 20:00", "contact": "day"},
        {"from": "mon 20:00", "to": "tue 08:00", "contact": "night"}
      ]}]
    }"#;

    fn team(tenant: &str, body: &str) -> (Document, TeamPeople) {
        let document = Document {
            tenant: tenant.to_owned(),
            body: body.to_owned(),
            ..Document::default()
        };
        let people = TeamPeople::read(&document).unwrap();
        (document, people)
    }

    fn told(recipients: &Recipients, now_us: i64) -> Vec<String> {
        let found = recipients.now(now_us).into_iter();
        found.map(|recipient| recipient.address).collect()
    }

    #[test]
    fn those_on_call_are_told_and_those_of_the_configuration() {
        let mut recipients = Recipients::new(&["it@example.org".to_owned()]);
        recipients.on_teams([team("one", TEAM)]);
        let at = |hour: i64| told(&recipients, MONDAY_US + hour * HOUR_US);
        assert_eq!(at(8), ["it@example.org", "day@example.org"]);
        assert_eq!(at(20), ["it@example.org", "night@example.org"]);
        // Without anybody on call: all who have a shift.
        let wednesday = ["it@example.org", "day@example.org", "night@example.org"];
        assert_eq!(at(60), wednesday);
        assert_eq!(recipients.administrators_of("one", MONDAY_US).len(), 1);
        assert_eq!(recipients.now(MONDAY_US)[1].zone.name(), "Europe/Berlin");
    }

    #[test]
    fn without_a_rota_every_contact_is_told_and_each_once() {
        let bare = r#"{"contacts": [{"id": "a", "name": "A", "email": "ada@example.org"},
            {"id": "b", "name": "B", "email": ""}]}"#;
        let mut recipients = Recipients::new(&[]);
        recipients.on_teams([team("one", bare), team("two", &TEAM.replace("mon", "fri"))]);
        let mut found = told(&recipients, MONDAY_US);
        found.sort();
        // The shift of the night lasts from Friday to Tuesday there.
        assert_eq!(found, ["ada@example.org", "night@example.org"]);
        let keys: BTreeSet<String> = recipients.ever().iter().map(Recipient::key).collect();
        assert_eq!(recipients.administrators_of("one", MONDAY_US).len(), 1);
        assert_eq!(keys.len(), 3, "Ada is one person in two teams");
        assert!(keys.iter().all(|key| !key.contains("ada")), "{keys:?}");
    }

    #[test]
    fn a_tenant_without_people_is_said() {
        let tenants = || ["one", "two", "three"].map(str::to_owned).into();
        let mut recipients = Recipients::new(&[]);
        recipients.on_tenants(tenants());
        recipients.on_teams([
            team("one", TEAM),
            team("two", r#"{"contacts": [{"id": "a", "name": "A"}]}"#),
        ]);
        let untold = recipients.untold(MONDAY_US);
        assert_eq!(untold.keys().collect::<Vec<_>>(), ["three", "two"]);
        assert!(untold["three"].ends_with("it has no team"), "{untold:?}");
        assert!(untold["two"].ends_with("has an address"), "{untold:?}");
        let mut configured = Recipients::new(&["it@example.org".to_owned()]);
        configured.on_tenants(tenants());
        assert_eq!(configured.untold(MONDAY_US), Untold::new());
    }
}
