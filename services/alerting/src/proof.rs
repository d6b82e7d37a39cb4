//! Which channels are proven, and which heartbeats are due. Sans-IO: takes settings, teams, stored
//! proofs and time.
//!
//! A configured channel proves nothing. A heartbeat goes to each recipient of a channel, and its
//! receiver confirms it: by a link, an answer or a reply. A recipient is proven by a receipt under
//! the present settings that is not older than the interval and a half.

use std::collections::{BTreeMap, BTreeSet};

use store::Proof;

use crate::{
    routing::{Channels, EMAIL, MQTT, WEBHOOK},
    team::Team,
};

const SECOND_US: i64 = 1_000_000;
/// Pauses between heartbeats that a machine has not confirmed. They double up to the interval.
const AGAIN_US: i64 = 60 * SECOND_US;
/// The proof of a recipient that is in no team any more is removed after this time. Members read a
/// changed team at different times.
const KEPT_US: i64 = 7 * 86_400 * SECOND_US;
/// A heartbeat that was sent later than this from now was sent by a clock that has been set back.
const AHEAD_US: i64 = 600 * SECOND_US;

/// How channels are proven.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    pub every_us: i64,
    /// For people, who confirm by a link.
    pub people_every_us: i64,
    /// By channel: a name of its settings. Other settings need a proof of their own.
    pub settings: BTreeMap<&'static str, String>,
}

/// A recipient of a channel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Target {
    pub channel: &'static str,
    /// Empty: of the installation.
    pub tenant: String,
    pub recipient: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// `before_us`: when the last one was sent.
    Send {
        target: Target,
        settings: String,
        before_us: Option<i64>,
    },
    /// The recipient is gone.
    End(Target),
}

/// Knowledge about one recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Proven,
    /// Confirmed at this time, which is too long ago.
    Old(i64),
    Never,
}

/// Every recipient of the configured channels.
pub(crate) fn targets<'a>(
    channels: &Channels,
    teams: impl Iterator<Item = (&'a String, &'a Team)>,
) -> BTreeSet<Target> {
    let target = |channel, tenant: &str, recipient: &str| Target {
        channel,
        tenant: tenant.to_owned(),
        recipient: recipient.to_owned(),
    };
    let mut targets = BTreeSet::new();
    if channels.webhook {
        targets.insert(target(WEBHOOK, "", ""));
    }
    if channels.mqtt {
        targets.insert(target(MQTT, "", ""));
    }
    if !channels.email {
        return targets;
    }
    let of_all = channels.email_to.iter();
    targets.extend(of_all.map(|address| target(EMAIL, "", address)));
    for (tenant, team) in teams {
        let addresses = team.contacts.iter().filter_map(|it| it.email.as_deref());
        targets.extend(addresses.map(|address| target(EMAIL, tenant, address)));
    }
    targets
}

/// Stored proofs, by recipient.
#[derive(Debug, Default)]
pub(crate) struct Proofs {
    pace: Pace,
    by: BTreeMap<(String, String, String), Proof>,
}

impl Proofs {
    pub(crate) fn new(pace: &Pace, stored: Vec<Proof>) -> Proofs {
        let key = |it: &Proof| (it.channel.clone(), it.tenant.clone(), it.recipient.clone());
        Proofs {
            pace: pace.clone(),
            by: stored.into_iter().map(|it| (key(&it), it)).collect(),
        }
    }

    fn get(&self, target: &Target) -> Option<&Proof> {
        let Target {
            channel,
            tenant,
            recipient,
        } = target.clone();
        self.by.get(&(channel.to_owned(), tenant, recipient))
    }

    fn settings(&self, channel: &str) -> &str {
        self.pace.settings.get(channel).map_or("", String::as_str)
    }

    fn every_us(&self, channel: &str) -> i64 {
        match channel {
            EMAIL => self.pace.people_every_us,
            _ => self.pace.every_us,
        }
    }

    pub(crate) fn standing(&self, target: &Target, now_us: i64) -> Standing {
        let proof = self.get(target);
        let proof = proof.filter(|it| it.settings == self.settings(target.channel));
        let Some(confirmed_us) = proof.and_then(|it| it.confirmed_us) else {
            return Standing::Never;
        };
        let every_us = self.every_us(target.channel);
        if now_us - confirmed_us <= every_us + every_us / 2 {
            Standing::Proven
        } else {
            Standing::Old(confirmed_us)
        }
    }

    /// Heartbeats to send now, and proofs to remove. `failures` counts the heartbeats in turn that
    /// a recipient has not confirmed or that were not sent.
    pub(crate) fn due(
        &self,
        targets: &BTreeSet<Target>,
        failures: &BTreeMap<Target, u32>,
        now_us: i64,
    ) -> Vec<Due> {
        let mut due = Vec::new();
        for target in targets {
            let proof = self.get(target);
            let settings = self.settings(target.channel);
            let before_us = proof.map(|it| it.sent_us);
            let is_due = proof.is_none_or(|proof| {
                let age_us = now_us - proof.sent_us;
                proof.settings != settings
                    || age_us < -AHEAD_US
                    || age_us >= self.pause_us(target, proof, failures.get(target).copied())
            });
            if is_due {
                due.push(Due::Send {
                    target: target.clone(),
                    settings: settings.to_owned(),
                    before_us,
                });
            }
        }
        for proof in self.by.values() {
            let channel = [WEBHOOK, EMAIL, MQTT]
                .into_iter()
                .find(|it| *it == proof.channel);
            let Some(channel) = channel else {
                continue;
            };
            let target = Target {
                channel,
                tenant: proof.tenant.clone(),
                recipient: proof.recipient.clone(),
            };
            if !targets.contains(&target) && now_us - proof.sent_us > KEPT_US {
                due.push(Due::End(target));
            }
        }
        due
    }

    /// A machine that has not confirmed is asked again soon. A person has a letter, and gets the
    /// next one after the interval, unless the letter was not sent.
    fn pause_us(&self, target: &Target, proof: &Proof, failures: Option<u32>) -> i64 {
        let every_us = self.every_us(target.channel);
        let is_confirmed = proof.confirmed_us.is_some_and(|it| it >= proof.sent_us);
        match failures {
            Some(failures) if !is_confirmed => {
                let doublings = failures.saturating_sub(1).min(16);
                (AGAIN_US << doublings).min(every_us)
            }
            None if !is_confirmed && target.channel != EMAIL => AGAIN_US.min(every_us),
            _ => every_us,
        }
    }
}

/// Every recipient has confirmed a heartbeat, except these.
#[cfg(test)]
pub(crate) fn proven_except(
    except: &[&str],
    channels: &Channels,
    team: Option<(&String, &Team)>,
) -> Proofs {
    let targets = targets(channels, team.into_iter()).into_iter();
    let proven = targets.filter(|target| !except.contains(&target.recipient.as_str()));
    let confirmed = proven.map(|target| Proof {
        channel: target.channel.to_owned(),
        tenant: target.tenant,
        recipient: target.recipient,
        confirmed_us: Some(0),
        ..Proof::default()
    });
    Proofs::new(&Pace::default(), confirmed.collect())
}

#[cfg(test)]
#[path = "proof_tests.rs"]
mod tests;
