"""TLS of the operators' HTTP endpoint: ``admin.ssl.*``, which mean what ``ssl.*`` mean for listeners."""

from __future__ import annotations

from collections.abc import Callable

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.inert_settings import ADMIN_TLS_PREFIX
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.tls.contexts import CertificateFiles, server_context
from fleetlog.brokers.tls.followed_contexts import FollowedContexts
from fleetlog.brokers.tls.settings import TlsSettings


def admin_contexts(config: BrokerConfig, now_s: Callable[[], float]) -> FollowedContexts | None:
    """The contexts of connections to ``admin.listener``; None without TLS. Raises ConfigError.

    ``now_s`` is the time in seconds since 1970.
    """
    prefix = ADMIN_TLS_PREFIX + "ssl."
    given = {name.removeprefix(ADMIN_TLS_PREFIX): text for name, text in config.given if name.startswith(prefix)}
    if not given:
        return None
    if not config.admin_listener:
        name, text = next(iter(given.items()))
        raise ConfigError(ADMIN_TLS_PREFIX + name, text, "there is no admin.listener: set it, or remove this")
    files = CertificateFiles(TlsSettings.of(given, ADMIN_TLS_PREFIX), server_context, now_s())
    return FollowedContexts(files, now_s, "connections to admin.listener")
