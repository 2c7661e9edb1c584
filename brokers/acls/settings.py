"""What the settings say about authorization: whether there is an authorizer, and which principals are above ACLs.

Kafka's names: ``authorizer.class.name``, ``super.users``, ``allow.everyone.if.no.acl.found``.
"""

from __future__ import annotations

from typing import NamedTuple

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.logins.listener_settings import login_settings
from fleetlog.brokers.logins.principals import ANONYMOUS, USER, Principal, parse_super_users
from fleetlog.brokers.tls.peers import certificate_principal


class AuthorizerSettings(NamedTuple):
    """An authorizer as it is configured. ``super_users`` are principals as ``Type:name``."""

    super_users: frozenset[str]
    allow_if_no_acl: bool

    @classmethod
    def of(cls, config: BrokerConfig) -> AuthorizerSettings | None:
        """The settings of the broker's authorizer; None: it has none."""
        given = dict(config.given)
        if not given.get("authorizer.class.name", "").strip():
            return None
        return cls(
            parse_super_users(given.get("super.users", "")),
            given.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true",
        )


def without_authorizer(config: BrokerConfig) -> str | None:
    """A warning about settings that need an authorizer where there is none, as Kafka starts with them; None: none."""
    given = dict(config.given)
    ineffective = [name for name in ("super.users", "allow.everyone.if.no.acl.found") if given.get(name, "").strip()]
    if broker_principals(config) and "super.users" in ineffective:
        ineffective.remove("super.users")
    if not ineffective or AuthorizerSettings.of(config) is not None:
        return None
    return (
        f"no requests are authorized: {' and '.join(ineffective)} have no effect without authorizer.class.name; "
        "set it to kafka.security.authorizer.AclAuthorizer, or remove them"
    )


def inter_broker_principal(config: BrokerConfig) -> str:
    """The principal with which this broker connects to the others: without login and certificate, that of all clients.

    Reads the certificate, if they ask for it. Raises ConfigError.
    """
    return str(_own_principal(config) or ANONYMOUS)


def _own_principal(config: BrokerConfig) -> Principal | None:
    own = login_settings(config).own
    return certificate_principal(config) if own is None else Principal(USER, own.user)


def broker_principals(config: BrokerConfig) -> frozenset[str]:
    """Without an authorizer: the principals that may do what brokers do; empty where brokers are as all clients.

    They are this broker's own one, of its login or certificate, and those of super.users: brokers with another one are
    named there. Raises ConfigError.
    """
    own = _own_principal(config)
    if own is None:
        return frozenset()
    return parse_super_users(dict(config.given).get("super.users", "")) | {str(own)}


def cannot_replicate(principal: str) -> str:
    """What to do where the brokers' principal may not replicate."""
    return (
        f"the authorizer does not let the brokers replicate: their principal {principal} lacks ClusterAction on the "
        "cluster. Add it to super.users, or add the ACL from a broker that runs (fleetlog acls "
        f"add --allow --principal {principal} --operation ClusterAction --cluster)"
    )
