//! A heartbeat of a channel, and what confirms it.

use super::message::one_line;

/// The path of the page at which a person or a program confirms.
const CONFIRM_PATH: &str = "confirm";

pub(super) struct Heartbeat<'a> {
    /// The token that nobody can guess. The person who shows it has received the message.
    pub secret: &'a str,
    /// The same for every attempt.
    pub key: String,
    pub tenant: &'a str,
    pub recipient: &'a str,
    /// Base address of links.
    pub public_url: Option<&'a str>,
}

impl Heartbeat<'_> {
    /// `None`: the address of the page is not configured.
    pub(super) fn link(&self) -> Option<String> {
        let base = self.public_url?.trim_end_matches('/');
        Some(format!("{base}/{CONFIRM_PATH}/{}", self.secret))
    }

    pub(super) fn subject(&self) -> String {
        "Braid: please confirm that this message reaches you".to_owned()
    }

    pub(super) fn text(&self) -> String {
        let whose = match self.tenant {
            "" => String::new(),
            tenant => format!(" of {}", one_line(tenant)),
        };
        let how = match self.link() {
            Some(link) => format!("Open this page and press its button:\n  {link}\n"),
            None => format!(
                "Give this code to the operator, who runs\n  braid alerts confirm {}\n",
                self.secret
            ),
        };
        format!(
            "Braid sends alerts{whose} to this address. Please confirm that you get them.\n\n{how}\n\
             Until then Braid counts this address as one that nobody reads.\n\
             Braid is not a certified medical device.\n"
        )
    }
}

/// Whether an answer or a reply is `{"confirmed": SECRET}`. One that merely repeats the message
/// does not confirm it.
pub(super) fn confirms(answer: &[u8], secret: &str) -> bool {
    let answer: serde_json::Value = serde_json::from_slice(answer).unwrap_or_default();
    answer["confirmed"].as_str() == Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_in_its_field_confirms() {
        assert!(confirms(br#"{"confirmed": "s1", "by": "pager"}"#, "s1"));
        for answer in [
            "",
            "s1",
            "\"s1\"",
            r#"{"confirmed": true}"#,
            r#"{"confirmed": "s2"}"#,
            r#"{"kind": "heartbeat", "challenge": "s1", "confirm_url": null}"#,
        ] {
            assert!(!confirms(answer.as_bytes(), "s1"), "{answer}");
        }
    }

    #[test]
    fn a_letter_has_a_link_or_says_how_to_confirm_without() {
        let mut heartbeat = Heartbeat {
            secret: "s1",
            key: "heartbeat/1".into(),
            tenant: "one\r\nBcc: all",
            recipient: "ann@example.org",
            public_url: Some("https://braid.example.org/"),
        };
        let text = heartbeat.text();
        assert!(
            text.contains("  https://braid.example.org/confirm/s1\n"),
            "{text}"
        );
        assert!(text.contains("alerts of one  Bcc: all to"), "{text}");
        heartbeat.public_url = None;
        assert!(heartbeat.text().contains("braid alerts confirm s1"));
    }
}
