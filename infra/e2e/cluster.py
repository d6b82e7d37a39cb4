#!/usr/bin/env python3
"""cluster.py - the charts on a real one-node Kubernetes with running pods (`make e2e-cluster`, root).

- It installs charts/backends and charts/braid, and runs `helm test`.
- Network policies keep unrelated pods out.
- A gateway outside of the cluster enrols with a token, renews its certificate, is revoked, and is
  admitted again.
- People and programs of an OpenID Connect provider sign in.
- The gateway sends, and ingest is scaled by its load.
- Each of the two access networks is cut.
- A program without proxy support reaches its permitted destinations.
- Every workload is restarted while samples go on.
- The release is upgraded to another version and back, then uninstalled.
- The try-out has a gateway inside of the cluster.

Every accepted sample must be stored exactly once. The cluster (infra/airgap/cluster) is started and
taken down again, unless it ran already.

    cluster.py [--keep]

--keep leaves cluster and installation running. Images come from the Docker engine (`make images`).
$BRAID_BINARY is the gateway outside."""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error

import packets
from outside import BATCH, BINARY, GATEWAY, NETWORKS, NODE_ADDRESS, NODE_NAMESPACE, PAUSE_S, ROOT, Load, Site
from page import Page, now_us
from policies import LOG, keep_out, nobody_refused
from provider import CLIENT, SECRET, Provider
from steps import eventually, figure, run, say

