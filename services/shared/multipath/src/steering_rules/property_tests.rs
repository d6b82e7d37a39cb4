//! Properties that hold for every document, flow and measurement.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn any_access() -> impl Strategy<Value = (AccessState, Measurement)> {
    let names = prop::sample::select(vec!["wifi", "lte", "wwan1", "eth0", "sat", "tether"]);
    let rtt = prop::option::of(0u64..2_000);
    let rate = prop::option::of(any::<f64>());
    let loss = prop::option::of(any::<f64>());
    (names, any::<bool>(), rtt, rate, loss, any::<u64>()).prop_map(
        |(name, usable, rtt, rate, loss, month_bytes)| {
            let state = AccessState {
                name: name.to_owned(),
                usable,
            };
            let measurement = Measurement {
                rtt: rtt.map(Duration::from_millis),
                loss,
                rate_bytes_per_s: rate,
                used: Used {
                    month_bytes,
                    ..Used::default()
                },
            };
            (state, measurement)
        },
    )
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let words = ["wifi", "lte", "cellular", "ethernet", "satellite", "none"];
    let accesses = prop::sample::subsequence(words.to_vec(), 0..=4).prop_shuffle();
    let urgencies = [Urgency::Alert, Urgency::Prompt, Urgency::Bulk];
    let urgency = prop::sample::subsequence(urgencies.to_vec(), 0..=2);
    let weights = prop::collection::btree_map(
        prop::sample::select(words.to_vec()).prop_map(str::to_owned),
        1u32..100,
        0..4,
    );
    let thresholds = (prop::option::of(1u32..500), prop::option::of(0.0f64..1.0));
    let mode = prop::sample::select(Mode::ALL.to_vec());
    (
        mode,
        accesses,
        urgency,
        weights,
        thresholds,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(mode, accesses, urgency, weights, (rtt_ms_max, loss_max), metered, roaming)| Rule {
                name: "it".into(),
                matches: Match {
                    urgency,
                    ..Match::default()
                },
                mode,
                accesses: accesses.into_iter().map(str::to_owned).collect(),
                weights,
                rtt_ms_max,
                loss_max,
                metered,
                roaming,
            },
        )
}

fn any_document() -> impl Strategy<Value = Document> {
    let terms = (prop::option::of(0.0f64..20.0), any::<bool>(), any::<bool>());
    (prop::collection::vec(any_rule(), 0..3), terms).prop_map(
        |(mut rules, (cap_gb, metered, roaming))| {
            for (number, rule) in rules.iter_mut().enumerate() {
                rule.name = number.to_string();
            }
            let lte = AccessTerms {
                name: Some("lte".into()),
                kind: Some(Kind::Cellular),
                cap_gb,
                metered,
                roaming,
                reset_day: 1,
                ..AccessTerms::default()
            };
            Document {
                accesses: vec![lte],
                rules,
                ..Document::default()
            }
        },
    )
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let urgency = prop::sample::select(vec![Urgency::Alert, Urgency::Prompt, Urgency::Bulk]);
    (urgency, any::<bool>()).prop_map(|(urgency, raised)| Flow {
        raised,
        ..Flow::new("tun", urgency)
    })
}

proptest! {
    #[test]
    fn a_decision_is_total_deterministic_and_obeys_its_rule(
        document in any_document(),
        flow in any_flow(),
        accesses in prop::collection::vec(any_access(), 0..8),
    ) {
        let measurements: Measurements =
            accesses.iter().map(|(state, it)| (state.name.clone(), *it)).collect();
        let states: Vec<AccessState> = accesses.into_iter().map(|it| it.0).collect();
        let decision = decide(&document, &flow, &states, &measurements);
        // Numbers that are none compare as text.
        let again = decide(&document, &flow, &states, &measurements);
        prop_assert_eq!(format!("{decision:?}"), format!("{again:?}"));
        prop_assert_eq!(decision.share.len(), decision.order.len());
        let sum: f64 = decision.share.iter().sum();
        let expected = if decision.order.is_empty() { 0.0 } else { f64::from(decision.copies) };
        prop_assert!(decision.copies > 1 || (sum - expected).abs() < 1e-9, "{sum}");
        let rule = document.rules.iter().find(|rule| decision.rule.as_ref() == Some(&rule.name));
        for why in &decision.why {
            let chosen = decision.order.iter().any(|it| it.access == why.access);
            prop_assert_eq!(chosen, why.verdict != Verdict::Rejected);
            let (terms, kind) = document.terms_of(&why.access);
            if let Some(rule) = rule {
                let listed = rule.accesses.is_empty()
                    || rule.accesses.iter().any(|word| flow::is_meant(word, &why.access, kind));
                let metered = terms.is_some_and(|terms| terms.metered) && !rule.metered;
                let roaming = terms.is_some_and(|terms| terms.roaming) && !rule.roaming;
                let is_alert = flow.urgency == Urgency::Alert;
                let allowed = listed && !metered && !roaming;
                prop_assert!(!chosen || allowed || is_alert, "{why:?}");
                let first = decision.order.first().filter(|it| it.access == why.access);
                let stands_by = first.is_none_or(|it| it.rank == Rank::Standby);
                prop_assert!(allowed || stands_by, "{why:?}");
            }
            let capped = why.cap.is_some_and(|cap| cap.left_bytes == 0);
            let by_cap = matches!(why.reason, Reason::CapReached { .. });
            let is_alert = flow.urgency == Urgency::Alert;
            prop_assert!(!is_alert || !by_cap && chosen, "{why:?}");
            prop_assert!(flow.urgency != Urgency::Bulk || flow.raised || !capped || !chosen);
        }
        // An access is usable by the session if any flow may take it.
        let joined = schedule(std::slice::from_ref(&decision));
        for choice in &decision.order {
            prop_assert_eq!(joined.of(&choice.access).rank, Some(choice.rank));
        }
    }
}
