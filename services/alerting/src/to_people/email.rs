//! E-mail to the recipient of a notice.

use mail::{Letter, Mailer};

use super::{
    heartbeat::Heartbeat,
    message::{Message, Undelivered},
};

pub(super) struct Email {
    mailer: Mailer,
}

impl Email {
    pub(super) fn new(mailer: Mailer) -> Email {
        Email { mailer }
    }

    pub(super) async fn send(&self, message: &Message<'_>) -> Result<(), Undelivered> {
        let notice = message.first().ok_or_else(|| Undelivered {
            reason: "an empty message".to_owned(),
            is_retryable: false,
        })?;
        let letter = Letter {
            to: &notice.recipient,
            subject: message.subject(),
            text: message.text(),
            key: &notice.id,
        };
        self.post(&letter).await
    }

    /// Only the link in the letter confirms the heartbeat.
    pub(super) async fn prove(&self, heartbeat: &Heartbeat<'_>) -> Result<(), Undelivered> {
        let letter = Letter {
            to: heartbeat.recipient,
            subject: heartbeat.subject(),
            text: heartbeat.text(),
            key: &heartbeat.key,
        };
        self.post(&letter).await
    }

    async fn post(&self, letter: &Letter<'_>) -> Result<(), Undelivered> {
        let sent = self.mailer.send(letter).await;
        sent.map_err(|unsent| Undelivered {
            reason: unsent.reason,
            is_retryable: unsent.is_retryable,
        })
    }
}
