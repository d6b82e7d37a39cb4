#!/usr/bin/env python3
"""cluster.py - the charts on a real one-node Kubernetes with running pods, as `make e2e-cluster` runs it (root).

Installs charts/backends and charts/braid; `helm test`; a gateway outside of the cluster sends, and ingest is scaled by its load; each of the
two access networks is cut; every workload is restarted while samples go on; upgrade to another version and back; uninstall. What was accepted must
be stored, once. The cluster (infra/airgap/cluster) is started for it and taken down again, unless it ran already.

    cluster.py [--keep]

--keep leaves cluster and installation running. Images come from the Docker engine: `make images`. $BRAID_BINARY is the gateway outside."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "infra/e2e"))
from page import Page, now_us

CLUSTER = ROOT / "infra/airgap/cluster"
BINARY = os.environ.get("BRAID_BINARY", str(ROOT / "target/release/braid"))
NAMESPACE = "ward"
VERSION = "0.1.0"
# The same programs under another number: what changes hands is the chart and every pod.
NEXT = "0.1.1"
IMAGES = ["apache/kafka:4.1.0", "timescale/timescaledb:2.19.3-pg17", "envoyproxy/envoy:v1.40.0"]
# Two copies of what keeps nothing, as in earnest; processor requests fit one small node.
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
NODE_PORT = 30433
VALUES = {
    "bus": {"replication": 1, "inSyncMin": 1},
    "setup": {"patients": 1},
    "proxy": {"replicas": 2, "service": {"type": "NodePort", "nodePort": NODE_PORT}, "resources": SMALL},
    "envoy": {"replicas": 2, "service": {"type": "ClusterIP"}, "resources": SMALL},
    # `scales` puts the percentage between what it uses idle and under load.
    "ingest": {"replicas": 2, "resources": SMALL, "autoscaling": {"by": "cpu", "replicasMax": 3, "cpuPercent": 100}},
    **{noun: {"replicas": 2, "resources": SMALL} for noun in ("alerting", "path-telemetry", "dashboard")},
}
BACKENDS = {noun: {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}} for noun in ("kafka", "timescaledb")}
WORKLOADS = ["deployment/ingest", "deployment/alerting", "deployment/path-telemetry", "deployment/dashboard", "deployment/envoy", "statefulset/proxy",
             "statefulset/kafka", "statefulset/timescaledb"]
# The gateway's two access networks lead to the node itself; sensors are on a third.
SITE = "braid-site"
NODE_NAMESPACE, NODE_ADDRESS = "braid-kube", "10.210.0.2"
NETWORKS = {"wifi": "10.209.1", "lte": "10.209.2"}
SENSORS = "10.209.3"
# Nothing is measured by these; the machine may be busy.
READY_S_MAX, PATIENCE_S, HELM_S_MAX = 900, 300, 900
BATCH = 20
PAUSE_S = 0.1

figures = []


def say(text):
    print("e2e-cluster: " + text, flush=True)


def figure(what, value):
    figures.append((what, value))
    say("%-58s %s" % (what, value))


def run(*command, given=None, timeout=READY_S_MAX):
    try:
        done = subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        sys.exit("%s did not end within %d s" % (" ".join(command), timeout))
    if done.returncode != 0:
        sys.exit("%s ended with %d:\n%s%s" % (" ".join(command), done.returncode, done.stdout, done.stderr))
    return done.stdout


def kubectl(*arguments, **options):
    return run("kubectl", "-n", NAMESPACE, *arguments, **options)


def helm(*arguments):
    return run("helm", "-n", NAMESPACE, *arguments, timeout=HELM_S_MAX + 60)


def sql(question):
    return kubectl("exec", "timescaledb-0", "-c", "timescaledb", "--", "psql", "-U", "postgres", "-d", "braid", "-Atc", question).strip()


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


class Site:
    """The gateway outside of the cluster, in a network namespace of its own."""

    def __init__(self, folder, token):
        self.folder, self.token, self.process = folder, token, None

    def connect(self):
        """Both access networks end at the node, the sensors' at this machine."""
        self.disconnect()
        run("ip", "netns", "add", SITE)
        run("ip", "-n", SITE, "link", "set", "lo", "up")
        for metric, (name, net) in enumerate(NETWORKS.items(), 10):
            run("ip", "link", "add", name, "netns", SITE, "type", "veth", "peer", "name", name, "netns", NODE_NAMESPACE)
            self.join(SITE, name, net + ".2")
            self.join(NODE_NAMESPACE, name, net + ".1")
            run("ip", "-n", SITE, "route", "add", NODE_ADDRESS, "via", net + ".1", "dev", name, "metric", str(metric))
        run("ip", "link", "add", "body", "netns", SITE, "type", "veth", "peer", "name", "braid-body")
        self.join(SITE, "body", SENSORS + ".2")
        run("ip", "address", "add", SENSORS + ".1/24", "dev", "braid-body")
        run("ip", "link", "set", "braid-body", "up")

    @staticmethod
    def join(namespace, device, address):
        run("ip", "-n", namespace, "address", "add", address + "/24", "dev", device)
        run("ip", "-n", namespace, "link", "set", device, "up")

    @staticmethod
    def disconnect():
        # The other end of a pair goes with it.
        for command in (["ip", "netns", "del", SITE], ["ip", "link", "del", "braid-body"]) + tuple(
                ["ip", "-n", NODE_NAMESPACE, "link", "del", name] for name in NETWORKS):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start(self):
        identity = self.folder / "gateway"
        command = ["ip", "netns", "exec", SITE, BINARY, "gateway", "--config=%s/braid.toml" % identity, "--listen=%s.2:8090" % SENSORS,
                   "--data-dir=%s/journal" % self.folder, "--cert=%s/gw-1.pem" % identity, "--key=%s/gw-1.key" % identity,
                   "--ca=%s/ca.pem" % identity, "--proxy=%s:%d" % (NODE_ADDRESS, NODE_PORT), "--ingest=https://envoy:7443",
                   "--path-telemetry=https://envoy:7443", "--admin=127.0.0.1:9101"]
        command += ["--interface=%s=%s.0/24" % network for network in NETWORKS.items()]
        self.log = open(self.folder / "gateway.log", "a")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)

    def listens(self):
        with socket.create_connection((SENSORS + ".2", 8090), timeout=5):
            return True

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.process = None
        self.disconnect()

    def cut(self, network):
        run("ip", "-n", NODE_NAMESPACE, "link", "set", network, "down")

    def restore(self, network):
        run("ip", "-n", NODE_NAMESPACE, "link", "set", network, "up")

    def post(self, samples):
        lines = "".join(json.dumps(sample) + "\n" for sample in samples)
        request = urllib.request.Request("http://%s.2:8090/v1/samples" % SENSORS, data=lines.encode(),
                                         headers={"authorization": "Bearer " + self.token})
        with urllib.request.urlopen(request, timeout=30) as answer:
            if json.load(answer)["accepted"] != len(samples):
                raise ValueError("the gateway refused some of %d samples" % len(samples))


