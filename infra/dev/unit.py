#!/usr/bin/env python3
"""unit.py - runs every Rust test of the workspace.

    unit.py
    unit.py --list    builds the test programs, and prints cargo's messages about them

Cargo builds the targets. This program runs several of them side by side, the longest first, since
most of their time they wait for clocks, engines and kernels. pace.txt says how much of a core each
slow target uses; targets run together while the sum leaves the machine some time. Targets that
measure times of this machine run with no other.

Tests with real engines and clocks can miss a deadline when the machine pauses. So a failed test
runs once more, alone on the machine. A test that fails again has failed. A test that then passes
is named as unsteady, because it may be a rare fault. The run fails all the same unless
unsteady.txt lists the test with a reason, or UNSTEADY_MAX allows so many tests that then pass
REPEATS times more. A target that does not end has failed. It names no test,
so all of its tests run again, and the target may be listed.

At the end the messages of the tests that failed are printed once more, without backtraces.

Variables: BRAID_TEST_CORES, cores that the targets may use together (default: those of the machine);
BRAID_EXECUTED, a file for the tests that passed, which hazards.py reads; BRAID_TEST_PROGRAMS, a file
that --list has written, instead of a build; UNSTEADY_LIST and PACE_LIST, other lists; UNSTEADY_MAX, unsteady
tests without an entry in the list that do not fail the run (default: none)."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPEATS = 3  # further runs alone of a test that UNSTEADY_MAX may allow
FAILED_MAX = 5  # more failures are not repeated
LISTED_MAX = 5  # a longer list is refused, since it would hide faults
TARGET_SECONDS_MAX = 1500  # the longest target takes a tenth of it
SLOWEST = 20  # targets that are listed with their seconds
ALONE = "alone"
BESIDE_MAX = 4  # targets at once, since each may start engines and takes their memory
SECONDS_UNKNOWN, CORES_UNKNOWN = 5, 0.6
MESSAGE_LINES_MAX = 60  # of one failed test, at the end
TIMES = pathlib.Path(os.environ.get("BRAID_CACHE", pathlib.Path.home() / ".cache/braid")) / "test-seconds.json"

say = threading.Lock()


def entries(file):
    for line in file.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def unsteady_list(file):
    """{test: reason}. A line is `TEST | REASON`."""
    reasons = {}
    for line in entries(file):
        name, _, reason = (part.strip() for part in line.partition("|"))
        if not name or not reason:
            sys.exit('%s: a line is "TEST | REASON", and both are needed: %s' % (file, line))
        reasons[name] = reason
    if len(reasons) > LISTED_MAX:
        sys.exit("%s: %d tests are listed, and at most %d may be" % (file, len(reasons), LISTED_MAX))
    return reasons


def pace_list(file):
    """{target: (seconds, cores or `ALONE`, threads or `None`)}."""
    paces = {}
    for line in entries(file):
        name, *rest = (part.strip() for part in line.split("|"))
        try:
            seconds, cores, *threads = rest
            paces[name] = (float(seconds), cores if cores == ALONE else float(cores), int(*threads) if threads else None)
        except (ValueError, TypeError):
            sys.exit('%s: a line is "TARGET | SECONDS | CORES | THREADS": %s' % (file, line))
    return paces


def messages():
    """Cargo's messages, a line each."""
    # A test of this program must not inherit the list: it would run every test again.
    listed = os.environ.pop("BRAID_TEST_PROGRAMS", None)
    if listed:
        return pathlib.Path(listed).read_text()
    command = ["cargo", "test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(built.returncode)
    return built.stdout


def build():
    """The test programs as (name, program, folder). Cargo's own messages go to stderr."""
    targets = []
    for line in messages().splitlines():
        if not line.startswith("{"):
            continue
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable") or not message["profile"]["test"]:
            continue
        manifest = pathlib.Path(message["manifest_path"])
        kind, name = message["target"]["kind"][0], message["target"]["name"]
        option = {"test": "--test " + name, "bin": "--bin " + name, "example": "--example " + name}.get(kind, "--lib")
        package = message["package_id"].rpartition("/")[2].partition("#")[2] or manifest.parent.name
        package = package.partition("@")[0] if "@" in package else manifest.parent.name
        source = pathlib.Path(message["target"]["src_path"])
        # The files of tests of two crates may have the same name.
        parent = HERE.parents[1] if kind == "test" else manifest.parent
        source = source.relative_to(parent) if source.is_relative_to(parent) else source
        targets.append({"name": "%s %s" % (package, option), "program": message["executable"], "folder": manifest.parent, "source": source, "is_unit": kind != "test"})
    return targets


def run(target, arguments=()):
    """(status, output, seconds, cores). The whole process group ends with a target that takes too long."""
    environment = {**os.environ, "CARGO_MANIFEST_DIR": str(target["folder"])}
    if target["threads"]:
        environment["RUST_TEST_THREADS"] = str(target["threads"])
    began = time.monotonic()
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen([target["program"], *arguments], cwd=target["folder"], env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        is_late = threading.Event()

        def end():
            is_late.set()
            os.killpg(process.pid, signal.SIGKILL)

        limit = threading.Timer(int(os.environ.get("TARGET_SECONDS_MAX", TARGET_SECONDS_MAX)), end)
        limit.start()
        # Its processes count if the target waits for them.
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        limit.cancel()
        seconds = time.monotonic() - began
        file.seek(0)
        output = file.read().decode(errors="replace")
    if is_late.is_set():
        output += "\nthe target did not end in time\n"
    return process.returncode, output, seconds, (used.ru_utime + used.ru_stime) / max(seconds, 0.1)


def head(target):
    kind = "unittests " if target["is_unit"] else ""
    return "     Running %s%s (%s)" % (kind, target["source"], target["program"])


def report(target, status, output, seconds, cores):
    """Passed tests are not printed one by one."""
    lines = [line for line in output.splitlines() if not re.match(r"test .* \.\.\. ok$", line)]
    text = "\n".join(line for line in lines if line.strip()) if status == 0 else output
    with say:
        print("%s\n%s\n  %s: %.0f s" % (head(target), text, "ok" if status == 0 else "FAILED", seconds), flush=True)


def failed_tests(output):
    names, found = [], []
    for line in output.splitlines():
        if line == "failures:":
            found = []
        elif re.match(r"    [A-Za-z0-9_:]+$", line):
            found.append(line.strip())
        elif line.startswith("test result: FAILED"):
            names += found
    return sorted(set(names))


def failed_messages(output):
    """What each failed test printed: [(test, lines)], without backtraces."""
    found, lines = [], None
    in_trace = False
    for line in output.splitlines():
        begins = re.match(r"---- (\S+) stdout ----$", line)
        if begins:
            lines, in_trace = [], False
            found.append((begins.group(1), lines))
        elif line == "failures:" or line.startswith("test result:"):
            lines = None
        elif lines is not None and line.strip():
            in_trace = line == "stack backtrace:" or in_trace and re.match(r" +(\d+: |at )", line) is not None
            if not in_trace:
                lines.append(line)
    return found


def say_failures(failed):
    print("\nfailed:")
    for target, _, output, *_ in failed:
        for test, lines in failed_messages(output) or [("a test of it", output.splitlines())]:
            print("  %s, %s" % (target["name"], test))
            print("\n".join("    " + line for line in lines[-MESSAGE_LINES_MAX:]))


def run_all(targets, cores):
    """Every result as (target, status, output, seconds, cores)."""
    waiting = sorted(targets, key=lambda target: -target["seconds"])
    results, running = [], []
    turn = threading.Condition()

    def one(target):
        done = run(target)
        report(target, *done)
        with turn:
            results.append((target, *done))
            if target in running:
                running.remove(target)
            turn.notify()

    def first_that_fits():
        used = sum(target["cores"] for target in running)
        for target in waiting:
            if target["cores"] != ALONE and (not running or len(running) < BESIDE_MAX and used + target["cores"] <= cores):
                return target
        return None

    with turn:
        while any(target["cores"] != ALONE for target in waiting) or running:
            target = first_that_fits()
            if target is None:
                turn.wait()
                continue
            waiting.remove(target)
            running.append(target)
            threading.Thread(target=one, args=(target,)).start()
    for target in waiting:
        one(target)
    return results


def executed(mode, results):
    """Writes the tests that passed, for hazards.py."""
    if os.environ.get("BRAID_EXECUTED"):
        with open(os.environ["BRAID_EXECUTED"], mode) as file:
            for target, output in results:
                passed = [line for line in output.splitlines() if re.match(r"test .* \.\.\. ok$", line)]
                file.write("\n".join([head(target), *passed]) + "\n")


def keep(results):
    """The tests that passed, and the seconds, for the next run's order."""
    executed("w", [(target, output) for target, _, output, *_ in results])
    seconds = {target["name"]: round(seconds, 1) for target, _, _, seconds, _ in results}
    TIMES.parent.mkdir(parents=True, exist_ok=True)
    TIMES.write_text(json.dumps(seconds, indent=1))
    print("\nthe slowest of %d targets:" % len(results))
    for target, _, _, took, cores in sorted(results, key=lambda it: -it[3])[:SLOWEST]:
        print("  %6.1f s %4.1f cores  %s" % (took, cores, target["name"]))


def repeat(failed, reasons):
    """Names of unsteady tests that no list excuses; `None`: a test failed again."""
    unlisted = []
    for target, _, output, *_ in failed:
        tests = failed_tests(output)
        for name in tests or [target["name"]]:
            print("\nfailed, once more alone: %s" % name, flush=True)
        status, again, *_ = run(target, ["--exact", "--test-threads=1", *tests])
        print(again, flush=True)
        executed("a", [(target, again)])
        # A killed target names no test, so running none of its tests is no pass.
        if status != 0 or not re.search(r"^test result: ok\. [1-9]", again, re.M):
            return None
        for name in tests or [target["name"]]:
            listed = reasons.get(name)
            print("unsteady, failed beside others and passed alone: %s%s" % (name, " (listed: %s)" % listed if listed else ""))
            if not listed:
                unlisted.append(name)
                if any(run(target, ["--exact", "--test-threads=1", *tests])[0] != 0 for _ in range(REPEATS)):
                    return None
    return unlisted


def main():
    if sys.argv[1:] == ["--list"]:
        sys.stdout.write(messages())
        return 0
    list_file = pathlib.Path(os.environ.get("UNSTEADY_LIST", HERE / "unsteady.txt"))
    reasons = unsteady_list(list_file)
    paces = pace_list(pathlib.Path(os.environ.get("PACE_LIST", HERE / "pace.txt")))
    targets = build()
    unknown = paces.keys() - {target["name"] for target in targets}
    if unknown:
        sys.exit("pace.txt names targets that do not exist: %s" % ", ".join(sorted(unknown)))
    known = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    for target in targets:
        seconds, target["cores"], target["threads"] = paces.get(target["name"], (SECONDS_UNKNOWN, CORES_UNKNOWN, None))
        target["seconds"] = known.get(target["name"], seconds)
    results = run_all(targets, float(os.environ.get("BRAID_TEST_CORES", os.cpu_count())))
    keep(results)
    counts = [re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", output, re.M) for _, _, output, *_ in results]
    passed, wrong = (sum(int(pair[at]) for found in counts for pair in found) for at in (0, 1))
    failed = [result for result in results if result[1] != 0]
    print("%d passed, %d failed" % (passed, wrong), flush=True)
    if not failed:
        return 0
    tests = [name for result in failed for name in failed_tests(result[2])]
    unlisted = None
    if len(failed) <= FAILED_MAX and len(tests) <= FAILED_MAX:
        unlisted = repeat(failed, reasons)
    say_failures(failed)
    if unlisted is None:
        return 101
    allowed = int(os.environ.get("UNSTEADY_MAX", 0))
    if unlisted and len(unlisted) <= allowed:
        print("TO MEND: unsteady, and allowed by UNSTEADY_MAX=%d: %s" % (allowed, ", ".join(unlisted)))
        return 0
    if unlisted:
        print("FAILED: %d unsteady and not in %s. Mend the test or its subject; list it with a reason only if neither is possible." % (len(unlisted), list_file))
        return 101
    return 0


if __name__ == "__main__":
    sys.exit(main())
