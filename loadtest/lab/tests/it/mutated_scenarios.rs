//! Scenario files that somebody mistyped, or means badly: each one is refused with field, line and
//! an example, or runs within its bounds.

use lab::scenario::{Scenario, ScenarioError};
use lab::{Identity, Mechanisms, run_within};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const FILES: u64 = 1_300;
/// Steps of time of each file that is accepted.
const TURNS_MAX: u64 = 6_000;

const STEPS: &str = r#"
name = "steps"
seed = 3
direction = "download"
bytes = 200000
streams = 2
controller = "ours"
competitors = ["cubic"]
limit_s = 20.0

[vitals]
interval_ms = 250
bytes = 200

[[interfaces]]
name = "wifi"
announced = true
address_changes = [[1.0, "translated"], [2.0, "own"]]
[interfaces.to_server]
rate = { steps = [[0.0, 12.5], [1.0, 3.0], [2.0, 0.0], [2.5, 8.0]] }
delay_ms = 12.5
jitter_ms = 2.0
reorder = true
duplicate = 0.01
corrupt = 0.01
queue_bytes = 64000
loss = { bursts = { mean = 0.02, packets = 8.0 } }
changes = [[0.5, false], [1.5, true]]
[interfaces.to_client]
rate = { mbit = 20.0 }
delay_ms = 12.5
loss = { random = 0.02 }

[[interfaces]]
name = "lte"
shares = 0
[interfaces.to_server]
rate = { mbit = 8.0 }
delay_ms = 35.0
[interfaces.to_client]
rate = { mbit = 8.0 }
delay_ms = 35.0
"#;

const CHAOS: &str = r#"
name = "chaos"
seed = 4
bytes = 100000
limit_s = 20.0

[chaos]
streams = 8
until_s = 5.0
pause_ms = 50.0
path_changes = 4

[[interfaces]]
name = "wifi"
[interfaces.to_server]
rate = { mbit = 8.0 }
delay_ms = 20.0
[interfaces.to_client]
rate = { mbit = 8.0 }
delay_ms = 20.0
"#;

const TRACE: &str = r#"
name = "trace"
bytes = 100000
limit_s = 20.0

[[interfaces]]
name = "drive"
[interfaces.to_server]
rate = { mbit = 8.0 }
delay_ms = 20.0
[interfaces.to_client]
rate = { trace = { file = "FILE", start_ms = 10 } }
delay_ms = 20.0
"#;

/// Texts that people and machines write in place of a fraction.
const FRACTIONS: [&str; 19] = [
    "-1.0", "-0.0", "0.0", "nan", "-nan", "inf", "-inf", "1e308", "-1e308", "1e-308", "1e-5",
    "0.5", "0.999", "1.0", "3.7", "90.0", "1000.0", "60000.0", "100000.0",
];
/// And of a whole number.
const WHOLES: [&str; 14] = [
    "-1",
    "0",
    "1",
    "2",
    "7",
    "40",
    "3000",
    "50000",
    "60000000",
    "1000000000",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
];

fn mutate(text: &str, random: &mut ChaCha8Rng) -> String {
    let mut text = text.to_owned();
    for _ in 0..random.random_range(1..=2) {
        let is_number = |byte: u8| byte.is_ascii_digit() || byte == b'.';
        let bytes = text.as_bytes();
        let begins = |at: &usize| {
            is_number(bytes[*at]) && bytes[*at - 1] != b'_' && !is_number(bytes[*at - 1])
        };
        let numbers: Vec<usize> = (1..bytes.len()).filter(begins).collect();
        match random.random_range(0..10) {
            0 => {
                let lines: Vec<&str> = text.lines().collect();
                let gone = random.random_range(0..lines.len());
                let kept = lines.iter().enumerate().filter(|(line, _)| *line != gone);
                text = kept.map(|(_, line)| format!("{line}\n")).collect();
            }
            1 => {
                let at = random.random_range(0..text.len());
                text.replace_range(at..=at, "]");
            }
            _ if !numbers.is_empty() => {
                let at = numbers[random.random_range(0..numbers.len())];
                let length = bytes[at..].iter().take_while(|byte| is_number(**byte));
                let end = at + length.count();
                let is_fraction = text[at..end].contains('.');
                let odd: &[&str] = if is_fraction { &FRACTIONS } else { &WHOLES };
                let number = odd[random.random_range(0..odd.len())];
                text.replace_range(at..end, number);
            }
            _ => {}
        }
    }
    text
}

