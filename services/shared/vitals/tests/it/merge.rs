//! The histories that edge and core report of the same readings, in any interleaving, give one set
//! of rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use contracts::{
    alerts::{Alert, AlertState},
    vitals::{EdgeAlert, Metric, Priority, Sample, sample},
};
use proptest::prelude::*;
use vitals::{Condition, Engine, Origin, Profile, Rule, RuleSet, edge_alert, fill_defaults};

const S: i64 = 1_000_000;
const T0: i64 = 1_800_000_000 * S;
/// Far more than any delay of the rules here.
const END: i64 = T0 + 1_000_000 * S;

fn rules() -> Arc<RuleSet> {
    let rule = |id: &str, priority, for_s: u64| Rule {
        id: id.into(),
        priority,
        condition: Condition::Above {
            metric: Metric::HeartRate,
            limit: 130.0,
            clear: 120.0,
        },
        for_ms: for_s * 1000,
        clear_for_ms: for_s * 1000,
    };
    let set = RuleSet {
        name: "test".into(),
        version: 3,
        stale_after_s: [("heart-rate".to_owned(), 15)].into(),
        rules: vec![
            rule("high", Priority::High, 0),
            rule("high-later", Priority::High, 7),
            rule("medium", Priority::Medium, 0),
            rule("medium-later", Priority::Medium, 7),
        ],
    };
    set.validate().unwrap();
    Arc::new(set)
}

fn engine(origin: Origin) -> Engine {
    Engine::new("p", rules(), Profile::default(), origin)
}

/// Gaps in seconds and heart rates.
fn readings(readings: &[(i64, f64)]) -> Vec<Sample> {
    let mut at_us = T0;
    let samples = readings.iter().enumerate().map(|(index, (gap_s, value))| {
        at_us += gap_s * S;
        let mut sample = Sample {
            device: "belt-1".into(),
            gateway: "gateway-1".into(),
            sequence: index as u64 + 1,
            metric: Metric::HeartRate.into(),
            device_time_us: at_us,
            traceparent: format!("trace-{index}"),
            reading: Some(sample::Reading::Value(*value)),
            ..Sample::default()
        };
        fill_defaults(&mut sample);
        sample
    });
    samples.collect()
}

/// Reports of the gateway about the readings.
fn at_edge(samples: &[Sample]) -> Vec<EdgeAlert> {
    let mut edge = engine(Origin::Edge);
    let mut alerts: Vec<Alert> = samples.iter().flat_map(|it| edge.on_sample(it)).collect();
    alerts.extend(edge.on_time(END));
    let reported = alerts.iter().filter_map(|alert| edge_alert(alert, 0));
    reported.collect()
}

#[derive(Clone, Debug)]
enum Event {
    Edge(EdgeAlert),
    Core(Sample),
}

/// Interleaves the histories as the picks say, each in its own order. Then every `again`th event is
/// repeated at the end.
fn mixed(edge: &[EdgeAlert], core: &[Sample], picks: &[bool], again: usize) -> Vec<Event> {
    let (mut edge, mut core) = (edge.iter().cloned(), core.iter().cloned());
    let mut events: Vec<Event> = Vec::new();
    for pick in picks {
        events.extend(if *pick {
            edge.next().map(Event::Edge)
        } else {
            core.next().map(Event::Core)
        });
    }
    events.extend(edge.map(Event::Edge));
    events.extend(core.map(Event::Core));
    let repeated: Vec<Event> = events.iter().step_by(again).cloned().collect();
    events.extend(repeated);
    events
}

/// Rows by id and revision with the state that belongs to them, written together or not at all.
#[derive(Default)]
struct Rows {
    rows: BTreeMap<(String, u32), Alert>,
    state: Vec<u8>,
    conflicts: usize,
}

impl Rows {
    fn last(&self) -> BTreeMap<String, Alert> {
        let rows = self.rows.iter();
        rows.map(|((id, _), alert)| (id.clone(), alert.clone()))
            .collect()
    }

