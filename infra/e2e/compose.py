#!/usr/bin/env python3
"""compose.py - docker-compose.yml on a real Docker engine (`make e2e-compose`).

A first start; samples from a sensor, read back through the page's API; a cut of each access network
in turn while samples go on; a stop and a start without loss. Project, networks and ports differ from
those of an installation on this machine. All of it except the images is removed at the end.

    compose.py [--keep] [--registry] [--pictures FOLDER]

--keep leaves it running. --pictures draws each dashboard of Grafana from the results of its queries
(Chromium). --registry also runs Grafana and the OpenTelemetry collector, whose images only a
registry has."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "infra/grafana"))
import panels
from page import Page, now_us
PROJECT = "braid-e2e"
PAGE, SENSORS, PROMETHEUS = 18443, 18090, 19090
ENVIRONMENT = {
    "COMPOSE_PROJECT_NAME": PROJECT, "NET": "10.88", "PAGE_PORT": str(PAGE), "SENSORS_PORT": str(SENSORS),
    "PROMETHEUS_PORT": str(PROMETHEUS), "PROXY_PORT": "14433", "GRAFANA_PORT": "13000",
}
# Seconds of the wait. The promise is 60 s; this machine may be busy, so the wait is longer and the
# figure is printed.
HEALTHY_S, HEALTHY_S_MAX = 60, 240
IMAGE_MB_MAX = 60
# Longest time of the engine to remove a network's containers, and the interval of questions.
REMOVAL_S, REMOVAL_POLL_S = 30, 0.2
DOWNS_MAX = 3
# Longest wait for samples on their way to the page.
PATIENCE_S = 120
BATCH = 120

missed = []


def say(text):
    print("e2e-compose: " + text, flush=True)


def attempt(command, **options):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                          env={**os.environ, **ENVIRONMENT}, **options)


def fail(command, done):
    sys.exit("e2e-compose: %s ended with %d:\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))


def run(command, **options):
    done = attempt(command, **options)
    if done.returncode != 0:
        fail(command, done)
    return done.stdout


class Compose:
    def __init__(self, registry):
        self.command = ["docker", "compose", "-f", "docker-compose.yml"]
        if not registry:
            self.command += ["-f", "infra/airgap/compose.yml"]

    def __call__(self, *arguments):
        return run(self.command + list(arguments))

    def down(self, *arguments):
        """The engine may still be removing containers, including those of `run --rm`, when compose
        removes their network. Then compose is asked again once no container is left on it. Any other
        failure counts."""
        command = self.command + ["down", *arguments]
        for _ in range(DOWNS_MAX):
            done = attempt(command)
            if done.returncode == 0:
                return
            if "has active endpoints" not in done.stderr:
                break
            left = until_networks_are_empty()
            if left:
                sys.exit("e2e-compose: after %d s these containers are still on the networks of %s: %s"
                         % (REMOVAL_S, PROJECT, ", ".join(left)))
        fail(command, done)

    def secret(self, name):
        return self("run", "--rm", "-T", "--no-deps", "secrets", "show", name).strip()

    def up(self, what):
        start = time.monotonic()
        self("up", "--detach", "--wait", "--wait-timeout", str(HEALTHY_S_MAX))
        took = time.monotonic() - start
        say("%-34s healthy after %5.1f s (target %d)" % (what, took, HEALTHY_S))
        if took > HEALTHY_S:
            missed.append("%s: healthy after %.1f s, target %d" % (what, took, HEALTHY_S))
        return took


def until_networks_are_empty():
    """Waits until the containers on the project's networks are gone; returns the names of others."""
    deadline = time.monotonic() + REMOVAL_S
    while True:
        networks = run(["docker", "network", "ls", "--quiet", "--filter", "label=com.docker.compose.project=" + PROJECT]).split()
        # A network may be removed between the two questions.
        asked = [attempt(["docker", "network", "inspect", "--format", "{{range .Containers}}{{.Name}} {{end}}", network])
                 for network in networks]
        left = sorted({name for answer in asked if answer.returncode == 0 for name in answer.stdout.split()})
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(REMOVAL_POLL_S)


def sign_in(compose):
    authority = compose("exec", "-T", "envoy", "cat", "/etc/braid/identity/ca.pem")
    return Page(("127.0.0.1", PAGE), authority, compose.secret("administrator"))


