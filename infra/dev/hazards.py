#!/usr/bin/env python3
"""hazards.py - checks that each test of the hazard log has run and passed (`make test`).

    hazards.py FOLDER     FOLDER has the logs of the steps, target/steps
    hazards.py --self-test

docs/operate/safety.md names tests as FILE::TEST. services/braid/tests/safety.rs checks that they
exist. Here a test that was ignored, filtered out or skipped counts as absent. A Rust test must
have passed in a target of its package, a browser test in the step `page`, and an alert of
Prometheus in the rule tests of the step `dashboards`."""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = "docs/operate/safety.md"
# Where the logs of steps are, and the files whose tests they contain.
RUST, PAGE, RULES = "tests.txt", "page.log", "dashboards.log"


def named(document):
    """(file, test) of every test that a row of the hazard log names."""
    return sorted(set(re.findall(r"`([^`]+?)::([^`]+)`", document)))


def package(file, root):
    """Name of the crate of a source file, as in the names of its test programs."""
    for folder in (root / file).parents:
        manifest = folder / "Cargo.toml"
        if manifest.exists():
            found = tomllib.loads(manifest.read_text()).get("package", {})
            return found.get("name", "").replace("-", "_")
    return ""


def rust_runs(log):
    """Set of (program, test): the program is a crate's name, or a file of tests without `.rs`."""
    program, of_files, runs = "", False, set()
    for line in log.splitlines():
        running = re.match(r" +Running (?:unittests )?(\S+) \(.*/deps/(\w+)-[0-9a-f]+\)", line)
        if running:
            source, name = running.groups()
            # A program of several files has a module for each.
            of_files = "/tests/" in source and source.endswith("/main.rs")
            program = source.removesuffix("/main.rs").removesuffix(".rs") if "/tests/" in source else name
        passed = re.match(r"test (?:(\w+)::)?(?:.*::)?(\w+)(?: - .*)? \.\.\. ok$", line)
        if passed:
            module, test = passed.groups()
            runs.add(("%s/%s" % (program, module) if of_files else program, test))
    return runs


def ran(file, test, root, runs, page, rules):
    if file.endswith(".rs"):
        parts = pathlib.PurePath(file).parts
        if "tests" in parts and "src" not in parts:
            # A file in a folder belongs to the program of the folder's name.
            folder = "/".join(parts[: parts.index("tests") + 2])
            return any((program.removesuffix(".rs"), test) in runs for program in (file, folder))
        # A conformance suite is run by the tests of its engines.
        is_suite = "conformance" in file
        own = package(file, root)
        return any(name == test and (program == own or is_suite and "/tests/" in program) for program, name in runs)
    if file.endswith(".mjs"):
        return re.search(r"^\s*(?:✔|ok \d+ -) " + re.escape(test) + r"(?! .*# SKIP)(?: \([\d.]+ms\))?\s*$", page, re.M) is not None
    # promtool names no single test: the alert is in a file whose tests all passed.
    return "SUCCESS" in rules.partition(pathlib.PurePath(file).name)[2]


def absent(document, root, logs):
    runs = rust_runs(logs.get(RUST, ""))
    page, rules = logs.get(PAGE, ""), logs.get(RULES, "")
    return ["%s::%s" % it for it in named(document) if not ran(*it, root, runs, page, rules)]


def self_test():
    document = "| a | `services/alerting/src/lib.rs` | `services/alerting/src/team.rs::one`, `services/alerting/tests/people.rs::two`, `services/ingest/tests/it/rules.rs::six`, `services/gateway/tests/tun/names.rs::seven`, `services/shared/store/src/conformance/alerts.rs::three`, `a.test.mjs::four and more`, `infra/prometheus/rules_test.yml::Five` |"
    good = {
        RUST: "     Running unittests src/main.rs (target/debug/deps/alerting-0a1b)\n"
        "test team::tests::one ... ok\n"
        "     Running services/alerting/tests/people.rs (target/debug/deps/people-0a1b)\ntest two ... ok\n"
        "     Running services/shared/store/tests/sqlite.rs (target/debug/deps/sqlite-0a1b)\ntest conformance::three ... ok\n"
        "     Running services/ingest/tests/it/main.rs (target/debug/deps/it-0a1b)\ntest rules::six ... ok\n"
        "     Running services/gateway/tests/tun.rs (target/debug/deps/tun-0a1b)\ntest names::seven ... ok\n",
        PAGE: "✔ four and more (12.5ms)\n",
        RULES: "  test rules infra/prometheus/rules_test.yml\n  SUCCESS\n",
    }
    assert absent(document, ROOT, good) == [], absent(document, ROOT, good)
    for log, old, new in [
        (RUST, "one ... ok", "one ... ignored"),
        (RUST, "deps/alerting-", "deps/ingest-"),
        (RUST, "two ... ok", "two_b ... ok"),
        (RUST, "tests/people.rs", "tests/other.rs"),
        (RUST, "three ... ok", "three ... FAILED"),
        (RUST, "services/alerting/tests", "services/braid/tests"),
        (RUST, "test rules::six", "test quota::six"),
        (RUST, "tests/tun.rs", "tests/tun_dns.rs"),
        (PAGE, "✔", "﹣"),
        (RULES, "SUCCESS", "FAILED"),
    ]:
        changed = {**good, log: good[log].replace(old, new)}
        assert len(absent(document, ROOT, changed)) == 1, (log, old, new)
    print("hazards.py: self-test passed")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    logs = {}
    for name in (RUST, PAGE, RULES):
        file = folder / name
        if not file.exists():
            sys.exit("hazards.py: there is no %s; `make test` writes it" % file)
        logs[name] = file.read_text(errors="replace")
    document = (ROOT / DOCUMENT).read_text()
    missing = absent(document, ROOT, logs)
    for test in missing:
        print("%s: %s did not run and pass" % (DOCUMENT, test))
    print("hazards.py: %d of %d tests of the hazard log ran and passed" % (len(named(document)) - len(missing), len(named(document))))
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
