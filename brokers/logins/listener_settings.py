"""What the settings say about logins: the mechanisms of each listener with SASL, and how brokers log in themselves.

A listener with SASL that is configured by half ends the start: each error names one setting and what to do. Values of
JAAS lines are in no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fleetlog.brokers.addresses import SASL_PROTOCOLS
from fleetlog.brokers.config import LISTENER_PREFIX, BrokerConfig
from fleetlog.brokers.logins.jaas import BadJaasLine, JaasLine, LoginModule, parse_jaas
from fleetlog.brokers.logins.mechanism_names import MECHANISMS, PASSWORD_MECHANISMS, SCRAM_MECHANISMS
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.logins.oidc_settings import VALIDATOR_HANDLERS, OidcSettings, oidc_settings
from fleetlog.brokers.logins.plain import PLAIN, plain_message
from fleetlog.brokers.logins.principals import has_outer_blanks
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError

_ENABLED: Final = "sasl.enabled.mechanisms"
_JAAS: Final = "sasl.jaas.config"
_REAUTH: Final = "connections.max.reauth.ms"
_OWN_CODE: Final = ("callback.handler.class", "sasl.login.class", "principal.builder.class")
_DEFAULT_BUILDER: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
_MODULES: Final = {
    PLAIN: LoginModule.PLAIN,
    OAUTHBEARER: LoginModule.OAUTHBEARER,
    **dict.fromkeys(SCRAM_MECHANISMS, LoginModule.SCRAM),
}
_UNSECURED: Final = "unsecured"
_OF_OIDC: Final = "sasl.oauthbearer."


_REMOVE_UNSECURED: Final = (
    "such tokens are never accepted here; remove it, and set sasl.oauthbearer.jwks.endpoint.url, .expected.issuer and "
    ".expected.audience"
)
_NO_TOKENS_OF_BROKERS: Final = "brokers do not log in at each other by OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class ClientLogin:
    """How this side logs in. The password is not shown by ``repr``."""

    mechanism: str
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ListenerLogins:
    """How clients of one listener log in.

    ``passwords`` are PLAIN's users; those of SCRAM are in ZooKeeper, and ``oidc`` says whose tokens are accepted.
    ``reauth_ms`` is the longest session by mechanism.
    """

    mechanisms: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    reauth_ms: Mapping[str, int]
    oidc: OidcSettings | None = None

    @property
    def has_scram(self) -> bool:
        """Whether credentials of ZooKeeper are needed."""
        return any(mechanism in SCRAM_MECHANISMS for mechanism in self.mechanisms)


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """The logins of all listeners with SASL, by name, and the broker's own at others; None: without one."""

    listeners: Mapping[str, ListenerLogins]
    own: ClientLogin | None

    @property
    def has_scram(self) -> bool:
        """Whether a listener needs credentials of ZooKeeper."""
        return any(logins.has_scram for logins in self.listeners.values())


def login_settings(config: BrokerConfig) -> LoginSettings:
    """Raises ConfigError where a listener with SASL lacks something, or something is set that would be ignored."""
    secured = [end.listener for end in config.listener_endpoints() if end.security_protocol in SASL_PROTOCOLS]
    _check_prefixes(config, secured)
    listeners = {name: _listener_logins(config, name) for name in secured}
    inside = config.inter_broker_listener()
    own = _own_login(config, inside, listeners[inside]) if inside in listeners else None
    return LoginSettings(listeners, own)


def _check_prefixes(config: BrokerConfig, secured: list[str]) -> None:
    """Settings of logins for a listener that has none would look like protection, and be none."""
    for name, text in config.given:
        own_code = name.endswith(_OWN_CODE) and ("sasl" in name or "principal.builder" in name)
        if secured and own_code and text.strip() not in {"", _DEFAULT_BUILDER, *VALIDATOR_HANDLERS}:
            if _UNSECURED in text.lower():
                raise ConfigError(name, text, f"accepts tokens without a signature: {_REMOVE_UNSECURED}")
            raise ConfigError(name, text, "cannot be loaded here: remove it; mechanisms are served as they are")
        if not name.startswith(LISTENER_PREFIX):
            continue
        listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
        if not rest.endswith((_ENABLED, _JAAS, _REAUTH)) and _OF_OIDC not in rest:
            continue
        config.check_of_listener(name, text, SASL_PROTOCOLS, "login")
        if rest == _JAAS:
            raise ConfigError(
                name, HIDDEN, f"must name the mechanism: {LISTENER_PREFIX}{listener}.plain.{_JAAS}, or scram-sha-256"
                " or scram-sha-512 instead of plain",
            )  # fmt: skip


