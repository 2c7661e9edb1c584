"""A test issuer: keys that rotate, a JWKS and a token endpoint on 127.0.0.1, and tokens with any fault."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

AUDIENCE = "fleet"
CLIENT_ID, CLIENT_SECRET = "a-client", "a-clients-secret"
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "HS256"]


class _Registry(jws.JWSRegistry):
    max_header_length = max_payload_length = 1_000_000


def key_for(algorithm: str, key_id: str) -> Any:
    """A new private key for signatures by that algorithm."""
    parameters = {"kid": key_id, "use": "sig"}
    if algorithm.startswith("ES"):
        return ECKey.generate_key({"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[algorithm], parameters)
    if algorithm.startswith("Ed"):
        return OKPKey.generate_key("Ed25519", parameters)
    return RSAKey.generate_key(2048, parameters)


def signed(claims: Mapping[str, Any] | bytes, key: Any, header: Mapping[str, Any]) -> str:
    """A token with that header, which may say anything."""
    payload = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    registry = _Registry(algorithms=_ALGORITHMS, strict_check_header=False)
    return jws.serialize_compact(dict(header), payload, key, registry=registry)


def unsigned(claims: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """A token of three parts whose signature is any bytes, as one without a key makes it."""
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), b"no signature")
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def public_document(*keys: Any) -> bytes:
    """The JWKS of those keys."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class Issuer:
    """Serves until :meth:`close`. ``document`` and ``status`` may be set to what an issuer should not serve."""

    def __init__(self, algorithm: str = "RS256", tls: ssl.SSLContext | None = None) -> None:
        self.scheme = "http" if tls is None else "https"
        self.algorithm = algorithm
        self.fetches = 0
        self.status = 200
        self.drips = False
        self.lifetime_s = 300.0
        self.user = "alice"
        self.says: dict[str, Any] = {}
        self.identity: dict[str, Any] = {}
        self.refused = 0
        """How often the token endpoint did not know the client."""
        self.client_user = CLIENT_ID
        """Whose token client credentials get."""
        self.asked: list[dict[str, str]] = []
        """The forms of client credentials that came."""
        self.trouble: tuple[int, bytes] | None = None
        """What client credentials are answered instead of a token."""
        self._codes: dict[str, dict[str, str]] = {}
        self.key = key_for(algorithm, "key-1")
        self.document = public_document(self.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}"

    def rotate(self, key_id: str) -> None:
        """Sign by a new key from now on, and publish only that one."""
        self.key = key_for(self.algorithm, key_id)
        self.document = public_document(self.key)

    def claims(self, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        found = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "alice",
            "iat": now,
            "exp": now + int(self.lifetime_s),
            **more,
        }
        return {name: value for name, value in found.items() if value is not None}

    def token(self, **more: Any) -> str:
        """A token as it should be; ``more`` changes claims, None takes one out."""
        return signed(self.claims(**more), self.key, {"alg": self.algorithm, "kid": self.key.kid})

    def settings(self, listener: str = "inside") -> dict[str, str]:
        """A broker's settings for the listener."""
        prefix = f"listener.name.{listener}.oauthbearer.sasl.oauthbearer."
        return {
            prefix + "jwks.endpoint.url": f"{self.url}/keys",
            prefix + "expected.issuer": self.url,
            prefix + "expected.audience": f"another fleet, {AUDIENCE}",
        }

    def discovery(self) -> dict[str, Any]:
        """What it says of itself."""
        return {
            "issuer": self.url, "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token", "jwks_uri": f"{self.url}/keys",
            "code_challenge_methods_supported": ["S256"], **self.says,
        }  # fmt: skip

    def authorize(self, query: dict[str, str]) -> str:
        """A browser comes: ``user`` is logged in without a question. Where it is sent, with a code for one use."""
        assert (query["response_type"], query["code_challenge_method"]) == ("code", "S256")
        assert query["client_id"] == CLIENT_ID
        code = secrets.token_urlsafe(8)
        self._codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"

    def exchanged(self, form: dict[str, str]) -> dict[str, Any] | None:
        """The tokens of a code; None if anything is not as it was when the code was given."""
        query = self._codes.pop(form.get("code", ""), None)
        proof = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
        if query is None or query["redirect_uri"] != form.get("redirect_uri") or query["code_challenge"] != challenge:
            return None
        return {
            "access_token": self.token(sub=self.user), "token_type": "Bearer", "expires_in": int(self.lifetime_s),
            "id_token": self.token(**{"sub": self.user, "aud": CLIENT_ID, "nonce": query["nonce"], **self.identity}),
        }  # fmt: skip

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/.well-known/openid-configuration":
                    self._answer(json.dumps(issuer.discovery()).encode(), 200)
                    return
                if parts.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", issuer.authorize(dict(parse_qsl(parts.query))))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if self.path != "/keys":
                    self.send_error(404)
                    return
                issuer.fetches += 1
                self._answer(issuer.document, issuer.status)

            def do_POST(self) -> None:
                """The token endpoint, for client credentials and for codes."""
                form = dict(parse_qsl(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()))
                wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
                if self.path != "/token" or self.headers.get("Authorization") != f"Basic {wanted}":
                    issuer.refused += 1
                    self._answer(b'{"error":"invalid_client"}', 401)
                    return
                if form.get("grant_type") == "authorization_code":
                    found = issuer.exchanged(form)
                    status = 200 if found is not None else 400
                    self._answer(json.dumps(found or {"error": "invalid_grant"}).encode(), status)
                    return
                issuer.asked.append(form)
                if issuer.trouble is not None:
                    self._answer(issuer.trouble[1], issuer.trouble[0])
                    return
                answer = {
                    "access_token": issuer.token(sub=issuer.client_user), "token_type": "Bearer",
                    "expires_in": int(issuer.lifetime_s),
                }  # fmt: skip
                self._answer(json.dumps(answer).encode(), 200)

            def _answer(self, body: bytes, status: int) -> None:
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/keys")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                try:
                    if not issuer.drips:
                        self.wfile.write(body)
                        return
                    for byte in body:
                        self.wfile.write(bytes([byte]))
                        time.sleep(0.2)
                except OSError:  # the broker gave up
                    pass

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