class Load:
    """A sensor that sends until it is told to stop, each batch until it is acknowledged; knows what it sent."""

    def __init__(self, site):
        self.site, self.sent, self.failure = site, 0, None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        # A time names a reading, so that a repeated batch is recognised.
        at, number = now_us(), 0
        given_up = time.monotonic() + PATIENCE_S
        while not self.ended.is_set():
            batch = [{"device": "guest-sensor", "metric": "heart-rate", "value": 60 + (number + n) % 20, "device_time_us": at + n * 1000,
                      "sensor_sequence": at + n} for n in range(BATCH)]
            try:
                self.site.post(batch)
            except (OSError, ValueError) as failure:
                if time.monotonic() > given_up:
                    self.failure = failure
                    return
                self.ended.wait(0.2)
                continue
            given_up = time.monotonic() + PATIENCE_S
            self.sent, number = self.sent + BATCH, number + BATCH
            at = max(now_us(), at + BATCH * 1000)
            self.ended.wait(PAUSE_S)

    def stop(self):
        self.ended.set()
        self.thread.join()
        if self.failure:
            sys.exit("the gateway did not take samples for %d s: %s" % (PATIENCE_S, self.failure))
        return self.sent


# Of the sensor that sends: rows, and different readings.
STORED = ("SELECT count(*), count(DISTINCT s.time) FROM samples s JOIN series e ON e.key = s.series JOIN streams t ON t.key = e.stream "
          "JOIN device_heads h ON h.key = t.device WHERE h.device = 'guest-sensor'")


