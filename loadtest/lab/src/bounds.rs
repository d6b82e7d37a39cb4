//! Bounds of a scenario. A file beyond them is refused with the field, its line and an example,
//! before anything is allocated.

use std::ops::RangeInclusive;

use toml::de::{DeTable, DeValue};

use crate::address::{ADDRESSES_MAX, INTERFACES_MAX};
use crate::chaos::STREAMS_MAX;
use crate::mix::Mix;
use crate::scenario::{
    Controller, Direction, Half, Interface, LossSpec, RateSpec, Scenario, ScenarioError,
};

/// Longest virtual time of a run, and the latest moment of any change in it.
pub(crate) const SECONDS_MAX: f64 = 100_000.0;
/// A rate is zero, or one that a packet of full size passes in less than half a minute.
const MBIT_MIN: f64 = 0.001;
const MBIT_MAX: f64 = 100_000.0;
const DELAY_MS_MAX: f64 = 60_000.0;
const JITTER_MS_MAX: f64 = 10_000.0;
const BURST_PACKETS_MAX: f64 = 1e6;
/// Bytes of a transfer, over all streams.
const BYTES_MAX: u64 = 100_000_000_000;
const QUEUE_BYTES_MAX: u64 = 1 << 30;
/// Changes or steps in one list.
const LIST_MAX: usize = 100_000;
const SEEDS_MAX: usize = 1_000;
pub(crate) const COMPETITORS_MAX: usize = 16;
const PATH_CHANGES_MAX: u32 = 1_000;
const PAUSE_MS_MAX: f64 = 60_000.0;
const VITALS_BYTES_MAX: u64 = 1_000_000;
const VITALS_INTERVAL_MS_MAX: u64 = 3_600_000;
/// Bytes of all vitals of a run: those that cannot be sent are kept.
const VITALS_TOTAL_BYTES_MAX: f64 = 1e9;
const NAME_BYTES_MAX: usize = 200;

/// A value that cannot be run.
#[derive(Debug, Clone, PartialEq, Eq)]
struct OutOfBounds {
    /// Its path in the file, such as `interfaces[0].to_server.delay_ms`.
    field: String,
    reason: String,
}

type Checked = Result<(), OutOfBounds>;

impl Scenario {
    /// Refuses what cannot be run.
    pub fn check(&self) -> Result<(), ScenarioError> {
        check(self)
            .map_err(|OutOfBounds { field, reason }| ScenarioError::Invalid { field, reason })
    }

    /// Refuses what runs in virtual time alone.
    pub(crate) fn check_for_kernel(&self) -> Result<(), ScenarioError> {
        let of_interface = |number: usize, field: &str, is_given: bool| {
            (format!("interfaces[{number}].{field}"), is_given)
        };
        // The kernel's flows run without end, so they stand beside an application, not a transfer.
        let has_other = |other: &Controller| self.mix.is_none() || other.in_kernel().is_none();
        let given = [
            ("controller", self.controller != Controller::Ours),
            ("vitals", self.vitals.is_some()),
            ("chaos", self.chaos.is_some()),
            ("trunk_mbit", self.trunk_mbit.is_some()),
            ("steering", self.steering.is_some()),
            ("competitors", self.competitors.iter().any(has_other)),
        ];
        let given = given.map(|(field, is_given)| (field.to_owned(), is_given));
        let interfaces = self.interfaces.iter().enumerate();
        let given = given.into_iter().chain(interfaces.flat_map(|(number, it)| {
            [
                of_interface(number, "shares", it.shares.is_some()),
                of_interface(number, "address_changes", !it.address_changes.is_empty()),
            ]
        }));
        match given.into_iter().find(|field| field.1) {
            None => Ok(()),
            Some((field, _)) => Err(ScenarioError::Invalid {
                field,
                reason: "runs in virtual time only; for example braid-lab run FILE".to_owned(),
            }),
        }
    }
}

