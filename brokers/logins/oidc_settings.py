"""What the settings say about OAUTHBEARER on a listener: where the issuer's keys are, and what a token must say.

Each setting may stand behind ``listener.name.NAME.oauthbearer.``, behind ``listener.name.NAME.``, or alone, in this
order. Keys, issuer and audience are required: without one of them a token of anybody would be accepted
(CVE-2026-33557). None of these settings can be changed without a restart: an address that a client may set would be
fetched by the broker (CVE-2025-27817).
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from fleetlog import how_to_install
from fleetlog.brokers.config import BROKER_SETTINGS, LISTENER_PREFIX, BrokerConfig
from fleetlog.brokers.logins.token_claims import TokenRules
from fleetlog.brokers.setting_kinds import ConfigError

VALIDATOR_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
"""Kafka's names of the class that checks tokens by an issuer's keys: accepted, because the broker does the same."""

_PREFIX: Final = "sasl.oauthbearer."
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_SKEW_S_MAX: Final = 3600
_REFRESH_MS_MIN: Final = 1000


class OidcSettings(NamedTuple):
    """OAUTHBEARER on one listener. Times are in ms."""

    keys_url: str
    rules: TokenRules
    refresh_ms: int
    retry_ms: int
    retry_max_ms: int


class _Of:
    """The settings of one listener."""

    def __init__(self, config: BrokerConfig, listener: str) -> None:
        self._given = dict(config.given)
        self._prefix = f"{LISTENER_PREFIX}{listener.lower()}."

    def text(self, name: str) -> tuple[str, str]:
        """The setting that counts, and its text; of one that is not given the most exact name, and its default."""
        names = (f"{self._prefix}oauthbearer.{_PREFIX}{name}", f"{self._prefix}{_PREFIX}{name}", _PREFIX + name)
        for full in names:
            if full in self._given:
                return full, self._given[full].strip()
        return names[0], BROKER_SETTINGS[_PREFIX + name].format(BROKER_SETTINGS[_PREFIX + name].default) or ""

    def required(self, name: str, what: str) -> tuple[str, str]:
        """Raises ConfigError where it is missing or empty."""
        full, text = self.text(name)
        if not text:
            raise ConfigError(full, "", f"OAUTHBEARER needs {what}: set it, or take OAUTHBEARER off the mechanisms")
        return full, text

    def number(self, name: str, low: int, high: int | None = None) -> int:
        """Raises ConfigError."""
        full, text = self.text(name)
        return int(BROKER_SETTINGS[_PREFIX + name]._replace(name=full, low=low, high=high).parse(text))


def oidc_settings(config: BrokerConfig, listener: str) -> OidcSettings:
    """The settings of a listener with OAUTHBEARER. Raises ConfigError where one is missing or cannot be used."""
    if find_spec("joserfc") is None:
        raise ConfigError(
            "sasl.enabled.mechanisms", "OAUTHBEARER", f"needs the package joserfc: {how_to_install('oidc')}"
        )
    of = _Of(config, listener)
    url_name, url = of.required("jwks.endpoint.url", "the address of the issuer's keys (JWKS)")
    _check_url(url_name, url)
    _, issuer = of.required("expected.issuer", "the issuer whose tokens are accepted (their claim iss)")
    audience_name, listed = of.required("expected.audience", "the audience of its tokens (one of their claim aud)")
    audiences = frozenset(item.strip() for item in listed.split(",") if item.strip())
    if not audiences:
        raise ConfigError(audience_name, listed, "names no audience")
    subject, scope = of.required("sub.claim.name", "a claim's name")[1], of.required("scope.claim.name", "a name")[1]
    rules = TokenRules(issuer, audiences, of.number("clock.skew.seconds", 0, _SKEW_S_MAX), subject, scope)
    retry_ms = of.number("jwks.endpoint.retry.backoff.ms", 1)
    return OidcSettings(
        url,
        rules,
        of.number("jwks.endpoint.refresh.ms", _REFRESH_MS_MIN),
        retry_ms,
        max(retry_ms, of.number("jwks.endpoint.retry.backoff.max.ms", 1)),
    )


def _check_url(name: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError(name, url, "is no address: write https://host/path, or file:///path") from None
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ConfigError(name, "", "must have neither a user nor a fragment")
    if parts.scheme == "file" and not host and parts.path.startswith("/"):
        return
    if parts.scheme == "https" and host:
        return
    if parts.scheme == "http" and host:
        if host in _LOOPBACK:
            return
        raise ConfigError(
            name, url, "http is for an issuer on this machine only (127.0.0.1, ::1, localhost): a key that passes a "
            "network in clear text can be replaced there. Set https",
        )  # fmt: skip
    raise ConfigError(name, url, "must begin with https:// and a host, or with file:///")
