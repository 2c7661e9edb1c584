"""SASL OAUTHBEARER: a token from an issuer's endpoint, by client credentials, or from a file.

Driver and executors each fetch tokens by themselves: credentials travel with the options, tokens do not. A process has
one `TokenSource` for the same settings, whatever the library that logs in.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ipaddress
import json
import logging
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, unquote, urlencode, urlsplit

import kafka.errors
from kafka.net.sasl.oauth import AbstractTokenProvider

from spark_udfs.client.failures import OptionError
from spark_udfs.client.kafka_names import KAFKA_PREFIX
from spark_udfs.client.options import boolean

OAUTHBEARER: Final = "OAUTHBEARER"
ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
EXTENSIONS: Final = "sasl.oauthbearer.extensions"
URL_ENCODE: Final = "sasl.oauthbearer.header.urlencode"
TOKEN_KEYWORDS: Final = {
    name: name.replace("sasl.oauthbearer.", "oauth_").replace(".", "_")
    for name in (ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, EXTENSIONS, URL_ENCODE)
}
"""Settings of tokens, with the keywords of this package, which :func:`with_tokens` turns into kafka-python's."""

_METHOD, _HANDLER = "sasl.oauthbearer.method", "sasl.login.callback.handler.class"
_RETRIEVER = "sasl.oauthbearer.jwt.retriever.class"
_JAVA = {
    "sasl.oauthbearer.client.credentials.client.id": CLIENT_ID,
    "sasl.oauthbearer.client.credentials.client.secret": CLIENT_SECRET,
}
_JAAS = {"clientId": CLIENT_ID, "clientSecret": CLIENT_SECRET, "scope": SCOPE}
_JAAS_EXTENSION: Final = "extension_"
_MODULE: Final = "OAuthBearerLoginModule"
_OF_JAVA = "org.apache.kafka.common.security.oauthbearer."
_ONLY: Final = {
    _METHOD: ("oidc",),
    _HANDLER: (f"{_OF_JAVA}OAuthBearerLoginCallbackHandler", f"{_OF_JAVA}secured.OAuthBearerLoginCallbackHandler"),
    _RETRIEVER: tuple(f"{_OF_JAVA}{kind}JwtRetriever" for kind in ("Default", "ClientCredentials", "File")),
}
"""What chooses this way to a token in Java and librdkafka; other values are other ways."""

_PAIR: Final = re.compile(r"([\w.]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;\"']+))")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token
_WORD: Final = re.compile(r"[\w.-]{1,80}")
_FETCH_S = 10.0
_ANSWER_BYTES_MAX = 1 << 20
_RENEWED_AFTER = 0.8
"""Of a token's lifetime, as in Java's client."""
_TRY_AGAIN = frozenset({408, 425, 429})

log = logging.getLogger(__name__)


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


# ---------------------------------------------------------------- settings


def take_token_settings(settings: dict[str, str], jaas: str | None, unescaped: Callable[[str], str]) -> None:
    """Bring Java's and librdkafka's names of a login by token to one form, in place. Raises OptionError.

    ``jaas``: the value of ``sasl.jaas.config``; ``unescaped`` reads its quoted texts.
    """
    for name, allowed in _ONLY.items():
        value = settings.pop(name, None)
        if value is not None and value not in allowed and not (name == _METHOD and value.lower() in allowed):
            raise OptionError(
                f"option {KAFKA_PREFIX}{name}: {value!r} is not supported; it may be {' or '.join(allowed)}"
            )
    for name, own in _JAVA.items():
        if name in settings:
            settings[own] = settings.pop(name)
    if jaas is not None:
        _take_jaas(settings, jaas, unescaped)
    _check_protocol(settings)
    _check_endpoint(settings)
    if URL_ENCODE in settings:
        boolean(KAFKA_PREFIX + URL_ENCODE, settings[URL_ENCODE])
    _extensions(settings.get(EXTENSIONS, ""))


