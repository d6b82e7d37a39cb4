//! Caps of a day, a week and a month.

use super::*;

#[test]
fn the_cap_of_which_the_least_is_left_binds() {
    let text = TWO.replace(
        "cap_gb = 5",
        "cap_gb = 5\ncap_gb_per_week = 2\ncap_gb_per_day = 0.5",
    );
    let document = document(&text);
    let accesses = states(&["wifi", "lte"]);
    let bulk = Flow::new("tun", Urgency::Bulk);
    let decided = |used| {
        let measurement = Measurement {
            used,
            ..Measurement::default()
        };
        let at = Measurements::from([("lte".to_owned(), measurement)]);
        let decision = decide(&document, &bulk, &accesses, &at);
        let cap = decision.why[1].cap.map(|cap| (cap.period, cap.left_bytes));
        (order(&decision).len(), cap, decision.explained(&document))
    };
    let used = |day: u64, week: u64, month: u64| Used {
        day_bytes: day * 1_000_000,
        week_bytes: week * 1_000_000,
        month_bytes: month * 1_000_000,
    };
    let (places, cap, _) = decided(used(100, 1_000, 4_000));
    assert_eq!((places, cap), (2, Some((Period::Day, 400_000_000))));
    let (places, cap, said) = decided(used(100, 1_900, 4_000));
    assert_eq!((places, cap), (2, Some((Period::Week, 100_000_000))));
    assert!(
        said.contains("0.100 GB of the cap are left until Monday"),
        "{said}"
    );
    let (places, cap, said) = decided(used(500, 1_900, 4_000));
    assert_eq!((places, cap), (1, Some((Period::Day, 0))));
    assert!(
        said.contains("the day's cap of 0.500 GB is reached"),
        "{said}"
    );
    let (places, cap, _) = decided(used(0, 0, 5_000));
    assert_eq!((places, cap), (1, Some((Period::Month, 0))));
}

#[test]
fn a_cap_that_is_reached_moves_bulk_away_and_no_alert() {
    let document = document(TWO);
    let accesses = states(&["wifi", "lte"]);
    let at = |month_bytes| Measurements::from([("lte".to_owned(), measured(40, 1e6, month_bytes))]);
    let bulk = Flow::new("tun", Urgency::Bulk);
    let before = decide(&document, &bulk, &accesses, &at(4_999_999_999));
    assert_eq!(
        order(&before),
        [("wifi", Rank::Active), ("lte", Rank::Spill)]
    );
    assert_eq!(before.why[1].cap.map(|cap| cap.left_bytes), Some(1));
    let after = decide(&document, &bulk, &accesses, &at(5_000_000_000));
    assert_eq!(order(&after), [("wifi", Rank::Active)]);
    assert_eq!(after.why[1].cap.map(|cap| cap.left_bytes), Some(0));
    assert_eq!(
        after.why[1].reason.to_string(),
        "the month's cap of 5.000 GB is reached"
    );
    let vitals = decide(
        &document,
        &Flow::new("vitals", Urgency::Prompt),
        &accesses,
        &at(6_000_000_000),
    );
    assert_eq!(
        order(&vitals),
        [("wifi", Rank::Active), ("lte", Rank::Standby)]
    );
    let alert = decide(
        &document,
        &Flow::new("alerts", Urgency::Alert),
        &accesses,
        &at(6_000_000_000),
    );
    assert_eq!(
        order(&alert),
        [("lte", Rank::Active), ("wifi", Rank::Active)]
    );
}
