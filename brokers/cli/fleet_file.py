"""``fleet.yaml``: the topics, users, ACLs and quotas that a fleet is to have, as values.

Each key is known or refused: a misspelt one would be a right or a limit that is not there. JSON is read without PyYAML.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from fleetlog import how_to_install
from fleetlog.brokers.acls.hosts import host_as_acls_have_it
from fleetlog.brokers.acls.image import CLUSTER_NAME, WILDCARD
from fleetlog.brokers.acls.znodes import OPERATION_NAMES
from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.inert_settings import KAFKA_TOPIC_SETTINGS
from fleetlog.brokers.logins.principals import BadPrincipal, granted_principal
from fleetlog.brokers.logins.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism
from fleetlog.brokers.quotas.entities import CLIENT_KEYS, IP_KEYS
from fleetlog.brokers.setting_kinds import ConfigError, suggest
from fleetlog.brokers.topic_config import TOPIC_SETTINGS

SECTIONS: Final = ("topics", "users", "acls", "quotas")
_TOPIC: Final = ("partitions", "replication", "config")
_USER: Final = ("mechanisms", "iterations", "password_file", "password_env")
_RESOURCES: Final = {"topic": "Topic", "group": "Group", "transactional_id": "TransactionalId", "cluster": "Cluster"}
_ACL: Final = (*_RESOURCES, "pattern", "principal", "host", "allow", "deny")
_ENTITY: Final = ("user", "client_id", "ip")
_QUOTAS: Final = {**CLIENT_KEYS, **IP_KEYS}
_PATTERNS: Final = ("literal", "prefixed")
RATE_END: Final = 2**63
"""Brokers refuse a quota of this much; infinity and what is no number are not below it."""
_TOO_DEEP: Final = "lists or mappings stand within each other far too deeply; a section has three levels"
MECHANISMS: Final = tuple(mechanism.value for mechanism in ScramMechanism)


class TopicWanted(NamedTuple):
    """A topic; None where the file says nothing."""

    partitions: int | None
    replication: int | None
    config: dict[str, str]


class UserWanted(NamedTuple):
    """A user that logs in by SCRAM. The password is read from a file or a variable only when it is set."""

    mechanisms: tuple[str, ...]
    iterations: int
    password_file: str | None
    password_env: str | None


AclRow = tuple[str, str, str, str, str, str, str]
"""Type and name of the resource, pattern, permission, operation, principal, host: a row of ``fleetlog acls list``."""

Entity = tuple[str, str, str]
"""User, client id, address; "" for none, ``<default>`` for all others."""


class FleetFile(NamedTuple):
    """What the file says; a section that is not in it is None, and nothing is asked about it."""

    topics: dict[str, TopicWanted] | None
    users: dict[str, UserWanted] | None
    acls: frozenset[AclRow] | None
    quotas: dict[Entity, dict[str, float]] | None


def read_fleet(text: str, source: str) -> FleetFile:
    """Parse and check; raises CliError that names the place, what stands there and what is allowed."""
    content = _Place(source, "").mapping(_parsed(text, source), SECTIONS)

    def section(name: str) -> Any:
        return content.get(name) if name in content else None

    place = _Place(source, "")
    topics, users, acls, quotas = map(section, SECTIONS)
    return FleetFile(
        None if topics is None else _topics(place.at("topics"), topics),
        None if users is None else _users(place.at("users"), users),
        None if acls is None else frozenset(row for row in _acls(place.at("acls"), acls)),
        None if quotas is None else _quotas(place.at("quotas"), quotas),
    )


def _parsed(text: str, source: str) -> Any:
    if source.endswith(".json"):
        try:
            return json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, source))
        except ValueError as error:
            raise CliError(f"{source}: no JSON: {error}") from None
        except RecursionError:
            raise CliError(f"{source}: {_TOO_DEEP}") from None
    try:
        import yaml
    except ImportError:
        raise CliError(f"YAML needs PyYAML: {how_to_install('apply')}; a file FLEET.json does not") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            self.flatten_mapping(node)
            pairs = [
                (self.construct_object(key, True), self.construct_object(value, True)) for key, value in node.value
            ]
            return _once(pairs, f"{source}:{node.start_mark.line + 1}")

    Loader.add_constructor(
        yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, lambda loader, node: loader.construct_mapping(node, True)
    )
    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, TypeError) as error:
        raise CliError(f"{source}: no YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise CliError(f"{source}: {_TOO_DEEP}") from None


def _once(pairs: Iterable[tuple[Any, Any]], source: str) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise CliError(f"{source}: {key} stands twice")
        entries[key] = value
    return entries


class _Place:
    """Where in the file something stands; what is wrong there is a CliError."""

    def __init__(self, source: str, path: str) -> None:
        self.source, self.path = source, path

    def at(self, key: object) -> _Place:
        return _Place(self.source, f"{self.path}.{key}" if self.path else str(key))

    def wrong(self, text: str) -> CliError:
        return CliError(f"{self.source}: {self.path or 'the file'}: {text}")

    def mapping(self, value: Any, known: Iterable[str] | None = None) -> dict[str, Any]:
        """Raises CliError for anything but a mapping, and for keys that are not known."""
        if not isinstance(value, dict):
            raise self.wrong("must be a mapping, key: value")
        for key in value:
            if not isinstance(key, str):
                raise self.wrong(f"the key {key!r} must be a text: write it between quotes")
            if known is not None and key not in known:
                hint = suggest(key, known) or f"; there are {', '.join(known)}"
                raise self.at(key).wrong(f"unknown key{hint}")
        return value

    def listed(self, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise self.wrong("must be a list")
        return value

    def text(self, value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise self.wrong(f"{value!r} must be a text")
        return value

    def number(self, value: Any, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.wrong(f"{value!r} must be a whole number from {low} to {high}")
        return value


def _topics(place: _Place, value: Any) -> dict[str, TopicWanted]:
    topics = {}
    for name, content in place.mapping(value).items():
        here = place.at(name)
        one = here.mapping(content if content is not None else {}, _TOPIC)
        topics[name] = TopicWanted(
            here.at("partitions").number(one["partitions"], 1, 1_000_000) if "partitions" in one else None,
            here.at("replication").number(one["replication"], 1, 32_767) if "replication" in one else None,
            _topic_config(here.at("config"), one.get("config", {})),
        )
    return topics


def _topic_config(place: _Place, value: Any) -> dict[str, str]:
    known = TOPIC_SETTINGS | KAFKA_TOPIC_SETTINGS
    configs = {}
    for name, given in place.mapping(value).items():
        row = known.get(name)
        if row is None:
            raise place.at(name).wrong(f"is no setting of a topic{suggest(name, known)}")
        text = setting_text(given)
        if text is None:
            raise place.at(name).wrong(f"{given!r} must be a text, a number, true or false, or a list of texts")
        try:
            row.parse(text)
        except ConfigError as error:
            raise place.wrong(str(error)) from None
        configs[name] = text
    return configs


def setting_text(value: Any) -> str | None:
    """A setting's text as a properties file has it; None for what cannot be one."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    return None


