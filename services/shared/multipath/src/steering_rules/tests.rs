#![allow(clippy::unwrap_used)]

use std::time::Duration;

use super::*;

#[path = "cap_tests.rs"]
mod caps;

const TWO: &str = r#"
format = 1

[[access]]
name = "lte"
kind = "cellular"
price_per_gb = 4.0
cap_gb = 5
metered = true

[[rule]]
name = "updates"
match = { destination = ["*.example.org"], port = ["80", "8000-8099"], urgency = ["bulk"] }
mode = "active-standby"
accesses = ["wifi", "ethernet"]

[[rule]]
name = "video"
match = { application = ["user:video"], destination = ["10.0.0.0/8", "2001:db8::/32"] }
mode = "load-balancing"
weights = { wifi = 70, cellular = 30 }

[[rule]]
name = "the rest"
match = { urgency = ["bulk"] }
mode = "priority"
accesses = ["wifi", "cellular"]
rtt_ms_max = 200
loss_max = 0.1
"#;

fn document(text: &str) -> Document {
    Document::from_toml(text, "steering.toml").unwrap()
}

fn states(names: &[&str]) -> Vec<AccessState> {
    names.iter().copied().map(AccessState::usable).collect()
}

fn measured(rtt_ms: u64, rate: f64, month_bytes: u64) -> Measurement {
    Measurement {
        rtt: Some(Duration::from_millis(rtt_ms)),
        loss: Some(0.0),
        rate_bytes_per_s: Some(rate),
        used: Used {
            month_bytes,
            ..Used::default()
        },
    }
}

fn order(decision: &Decision) -> Vec<(&str, Rank)> {
    let choices = decision.order.iter();
    choices
        .map(|choice| (choice.access.as_str(), choice.rank))
        .collect()
}

#[test]
fn the_first_rule_that_matches_decides() {
    let document = document(TWO);
    let rule_for =
        |flow: &Flow| decide(&document, flow, &states(&["wifi"]), &Measurements::new()).rule;
    let bulk = Flow::new("applications", Urgency::Bulk);
    let name = |name: &str| Some(name.to_owned());
    assert_eq!(
        rule_for(&bulk.clone().to("deb.example.org:80")),
        name("updates")
    );
    assert_eq!(
        rule_for(&bulk.clone().to("deb.EXAMPLE.org:8042")),
        name("updates")
    );
    assert_eq!(
        rule_for(&bulk.clone().to("deb.example.org:443")),
        name("the rest")
    );
    assert_eq!(
        rule_for(&bulk.clone().to("example.org:80")),
        name("the rest")
    );
    let video = Flow::new("user:video", Urgency::Prompt);
    assert_eq!(rule_for(&video.clone().to("10.2.3.4:554")), name("video"));
    assert_eq!(
        rule_for(&video.clone().to("[2001:db8::1]:554")),
        name("video")
    );
    assert_eq!(rule_for(&video.to("11.2.3.4:554")), None);
    assert_eq!(rule_for(&Flow::new("vitals", Urgency::Prompt)), None);
}

#[test]
fn each_mode_is_a_row_of_ranks() {
    use Rank::{Active, Spill, Standby};
    let accesses = states(&["lte", "wifi"]);
    let measurements = Measurements::from([
        ("lte".to_owned(), measured(20, 1e6, 0)),
        ("wifi".to_owned(), measured(30, 3e6, 0)),
    ]);
    let decided = |mode: &str| {
        let text = format!(
            "format = 1\n[[rule]]\nname = \"it\"\nmode = \"{mode}\"\naccesses = [\"wifi\", \"lte\"]\n\
             match = {{ urgency = [\"bulk\"] }}\n"
        );
        let flow = Flow::new("tun", Urgency::Bulk);
        decide(&document(&text), &flow, &accesses, &measurements)
    };
    let rows = [
        ("auto", [("wifi", Active), ("lte", Active)], 1, [0.75, 0.25]),
        (
            "active-standby",
            [("wifi", Active), ("lte", Standby)],
            1,
            [1.0, 0.0],
        ),
        (
            "smallest-delay",
            [("lte", Active), ("wifi", Spill)],
            1,
            [1.0, 0.0],
        ),
        (
            "load-balancing",
            [("wifi", Active), ("lte", Active)],
            1,
            [0.75, 0.25],
        ),
        (
            "priority",
            [("wifi", Active), ("lte", Spill)],
            1,
            [1.0, 0.0],
        ),
        (
            "redundant",
            [("lte", Active), ("wifi", Active)],
            2,
            [1.0, 1.0],
        ),
    ];
    for (mode, expected, copies, share) in rows {
        let decision = decided(mode);
        assert_eq!(order(&decision), expected, "{mode}");
        assert_eq!(
            (decision.copies, decision.share.as_slice()),
            (copies, &share[..]),
            "{mode}"
        );
        assert_eq!(decision.mode.name(), mode);
    }
    assert!(decided("auto").gathers && !decided("load-balancing").gathers);
}

