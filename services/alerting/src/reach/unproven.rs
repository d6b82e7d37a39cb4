//! Channels and recipients that have not confirmed a heartbeat. A configured channel reaches nobody
//! before it is proven.

use super::{Gap, Known, some_of};
use crate::{
    proof::{Standing, Target},
    routing::{EMAIL, MQTT, WEBHOOK},
    team::Contact,
};

const MEND_MACHINE: &str =
    "let the receiver confirm heartbeats: see Heartbeats in docs/operate/teams.md";
const MEND_PERSON: &str = "each of them opens the link in Braid's letter and presses its button; letters link to the page when --public-url of alerting is set";

impl Known<'_> {
    pub(super) fn is_proven(&self, channel: &'static str, tenant: &str, recipient: &str) -> bool {
        self.standing(channel, tenant, recipient) == Standing::Proven
    }

    /// Whether a proven receiver gets every transition.
    pub(super) fn gets_all(&self) -> bool {
        let channels = self.channels;
        (channels.webhook && self.is_proven(WEBHOOK, "", ""))
            || (channels.mqtt && self.is_proven(MQTT, "", ""))
    }

    /// Whether somebody gets the alerts of every tenant.
    pub(super) fn reaches_all(&self) -> bool {
        let mut of_all = self.channels.email_to.iter();
        let is_email = self.channels.email;
        self.gets_all() || (is_email && of_all.any(|it| self.is_proven(EMAIL, "", it)))
    }

    /// Whether messages reach a contact who has an address.
    pub(super) fn reaches(&self, tenant: &str, contact: &Contact) -> bool {
        if !self.channels.email {
            return self.channels.reaches(contact) && self.gets_all();
        }
        let address = contact.email.as_deref();
        address.is_some_and(|address| self.is_proven(EMAIL, tenant, address))
    }

    fn standing(&self, channel: &'static str, tenant: &str, recipient: &str) -> Standing {
        let target = Target {
            channel,
            tenant: tenant.to_owned(),
            recipient: recipient.to_owned(),
        };
        self.proofs.standing(&target, self.now_us)
    }

    /// One gap for each receiver that is a machine, and one for each tenant's people.
    pub(super) fn unproven(&self) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let machines = [
            (WEBHOOK, "the webhook", self.channels.webhook),
            (MQTT, "the receiver of MQTT", self.channels.mqtt),
        ];
        for (channel, name, is_configured) in machines {
            if !is_configured {
                continue;
            }
            let says = match self.standing(channel, "", "") {
                Standing::Proven => continue,
                Standing::Never => format!("{name} has never confirmed a heartbeat"),
                Standing::Old(at_us) => format!(
                    "{name} has confirmed no heartbeat since {}",
                    self.channels.zone.text(at_us)
                ),
            };
            gaps.push(Gap {
                // E-mail has gaps of its own.
                is_total: !self.channels.email && !self.gets_all(),
                tenant: String::new(),
                says: format!("{says}, so it counts as a receiver that nobody reads"),
                to_do: MEND_MACHINE,
            });
        }
        if !self.channels.email {
            return gaps;
        }
        let mut of_people = |tenant: &str, unproven: Vec<&str>| {
            if unproven.is_empty() {
                return;
            }
            let whose = match tenant {
                "" => "--email-to".to_owned(),
                tenant => format!("tenant {tenant}"),
            };
            gaps.push(Gap {
                is_total: false,
                tenant: tenant.to_owned(),
                says: format!(
                    "{whose}: these have not confirmed that messages reach them: {}",
                    some_of(&unproven)
                ),
                to_do: MEND_PERSON,
            });
        };
        let of_all = self.channels.email_to.iter().map(String::as_str);
        of_people(
            "",
            of_all.filter(|it| !self.is_proven(EMAIL, "", it)).collect(),
        );
        for tenant in self.tenants {
            let contacts = (self.team_of)(tenant)
                .into_iter()
                .flat_map(|team| &team.contacts);
            let unproven = contacts.filter(|contact| {
                let address = contact.email.as_deref();
                address.is_some_and(|address| !self.is_proven(EMAIL, tenant, address))
            });
            of_people(
                tenant,
                unproven.map(|contact| contact.id.as_str()).collect(),
            );
        }
        gaps
    }
}
