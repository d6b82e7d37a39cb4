//! The channels: their names, their places, and how notices become messages.

use std::collections::BTreeMap;

use store::QueuedNotice;

use super::{
    email::Email,
    heartbeat::Heartbeat,
    message::{Message, Undelivered},
    mqtt::Mqtt,
    webhook::Webhook,
};

pub(super) enum Channel {
    Webhook(Webhook),
    Email(Email),
    Mqtt(Box<Mqtt>),
    /// Without a receiver: a notice that gets here is delivered.
    Canary,
}

pub(super) struct Names {
    pub channel: &'static str,
    /// Check of the readiness: the store of notices.
    pub check: &'static str,
    /// Warning of the readiness: the receiver.
    pub warning: &'static str,
}

/// Notices in hand at once. More wait in the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub notices: usize,
    /// Part of them for alerts of high priority alone.
    pub reserved: usize,
    /// Calls at the same time; a quarter is for alerts of high priority alone.
    pub connections: usize,
}

const WEBHOOK_PLACES: Places = Places {
    notices: 64,
    reserved: 16,
    connections: 64,
};
/// One letter may carry many notices.
const EMAIL_PLACES: Places = Places {
    notices: 256,
    reserved: 64,
    connections: 16,
};
/// A broker gets one publication after the other.
const MQTT_PLACES: Places = Places {
    notices: 16,
    reserved: 4,
    connections: 16,
};

impl Channel {
    pub(super) fn names(&self) -> Names {
        let (channel, check, warning) = match self {
            Channel::Webhook(_) => (
                crate::routing::WEBHOOK,
                "notices-webhook",
                "channel-webhook",
            ),
            Channel::Email(_) => (crate::routing::EMAIL, "notices-email", "channel-email"),
            Channel::Mqtt(_) => (crate::routing::MQTT, "notices-mqtt", "channel-mqtt"),
            Channel::Canary => (crate::canary::CHANNEL, "notices-canary", "channel-canary"),
        };
        Names {
            channel,
            check,
            warning,
        }
    }

    pub(super) fn places(&self) -> Places {
        match self {
            Channel::Webhook(_) | Channel::Canary => WEBHOOK_PLACES,
            Channel::Email(_) => EMAIL_PLACES,
            Channel::Mqtt(_) => MQTT_PLACES,
        }
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        match self {
            Channel::Webhook(webhook) => webhook.send(message).await,
            Channel::Email(email) => email.send(message).await,
            Channel::Mqtt(mqtt) => mqtt.send(message).await,
            Channel::Canary => Ok(()),
        }
    }

    /// Whether the receiver has confirmed at once.
    pub(super) async fn prove(&self, heartbeat: &Heartbeat<'_>) -> Result<bool, Undelivered> {
        match self {
            Channel::Webhook(webhook) => webhook.prove(heartbeat).await,
            Channel::Email(email) => email.prove(heartbeat).await.map(|()| false),
            Channel::Mqtt(mqtt) => mqtt.prove(heartbeat).await,
            Channel::Canary => Ok(true),
        }
    }

    /// Groups notices into messages. A letter takes all notices about one patient, and after an
    /// outage all notices of one recipient. Other channels take one each.
    pub(super) fn messages(
        &self,
        taken: Vec<QueuedNotice>,
        is_digest: bool,
    ) -> Vec<Vec<QueuedNotice>> {
        match self {
            Channel::Email(_) => letters(taken, is_digest),
            _ => taken.into_iter().map(|notice| vec![notice]).collect(),
        }
    }
}

fn letters(taken: Vec<QueuedNotice>, is_digest: bool) -> Vec<Vec<QueuedNotice>> {
    let mut letters: Vec<Vec<QueuedNotice>> = Vec::new();
    let mut places: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for queued in taken {
        let notice = &queued.notice;
        let has_waited = is_digest || queued.attempts > 1;
        let patient = match &notice.alert {
            Some(alert) if !has_waited => alert.patient.clone(),
            // No patient has this name.
            _ if has_waited => "\n".to_owned(),
            _ => String::new(),
        };
        let key = (notice.tenant.clone(), patient, notice.recipient.clone());
        match places.get(&key) {
            Some(place) => letters[*place].push(queued),
            None => {
                places.insert(key, letters.len());
                letters.push(vec![queued]);
            }
        }
    }
    letters
}

#[cfg(test)]
mod tests {
    use contracts::alerts::{Alert, Notice};

    use super::*;

    #[test]
    fn a_letter_is_about_one_patient_and_after_an_outage_about_all_of_them() {
        let queued = |patient: &str, recipient: &str, attempts| QueuedNotice {
            notice: Notice {
                alert: Some(Alert {
                    patient: patient.into(),
                    ..Alert::default()
                }),
                recipient: recipient.into(),
                ..Notice::default()
            },
            attempts,
        };
        let taken = |attempts| {
            vec![
                queued("ann", "ward", attempts),
                queued("bob", "ward", attempts),
                queued("ann", "ward", attempts),
                queued("ann", "son", attempts),
            ]
        };
        let sizes = |letters: Vec<Vec<QueuedNotice>>| -> Vec<usize> {
            letters.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(letters(taken(1), false)), [2, 1, 1]);
        assert_eq!(sizes(letters(taken(2), false)), [3, 1]);
        assert_eq!(sizes(letters(taken(1), true)), [3, 1]);
    }
}
