"""What the settings say about the connection to ZooKeeper: TLS, the login there, and the ACLs of znodes.

Kafka 3.9's names (``zookeeper.ssl.*``, ``zookeeper.clientCnxnSocket``, ``zookeeper.set.acl``), and
``zookeeper.digest.credentials``, which Kafka has in a JAAS file. What is configured by half ends the start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from fleetlog.brokers.inert_settings import ZOOKEEPER_SETTINGS
from fleetlog.brokers.setting_kinds import HIDDEN, ConfigError, suggest
from fleetlog.brokers.tls.contexts import CertificateFiles, FollowedContexts, TlsContext, client_context
from fleetlog.brokers.tls.settings import TlsSettings
from fleetlog.coordination.connect import ConnectionSecurity

ZOOKEEPER_PREFIX: Final = "zookeeper."
SECRET_PATHS: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens", "/fleetlog/login_secret")
"""Kafka's, the credentials of users, and settings of brokers with passwords; and the secret of the fleet's logins."""

_TLS_PREFIX: Final = "zookeeper.ssl."
_ENABLE: Final = "zookeeper.ssl.client.enable"
_SOCKET: Final = "zookeeper.clientCnxnSocket"
_SET_ACL: Final = "zookeeper.set.acl"
_DIGEST: Final = "zookeeper.digest.credentials"
_NETTY: Final = "org.apache.zookeeper.ClientCnxnSocketNetty"
_STORES: Final = ("ssl.keystore", "ssl.truststore")
_KINDS: Final = {".pem": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12", ".jks": "JKS"}
_NOT_SERVED: Final = ("zookeeper.ssl.crl.enable", "zookeeper.ssl.ocsp.enable")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ZookeeperSettings:
    """``tls`` is None without it; ``digest`` is ``user:password``, or empty."""

    tls: TlsSettings | None
    digest: str = field(repr=False)
    sets_acls: bool

    @classmethod
    def of(cls, given: Mapping[str, str]) -> ZookeeperSettings:
        """From settings by their names; those that are none of ZooKeeper's security are left alone.

        Raises ConfigError.
        """
        ours = (name for name in given if name in ZOOKEEPER_SETTINGS or name.startswith(_TLS_PREFIX))
        named = {name: given[name].strip() for name in ours}
        for name, text in named.items():
            if name not in ZOOKEEPER_SETTINGS:
                raise ConfigError(name, text, f"there is no such setting{suggest(name, ZOOKEEPER_SETTINGS)}")
        tls = _tls(named)
        digest = named.get(_DIGEST, "")
        user, colon, password = digest.partition(":")
        if digest and not (user and colon and password):
            raise ConfigError(_DIGEST, HIDDEN, "must be user:password, as ZooKeeper's scheme digest has them")
        sets_acls = _is_true(named, _SET_ACL)
        if sets_acls and not digest and (tls is None or tls.keystore is None):
            raise ConfigError(
                _SET_ACL, "true", f"needs a login at ZooKeeper, which the znodes then belong to: set {_DIGEST}, or with"
                f" {_ENABLE}=true zookeeper.ssl.keystore.location, the same subject on every broker",
            )  # fmt: skip
        return cls(tls, digest, sets_acls)

    def context(self, settings: TlsSettings, now_s: float) -> TlsContext:
        """As ``client_context``, with errors that name ZooKeeper's settings. Raises ConfigError."""
        try:
            return client_context(settings, now_s)
        except ConfigError as error:
            if error.name != "zookeeper.ssl.key.password":
                raise
            raise ConfigError("zookeeper.ssl.keystore.password", error.value, error.allowed) from None

    def connection(self, now_s: Callable[[], float]) -> ConnectionSecurity:
        """Ready for the store; ``now_s`` is the time in seconds since 1970. Raises ConfigError."""
        contexts = None
        if self.tls is not None:
            files = CertificateFiles(self.tls, self.context, now_s())
            for warning in files.current.warnings:
                logger.warning("%s", warning)
            contexts = FollowedContexts(files, now_s, "connections to ZooKeeper")
        elif self.digest:
            logger.warning("%s passes the network as it is: set %s=true", _DIGEST, _ENABLE)
        logins = (("digest", self.digest),) if self.digest else ()
        newest = None if contexts is None else contexts.newest
        return ConnectionSecurity(newest, logins, self.sets_acls, SECRET_PATHS)


def _tls(named: Mapping[str, str]) -> TlsSettings | None:
    stores = [name for name in named if name.startswith(("zookeeper.ssl.keystore.", "zookeeper.ssl.truststore."))]
    if not _is_true(named, _ENABLE):
        for name in stores:
            if named[name]:
                raise ConfigError(name, named[name], f"has no effect without TLS: set {_ENABLE}=true, or remove it")
        return None
    if named.get(_SOCKET, _NETTY) not in {_NETTY, ""}:
        raise ConfigError(_SOCKET, named[_SOCKET], f"is without TLS: set {_NETTY}, or {_ENABLE}=false")
    for name in _NOT_SERVED:
        if _is_true(named, name):
            raise ConfigError(name, "true", "revoked certificates are not looked up here: remove it")
    dropped = {_ENABLE, _SOCKET, _SET_ACL, _DIGEST, *_NOT_SERVED}
    given = {name.removeprefix(ZOOKEEPER_PREFIX): text for name, text in named.items() if name not in dropped}
    for store in _STORES:
        location = given.get(f"{store}.location", "")
        kind = next((kind for end, kind in _KINDS.items() if location.lower().endswith(end)), "")
        if kind and not given.get(f"{store}.type"):
            given[f"{store}.type"] = kind  # as ZooKeeper finds it
    if given.get("ssl.keystore.type", "").upper() == "PEM" and "ssl.keystore.password" in given:
        given["ssl.key.password"] = given.pop("ssl.keystore.password")  # ZooKeeper has one name for both
    return TlsSettings.of({name: text for name, text in given.items() if text or "algorithm" in name}, ZOOKEEPER_PREFIX)


def _is_true(named: Mapping[str, str], name: str) -> bool:
    text = named.get(name, "").lower()
    if text not in {"", "true", "false"}:
        raise ConfigError(name, text, "must be true or false")
    return text == "true"
