#!/usr/bin/env python3
"""upgrade.py - the upgrade from the last release and the way back, with both programs
(`make e2e-upgrade`).

`braid up` of the release is filled and killed while its gateway has no network. The new program takes
over store, bus and journal. Then the release runs again on its own copy of the store, with the bus
and the journal of the new program. No reading may be missing or doubled, and no alert raised twice.

    upgrade.py [--release TAG] [--old FILE] [--new FILE]

--release is a tag, by default the last one; its program is built once, below target/upgrade.
--old takes a program that is built already. --new is by default target/debug/braid."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Longest wait for a start, and for readings on their way to the store.
PATIENCE_S, POLL_S = 90, 0.2
SENSOR = "guest-sensor"
ROWS = """SELECT COUNT(*), COUNT(DISTINCT v.sensor_sequence)
    FROM samples v JOIN streams s ON s.key = v.stream WHERE s.device = ?"""
ILL = "patient-1"


def say(text):
    print("e2e-upgrade: " + text, flush=True)


def fail(text):
    sys.exit("e2e-upgrade: " + text)


def run(command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        fail("%s ended with %d:\n%s%s" % (" ".join(map(str, command)), done.returncode, done.stdout, done.stderr))
    return done.stdout.strip()


def build(release):
    """The program of a release, from a tree of its own."""
    folder = ROOT / "target/upgrade" / release
    tree, program = folder / "tree", folder / "target/debug/braid"
    if program.is_file():
        return program
    if not (tree / "Cargo.toml").is_file():
        run(["git", "worktree", "prune"], cwd=ROOT)
        run(["git", "worktree", "add", "--detach", tree, release], cwd=ROOT)
    say("building %s, which takes some minutes once" % release)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "target")}
    done = subprocess.run(["cargo", "build", "--locked", "-p", "braid", "--bin", "braid"], cwd=tree, env=environment)
    if done.returncode != 0:
        fail("%s does not build: cargo ended with %d" % (release, done.returncode))
    return program


class Up:
    """`braid up` of one of the two programs on the data directory of the trial."""

    def __init__(self, program, data):
        self.program, self.data = program, data
        addresses = data / "up.json"
        addresses.unlink(missing_ok=True)
        self.log = open(data.parent / "up.log", "a")
        options = [option for name in ("listen", "sensors", "admin") for option in ("--" + name, "127.0.0.1:0")]
        self.process = subprocess.Popen([program, "up", "--patients", "2", "--data", data] + options,
                                        stdout=self.log, stderr=subprocess.STDOUT)
        self.until("the start", addresses.exists)
        self.sensors = json.loads(addresses.read_text())["sensors"]

    def until(self, what, is_true):
        deadline = time.monotonic() + PATIENCE_S
        while not is_true():
            if self.process.poll() is not None:
                fail("%s ended at %s:\n%s" % (self.program, what, self.tail()))
            if time.monotonic() > deadline:
                fail("%s: %s did not come within %d s:\n%s" % (self.program, what, PATIENCE_S, self.tail()))
            time.sleep(POLL_S)

    def tail(self):
        return (self.data.parent / "up.log").read_text()[-2000:]

    def braid(self, *words):
        return run([self.program, *words, "--data", self.data])

    def alerts(self):
        """Ids of the alerts of the illness."""
        listed = json.loads(self.braid("alerts", "list", "--all", "--json"))
        listed = listed if isinstance(listed, list) else listed["alerts"]
        return {it["id"] for it in listed if it["patient"] == ILL and it["rule"].startswith("heart-rate")}

    def send(self, number):
        line = {"device": SENSOR, "metric": "heart-rate", "value": 72, "sensor_sequence": number,
                "device_time_us": time.time_ns() // 1000}
        request = urllib.request.Request("http://%s/v1/samples" % self.sensors, json.dumps(line).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            answer.read()

    def stored(self, count):
        self.until("reading %d in the store" % count, lambda: rows(self.data) == (count, count))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(timeout=PATIENCE_S)
        if status != 0:
            fail("%s ended with %d:\n%s" % (self.program, status, self.tail()))


def rows(data):
    """None before the first service has created the tables."""
    try:
        with sqlite3.connect("file:%s?mode=ro" % (data / "store.db"), uri=True, timeout=5) as store:
            return store.execute(ROWS, (SENSOR,)).fetchone()
    except sqlite3.OperationalError:
        return None


def trial(old, new, data, copy):
    up = Up(old, data)
    for number in range(1, 11):
        up.send(number)
    up.stored(10)
    up.braid("episode", ILL, "tachycardia")
    up.until("an alert", up.alerts)
    for access in ("wifi", "lte"):
        up.braid("link", "cut", access)
    for number in range(11, 21):
        up.send(number)
    up.kill()
    run([old, "backup", "make", copy, "--data", data])
    say("the release was killed with %d readings in its store and 10 in its journal" % rows(data)[0])

    up = Up(new, data)
    up.stored(20)
    up.send(21)
    up.stored(21)
    alerts = up.alerts()
    up.end()
    say("the new program has all 21 readings once, and %d alerts" % len(alerts))

    # Everything is sent, and the release may not read the journals of the new program.
    for journal in data.glob("gateways/*/journal"):
        shutil.rmtree(journal)
    for file in ("store.db", "store.db-wal", "store.db-shm"):
        (data / file).unlink(missing_ok=True)
    shutil.copy(copy / "store.db", data / "store.db")
    up = Up(old, data)
    up.stored(21)
    up.send(22)
    up.stored(22)
    up.until("every alert", lambda: alerts <= up.alerts())
    again = up.alerts()
    up.end()
    if again != alerts:
        fail("alerts were raised again on the way back: %s" % ", ".join(again - alerts))
    say("the release runs again with all 22 readings once, and the same %d alerts" % len(again))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release")
    parser.add_argument("--old", type=pathlib.Path)
    parser.add_argument("--new", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug/braid")
    arguments = parser.parse_args()
    if not arguments.new.is_file():
        fail("no program at %s: run `make`, or name one by --new" % arguments.new)
    release = arguments.release
    if not release and not arguments.old:
        release = run(["git", "describe", "--tags", "--abbrev=0"], cwd=ROOT)
    old = arguments.old or build(release)
    with tempfile.TemporaryDirectory(prefix="braid-upgrade-") as folder:
        folder = pathlib.Path(folder)
        data = folder / "data"
        trial(old.resolve(), arguments.new.resolve(), data, folder / "before")
    say("good: %s to %s and back" % (release or arguments.old, run([arguments.new, "--version"])))


if __name__ == "__main__":
    main()
