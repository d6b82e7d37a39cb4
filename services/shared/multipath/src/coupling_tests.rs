#![allow(clippy::unwrap_used)]

use super::*;

const MS: Duration = Duration::from_millis(1);

/// Two paths for `seconds`, acknowledged every 10 ms, with the queue (in ms) that each meets at a
/// time.
fn watch(
    bottlenecks: &mut Bottlenecks,
    start: Instant,
    seconds: u64,
    queue_ms: impl Fn(usize, f64) -> f64,
) -> Instant {
    let mut now = start;
    while now < start + Duration::from_secs(seconds) {
        now += 10 * MS;
        for slot in 0..2 {
            let at = (now - start).as_secs_f64();
            let rtt = Duration::from_secs_f64((30.0 + queue_ms(slot, at)) / 1e3);
            bottlenecks.observe(now, slot, rtt, true, Coupling::Detected);
        }
    }
    now
}

/// A sawtooth of 40 ms with a period and a phase in seconds.
fn sawtooth(at: f64, period: f64, phase: f64) -> f64 {
    40.0 * ((at + phase) / period).fract()
}

#[test]
fn paths_in_one_queue_are_one_sender_and_part_when_their_queues_do() {
    let start = Instant::now();
    let mut bottlenecks = Bottlenecks::default();
    let now = watch(&mut bottlenecks, start, 10, |slot, at| {
        sawtooth(at + 0.02 * slot as f64, 3.7, 0.0)
    });
    assert!(bottlenecks.is_coupled(0) && bottlenecks.is_coupled(1));
    watch(&mut bottlenecks, now, 12, |slot, at| {
        sawtooth(at, 3.7, 1.9 * slot as f64)
    });
    assert!(!bottlenecks.is_coupled(0) && !bottlenecks.is_coupled(1));
}

#[test]
fn paths_with_queues_of_their_own_are_not_coupled() {
    let start = Instant::now();
    for (period, depth) in [(3.1, 1.0), (3.7, 0.3), (6.5, 1.0)] {
        let mut bottlenecks = Bottlenecks::default();
        watch(&mut bottlenecks, start, 60, |slot, at| {
            if slot == 0 {
                sawtooth(at, 3.7, 0.0)
            } else {
                depth * sawtooth(at, period, 0.9)
            }
        });
        assert!(!bottlenecks.is_coupled(0), "period {period}");
    }
}

#[test]
fn queues_without_variation_join_no_paths() {
    let mut bottlenecks = Bottlenecks::default();
    watch(&mut bottlenecks, Instant::now(), 20, |_, _| 15.0);
    assert!(!bottlenecks.is_coupled(0));
}

#[test]
fn a_group_grows_and_is_cut_as_one_flow() {
    let start = Instant::now();
    let mut bottlenecks = Bottlenecks::default();
    let mut own = [CubicWindow::new(start, 50.0), CubicWindow::new(start, 30.0)];
    for (slot, own) in own.iter_mut().enumerate() {
        bottlenecks.observe(start, slot, 30 * MS, true, Coupling::Always);
        bottlenecks.on_ack(start, slot, 0.03, own);
    }
    let sum = own[0].window_packets() + own[1].window_packets();
    let later = start + JUDGED_EVERY;
    bottlenecks.observe(later, 0, 30 * MS, true, Coupling::Always);
    for (slot, own) in own.iter_mut().enumerate() {
        bottlenecks.on_ack(later, slot, 0.03, own);
    }
    assert_eq!(own[0].window_packets(), own[1].window_packets());
    let together = own[0].window_packets() * 2.0;
    assert!(together < 0.8 * sum, "{together} of {sum}");
    // Both paths lose packets of the same round trip: one cut.
    let cut = later + 500 * MS;
    for (slot, own) in own.iter_mut().enumerate() {
        bottlenecks.on_loss(cut + MS, slot, cut - MS, own);
    }
    bottlenecks.on_ack(cut + 2 * MS, 0, 0.03, &mut own[0]);
    let left = own[0].window_packets() * 2.0;
    assert!((left / together - 0.7).abs() < 0.05, "{left} of {together}");
}

#[test]
fn an_rtt_probe_of_one_member_is_one_of_all() {
    let start = Instant::now();
    let mut bottlenecks = Bottlenecks::default();
    let now = watch(&mut bottlenecks, start, 10, |_, at| sawtooth(at, 3.0, 0.0));
    assert!(bottlenecks.is_coupled(1));
    let (before, _) = bottlenecks.group_probes(1);
    bottlenecks.start_probe(0, true);
    assert_eq!(bottlenecks.group_probes(1), (before + 1, true));
    assert_eq!(bottlenecks.group_probes(0).0, 0);
    bottlenecks.forget(1);
    assert!(!bottlenecks.is_coupled(0));
    bottlenecks.start_probe(0, true);
    assert_eq!(bottlenecks.group_probes(1).0, 0);
    assert!(now > start);
}
