//! Plans on the example that ships, and variants of it.

#![allow(clippy::unwrap_used)]

use access_plan::{EXAMPLE, Outcome, Plan};

fn solve(text: &str) -> Outcome {
    access_plan::solve(&Plan::from_toml(text).unwrap())
}

#[test]
fn loads_shares_and_bytes_add_up() {
    for split in ["balanced", "fastest", "cheapest"] {
        let text = EXAMPLE.replace("\"cheapest\"", &format!("\"{split}\""));
        let outcome = solve(&text);
        let shares: f64 = outcome.accesses.iter().map(|it| it.share_percent).sum();
        assert!((shares - 100.0).abs() < 1e-6, "{split}: {shares}");
        // 60 patients with 12 kbit/s and a tenth of an hour of video in each busy hour, 25
        // with 48 kbit/s.
        let covered = |group: usize| 1.0 - outcome.groups[group].uncovered_percent / 100.0;
        let demand = 60.0 * covered(0) * (0.012 + 0.95 * 0.4 / 10.0) + 25.0 * covered(1) * 0.048;
        let busy: f64 = outcome.accesses.iter().map(|it| it.busy_mbit).sum();
        assert!((busy - demand).abs() < 1e-6, "{split}: {busy} {demand}");
        // Payload of a month, and at most a tenth more for headers and loss.
        let payload = (60.0 * covered(0) * (12.0 * 24.0 + 950.0 * 0.4)
            + 25.0 * covered(1) * 48.0 * 24.0)
            * 1e3
            / 8.0
            * 3600.0
            * 30.0
            / 1e9;
        let ratio = outcome.gb_per_month / payload;
        assert!((1.04..1.1).contains(&ratio), "{split}: {ratio}");
    }
}

#[test]
fn the_cheapest_split_costs_least_and_a_free_access_is_used_first() {
    let price = |split: &str| {
        let text = EXAMPLE.replace("\"cheapest\"", &format!("\"{split}\""));
        solve(&text).price_per_month
    };
    assert!(price("cheapest") <= price("fastest") + 1e-9);
    assert!(price("cheapest") < price("balanced"));
}

#[test]
fn an_access_that_is_too_narrow_is_reported_and_its_load_moves_on() {
    let narrow = plain().replace("rate_mbit = 30.0\ncells = 2", "rate_mbit = 0.5");
    let outcome = solve(&narrow);
    assert!(outcome.accesses[1].busy_mbit > 0.4, "{outcome:?}");
    assert!(outcome.accesses[2].busy_mbit > 0.4, "{outcome:?}");
    let both = narrow.replace("rate_mbit = 40.0", "rate_mbit = 0.5");
    let outcome = solve(&both);
    assert!(
        outcome.warnings.iter().any(|it| it.contains("overloaded")),
        "{outcome:?}"
    );
}

#[test]
fn balanced_accesses_are_used_alike() {
    let text = EXAMPLE
        .replace("\"cheapest\"", "\"balanced\"")
        .replace("coverage = 0.95", "coverage = 1.0")
        .replace("coverage = 0.9\n", "coverage = 1.0\n");
    let outcome = solve(&text);
    let used: Vec<f64> = outcome.accesses.iter().map(|it| it.used_percent).collect();
    assert!((used[1] - used[2]).abs() < 0.01 * used[1], "{used:?}");
}

/// Without the other users of LTE operator A.
fn plain() -> String {
    let (before, after) = EXAMPLE.split_once("background").unwrap();
    let (_, after) = after.split_once('\n').unwrap();
    format!("{before}{after}")
}

