"""The page's requests of a signed-in person's browser, for the end-to-end tests: sign-in, here or at a
provider, the times of a patient's readings, and an administrator's decisions about gateways."""

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


# The part of protocol buffers that these requests need.

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
    """Connects to an address, and verifies the certificate for the name."""

    address = None

    def connect(self):
        plain = socket.create_connection(self.address, self.timeout)
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host)


class Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        """The test follows redirects itself."""


class Page:
    """A client of Envoy, over TLS that is verified with the installation's authority: signed in with the
    administrator's password, a program with a token, or not signed in yet."""

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
        """Follows the redirects of a browser: to the provider, and from there to `home`, the page's address."""
        back = provider.visit(self.led("/api/sso/begin"))
        # After a navigation from another site a browser sends no Strict cookie.
        for cookie in list(self.cookies):
            if cookie.get_nonstandard_attr("SameSite") == "Strict":
                self.cookies.clear(cookie.domain, cookie.path, cookie.name)
        if not back.startswith(home + "/"):
            raise ValueError("the provider was asked to send people to %s" % back)
        self.led(back[len(home):])

    def led(self, path):
        """The redirect of a path."""
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
        """A gRPC-web call with one message in each direction."""
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
        """A token for the gateway's certificate."""
        return dict(self.ask("identity.v1.AdministrationService/EnrolGateway", text(1, gateway) + text(2, reason)))[1].decode()

    def revoke(self, gateway, reason):
        self.ask("identity.v1.AdministrationService/RevokeGateway", text(1, gateway) + text(2, reason))

    def certificates_until_us(self):
        """The end of the newest certificate that was issued here, by gateway."""
        listed = [dict(fields(it)) for field, it in self.ask("identity.v1.AdministrationService/ListGateways", b"") if field == 1]
        return {it[1].decode(): it.get(2, 0) for it in listed}
