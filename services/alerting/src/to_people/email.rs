//! E-mail to the recipient of a notice.

use mail::{Letter, Mailer};

use super::message::{Message, Undelivered};

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
        self.mailer
            .send(&letter)
            .await
            .map_err(|unsent| Undelivered {
                reason: unsent.reason,
                is_retryable: unsent.is_retryable,
            })
    }
}