fn check(scenario: &Scenario) -> Checked {
    name("name", &scenario.name)?;
    whole("bytes", scenario.bytes, 1..=BYTES_MAX, "1000000")?;
    whole("streams", scenario.streams.into(), 1..=64, "1")?;
    // Without an end there is no run.
    number("limit_s", scenario.limit_s, 1e-3..=SECONDS_MAX, "120.0")?;
    count(
        "competitors",
        scenario.competitors.len(),
        0..=COMPETITORS_MAX,
    )?;
    if let Some(vitals) = &scenario.vitals {
        whole("vitals.bytes", vitals.bytes, 1..=VITALS_BYTES_MAX, "200")?;
        let interval = 1..=VITALS_INTERVAL_MS_MAX;
        whole("vitals.interval_ms", vitals.interval_ms, interval, "250")?;
        let messages = scenario.limit_s * 1e3 / vitals.interval_ms as f64;
        if messages * vitals.bytes as f64 > VITALS_TOTAL_BYTES_MAX {
            let reason = "more than 1 GB of vitals within limit_s; give fewer, for example \
                200 bytes each 250 ms";
            return refuse("vitals", reason.to_owned());
        }
    }
    check_applications(scenario)?;
    if let Some(chaos) = &scenario.chaos {
        whole(
            "chaos.streams",
            chaos.streams.into(),
            1..=STREAMS_MAX.into(),
            "8",
        )?;
        number("chaos.until_s", chaos.until_s, 1e-3..=SECONDS_MAX, "10.0")?;
        number("chaos.pause_ms", chaos.pause_ms, 0.0..=PAUSE_MS_MAX, "50.0")?;
        let changes = 0..=PATH_CHANGES_MAX.into();
        whole(
            "chaos.path_changes",
            chaos.path_changes.into(),
            changes,
            "4",
        )?;
    }
    count("interfaces", scenario.interfaces.len(), 1..=INTERFACES_MAX)?;
    for index in 0..scenario.interfaces.len() {
        check_interface(&scenario.interfaces, index)?;
    }
    Ok(())
}

fn check_applications(scenario: &Scenario) -> Checked {
    match &scenario.mix {
        None => {}
        Some(Mix::Video {
            kbit,
            frames_per_s,
            seconds,
        }) => {
            number("mix.video.kbit", *kbit, 0.001..=1e6, "950.0")?;
            number("mix.video.frames_per_s", *frames_per_s, 0.001..=1e4, "30.0")?;
            number("mix.video.seconds", *seconds, 1e-3..=SECONDS_MAX, "30.0")?;
        }
        Some(Mix::Game {
            interval_ms,
            mean_bytes,
            first_bytes,
            burst_every_s,
            burst_packets,
            seconds,
        }) => {
            number("mix.game.interval_ms", *interval_ms, 0.1..=1e6, "81.4")?;
            number("mix.game.mean_bytes", *mean_bytes, 1.0..=1_400.0, "142.7")?;
            whole(
                "mix.game.first_bytes",
                *first_bytes,
                1..=BYTES_MAX,
                "200000",
            )?;
            number("mix.game.burst_every_s", *burst_every_s, 0.01..=1e6, "30.0")?;
            let packets = u64::from(*burst_packets);
            whole("mix.game.burst_packets", packets, 1..=1_000, "8")?;
            number("mix.game.seconds", *seconds, 1e-3..=SECONDS_MAX, "60.0")?;
        }
        Some(Mix::Page {
            objects,
            bytes,
            at_once,
        }) => {
            let objects = u64::from(*objects);
            whole("mix.page.objects", objects, 1..=10_000, "54")?;
            whole("mix.page.bytes", *bytes, objects..=BYTES_MAX, "1048576")?;
            whole("mix.page.at_once", u64::from(*at_once), 1..=64, "6")?;
            if scenario.direction != Direction::Download {
                let reason = "a page is fetched; give direction = \"download\"".to_owned();
                return refuse("direction", reason);
            }
        }
    }
    if let Some(background) = &scenario.background {
        number("background.share", background.share, 0.0..=1.0, "0.1")?;
        let rate = background.packets_per_s;
        number("background.packets_per_s", rate, 0.1..=1e4, "25.0")?;
        let bytes = background.packet_bytes;
        whole("background.packet_bytes", bytes, 1..=65_000, "5000")?;
        number("background.shape", background.shape, 0.1..=100.0, "1.5")?;
        number(
            "background.scale_s",
            background.scale_s,
            1e-3..=1e3,
            "0.1666667",
        )?;
        number("background.lead_s", background.lead_s, 0.0..=1e3, "4.0")?;
    }
    if let Some(compare) = &scenario.compare {
        count("compare.seeds", compare.seeds.len(), 0..=SEEDS_MAX)?;
        count(
            "compare.controllers",
            compare.controllers.len(),
            0..=Controller::ALL.len(),
        )?;
    }
    if let Some(mbit) = scenario.trunk_mbit {
        number("trunk_mbit", mbit, MBIT_MIN..=MBIT_MAX, "100.0")?;
    }
    if let Some(buffers) = &scenario.buffers {
        let range = 1_500..=BYTES_MAX;
        whole(
            "buffers.send_bytes",
            buffers.send_bytes,
            range.clone(),
            "262144",
        )?;
        whole(
            "buffers.receive_bytes",
            buffers.receive_bytes,
            range,
            "262144",
        )?;
    }
    Ok(())
}