class Sensor:
    """Sends batches until they are acknowledged, and counts them."""

    def __init__(self, token):
        self.token, self.sent = token, set()

    def fall_ill(self):
        """Minutes of a low oxygen saturation at once, as from a sensor's memory: rules run on event time,
        so a notice is sent."""
        self.post([{"device": "guest-sensor", "metric": "spo2", "value": 82, "device_time_us": now_us() - age * 1_000_000}
                   for age in range(BATCH, 0, -1)])

    def send(self):
        begin = now_us() - BATCH * 1000
        times = {begin + number * 1000 for number in range(BATCH)}
        self.post([{"device": "guest-sensor", "metric": "heart-rate", "value": 60 + at // 1000 % 20, "device_time_us": at}
                   for at in sorted(times)])
        self.sent |= times

    def post(self, samples):
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        request = urllib.request.Request("http://127.0.0.1:%d/v1/samples" % SENSORS, data=lines.encode(),
                                         headers={"authorization": "Bearer " + self.token})
        with urllib.request.urlopen(request, timeout=30) as answer:
            told = json.load(answer)
        if told["accepted"] != BATCH:
            sys.exit("e2e-compose: the gateway accepted %r of %d" % (told, BATCH))


def read_back(page, sensor, since_us, what):
    start = time.monotonic()
    while True:
        try:
            missing = sensor.sent - page.times_us("guest", since_us)
        except (urllib.error.URLError, OSError) as error:
            missing, why = sensor.sent, error
        else:
            why = "%d of %d are missing" % (len(missing), len(sensor.sent))
        if not missing:
            say("%-34s all %d read back after %.1f s" % (what, len(sensor.sent), time.monotonic() - start))
            return
        if time.monotonic() - start > PATIENCE_S:
            sys.exit("e2e-compose: %s: not within %d s: %s" % (what, PATIENCE_S, why))
        time.sleep(0.2)


def prometheus_sees(registry):
    wanted = {"gateway", "proxy", "envoy", "ingest", "alerting", "path-telemetry", "dashboard", "swarm"} | ({"otel-collector"} if registry else set())
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/query?query=up==1" % PROMETHEUS, timeout=10) as answer:
            up = {entry["metric"]["job"] for entry in json.load(answer)["data"]["result"]}
        if wanted <= up:
            say("prometheus scrapes %s" % ", ".join(sorted(up)))
            return
        if time.monotonic() > deadline:
            sys.exit("e2e-compose: prometheus does not see %s" % ", ".join(sorted(wanted - up)))
        time.sleep(0.5)


def dashboards(compose, since, pictures):
    """Every query of every dashboard on the real database with Grafana's role, and on the real
    Prometheus."""
    reader = compose.secret("store-reader")

    def psql(sql):
        return compose("exec", "-T", "-e", "PGPASSWORD=" + reader, "timescaledb", "psql", "-qAtv", "ON_ERROR_STOP=1", "-c", sql,
                       "host=timescaledb dbname=braid user=braid_grafana sslmode=verify-full sslrootcert=/run/braid/ca.pem")

    def question(sql):
        try:
            return psql(sql)
        except SystemExit as failure:
            raise ValueError(failure.code) from None
    deadline = time.monotonic() + PATIENCE_S
    while True:
        until = time.time()
        sources = panels.Sources(question, "http://127.0.0.1:%d" % PROMETHEUS, since, until)
        found, complaints, asked = panels.run_all(sources)
        if not complaints:
            break
        # Roll-ups, rates and alerts need some time after the first samples.
        if time.monotonic() > deadline:
            sys.exit("e2e-compose: dashboards:\n  " + "\n  ".join(complaints))
        time.sleep(2)
    say("dashboards: %d queries and %d panels answered" % (asked, sum(len(panels_) for panels_ in found.values())))
    for table in ("accounts", "samples", "audit"):
        try:
            question("SELECT count(*) FROM %s" % table)
        except ValueError:
            continue
        sys.exit("e2e-compose: Grafana's role reads %s" % table)
    for board in panels.dashboards() if pictures else []:
        file = pathlib.Path(pictures).resolve() / (board["uid"] + ".png")
        file.parent.mkdir(parents=True, exist_ok=True)
        panels.picture(board, found[board["uid"]], since, until, "chromium", str(file))
        say("picture: %s" % file)


def scene(compose, registry, pictures):
    compose.down("--volumes", "--remove-orphans", "--timeout", "2")
    compose.up("first start, empty volumes")
    since_us = now_us() - 3_600_000_000
    begun = time.time()
    sensor, page = Sensor(compose.secret("sensors")), sign_in(compose)
    sensor.send()
    read_back(page, sensor, since_us, "both networks")
    sensor.fall_ill()
    prometheus_sees(registry)
    for network in ("wifi", "lte"):
        compose("exec", "-T", network, "netlab", "cut")
        sensor.send()
        read_back(page, sensor, since_us, network + " cut without notice")
        wait_for_path(compose, network, carries=False)
        compose("exec", "-T", network, "netlab", "restore")
        sensor.send()
        read_back(page, sensor, since_us, network + " restored")
        # The next cut must leave a working path: the gateway has both again when both carry
        # packets.
        wait_for_path(compose, network, carries=True)

    dashboards(compose, begun - 150, pictures)

    # Samples accepted during an outage of all networks are on the gateway's disk, and survive a
    # restart.
    for network in ("wifi", "lte"):
        compose("exec", "-T", network, "netlab", "cut")
    sensor.send()
    start = time.monotonic()
    compose.down("--timeout", "10")
    say("%-34s after %5.1f s" % ("down", time.monotonic() - start))
    compose.up("second start, the same volumes")
    page = sign_in(compose)
    read_back(page, sensor, since_us, "after down and up")
    sensor.send()
    read_back(page, sensor, since_us, "and goes on")


def wait_for_path(compose, network, carries):
    """Waits until the gateway reports that the path carries packets, or that it does not, by the rows of
    path-telemetry."""
    question = ("SELECT count(*) FROM paths_view WHERE path = '%s' AND end_of = 1 AND received_bytes > 0 "
                "AND time > now() - interval '3 seconds'" % network)
    deadline = time.monotonic() + PATIENCE_S
    while (compose("exec", "-T", "timescaledb", "psql", "-U", "postgres", "-d", "braid", "-Atc", question).strip() != "0") != carries:
        if time.monotonic() > deadline:
            sys.exit("e2e-compose: %s %s" % (network, "does not come back" if carries else "carries packets although it is cut"))
        time.sleep(0.5)


def house_rules(compose):
    """Properties of every service: bounds, no privileges, a health check beyond an open port, and no
    password in a file."""
    services = json.loads(compose("config", "--format", "json"))["services"]
    jobs, broken = {"secrets", "setup"}, []
    for name, service in services.items():
        for bound in ("mem_limit", "pids_limit", "cpus"):
            if not service.get(bound):
                broken.append("%s has no %s" % (name, bound))
        if service.get("cap_drop") != ["ALL"] or service.get("privileged"):
            broken.append("%s keeps capabilities" % name)
        if name not in jobs | {"otel-collector"} and not service.get("healthcheck"):
            broken.append("%s has no health check" % name)
        for key, value in (service.get("environment") or {}).items():
            if "PASSWORD" in key and not key.endswith("FILE"):
                broken.append("%s has a password in its environment: %s" % (name, key))
    if len(services) < 15 or broken:
        sys.exit("e2e-compose: %d services; %s" % (len(services), "; ".join(broken)))


def main():
    arguments = argparse.ArgumentParser(description="docker-compose.yml on a real Docker engine")
    arguments.add_argument("--keep", action="store_true", help="leave it running")
    arguments.add_argument("--registry", action="store_true", help="run Grafana and the collector too")
    arguments.add_argument("--pictures", metavar="FOLDER", help="draw each dashboard")
    chosen = arguments.parse_args()
    compose = Compose(chosen.registry)
    try:
        if not chosen.registry:
            say("without grafana and otel-collector: no registry, no image of theirs")
        size_mb = int(run(["docker", "image", "inspect", "-f", "{{.Size}}", "braid"])) / 1e6
        if "/debug/" in os.environ.get("BRAID_BINARY", ""):
            say("image braid: %.1f MB around a debug binary (the target of %d is for a release)" % (size_mb, IMAGE_MB_MAX))
        else:
            say("image braid: %.1f MB (target %d)" % (size_mb, IMAGE_MB_MAX))
            if size_mb > IMAGE_MB_MAX:
                missed.append("image braid: %.1f MB, target %d" % (size_mb, IMAGE_MB_MAX))
        house_rules(compose)
        scene(compose, chosen.registry, chosen.pictures)
    except SystemExit as failure:
        print(failure.code, file=sys.stderr)
        logs = subprocess.run(compose.command + ["logs", "--tail", "8"], cwd=ROOT, env={**os.environ, **ENVIRONMENT},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
        print(logs, file=sys.stderr)
        raise
    finally:
        if not chosen.keep:
            compose.down("--volumes", "--remove-orphans", "--timeout", "2")
    for target in missed:
        say("MISSED " + target)
    say("passed")


if __name__ == "__main__":
    main()