    /// Ids of rows that exist with other content. Nothing is written then.
    fn write(&mut self, alerts: &[Alert], state: Vec<u8>) -> Result<(), Vec<String>> {
        let mut rows = self.rows.clone();
        let mut conflicts = Vec::new();
        for alert in alerts {
            let key = (alert.id.clone(), alert.revision);
            if rows
                .insert(key, alert.clone())
                .is_some_and(|it| it != *alert)
            {
                conflicts.push(alert.id.clone());
            }
        }
        if !conflicts.is_empty() {
            self.conflicts += 1;
            return Err(conflicts);
        }
        (self.rows, self.state) = (rows, state);
        Ok(())
    }

    /// A nurse's acknowledgement: her row comes between those of the rules, which do not see it.
    fn acknowledge(&mut self) {
        let open = self.last().into_values().find(|alert| {
            alert.acknowledged_by.is_empty()
                && matches!(alert.state(), AlertState::Active | AlertState::Latched)
        });
        let Some(open) = open else { return };
        let state = match open.state() {
            AlertState::Active => AlertState::Acknowledged,
            _ => AlertState::Resolved,
        };
        let next = Alert {
            state: state.into(),
            acknowledged_by: "Ada".into(),
            revision: open.revision + 1,
            ..open
        };
        self.rows.insert((next.id.clone(), next.revision), next);
    }
}

/// The last rows. Only the core sees a return of a latched alert that is shorter than the rule's
/// delay. After a later stretch that return is no news. So the number of revisions depends on the
/// order, as do the reading and the time of the return.
fn comparable(rows: &Rows) -> BTreeMap<String, Alert> {
    let mut last = rows.last();
    for alert in last.values_mut().filter(|it| it.rule == "high-later") {
        alert.revision = 0;
        alert.value = 0.0;
        alert.traceparent.clear();
        alert.summary.clear();
        alert.changed_us = changed_us(alert);
    }
    last
}

/// 0 if it depends on the order: see [`comparable`].
fn changed_us(alert: &Alert) -> i64 {
    let is_returned = alert.rule == "high-later" && alert.state() == AlertState::Active;
    if is_returned { 0 } else { alert.changed_us }
}

fn of_medium(rows: &Rows) -> Vec<(String, i64, i64, AlertState)> {
    let last = rows.last().into_values();
    let medium = last.filter(|it| it.priority() == Priority::Medium);
    medium
        .map(|it| (it.id.clone(), it.since_us, it.changed_us, it.state()))
        .collect()
}

fn is_active(rows: &Rows, rule: &str) -> bool {
    let mut last = rows.last().into_values();
    last.any(|it| it.rule == rule && it.state() == AlertState::Active)
}

fn feed(engine: &mut Engine, event: &Event) -> Vec<Alert> {
    match event {
        Event::Edge(alert) => engine.on_edge_alert(alert),
        Event::Core(sample) => engine.on_sample(sample),
    }
}

/// Runs the events in batches of these sizes, each written as a whole. After a batch of an odd
/// number the process is killed. Before a batch whose size `acknowledge_every` divides, a person
/// acknowledges.
fn run(events: &[Event], batches: &[usize], acknowledge_every: Option<usize>) -> Rows {
    let mut rows = Rows::default();
    let mut engine = engine(Origin::Core);
    let mut sizes = batches.iter().copied().cycle();
    let mut left = events;
    let mut is_last = false;
    while !is_last {
        is_last = left.is_empty();
        let size = sizes.next().unwrap_or(1);
        let (batch, rest) = left.split_at(size.min(left.len()));
        left = rest;
        if acknowledge_every.is_some_and(|every| size % every == 0) {
            rows.acknowledge();
        }
        let mut tries = 0;
        loop {
            let before = engine.clone();
            let mut alerts: Vec<Alert> =
                batch.iter().flat_map(|it| feed(&mut engine, it)).collect();
            if is_last {
                alerts.extend(engine.on_time(END));
            }
            match rows.write(&alerts, engine.state()) {
                Ok(()) => break,
                Err(ids) => {
                    tries += 1;
                    assert!(tries <= 2, "it does not end: {ids:?} in {alerts:?}");
                    engine = before;
                    let last = rows.last();
                    ids.iter()
                        .filter_map(|id| last.get(id))
                        .for_each(|it| engine.adopt(it));
                }
            }
        }
        engine.trim();
        if size % 2 == 1 {
            let restored =
                Engine::restore("p", rules(), Profile::default(), Origin::Core, &rows.state);
            engine = restored.unwrap();
        }
    }
    rows
}

