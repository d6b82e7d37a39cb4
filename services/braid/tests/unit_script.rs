//! `infra/dev/unit.py` with a fake cargo: which tests it repeats, names and refuses.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const PASSED: &str = "test a_cut_path_comes_back ... ok\ntest result: ok. 1 passed; 0 failed\n";
const TARGET: &str = "tunnel --test paths";

/// Output of a target in which these tests failed.
fn failure(tests: &[&str]) -> String {
    let names: String = tests.iter().map(|test| format!("    {test}\n")).collect();
    format!(
        "failures:\n\n---- output ----\n\nfailures:\n{names}\ntest result: FAILED. 0 passed; 1 failed\n"
    )
}

struct Ran {
    code: i32,
    text: String,
    executed: String,
}

/// Runs the script. Cargo builds one target, which prints `first` and fails, and the next time
/// prints `again` and exits with this status.
fn run(first: &str, again: &str, again_code: i32, list: &str) -> Ran {
    let first_code = if first == PASSED { 0 } else { 101 };
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("first"), first).unwrap();
    fs::write(folder.path().join("again"), again).unwrap();
    let target = format!(
        "if [ -e ran ]; then cat again; exit {again_code}; fi\n\
         touch ran; cat first; exit {first_code}\n"
    );
    let pace = format!("# nothing else\n{TARGET} | 1 | alone\n");
    run_in(folder.path(), &[("paths", &target)], list, &pace)
}

/// Runs the script with these targets, as (name, lines of a shell in the folder).
fn run_in(folder: &Path, targets: &[(&str, &str)], list: &str, pace: &str) -> Ran {
    let at = |name: &str| -> PathBuf { folder.join(name) };
    let write_program = |name: &str, lines: &str| {
        fs::write(at(name), format!("#!/bin/sh\n{lines}")).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::write(at("list"), list).unwrap();
    fs::write(at("pace"), pace).unwrap();
    let here = folder.display();
    let mut cargo = "cat <<'END'\n".to_owned();
    for (name, lines) in targets {
        write_program(&format!("{name}-0a1b"), lines);
        let artifact = serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file://{here}#tunnel@0.1.0"),
            "manifest_path": at("Cargo.toml"),
            "target": { "kind": ["test"], "name": name, "src_path": at(&format!("tests/{name}.rs")) },
            "profile": { "test": true },
            "executable": at(&format!("{name}-0a1b")),
        });
        cargo += &format!("{artifact}\n");
    }
    write_program("cargo", &format!("{cargo}END\n"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/dev/unit.py");
    let path = format!("{here}:{}", std::env::var("PATH").unwrap());
    let done = Command::new(script)
        .env("PATH", path)
        .env("UNSTEADY_LIST", at("list"))
        .env("PACE_LIST", at("pace"))
        .env("BRAID_TEST_CORES", "1")
        .env("BRAID_CACHE", folder)
        .env_remove("BRAID_TEST_PROGRAMS")
        .env_remove("UNSTEADY_MAX")
        .envs(fs::read_to_string(at("allowed")).map(|max| ("UNSTEADY_MAX", max)))
        .env("BRAID_EXECUTED", at("executed"))
        .output()
        .unwrap();
    let text = [done.stdout, done.stderr].concat();
    Ran {
        code: done.status.code().unwrap(),
        text: String::from_utf8_lossy(&text).into_owned(),
        executed: fs::read_to_string(at("executed")).unwrap_or_default(),
    }
}

const TEST: &str = "a_cut_path_comes_back";

#[test]
fn a_test_that_passes_only_when_repeated_is_named_and_fails_the_run() {
    let ran = run(&failure(&[TEST]), PASSED, 0, "# nothing\n");
    assert_eq!(ran.code, 101, "{}", ran.text);
    let named = format!("unsteady, failed beside others and passed alone: {TEST}");
    assert!(ran.text.contains(&named), "{}", ran.text);
    assert!(ran.text.contains("FAILED: 1 unsteady"), "{}", ran.text);
}

#[test]
fn few_unsteady_tests_that_then_pass_each_time_may_be_allowed() {
    let runs = |allowed: &str, again_code: i32| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        at("first", &failure(&[TEST]));
        at("again", PASSED);
        at("allowed", allowed);
        // The first run beside others fails, the second one passes, and the later ones as asked.
        let target = format!(
            "if [ -e again-ran ]; then cat again; exit {again_code}; fi\n\
             if [ -e ran ]; then touch again-ran; cat again; exit 0; fi\n\
             touch ran; cat first; exit 101\n"
        );
        let pace = format!("{TARGET} | 1 | alone\n");
        run_in(folder.path(), &[("paths", &target)], "# nothing\n", &pace)
    };
    let ran = runs("1", 0);
    assert_eq!(ran.code, 0, "{}", ran.text);
    assert!(ran.text.contains("TO MEND: unsteady"), "{}", ran.text);
    assert!(ran.executed.contains(TEST), "it passed: {}", ran.executed);
    assert_eq!(runs("0", 0).code, 101, "none is allowed");
    assert_eq!(
        runs("1", 101).code,
        101,
        "it fails now and then, also alone"
    );
}

