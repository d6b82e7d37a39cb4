//! The one list of what is wrong in a process. `/readyz`, `/healthz`, `/metrics` and the log show
//! it as it is, `braid doctor` reads it, and the page's banners hold the part of the dashboard.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Write;

use serde::Serialize;

use crate::Warning;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The service goes on, and a person should look.
    Warning,
    /// The service is not ready.
    Failing,
    /// A loop stands still, so the process should be restarted.
    Stalled,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Warning => "warning",
            Level::Failing => "failing",
            Level::Stalled => "stalled",
        }
    }
}

/// One thing that is wrong. Service and name identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Wrong {
    pub service: &'static str,
    pub name: Cow<'static, str>,
    pub level: Level,
    pub says: String,
    /// Advice; empty if the words say all.
    #[serde(rename = "do")]
    pub to_do: String,
}

impl Wrong {
    pub fn warning(
        service: &'static str,
        name: impl Into<Cow<'static, str>>,
        warning: Warning,
    ) -> Wrong {
        Wrong {
            service,
            name: name.into(),
            level: Level::Warning,
            says: warning.says,
            to_do: warning.to_do,
        }
    }

    fn key(&self) -> Key {
        (self.service, self.name.clone(), self.level)
    }
}

type Key = (&'static str, Cow<'static, str>, Level);

/// The list of several sources, the most serious first. One name of one service appears once with
/// each level; the first source counts.
pub fn merged(sources: impl IntoIterator<Item = Vec<Wrong>>) -> Vec<Wrong> {
    let mut all: Vec<Wrong> = sources.into_iter().flatten().collect();
    let mut seen = BTreeSet::new();
    all.retain(|it| seen.insert(it.key()));
    all.sort_by(|a, b| b.level.cmp(&a.level).then_with(|| a.key().cmp(&b.key())));
    all
}

/// A line of `/metrics` for each.
pub(crate) fn render(wrong: &[Wrong]) -> String {
    let mut lines = String::from(
        "# HELP braid_wrong What is wrong in this process, as /readyz lists it.\n\
         # TYPE braid_wrong gauge\n",
    );
    for it in wrong {
        let (service, name, level) = (it.service, &it.name, it.level.as_str());
        let _ = writeln!(
            lines,
            "braid_wrong{{service=\"{service}\",name=\"{name}\",level=\"{level}\"}} 1"
        );
    }
    lines
}

/// Name of the entry of a process that ends by request.
pub(crate) const SHUTDOWN: &str = "shutdown";

/// The list of the last look, for the log.
#[derive(Default)]
pub(crate) struct Log {
    before: BTreeSet<Key>,
}

impl Log {
    /// Logs the begin and the end of each entry. A process that ends by request stops its parts.
    /// That needs no action, so the log leaves it out.
    pub(crate) fn on_look(&mut self, wrong: &[Wrong]) {
        if wrong.iter().any(|it| it.name == SHUTDOWN) {
            return;
        }
        let now: BTreeSet<Key> = wrong.iter().map(Wrong::key).collect();
        for it in wrong.iter().filter(|it| !self.before.contains(&it.key())) {
            let (service, name, level) = (it.service, &*it.name, it.level.as_str());
            tracing::warn!(service, name, level, says = it.says, "wrong");
        }
        for (service, name, level) in self.before.difference(&now) {
            let (name, level) = (&**name, level.as_str());
            // As loud as the begin, or it would seem to last.
            tracing::warn!(service, name, level, "no longer wrong");
        }
        self.before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(service: &'static str, name: &'static str, level: Level, says: &str) -> Wrong {
        Wrong {
            level,
            ..Wrong::warning(
                service,
                name,
                Warning {
                    says: says.to_owned(),
                    to_do: String::new(),
                },
            )
        }
    }

    #[test]
    fn the_list_has_what_every_source_says_once_and_the_most_serious_first() {
        let own = vec![
            of("dashboard", "canary", Level::Warning, "own"),
            of("dashboard", "store", Level::Failing, "starting"),
            of("dashboard", "loop", Level::Stalled, "no beat"),
        ];
        let others = vec![
            of("dashboard", "canary", Level::Warning, "its own"),
            of("alerting", "no-link", Level::Warning, "of another"),
        ];
        let list = merged([own, others]);
        let shown: Vec<_> = list.iter().map(|it| it.says.as_str()).collect();
        assert_eq!(shown, ["no beat", "starting", "of another", "own"]);
        let metrics = render(&list);
        let line = "braid_wrong{service=\"dashboard\",name=\"store\",level=\"failing\"} 1\n";
        assert!(metrics.contains(line), "{metrics}");
    }
}
