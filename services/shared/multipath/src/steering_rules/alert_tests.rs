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
