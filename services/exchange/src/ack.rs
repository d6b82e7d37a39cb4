//! Acknowledgements of messages. Sans-IO.

use crate::hl7::{Message, escaped};

/// Bytes of the reason in an acknowledgement.
const REASON_BYTES_MAX: usize = 250;
/// The message's own version, or this one.
const VERSION: &str = "2.5.1";

/// MSA-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// AA: the store has it.
    Accepted,
    /// AE: understood, and refused. The message is in the dead letters.
    Refused(String),
    /// AR: not understood. The message is in the dead letters.
    Rejected(String),
}

impl Answer {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Accepted => "AA",
            Self::Refused(_) => "AE",
            Self::Rejected(_) => "AR",
        }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Accepted => "",
            Self::Refused(reason) | Self::Rejected(reason) => reason,
        }
    }
}

/// The acknowledgement of a message; `message` is `None` where it could not be read.
/// `now` is a time as `YYYYMMDDHHMMSS+0000`.
pub fn acknowledgement(
    message: Option<&Message>,
    answer: &Answer,
    now: &str,
    number: u64,
) -> String {
    let of = |field: usize, component: usize| {
        message.map_or_else(String::new, |it| {
            escaped(&it.value("MSH", field, component))
        })
    };
    let whole = |field: usize| {
        let namespace = of(field, 1);
        match (of(field, 2), of(field, 3)) {
            (id, kind) if !id.is_empty() => format!("{namespace}^{id}^{kind}"),
            _ => namespace,
        }
    };
    let version = of(12, 1);
    let header = [
        "MSH".to_owned(),
        "^~\\&".to_owned(),
        whole(5),
        whole(6),
        whole(3),
        whole(4),
        now.to_owned(),
        String::new(),
        format!("ACK^{}^ACK", of(9, 2)),
        format!("BRAID{number}"),
        match of(11, 1) {
            mode if mode.is_empty() => "P".to_owned(),
            mode => mode,
        },
        if version.is_empty() {
            VERSION.to_owned()
        } else {
            version
        },
    ];
    // Fields 13 to 17 are empty; 18 is the character set.
    let header = format!("{}||||||UNICODE UTF-8", header.join("|"));
    let control = of(10, 1);
    let mut text = format!("{header}\rMSA|{}|{control}\r", answer.code());
    if !answer.reason().is_empty() {
        // 207: application internal error, and the text for people.
        let reason = escaped(clipped(answer.reason()));
        text.push_str(&format!(
            "ERR|||207^Application error^HL70357|E||||{reason}\r"
        ));
    }
    text
}

fn clipped(text: &str) -> &str {
    let end = (0..=REASON_BYTES_MAX.min(text.len())).rev();
    let end = end.into_iter().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_acknowledgement_goes_back_to_the_sender_and_names_the_message() {
        let text = "MSH|^~\\&|KIS|HOSP^1.2.3^ISO|BRAID|WARD|2026||ADT^A01^ADT_A01|M-7|T|2.4";
        let message = Message::parse(text.as_bytes()).unwrap();
        let now = "20261129140000+0000";
        let accepted = acknowledgement(Some(&message), &Answer::Accepted, now, 3);
        assert_eq!(
            accepted,
            "MSH|^~\\&|BRAID|WARD|KIS|HOSP^1.2.3^ISO|20261129140000+0000||ACK^A01^ACK|BRAID3|T|2.4\
             ||||||UNICODE UTF-8\rMSA|AA|M-7\r"
        );
        let refused = Answer::Refused(format!("a|b\r{}", "ü".repeat(500)));
        let refused = acknowledgement(Some(&message), &refused, now, 4);
        let refused = Message::parse(refused.as_bytes()).unwrap();
        assert_eq!(refused.value("MSA", 1, 1), "AE");
        assert_eq!(refused.segments().count(), 3, "no text makes a segment");
        assert!(refused.value("ERR", 8, 1).starts_with("a|b ü"));
        assert!(refused.value("ERR", 8, 1).len() <= REASON_BYTES_MAX);
    }

    #[test]
    fn what_cannot_be_read_is_rejected_all_the_same() {
        let rejected = Answer::Rejected("no MSH".into());
        let text = acknowledgement(None, &rejected, "2026", 1);
        let message = Message::parse(text.as_bytes()).unwrap();
        assert_eq!(message.value("MSA", 1, 1), "AR");
        assert_eq!(message.value("MSH", 12, 1), VERSION);
    }
}