def stored():
    rows, readings = sql(STORED).split("|")
    return int(rows), int(readings)


def reconcile(what, sent):
    start = time.monotonic()
    eventually("%s: %d sent and stored" % (what, sent), lambda: stored()[0] >= sent)
    rows, readings = stored()
    if (rows, readings) != (sent, sent):
        sys.exit("%s: sent %d, stored %d of %d different readings" % (what, sent, rows, readings))
    figure(what, "sent %d, stored %d, lost 0, doubled 0, all there after %.1f s" % (sent, rows, time.monotonic() - start))


def carries(network):
    """Whether the gateway's last reports say that packets came over it."""
    return int(sql("SELECT count(*) FROM paths_view WHERE path = '%s' AND end_of = 1 AND received_bytes > 0 "
                   "AND time > now() - interval '5 seconds'" % network)) > 0


def wait_ready(workloads):
    for workload in workloads:
        kubectl("rollout", "status", workload, "--timeout=%ds" % READY_S_MAX, timeout=READY_S_MAX + 30)


def values(folder, name, content):
    file = folder / (name + ".json")
    file.write_text(json.dumps(content))
    return str(file)


def install(folder):
    run("kubectl", "create", "namespace", NAMESPACE)
    os.environ["BRAID"] = BINARY
    run(str(ROOT / "charts/braid/identities.sh"), NAMESPACE, str(folder / "authority"))
    start = time.monotonic()
    helm("install", "backends", str(ROOT / "charts/backends"), "--values", values(folder, "backends", BACKENDS),
         "--wait", "--timeout", "%ds" % HELM_S_MAX)
    figure("helm install of backends to ready", "%.1f s" % (time.monotonic() - start))
    start = time.monotonic()
    helm("install", "braid", str(ROOT / "charts/braid"), "--values", values(folder, "braid", VALUES), "--wait", "--wait-for-jobs",
         "--timeout", "%ds" % HELM_S_MAX)
    wait_ready(WORKLOADS)
    figure("helm install of braid to ready, schema and all", "%.1f s" % (time.monotonic() - start))


def trial(what):
    start = time.monotonic()
    helm("test", "braid", "--timeout", "%ds" % HELM_S_MAX)
    said = kubectl("logs", "trial", "-c", "trial").strip().splitlines()[-1]
    figure("helm test, " + what, "%.1f s (%s)" % (time.monotonic() - start, said))
    left = sql("SELECT count(*) FROM devices WHERE id = 'trial'")
    if left != "0":
        sys.exit("the trial left its device in the register")


def read_back(folder, sent_since_us, wanted):
    """Through the page, as a person sees it: the newest readings are those of the sensor."""
    authority = (folder / "authority/ca.pem").read_text()
    password = run(BINARY, "secrets", "show", "administrator", "--authority", str(folder / "authority")).strip()
    address = kubectl("get", "service", "page", "-o", "jsonpath={.spec.clusterIP}").strip()
    page = []

    def holds():
        if not page:
            page.append(Page((address, 443), authority, password))
        return len(page[0].times_us("guest", sent_since_us)) >= wanted
    eventually("%d readings on the page" % wanted, holds)


def outside(folder, site, sent):
    since_us = now_us()
    load = Load(site)
    for network in NETWORKS:
        eventually("packets over %s" % network, lambda network=network: carries(network))
    eventually("some samples", lambda: load.sent >= 10 * BATCH)
    read_back(folder, since_us, 5 * BATCH)
    figure("a gateway outside", "both access networks carry, read back on the page")
    for network in NETWORKS:
        site.cut(network)
        eventually("%s carries nothing" % network, lambda network=network: not carries(network))
        before, rows = load.sent, stored()[0]
        eventually("samples over the other network", lambda: load.sent >= before + 10 * BATCH and stored()[0] >= rows + 10 * BATCH)
        site.restore(network)
        eventually("%s carries again" % network, lambda network=network: carries(network))
    sent += load.stop()
    reconcile("each access network cut once", sent)
    return sent


