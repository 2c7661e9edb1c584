"""Login at an issuer: the authorization code flow with PKCE. The access token is what logs in at the brokers.

Nothing is kept between the two halves: the browser's cookie has a random number, signed; the state, the nonce and the
proof of PKCE are derived from it by the console's secret. The brokers check the token; the console only reads it.
Source: RFC 6749, RFC 7636 (PKCE), RFC 9207 (iss), RFC 9700, OpenID Connect Core 1.0 (3.1) and Discovery 1.0.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from fleetlog.brokers.cli.options import is_loopback
from fleetlog.brokers.cli.outside import direct_opener
from fleetlog.brokers.console.asking import PageError
from fleetlog.brokers.console.clients import UserLogin
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER

ANSWER_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 1 << 20
LOGIN_S: Final = 600.0
"""How long a login at the issuer may take."""
TOKEN_CHARS_MAX: Final = 32_768
SKEW_S: Final = 30.0
LASTS_S: Final = 300.0
"""How long a session lasts whose token does not say when it ends; brokers refuse such tokens."""
CALLBACK: Final = "/login/oidc/callback"


class IssuerError(Exception):
    """The issuer cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class IssuerOptions:
    """How the console is known to an issuer. ``secret`` is empty for a public client."""

    issuer: str
    client_id: str
    secret: str
    scope: str

    def __repr__(self) -> str:
        return f"IssuerOptions({self.issuer!r}, {self.client_id!r})"


class TokenLogin(NamedTuple):
    """A login by a token, how long it lasts, and where the browser wanted to go."""

    login: UserLogin
    lasts_s: float
    onward: str


