//! The text of a letter about an outage. It names no patient, so everybody may read it.

use calendar::Zone;

use crate::outage::Post;

/// Subject and text.
pub(super) fn letter(post: &Post, zone: &Zone) -> (String, String) {
    let (subject, text) = match post {
        Post::Outage { since, says } => {
            let says: String = says.iter().map(|says| format!("  {says}\n")).collect();
            let text = format!(
                "Alerts may not come through, since {}.\n\n{says}\n\
                 Look at your patients by other means, until a letter says that alerts come\n\
                 through again. The dashboard sends this letter without alerting.\n",
                zone.text(since.wall_us)
            );
            ("[high] Alerts may not reach you", text)
        }
        Post::Recovered { since, until } => {
            let text = format!(
                "Alerts come through again.\n\n  From {}\n  until {}\n  they may not have come \
                 through. Look at what is open on the page.\n",
                zone.text(since.wall_us),
                zone.text(until.wall_us)
            );
            ("Alerts come through again", text)
        }
    };
    let text = format!("{text}\nBraid is not a certified medical device.\n");
    (subject.to_owned(), text)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use consumer_health::Moment;

    use super::*;

    #[test]
    fn a_letter_says_since_when_what_and_what_to_do() {
        // The first second of summer time.
        let since = Moment {
            at: Instant::now(),
            wall_us: 1_774_746_000_000_000,
        };
        let says = vec!["Alerts are not being judged.".to_owned()];
        let zone = Zone::parse("Europe/Berlin").unwrap_or_default();
        let (subject, text) = letter(&Post::Outage { since, says }, &zone);
        assert_eq!(subject, "[high] Alerts may not reach you");
        for part in [
            "since Sun 29 Mar 2026 03:00:00 CEST (Europe/Berlin).\n",
            "\n  Alerts are not being judged.\n",
            "Look at your patients by other means",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let until = since;
        let (subject, text) = letter(&Post::Recovered { since, until }, &zone);
        assert_eq!(subject, "Alerts come through again");
        assert!(text.contains("open on the page"), "{text}");
    }
}