#[test]
fn thresholds_put_an_access_behind_the_others() {
    let document = document(TWO);
    let accesses = states(&["wifi", "lte"]);
    let mut slow = Measurements::from([("wifi".to_owned(), measured(250, 1e6, 0))]);
    let bulk = Flow::new("tun", Urgency::Bulk);
    let decision = decide(&document, &bulk, &accesses, &slow);
    assert_eq!(
        order(&decision),
        [("lte", Rank::Active), ("wifi", Rank::Standby)]
    );
    let reason = decision.why[0].reason.to_string();
    assert_eq!(reason, "its round trip of 250 ms is above 200 ms");
    slow.get_mut("wifi").unwrap().rtt = None;
    slow.get_mut("wifi").unwrap().loss = Some(0.2);
    let decision = decide(&document, &bulk, &accesses, &slow);
    assert_eq!(order(&decision)[1], ("wifi", Rank::Standby));
}

#[test]
fn vitals_go_redundantly_while_an_alert_is_raised() {
    let mut vitals = Flow::new("vitals", Urgency::Prompt);
    let accesses = states(&["wifi", "lte"]);
    let copies =
        |flow: &Flow| decide(&Document::default(), flow, &accesses, &Measurements::new()).copies;
    assert_eq!(copies(&vitals), 1);
    vitals.raised = true;
    assert_eq!(copies(&vitals), 2);
}

#[test]
fn without_an_order_the_cheaper_access_comes_first() {
    let text = "format = 1\n[[access]]\nkind = \"cellular\"\nprice_per_gb = 4.0\n\
                [[access]]\nkind = \"satellite\"\nprice_per_gb = 9.0\n\
                [[rule]]\nname = \"cheap\"\nmode = \"priority\"\n";
    let accesses = states(&["sat0", "wwan0", "wlan0"]);
    let decision = decide(
        &document(text),
        &Flow::new("tun", Urgency::Bulk),
        &accesses,
        &Measurements::new(),
    );
    let names: Vec<&str> = decision.order.iter().map(|it| it.access.as_str()).collect();
    assert_eq!(names, ["wlan0", "wwan0", "sat0"]);
}

#[test]
fn an_error_names_the_file_the_line_the_field_the_reason_and_an_example() {
    let refused = |text: &str| Document::from_toml(text, "s.toml").unwrap_err().to_string();
    let cases = [
        (
            "format = 2\n",
            "s.toml: format: 2 is not known; for example: format = 1",
        ),
        (
            "format = 1\n[[rule]]\nname = \"a\"\n\n[[rule]]\nname = \"b\"\nweights = { wifi = 1 }\n",
            "s.toml:5: rule[1] \"b\".weights: mode auto takes none; for example: \
             weights = { wifi = 70, cellular = 30 }",
        ),
        (
            "format = 1\n[[access]]\nname = \"lte\"\ncap_gb = -1\n",
            "s.toml:2: access[0] \"lte\".cap_gb: -1 is not within 0 to 1000000; for example: \
             cap_gb = 5",
        ),
        (
            "format = 1\n[[access]]\nprice_per_gb = 1.0\n",
            "s.toml:2: access[0].name: has neither name nor kind; for example: name = \"lte\"",
        ),
        (
            "format = 1\n[[access]]\nname = \"lte\"\ntime_zone = \"CET-1CEST\"\n",
            "s.toml:2: access[0] \"lte\".time_zone: \"CET-1CEST\" is not an IANA time zone; for \
             example: time_zone = \"Europe/Zurich\"",
        ),
    ];
    for (text, error) in cases {
        assert_eq!(refused(text), error);
    }
    let unknown = refused("format = 1\n[[rule]]\nname = \"a\"\naccess = [\"wifi\"]\n");
    assert!(
        unknown.starts_with("s.toml:4: unknown field `access`"),
        "{unknown}"
    );
    let mode = refused("format = 1\n[[rule]]\nname = \"a\"\nmode = \"fast\"\n");
    assert!(
        mode.starts_with("s.toml:4: unknown variant `fast`"),
        "{mode}"
    );
}

