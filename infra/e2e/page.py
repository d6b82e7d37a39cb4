"""What a signed-in person's browser asks of the page, for the end-to-end tests: sign-in, and the times of a patient's readings."""

import http.client
import http.cookiejar
import json
import socket
import ssl
import time
import urllib.request

HEART_RATE = 1
POINTS_MAX = 5000


def now_us():
    return time.time_ns() // 1000


# As much of protocol buffers as a question about a series takes.

def varint(number):
    out = bytearray()
    while True:
        out.append(number & 127 | (128 if number > 127 else 0))
        number >>= 7
        if not number:
            return bytes(out)


def fields(data):
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
    while at < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            size = {1: 8, 5: 4}.get(key & 7) or number()
            yield key >> 3, data[at:at + size]
            at += size


def varints(data):
    value = shift = 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


class Connection(http.client.HTTPSConnection):
    """To an address, and checked as if it were the name."""

    address = None

    def connect(self):
        plain = socket.create_connection(self.address, self.timeout)
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host)


class Page:
    """Somebody who is signed in, behind Envoy, over TLS that is checked against the installation's own authority."""

    def __init__(self, address, authority, password):
        trust = ssl.create_default_context(cadata=authority)
        kind = type("To", (Connection,), {"address": address})

        class Handler(urllib.request.HTTPSHandler):
            def https_open(self, request):
                return self.do_open(kind, request, context=trust)
        self.origin = "https://localhost:%d" % address[1]
        self.opener = urllib.request.build_opener(Handler(), urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
        self.post("/api/sign-in", "application/json", json.dumps({"name": "admin", "password": password}).encode())

    def post(self, path, kind, body):
        request = urllib.request.Request(self.origin + path, data=body, headers={"content-type": kind})
        with self.opener.open(request, timeout=30) as answer:
            return answer.read()

    def times_us(self, patient, since_us):
        asked = b"\x0a" + varint(len(patient)) + patient.encode() + b"\x12\x01" + bytes([HEART_RATE])
        asked += b"\x18" + varint(since_us) + b"\x20" + varint(now_us() + 60_000_000) + b"\x28" + varint(POINTS_MAX)
        answer = self.post("/braid.query.v1.QueryService/GetSeries", "application/grpc-web+proto",
                           b"\0" + len(asked).to_bytes(4, "big") + asked)
        size = int.from_bytes(answer[1:5], "big")
        if answer[0] != 0:
            raise OSError("the page refused: %r" % answer)
        found = set()
        for field, series in fields(answer[5:5 + size]):
            if field == 1:
                found |= {time for inner, packed in fields(series) if inner == 3 for time in varints(packed)}
        return found
