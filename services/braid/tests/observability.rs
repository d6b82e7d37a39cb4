//! Monitoring matches the platform: rules and dashboards use existing metrics, and each rule has
//! its runbook and its figures on a panel.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn dashboards() -> Vec<(String, Value)> {
    let folder = root().join("infra/grafana/dashboards");
    let mut found: Vec<(String, Value)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&text).unwrap())
        })
        .collect();
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// Every `braid_...` in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("braid_"))
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect()
}

/// Metrics that the sources write, as literals.
fn written() -> BTreeSet<String> {
    fn walk(folder: &Path, into: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                if path.file_name().is_some_and(|name| name != "node_modules") {
                    walk(&path, into);
                }
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let literals = text.split('"').skip(1).step_by(2);
                into.extend(literals.flat_map(metrics));
            }
        }
    }
    let mut found = BTreeSet::new();
    for folder in ["services", "loadtest"] {
        walk(&root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "only {} metrics found", found.len());
    found
}

#[test]
fn rules_and_dashboards_ask_for_metrics_that_are_written() {
    let written = written();
    let mut asked = BTreeSet::new();
    let rules = read("infra/prometheus/rules.yml");
    for line in rules.lines().filter(|line| line.contains("expr:")) {
        // The next test checks names given as a pattern.
        if !line.contains("__name__") {
            asked.extend(metrics(line));
        }
    }
    for (_, dashboard) in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                asked.extend(metrics(target["expr"].as_str().unwrap_or_default()));
            }
        }
    }
    asked.extend(metrics(&read("infra/runbooks.md")));
    assert!(asked.len() > 20, "{asked:?}");
    let unknown: Vec<&String> = asked.difference(&written).collect();
    assert!(unknown.is_empty(), "nobody writes {unknown:?}");
}

/// `braid_(a|b)_c|braid_d` gives its three names.
fn alternatives(pattern: &str) -> Vec<String> {
    let mut names = vec![String::new()];
    let mut rest = pattern;
    let mut done = Vec::new();
    while let Some(c) = rest.chars().next() {
        rest = &rest[1..];
        match c {
            '|' => done.append(&mut std::mem::replace(&mut names, vec![String::new()])),
            '(' => {
                let (inside, after) = rest.split_once(')').unwrap();
                rest = after;
                names = names
                    .iter()
                    .flat_map(|name| inside.split('|').map(move |part| format!("{name}{part}")))
                    .collect();
            }
            c => names.iter_mut().for_each(|name| name.push(c)),
        }
    }
    done.append(&mut names);
    done
}

#[test]
fn patterns_of_names_in_rules_name_metrics_that_are_written() {
    assert_eq!(alternatives("a_(b|c)_d|e"), ["a_b_d", "a_c_d", "e"]);
    let written = written();
    let rules = read("infra/prometheus/rules.yml");
    let mut seen = 0;
    for part in rules.split("__name__=~\"").skip(1) {
        for name in alternatives(part.split('"').next().unwrap()) {
            // The metrics of Envoy are checked on a real one (`envoy_bounds`).
            if name.starts_with("braid_") {
                seen += 1;
                assert!(written.contains(&name), "nobody writes {name}");
            }
        }
    }
    assert!(seen > 5, "{seen} names in patterns");
}

/// The metrics of the expressions in a text, with those that patterns name.
fn figures(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut plain, mut found) = (String::new(), BTreeSet::new());
    for (n, part) in text.split("__name__=~\"").enumerate() {
        let rest = if n == 0 {
            part
        } else {
            let (pattern, rest) = part.split_once('"').unwrap();
            found.extend(alternatives(pattern));
            rest
        };
        plain.push_str(rest);
    }
    let words = plain.split(|c| !is_name(c));
    let whole = words.filter(|word| !word.ends_with('_'));
    let metrics = whole.filter(|word| word.starts_with("braid_") || word.starts_with("envoy_"));
    found.extend(metrics.map(str::to_owned));
    // The label of Envoy's metrics.
    found.remove("envoy_listener_address");
    found
}

#[test]
fn the_dashboard_platform_shows_the_figures_of_every_rule() {
    let sample = figures(r#"max({__name__=~"braid_(a|b)_c"}) > 0 or sum(braid_d[2m])"#);
    assert_eq!(
        sample.iter().collect::<Vec<_>>(),
        ["braid_a_c", "braid_b_c", "braid_d"]
    );
    let rules = read("infra/prometheus/rules.yml");
    let mut asked = BTreeSet::new();
    for rule in rules.split("- alert:").skip(1) {
        let expression = rule.split_once("expr:").unwrap().1;
        // An expression may have several lines; the labels follow it.
        asked.extend(figures(expression.split("labels:").next().unwrap()));
    }
    assert!(asked.len() > 30, "{asked:?}");
    let mut shown = BTreeSet::new();
    let dashboards = dashboards();
    let (_, platform) = dashboards.iter().find(|it| it.0 == "platform").unwrap();
    for panel in platform["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            shown.extend(figures(target["expr"].as_str().unwrap_or_default()));
        }
    }
    let missing: Vec<&String> = asked.difference(&shown).collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
}

#[test]
fn every_rule_has_its_section_in_the_runbooks_and_every_section_its_rule() {
    let rules = read("infra/prometheus/rules.yml");
    let after =
        |line: &str, key: &str| line.trim().strip_prefix(key).map(|it| it.trim().to_owned());
    let alerts: BTreeSet<String> = rules
        .lines()
        .filter_map(|line| after(line, "- alert:"))
        .collect();
    let links: BTreeSet<String> = rules
        .lines()
        .filter_map(|line| after(line, "runbook: infra/runbooks.md#"))
        .collect();
    let runbooks = read("infra/runbooks.md");
    let sections: BTreeSet<String> = runbooks
        .lines()
        .filter_map(|line| after(line, "## "))
        .collect();
    assert!(alerts.len() > 8, "{alerts:?}");
    assert_eq!(alerts, sections);
    let anchors: BTreeSet<String> = sections.iter().map(|it| it.to_lowercase()).collect();
    assert_eq!(links, anchors);
    let tests = read("infra/prometheus/rules_test.yml");
    for alert in &alerts {
        assert!(
            tests.contains(&format!("alertname: {alert}")),
            "{alert} has no test"
        );
    }
}

#[test]
fn dashboards_have_fixed_names_units_and_known_sources() {
    let sources = read("infra/grafana/provisioning/datasources/braid.yml");
    let dashboards = dashboards();
    let names: Vec<&str> = dashboards.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["alerts", "paths", "platform", "ward"]);
    for (name, dashboard) in &dashboards {
        assert_eq!(dashboard["uid"], format!("braid-{name}"));
        let annotations = dashboard["annotations"]["list"].as_array().unwrap();
        assert!(!annotations.is_empty(), "{name} has no annotation");
        let links = dashboard["links"].as_array().unwrap();
        assert!(
            links.iter().any(|link| link["url"] == "${page}"),
            "{name} does not lead to the page"
        );
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_i64()), "{name} / {title}: id");
            let uid = panel["datasource"]["uid"].as_str().unwrap();
            assert!(
                sources.contains(&format!("uid: {uid}\n")),
                "{name} / {title}: {uid}"
            );
            let kind = panel["type"].as_str().unwrap();
            let has_unit = panel["fieldConfig"]["defaults"]["unit"].is_string();
            assert!(
                has_unit || matches!(kind, "table" | "state-timeline"),
                "{name} / {title} has no unit"
            );
        }
    }
}
