"""What a signed-in person's browser asks of the page, for the end-to-end tests: sign-in, here or at a provider, the times of a patient's
readings, and what an administrator decides about gateways."""

import http.client
import http.cookiejar
import json
import socket
import ssl
import time
import urllib.error
import urllib.request

HEART_RATE = 1
POINTS_MAX = 5000


def now_us():
    return time.time_ns() // 1000


# As much of protocol buffers as these questions take.

def varint(number):
    out = bytearray()
    while True:
        out.append(number & 127 | (128 if number > 127 else 0))
        number >>= 7
        if not number:
            return bytes(out)


def text(field, value):
    data = value.encode()
    return varint(field << 3 | 2) + varint(len(data)) + data


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


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        """Where an answer leads to is the test's to go."""


class Page:
    """Somebody behind Envoy, over TLS that is checked against the installation's own authority: signed in by the administrator's password, a
    program with a token of its own, or nobody yet."""

    def __init__(self, address, authority, password=None, token=None):
        trust = ssl.create_default_context(cadata=authority)
        kind = type("To", (Connection,), {"address": address})

        class Handler(urllib.request.HTTPSHandler):
            def https_open(self, request):
                return self.do_open(kind, request, context=trust)
        self.origin = "https://localhost:%d" % address[1]
        self.cookies = http.cookiejar.CookieJar()
        self.opener = urllib.request.build_opener(Handler(), Stay(), urllib.request.HTTPCookieProcessor(self.cookies))
        self.headers = {"authorization": "Bearer " + token} if token else {}
        if password:
            self.post("/api/sign-in", "application/json", json.dumps({"name": "admin", "password": password}).encode())

    def sign_in_at(self, provider, home):
        """As a browser is led: to the provider, and from there to `home`, by which people know this page."""
        back = provider.visit(self.led("/api/sso/begin"))
        # Sent by another site, a browser shows no cookie that is Strict.
        for cookie in list(self.cookies):
            if cookie.get_nonstandard_attr("SameSite") == "Strict":
                self.cookies.clear(cookie.domain, cookie.path, cookie.name)
        if not back.startswith(home + "/"):
            raise ValueError("the provider was asked to send people to %s" % back)
        self.led(back[len(home):])

    def led(self, path):
        """Where a path leads to."""
        try:
            self.opener.open(self.origin + path, timeout=30).close()
        except urllib.error.HTTPError as answer:
            if answer.code == 303:
                return answer.headers["location"]
            raise ValueError("%s: %d %r" % (path, answer.code, answer.read())) from None
        raise ValueError("%s leads nowhere" % path)

    def post(self, path, kind, body):
        request = urllib.request.Request(self.origin + path, data=body, headers={"content-type": kind, **self.headers})
        with self.opener.open(request, timeout=30) as answer:
            return answer.read()

    def ask(self, method, asked):
        """By gRPC-web: one message there and one back."""
        answer = self.post("/braid." + method, "application/grpc-web+proto", b"\0" + len(asked).to_bytes(4, "big") + asked)
        if not answer or answer[0] != 0:
            raise OSError("the page refused %s: %r" % (method, answer))
        return fields(answer[5:5 + int.from_bytes(answer[1:5], "big")])

    def times_us(self, patient, since_us):
        asked = text(1, patient) + b"\x12\x01" + bytes([HEART_RATE])
        asked += b"\x18" + varint(since_us) + b"\x20" + varint(now_us() + 60_000_000) + b"\x28" + varint(POINTS_MAX)
        found = set()
        for field, series in self.ask("query.v1.QueryService/GetSeries", asked):
            if field == 1:
                found |= {time for inner, packed in fields(series) if inner == 3 for time in varints(packed)}
        return found

    def enrol(self, gateway, reason):
        """A token with which the gateway gets its certificate."""
        return dict(self.ask("identity.v1.AdministrationService/EnrolGateway", text(1, gateway) + text(2, reason)))[1].decode()

    def revoke(self, gateway, reason):
        self.ask("identity.v1.AdministrationService/RevokeGateway", text(1, gateway) + text(2, reason))

    def certificates_until_us(self):
        """By gateway: when the newest certificate that was issued to it here ends."""
        listed = [dict(fields(it)) for field, it in self.ask("identity.v1.AdministrationService/ListGateways", b"") if field == 1]
        return {it[1].decode(): it.get(2, 0) for it in listed}