fn check_interface(interfaces: &[Interface], index: usize) -> Checked {
    let interface = &interfaces[index];
    let at = |field: &str| format!("interfaces[{index}].{field}");
    name(&at("name"), &interface.name)?;
    let is_own = |other: usize| other < index && interfaces[other].shares.is_none();
    if interface.shares.is_some_and(|other| !is_own(other)) {
        let reason =
            "give the number of an earlier interface with a bottleneck of its own, for example 0";
        return refuse(&at("shares"), reason.to_owned());
    }
    let changes = &interface.address_changes;
    count(&at("address_changes"), changes.len(), 0..=ADDRESSES_MAX)?;
    for (number, (at_s, _)) in changes.iter().enumerate() {
        time(&at(&format!("address_changes[{number}]")), *at_s)?;
    }
    check_half(&at("to_server"), &interface.to_server)?;
    check_half(&at("to_client"), &interface.to_client)
}

fn check_half(path: &str, half: &Half) -> Checked {
    let at = |field: &str| format!("{path}.{field}");
    match &half.rate {
        RateSpec::Mbit(mbit) => rate(&at("rate.mbit"), *mbit)?,
        RateSpec::Steps(steps) => {
            count(&at("rate.steps"), steps.len(), 1..=LIST_MAX)?;
            for (index, (at_s, mbit)) in steps.iter().enumerate() {
                let field = at(&format!("rate.steps[{index}]"));
                time(&field, *at_s)?;
                rate(&field, *mbit)?;
            }
            ascending(&at("rate.steps"), steps.iter().map(|step| step.0))?;
        }
        // Its file is checked when it is read.
        RateSpec::Trace { .. } | RateSpec::Csv(_) | RateSpec::Loaded(_) => {}
    }
    number(&at("delay_ms"), half.delay_ms, 0.0..=DELAY_MS_MAX, "12.5")?;
    count(&at("delay_steps"), half.delay_steps.len(), 0..=LIST_MAX)?;
    for (index, (at_s, ms)) in half.delay_steps.iter().enumerate() {
        let field = at(&format!("delay_steps[{index}]"));
        time(&field, *at_s)?;
        number(&field, *ms, 0.0..=DELAY_MS_MAX, "12.5")?;
    }
    ascending(
        &at("delay_steps"),
        half.delay_steps.iter().map(|step| step.0),
    )?;
    count(&at("loss_steps"), half.loss_steps.len(), 0..=LIST_MAX)?;
    for (index, (at_s, share)) in half.loss_steps.iter().enumerate() {
        let field = at(&format!("loss_steps[{index}]"));
        time(&field, *at_s)?;
        number(&field, *share, 0.0..=0.999, "0.02")?;
    }
    ascending(&at("loss_steps"), half.loss_steps.iter().map(|step| step.0))?;
    number(&at("jitter_ms"), half.jitter_ms, 0.0..=JITTER_MS_MAX, "2.5")?;
    number(&at("duplicate"), half.duplicate, 0.0..=1.0, "0.01")?;
    number(&at("corrupt"), half.corrupt, 0.0..=1.0, "0.01")?;
    if let Some(bytes) = half.queue_bytes {
        whole(&at("queue_bytes"), bytes, 0..=QUEUE_BYTES_MAX, "64000")?;
    }
    match half.loss {
        LossSpec::Random(share) => number(&at("loss.random"), share, 0.0..=0.999, "0.02")?,
        LossSpec::Bursts { mean, packets } => {
            number(&at("loss.bursts.mean"), mean, 0.0..=0.999, "0.02")?;
            let bursts = 1.0..=BURST_PACKETS_MAX;
            number(&at("loss.bursts.packets"), packets, bursts, "8.0")?;
            // At least one packet passes between two bursts.
            let most = packets / (packets + 1.0);
            if mean > most {
                let reason = format!(
                    "bursts of {packets} packets lose at most {most:.3} of all; for example 0.02"
                );
                return refuse(&at("loss.bursts.mean"), reason);
            }
        }
    }
    count(&at("changes"), half.changes.len(), 0..=LIST_MAX)?;
    for (index, (at_s, _)) in half.changes.iter().enumerate() {
        time(&at(&format!("changes[{index}]")), *at_s)?;
    }
    ascending(&at("changes"), half.changes.iter().map(|change| change.0))
}

