"""SASL OAUTHBEARER: a token from an issuer's endpoint, by client credentials, or from a file.

Driver and executors each fetch tokens by themselves: credentials travel with the options, tokens do not. A process has
one `TokenSource` for the same settings, whatever the library that logs in. HTTP is imported at the first fetch: every
worker loads this module, and few log in by token.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

import kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from fleetlog.spark.client.kafka_names import KAFKA_PREFIX
from fleetlog.spark.client.token_settings import (
    CLIENT_ID,
    CLIENT_SECRET,
    ENDPOINT,
    EXTENSIONS,
    SCOPE,
    TOKEN_KEYWORDS,
    URL_ENCODE,
    login_extensions,
)

if TYPE_CHECKING:
    import urllib.error
    import urllib.request

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token
_WORD: Final = re.compile(r"[\w.-]{1,80}")
_FETCH_S = 10.0
_ANSWER_BYTES_MAX = 1 << 20
_RENEWED_AFTER = 0.8
"""Of a token's lifetime, as in Java's client."""
_TRY_AGAIN = frozenset({408, 425, 429})

logger = logging.getLogger(__name__)


class TokenRefused(kafka.errors.KafkaError):  # type: ignore[misc]
    """The issuer gives no token, or none that can be used; a retry does not cure it."""


class TokenUnavailable(kafka.errors.KafkaError):  # type: ignore[misc]
    """The issuer cannot be reached, or asks to come back later."""

    retriable = True


class Token(NamedTuple):
    """A token; ``expires_s`` and ``renewed_s`` in seconds since 1970."""

    text: str
    expires_s: float
    renewed_s: float


class TokenSource(AbstractTokenProvider):  # type: ignore[misc]
    """Fetches tokens when they are needed, and keeps one for the most of its lifetime. For use from several threads.

    ``settings``: the keywords of `TOKEN_KEYWORDS`, checked.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__()
        self._settings = dict(settings)
        self._lock = threading.Lock()
        self._token: Token | None = None

    def token(self) -> str:
        """By kafka-python, at each login. Raises TokenRefused, TokenUnavailable."""
        return self.current().text

    def extensions(self) -> dict[str, str]:
        """By kafka-python, at each login."""
        return login_extensions(self._of(EXTENSIONS))

    def for_librdkafka(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """``oauth_cb`` of confluent-kafka, which calls it from a thread of its own."""
        token = self.current()
        return token.text, token.expires_s, "", self.extensions()

    def current(self) -> Token:
        """A token that is good for a while. Raises TokenRefused, TokenUnavailable."""
        url = self._of(ENDPOINT)
        with self._lock:
            now_s = time.time()
            if url.startswith("file:"):
                return _from_file(unquote(urlsplit(url).path))
            if self._token is None or now_s >= self._token.renewed_s:
                try:
                    self._token = self._fetched(url, now_s)
                except TokenUnavailable as problem:
                    if self._token is None or now_s >= self._token.expires_s:
                        raise
                    logger.warning("%s; the token that is here is used until it expires", problem)
            return self._token

    def _of(self, name: str) -> str:
        return self._settings.get(TOKEN_KEYWORDS[name], "")

    def _fetched(self, url: str, now_s: float) -> Token:
        import http.client
        import urllib.error
        import urllib.request

        pair = [self._of(name) for name in (CLIENT_ID, CLIENT_SECRET)]
        if self._of(URL_ENCODE).lower() == "true":
            pair = [quote_plus(text) for text in pair]
        form = {"grant_type": "client_credentials", **({"scope": self._of(SCOPE)} if self._of(SCOPE) else {})}
        headers = {
            "Authorization": "Basic " + base64.b64encode(":".join(pair).encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        what = f"the token endpoint {url}"
        request = urllib.request.Request(url, urlencode(form).encode(), headers, method="POST")
        try:
            answer = json.loads(_post(request))
            text, lasts_s = answer["access_token"], float(answer.get("expires_in") or 0)
        except urllib.error.HTTPError as error:
            said = f"{what} refused client {self._of(CLIENT_ID)}: {error.code}{_reason(error)}"
            again = error.code >= 500 or error.code in _TRY_AGAIN
            raise (TokenUnavailable if again else TokenRefused)(said) from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or str(error) or type(error).__name__
            raise TokenUnavailable(f"{what} cannot be reached: {why}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TokenRefused(f"{what} answers no token: access_token is missing in what should be JSON") from None
        return _usable(what, text, now_s, lasts_s)


def _from_file(path: str) -> Token:
    try:
        text = Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no token"
        raise TokenRefused(f"the file {path} of option {KAFKA_PREFIX}{ENDPOINT} cannot be read: {why}") from None
    return _usable(f"the file {path}", text, time.time(), 0.0)


def _usable(what: str, text: Any, now_s: float, lasts_s: float) -> Token:
    """Raises TokenRefused for what is no token, and for one that says nothing of its end. Brokers check signatures."""
    if not isinstance(text, str) or not _TOKEN.fullmatch(text):
        raise TokenRefused(f"{what} has no token: letters, digits and -._~+/ are expected, and the signs = at its end")
    expires_s = _end_of(text) or (now_s + lasts_s if lasts_s > 0 else None)
    if expires_s is None:
        raise TokenRefused(f"{what} has a token without an end: neither a claim exp, nor expires_in beside it")
    if expires_s <= now_s:
        raise TokenRefused(f"{what} has a token that expired {now_s - expires_s:.0f} s ago: renew it, or set the clock")
    return Token(text, expires_s, now_s + (expires_s - now_s) * _RENEWED_AFTER)


def _end_of(token: str) -> float | None:
    """The claim ``exp`` of a signed token; None for other tokens."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        return None


def _post(request: urllib.request.Request) -> bytes:
    """The answer's body. Raises urllib.error.HTTPError, OSError, HTTPException."""
    import ssl
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """The secret goes to the address that was named, and to no other."""

    deadline = time.monotonic() + _FETCH_S
    handlers: list[urllib.request.BaseHandler] = [
        NoRedirects(), urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    ]  # fmt: skip
    if request.type == "http":  # on this machine
        handlers.append(urllib.request.ProxyHandler({}))
    body = bytearray()
    with urllib.request.build_opener(*handlers).open(request, timeout=_FETCH_S) as answer:
        while part := answer.read1(65_536):
            body += part
            if len(body) > _ANSWER_BYTES_MAX:
                raise OSError(f"its answer has more than {_ANSWER_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise OSError(f"it took longer than {_FETCH_S:.0f} s")
    return bytes(body)


def _reason(error: urllib.error.HTTPError) -> str:
    """The word that RFC 6749 has for the refusal, where the answer has one. Nothing else of it is shown."""
    import http.client

    try:
        word = json.loads(error.read(65_536))["error"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return f" {word}" if isinstance(word, str) and _WORD.fullmatch(word) else ""


_sources: dict[tuple[tuple[str, str], ...], TokenSource] = {}
_sources_lock = threading.Lock()


def token_source(settings: Mapping[str, str]) -> TokenSource:
    """The process's source for these settings, under the keywords of `TOKEN_KEYWORDS`; made at the first call."""
    key = tuple(sorted(settings.items()))
    with _sources_lock:
        return _sources.setdefault(key, TokenSource(settings))


def with_tokens(keywords: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's keywords, with a provider of tokens where settings of tokens are among them."""
    names = set(TOKEN_KEYWORDS.values())
    given = {name: value for name, value in keywords.items() if name in names}
    if not given:
        return keywords
    rest = {name: value for name, value in keywords.items() if name not in names}
    return {**rest, "sasl_oauth_token_provider": token_source(given)}
