//! The comparison of one stream: the numbers that gateways gave, and those that are stored.

use std::collections::BTreeSet;

use contracts::{
    query::{ProofGap, ProofState, StreamProof},
    vitals::{Gap, GapCause},
};

use crate::{Asked, Assignment, Island, JournalSpan, LedgerRun, SensorJump, StreamStored};

/// Gaps listed of one stream; further ones are counted.
const GAPS_MAX: usize = 200;
/// A sample is on its way for at most this time after its gateway has nothing more to send.
const ON_THE_WAY_US: i64 = 120 * 1_000_000;

/// One stream, and everything that is known of it.
pub(super) struct Compared<'a> {
    pub(super) device: &'a str,
    pub(super) stream: &'a str,
    pub(super) stored: &'a StreamStored,
    pub(super) runs: Vec<&'a LedgerRun>,
    pub(super) worn: Vec<&'a Assignment>,
    pub(super) journals: &'a [JournalSpan],
    pub(super) gaps: Vec<&'a Gap>,
    pub(super) jumps: Vec<&'a SensorJump>,
    pub(super) are_jumps_cut: bool,
    pub(super) apart: Option<&'a BTreeSet<u64>>,
    pub(super) range: (i64, i64),
    pub(super) now_us: i64,
}

/// Numbers that a gateway gave and that are not stored.
#[derive(Clone, Copy)]
struct Missing<'a> {
    first: u64,
    last: u64,
    from_us: i64,
    to_us: i64,
    /// `None`: no account has the numbers.
    run: Option<&'a LedgerRun>,
    /// Nothing above it is stored of its run.
    is_tail: bool,
}

impl<'a> Compared<'a> {
    pub(super) fn prove(&self) -> (StreamProof, Vec<(String, Asked)>) {
        let (from_us, to_us) = self.range;
        let mut asked = Vec::new();
        let mut gaps = Vec::new();
        for missing in self.missing() {
            for gap in self.explain(missing) {
                if let Some(run) = missing.run
                    && gap.cause() == GapCause::Unexplained
                {
                    let range = Asked {
                        device: self.device.to_owned(),
                        stream: self.stream.to_owned(),
                        first: gap.first_sequence,
                        last: gap.last_sequence,
                        from_us: gap.from_us,
                        to_us: gap.to_us,
                    };
                    asked.push((run.gateway.clone(), range));
                }
                gaps.push(gap);
            }
        }
        gaps.extend(self.jumps.iter().map(|it| ProofGap {
            cause: GapCause::Sensor.into(),
            from_us: it.from_us,
            to_us: it.to_us,
            first_sequence: it.first,
            last_sequence: it.last,
        }));
        let mut known = self.known(&mut gaps);
        if let Some(uncovered_us) = self.uncovered_us() {
            known.limit(uncovered_us, || {
                "samples are stored that no account of a gateway has".to_owned()
            });
        }
        if self.is_beginning_unknown() {
            known.limit(from_us, || {
                "an older release of the gateway began the stream, and did not note where"
                    .to_owned()
            });
        }
        if self.stored.is_cut || self.are_jumps_cut {
            known.limit(from_us, || {
                "there are more gaps than one proof compares: choose a shorter range".to_owned()
            });
        }
        gaps.retain(|gap| self.concerns(gap.from_us, gap.to_us));
        gaps.sort_by_key(|gap| (gap.from_us, gap.first_sequence));
        let first_gap_us = gaps.first().map_or(to_us, |gap| gap.from_us.max(from_us));
        let state = match gaps.first() {
            Some(_) => ProofState::Incomplete,
            None if known.until_us < to_us => ProofState::NotProven,
            None => ProofState::Complete,
        };
        let in_transit = gaps
            .iter()
            .filter(|gap| gap.cause() == GapCause::InTransit)
            .map(|gap| gap.last_sequence - gap.first_sequence + 1);
        let in_transit = in_transit.sum();
        let because = match gaps.iter().find(|gap| gap.cause() != GapCause::InTransit) {
            Some(gap) => format!("{}/{}: {}", self.device, self.stream, says(gap.cause())),
            None if in_transit > 0 => format!(
                "{in_transit} samples of {}/{} wait at the gateway or are on their way",
                self.device, self.stream
            ),
            None if state == ProofState::NotProven => known.because,
            None => String::new(),
        };
        let omitted = gaps.len().saturating_sub(GAPS_MAX);
        gaps.truncate(GAPS_MAX);
        let gateways: BTreeSet<&String> = self.runs.iter().map(|run| &run.gateway).collect();
        let proof = StreamProof {
            device: self.device.to_owned(),
            stream: self.stream.to_owned(),
            gateways: gateways.into_iter().cloned().collect(),
            state: state.into(),
            stored: self.stored.stored,
            complete_until_us: first_gap_us.min(known.until_us).max(from_us),
            known_until_us: known.until_us,
            in_transit,
            gaps,
            gaps_omitted: omitted as u64,
            because,
        };
        (proof, asked)
    }