def _take_jaas(settings: dict[str, str], jaas: str, unescaped: Callable[[str], str]) -> None:
    option = f"option {KAFKA_PREFIX}sasl.jaas.config"
    module = jaas.split(maxsplit=1)[0] if jaas.strip() else ""
    if not module.endswith(_MODULE):
        raise OptionError(f"{option}: OAUTHBEARER needs the module {_OF_JAVA}{_MODULE}")
    extensions = []
    for name, double, single, bare in _PAIR.findall(jaas):
        value = bare or unescaped(double or single)
        if name.startswith(_JAAS_EXTENSION):
            extensions.append(f"{name.removeprefix(_JAAS_EXTENSION)}={value}")
        elif name in _JAAS:
            settings.setdefault(_JAAS[name], value)
        else:
            known = ", ".join((*_JAAS, f"{_JAAS_EXTENSION}*"))
            raise OptionError(f"{option}: {name} is not supported; supported are {known}")
    if extensions:
        settings.setdefault(EXTENSIONS, ",".join(extensions))


def _check_protocol(settings: Mapping[str, str]) -> None:
    protocol = settings.get("security.protocol", "PLAINTEXT").upper()
    if not protocol.startswith("SASL_"):
        raise OptionError(
            f"option {KAFKA_PREFIX}security.protocol: {protocol} does not log in; OAUTHBEARER needs SASL_SSL, or"
            " SASL_PLAINTEXT in a closed network"
        )


def _check_endpoint(settings: Mapping[str, str]) -> None:
    option, url = f"option {KAFKA_PREFIX}{ENDPOINT}", settings.get(ENDPOINT, "").strip()
    if not url:
        raise OptionError(
            f"{option} is required for OAUTHBEARER: the issuer's https: address, or file:///... with a token"
        )
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        has_user = bool(parts.username or parts.password)
        _ = parts.port  # checks it
    except ValueError:
        raise OptionError(f"{option}: it is not an address") from None
    missing = [name for name in (CLIENT_ID, CLIENT_SECRET) if not settings.get(name)]
    if parts.scheme == "file":
        if host or not parts.path.startswith("/"):
            raise OptionError(f"{option}: a file is named by its whole path, file:///path/to/token")
        if len(missing) < 2 or settings.get(SCOPE):
            raise OptionError(f"{option}: a file has the token itself: remove the client id, client secret and scope")
        return
    if parts.scheme not in ("http", "https") or not host or has_user:
        raise OptionError(f"{option}: it must be https://host/path without a user, or file:///path/to/token")
    if parts.scheme == "http" and not _is_own_machine(host):
        raise OptionError(
            f"{option}: http is for an issuer on the same machine only, as the secret would be read: use https"
        )
    if missing:
        raise OptionError(
            f"option {KAFKA_PREFIX}{missing[0]} is missing, with which a token is fetched: set it, or"
            f" {'clientId' if missing[0] == CLIENT_ID else 'clientSecret'} in {KAFKA_PREFIX}sasl.jaas.config"
        )


def refuse_token_settings(settings: Mapping[str, str]) -> None:
    """Raises OptionError for settings of tokens where the mechanism is another one."""
    for name in sorted({*TOKEN_KEYWORDS, *_JAVA, _METHOD, _HANDLER, _RETRIEVER} & settings.keys()):
        raise OptionError(
            f"option {KAFKA_PREFIX}{name} goes with {KAFKA_PREFIX}sasl.mechanism=OAUTHBEARER: set both, or none"
        )


def _is_own_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _extensions(text: str) -> dict[str, str]:
    """``name=value,...``; the values travel in the login as they are. Raises OptionError."""
    found = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not (equals and name.isalpha() and name.isascii() and name != "auth") or not re.fullmatch(
            r"[\x20-\x7e]+", value
        ):
            raise OptionError(
                f"option {KAFKA_PREFIX}{EXTENSIONS}: it must be name=value,... with names of letters, and not auth"
            )
        found[name] = value
    return found


# ---------------------------------------------------------------- tokens


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
        return _extensions(self._of(EXTENSIONS))

    def for_librdkafka(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """``oauth_cb`` of confluent-kafka, which calls it from a thread of its own."""
        found = self.current()
        return found.text, found.expires_s, "", self.extensions()

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
                    log.warning("%s; the token that is here is used until it expires", problem)
            return self._token

    def _of(self, name: str) -> str:
        return self._settings.get(TOKEN_KEYWORDS[name], "")

    def _fetched(self, url: str, now_s: float) -> Token:
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


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The secret goes to the address that was named, and to no other."""


def _post(request: urllib.request.Request) -> bytes:
    """The answer's body. Raises urllib.error.HTTPError, OSError, HTTPException."""
    deadline = time.monotonic() + _FETCH_S
    handlers: list[urllib.request.BaseHandler] = [
        _NoRedirects(), urllib.request.HTTPSHandler(context=ssl.create_default_context()),
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