def scales(folder, site, sent):
    """By what it measures, ingest gets another pod while somebody sends."""
    def utilization():
        return int(kubectl("get", "hpa", "ingest", "-o", "jsonpath={.status.currentMetrics[0].resource.current.averageUtilization}") or -1)

    def pods():
        return int(kubectl("get", "deployment", "ingest", "-o", "jsonpath={.status.readyReplicas}") or 0)
    eventually("the autoscaler knows what ingest uses", lambda: utilization() > 0)
    # A debug build and a release build differ in what an idle pod uses; ten uploads a second are several times that.
    idle = utilization()
    # The chart takes no more than 100; a pod that has just begun may use two thirds of it.
    limit = min(100, idle + idle // 2 + 1)
    # As a site changes it: a field that somebody patched by hand is a conflict for every upgrade after it.
    helm("upgrade", "braid", str(ROOT / "charts/braid"), "--values", str(folder / "braid.json"), "--set", "ingest.autoscaling.cpuPercent=%d" % limit,
         "--wait", "--timeout", "%ds" % HELM_S_MAX)
    start, before, load = time.monotonic(), pods(), Load(site)
    eventually("a third pod of ingest", lambda: pods() == 3)
    figure("HPA of ingest", "%d pods at %d %% of their request; with a target of %d %%, 3 are ready %.1f s after the load began" % (
        before, idle, limit, time.monotonic() - start))
    sent += load.stop()
    reconcile("scaled up under load", sent)
    return sent


def restart_all(site, sent):
    load = Load(site)
    for workload in WORKLOADS:
        start = time.monotonic()
        kubectl("rollout", "restart", workload)
        wait_ready([workload])
        # The next one only when samples come through again.
        rows = stored_or_wait()
        eventually("samples after %s" % workload, lambda: stored()[0] >= rows + 5 * BATCH)
        figure("rolling restart of " + workload, "%.1f s until samples flow again" % (time.monotonic() - start))
    sent += load.stop()
    reconcile("every workload restarted under load", sent)
    return sent


def stored_or_wait():
    found = []
    eventually("the database answers", lambda: found.append(stored()[0]) or True)
    return found[-1]


def upgrade_and_back(folder, site, sent):
    # From the folder's own chart to the same under the next number, as a package.
    run("helm", "package", str(ROOT / "charts/braid"), "--version", NEXT, "--app-version", NEXT, "--destination", str(folder))
    load = Load(site)
    start = time.monotonic()
    helm("upgrade", "braid", str(folder / ("braid-%s.tgz" % NEXT)), "--values", str(folder / "braid.json"), "--wait", "--timeout", "%ds" % HELM_S_MAX)
    wait_ready(WORKLOADS)
    figure("helm upgrade to %s under load" % NEXT, "%.1f s" % (time.monotonic() - start))
    runs(NEXT)
    start = time.monotonic()
    helm("rollback", "braid", "1", "--wait", "--timeout", "%ds" % HELM_S_MAX)
    wait_ready(WORKLOADS)
    figure("helm rollback to %s under load" % VERSION, "%.1f s" % (time.monotonic() - start))
    runs(VERSION)
    rows = stored_or_wait()
    eventually("samples after the rollback", lambda: stored()[0] >= rows + 5 * BATCH)
    sent += load.stop()
    reconcile("upgrade and rollback under load", sent)


def runs(version):
    """No pod of another version is left."""
    def holds():
        images = kubectl("get", "pods", "-l", "app.kubernetes.io/part-of=braid", "--field-selector=status.phase=Running",
                         "-o", "jsonpath={range .items[*]}{.spec.containers[0].image}{'\\n'}{end}").split()
        ours = [image for image in images if image.startswith("braid:")]
        return len(ours) >= 10 and all(image == "braid:" + version for image in ours)
    eventually("every pod runs %s" % version, holds)


def uninstall():
    start = time.monotonic()
    for release in ("braid", "backends"):
        helm("uninstall", release, "--wait", "--timeout", "%ds" % HELM_S_MAX)
    # Hooks are not the release's; the trial's pod is removed with the namespace.
    kubectl("delete", "pod", "trial", "--ignore-not-found", "--wait=true")
    eventually("no pod is left", lambda: not kubectl("get", "pods", "-o", "name").strip())
    left = kubectl("get", "deployments,statefulsets,services,configmaps,networkpolicies,poddisruptionbudgets,jobs,horizontalpodautoscalers", "-o", "name")
    left = [name for name in left.split() if name != "configmap/kube-root-ca.crt"]
    if left:
        sys.exit("left behind by helm uninstall: " + ", ".join(left))
    volumes = kubectl("get", "persistentvolumeclaims", "-o", "name").split()
    if len(volumes) != 2:
        sys.exit("the engines' volumes should outlive them: %s" % volumes)
    figure("helm uninstall", "%.1f s; volumes and Secrets stay" % (time.monotonic() - start))


def images():
    start = time.monotonic()
    for version in (VERSION, NEXT):
        run("docker", "tag", "braid", "braid:" + version)
    names = ["braid:" + VERSION, "braid:" + NEXT] + IMAGES
    run(str(CLUSTER / "load-image.sh"), *names)
    figure("images into the cluster", "%d in %.1f s" % (len(names), time.monotonic() - start))


@contextlib.contextmanager
def cluster(keep):
    ran = subprocess.run(["ip", "netns", "pids", NODE_NAMESPACE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    start = time.monotonic()
    said = run(str(CLUSTER / "up.sh"))
    figure("the cluster", "there already" if ran else "up after %.1f s" % (time.monotonic() - start))
    os.environ["KUBECONFIG"] = said.strip().split("KUBECONFIG=")[1]
    os.environ["PATH"] = "%s:%s" % (os.environ.get("BRAID_KUBE_CACHE", os.path.expanduser("~/.cache/braid-kube")) + "/bin", os.environ["PATH"])
    try:
        yield
    finally:
        if not keep and not ran:
            run(str(CLUSTER / "down.sh"))


def tell_what_is(folder):
    """For whoever looks into a failure."""
    for command in (["kubectl", "-n", NAMESPACE, "get", "pods", "-o", "wide"], ["kubectl", "-n", NAMESPACE, "get", "events", "--sort-by=.lastTimestamp"],
                    *(["kubectl", "-n", NAMESPACE, "logs", "--tail", "6", "--prefix", "-l", "app.kubernetes.io/name=" + noun, "--all-containers"]
                      for noun in ("setup", "trial", "proxy", "envoy", "ingest", "alerting", "path-telemetry", "dashboard", "kafka", "timescaledb"))):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
    log = folder / "gateway.log"
    if log.exists():
        print("\n".join(log.read_text().splitlines()[-20:]), file=sys.stderr)


def scene(folder, keep):
    install(folder)
    run(BINARY, "secrets", "make", "--authority", str(folder / "authority"), "--out", str(folder), "--for=gateway")
    token = run(BINARY, "secrets", "show", "sensors", "--authority", str(folder / "authority")).strip()
    trial("freshly installed")
    site = Site(folder, token)
    try:
        site.connect()
        site.start()
        eventually("the gateway listens", site.listens)
        sent = scales(folder, site, 0)
        sent = outside(folder, site, sent)
        sent = restart_all(site, sent)
        upgrade_and_back(folder, site, sent)
        trial("after upgrade and rollback")
        called = sql("SELECT count(*) FROM alerts WHERE patient = 'trial' OR gateway = 'trial'")
        if called != "0":
            sys.exit("%s alerts about the trial" % called)
    finally:
        if not keep:
            site.stop()
    if not keep:
        uninstall()


def main():
    arguments = argparse.ArgumentParser(description="the charts on a real cluster")
    arguments.add_argument("--keep", action="store_true", help="leave cluster and installation running")
    chosen = arguments.parse_args()
    if os.geteuid() != 0:
        sys.exit("e2e-cluster: a cluster of its own takes root")
    if not os.access(BINARY, os.X_OK):
        sys.exit("e2e-cluster: %s is missing: cargo build --release -p braid, or name one by BRAID_BINARY" % BINARY)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="braid-e2e-"))
    try:
        with cluster(chosen.keep):
            try:
                images()
                scene(folder, chosen.keep)
            except SystemExit:
                tell_what_is(folder)
                raise
            finally:
                if not chosen.keep:
                    subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except SystemExit as failure:
        sys.exit("e2e-cluster: %s" % failure.code)
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    say("passed")


main()
