//! A decision as text for people: the command line and the page show the same lines.

use std::fmt::Write;

use super::document::Period;
use super::{
    decide::{Decision, Verdict},
    document::Document,
};

impl Decision {
    /// Rule and mode, the accesses in their order, and why each access has its place. Each line
    /// ends with a newline.
    pub fn explained(&self, document: &Document) -> String {
        let rule = match &self.rule {
            Some(rule) => format!("rule {rule:?}"),
            None => "no rule".to_owned(),
        };
        let mut text = format!("{rule}: mode {}", self.mode);
        // Writing to a string cannot fail.
        if self.copies > 1 {
            let _ = write!(text, ", {} copies", self.copies);
        }
        text.push('\n');
        if self.is_blocked() {
            text.push_str("  no access: the flow is refused\n");
        }
        for (place, (choice, share)) in self.order.iter().zip(&self.share).enumerate() {
            let rank = format!("{:?}", choice.rank).to_lowercase();
            let (number, percent) = (place + 1, share * 100.0);
            let access = &choice.access;
            let _ = writeln!(text, "  {number}. {access}: {rank}, {percent:.0} %");
        }
        for why in &self.why {
            let kind = why.kind.map_or("kind unknown", |kind| kind.name());
            let verdict = match why.verdict {
                Verdict::Chosen => "chosen",
                Verdict::Demoted => "stands by",
                Verdict::Rejected => "rejected",
            };
            let _ = write!(text, "  {} ({kind}): {verdict}, {}", why.access, why.reason);
            if let Some(cap) = why.cap {
                let terms = document.terms_of(&why.access).0;
                let day = terms.map_or(1, |terms| terms.reset_day);
                let until = match cap.period {
                    Period::Day => "midnight".to_owned(),
                    Period::Week => "Monday".to_owned(),
                    Period::Month => format!("day {day}"),
                };
                let left = cap.left_bytes as f64 / 1e9;
                let _ = write!(text, "; {left:.3} GB of the cap are left until {until}");
                if let Some(zone) = terms.and_then(|terms| terms.time_zone.as_deref()) {
                    let _ = write!(text, " ({zone})");
                }
            }
            text.push('\n');
        }
        text
    }
}
