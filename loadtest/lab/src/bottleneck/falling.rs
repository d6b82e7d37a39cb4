//! A rate that drops tenfold in one step, in front of a queue of one product and of one without a
//! bottom.

use std::time::Duration;

use super::{Outcome, QUEUEING_MAX_RTTS, RATE_MBIT, RTT_MS, Setting};
use crate::figures::Figure;
use crate::mechanisms::Mechanisms;
use crate::report::{LinkReport, mbit_within, percentile, sorted};
use crate::runner::Runner;
use crate::scenario::{Interface, RateSpec};

const DROP_S: f64 = 5.0;
const DROP_TO_MBIT: f64 = 2.0;
const END_S: f64 = 15.0;
/// Round trips after the drop in which anything goes.
const GRACE_RTTS: f64 = 3.0;
/// Width of a bin. The end of the three round trips after the drop is known to this precision.
const BIN_S: f64 = 0.1;
/// More than any sender fills in this time.
const BOTTOMLESS_BYTES: u64 = 1 << 30;
const LOWEST_MIN: f64 = 80.0;

pub fn run(runner: &Runner, prefix: &str, setting: Setting) -> Outcome {
    let queues = [
        (prefix.to_owned(), None),
        (format!("{prefix}.bottomless"), Some(BOTTOMLESS_BYTES)),
    ];
    let scenarios: Vec<_> = queues
        .iter()
        .map(|(name, queue_bytes)| {
            let mut link = Interface::symmetric("falling", RATE_MBIT, RTT_MS, 0.0);
            for half in [&mut link.to_server, &mut link.to_client] {
                half.rate = RateSpec::Steps(vec![(0.0, RATE_MBIT), (DROP_S, DROP_TO_MBIT)]);
                half.queue_bytes = *queue_bytes;
            }
            setting.endless(name.clone(), END_S, vec![link])
        })
        .collect();
    let reports = runner.run(prefix, &scenarios, Mechanisms::default())?;
    let mut figures = Vec::new();
    for report in &reports {
        let name = &report.name;
        let Some(link) = report.links.first() else {
            continue;
        };
        figures.push(Figure::at_least(
            format!("{name}.lowest_half_second"),
            "%",
            None,
            LOWEST_MIN,
            lowest_half_second(link),
        ));
        let (drained, after) = drained(link);
        figures.push(Figure::at_most(
            format!("{name}.drained"),
            "x RTT",
            None,
            GRACE_RTTS,
            drained,
        ));
        figures.push(Figure::at_most(
            format!("{name}.queueing_p95_after"),
            "x RTT",
            None,
            QUEUEING_MAX_RTTS,
            after,
        ));
    }
    Ok((figures, reports))
}

/// Percent of the new rate in the worst half second after the grace.
fn lowest_half_second(link: &LinkReport) -> f64 {
    let settled = DROP_S + GRACE_RTTS * RTT_MS / 1e3 + BIN_S;
    let each = (0..((END_S - settled) / 0.5) as u32).map(|step| {
        let from = Duration::from_secs_f64(settled + f64::from(step) * 0.5);
        100.0 * mbit_within(&link.bins, from, from + Duration::from_millis(500)) / DROP_TO_MBIT
    });
    percentile(&sorted(each), 0.0).unwrap_or(0.0)
}

/// Time until the queue was first down to one round trip, in round trips with the queue that the
/// drop leaves. Bytes in flight at the drop take one of these, whatever the sender does. The second
/// value is the queue's p95 from then on, in bare round trips.
fn drained(link: &LinkReport) -> (f64, f64) {
    let after = link.queueing.iter().filter(|sample| sample.0 >= DROP_S);
    let longest = after
        .clone()
        .take_while(|sample| sample.0 <= DROP_S + 2.0 * RTT_MS / 1e3)
        .map(|sample| sample.1)
        .fold(0.0, f64::max);
    let round_trip_s = (RTT_MS + longest) / 1e3;
    let mut queued = after.clone().skip_while(|sample| sample.1 <= RTT_MS);
    let Some(drained) = queued.find(|sample| sample.1 <= RTT_MS) else {
        let never_queued = after.clone().all(|sample| sample.1 <= RTT_MS);
        return if never_queued {
            (0.0, 0.0)
        } else {
            (f64::INFINITY, f64::INFINITY)
        };
    };
    let later = after
        .filter(|sample| sample.0 >= drained.0)
        .map(|sample| sample.1);
    (
        (drained.0 - DROP_S) / round_trip_s,
        percentile(&sorted(later), 0.95).unwrap_or(0.0) / RTT_MS,
    )
}
