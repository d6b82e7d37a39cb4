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
    let at = |name: &str| -> PathBuf { folder.path().join(name) };
    fs::write(at("first"), first).unwrap();
    fs::write(at("again"), again).unwrap();
    fs::write(at("list"), list).unwrap();
    fs::write(at("alone"), format!("# nothing else\n{TARGET}\n")).unwrap();
    let here = folder.path().display();
    let target = format!(
        "#!/bin/sh\nif [ -e {here}/ran ]; then cat {here}/again; exit {again_code}; fi\n\
         touch {here}/ran; cat {here}/first; exit {first_code}\n"
    );
    let artifact = serde_json::json!({
        "reason": "compiler-artifact",
        "package_id": format!("path+file://{here}#tunnel@0.1.0"),
        "manifest_path": at("Cargo.toml"),
        "target": { "kind": ["test"], "name": "paths", "src_path": at("tests/paths.rs") },
        "profile": { "test": true },
        "executable": at("paths-0a1b"),
    });
    let cargo = format!("#!/bin/sh\ncat <<'END'\n{artifact}\nEND\n");
    for (name, script) in [("paths-0a1b", target), ("cargo", cargo)] {
        fs::write(at(name), script).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/dev/unit.py");
    let path = format!("{here}:{}", std::env::var("PATH").unwrap());
    let done = Command::new(script)
        .env("PATH", path)
        .env("UNSTEADY_LIST", at("list"))
        .env("ALONE_LIST", at("alone"))
        .env("BRAID_CACHE", folder.path())
        .env_remove("BRAID_TEST_PROGRAMS")
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
