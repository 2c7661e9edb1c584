"""A test issuer: keys that rotate, a JWKS and a token endpoint on 127.0.0.1, and tokens with any fault."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path != "/keys":
                    self.send_error(404)
                    return
                issuer.fetches += 1
                self._answer(issuer.document, issuer.status)

            def do_POST(self) -> None:
                """The token endpoint, for client credentials."""
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                wanted = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
                if self.path != "/token" or self.headers.get("Authorization") != f"Basic {wanted}":
                    self._answer(b'{"error":"invalid_client"}', 401)
                    return
                answer = {
                    "access_token": issuer.token(sub=CLIENT_ID), "token_type": "Bearer",
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