#[test]
fn what_would_harm_is_refused() {
    let rules = [
        "mode = \"redundant\"",
        "match = { urgency = [\"alert\"] }\nmode = \"active-standby\"",
        "accesses = [\"wifi\", \"wifi\"]",
        "mode = \"load-balancing\"\naccesses = [\"wifi\"]\nweights = { lte = 1 }",
        "mode = \"load-balancing\"\nweights = { lte = 0 }",
        "loss_max = 1.5",
        "loss_max = nan",
        "rtt_ms_max = 0",
        "match = { port = [\"99999\"] }",
        "match = { port = [\"20-10\"] }",
        "match = { destination = [\"10.0.0.0/33\"] }",
        "match = { destination = [\"*.\"] }",
        "match = { application = [\"socks\"] }",
        "match = { group = [\"\"] }",
        "match = { group = [\"nowhere\"] }",
    ];
    for rule in rules {
        let text = format!("format = 1\n[[rule]]\nname = \"it\"\n{rule}\n");
        let outcome = Document::from_toml(&text, "s.toml");
        assert!(outcome.is_err(), "{rule}");
    }
    let twice = "format = 1\n[[rule]]\nname = \"a\"\n[[rule]]\nname = \"a\"\n";
    assert!(Document::from_toml(twice, "s.toml").is_err());
    let control = "format = 1\n[[rule]]\nname = \"a\\tb\"\n";
    assert!(Document::from_toml(control, "s.toml").is_err());
    let large = "#".repeat(300_000);
    assert!(Document::from_toml(&large, "s.toml").is_err());
}

#[test]
fn both_forms_of_a_document_mean_the_same() {
    let document = document(TWO);
    assert_eq!(
        Document::from_text(&document.to_json(), "store").unwrap(),
        document
    );
    assert_eq!(
        Document::from_text(&document.to_toml(), "file").unwrap(),
        document
    );
}

#[test]
fn a_session_is_scheduled_by_the_strictest_decision_of_its_flows() {
    use Rank::{Active, Standby};
    let document = document(TWO);
    let accesses = states(&["wifi", "lte"]);
    let nothing = Measurements::new();
    let alert = decide(
        &document,
        &Flow::new("alerts", Urgency::Alert),
        &accesses,
        &nothing,
    );
    let updates = Flow::new("applications", Urgency::Bulk).to("deb.example.org:80");
    let updates = decide(&document, &updates, &accesses, &nothing);
    let ranks = |decisions: &[Decision]| {
        let joined = schedule(decisions);
        ["wifi", "lte"].map(|name| joined.of(name).rank)
    };
    assert_eq!(ranks(&[]), [Some(Active), Some(Active)]);
    assert_eq!(ranks(std::slice::from_ref(&updates)), [Some(Active), None]);
    assert_eq!(
        ranks(&[alert.clone(), updates]),
        [Some(Active), Some(Standby)]
    );
    assert_eq!(schedule(std::slice::from_ref(&alert)).copies, 2);
    assert_eq!(schedule(&[alert.at_rest()]).copies, 1);
}

#[test]
fn vitals_wait_as_the_gateway_or_else_its_tenant_says() {
    let whole = document(
        "format = 1\nfreshness_ms = 1000\n[[gateway]]\nname = \"gw-7\"\nfreshness_ms = 10000\n",
    );
    let of = |document: &Document, gateway: &str| document.freshness_of(gateway);
    assert_eq!(of(&whole, "gw-7"), Some(Duration::from_secs(10)));
    assert_eq!(of(&whole, "gw-8"), Some(Duration::from_secs(1)));
    let single = document("format = 1\n[[gateway]]\nname = \"gw-7\"\nfreshness_ms = 100\n");
    assert_eq!(of(&single, "gw-8"), None);
    assert_eq!(of(&Document::default(), "gw-7"), None);
    assert_eq!(Document::from_toml(&whole.to_toml(), "t").unwrap(), whole);
    assert_eq!(Document::from_json(&whole.to_json(), "t").unwrap(), whole);
    let refused = |text: &str| Document::from_toml(text, "s.toml").unwrap_err().to_string();
    assert_eq!(
        refused("format = 1\nfreshness_ms = 99\n"),
        "s.toml: freshness_ms: 99 is not within 100 to 60000; for example: freshness_ms = 1000"
    );
    let twice = "[[gateway]]\nname = \"gw-7\"\nfreshness_ms = 100\n".repeat(2);
    let twice = refused(&format!("format = 1\n{twice}"));
    assert!(
        twice.starts_with("s.toml:5: gateway[1] \"gw-7\".name: an entry"),
        "{twice}"
    );
}

