"""Who asks the registry, by a login at the brokers, and what they may do, by the fleet's access control lists.

A subject S is the topic ``schemas:S``, a name that no topic can have; what is of all subjects is the cluster's. A name
and password, or a token, is tried at a broker, and is taken as it is for a minute once a broker has taken it, a token
to its end at most. The ACLs and the super users are those that the brokers describe to the registry's own login, read
anew every five seconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import math
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from fleetlog.brokers.acls.decisions import AclRules
from fleetlog.brokers.acls.image import (
    CLUSTER_NAME,
    AccessControlEntry,
    AclImage,
    AclOperation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from fleetlog.brokers.audit.events import LOGGER, AclDecision, authorizer_line
from fleetlog.brokers.cli.acls import EVERYTHING, NamedResource, described_acls
from fleetlog.brokers.cli.admin_client import AdminClient
from fleetlog.brokers.cli.client import Target, admin, raise_for_code, takes_login
from fleetlog.brokers.cli.login_probe import LoginRefused
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.cli.overview import settings_told
from fleetlog.brokers.console.clients import UserLogin
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER
from fleetlog.brokers.logins.principals import USER, Principal, has_outer_blanks, parse_super_users
from fleetlog.brokers.schemas.registry import RegistryRefusal
from fleetlog.brokers.setting_kinds import ConfigError

logger = logging.getLogger(__name__)
decisions_log = logging.getLogger(LOGGER)

TOPIC_PREFIX: Final = "schemas:"
LOGIN_S: Final = 60.0
"""How long a login that a broker took is good for."""
LOGINS_KEPT: Final = 10_000
READ_S: Final = 5.0
STALE_S: Final = 60.0
"""Rights that were read longer ago decide nothing."""
_SETTINGS: Final = ("authorizer.class.name", "super.users", "allow.everyone.if.no.acl.found")
_SUBJECT_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"


class RegistryUser(NamedTuple):
    """Who asks: a principal as ``Type:name``, and the address that the request came from, as ACLs have it."""

    principal: str
    host: str


def resource_of(subject: str | None) -> tuple[ResourceType, str]:
    """The resource of a subject or a context's settings; None: of what belongs to all."""
    return (ResourceType.CLUSTER, CLUSTER_NAME) if subject is None else (ResourceType.TOPIC, TOPIC_PREFIX + subject)


