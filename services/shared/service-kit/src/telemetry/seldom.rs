//! Limits repeated warnings, such as those of a full disk.
//!
//! Within an [`INTERVAL`] equal warnings are written once, and each callsite writes at
//! most [`LINES_MAX`] different warnings. At its end one line counts the omitted warnings by
//! module. Errors and `info` lines are always written.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};

/// Different warnings that are written within `INTERVAL`; more are counted.
const LINES_MAX: usize = 20;
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Callsite {
    metadata: &'static Metadata<'static>,
    /// Hashes of the written warnings.
    written: HashSet<u64>,
    left_out: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Seldom {
    /// Bounded by the number of warnings in the source.
    callsites: Arc<Mutex<HashMap<Identifier, Callsite>>>,
}

impl Seldom {
    fn admits(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        let mut said = Said(DefaultHasher::new());
        event.record(&mut said);
        let mut callsites = self.callsites.lock();
        let callsite = callsites.entry(metadata.callsite()).or_insert(Callsite {
            metadata,
            written: HashSet::new(),
            left_out: 0,
        });
        let is_admitted =
            callsite.written.len() < LINES_MAX && callsite.written.insert(said.0.finish());
        callsite.left_out += u64::from(!is_admitted);
        is_admitted
    }

    /// Begins the next interval; returns the summary of the last.
    pub(super) fn turn(&self) -> Option<String> {
        // By module: a file name would be a path of the build machine.
        let mut left_out: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, callsite) in self.callsites.lock().drain() {
            if callsite.left_out > 0 {
                *left_out.entry(callsite.metadata.target()).or_default() += callsite.left_out;
            }
        }
        let said: Vec<String> = left_out
            .iter()
            .map(|(module, count)| format!("{count} of {module}"))
            .collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

/// Hashes all fields of an event.
struct Said(DefaultHasher);

impl fmt::Write for Said {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Visit for Said {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        // A hasher cannot fail.
        let _ = write!(self, "{value:?};");
    }
}

impl<S> Filter<S> for Seldom {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if *metadata.level() == Level::WARN {
            // The answer must not be cached: a filter may omit an event only after `enabled`.
            return Interest::sometimes();
        }
        Interest::always()
    }

    /// `None` would enable every level, even beside a stricter filter.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        *event.metadata().level() != Level::WARN || self.admits(event)
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::Layer;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<Level>>>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            self.0.lock().push(*event.metadata().level());
        }
    }

    #[test]
    fn repeated_warnings_are_counted_and_new_ones_written() {
        let (seldom, lines) = (Seldom::default(), Lines::default());
        let layer = lines.clone().with_filter(seldom.clone());
        let subscriber = tracing_subscriber::registry().with(layer);
        let written = |level: Level| lines.0.lock().iter().filter(|it| **it == level).count();
        tracing::subscriber::with_default(subscriber, || {
            let warn = |from: usize, to: usize| {
                (from..to).for_each(|check| tracing::warn!(check, "the disk is full"));
            };
            (0..300).for_each(|_| warn(1, 2));
            assert_eq!(written(Level::WARN), 1, "the same over and over");
            warn(2, 4);
            assert_eq!(written(Level::WARN), 3, "what is new is told");
            warn(4, 300);
            assert_eq!(written(Level::WARN), LINES_MAX);
            tracing::warn!("elsewhere");
            assert_eq!(written(Level::WARN), LINES_MAX + 1);
            (0..30).for_each(|_| tracing::error!("lost"));
            (0..30).for_each(|_| tracing::info!("an alert"));
            assert_eq!((written(Level::ERROR), written(Level::INFO)), (30, 30));
            let said = seldom.turn().unwrap_or_default();
            assert!(
                said.starts_with("578 of ") && said.ends_with("seldom::tests"),
                "{said}"
            );
            assert_eq!(seldom.turn(), None);
            warn(1, 2);
            assert_eq!(written(Level::WARN), LINES_MAX + 2);
        });
    }
}
