//! `docs/operate/safety.md` names a control and a test for every cause of every hazard, and each of
//! them exists.

use std::{
    fs,
    path::{Path, PathBuf},
};

const DOCUMENT: &str = "docs/operate/safety.md";
const HEADER: &str = "| cause | control | test |";
/// Hazards that the document must have, as headings of the second level.
const HAZARDS: [&str; 13] = [
    "A due alert is absent",
    "An alert or a reading is with the wrong patient",
    "A reading or an alert has the wrong time",
    "False reassurance",
    "An alert is not visible",
    "Nobody is told",
    "A flood of alarms",
    "The system is wrong about itself",
    "Stale data is taken for new",
    "Units are confused",
    "A silence outlives its reason",
    "Health data reach a stranger",
    "An acknowledgement that nobody made",
];
const OPERATOR: &str = "Left to the operator:";
const NOT_CERTIFIED: &str = "Braid is not a certified medical device.";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Texts in backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Whether the file has a test of this name: a function in Rust and Python, a title elsewhere.
fn has_test(text: &str, file: &str, name: &str) -> bool {
    match Path::new(file).extension().and_then(|it| it.to_str()) {
        Some("rs") => text.contains(&format!("fn {name}(")),
        Some("py") => text.contains(&format!("def {name}(")),
        _ => {
            text.contains(&format!("\"{name}\"")) || text.contains(&format!("alertname: {name}\n"))
        }
    }
}

/// The errors of one row of a hazard's table.
fn check_row(row: &str, read: &impl Fn(&str) -> Option<String>) -> Vec<String> {
    let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
    let [cause, controls, tests] = cells[..] else {
        return vec![format!("{row}: not three cells")];
    };
    let mut wrong = Vec::new();
    if quoted(controls).next().is_none() {
        wrong.push(format!("{cause}: no control"));
    }
    for file in quoted(controls) {
        if read(file).is_none() {
            wrong.push(format!("{cause}: there is no {file}"));
        }
    }
    if quoted(tests).next().is_none() {
        wrong.push(format!("{cause}: no test"));
    }
    for test in quoted(tests) {
        let Some((file, name)) = test.split_once("::") else {
            wrong.push(format!("{cause}: {test} is not FILE::TEST"));
            continue;
        };
        match read(file) {
            None => wrong.push(format!("{cause}: there is no {file}")),
            Some(text) if !has_test(&text, file, name) => {
                wrong.push(format!("{cause}: {file} has no test {name}"));
            }
            Some(_) => {}
        }
    }
    wrong
}

fn check(document: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    if !document.contains(NOT_CERTIFIED) {
        wrong.push(format!("it does not say: {NOT_CERTIFIED}"));
    }
    let sections: Vec<&str> = document.split("\n## ").skip(1).collect();
    for hazard in HAZARDS {
        let section = sections.iter().find(|it| it.lines().next() == Some(hazard));
        let Some(section) = section else {
            wrong.push(format!("no section {hazard:?}"));
            continue;
        };
        let rows: Vec<&str> = section
            .lines()
            .skip_while(|line| *line != HEADER)
            .skip(2)
            .collect();
        let rows: Vec<&str> = rows
            .into_iter()
            .take_while(|line| line.starts_with('|'))
            .collect();
        if rows.is_empty() {
            wrong.push(format!("{hazard}: no row below {HEADER:?}"));
        }
        wrong.extend(rows.iter().flat_map(|row| check_row(row, &read)));
        if !section.contains(OPERATOR) {
            wrong.push(format!(
                "{hazard}: it does not say what is left to the operator"
            ));
        }
    }
    wrong
}

#[test]
fn every_cause_of_a_hazard_has_a_control_and_a_test_that_exist() {
    let root = root();
    let document = fs::read_to_string(root.join(DOCUMENT)).expect("the document of hazards");
    let wrong = check(&document, |file| fs::read_to_string(root.join(file)).ok());
    assert!(wrong.is_empty(), "{DOCUMENT}:\n  {}", wrong.join("\n  "));
}

#[test]
fn a_document_with_missing_controls_or_tests_is_refused() {
    let section = |hazard: &str| {
        format!(
            "\n## {hazard}\n\n{HEADER}\n|---|---|---|\n| cause | `a.rs` | `t.rs::one` |\n\n{OPERATOR} all.\n"
        )
    };
    let good: String = HAZARDS.iter().map(|hazard| section(hazard)).collect();
    let good = format!("# Safety\n\n{NOT_CERTIFIED}\n{good}");
    let read = |file: &str| match file {
        "a.rs" => Some("struct A;".to_owned()),
        "t.rs" => Some("fn one() {}".to_owned()),
        "rules_test.yml" => Some("alertname: NoVitals\n".to_owned()),
        _ => None,
    };
    assert_eq!(check(&good, read), Vec::<String>::new());
    for (from, to) in [
        (NOT_CERTIFIED, ""),
        ("`a.rs`", "`b.rs`"),
        ("`a.rs`", "by care"),
        ("`t.rs::one`", "`t.rs::two`"),
        ("`t.rs::one`", "`u.rs::one`"),
        ("`t.rs::one`", "`t.rs`"),
        ("`t.rs::one`", "by hand"),
        ("`t.rs::one`", "`rules_test.yml::Other`"),
        ("| cause |", "|"),
        (OPERATOR, ""),
        (HAZARDS[0], "Something else"),
    ] {
        assert!(
            !check(&good.replace(from, to), read).is_empty(),
            "{from} -> {to:?}"
        );
    }
    let by_promtool = good.replace("`t.rs::one`", "`rules_test.yml::NoVitals`");
    assert_eq!(check(&by_promtool, read), Vec::<String>::new());
}