fn refuse(field: &str, reason: String) -> Checked {
    Err(OutOfBounds {
        field: field.to_owned(),
        reason,
    })
}

/// Not a number is within no range.
fn number(field: &str, value: f64, range: RangeInclusive<f64>, example: &str) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    refuse(
        field,
        format!("{value} is not between {from} and {to}; for example {example}"),
    )
}

fn rate(field: &str, mbit: f64) -> Checked {
    if mbit == 0.0 {
        return Ok(());
    }
    number(field, mbit, MBIT_MIN..=MBIT_MAX, "12.5 (Mbit/s; or 0)")
}

fn time(field: &str, at_s: f64) -> Checked {
    number(field, at_s, 0.0..=SECONDS_MAX, "10.0 (seconds)")
}

fn whole(field: &str, value: u64, range: RangeInclusive<u64>, example: &str) -> Checked {
    if range.contains(&value) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    refuse(
        field,
        format!("{value} is not between {from} and {to}; for example {example}"),
    )
}

fn count(field: &str, length: usize, range: RangeInclusive<usize>) -> Checked {
    if range.contains(&length) {
        return Ok(());
    }
    let (from, to) = (range.start(), range.end());
    refuse(
        field,
        format!("{length} entries are not between {from} and {to}; for example {from}"),
    )
}

fn name(field: &str, name: &str) -> Checked {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    let reason = format!("longer than {NAME_BYTES_MAX} bytes; for example \"two links\"");
    refuse(field, reason)
}

fn ascending(field: &str, times: impl Iterator<Item = f64>) -> Checked {
    if times.is_sorted() {
        return Ok(());
    }
    refuse(
        field,
        "the times do not rise; for example [[1.0, ...], [2.5, ...]]".to_owned(),
    )
}

/// The line of a field in the text of its file, or of the table that would hold it.
pub(crate) fn line_of(text: &str, field: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut at = table.span().start;
    let mut value: Option<&DeValue<'_>> = None;
    for part in field.split(['.', '[']) {
        let found = match (part.strip_suffix(']'), value) {
            (Some(index), Some(DeValue::Array(list))) => list.get(index.parse::<usize>().ok()?),
            (None, None) => table.get_ref().get(part),
            (None, Some(DeValue::Table(table))) => table.get(part),
            _ => None,
        };
        let Some(found) = found else {
            break;
        };
        at = found.span().start;
        value = Some(found.get_ref());
    }
    Some(text.get(..at)?.matches('\n').count() + 1)
}
