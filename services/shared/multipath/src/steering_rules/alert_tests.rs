//! Alerts and rules.

#![allow(clippy::unwrap_used)]

use super::*;

fn document(text: &str) -> Document {
    Document::from_toml(text, "steering.toml").unwrap()
}

fn states(names: &[&str]) -> Vec<AccessState> {
    names.iter().copied().map(AccessState::usable).collect()
}

fn order(decision: &Decision) -> Vec<(&str, Rank)> {
    let choices = decision.order.iter();
    choices
        .map(|choice| (choice.access.as_str(), choice.rank))
        .collect()
}

#[test]
fn alerts_obey_only_rules_that_name_them() {
    let everything = "format = 1\n[[rule]]\nname = \"all\"\naccesses = [\"wifi\"]\n";
    let alert = Flow::new("alerts", Urgency::Alert);
    let accesses = states(&["wifi", "lte"]);
    let decision = decide(
        &document(everything),
        &alert,
        &accesses,
        &Measurements::new(),
    );
    assert_eq!(
        (decision.rule, decision.copies, decision.order.len()),
        (None, 2, 2)
    );
    let named = format!("{everything}match = {{ urgency = [\"alert\"] }}\n");
    let decision = decide(&document(&named), &alert, &accesses, &Measurements::new());
    assert_eq!(decision.rule.as_deref(), Some("all"));
    assert_eq!(
        order(&decision),
        [("wifi", Rank::Active), ("lte", Rank::Standby)]
    );
}

#[test]
fn no_rule_holds_an_alert_back_while_an_access_lives() {
    let mut accesses = states(&["wifi", "lte"]);
    accesses[0].usable = false;
    for forbids in [
        "accesses = [\"wifi\"]",
        "accesses = [\"wfi\"]",
        "metered = false",
        "roaming = false",
    ] {
        let document = document(&format!(
            "format = 1\n[[access]]\nname = \"lte\"\nmetered = true\nroaming = true\n[[rule]]\n\
             name = \"own\"\n{forbids}\nmatch = {{ urgency = [\"alert\", \"prompt\"] }}\n"
        ));
        let own = [
            Flow::new("alerts", Urgency::Alert),
            Flow::new("vitals", Urgency::Prompt),
        ];
        let decisions = own.map(|flow| decide(&document, &flow, &accesses, &Measurements::new()));
        let lte = schedule(&decisions).of("lte");
        assert_eq!(lte.rank, Some(Rank::Standby), "{forbids}");
    }
}

/// The schedule of a gateway with an upload under way, over WLAN and a capped LTE.
fn joined(document: &Document, alarmed: bool, lte_bytes: u64) -> Schedule {
    let measured = Measurement {
        used: Used {
            month_bytes: lte_bytes,
            ..Used::default()
        },
        ..Measurement::default()
    };
    let measurements = [("lte".to_owned(), measured)].into();
    let mut vitals = Flow::new("vitals", Urgency::Prompt);
    vitals.raised = alarmed;
    let own = [Flow::new("alerts", Urgency::Alert), vitals];
    let accesses = states(&["wifi", "lte"]);
    let decided = |flow: &Flow| decide(document, flow, &accesses, &measurements);
    let mut decisions: Vec<Decision> = own
        .iter()
        .map(decided)
        .map(|it| if alarmed { it } else { it.at_rest() })
        .collect();
    decisions.push(decided(&Flow::new("applications", Urgency::Bulk)));
    schedule(&decisions)
}

#[test]
fn copies_of_an_alert_take_an_access_that_another_flow_lets_stand_by() {
    let capped = document("format = 1\n[[access]]\nname = \"lte\"\ncap_gb = 1\n");
    let lte = |alarmed, bytes| joined(&capped, alarmed, bytes).of("lte");
    let reached = lte(true, 1_000_000_000);
    assert_eq!(reached.rank, Some(Rank::Standby), "for the upload");
    assert!(reached.carries_copies && reached.is_held_for_copies());
    assert!(
        !lte(false, 1_000_000_000).carries_copies,
        "no alert is open"
    );
    assert!(!lte(true, 10).is_held_for_copies(), "it is active for all");
    let rule = "format = 1\n[[rule]]\nname = \"own\"\nmatch = { urgency = [\"bulk\"] }\n";
    for (mode, rank) in [("priority", Rank::Spill), ("active-standby", Rank::Standby)] {
        let document = document(&format!("{rule}mode = \"{mode}\"\n"));
        let lte = joined(&document, true, 0).of("lte");
        assert_eq!((lte.rank, lte.carries_copies), (Some(rank), true), "{mode}");
    }
}

#[test]
fn no_copy_takes_an_access_that_the_rule_of_alerts_lets_stand_by() {
    for own in ["accesses = [\"wifi\", \"usb\"]", "metered = false"] {
        let document = document(&format!(
            "format = 1\n[[access]]\nname = \"lte\"\nmetered = true\n[[rule]]\nname = \"own\"\n\
             {own}\nmode = \"redundant\"\nmatch = {{ urgency = [\"alert\"] }}\n"
        ));
        let schedule = schedule(&[decide(
            &document,
            &Flow::new("alerts", Urgency::Alert),
            &states(&["wifi", "lte", "usb"]),
            &Measurements::new(),
        )]);
        assert!(schedule.of("wifi").carries_copies && schedule.of("usb").carries_copies);
        assert!(!schedule.of("lte").carries_copies, "{own}");
    }
}

#[test]
fn copies_of_other_flows_take_no_access_that_stands_by() {
    let document = document(
        "format = 1\n[[access]]\nname = \"lte\"\nmetered = true\n\
         [[rule]]\nname = \"call\"\nmode = \"redundant\"\n\
         match = { application = [\"tun\"], urgency = [\"bulk\"] }\n\
         [[rule]]\nname = \"rest\"\nmetered = false\nmatch = { urgency = [\"bulk\"] }\n",
    );
    let decisions = ["tun", "applications"].map(|application| {
        let flow = Flow::new(application, Urgency::Bulk);
        let accesses = states(&["wifi", "lte"]);
        decide(&document, &flow, &accesses, &Measurements::new())
    });
    let schedule = schedule(&decisions);
    assert_eq!(schedule.copies, 2);
    assert!(!schedule.of("lte").carries_copies);
}