def _users(place: _Place, value: Any) -> dict[str, UserWanted]:
    users = {}
    for name, content in place.mapping(value).items():
        here = place.at(name)
        one = here.mapping(content, _USER)
        mechanisms = here.at("mechanisms").listed(one.get("mechanisms", list(MECHANISMS)))
        for mechanism in mechanisms:
            if mechanism not in MECHANISMS:
                raise here.at("mechanisms").wrong(f"{mechanism!r} must be one of {', '.join(MECHANISMS)}")
        file, variable = one.get("password_file"), one.get("password_env")
        if (file is None) == (variable is None):
            raise here.wrong(
                "give password_file or password_env, where the password is; it does not stand in this file"
            )
        iterations = here.at("iterations").number(one.get("iterations", ITERATIONS_MIN), ITERATIONS_MIN, ITERATIONS_MAX)
        users[name] = UserWanted(
            tuple(mechanisms), iterations,
            None if file is None else here.at("password_file").text(file),
            None if variable is None else here.at("password_env").text(variable),
        )  # fmt: skip
    return users


def _acls(place: _Place, value: Any) -> Iterable[AclRow]:
    operations = {name.lower(): name for name in OPERATION_NAMES.values()}
    for index, content in enumerate(place.listed(value)):
        here = place.at(index)
        one = here.mapping(content, _ACL)
        resources = [key for key in _RESOURCES if key in one]
        if len(resources) != 1:
            raise here.wrong(f"give one of {', '.join(_RESOURCES)}")
        verdicts = [key for key in ("allow", "deny") if key in one]
        if len(verdicts) != 1:
            raise here.wrong("give allow or deny, with a list of operations")
        if "principal" not in one:
            raise here.wrong("principal is missing, for example User:alice")
        (resource,), (verdict,) = resources, verdicts
        pattern = one.get("pattern", "literal")
        if pattern not in _PATTERNS or (resource == "cluster" and pattern != "literal"):
            raise here.at("pattern").wrong(f"{pattern!r} must be {' or '.join(_PATTERNS)}; of the cluster literal")
        name = CLUSTER_NAME if resource == "cluster" else here.at(resource).text(one[resource])
        principal = here.at("principal").text(one["principal"])
        try:
            granted_principal(principal)
        except BadPrincipal as error:
            raise here.at("principal").wrong(str(error)) from None
        host = host_as_acls_have_it(here.at("host").text(one.get("host", WILDCARD)))
        for operation in here.at(verdict).listed(one[verdict]):
            spelled = operations.get(str(operation).lower())
            if spelled is None:
                raise here.at(verdict).wrong(
                    f"{operation!r} is no operation{suggest(str(operation), operations.values())}"
                )
            yield (_RESOURCES[resource], name, pattern, verdict.capitalize(), spelled, principal, host)


def _quotas(place: _Place, value: Any) -> dict[Entity, dict[str, float]]:
    quotas: dict[Entity, dict[str, float]] = {}
    for index, content in enumerate(place.listed(value)):
        here = place.at(index)
        one = here.mapping(content, (*_ENTITY, *_QUOTAS))
        user, client_id, address = (here.at(key).text(one[key]) if key in one else "" for key in _ENTITY)
        if not (user or client_id or address) or (address and (user or client_id)):
            raise here.wrong("give user, client_id or both, or ip; <default> stands for all others")
        allowed: Mapping[str, Any] = IP_KEYS if address else CLIENT_KEYS
        rates = {key: number for key, number in one.items() if key not in _ENTITY}
        for key, number in rates.items():
            if key not in allowed:
                raise here.at(key).wrong(f"is no quota of such an entity; there are {', '.join(allowed)}")
            if not isinstance(number, int | float) or isinstance(number, bool) or not 0 < number < RATE_END:
                raise here.at(key).wrong(f"{number!r} must be a number above 0 and below 2^63")
        if not rates:
            raise here.wrong(f"names no quota; there are {', '.join(allowed)}")
        entity = (user, client_id, address)
        if entity in quotas:
            raise here.wrong("stands twice: give all quotas of an entity together")
        quotas[entity] = {key: float(number) for key, number in rates.items()}
    return quotas