class OidcLogin:
    """One issuer. Raises IssuerError where it does not answer, or says what it must not."""

    def __init__(self, options: IssuerOptions, wall_s: Callable[[], float] = time.time) -> None:
        self.issuer, self._options, self._wall_s = options.issuer.rstrip("/"), options, wall_s
        self._secret = secrets.token_bytes(32)
        self._opener = direct_opener()
        _check_address("--oidc-issuer", options.issuer)
        metadata = self._answer(urllib.request.Request(f"{self.issuer}/.well-known/openid-configuration"))
        if str(metadata.get("issuer", "")).rstrip("/") != self.issuer:
            raise IssuerError(f"{self.issuer} says that it is the issuer {str(metadata.get('issuer'))[:200]!r}")
        self._authorize = str(metadata.get("authorization_endpoint", ""))
        self._token = str(metadata.get("token_endpoint", ""))
        for name, url in (("authorization_endpoint", self._authorize), ("token_endpoint", self._token)):
            _check_address(name, url)
        methods = metadata.get("code_challenge_methods_supported")
        if isinstance(methods, list) and "S256" not in methods:
            raise IssuerError(f"{self.issuer} has no PKCE with S256")

    # ---- the two halves --------------------------------------------------------------------------------------------

    def begin(self, onward: str, redirect: str) -> tuple[str, str]:
        """The cookie of this login, and the issuer's address for the browser."""
        named = f"{int(self._wall_s())}.{secrets.token_urlsafe(24)}.{_coded(onward.encode())}"
        cookie = f"{named}.{self._derived('cookie', named)}"
        query = {
            "response_type": "code", "client_id": self._options.client_id, "redirect_uri": redirect,
            "scope": self._options.scope, "state": self._derived("state", cookie),
            "nonce": self._derived("nonce", cookie), "code_challenge_method": "S256",
            "code_challenge": _coded(hashlib.sha256(self._derived("proof", cookie).encode()).digest()),
        }  # fmt: skip
        mark = "&" if urlsplit(self._authorize).query else "?"
        return cookie, f"{self._authorize}{mark}{urlencode(query)}"

    def finish(self, cookie: str, params: Mapping[str, str], redirect: str) -> TokenLogin:
        """The login by what the issuer sent the browser back with. Raises PageError."""
        onward = self._onward(cookie)
        if not hmac.compare_digest(params.get("state", "").encode(), self._derived("state", cookie).encode()):
            raise PageError(403, "this login was begun by another page; begin again")
        if params.get("iss", self.issuer).rstrip("/") != self.issuer:
            raise PageError(403, "another issuer answers than the one that was asked")
        if "error" in params:
            reason = params.get("error_description") or params["error"]
            raise PageError(403, f"the issuer refuses the login: {reason[:300]}")
        try:
            answer = self._exchanged(params.get("code", ""), self._derived("proof", cookie), redirect)
        except IssuerError as error:
            raise PageError(502, str(error)) from None
        token = str(answer.get("access_token", ""))
        if not re.fullmatch(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+", token[: TOKEN_CHARS_MAX + 1]):
            raise PageError(502, "the issuer's access token is not a JWT, which brokers need")
        if len(token) > TOKEN_CHARS_MAX:
            raise PageError(502, f"the issuer's access token has more than {TOKEN_CHARS_MAX} characters")
        if "id_token" in answer or "openid" in self._options.scope.split():
            self._check_identity(str(answer.get("id_token", "")), self._derived("nonce", cookie))
        claims = _claims(token)
        user = str(claims.get("preferred_username") or claims.get("sub") or "")[:200]
        expires = claims.get("exp")
        lasts_s = expires - self._wall_s() if isinstance(expires, int | float) else LASTS_S
        return TokenLogin(UserLogin(user or "a token", token, OAUTHBEARER), lasts_s, onward)

    def _onward(self, cookie: str) -> str:
        """Where the browser wanted to go; raises PageError for a cookie that is not ours, or too old."""
        named, _, signature = cookie.rpartition(".")
        parts = named.split(".")
        ours = hmac.compare_digest(self._derived("cookie", named).encode(), signature.encode())
        if not ours or len(parts) != 3 or not 0 <= self._wall_s() - int(parts[0]) <= LOGIN_S:
            raise PageError(403, "the login took too long, or was begun in another browser; begin again")
        return _decoded(parts[2]).decode()

    def _check_identity(self, token: str, nonce: str) -> None:
        """The ID token came from the issuer's own address: what it says is checked, not its signature (3.1.3.7)."""
        claims = _claims(token)
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        expires = claims.get("exp")
        if (
            str(claims.get("iss", "")).rstrip("/") != self.issuer
            or self._options.client_id not in audiences
            or (len(audiences) > 1 and claims.get("azp") != self._options.client_id)
            or not hmac.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode())
            or not isinstance(expires, int | float)
            or expires < self._wall_s() - SKEW_S
        ):
            raise PageError(502, "the issuer's ID token is not one for this login")

    # ---- asking the issuer -----------------------------------------------------------------------------------------

    def _exchanged(self, code: str, proof: str, redirect: str) -> dict[str, Any]:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "code_verifier": proof}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if self._options.secret:
            pair = f"{quote(self._options.client_id, '')}:{quote(self._options.secret, '')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form["client_id"] = self._options.client_id
        return self._answer(urllib.request.Request(self._token, urlencode(form).encode(), headers, method="POST"))

    def _answer(self, request: urllib.request.Request) -> dict[str, Any]:
        where = request.full_url.partition("?")[0]
        try:
            with self._opener.open(request, timeout=ANSWER_S) as answer:
                body = answer.read(ANSWER_BYTES_MAX + 1)
            document = json.loads(body) if len(body) <= ANSWER_BYTES_MAX else None
        except urllib.error.HTTPError as error:
            text = error.read(500).decode(errors="replace")
            raise IssuerError(f"{where} answers {error.code}: {_reason(text)}") from None
        except OSError as error:
            raise IssuerError(f"{where} does not answer: {getattr(error, 'reason', None) or error}") from None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise IssuerError(f"{where} answers no JSON object")
        return document

    def _derived(self, purpose: str, text: str) -> str:
        return _coded(hmac.new(self._secret, f"{purpose} {text}".encode(), hashlib.sha256).digest())


def _check_address(name: str, url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname and not parts.fragment:
        return
    if parts.scheme != "http" or not is_loopback(parts.hostname or "") or parts.fragment:
        raise IssuerError(f"{name} {url[:200]!r} must begin with https://, or be on this machine")


def _reason(text: str) -> str:
    """The error in an answer of a token endpoint."""
    try:
        document = json.loads(text)
        return str(document.get("error_description") or document.get("error") or "")[:300]
    except (ValueError, AttributeError, RecursionError):
        return ""


def _claims(token: str) -> dict[str, Any]:
    """What a token says, unchecked."""
    try:
        claims = json.loads(_decoded(token.split(".")[1]))
    except (ValueError, IndexError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}


def _coded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
