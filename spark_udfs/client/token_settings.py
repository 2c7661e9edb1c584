"""Settings of a login by token, under Java's and librdkafka's names, brought to one form. Pure: no client is loaded."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from fleetlog.spark.client.failures import OptionError
from fleetlog.spark.client.kafka_names import KAFKA_PREFIX
from fleetlog.spark.client.options import boolean

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
"""Settings of tokens, with the keywords of this package, which `tokens.with_tokens` turns into kafka-python's."""

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
    login_extensions(settings.get(EXTENSIONS, ""))


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


def login_extensions(text: str) -> dict[str, str]:
    """``name=value,...``; the values travel in the login as they are. Raises OptionError."""
    extensions = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not (equals and name.isalpha() and name.isascii() and name != "auth") or not re.fullmatch(
            r"[\x20-\x7e]+", value
        ):
            raise OptionError(
                f"option {KAFKA_PREFIX}{EXTENSIONS}: it must be name=value,... with names of letters, and not auth"
            )
        extensions[name] = value
    return extensions