#[test]
fn others_take_their_part_of_the_cells_in_their_hours_only() {
    let plain = solve(&plain());
    let many = solve(&EXAMPLE.replace("mbit = 24.0", "mbit = 50.0"));
    for (before, after) in plain.accesses[1].hours.iter().zip(&many.accesses[1].hours) {
        if (17..23).contains(&after.hour) {
            // All ask for more than the cells have: each has the same part of its cell.
            let senders = many.accesses[1].patients / 2.0;
            let left = after.usable_mbit / before.usable_mbit;
            assert!((left - senders / (senders + 30.0)).abs() < 0.01, "{left}");
            assert!(after.gateway_mbit < 0.6 * before.gateway_mbit);
        } else {
            assert_eq!(after.usable_mbit, before.usable_mbit);
        }
    }
    let few = solve(&EXAMPLE.replace("mbit = 24.0", "mbit = 2.0"));
    let left = few.accesses[1].hours[20].usable_mbit;
    let expected = plain.accesses[1].usable_mbit - 2.0 * 2.0;
    assert!((left / expected - 1.0).abs() < 0.02, "{left} {expected}");
}

#[test]
fn more_cells_carry_more_and_each_has_its_own_background() {
    let one = solve(&EXAMPLE.replace("cells = 2", "cells = 1"));
    let three = solve(&EXAMPLE.replace("cells = 2", "cells = 3"));
    let hour = |outcome: &Outcome, hour: usize| outcome.accesses[1].hours[hour].clone();
    assert!((hour(&three, 3).usable_mbit / hour(&one, 3).usable_mbit - 3.0).abs() < 1e-9);
    assert!((hour(&three, 20).background_mbit - 72.0).abs() < 1e-9);
    assert!(hour(&three, 20).gateway_mbit > hour(&one, 20).gateway_mbit);
}

#[test]
fn busy_hours_may_go_on_after_midnight() {
    let text = EXAMPLE.replace("busy_from_hour = 9.0", "busy_from_hour = 20.0");
    let outcome = solve(&text);
    let load = |hour: usize| -> f64 {
        let hours = outcome.accesses.iter().map(|it| it.hours[hour].load_mbit);
        hours.sum()
    };
    assert!(load(23) > 2.0 * load(12) && load(5) > 2.0 * load(12) && load(6) < load(5));
}

#[test]
fn who_has_one_access_only_is_told() {
    let outcome = solve(EXAMPLE);
    // 95 % and 90 %, each alone.
    let single = 100.0 * (0.95 * 0.1 + 0.05 * 0.9);
    assert!((outcome.groups[1].single_percent - single).abs() < 1e-9);
}

#[test]
fn errors_name_line_field_and_an_example() {
    let cases = [
        (
            "rate_mbit = 30.0",
            "rate_mbit = nan",
            "line 26: access[1].rate_mbit",
        ),
        ("coverage = 0.95", "coverage = 1.5", "access[1].coverage"),
        ("coverage = 0.95", "coverage = -0.1", "access[1].coverage"),
        (
            "price_per_gb = 2.5",
            "price_per_gb = inf",
            "access[1].price_per_gb",
        ),
        ("count = 60", "count = \"many\"", "line"),
        ("kbit = 12.0", "kbit = -1.0", "patients[0].traffic[0].kbit"),
        (
            "\"LTE operator B\"]",
            "\"LTE operator C\"]",
            "patients[1].accesses[1]",
        ),
        ("rtt_ms = 24.0", "rtt = 24.0", "line 18"),
        (
            "to_hour = 23",
            "to_hour = 7",
            "access[1].background[0].to_hour",
        ),
        (
            "per_patient = true",
            "per_patient = true\ncells = 4",
            "access[0].cells",
        ),
        (
            "busy_from_hour = 9.0",
            "busy_from_hour = -1.0",
            "busy_from_hour",
        ),
    ];
    for (from, to, expected) in cases {
        let text = EXAMPLE.replacen(from, to, 1);
        let error = Plan::from_toml(&text).unwrap_err().to_string();
        assert!(
            error.starts_with("line ") && error.contains(expected),
            "{to}: {error}"
        );
        assert!(error.contains("for example"), "{to}: {error}");
    }
}
