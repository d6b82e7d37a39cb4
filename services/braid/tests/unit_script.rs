//! `infra/dev/unit.sh` with a fake cargo: which tests it repeats, names and refuses.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

const PASSED: &str = "test result: ok. 1 passed; 0 failed";

/// Output of a target in which these tests failed.
fn failure(tests: &[&str]) -> String {
    let names: String = tests.iter().map(|test| format!("    {test}\n")).collect();
    format!(
        "failures:\n\n---- output ----\n\nfailures:\n{names}\ntest result: FAILED. 0 passed\n\n\
         error: test failed, to rerun pass `-p tunnel --test paths`\n"
    )
}

struct Ran {
    code: i32,
    text: String,
}

/// Runs the script; cargo prints `first`, and fails, and then prints `again` and exits with this
/// status.
fn run(first: &str, again: &str, again_code: i32, list: &str) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    fs::write(at("first"), first).unwrap();
    fs::write(at("again"), again).unwrap();
    fs::write(at("list"), list).unwrap();
    let here = folder.path().display();
    let stand_in = format!(
        "#!/bin/sh\nif [ -e {here}/ran ]; then cat {here}/again; exit {again_code}; fi\n\
         touch {here}/ran; cat {here}/first; exit 101\n"
    );
    fs::write(at("cargo"), stand_in).unwrap();
    fs::set_permissions(at("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/dev/unit.sh");
    let path = format!("{here}:{}", std::env::var("PATH").unwrap());
    let done = Command::new(script)
        .env("PATH", path)
        .env("UNSTEADY_LIST", at("list"))
        .output()
        .unwrap();
    let text = [done.stdout, done.stderr].concat();
    Ran {
        code: done.status.code().unwrap(),
        text: String::from_utf8_lossy(&text).into_owned(),
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
    let killed = "error: test failed, to rerun pass `-p tunnel --test paths`\n";
    let ran = run(killed, "test result: ok. 0 passed", 0, "");
    assert_eq!(ran.code, 101, "{}", ran.text);
    let ran = run(killed, PASSED, 0, "-p tunnel --test paths | a reason\n");
    assert_eq!(ran.code, 0, "{}", ran.text);
}

#[test]
fn a_list_that_is_long_or_gives_no_reason_is_refused() {
    let long: String = (0..6).map(|n| format!("test_{n} | a reason\n")).collect();
    for list in ["lonely_test\n", "lonely_test |\n", "| a reason\n", &long] {
        let ran = run("", "", 0, list);
        assert_eq!(ran.code, 2, "{list}: {}", ran.text);
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