#[test]
fn a_test_that_is_listed_with_a_reason_is_named_and_passes() {
    let list = format!("# comment\n\n{TEST} | the kernel's timer is coarse\n");
    let ran = run(&failure(&[TEST]), PASSED, 0, &list);
    assert_eq!(ran.code, 0, "{}", ran.text);
    let reason = "(listed: the kernel's timer is coarse)";
    assert!(ran.text.contains(reason), "{}", ran.text);
    let both = failure(&[TEST, "another"]);
    let ran = run(&both, PASSED, 0, &list);
    assert_eq!(ran.code, 101, "the other one is not listed: {}", ran.text);
}

#[test]
fn a_test_that_fails_again_has_failed_whatever_is_listed() {
    let list = format!("{TEST} | a reason\n");
    let ran = run(&failure(&[TEST]), &failure(&[TEST]), 101, &list);
    assert_eq!(ran.code, 101);
    assert!(!ran.text.contains("unsteady,"), "{}", ran.text);
}

#[test]
fn a_killed_target_that_runs_no_test_again_has_failed() {
    let killed = "the target did not end in time\n";
    let ran = run(killed, "test result: ok. 0 passed; 0 failed", 0, "");
    assert_eq!(ran.code, 101, "{}", ran.text);
    let ran = run(killed, PASSED, 0, &format!("{TARGET} | a reason\n"));
    assert_eq!(ran.code, 0, "{}", ran.text);
}

#[test]
fn a_list_that_is_long_or_gives_no_reason_is_refused() {
    let long: String = (0..6).map(|n| format!("test_{n} | a reason\n")).collect();
    for list in ["lonely_test\n", "lonely_test |\n", "| a reason\n", &long] {
        let ran = run(PASSED, "", 0, list);
        assert_eq!(ran.code, 1, "{list}: {}", ran.text);
    }
}

#[test]
fn the_list_of_this_tree_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/dev/unsteady.txt");
    let ran = run(
        &failure(&[TEST]),
        PASSED,
        0,
        &fs::read_to_string(folder).unwrap(),
    );
    assert_eq!(ran.code, 101, "{}", ran.text);
}

#[test]
fn a_good_run_lists_what_passed_and_how_long_it_took() {
    let ran = run(PASSED, "", 0, "");
    assert_eq!(ran.code, 0, "{}", ran.text);
    assert!(ran.text.contains("1 passed, 0 failed"), "{}", ran.text);
    assert!(ran.text.contains(&format!("s  {TARGET}")), "{}", ran.text);
    assert!(ran.executed.contains(TEST), "{}", ran.executed);
}

#[test]
fn targets_run_together_while_they_leave_the_machine_time() {
    // Each passes if the other one runs meanwhile.
    let sees = |own: &str, other: &str| {
        format!(
            "touch {own}.here; for turn in 1 2 3 4 5 6 7 8 9 10; do\n\
             [ ! -e {other}.here ] || {{ printf '{PASSED}'; exit 0; }}; sleep 0.2; done; exit 101\n"
        )
    };
    for (cores, code) in [("0.5", 0), ("0.6", 101), ("alone", 101)] {
        let folder = tempfile::tempdir().unwrap();
        let (first, second) = (sees("first", "second"), sees("second", "first"));
        let pace =
            format!("tunnel --test first | 2 | {cores} | 4\ntunnel --test second | 1 | {cores}\n");
        let ran = run_in(
            folder.path(),
            &[("first", &first), ("second", &second)],
            "",
            &pace,
        );
        assert_eq!(ran.code, code, "{cores}: {}", ran.text);
    }
}

#[test]
fn a_list_of_paces_that_cannot_be_read_or_names_another_target_is_refused() {
    for (pace, says) in [
        ("tunnel --test paths | 1\n", "TARGET | SECONDS"),
        ("tunnel --test paths | 1 | much\n", "TARGET | SECONDS"),
        ("tunnel --test gone | 1 | 0.5\n", "do not exist"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let ran = run_in(folder.path(), &[("paths", "exit 0\n")], "", pace);
        assert_eq!(ran.code, 1, "{pace}: {}", ran.text);
        assert!(ran.text.contains(says), "{pace}: {}", ran.text);
    }
}

/// A log that is cut off shows its end.
#[test]
fn what_a_failed_test_said_is_printed_last_and_without_its_backtrace() {
    let said = "late by 7 s\n  left: 8\n right: 1";
    let output = format!(
        "failures:\n\n---- {TEST} stdout ----\n\nthread '{TEST}' panicked at a.rs:1:2:\n{said}\n\
         stack backtrace:\n   0: core::panicking::panic\n             at ./a.rs:1:2\n\
         note: some details are omitted\n\n\n\
         failures:\n    {TEST}\n\ntest result: FAILED. 0 passed; 1 failed\n"
    );
    let ran = run(&output, PASSED, 0, "");
    let (_, end) = ran.text.rsplit_once("\nfailed:\n").unwrap();
    assert!(end.starts_with(&format!("  {TARGET}, {TEST}\n")), "{end}");
    assert!(
        end.contains("    late by 7 s\n      left: 8\n     right: 1\n"),
        "{end}"
    );
    assert!(!end.contains("core::panicking"), "{end}");
}