def _listener_logins(config: BrokerConfig, listener: str) -> ListenerLogins:
    own = config.of_listener(listener)
    prefix = f"{LISTENER_PREFIX}{listener.lower()}."
    mechanisms = _mechanisms(config, own, prefix)
    lines = {}
    for rest, text in own.items():
        if rest.startswith(_OF_OIDC) and OAUTHBEARER not in mechanisms:
            mechanism = OAUTHBEARER
        elif rest.endswith(("." + _JAAS, "." + _REAUTH)) or f".{_OF_OIDC}" in rest:
            mechanism = rest.removesuffix("." + _JAAS).removesuffix("." + _REAUTH).partition(f".{_OF_OIDC}")[0].upper()
        else:
            continue
        if mechanism not in mechanisms:
            listed = ", ".join(mechanisms)
            raise ConfigError(prefix + rest, text, f"{mechanism} is not enabled there; enabled are {listed}")
        if rest.endswith(_JAAS):
            lines[mechanism] = _jaas_line(prefix + rest, text, mechanism)
    passwords = lines[PLAIN].passwords if PLAIN in lines else {}
    if PLAIN in mechanisms and not passwords:
        raise ConfigError(
            f"{prefix}plain.{_JAAS}", HIDDEN if PLAIN in lines else "",
            f'must name the users of PLAIN: {LoginModule.PLAIN.value} required user_alice="alice\'s password";',
        )  # fmt: skip
    for user, password in passwords.items():
        if not user or not password:
            raise ConfigError(
                f"{prefix}plain.{_JAAS}", HIDDEN, 'a user has no name or no password: write user_alice="her password"'
            )
        if has_outer_blanks(user):
            raise ConfigError(f"{prefix}plain.{_JAAS}", HIDDEN, f"the user {user!r} begins or ends with a blank")
    oidc = oidc_settings(config, listener) if OAUTHBEARER in mechanisms else None
    reauth_ms = {one: _reauth_ms(config, own, prefix, one) for one in mechanisms}
    return ListenerLogins(mechanisms, passwords, reauth_ms, oidc)


def _mechanisms(config: BrokerConfig, own: Mapping[str, str], prefix: str) -> tuple[str, ...]:
    name, mechanisms = _ENABLED, config.sasl_enabled_mechanisms
    if _ENABLED in own:
        name = prefix + _ENABLED
        mechanisms = tuple(item.strip() for item in own[_ENABLED].split(",") if item.strip())
    given = ",".join(mechanisms)
    if not mechanisms:
        raise ConfigError(name, given, f"is empty: name some of {', '.join(MECHANISMS)}")
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            allowed = ", ".join(MECHANISMS)
            raise ConfigError(name, given, f"{mechanism} is not served: name some of {allowed}")
    return tuple(dict.fromkeys(mechanisms))


def _jaas_line(name: str, text: str, mechanism: str) -> JaasLine:
    try:
        line = parse_jaas(text)
    except BadJaasLine as error:
        raise ConfigError(name, HIDDEN, f"is no JAAS line: {error}") from None
    wanted = _MODULES[mechanism]
    if line.module is not wanted:
        raise ConfigError(name, HIDDEN, f"has the login module of another mechanism: {mechanism} has {wanted.value}")
    if mechanism == OAUTHBEARER and any(option.startswith(_UNSECURED) for option in line.options):
        raise ConfigError(name, HIDDEN, f"has options of tokens without a signature: {_REMOVE_UNSECURED}")
    if mechanism == OAUTHBEARER and line.options:
        raise ConfigError(name, HIDDEN, f"must have no options: {_NO_TOKENS_OF_BROKERS}")
    return line


def _reauth_ms(config: BrokerConfig, own: Mapping[str, str], prefix: str, mechanism: str) -> int:
    for rest in (f"{mechanism.lower()}.{_REAUTH}", _REAUTH):
        if rest in own:
            if not own[rest].isdecimal() or not own[rest].isascii() or len(own[rest]) > 18:
                raise ConfigError(prefix + rest, own[rest], "must be a number of ms, 0 for no limit")
            return int(own[rest])
    return config.connections_max_reauth_ms


def _own_login(config: BrokerConfig, listener: str, logins: ListenerLogins) -> ClientLogin:
    """How this broker logs in at others, whose listener of that name is configured as its own."""
    mechanism = config.sasl_mechanism_inter_broker_protocol
    if mechanism == OAUTHBEARER:
        others = ", ".join(PASSWORD_MECHANISMS)
        name = "sasl.mechanism.inter.broker.protocol"
        raise ConfigError(name, mechanism, f"{_NO_TOKENS_OF_BROKERS}: set one of {others}, and enable it, too")
    if mechanism not in logins.mechanisms:
        raise ConfigError(
            "sasl.mechanism.inter.broker.protocol", mechanism,
            f"brokers use listener {listener}, whose mechanisms are {', '.join(logins.mechanisms)}: set one of them",
        )  # fmt: skip
    name = f"{LISTENER_PREFIX}{listener.lower()}.{mechanism.lower()}.{_JAAS}"
    text = dict(config.given).get(name)
    login = _jaas_line(name, text, mechanism).login if text else None
    if login is None:
        raise ConfigError(
            name, HIDDEN if text else "", "must have the broker's own login, username=\"...\" password=\"...\", because"
            f" brokers use listener {listener}",
        )  # fmt: skip
    user, password = login
    try:
        plain_message(user, password)
    except ValueError:
        raise ConfigError(name, HIDDEN, "username and password must not contain NUL") from None
    if has_outer_blanks(user):
        raise ConfigError(name, HIDDEN, f"the username {user!r} begins or ends with a blank")
    if mechanism == PLAIN and logins.passwords.get(user) != password:
        raise ConfigError(
            name,
            HIDDEN,
            'the broker\'s own user must be one of the users with the same password: user_<username>="..."',
        )
    return ClientLogin(mechanism, user, password)
