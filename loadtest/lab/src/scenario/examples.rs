//! Examples for the fields of a scenario file, for errors about them.

use toml_errors::FileError;

use super::error::ScenarioError;

/// By field; the first one stands for all others.
const EXAMPLES: [(&str, &str); 28] = [
    (
        "interfaces",
        "[[interfaces]] with name, [interfaces.to_server] and [interfaces.to_client]",
    ),
    ("name", "name = \"wifi\""),
    ("seed", "seed = 1"),
    ("direction", "direction = \"download\""),
    ("bytes", "bytes = 20000000"),
    ("streams", "streams = 1"),
    ("controller", "controller = \"ours\""),
    ("limit_s", "limit_s = 120.0"),
    ("vitals", "vitals = { interval_ms = 100, bytes = 200 }"),
    (
        "mix",
        "mix = { video = { kbit = 950.0, frames_per_s = 30.0, seconds = 60.0 } }",
    ),
    (
        "buffers",
        "buffers = { send_bytes = 262144, receive_bytes = 262144 }",
    ),
    ("trunk_mbit", "trunk_mbit = 20.0"),
    ("competitors", "competitors = [\"cubic\"]"),
    (
        "compare",
        "compare = { seeds = [1, 2], controllers = [\"cubic\"] }",
    ),
    ("to_server", "[interfaces.to_server]"),
    ("to_client", "[interfaces.to_client]"),
    ("rate", "rate = { mbit = 12.5 }"),
    ("delay_ms", "delay_ms = 12.5"),
    ("delay_steps", "delay_steps = [[4.0, 100.0]]"),
    ("jitter_ms", "jitter_ms = 5.0"),
    ("reorder", "reorder = true"),
    ("duplicate", "duplicate = 0.01"),
    ("corrupt", "corrupt = 0.001"),
    ("queue_bytes", "queue_bytes = 150000"),
    ("loss", "loss = { random = 0.01 }"),
    ("loss_steps", "loss_steps = [[4.0, 0.02]]"),
    ("changes", "changes = [[15.0, false], [20.0, true]]"),
    ("announced", "announced = true"),
];

/// A text that is no scenario, with its line, what is written there, and an example.
pub(super) fn refusal(text: &str, error: &toml::de::Error) -> ScenarioError {
    ScenarioError::Toml(FileError::of_toml(text, error, &EXAMPLES).to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scenario::Scenario;

    const TEXT: &str = include_str!("../../scenarios/two-links.toml");

    fn refused(from: &str, to: &str) -> String {
        assert!(TEXT.contains(from), "{from}");
        let text = TEXT.replacen(from, to, 1);
        Scenario::from_toml(&text).unwrap_err().to_string()
    }

    #[test]
    fn a_value_of_another_kind_is_refused_with_line_and_example() {
        for (from, to, line, example) in [
            ("bytes = 20000000", "bytes = \"x\"", 5, "bytes = 20000000"),
            ("seed = 1", "seed = -1", 3, "seed = 1"),
            (
                "\"download\"",
                "\"sideways\"",
                4,
                "direction = \"download\"",
            ),
            ("delay_ms = 12.5", "delay = 12.5", 13, "delay_ms = 12.5"),
            ("limit_s = 120.0", "limit = 120.0", 7, "limit_s = 120.0"),
            ("[[interfaces]]", "[[interfaces]", 9, "[[interfaces]]"),
        ] {
            let error = refused(from, to);
            let place = format!("line {line}: ");
            assert!(
                error.starts_with(&place) && error.contains("for example"),
                "{error}"
            );
            assert!(error.ends_with(example) || from.starts_with('['), "{error}");
        }
    }

    /// An example that is refused itself would be no help.
    #[test]
    fn examples_are_taken() {
        for (field, example) in EXAMPLES {
            if example.starts_with('[') {
                continue;
            }
            // Fields of the scenario stand before its first table, others within it.
            let line = TEXT
                .lines()
                .find(|line| line.split(" = ").next() == Some(field));
            let text = match line {
                Some(line) => TEXT.replacen(line, example, 1),
                None => {
                    let of_scenario = TEXT.replacen("seed = 1", &format!("seed = 1\n{example}"), 1);
                    let of_half = "[interfaces.to_server]\n";
                    let half = TEXT.replacen(of_half, &format!("{of_half}{example}\n"), 1);
                    let of_interface = "name = \"wifi\"\n";
                    let interface =
                        TEXT.replacen(of_interface, &format!("{of_interface}{example}\n"), 1);
                    [of_scenario, half, interface]
                        .into_iter()
                        .find(|text| Scenario::from_toml(text).is_ok())
                        .unwrap_or_else(|| panic!("{example} is refused"))
                }
            };
            Scenario::from_toml(&text).unwrap_or_else(|error| panic!("{example}: {error}"));
        }
    }
}
