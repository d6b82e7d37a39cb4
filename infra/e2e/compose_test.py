#!/usr/bin/env python3
"""compose_test.py - compose.py's removal of an installation, with a fake docker."""

import os
import pathlib
import stat
import tempfile
import unittest

import compose

# The fake `down` answers each line of the file in turn: "ok", or an error text. The network has
# containers for this many questions.
STAND_IN = """#!/bin/sh
cd %s
case "$*" in
  *" down"*) answer=$(head -n 1 downs); sed -i 1d downs; [ "$answer" = ok ] || { echo "$answer" >&2; exit 1; };;
  "network ls"*) echo net1;;
  "network inspect"*) left=$(cat busy); [ "$left" -gt 0 ] && { echo $((left - 1)) > busy; echo "braid-e2e-secrets-run-1 "; }; exit 0;;
esac
"""
ACTIVE = "failed to remove network braid-e2e_core: has active endpoints"


class Down(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        docker = pathlib.Path(self.folder.name, "docker")
        docker.write_text(STAND_IN % self.folder.name)
        docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
        self.path = os.environ["PATH"]
        os.environ["PATH"] = self.folder.name + ":" + self.path
        compose.REMOVAL_S, compose.REMOVAL_POLL_S = 0.5, 0.01

    def tearDown(self):
        os.environ["PATH"] = self.path
        self.folder.cleanup()

    def down(self, answers, busy):
        pathlib.Path(self.folder.name, "downs").write_text("".join(answer + "\n" for answer in answers))
        pathlib.Path(self.folder.name, "busy").write_text(str(busy))
        compose.Compose(False).down("--timeout", "2")
        return pathlib.Path(self.folder.name, "downs").read_text()

    def test_it_waits_for_containers_that_are_being_removed(self):
        self.assertEqual(self.down([ACTIVE, "ok"], busy=3), "")

    def test_it_is_asked_once_when_nothing_is_wrong(self):
        self.assertEqual(self.down(["ok", "ok"], busy=0), "ok\n")

    def test_another_failure_is_not_repeated(self):
        with self.assertRaisesRegex(SystemExit, "no space"):
            self.down(["no space left on device", "ok"], busy=0)

    def test_containers_that_stay_are_named(self):
        with self.assertRaisesRegex(SystemExit, "braid-e2e-secrets-run-1"):
            self.down([ACTIVE, "ok"], busy=10_000)

    def test_it_gives_up(self):
        with self.assertRaisesRegex(SystemExit, "active endpoints"):
            self.down([ACTIVE] * 5, busy=0)


if __name__ == "__main__":
    unittest.main()
