"""An OpenID Connect provider beside the cluster: it admits everybody, checks the client's secret and
PKCE, and signs (RS256)."""

import base64
import hashlib
import http.server
import json
import secrets
import ssl
import subprocess
import threading
import time
import urllib.parse

from outside import BINARY
from steps import run

CLIENT, SECRET = "ward", secrets.token_hex(16)
LIFE_S = 3600


def plain(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Provider:
    def __init__(self, folder, address):
        # Its own authority, which the installation knows only from its values.
        run(BINARY, "identity", "issue", "service", "provider", "--host", address, "--data", str(folder / "provider"))
        identity = folder / "provider/identities"
        self.authority, self.key = identity / "ca.pem", folder / "provider/signs.key"
        run("openssl", "genrsa", "-out", str(self.key), "2048")
        modulus = run("openssl", "rsa", "-in", str(self.key), "-noout", "-modulus").strip().split("=")[1]
        keys = {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "one", "n": plain(bytes.fromhex(modulus)), "e": "AQAB"}]}
        # The request of each code; a code is removed when it is used.
        provider, codes = self, {}
        self.codes = codes

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.split("?")[0]
                found = {"/.well-known/openid-configuration": provider.about, "/keys": keys}.get(path)
                self.say(200 if found else 404, found or {})

            def do_POST(self):
                asked = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
                began = codes.pop(asked.get("code"), None)
                proven = self.headers["authorization"] == "Basic " + base64.b64encode(("%s:%s" % (CLIENT, SECRET)).encode()).decode()
                if not began or not proven or plain(hashlib.sha256(asked["code_verifier"].encode()).digest()) != began["code_challenge"]:
                    return self.say(400, {"error": "invalid_grant" if proven else "invalid_client"})
                return self.say(200, {"token_type": "Bearer", "access_token": "none", "id_token": provider.token(CLIENT, nonce=began["nonce"])})

            def say(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass
        self.server = http.server.ThreadingHTTPServer((address, 0), Answers)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(identity / "provider.pem", identity / "provider.key")
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.issuer = "https://%s:%d" % self.server.server_address
        self.about = {"issuer": self.issuer, "authorization_endpoint": self.issuer + "/authorize", "token_endpoint": self.issuer + "/token",
                      "jwks_uri": self.issuer + "/keys"}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def visit(self, location):
        """The redirect that a browser gets here."""
        if not location.startswith(self.issuer + "/authorize?"):
            raise ValueError("sent to %s instead of the provider" % location)
        asked = dict(urllib.parse.parse_qsl(location.split("?", 1)[1]))
        code = secrets.token_hex(8)
        self.codes[code] = asked
        return asked["redirect_uri"] + "?" + urllib.parse.urlencode({"code": code, "state": asked["state"]})

    def token(self, audience, **claims):
        now_s = int(time.time())
        says = {"iss": self.issuer, "aud": audience, "sub": "17", "preferred_username": "ada", "roles": ["viewer"], "iat": now_s, "exp": now_s + LIFE_S,
                **claims}
        signed = ".".join(plain(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "one"}, says))
        done = subprocess.run(["openssl", "dgst", "-sha256", "-sign", str(self.key)], input=signed.encode(), stdout=subprocess.PIPE, check=True)
        return signed + "." + plain(done.stdout)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