    /// Whether the patient may have worn the device between the two times, within the range.
    fn concerns(&self, first_us: i64, last_us: i64) -> bool {
        let (from_us, to_us) = self.range;
        let overlaps = |a: i64, b: i64| first_us < b && last_us >= a;
        overlaps(from_us, to_us)
            && (self.worn.is_empty()
                || self.worn.iter().any(|it| overlaps(it.from_us, it.until_us)))
    }

    /// Every number of every run that is not stored, as far as it may concern the range.
    fn missing(&self) -> Vec<Missing<'a>> {
        let islands = &self.stored.islands;
        let (from_us, to_us) = self.range;
        let lowest = islands.first().filter(|it| it.from_us < from_us);
        let lowest = lowest.map_or(0, |it| it.first);
        let highest = islands.last().filter(|it| it.to_us >= to_us);
        let highest = highest.map_or(u64::MAX, |it| it.last);
        let begun = islands.first().map_or(1, |it| it.first);
        let mut missing = Vec::new();
        let mut search = |run: Option<&'a LedgerRun>, first: u64, last: u64| {
            let (mut next, last) = (first.max(lowest), last.min(highest));
            let mut since_us = from_us;
            for island in islands {
                if island.last < next {
                    since_us = island.to_us;
                    continue;
                }
                if island.first > last {
                    break;
                }
                if island.first > next {
                    missing.push(Missing {
                        first: next,
                        last: island.first - 1,
                        from_us: since_us.min(island.from_us),
                        to_us: since_us.max(island.from_us),
                        run,
                        is_tail: false,
                    });
                }
                next = island.last.saturating_add(1);
                since_us = island.to_us;
            }
            if next <= last {
                let until_us = run.map_or(to_us, |run| run.as_of_us);
                missing.push(Missing {
                    first: next,
                    last,
                    from_us: since_us.min(until_us),
                    to_us: since_us.max(until_us),
                    run,
                    is_tail: true,
                });
            }
        };
        for run in &self.runs {
            // Where the numbers began is unknown: from the first that is stored.
            let first = if run.first == 0 { begun } else { run.first };
            if run.next > first {
                search(Some(run), first, run.next - 1);
            }
        }
        // Between samples that no account has, no number is known to be unused.
        for pair in islands.windows(2) {
            if !self.is_covered(pair[0].last) && !self.is_covered(pair[1].first) {
                search(None, pair[0].last + 1, pair[1].first - 1);
            }
        }
        missing
    }

    fn is_covered(&self, sequence: u64) -> bool {
        let has = |run: &&LedgerRun| (run.first..run.next).contains(&sequence);
        self.runs.iter().any(has)
    }

    /// Device time of the first stored sample of the range that no account has.
    fn uncovered_us(&self) -> Option<i64> {
        let within = |it: &&Island| self.concerns(it.from_us, it.to_us);
        let mut within = self.stored.islands.iter().filter(within);
        // A newer sample than the newest account is ordinary: the account's time bounds the proof.
        let newest = self.runs.iter().map(|run| run.next).max().unwrap_or(0);
        let uncovered = within.find(|it| {
            let (first, last) = (self.is_covered(it.first), self.is_covered(it.last));
            !(first || it.first == newest) || !(last || it.last >= newest)
        });
        uncovered.map(|it| it.from_us.max(self.range.0))
    }

    /// No sample before the range is stored, and the gateway does not know its first number.
    fn is_beginning_unknown(&self) -> bool {
        let first = self.stored.islands.first();
        first.is_none_or(|it| it.from_us >= self.range.0)
            && self.runs.iter().any(|run| {
                run.first == 0 && first.is_none_or(|it| (0..run.next).contains(&it.first))
            })
    }

    /// How far the gateways' accounts reach. Adds what is unknown between two journals.
    fn known(&self, gaps: &mut Vec<ProofGap>) -> Known {
        let (from_us, to_us) = self.range;
        let mut known = Known {
            until_us: to_us,
            because: String::new(),
        };
        if self.worn.is_empty() {
            known.limit(from_us, || {
                format!("sensor {} was assigned to no patient then", self.device)
            });
        }
        for worn in &self.worn {
            let (begin_us, end_us) = (worn.from_us.max(from_us), worn.until_us.min(to_us));
            let gateway = &worn.gateway;
            let mut reached: Option<i64> = None;
            for journal in self.journals.iter().filter(|it| it.gateway == *gateway) {
                if let Some(reached_us) = reached
                    && reached_us < journal.since_us
                    && reached_us < end_us
                    && journal.since_us > begin_us
                {
                    gaps.push(ProofGap {
                        cause: GapCause::JournalGone.into(),
                        from_us: reached_us.max(begin_us),
                        to_us: journal.since_us.min(end_us),
                        ..ProofGap::default()
                    });
                }
                reached = Some(reached.unwrap_or(i64::MIN).max(journal.as_of_us));
            }
            match reached {
                None => known.limit(begin_us, || {
                    format!(
                        "gateway {gateway} has sent no account of its journal: it runs an older release, or was never heard"
                    )
                }),
                Some(reached_us) if reached_us < end_us => {
                    known.limit(reached_us.max(begin_us), || {
                        format!("the newest account of gateway {gateway} is older than that")
                    });
                }
                Some(_) => {}
            }
        }
        known
    }

    /// Parts of a missing run with the cause of each.
    fn explain(&self, missing: Missing<'_>) -> Vec<ProofGap> {
        let mut parts = Vec::new();
        let mut next = missing.first;
        let mut rows: Vec<&&Gap> = self
            .gaps
            .iter()
            .filter(|it| it.last_sequence >= missing.first && it.first_sequence <= missing.last)
            .collect();
        rows.sort_by_key(|it| (it.first_sequence, it.last_sequence));
        for row in rows {
            if row.last_sequence < next {
                continue;
            }
            if row.first_sequence > next {
                self.unexplained(missing, next, row.first_sequence - 1, &mut parts);
                next = row.first_sequence;
            }
            let last = row.last_sequence.min(missing.last);
            parts.push(ProofGap {
                cause: row.cause,
                from_us: row.from_time_us,
                to_us: row.to_time_us,
                first_sequence: next,
                last_sequence: last,
            });
            next = last.saturating_add(1);
        }
        if next <= missing.last {
            self.unexplained(missing, next, missing.last, &mut parts);
        }
        parts
    }

    fn unexplained(&self, of: Missing<'_>, first: u64, last: u64, parts: &mut Vec<ProofGap>) {
        let mut push = |cause: GapCause, first: u64, last: u64| {
            parts.push(ProofGap {
                cause: cause.into(),
                from_us: of.from_us,
                to_us: of.to_us,
                first_sequence: first,
                last_sequence: last,
            });
        };
        let is_on_the_way = of.is_tail
            && of.run.is_some_and(|run| {
                run.waiting > 0 || self.now_us < run.as_of_us.saturating_add(ON_THE_WAY_US)
            });
        let rest = if is_on_the_way {
            GapCause::InTransit
        } else {
            GapCause::Unexplained
        };
        let mut next = first;
        let mut apart = self.apart.iter().flat_map(|it| it.range(first..=last));
        let mut run = apart.next().map(|first| (*first, *first));
        while let Some((begin, end)) = run {
            let following = apart.next().copied();
            if following == Some(end + 1) {
                run = Some((begin, end + 1));
                continue;
            }
            if begin > next {
                push(rest, next, begin - 1);
            }
            push(GapCause::KeptApart, begin, end);
            next = end + 1;
            run = following.map(|first| (first, first));
        }
        if next <= last {
            push(rest, next, last);
        }
    }
}

/// Until when something is known, and why no longer.
struct Known {
    until_us: i64,
    because: String,
}

impl Known {
    fn limit(&mut self, until_us: i64, because: impl FnOnce() -> String) {
        if until_us < self.until_us {
            self.until_us = until_us;
            self.because = because();
        }
    }
}

/// The cause of a gap, for people.
pub fn says(cause: GapCause) -> &'static str {
    match cause {
        GapCause::Unspecified => "the gateway's journal was full or damaged",
        GapCause::JournalFull => "the gateway's journal was full and dropped its oldest samples",
        GapCause::Medium => "the gateway's disk was damaged",
        GapCause::NotKept => "the gateway no longer has the samples",
        GapCause::Sensor => "the sensor's numbers skip samples that no gateway got",
        GapCause::InTransit => "the samples wait at the gateway or are on their way",
        GapCause::KeptApart => "the samples are in the quarantine",
        GapCause::JournalGone => "the gateway began a new journal, and the old one is unknown",
        GapCause::Unexplained => "the samples are not stored; the gateway is asked again",
    }
}
