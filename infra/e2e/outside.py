"""The gateway outside of the cluster, behind two access networks, and its sensor."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from page import now_us
from steps import PATIENCE_S, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("BRAID_BINARY", str(ROOT / "target/release/braid"))
# The gateway's two access networks lead to the node itself; sensors are on a third network.
SITE = "braid-site"
NODE_NAMESPACE, NODE_ADDRESS = "braid-kube", "10.210.0.2"
NETWORKS = {"wifi": "10.209.1", "lte": "10.209.2"}
SENSORS = "10.209.3"
# For programs there without proxy support.
TUN = "braid0"
# The file that `ip netns exec` shows as /etc/hosts.
HOSTS = pathlib.Path("/etc/netns") / SITE / "hosts"
# The gateway of the simulated patients.
GATEWAY = "gw-1"
BATCH = 20
PAUSE_S = 0.1


class Site:
    """In a separate network namespace. It has the sensors' password and no certificate."""

    def __init__(self, folder, token, proxy_port, page_port):
        self.folder, self.token, self.process = folder, token, None
        self.proxy, self.page = "%s:%d" % (NODE_ADDRESS, proxy_port), "https://envoy:%d" % page_port
        (folder / "gateway").mkdir()
        self.cert = folder / "gateway" / (GATEWAY + ".pem")
        self.config = folder / "gateway.toml"
        self.config.write_text('[gateway]\nsensor_token = "%s"\n' % token)
        self.config.chmod(0o600)

    def connect(self):
        """Both access networks end at the node, the sensors' at this machine."""
        self.disconnect()
        HOSTS.parent.mkdir(parents=True)
        # The name in the page's certificate, resolved to the node.
        HOSTS.write_text("127.0.0.1 localhost\n%s envoy\n" % NODE_ADDRESS)
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
        # The other end of a pair is removed with it.
        for command in (["ip", "netns", "del", SITE], ["ip", "link", "del", "braid-body"]) + tuple(
                ["ip", "-n", NODE_NAMESPACE, "link", "del", name] for name in NETWORKS):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(HOSTS.parent, ignore_errors=True)

    def command(self, cert, data, port, *flags):
        command = ["ip", "netns", "exec", SITE, BINARY, "gateway", "--config=%s" % self.config, "--listen=%s.2:%d" % (SENSORS, port),
                   "--data-dir=%s" % (self.folder / data), "--cert=%s" % cert, "--key=%s" % cert.with_suffix(".key"),
                   "--ca=%s" % cert.with_name("ca.pem"), "--enrol-url=" + self.page, "--proxy=" + self.proxy,
                   "--ingest=https://envoy:7443", "--path-telemetry=https://envoy:7443", "--admin=127.0.0.1:%d" % (port + 1000)]
        return command + ["--interface=%s=%s.0/24" % network for network in NETWORKS.items()] + list(flags)

    def start(self, *flags):
        log = open(self.folder / "gateway.log", "a")
        command = self.command(self.cert, "journal", 8090, "--tun=" + TUN, "--tun-routes", *flags)
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        log.close()

    def another(self, token):
        """Another gateway with a token; returns its exit, its output, and its certificate if it got one."""
        cert = self.folder / "another" / (GATEWAY + ".pem")
        cert.parent.mkdir()
        command = self.command(cert, "journal-of-another", 8190, "--enrol=" + token)
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as failure:
            sys.exit("another gateway with the same token goes on after %d s: %s" % (PATIENCE_S, failure.stdout))
        return done.returncode, done.stdout, cert

    def listens(self):
        if self.process.poll() is not None:
            raise ValueError("the gateway ended with %d" % self.process.returncode)
        with socket.create_connection((SENSORS + ".2", 8090), timeout=5):
            return True

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
            self.process = None

    def stop(self):
        self.end()
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
    """A sensor that sends until it is stopped, each batch until it is acknowledged, and counts them."""

    def __init__(self, site, pause_s=PAUSE_S):
        self.site, self.pause_s, self.sent, self.failure = site, pause_s, 0, None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        # The time identifies a reading, so a repeated batch is recognised.
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
            self.ended.wait(self.pause_s)

    def stop(self):
        self.ended.set()
        self.thread.join()
        if self.failure:
            sys.exit("the gateway did not take samples for %d s: %s" % (PATIENCE_S, self.failure))
        return self.sent