/// `gap_min` 0: two readings may have the same time.
fn a_day(gap_min: i64) -> impl Strategy<Value = Vec<(i64, f64)>> {
    let value = prop_oneof![Just(80.0), Just(125.0), Just(140.0)];
    let gap = prop_oneof![4 => gap_min..12, 1 => Just(16_i64), 1 => Just(29_i64)];
    prop::collection::vec((gap, value), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// In one batch, in several, killed in between, and with all events twice. The rows equal the
    /// core's history followed by the edge's, and the store refuses none.
    #[test]
    fn mixed_in_any_way_the_rows_are_the_same(
        day in a_day(1),
        picks in prop::collection::vec(any::<bool>(), 0..120),
        batches in prop::collection::vec(1_usize..20, 1..8),
        again in 1_usize..5,
    ) {
        let core = readings(&day);
        let edge = at_edge(&core);
        let all = core.len() + edge.len();
        let expected = run(&mixed(&edge, &core, &vec![false; all], all), &[all + 1], None);
        // Within the bounds of the engine's memory the store never refuses a row.
        let lasted_us = core[core.len() - 1].device_time_us - T0;
        let is_remembered = expected.last().len() <= 16 && lasted_us <= 600 * S;
        for (batches, picks) in [(&batches[..], &picks[..]), (&[1000], &picks), (&[1], &picks), (&[1000], &vec![true; all])] {
            let rows = run(&mixed(&edge, &core, picks, again), batches, None);
            prop_assert_eq!(comparable(&rows), comparable(&expected));
            prop_assert!(rows.conflicts == 0 || !is_remembered, "{} conflicts", rows.conflicts);
        }
    }

    /// Uploads of the edge overtake each other, so its history comes in any order. No due alert is
    /// absent of a rule whose alerts wait for a person. A stretch may be an alert of its own or the
    /// return of another.
    #[test]
    fn the_order_of_the_edges_reports_changes_no_episode(
        day in prop::collection::vec((3_i64..12, prop_oneof![Just(80.0), Just(125.0), Just(140.0)]), 1..30),
        order in prop::collection::vec(any::<u16>(), 60),
        picks in prop::collection::vec(any::<bool>(), 0..90),
        batches in prop::collection::vec(1_usize..20, 1..8),
    ) {
        let core = readings(&day);
        let edge = at_edge(&core);
        let all = core.len() + edge.len();
        let mut shuffled: Vec<(u16, EdgeAlert)> =
            order.iter().copied().cycle().zip(edge.iter().cloned()).collect();
        shuffled.sort_by_key(|(key, _)| *key);
        let shuffled: Vec<EdgeAlert> = shuffled.into_iter().map(|(_, alert)| alert).collect();
        let expected = run(&mixed(&edge, &core, &vec![false; all], all), &[all + 1], None);
        for (batches, picks) in [(&batches[..], &picks[..]), (&[1000], &picks), (&[1], &vec![true; all])] {
            let rows = run(&mixed(&shuffled, &core, picks, 3), batches, None);
            prop_assert_eq!(of_medium(&rows), of_medium(&expected), "{:?} {:?}", shuffled, picks);
            for (id, due) in expected.last().iter().filter(|(_, it)| it.priority() == Priority::High) {
                let since_us = rows.last().get(id).map(|it| it.since_us);
                prop_assert_eq!(since_us, Some(due.since_us), "{:?} {:?}", shuffled, picks);
                prop_assert_eq!(is_active(&rows, &due.rule), is_active(&expected, &due.rule));
            }
        }
    }

    /// A gateway loses its state at any time, and its reports overtake the readings from before.
    /// Each stretch of the readings is still one episode, which begins as they say.
    #[test]
    fn reports_that_overtake_the_readings_raise_no_stretch_twice(
        day in a_day(1),
        restart in any::<prop::sample::Index>(),
        batches in prop::collection::vec(1_usize..20, 1..8),
    ) {
        let core = readings(&day);
        let edge = at_edge_from(&core, restart.index(core.len()));
        let all = core.len() + edge.len();
        let begun = |rows: &Rows| -> Vec<(String, i64)> {
            let rows = rows.last().into_values();
            let medium = rows.filter(|it| it.priority() == Priority::Medium);
            let begun: BTreeSet<_> = medium.map(|it| (it.rule, it.since_us)).collect();
            begun.into_iter().collect()
        };
        let alone = run(&mixed(&[], &core, &[], all), &[all], None);
        let overtaken = run(&mixed(&edge, &core, &vec![true; all], all), &batches, None);
        prop_assert_eq!(begun(&overtaken), begun(&alone), "{:?}", edge);
        prop_assert_eq!(of_medium(&overtaken).len(), of_medium(&alone).len());
    }

    /// Without the edge, the same episodes begin and end at the same times.
    #[test]
    fn the_edge_adds_nothing_but_its_name(day in a_day(1)) {
        let core = readings(&day);
        let edge = at_edge(&core);
        let all = core.len() + edge.len();
        let outline = |rows: &Rows| -> Vec<(String, i64, i64, AlertState)> {
            let rows = rows.last().into_values();
            rows.map(|it| (it.id.clone(), it.since_us, changed_us(&it), it.state())).collect()
        };
        let both = run(&mixed(&edge, &core, &vec![true; all], 7), &[3], None);
        let alone = run(&mixed(&[], &core, &[], 7), &[5], None);
        prop_assert_eq!(outline(&both), outline(&alone));
        prop_assert!(both.last().values().all(|alert| alert.from_edge && alert.from_core));
    }

    /// With acknowledgements in between, other beginnings and lost reports, the merge still ends.
    /// Each revision is issued once, and an ended episode stays ended.
    #[test]
    fn no_history_is_too_strange(
        day in a_day(0),
        picks in prop::collection::vec(any::<bool>(), 0..120),
        batches in prop::collection::vec(1_usize..20, 1..8),
        again in 1_usize..5,
        shifts in prop::collection::vec((-9_000_i64..9_000, any::<bool>(), any::<bool>()), 1..20),
    ) {
        let core = readings(&day);
        let mut edge = at_edge(&core);
        let mut shifts = shifts.into_iter().cycle();
        edge.retain_mut(|alert| {
            let (shift_ms, is_old, is_lost) = shifts.next().unwrap();
            alert.time_us += shift_ms * 1000;
            alert.since_us = if is_old { 0 } else { alert.since_us + shift_ms * 1000 };
            !is_lost
        });
        let rows = run(&mixed(&edge, &core, &picks, again), &batches, Some(3));
        let mut before: Option<&Alert> = None;
        for alert in rows.rows.values() {
            let earlier = before.filter(|it| it.id == alert.id);
            prop_assert_eq!(alert.revision, earlier.map_or(0, |it| it.revision) + 1);
            if let Some(earlier) = earlier.filter(|it| it.state() == AlertState::Resolved) {
                prop_assert_eq!(alert.state(), AlertState::Resolved, "{:?}", earlier);
            }
            before = Some(alert);
        }
        // Normal readings end any episode that a report left open.
        let normal = readings(&[day, vec![(100, 80.0), (100, 80.0), (100, 80.0)]].concat());
        let events: Vec<Event> = mixed(&edge, &core, &picks, again)
            .into_iter()
            .chain(normal.into_iter().map(Event::Core))
            .collect();
        let rows = run(&events, &batches, Some(3));
        for alert in rows.last().values() {
            let is_over = matches!(alert.state(), AlertState::Latched | AlertState::Resolved);
            prop_assert!(is_over, "{alert:?}");
        }
    }
}

/// More episodes than the engine remembers, all reported by the edge before the first reading
/// comes.
#[test]
fn episodes_that_were_forgotten_are_asked_for_once() {
    let day: Vec<(i64, f64)> = (0..80)
        .map(|n| (9, if n % 2 == 0 { 140.0 } else { 80.0 }))
        .collect();
    let core = readings(&day);
    let edge = at_edge(&core);
    let all = core.len() + edge.len();
    let edge_first = mixed(&edge, &core, &vec![true; all], all);
    let rows = run(&edge_first, &[1], None);
    assert!(rows.conflicts > 0, "all of them are remembered");
    let expected = run(&edge_first, &[1000], None);
    assert_eq!(expected.conflicts, 0);
    assert_eq!(rows.last(), expected.last());
}

/// After losing its state, the edge sees the stretch begin later. The beginning in the core's
/// readings counts if the delay had not ended before the restart.
#[test]
fn a_restart_of_the_gateway_within_a_delay_moves_no_beginning() {
    let core = readings(&one_stretch());
    check_one_stretch(&core, &at_edge(&core[12..]));
}

/// The edge keeps the state of its rules, so a restart at any reading changes nothing.
#[test]
fn a_restart_of_the_gateway_that_keeps_its_state_raises_no_stretch_twice() {
    let core = readings(&one_stretch());
    for restart in 0..core.len() {
        let mut edge = engine(Origin::Edge);
        let mut alerts = Vec::new();
        for (index, sample) in core.iter().enumerate() {
            if index == restart {
                let state = edge.state();
                let profile = Profile::default();
                edge = Engine::restore("p", rules(), profile, Origin::Edge, &state).unwrap();
            }
            alerts.extend(edge.on_sample(sample));
        }
        alerts.extend(edge.on_time(END));
        let reported: Vec<EdgeAlert> = alerts.iter().filter_map(|it| edge_alert(it, 0)).collect();
        assert_eq!(reported, at_edge(&core), "restart before reading {restart}");
        check_one_stretch(&core, &reported);
    }
}

/// Reports of a gateway that lost the state of its rules before this reading.
fn at_edge_from(samples: &[Sample], restart: usize) -> Vec<EdgeAlert> {
    let mut edge = engine(Origin::Edge);
    let mut reported = Vec::new();
    let mut report = |edge: &Engine, alerts: Vec<Alert>| {
        reported.extend(alerts.iter().filter_map(|alert| {
            let first_look = alert.state() == AlertState::Active && edge.is_first_look(&alert.rule);
            edge_alert(alert, 0).map(|it| EdgeAlert { first_look, ..it })
        }));
    };
    for sample in &samples[restart..] {
        let alerts = edge.on_sample(sample);
        report(&edge, alerts);
    }
    let alerts = edge.on_time(END);
    report(&edge, alerts);
    reported
}

/// Without its state, a gateway that is killed within a stretch reports it again with a later
/// beginning. So does another gateway that takes over the sensor. It stays one episode, also while
/// no reading reaches the core.
#[test]
fn a_gateway_that_looks_for_the_first_time_raises_no_active_stretch_again() {
    let core = readings(&one_stretch());
    for restart in (11..40).step_by(9) {
        let again = at_edge_from(&core, restart);
        let mut reported = at_edge(&core[..restart]);
        reported.retain(|it| !it.resolved);
        reported.extend(again.iter().cloned());
        let is_again = again.iter().any(|it| it.first_look);
        assert!(is_again, "restart before reading {restart}");
        let all = core.len() + reported.len();
        let alternating: Vec<bool> = (0..all).map(|n| n % 2 == 0).collect();
        let mut overtaken = reported.clone();
        overtaken.sort_by_key(|it| !it.first_look);
        for edge in [&reported, &overtaken, &again] {
            for picks in [&vec![true; all], &vec![false; all], &alternating] {
                let rows = run(&mixed(edge, &core, picks, all), &[7], None);
                let last = rows.last();
                assert_eq!(last.len(), rules().rules.len(), "{restart}: {last:?}");
                let begun = last
                    .values()
                    .all(|it| it.since_us == core[10].device_time_us);
                assert!(begun, "{restart}: {last:?}");
            }
        }
    }
}

/// The edge reported a stretch, and only its first reading reached the core. The others come after
/// many episodes that another sensor showed, and after a restart.
#[test]
fn a_late_backlog_raises_no_stretch_again() {
    let core = readings(&one_stretch());
    let edge = at_edge(&core);
    let mut engine = engine(Origin::Core);
    let first = core[..11].iter().flat_map(|it| engine.on_sample(it));
    let mut alerts: Vec<Alert> = first.collect();
    alerts.extend(edge.iter().flat_map(|it| engine.on_edge_alert(it)));
    let known: BTreeSet<String> = alerts.iter().map(|it| it.id.clone()).collect();
    assert_eq!(known.len(), rules().rules.len());
    let mut day = vec![(700, 80.0)];
    day.extend((0..20).flat_map(|_| [(20, 140.0), (20, 80.0)]));
    for sample in readings(&day) {
        engine.on_sample(&Sample {
            device: "ring-1".into(),
            ..sample
        });
        engine.trim();
    }
    let state = engine.state();
    let mut engine =
        Engine::restore("p", rules(), Profile::default(), Origin::Core, &state).unwrap();
    let late: Vec<Alert> = core[11..]
        .iter()
        .flat_map(|it| engine.on_sample(it))
        .collect();
    let of_medium = |it: &&Alert| it.priority() == Priority::Medium;
    let raised: Vec<&Alert> = late.iter().filter(of_medium).collect();
    assert!(raised.is_empty(), "{raised:?}");
    // The reports come once more. They have the ids that the store knows.
    let again = edge.iter().flat_map(|it| engine.on_edge_alert(it));
    let unknown: Vec<Alert> = again.filter(|it| !known.contains(&it.id)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// Heart rates, one a second: high from the tenth to the fortieth.
fn one_stretch() -> Vec<(i64, f64)> {
    let value = |n| if (10..40).contains(&n) { 140.0 } else { 80.0 };
    (0..60).map(|n| (1, value(n))).collect()
}

fn check_one_stretch(core: &[Sample], edge: &[EdgeAlert]) {
    assert!(!edge.is_empty());
    let all = core.len() + edge.len();
    let alternating: Vec<bool> = (0..all).map(|n| n % 2 == 0).collect();
    for picks in [vec![true; all], vec![false; all], alternating] {
        for batch in [1, 7, 1_000] {
            let rows = run(&mixed(edge, core, &picks, 3), &[batch], None);
            let last = rows.last();
            assert_eq!(last.len(), rules().rules.len(), "one of each rule");
            for alert in last.values() {
                assert_eq!(alert.since_us, core[10].device_time_us, "{alert:?}");
                assert!(alert.from_edge && alert.from_core, "{alert:?}");
            }
        }
    }
}

/// A latched alert still calls a person. When its condition returns, it is active with the first
/// reading, because the rule's delay is for new alerts only.
#[test]
fn a_latched_alert_that_returns_is_active_at_once() {
    let day: Vec<(i64, f64)> = (0..80)
        .map(|n| {
            let is_high = (10..30).contains(&n) || (50..52).contains(&n) || (65..80).contains(&n);
            (1, if is_high { 140.0 } else { 80.0 })
        })
        .collect();
    let core = readings(&day);
    let mut engine = engine(Origin::Core);
    let mut states = Vec::new();
    for (second, sample) in (0_i64..).zip(&core) {
        let alerts = engine.on_sample(sample);
        let of_rule = alerts.iter().filter(|it| it.rule == "high-later");
        states.extend(of_rule.map(|it| (second, it.state())));
        let revisions: Vec<u32> = alerts.iter().map(|it| it.revision).collect();
        assert!(revisions.iter().all(|it| *it > 0), "{alerts:?}");
    }
    use AlertState::{Active, Latched};
    // The second stretch is shorter than the delay of 7 s and still ends as the first one did.
    let expected = [
        (17, Active),
        (37, Latched),
        (50, Active),
        (59, Latched),
        (65, Active),
    ];
    assert_eq!(states, expected);
    // An acknowledged alert is over. The next stretch waits for the delay and is a new episode.
    let mut engine = self::engine(Origin::Core);
    let mut raised = Vec::new();
    for (second, sample) in (0_i64..).zip(&core) {
        for alert in engine.on_sample(sample) {
            if alert.rule != "high-later" {
                continue;
            }
            if alert.state() == Latched {
                engine.acknowledge(&alert.id, "Ada", "", sample.device_time_us);
            }
            raised.extend((alert.state() == Active).then_some(second));
        }
    }
    assert_eq!(raised, [17, 72]);
}