const GROUPED: &str = "format = 1
[[group]]
name = \"ambulances\"
gateways = [\"gw-7\", \"amb-*\"]

[[group]]
name = \"all\"
gateways = [\"*\"]

[[gateway]]
name = \"gw-7\"
freshness_ms = 500

[[gateway]]
name = \"gw-8\"
freshness_ms = 900

[[rule]]
name = \"moving\"
match = { group = [\"ambulances\"], urgency = [\"bulk\"] }
accesses = [\"lte\"]

[[rule]]
name = \"everywhere\"
match = { group = [\"all\"] }
accesses = [\"wifi\"]
";

#[test]
fn a_gateway_obeys_the_rules_of_its_groups() {
    let whole = document(GROUPED);
    assert_eq!(whole.groups_of("amb-12"), ["ambulances", "all"]);
    let states = ["wifi", "lte"].map(AccessState::usable);
    let flow = |group: Option<&str>| Flow {
        group: group.map(str::to_owned),
        ..Flow::new("applications", Urgency::Bulk)
    };
    for (gateway, rule) in [
        ("gw-7", "moving"),
        ("amb-12", "moving"),
        ("gw-77", "everywhere"),
    ] {
        let own = whole.for_gateway(gateway);
        let decision = decide(&own, &flow(None), &states, &Measurements::new());
        assert_eq!(decision.rule.as_deref(), Some(rule), "{gateway}");
        assert_eq!(own.for_gateway(gateway), own, "a second time");
        assert_eq!(own.freshness_of(gateway), whole.freshness_of(gateway));
        assert!(own.groups.is_empty() && !own.to_json().contains("gw-8"));
        assert_eq!(Document::from_json(&own.to_json(), "store").unwrap(), own);
    }
    let asked = decide(
        &whole,
        &flow(Some("ambulances")),
        &states,
        &Measurements::new(),
    );
    assert_eq!(asked.rule.as_deref(), Some("moving"));
}

#[test]
fn a_wrong_group_is_refused() {
    for (groups, error) in [
        (
            "[[group]]\nname = \"a\"\ngateways = []\n",
            "s.toml:2: group[0] \"a\".gateways: names no gateway",
        ),
        (
            "[[group]]\nname = \"a\"\ngateways = [\"x*y\"]\n",
            "s.toml:2: group[0] \"a\".gateways: \"x*y\" is not 1 to 64",
        ),
        (
            "[[group]]\nname = \"a\"\ngateways = [\"x\"]\n[[group]]\nname = \"a\"\ngateways = [\"y\"]\n",
            "s.toml:5: group[1] \"a\".name: a group before it has the same name",
        ),
        (
            "[[rule]]\nname = \"r\"\nmatch = { group = [\"b\"] }\n",
            "s.toml:2: rule[0] \"r\".match.group: the document has no [[group]] \"b\"",
        ),
    ] {
        let text = format!("format = 1\n{groups}");
        let refused = Document::from_toml(&text, "s.toml")
            .unwrap_err()
            .to_string();
        assert!(refused.starts_with(error), "{refused}");
    }
    let many: Vec<String> = (0..3_000).map(|n| format!("\"gw-{n}\"")).collect();
    let text = format!(
        "format = 1\n[[group]]\nname = \"a\"\ngateways = [{}]\n",
        many.join(", ")
    );
    assert!(Document::from_toml(&text, "s.toml").is_err());
}

#[test]
fn a_time_zone_stays_in_the_document_and_the_default_is_utc() {
    let text = "format = 1\n[[access]]\nname = \"lte\"\ntime_zone = \"America/Havana\"\n\
                [[access]]\nkind = \"wifi\"\n";
    let document = Document::from_toml(text, "s.toml").unwrap();
    let zone_of = |document: &Document, name| document.terms_of(name).0.unwrap().zone();
    assert_eq!(zone_of(&document, "lte").name(), "America/Havana");
    assert_eq!(zone_of(&document, "wifi0").name(), "UTC");
    // A gateway of an older release takes a document without the key, and no other.
    assert_eq!(document.to_json().matches("time_zone").count(), 1);
    for again in [
        Document::from_json(&document.to_json(), "s.json"),
        Document::from_toml(&document.to_toml(), "s.toml"),
    ] {
        assert_eq!(again.unwrap(), document);
    }
}
