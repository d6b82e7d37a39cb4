"""Permitted connections under the charts' network policies, tried from pods that a policy cannot
distinguish from the real ones."""

import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import socket
import sys

from steps import eventually, figure, run

IMAGE = "envoyproxy/envoy:v1.40.0"
# The policies know monitoring programs only by these names.
MONITORING, ELSEWHERE = "monitoring", "elsewhere"
# Pods without a part in the installation.
UNRELATED = {"unrelated", "elsewhere", "monitoring"}
ENGINES = ["kafka", "timescaledb"]
SERVICES = ["ingest", "alerting", "path-telemetry", "dashboard", "envoy", "proxy", "setup", "trial"]
EVERYBODY = UNRELATED | set(ENGINES) | set(SERVICES)
# These may connect to every pod of the namespace, since a site's own engine may be there under any
# label.
OF_THE_ENGINES = {"ingest", "alerting", "path-telemetry", "dashboard", "setup", "trial"}
KEEPERS = {"ingest", "alerting", "path-telemetry", "dashboard"}
# Port of a pod, and the pods that may open it.
WAYS = {
    ("kafka", 9093): KEEPERS | {"kafka"},
    ("timescaledb", 5432): OF_THE_ENGINES | {"timescaledb"},
    ("ingest", 7001): {"envoy"},
    ("ingest", 9103): {"envoy", "monitoring"},
    ("path-telemetry", 7003): {"envoy", "proxy"},
    ("path-telemetry", 9105): {"envoy", "monitoring"},
    ("dashboard", 8080): {"envoy"},
    ("dashboard", 9106): {"envoy", "monitoring"},
    ("alerting", 7002): {"dashboard"},
    ("alerting", 9104): {"monitoring"},
    ("envoy", 7443): {"proxy"},
    ("envoy", 8443): UNRELATED | OF_THE_ENGINES | {"proxy"},
    ("envoy", 9109): {"monitoring"},
    ("proxy", 4433): UNRELATED | OF_THE_ENGINES,
    ("proxy", 9102): {"monitoring"},
}
# The enforcer's log of each first packet: on two lines its source and destination, later its number
# and the verdict.
LOG = pathlib.Path(os.environ.get("BRAID_KUBE_STATE", "/tmp/braid-kube")) / "log/enforcer.log"
ASKED = re.compile(r'"Evaluating packet" srcPod="(\S+)" dstPod="(\S+)" packet=<\n\s*\[(\d+)\] (\S+):\d+ (\S+):(\d+) |id=(\d+) .* verdict="drop"')
# Log entries of unknown pods, and of Services without a ready pod.
NOBODY = ("10.211.", "10.212.")
# Outside of the namespace.
NAMES, API_SERVER, BROKER = ("10.211.0.10", 53), ("10.210.0.2", 6443), 8883
# Three attempts of the kernel to connect; a blocked client gets no answer.
PROBE_S, TRIES = 4, 5
PROBE = "for it in %s; do (timeout %d bash -c \"exec 3<> /dev/tcp/$it\" 2> /dev/null; echo $it $?) & done; wait"
OPEN, SILENT = "0", "124"


def kubectl(*arguments, **options):
    return run("kubectl", *arguments, **options)


