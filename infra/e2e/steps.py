"""Helpers of the cluster's scenes: commands that must succeed, bounded waits, figures."""

import subprocess
import sys
import time

# No figure depends on these; the machine may be busy.
COMMAND_S_MAX, PATIENCE_S = 900, 300


def say(text):
    print("e2e-cluster: " + text, flush=True)


def figure(what, value):
    say("%-58s %s" % (what, value))


def run(*command, given=None, timeout=COMMAND_S_MAX):
    try:
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        sys.exit("%s did not end within %d s" % (" ".join(command), timeout))
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))
    return done.stdout


def eventually(what, holds, within_s=PATIENCE_S):
    deadline = time.monotonic() + within_s
    while True:
        why = None
        try:
            if holds():
                return
        except (SystemExit, OSError, ValueError, IndexError) as failure:
            why = failure
        if time.monotonic() > deadline:
            sys.exit("not within %d s: %s%s" % (within_s, what, " (%s)" % why if why else ""))
        time.sleep(0.5)