class Callers:
    """Logins and rights. ``log_in`` waits for a broker; the others do not. For any thread."""

    def __init__(self, target: Target, mechanisms: tuple[str, ...]) -> None:
        self._target, self._mechanisms = target, mechanisms
        self._secret = secrets.token_bytes(32)
        self._logins: dict[bytes, tuple[str, float]] = {}
        self._rules: AclRules | None = None
        self._claim = "sub"
        self._read_s = 0.0
        self._ended = threading.Event()

    def start(self, client: AdminClient) -> None:
        """Read the rights, and follow them. Raises CliError."""
        self._read(client)
        threading.Thread(target=self._follow, name="rights", daemon=True).start()

    def close(self) -> None:
        """Follow them no more."""
        self._ended.set()

    # ---- logins ----------------------------------------------------------------------------------------------------

    @property
    def challenge(self) -> bytes:
        """What a request without a login is told to send."""
        kinds = ["Bearer"] if self._mechanisms == (OAUTHBEARER,) else ["Basic"]
        return ", ".join(f'{kind} realm="fleetlog"' for kind in kinds).encode()

    def known(self, authorization: str) -> str | None:
        """The principal of an ``Authorization`` that a broker took within the last minute."""
        principal, until_s = self._logins.get(self._key(authorization), ("", 0.0))
        return principal if time.monotonic() < until_s else None

    def log_in(self, authorization: str) -> str:
        """The principal of an ``Authorization``, which a broker is asked for. Raises RegistryRefusal: 401, 50001."""
        login, ends_s = self._login_of(authorization)
        target = replace(self._target, properties=login.properties(self._target.properties))
        try:
            taken = takes_login(target)
        except (LoginRefused, ConfigError):
            logger.warning("a login of %s by %s was refused", ascii(login.user[:100]), login.mechanism)
            raise unauthorized() from None
        if not taken:
            raise RegistryRefusal(50001, "no broker answers, which would check the login; ask again")
        principal, kept = str(Principal(USER, login.user)), self._logins
        good_s = min(LOGIN_S, ends_s - time.time())
        if len(kept) >= LOGINS_KEPT:
            now_s = time.monotonic()
            kept = {key: row for key, row in list(kept.items())[LOGINS_KEPT // 2 :] if row[1] > now_s}
        self._logins = {**kept, self._key(authorization): (principal, time.monotonic() + good_s)}
        return principal

    def _key(self, authorization: str) -> bytes:
        return hmac.digest(self._secret, authorization.encode("utf-8", "surrogatepass"), hashlib.sha256)

    def _login_of(self, authorization: str) -> tuple[UserLogin, float]:
        """The login, and when it ends, in seconds since the epoch: a password has no end."""
        kind, _, text = authorization.strip().partition(" ")
        passwords = next((one for one in self._mechanisms if one != OAUTHBEARER), None)
        if kind.lower() == "bearer" and OAUTHBEARER in self._mechanisms:
            name, ends_s = token_subject(text.strip(), self._claim)
            return UserLogin(name, text.strip(), OAUTHBEARER), ends_s
        if kind.lower() != "basic" or passwords is None:
            raise unauthorized()
        try:
            user, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
        except ValueError:
            raise unauthorized() from None
        if not colon or not user or not password or has_outer_blanks(user) or "\0" in user + password:
            raise unauthorized()
        return UserLogin(user, password, passwords), math.inf

    # ---- rights ----------------------------------------------------------------------------------------------------

    def allows(self, caller: RegistryUser, operation: AclOperation, subject: str | None) -> bool:
        """Whether they may do that with the subject; None: with what belongs to all. Raises RegistryRefusal: 50001."""
        if behind := self.behind():
            raise RegistryRefusal(50001, f"{behind}; ask again")
        rules = self._rules
        return rules is None or rules.allows(*caller, operation, *resource_of(subject))

    @property
    def age_s(self) -> float:
        """How old the rights are that decide."""
        return time.monotonic() - self._read_s

    def behind(self) -> str:
        """Why nobody is let in; empty if the rights are known."""
        old_s = self.age_s
        return f"the brokers have not told the fleet's ACLs for {old_s:.0f} s" if old_s > STALE_S else ""

    def check(self, caller: RegistryUser, operation: AclOperation, subject: str | None, request: str) -> None:
        """The same, with a line in the log of decisions where it is refused or changes something, and is a ``request``.

        Raises RegistryRefusal: 40301, 50001.
        """
        allowed = self.allows(caller, operation, subject)
        if request and (not allowed or operation not in {AclOperation.DESCRIBE, AclOperation.READ}):
            decision = AclDecision(*caller, request, operation, *resource_of(subject), allowed)
            decisions_log.info("%s", authorizer_line(decision))
        if not allowed:
            about = "the cluster" if subject is None else f"subject {subject[:100]}"
            name = operation.name.title().replace("_", "")
            raise RegistryRefusal(40301, f"{caller.principal} is denied operation {name} on {about}")

    def _follow(self) -> None:
        """A large fleet's ACLs are read less often: a twentieth of the time, at most, goes into it."""
        pause_s = READ_S
        while not self._ended.wait(pause_s):
            try:
                with admin(self._target, "the fleet's ACLs") as client:
                    while not self._ended.is_set():
                        begun_s = time.monotonic()
                        self._read(client)
                        pause_s = min(max(READ_S, 20 * (time.monotonic() - begun_s)), STALE_S / 4)
                        self._ended.wait(pause_s)
            except (CliError, OSError) as error:
                logger.warning("the fleet's rights are read again: %s", error)
            except Exception:  # without this thread nobody would be let in any more
                logger.exception("a fault while the fleet's rights were read; they are read again")

    def _read(self, client: AdminClient) -> None:
        begun_s = time.monotonic()
        described = _described(client, min(self._target.timeout_s, READ_S))
        self._claim = described[0].get(_SUBJECT_CLAIM) or "sub"
        if not any(settings.get(_SETTINGS[0], "").strip() for settings in described):
            self._rules = None
        else:
            users = frozenset.intersection(*(parse_super_users(one.get(_SETTINGS[1], "")) for one in described))
            anybody = all(one.get(_SETTINGS[2], "").strip().lower() == "true" for one in described)
            self._rules = AclRules(AclImage(_entries(client)), users, anybody)
        self._read_s = begun_s


def unauthorized() -> RegistryRefusal:
    """A login that is missing, or that no broker takes."""
    return RegistryRefusal(401, "Unauthorized")


def token_subject(token: str, claim: str) -> tuple[str, float]:
    """The claim of a token that names its principal, and its end, in seconds since the epoch.

    Whether the token is good, a broker says.

    Raises RegistryRefusal: 401.
    """
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        name, ends_s = claims[claim], float(claims["exp"])
    except (ValueError, LookupError, TypeError, RecursionError, OverflowError):
        raise unauthorized() from None
    if not isinstance(name, str) or not name or has_outer_blanks(name) or math.isnan(ends_s):
        raise unauthorized()
    return name, ends_s


def _described(client: AdminClient, timeout_s: float) -> list[dict[str, str]]:
    """The settings of rights of each broker that answers. Raises CliError."""
    brokers = [broker.node_id for broker in client._manager.cluster.brokers()]
    rows = list(settings_told(client, brokers, [*_SETTINGS, _SUBJECT_CLAIM], timeout_s).values())
    for row in rows:
        raise_for_code("the brokers' settings of rights", row.error_code, row.error_message)
    if not rows:
        raise CliError("no broker tells its settings of rights")
    return [{one.name: one.value or "" for one in row.configs} for row in rows]


def _entries(client: AdminClient) -> Mapping[ResourcePattern, frozenset[AccessControlEntry]]:
    """The ACLs of topics and of the cluster. Raises CliError."""
    by_pattern: dict[ResourcePattern, set[AccessControlEntry]] = {}
    wanted = EVERYTHING._replace(
        resources=[NamedResource(one, None) for one in (ResourceType.TOPIC, ResourceType.CLUSTER)]
    )
    for row in described_acls(client, wanted, "the fleet's ACLs"):
        pattern = ResourcePattern(ResourceType(row.resource_type), row.resource_name, PatternType(row.pattern_type))
        by_pattern.setdefault(pattern, set()).update(
            AccessControlEntry(one.principal, one.host, AclOperation(one.operation), Permission(one.permission_type))
            for one in row.acls
        )
    return {pattern: frozenset(entries) for pattern, entries in by_pattern.items()}
