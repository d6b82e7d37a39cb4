//! Watches the machine's clock for a service, and warns while the clock cannot be trusted.

use std::time::Duration;

use clocks::{Condition, STEP_US};
use tokio::time::MissedTickBehavior;

use crate::{Context, Warning};

/// Interval of looks at the clock. A longer pause between looks counts as a process that did not
/// run.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// Runs until shutdown.
pub async fn watch(context: Context) {
    let warning = context.health().warning("clock");
    let mut tick = tokio::time::interval(LOOK_EACH);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = context.shutdown().requested() => return,
            _ = tick.tick() => {}
        }
        let condition = context.clock().condition();
        let steps = condition.steps;
        for (direction, count) in [("forward", steps.forward), ("back", steps.back)] {
            metrics::counter!("braid_clock_steps_total", "service" => context.noun(), "direction" => direction)
                .absolute(count);
        }
        metrics::gauge!("braid_clock_difference_seconds", "service" => context.noun())
            .set(condition.open_us as f64 / 1e6);
        warning.set(warning_of(condition));
    }
}

fn warning_of(condition: Condition) -> Option<Warning> {
    let by_s = condition.open_us.unsigned_abs() / 1_000_000;
    let direction = if condition.open_us > 0 {
        "forward"
    } else {
        "back"
    };
    let why = if condition.is_contradicted {
        "the times of others contradict it"
    } else {
        "until others agree with it"
    };
    (condition.open_us.saturating_abs() > STEP_US).then(|| Warning {
        says: format!(
            "the clock of this machine was set {direction} by {by_s} s; this service keeps the former time: {why}"
        ),
        to_do: "check the machine's clock and its time server (NTP)".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_differs_is_a_warning_with_direction_and_reason() {
        let says = |open_us, is_contradicted| {
            let condition = Condition {
                open_us,
                is_contradicted,
                ..Condition::default()
            };
            warning_of(condition).map(|warning| warning.says)
        };
        assert_eq!(says(0, false), None);
        let forward = says(90_000_000, true).unwrap_or_default();
        assert!(forward.contains("forward by 90 s") && forward.contains("contradict"));
        let back = says(-90_000_000, false).unwrap_or_default();
        assert!(back.contains("back by 90 s") && back.contains("until others agree"));
    }
}
