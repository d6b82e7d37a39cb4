//! Asks alerting which alerts reach nobody, and warns the tenant's people on the page.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use contracts::alerts::{ListUntoldRequest, ListUntoldResponse};
use contracts::query::{SystemWarning, WarningSeverity};
use service_kit::Context;

use super::Alerting;
use crate::live::Live;
use crate::warnings::{NOBODY_TOLD as CODE, NOBODY_TOLD_UNKNOWN as OLD, warning};

/// A change is on the page after this time.
const ASK_EACH: Duration = Duration::from_secs(10);
/// A slower answer is given up, and the last one stays.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Without an answer for so long a person reads that the last one may be old. A restart of alerting
/// takes less.
const OLD_AFTER: Duration = Duration::from_secs(45);
const OLD_SAYS: &str = "It is not known whether alerts reach somebody: alerting does not answer.";

/// Whether the last answer is too old. Sans-IO.
struct Answers {
    last: Instant,
    is_old: bool,
}

impl Answers {
    /// Whether that has changed.
    fn on_asked(&mut self, now: Instant, is_answered: bool) -> bool {
        if is_answered {
            self.last = now;
        }
        let is_old = now.saturating_duration_since(self.last) >= OLD_AFTER;
        std::mem::replace(&mut self.is_old, is_old) != is_old
    }
}
/// Sentences in one banner; further ones are counted.
const SENTENCES_MAX: usize = 3;

/// Runs until shutdown.
pub(crate) async fn follow(live: Arc<Live>, mut alerting: Alerting, context: Context) {
    let mut warned = BTreeSet::<String>::new();
    let mut answers = Answers {
        last: Instant::now(),
        is_old: false,
    };
    loop {
        let asked = alerting.list_untold(ListUntoldRequest {});
        let answer = tokio::time::timeout(ANSWER_WITHIN, asked).await;
        let is_answered = matches!(answer, Ok(Ok(_)));
        if answers.on_asked(Instant::now(), is_answered) {
            let mut warnings = live.warnings.lock();
            match answers.is_old {
                true => warnings.raise(
                    "",
                    warning(OLD, WarningSeverity::Warning, live.now_us(), OLD_SAYS),
                ),
                false => warnings.end("", OLD),
            }
        }
        match answer {
            Ok(Ok(answer)) => {
                let current = by_tenant(answer.into_inner());
                let mut warnings = live.warnings.lock();
                for ended in warned.iter().filter(|it| !current.contains_key(*it)) {
                    warnings.end(ended, CODE);
                }
                warned = current.keys().cloned().collect();
                for (tenant, warning) in current {
                    warnings.raise(&tenant, warning);
                }
            }
            Ok(Err(error)) => tracing::debug!(%error, "alerting does not say who is told"),
            Err(_) => tracing::debug!("alerting does not answer who is told"),
        }
        tokio::select! {
            () = context.shutdown().requested() => return,
            () = tokio::time::sleep(ASK_EACH) => {}
        }
    }
}

/// One warning for each tenant; an empty tenant stands for everybody.
fn by_tenant(answer: ListUntoldResponse) -> BTreeMap<String, SystemWarning> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for untold in answer.untold {
        texts.entry(untold.tenant).or_default().push(untold.text);
    }
    let one = |(tenant, texts): (String, Vec<String>)| {
        let more = texts.len().saturating_sub(SENTENCES_MAX);
        let named: Vec<&str> = texts
            .iter()
            .take(SENTENCES_MAX)
            .map(String::as_str)
            .collect();
        let more = match more {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let text = format!("Alerts reach nobody: {}{more}.", named.join("; "));
        let warning = warning(CODE, WarningSeverity::Warning, 0, text);
        (tenant, warning)
    };
    texts.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use contracts::alerts::Untold;

    use super::*;

    #[test]
    fn an_old_answer_is_said_to_be_old_once_and_a_restart_of_alerting_is_not() {
        let begun = Instant::now();
        let mut answers = Answers {
            last: begun,
            is_old: false,
        };
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert!(!answers.on_asked(at(10), true));
        assert!(!answers.on_asked(at(40), false), "it may have restarted");
        assert!(answers.on_asked(at(10) + OLD_AFTER, false) && answers.is_old);
        assert!(!answers.on_asked(at(70), false), "said already");
        assert!(answers.on_asked(at(80), true) && !answers.is_old);
    }

    #[test]
    fn each_tenant_reads_of_its_own_and_a_long_list_is_counted() {
        let untold = |tenant: &str, text: String| Untold {
            tenant: tenant.to_owned(),
            text,
            ..Untold::default()
        };
        let mut untold_of = vec![untold("b", "step 2 reaches nobody".to_owned())];
        untold_of.extend((0..5).map(|n| untold("a", format!("cause {n}"))));
        let warnings = by_tenant(ListUntoldResponse {
            untold: untold_of,
            omitted: 0,
        });
        assert_eq!(
            warnings["a"].text,
            "Alerts reach nobody: cause 0; cause 1; cause 2; and 2 more."
        );
        assert!(warnings["b"].text.contains("step 2"));
        assert!(by_tenant(ListUntoldResponse::default()).is_empty());
    }
}