CLUSTER = ROOT / "infra/airgap/cluster"
NAMESPACE, TRY_OUT = "ward", "try-out"
VERSION = "0.1.0"
# The same programs under another version: the upgrade replaces the chart and every pod.
NEXT = "0.1.1"
IMAGES = ["apache/kafka:4.1.0", "timescale/timescaledb:2.19.3-pg17", "envoyproxy/envoy:v1.40.0"]
# Two copies of stateless services, as in production; processor requests fit one small node.
SMALL = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
NODE_PORT = 30433
VALUES = {
    "bus": {"replication": 1, "inSyncMin": 1},
    "setup": {"patients": 1},
    "enrolment": {"authoritySecret": "gateways-authority"},
    "proxy": {"replicas": 2, "service": {"type": "NodePort", "nodePort": NODE_PORT}, "resources": SMALL,
              "ip": {"enabled": True, "allow": [packets.ALLOWED + "/32"]}},
    "envoy": {"replicas": 2, "service": {"type": "NodePort"}, "resources": SMALL},
    # `scales` permits a third copy, with a percentage between idle and loaded use.
    "ingest": {"replicas": 2, "resources": SMALL, "autoscaling": {"by": "cpu", "replicasMax": 2, "cpuPercent": 100}},
    **{noun: {"replicas": 2, "resources": SMALL} for noun in ("alerting", "path-telemetry", "dashboard")},
}
BACKENDS = {noun: {"resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}} for noun in ("kafka", "timescaledb")}
WORKLOADS = ["deployment/ingest", "deployment/alerting", "deployment/path-telemetry", "deployment/dashboard", "deployment/envoy", "statefulset/proxy",
             "statefulset/kafka", "statefulset/timescaledb"]
READY_S_MAX, HELM_S_MAX = 900, 900
# The provider runs at this machine's end of the node's link; people call the page from there.
HOST_ADDRESS, HOME = "10.210.0.1", "https://ward.example.org"
# Rounds of sign-in: with two dashboards, chance would let one of several fail if the choice of the
# dashboard mattered.
SIGN_INS = 6


def kubectl(*arguments, **options):
    return run("kubectl", "-n", NAMESPACE, *arguments, **options)


def helm(*arguments):
    return run("helm", "-n", NAMESPACE, *arguments, timeout=HELM_S_MAX + 60)


def sql(question):
    return kubectl("exec", "timescaledb-0", "-c", "timescaledb", "--", "psql", "-U", "postgres", "-d", "braid", "-Atc", question).strip()


# Rows of the sending sensor, and different readings.
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
    """Whether packets arrived over the path, by the gateway's last reports."""
    return int(sql("SELECT count(*) FROM paths_view WHERE path = '%s' AND end_of = 1 AND received_bytes > 0 "
                   "AND time > now() - interval '5 seconds'" % network)) > 0


def wait_ready(workloads):
    for workload in workloads:
        kubectl("rollout", "status", workload, "--timeout=%ds" % READY_S_MAX, timeout=READY_S_MAX + 30)


def values(folder, name, content):
    file = folder / (name + ".json")
    file.write_text(json.dumps(content))
    return str(file)


def install(folder, provider):
    run("kubectl", "create", "namespace", NAMESPACE)
    kubectl("create", "secret", "generic", "provider", "--from-literal=client-secret=" + SECRET, "--from-file=ca.crt=%s" % provider.authority)
    of_provider = {"issuer": provider.issuer, "client": CLIENT, "page": HOME, "audience": HOME, "clientSecret": {"name": "provider"},
                   "ca": {"secret": "provider"}}
    chosen = {**VALUES, "dashboard": {**VALUES["dashboard"], "oidc": of_provider}}
    os.environ["BRAID"] = BINARY
    run(str(ROOT / "charts/braid/identities.sh"), "--enrolment", NAMESPACE, str(folder / "authority"))
    start = time.monotonic()
    helm("install", "backends", str(ROOT / "charts/backends"), "--values", values(folder, "backends", BACKENDS),
         "--wait", "--timeout", "%ds" % HELM_S_MAX)
    figure("helm install of backends to ready", "%.1f s" % (time.monotonic() - start))
    start = time.monotonic()
    helm("install", "braid", str(ROOT / "charts/braid"), "--values", values(folder, "braid", chosen), "--wait", "--wait-for-jobs",
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


def page_port():
    return int(kubectl("get", "service", "page", "-o", "jsonpath={.spec.ports[0].nodePort}"))


def page_for(folder, **who):
    authority = (folder / "authority/ca.pem").read_text()
    return Page((NODE_ADDRESS, page_port()), authority, **who)


def administrator(folder):
    return page_for(folder, password=run(BINARY, "secrets", "show", "administrator", "--authority", str(folder / "authority")).strip())


def read_back(folder, sent_since_us, wanted):
    """The newest readings on the page are those of the sensor."""
    page = []

    def holds():
        if not page:
            page.append(administrator(folder))
        return len(page[0].times_us("guest", sent_since_us)) >= wanted
    eventually("%d readings on the page" % wanted, holds)


def vouched_for(folder, certificate, authority):
    done = subprocess.run(["openssl", "verify", "-CAfile", str(folder / "authority" / authority), str(certificate)], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL)
    return done.returncode == 0


def of_the_gateways_authority(folder, site):
    """The gateway's certificate comes from the authority for gateways."""
    if not vouched_for(folder, site.cert, "gateways.pem") or vouched_for(folder, site.cert, "ca.pem"):
        sys.exit("the gateway's certificate is not of the authority for gateways")
    return site.cert.read_bytes()


def more(load, what):
    """Waits until more samples are stored, and some of them were sent later than this."""
    rows, begun = stored()[0], load.sent
    eventually("samples " + what, lambda: load.sent >= begun + 5 * BATCH and stored()[0] >= rows + 5 * BATCH)


def enrols(folder, site):
    """From a token to readings on the page. A token works once; the certificate is renewed, revoked,
    and the gateway is admitted again."""
    page, since_us, start = administrator(folder), now_us(), time.monotonic()
    token = page.enrol(GATEWAY, "for the end-to-end test")
    site.start("--enrol=" + token)
    eventually("the gateway listens", site.listens)
    first = of_the_gateways_authority(folder, site)
    load = Load(site)
    more(load, "by the first certificate")
    read_back(folder, since_us, 5 * BATCH)
    for network in NETWORKS:
        eventually("packets over %s" % network, lambda network=network: carries(network))
    left_s = page.certificates_until_us()[GATEWAY] / 1e6 - time.time()
    figure("a gateway enrols by a token", "read back on the page after %.1f s; its certificate holds for %d days" % (
        time.monotonic() - start, left_s / 86400))

    status, said, cert = site.another(token)
    if status == 0 or "used already" not in said or cert.exists():
        sys.exit("a token served twice; the second gateway ended with %d and said: %s" % (status, said))
    figure("the same token again", "refused")

    site.end()
    # Longer than any certificate's validity: renewed at once.
    site.start("--renew-before-days=3650")
    eventually("another certificate", lambda: site.cert.read_bytes() != first)
    second = of_the_gateways_authority(folder, site)
    site.end()
    site.start()
    eventually("the gateway listens", site.listens)
    more(load, "by the renewed certificate")
    figure("the certificate is renewed by the one before", "samples flow by it")

    start = time.monotonic()
    page.revoke(GATEWAY, "for the end-to-end test")

    def silent():
        rows, begun = stored()[0], load.sent
        eventually("samples are taken", lambda: load.sent >= begun + 30 * BATCH)
        return stored()[0] == rows
    eventually("nothing comes through", silent)
    took = time.monotonic() - start
    site.end()
    for file in (site.cert, site.cert.with_suffix(".key")):
        file.unlink()
    site.start("--enrol=" + page.enrol(GATEWAY, "for the end-to-end test"))
    eventually("the gateway listens", site.listens)
    if of_the_gateways_authority(folder, site) in (first, second):
        sys.exit("the gateway was given a certificate that it had")
    more(load, "by the certificate after the revocation")
    figure("revoked", "nothing comes through, found after %.1f s; let in again by another token" % took)
    sent = load.stop()
    reconcile("enrolled, renewed, revoked, enrolled", sent)
    return sent


def signs_in_elsewhere(folder, provider, since_us):
    """People of the provider sign in at any dashboard, and programs use its tokens."""
    for _ in range(SIGN_INS):
        person = page_for(folder)
        person.sign_in_at(provider, HOME)
        if not person.times_us("guest", since_us):
            sys.exit("somebody who signed in at the provider reads nothing")
    program = page_for(folder, token=provider.token(HOME))
    eventually("a program reads by a token of the provider", lambda: program.times_us("guest", since_us))
    other_audience = page_for(folder, token=provider.token("another"))
    try:
        other_audience.times_us("guest", since_us)
    except urllib.error.HTTPError as refusal:
        if refusal.code != 401:
            sys.exit("a token for others is answered by %d" % refusal.code)
    else:
        sys.exit("a token for others is taken")
    # If a Service hid people's addresses, failed sign-ins of everybody would count as one person's.
    logged = sql("SELECT count(*) FROM audit WHERE who LIKE 'sso:ada %%' AND action = 'sign in by provider' AND detail = 'from %s'" % HOST_ADDRESS)
    if int(logged) != SIGN_INS:
        sys.exit("%s of %d sign-ins are in the audit log with the address that they came from" % (logged, SIGN_INS))
    figure("an OpenID Connect provider", "%d sign-ins there, one program by its token; a token for others is refused" % SIGN_INS)


def keeps_out(folder, provider):
    def upgrade(policies):
        for release in ("backends", "braid"):
            helm("upgrade", release, str(ROOT / "charts" / release), "--values", str(folder / (release + ".json")),
                 "--set", "networkPolicy.enabled=%s" % str(policies).lower(), "--wait", "--timeout", "%ds" % HELM_S_MAX)
    return keep_out(NAMESPACE, HOST_ADDRESS, int(provider.issuer.rsplit(":", 1)[1]),
                    (packets.ALLOWED, packets.NOT_ALLOWED, packets.PORT), upgrade)


def outside(folder, site, sent):
    since_us = now_us()
    load = Load(site)
    for network in NETWORKS:
        eventually("packets over %s" % network, lambda network=network: carries(network))
    eventually("some samples", lambda: load.sent >= 10 * BATCH)
    read_back(folder, since_us, 5 * BATCH)
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


def utilization():
    """Ingest's use as a share of its requests, as the autoscaler has measured it."""
    return int(kubectl("get", "hpa", "ingest", "-o", "jsonpath={.status.currentMetrics[0].resource.current.averageUtilization}") or -1)


def scales(folder, site, idle, sent):
    """The autoscaler gives ingest another pod under load."""
    def pods():
        return int(kubectl("get", "deployment", "ingest", "-o", "jsonpath={.status.readyReplicas}") or 0)
    # A debug build and a release build differ in the use of an idle pod.
    # The chart permits at most 100; a pod that has just begun may use two thirds of it.
    limit = min(100, idle + idle // 2 + 1)
    eventually("ingest is idle again", lambda: 0 < utilization() < limit)
    # Changed like a site does it: a field that was patched by hand conflicts with every later
    # upgrade.
    helm("upgrade", "braid", str(ROOT / "charts/braid"), "--values", str(folder / "braid.json"), "--set", "ingest.autoscaling.replicasMax=3",
         "--set", "ingest.autoscaling.cpuPercent=%d" % limit, "--wait", "--timeout", "%ds" % HELM_S_MAX)
    # The usual load brings a pod so near the limit that it may take minutes.
    start, before, load = time.monotonic(), pods(), Load(site, PAUSE_S / 5)
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
        # The next restart follows only when samples come through again.
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
    # From the folder's own chart to the same chart under the next version, as a package.
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
    # Hooks do not belong to the release; the trial's pod is removed with the namespace.
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


def try_out(folder):
    """Follows charts/README.md. If a command has two namespaces, the last one counts."""
    run("kubectl", "create", "namespace", TRY_OUT)
    run(str(ROOT / "charts/braid/identities.sh"), TRY_OUT, str(folder / "authority-of-try-out"))
    start = time.monotonic()
    helm("-n", TRY_OUT, "install", "backends", str(ROOT / "charts/backends"), "--wait", "--timeout", "%ds" % HELM_S_MAX)
    # Its gateway is ready when ingest has acknowledged samples.
    helm("-n", TRY_OUT, "install", "braid", str(ROOT / "charts/braid"), "--values", str(ROOT / "charts/braid/ci/try-out.yaml"), "--wait",
         "--wait-for-jobs", "--timeout", "%ds" % HELM_S_MAX)
    ready_s = time.monotonic() - start
    helm("-n", TRY_OUT, "test", "braid", "--timeout", "%ds" % HELM_S_MAX)
    eventually("readings of the three simulated patients", lambda: int(kubectl(
        "-n", TRY_OUT, "exec", "timescaledb-0", "-c", "timescaledb", "--", "psql", "-U", "postgres", "-d", "braid", "-Atc",
        "SELECT count(DISTINCT t.device) FROM streams t JOIN device_heads h ON h.key = t.device WHERE h.device LIKE 'wearable-%'")) == 3)
    figure("the try-out, with a gateway inside", "ready after %.1f s, helm test passed, readings of 3 patients" % ready_s)


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
    """Prints the state for the analysis of a failure."""
    for command in (["kubectl", "get", "pods", "-A", "-o", "wide"], ["kubectl", "-n", NAMESPACE, "get", "events", "--sort-by=.lastTimestamp"],
                    *(["kubectl", "-n", NAMESPACE, "logs", "--tail", "6", "--prefix", "-l", "app.kubernetes.io/name=" + noun, "--all-containers"]
                      for noun in ("setup", "trial", "proxy", "envoy", "ingest", "alerting", "path-telemetry", "dashboard", "kafka", "timescaledb"))):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
    log = folder / "gateway.log"
    if log.exists():
        print("\n".join(log.read_text().splitlines()[-20:]), file=sys.stderr)


def scene(folder, provider, keep):
    install(folder, provider)
    token = run(BINARY, "secrets", "show", "sensors", "--authority", str(folder / "authority")).strip()
    trial("freshly installed")
    enforced = keeps_out(folder, provider)
    site = Site(folder, token, NODE_PORT, page_port())
    try:
        site.connect()
        eventually("the autoscaler knows what ingest uses", lambda: utilization() > 0)
        idle = utilization()
        since_us = now_us()
        sent = enrols(folder, site)
        signs_in_elsewhere(folder, provider, since_us)
        sent = scales(folder, site, idle, sent)
        sent = outside(folder, site, sent)
        packets.pass_by_the_proxy("over both networks", NAMESPACE)
        sent = restart_all(site, sent)
        upgrade_and_back(folder, site, sent)
        packets.pass_by_the_proxy("after it all", NAMESPACE)
        trial("after upgrade and rollback")
        called = sql("SELECT count(*) FROM alerts WHERE patient = 'trial' OR gateway = 'trial'")
        if called != "0":
            sys.exit("%s alerts about the trial" % called)
        nobody_refused("in all that followed", enforced)
    finally:
        if not keep:
            site.stop()
    if not keep:
        uninstall()
        enforced = LOG.stat().st_size
        try_out(folder)
        nobody_refused("in the try-out", enforced)


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
                with contextlib.closing(Provider(folder, HOST_ADDRESS)) as provider, contextlib.closing(packets.Far()):
                    scene(folder, provider, chosen.keep)
            except (SystemExit, OSError, ValueError):
                tell_what_is(folder)
                raise
            finally:
                if not chosen.keep:
                    subprocess.run(["kubectl", "delete", "namespace", NAMESPACE, TRY_OUT, "--ignore-not-found", "--timeout=120s"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except (SystemExit, OSError, ValueError) as failure:
        sys.exit("e2e-cluster: %s" % failure)
    finally:
        if not chosen.keep:
            shutil.rmtree(folder, ignore_errors=True)
    say("passed")


main()
