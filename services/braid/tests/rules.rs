//! `braid rules` as somebody uses it who writes rules.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn braid(args: &[&str], dir: &Path) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_braid"))
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// A folder with a store. The program prints a line when it makes one, so it exists before.
fn with_store() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    drop(store::SqliteStore::open(&dir.path().join("data")).unwrap());
    let ada = ["register", "patient", "ada", "--name", "Ada"];
    let (code, _, error) = braid(&ada, dir.path());
    assert_eq!(code, 0, "{error}");
    dir
}

#[test]
fn the_built_in_rules_do_what_their_examples_say() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, error) = braid(&["rules", "test"], dir.path());
    assert_eq!(code, 0, "{out}{error}");
    assert!(
        out.contains("as expected") && !out.contains("FAILED"),
        "{out}"
    );
}

#[test]
fn a_reader_who_has_seen_enough_is_no_failure() {
    let dir = with_store();
    for args in [
        &["rules", "test"][..],
        &["rules", "show"],
        &["audit", "--by", "Eve"],
        &["accounts", "list"],
        &["migrate"],
        &["config", "up"],
        &["dead-letters", "list"],
    ] {
        let mut braid = Command::new(env!("CARGO_BIN_EXE_braid"))
            .args(args)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(braid.stdout.take());
        let ended = braid.wait_with_output().unwrap();
        let error = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(
            (ended.status.code(), error.as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn rules_are_shown_changed_checked_and_found_wanting() {
    let dir = tempfile::tempdir().unwrap();
    let (code, shown, _) = braid(&["rules", "show"], dir.path());
    assert_eq!(code, 0);
    // A hospital that finds tachycardia too loud.
    let deaf = shown.replacen("\"limit\": 131.0", "\"limit\": 191.0", 1);
    assert_ne!(shown, deaf);
    std::fs::write(dir.path().join("deaf.json"), &deaf).unwrap();
    let (code, out, error) = braid(&["rules", "check", "deaf.json"], dir.path());
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let (code, out, _) = braid(&["rules", "test", "--rules", "deaf.json"], dir.path());
    assert_eq!(code, 1, "{out}");
    assert!(out.contains("FAILED  case \"tachycardia"), "{out}");
    // And one who cannot spell.
    let broken = shown.replacen("heart-rate\"", "hart-rate\"", 1);
    std::fs::write(dir.path().join("broken.json"), broken).unwrap();
    let (code, _, error) = braid(&["rules", "check", "broken.json"], dir.path());
    assert_eq!(code, 64, "{error}");
    assert!(
        error.contains("hart-rate") && error.contains("broken.json"),
        "{error}"
    );
}

#[test]
fn a_patients_rules_are_put_listed_shown_and_taken_back() {
    let dir = with_store();
    let run = |args: &[&str]| braid(args, dir.path());
    let (_, shown, _) = run(&["rules", "show"]);
    let own = shown.replacen("\"limit\": 131.0", "\"limit\": 141.0", 1);
    assert_ne!(shown, own);
    std::fs::write(dir.path().join("ada.json"), &own).unwrap();
    let signed = ["--by", "Dr. Eve", "--reason", "paced"];
    let put = |head: &[&str]| run(&[&["rules", "put"], head, &signed].concat());
    let (code, out, error) = put(&["ada.json", "--for", "patient:ada"]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    assert!(out.contains("version 1"), "{out}");
    let (_, stored, _) = run(&["rules", "show", "--stored", "patient:ada", "--by", "Eve"]);
    assert_eq!(stored, own, "what was put comes back");
    let (code, out, _) = run(&["rules", "list", "--by", "Eve"]);
    assert_eq!(code, 0);
    for part in ["patient:ada", "version 1", "Z  by Dr. Eve", "paced"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let (_, other, _) = run(&["rules", "list", "--tenant", "other", "--by", "Eve"]);
    assert_eq!(other, "");

    let (code, _, error) = put(&["ada.json", "--for", "patient:adda"]);
    assert_eq!(code, 1, "{error}");
    assert!(
        error.contains("\"adda\" is not in the register; near are ada"),
        "{error}"
    );

    let (code, out, error) = put(&["--none", "--for", "patient:ada"]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let (code, _, error) = run(&["rules", "show", "--stored", "patient:ada", "--by", "Eve"]);
    assert_eq!(code, 1);
    assert!(error.contains("no rules of its own"), "{error}");
    let (_, out, _) = run(&["rules", "list", "patient:ada", "--by", "Eve"]);
    assert_eq!(out.lines().count(), 2, "nothing is forgotten: {out}");
    let (_, log, _) = run(&["audit", "--by", "Eve", "--patient", "ada"]);
    for (row, count) in [("put document", 2), ("read documents", 3)] {
        let row = format!("  {row}  ada  by command line, rules patient:ada");
        assert_eq!(log.matches(&row).count(), count, "{row} in {log}");
    }
    // Without a name the system's user asks.
    assert_eq!(run(&["rules", "list"]).0, 0);
    let (_, log, _) = run(&["audit"]);
    let asked = log.lines().filter(|line| line.contains("read documents"));
    let as_user = asked.filter(|line| line.contains(" (system user)  "));
    assert_eq!(as_user.count(), 1, "{log}");
    let (code, _, error) = put(&["ada.json", "--for", "ward:3"]);
    assert_eq!(code, 1);
    assert!(error.contains("subject"), "{error}");
}

#[test]
fn a_set_with_one_rule_keeps_the_built_in_ones_or_says_that_they_are_lost() {
    let dir = with_store();
    let run = |args: &[&str]| braid(args, dir.path());
    let (_, shown, _) = run(&["rules", "show"]);
    let mut set: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(set["extends"], "built-in");
    let count = set["rules"].as_array().unwrap().len();
    let rules = set["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["id"] == "spo2-low");
    let mut write = |extends: Option<&str>| {
        match extends {
            Some(extends) => set["extends"] = extends.into(),
            None => drop(set.as_object_mut().unwrap().remove("extends")),
        }
        std::fs::write(dir.path().join("one.json"), set.to_string()).unwrap();
    };
    let check = || run(&["rules", "check", "one.json"]);
    let put = || {
        let signed = ["--by", "Dr. Eve", "--reason", "COPD"];
        let head = ["rules", "put", "one.json", "--for", "patient:ada"];
        run(&[&head[..], &signed].concat())
    };
    let lost = "this set has no rule for: fall, news2-high,";
    write(None);
    for (code, _, error) in [check(), put()] {
        assert_eq!(code, 64, "{error}");
        assert!(error.contains(lost) && error.contains("extends"), "{error}");
    }
    write(Some("none"));
    for (code, out, error) in [check(), put()] {
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(out.contains(lost), "{out}");
    }
    write(Some("built-in"));
    for (code, out, error) in [check(), put()] {
        assert_eq!((code, error.as_str()), (0, ""), "{out}");
        assert!(!out.contains("no rule"), "{out}");
    }
    let (_, list, _) = run(&["rules", "list", "patient:ada", "--by", "Eve"]);
    assert!(
        list.contains(&format!("version 2  {count} rules")),
        "{list}"
    );
}

#[test]
fn alerts_are_silenced_by_somebody_for_a_reason_and_for_a_while() {
    let dir = with_store();
    let run = |args: &[&str]| braid(args, dir.path());
    let signed = ["--by", "Eve", "--reason", "charger is coming"];
    let silence = |head: &[&str]| run(&[&["alerts", "silence"], head, &signed].concat());
    let (code, out, error) = silence(&["--patient", "ada", "--hours", "2"]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    let id = out.split(' ').next().unwrap().to_owned();
    let (_, out, _) = run(&["alerts", "silences", "--by", "Eve"]);
    for part in [id.as_str(), "ada", "Eve", "charger is coming"] {
        assert!(out.contains(part), "{part} in {out}");
    }
    let unsilence = |tenant: &str| {
        run(&[
            &["alerts", "unsilence", &id, "--tenant", tenant][..],
            &signed,
        ]
        .concat())
    };
    assert_eq!(unsilence("other").0, 1, "another tenant's");
    let (code, _, error) = unsilence("default");
    assert_eq!((code, error.as_str()), (0, ""));
    assert_eq!(run(&["alerts", "silences", "--by", "Eve"]).1, "");
    for wrong in [["--hours", "0"], ["--hours", "1000"], ["--hours", "1"]] {
        let (code, _, error) = silence(&wrong);
        assert_eq!(
            code, 1,
            "neither patient nor rule, or no such time: {error}"
        );
    }
}

#[test]
fn a_team_is_checked_before_it_is_put() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| braid(args, dir.path());
    let (_, example, _) = run(&["alerts", "team", "example"]);
    std::fs::write(dir.path().join("team.json"), &example).unwrap();
    let (code, out, error) = run(&["alerts", "team", "check", "team.json"]);
    assert_eq!((code, error.as_str()), (0, ""), "{out}");
    std::fs::write(
        dir.path().join("wrong.json"),
        example.replace("nurse-day", "x y"),
    )
    .unwrap();
    let put = |file: &str| {
        run(&[
            "alerts", "team", "put", file, "--by", "Eve", "--reason", "first",
        ])
    };
    let (code, _, error) = put("wrong.json");
    assert_eq!(code, 1);
    assert!(error.contains("contacts.id"), "{error}");
    assert_eq!(put("team.json").0, 0);
    let (_, shown, _) = run(&["alerts", "team", "show", "--by", "Eve"]);
    assert_eq!(shown.trim_end(), example.trim_end());
}

mod replay {
    use std::sync::Arc;

    use contracts::vitals::{Metric, Sample, sample};
    use store::{
        DocumentsStore, PatientEntry, Register, Spo2Scale, SqliteStore, VitalsBatch, VitalsStore,
    };

    use super::*;

    const HOURS: u64 = 3;

    /// Three hours of a heart at 70, with two episodes at 140 of 30 s each. Gives when they begin.
    async fn fill(dir: &Path) -> i64 {
        let store = SqliteStore::open(dir).unwrap();
        let patient = PatientEntry {
            id: "ada".into(),
            tenant: store::DEFAULT_TENANT.into(),
            name: "Ada".into(),
            spo2_scale: Spo2Scale::One,
            ..PatientEntry::default()
        };
        store.put_patient(&patient).await.unwrap();
        let begin_us = (contracts::now_us() - 4 * 3_600_000_000) / 3_600_000_000 * 3_600_000_000;
        let samples: Vec<Sample> = (0..HOURS * 3600)
            .map(|second| {
                let is_ill = [3000, 7000]
                    .iter()
                    .any(|at| (*at..at + 30).contains(&second));
                let mut sample = Sample {
                    device: "belt".into(),
                    gateway: "gateway".into(),
                    patient: "ada".into(),
                    sequence: second + 1,
                    metric: Metric::HeartRate.into(),
                    device_time_us: begin_us + second as i64 * 1_000_000,
                    reading: Some(sample::Reading::Value(if is_ill { 140.0 } else { 70.0 })),
                    ..Sample::default()
                };
                vitals::fill_defaults(&mut sample);
                sample
            })
            .collect();
        for chunk in samples.chunks(2000) {
            let batch = VitalsBatch {
                samples: chunk.to_vec(),
                ..VitalsBatch::default()
            };
            store
                .write_vitals(Arc::new(batch), Vec::new())
                .await
                .unwrap();
        }
        begin_us
    }

    #[tokio::test]
    async fn a_replay_counts_alarms_and_names_what_would_have_been_missed() {
        let dir = tempfile::tempdir().unwrap();
        fill(&dir.path().join("data")).await;
        let (_, shown, _) = braid(&["rules", "show"], dir.path());
        let mut set: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let rules = set["rules"].as_array_mut().unwrap();
        rules.retain(|rule| rule["id"] == "heart-rate-high" || rule["id"] == "battery-low");
        set["extends"] = "none".into();
        std::fs::write(dir.path().join("few.json"), set.to_string()).unwrap();
        let args = [
            "rules", "replay", "--rules", "few.json", "--data", "data", "--json", "--by", "Eve",
        ];
        let (code, out, error) = braid(&args, dir.path());
        assert_eq!(code, 0, "{error}");
        let report: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["samples"], HOURS * 3600);
        assert_eq!(report["patient_days"], HOURS as f64 / 24.0);
        let very_high = &report["rules"]["heart-rate-very-high"];
        assert_eq!(
            (
                &very_high["present"],
                &very_high["proposed"],
                &very_high["missed"]
            ),
            (&2.into(), &0.into(), &2.into())
        );
        assert_eq!(report["proposed_per_patient_day"], 0.0);
        // The same set on both sides misses nothing.
        let (code, out, error) = braid(
            &["rules", "replay", "--data", "data", "--by", "Eve"],
            dir.path(),
        );
        assert_eq!(code, 0, "{error}");
        assert!(
            out.contains("10800 samples") && !out.contains("would have been missed"),
            "{out}"
        );
        let (code, _, error) = braid(
            &[
                "rules",
                "replay",
                "--data",
                "data",
                "--patient",
                "bob",
                "--by",
                "Eve",
            ],
            dir.path(),
        );
        assert_eq!(code, 1);
        assert!(error.contains("no such patient"), "{error}");
    }

    /// Between the two episodes somebody put rules of her own for the patient: the first is judged
    /// by the built-in set.
    #[tokio::test]
    async fn a_replay_compares_with_the_rules_that_were_in_force_then() {
        let dir = tempfile::tempdir().unwrap();
        let begin_us = fill(&dir.path().join("data")).await;
        let mut set = vitals::RuleSet::default_set();
        set.rules.retain(|rule| rule.id == "heart-rate-very-high");
        set.rules[0].id = "hers".into();
        let document = contracts::alerts::Document {
            kind: store::RULES.into(),
            tenant: store::DEFAULT_TENANT.into(),
            subject: "patient:ada".into(),
            version: 1,
            author: "Eve".into(),
            reason: "trial".into(),
            at_us: begin_us + 5000 * 1_000_000,
            body: serde_json::to_string(&set).unwrap(),
            ..contracts::alerts::Document::default()
        };
        let store = SqliteStore::open(&dir.path().join("data")).unwrap();
        store.put_document(&document).await.unwrap();
        drop(store);
        let replay = |more: &[&str]| {
            let args = ["rules", "replay", "--data", "data", "--json", "--by", "Eve"];
            let (code, out, error) = braid(&[&args, more].concat(), dir.path());
            assert_eq!(code, 0, "{error}");
            let report: serde_json::Value = serde_json::from_str(&out).unwrap();
            report["rules"].clone()
        };
        let counts =
            |rule: &serde_json::Value| (rule["present"].as_u64(), rule["proposed"].as_u64());
        // The rules in force on both sides.
        let rules = replay(&[]);
        assert_eq!(counts(&rules["heart-rate-very-high"]), (Some(1), Some(1)));
        assert_eq!(counts(&rules["hers"]), (Some(1), Some(1)));
        // The built-in set, proposed to replace it.
        let (_, shown, _) = braid(&["rules", "show"], dir.path());
        std::fs::write(dir.path().join("built-in.json"), shown).unwrap();
        let rules = replay(&["--rules", "built-in.json"]);
        assert_eq!(counts(&rules["heart-rate-very-high"]), (Some(1), Some(2)));
        assert_eq!(counts(&rules["hers"]), (Some(1), Some(0)));
        // A file on both sides: no document counts.
        let rules = replay(&["--rules", "built-in.json", "--against", "built-in.json"]);
        assert_eq!(counts(&rules["heart-rate-very-high"]), (Some(2), Some(2)));
    }
}