#[test]
fn a_mutated_file_is_refused_or_runs_within_its_bounds() {
    let identity = Identity::new().unwrap();
    let (mut refused, mut ran) = (0, 0);
    let folder = tempfile::tempdir().unwrap();
    let (drive, odd) = (folder.path().join("drive"), folder.path().join("odd"));
    std::fs::write(&drive, "1\n2\n2\n90\n").unwrap();
    std::fs::write(&odd, "1\n18446744073709551615\n").unwrap();
    for seed in 0..FILES {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let text = mutate([STEPS, CHAOS, TRACE][(seed % 3) as usize], &mut random);
        let trace = if seed % 2 == 0 { &drive } else { &odd };
        let text = text.replace("FILE", &trace.display().to_string());
        // Shown when a run panics.
        println!("seed {seed}\n{text}");
        match Scenario::from_toml(&text) {
            Ok(scenario) => {
                ran += 1;
                // The file of a trace is all that is left to refuse.
                match run_within(&scenario, &identity, Mechanisms::default(), TURNS_MAX) {
                    Ok(_) | Err(ScenarioError::Read { .. } | ScenarioError::Trace { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            Err(ScenarioError::InvalidLine {
                line,
                field,
                reason,
            }) => {
                refused += 1;
                assert!(line >= 1 && line <= text.lines().count() + 1, "{field}");
                assert!(reason.contains("example"), "{field}: {reason}");
            }
            Err(ScenarioError::Toml(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 200 && ran > 200, "{refused} refused, {ran} ran");
}

#[test]
fn a_refusal_names_field_line_and_an_example() {
    for (was, is, line, field) in [
        ("limit_s = 20.0", "limit_s = nan", 9, "limit_s"),
        ("limit_s = 20.0", "limit_s = inf", 9, "limit_s"),
        ("bytes = 200000", "bytes = 1000000000000", 5, "bytes"),
        (
            "interval_ms = 250",
            "interval_ms = 0",
            12,
            "vitals.interval_ms",
        ),
        (
            "jitter_ms = 2.0",
            "jitter_ms = -2.0",
            22,
            "interfaces[0].to_server.jitter_ms",
        ),
        (
            "[1.0, 3.0]",
            "[1e300, 3.0]",
            20,
            "interfaces[0].to_server.rate.steps[1]",
        ),
        (
            "[2.5, 8.0]",
            "[2.5, -8.0]",
            20,
            "interfaces[0].to_server.rate.steps[3]",
        ),
        (
            "packets = 8.0",
            "packets = inf",
            27,
            "interfaces[0].to_server.loss.bursts.packets",
        ),
        (
            "[1.5, true]",
            "[0.1, true]",
            28,
            "interfaces[0].to_server.changes",
        ),
        (
            "mbit = 20.0",
            "mbit = nan",
            30,
            "interfaces[0].to_client.rate.mbit",
        ),
    ] {
        let text = STEPS.replace(was, is);
        let error = Scenario::from_toml(&text).unwrap_err();
        let ScenarioError::InvalidLine {
            line: at,
            field: of,
            reason,
        } = error
        else {
            panic!("{is}: {error}");
        };
        assert_eq!((at, of.as_str()), (line, field), "{is}");
        assert!(reason.contains("example"), "{is}: {reason}");
    }
}

#[test]
fn what_is_no_file_of_text_is_refused_at_once() {
    for file in ["/dev/zero", "/", "no/such/file"] {
        let error = Scenario::from_file(file.as_ref()).unwrap_err();
        assert!(error.to_string().contains(file), "{error}");
    }
}