class Probes:
    """A pod for each permitted client, beside the real engines. The engines' pods are asked directly,
    since their Services would send clients to another pod."""

    def __init__(self, namespace, host, provider_port, packets):
        self.namespace = namespace
        self.broker = socket.create_server((host, BROKER))
        self.ways = dict(WAYS)
        self.ways[NAMES] = EVERYBODY
        self.ways[API_SERVER] = UNRELATED
        self.ways[host, provider_port] = UNRELATED | {"dashboard"}
        # A destination of alerts by MQTT.
        self.ways[host, BROKER] = UNRELATED | {"alerting"}
        # Destinations of gateways' packets: permitted, and not.
        allowed, not_allowed, port = packets
        self.ways[allowed, port] = UNRELATED | {"proxy"}
        self.ways[not_allowed, port] = UNRELATED
        self.pods = {noun: (namespace, noun + "-0") for noun in ENGINES}
        self.pods.update({noun: (namespace, "as-" + noun) for noun in SERVICES + ["unrelated"]})
        self.pods.update({noun: (noun, "as-" + noun) for noun in (MONITORING, ELSEWHERE)})
        for noun in (MONITORING, ELSEWHERE):
            kubectl("create", "namespace", noun)
        kubectl("apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": [self.pod(noun) for noun in EVERYBODY - set(ENGINES)]}))
        eventually("pods that look like everybody", lambda: all(self.address(*self.pods[noun]) for noun in EVERYBODY))

    def pod(self, noun):
        namespace, name = self.pods[noun]
        labels = {"probe": "true"}
        if noun in SERVICES:
            labels.update({"app.kubernetes.io/name": noun, "app.kubernetes.io/part-of": "braid"})
        # Never ready, so that no Service sends requests there.
        container = {"name": "probe", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "infinity"],
                     "readinessProbe": {"exec": {"command": ["false"]}, "periodSeconds": 60}}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels},
                "spec": {"automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0, "containers": [container]}}

    @staticmethod
    def address(namespace, pod):
        return kubectl("-n", namespace, "get", "pod", pod, "-o", "jsonpath={.status.podIP}")

    def targets(self):
        """Address and port of a real pod of each, and of outside destinations."""
        found = {}
        for noun, port in self.ways:
            if noun in EVERYBODY:
                pods = json.loads(kubectl("-n", self.namespace, "get", "pods", "-l", "app.kubernetes.io/name=%s,!probe" % noun,
                                          "--field-selector=status.phase=Running", "-o", "json"))["items"]
                pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
                found["%s/%d" % (pods[0]["status"]["podIP"], port)] = (noun, port)
            else:
                found["%s/%d" % (noun, port)] = (noun, port)
        return found

    def tried(self):
        """The open ports for each client."""
        targets = self.targets()

        def from_one(noun):
            namespace, pod = self.pods[noun]
            said = kubectl("-n", namespace, "exec", pod, "--", "bash", "-c", PROBE % (" ".join(targets), PROBE_S))
            return noun, dict(line.split() for line in said.splitlines())
        opened = {way: set() for way in self.ways}
        with concurrent.futures.ThreadPoolExecutor(4) as several:
            for noun, said in several.map(from_one, sorted(EVERYBODY)):
                for target, way in targets.items():
                    if said[target] == OPEN:
                        opened[way].add(noun)
                    elif said[target] != SILENT:
                        sys.exit("%s hears a refusal of %s port %d, where somebody should listen" % ((noun,) + way))
        return opened

    def close(self):
        self.broker.close()
        kubectl("-n", self.namespace, "delete", "pods", "-l", "probe", "--wait=true")
        kubectl("delete", "namespace", MONITORING, ELSEWHERE, "--wait=true")


def refused(since=0):
    """Refused connections between known pods. A pod's first packets may come before its address is known,
    and are repeated; some go to pods that are gone or to Services without a ready pod."""
    asked, found = {}, collections.Counter()
    with open(LOG) as log:
        log.seek(since)
        for source, target, number, source_address, address, port, dropped in ASKED.findall(log.read()):
            if number:
                asked[number] = (source if source != "none" else source_address, target if target != "none" else address, port)
            elif dropped in asked and not any(it.startswith(NOBODY) for it in asked[dropped][:2]):
                found["%s to %s port %s" % asked[dropped]] += 1
    return found


def nobody_refused(when, since=0):
    found = refused(since)
    if found:
        sys.exit("network policies refuse, %s: %s" % (when, "; ".join("%s, %d times" % it for it in found.most_common(10))))


def told(what, ways):
    return ["%s port %d %s %s" % (way + (what, ", ".join(sorted(nouns)))) for way, nouns in ways.items() if nouns]


def holds(probes, wanted, tries):
    """A port that is open to too many fails at once. A port that is closed to a client may be due to a
    slow machine, so it is tried again."""
    for left in range(tries, 0, -1):
        opened = probes.tried()
        leaks = told("is open to", {way: opened[way] - wanted[way] for way in wanted})
        missed = told("is closed to", {way: wanted[way] - opened[way] for way in wanted})
        if leaks or missed and left == 1:
            sys.exit("; ".join(leaks + missed))
        if not missed:
            return


def keep_out(namespace, host, provider_port, packets, upgrade):
    """`upgrade` switches the installation's policies on or off. Returns the position in the enforcer's
    log from which later entries begin."""
    nobody_refused("installed and tried")
    with contextlib.closing(Probes(namespace, host, provider_port, packets)) as probes:
        upgrade(False)
        # The enforcer learns of the change a moment later.
        eventually("an unrelated pod reaches Kafka without policies", lambda: "unrelated" in probes.tried()["kafka", 9093])
        holds(probes, {way: EVERYBODY for way in probes.ways}, TRIES)
        upgrade(True)
        eventually("an unrelated pod is kept from Kafka", lambda: "unrelated" not in probes.tried()["kafka", 9093])
        holds(probes, probes.ways, TRIES)
        ways, count = len(EVERYBODY) * len(probes.ways), sum(len(nouns) for nouns in probes.ways.values())
        figure("network policies enforced", "%d ways from %d pods to %d ports: %d open, %d closed, as wanted; without policies all are open" % (
            ways, len(EVERYBODY), len(probes.ways), count, ways - count))
    if not refused():
        sys.exit("the enforcer's log tells of none whom it refused")
    return LOG.stat().st_size
