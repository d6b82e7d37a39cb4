"""A program without proxy support beside the gateway outside: its packets pass the gateway's TUN
device and a proxy's pod to permitted destinations."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

from outside import NODE_ADDRESS, NODE_NAMESPACE, SITE, TUN
from steps import eventually, figure, run

# Both addresses exist at this machine's end of the node's link.
ALLOWED, NOT_ALLOWED, PORT = "10.213.0.1", "10.213.0.2", 8999
ANSWER_S = 4


class Far:
    """A server outside of the cluster that answers with the client's address."""

    def __init__(self):
        self.listeners = []
        for address in (ALLOWED, NOT_ALLOWED):
            run("ip", "address", "replace", address + "/32", "dev", "lo")
            listener = socket.create_server((address, PORT))
            self.listeners.append(listener)
            threading.Thread(target=self.tell, args=(listener,), daemon=True).start()

    @staticmethod
    def tell(listener):
        while True:
            try:
                stream, (name, _) = listener.accept()
            except OSError:
                return
            with stream, contextlib.suppress(OSError):
                stream.sendall(name.encode())

    def close(self):
        for listener in self.listeners:
            # Wakes the waiter for a connection.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for address in (ALLOWED, NOT_ALLOWED):
            run("ip", "address", "del", address + "/32", "dev", "lo")


def name_at(address, namespace):
    """The source address of a client there at the destination; None if it cannot connect."""
    asking = ["ip", "netns", "exec", namespace, "timeout", str(ANSWER_S), "bash", "-c", "cat < /dev/tcp/%s/%d" % (address, PORT)]
    return subprocess.run(asking, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def pass_by_the_proxy(when, namespace):
    start, names = time.monotonic(), []

    def holds():
        names[:] = [name_at(ALLOWED, SITE)]
        pods = run("kubectl", "-n", namespace, "get", "pods", "-l", "app.kubernetes.io/name=proxy", "-o", "jsonpath={.items[*].status.podIP}")
        return names[0] in pods.split()
    eventually("packets to %s in the name of a proxy's pod" % ALLOWED, holds)
    took = time.monotonic() - start
    # The proxy advertises no route there; a user may add one.
    run("ip", "-n", SITE, "route", "replace", NOT_ALLOWED, "dev", TUN)
    if name_at(NOT_ALLOWED, NODE_NAMESPACE) != NODE_ADDRESS:
        sys.exit("%s is not there" % NOT_ALLOWED)
    came = name_at(NOT_ALLOWED, SITE)
    if came:
        sys.exit("packets came to %s, in the name of %s" % (NOT_ALLOWED, came))
    figure("a program that knows no proxy, " + when, "comes to where it may in the name of %s, asked for %.1f s; elsewhere not" % (names[0], took))
