"""Quotas in ZooKeeper and in DescribeClientQuotas and AlterClientQuotas: names, values, filters, alterations.

``/config/users/<u>``, ``/config/users/<u>/clients/<c>``, ``/config/clients/<c>``, ``/config/ips/<ip>``, with
``<default>`` as the name of defaults. Values stand as text in the ``config`` map, which for users also holds SCRAM
credentials: other names in it are left alone.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from enum import IntEnum
from typing import Final, NamedTuple

from fleetlog.brokers.metadata.znodes import BadZnode, desanitised, sanitised
from fleetlog.brokers.quotas.image import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Default,
    Entity,
    Name,
    QuotaKey,
)
from fleetlog.wire.errors import ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
_FIELDS: Final = {USER: "user", CLIENT_ID: "client_id", IP: "ip"}

CLIENT_KEYS: Final = {
    key.name: key for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
}
IP_KEYS: Final = {CONNECTION_CREATION_RATE.name: CONNECTION_CREATION_RATE}


class QuotaRequestRefused(Exception):
    """A request about quotas that is answered with an error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def keys_of(entity: Entity) -> Mapping[str, QuotaKey]:
    """The quotas that an entity may have, by name."""
    return CLIENT_KEYS if entity.ip is None else IP_KEYS


# ---------------------------------------------------------------- znodes


def _segment(name: str | Default) -> str:
    return name.value if isinstance(name, Default) else sanitised(name)


def _name(segment: str) -> str | Default:
    return DEFAULT if segment == DEFAULT.value else desanitised(segment)


def entity_path(entity: Entity) -> str:
    """The path below ``/config``, as change nodes name it (``entity_path``): e.g. ``users/alice/clients/app``."""
    if entity.ip is not None:
        return f"ips/{entity.ip.value if isinstance(entity.ip, Default) else entity.ip}"
    parts = [f"users/{_segment(entity.user)}"] if entity.user is not None else []
    parts += [f"clients/{_segment(entity.client_id)}"] if entity.client_id is not None else []
    return "/".join(parts)


def entity_at(path: str) -> Entity:
    """Inverse of :func:`entity_path`; raises BadZnode."""
    try:
        match path.split("/"):
            case ["users", user]:
                entity = Entity(user=_name(user))
            case ["users", user, "clients", client]:
                entity = Entity(user=_name(user), client_id=_name(client))
            case ["clients", client]:
                entity = Entity(client_id=_name(client))
            case ["ips", ip]:
                entity = Entity(ip=DEFAULT if ip == DEFAULT.value else ip)
            case _:
                raise BadZnode(path, "not the path of an entity with quotas")
    except UnicodeDecodeError:
        raise BadZnode(path, "not a sanitised name") from None
    if "" in entity:
        raise BadZnode(path, "an empty name")
    return entity


def quotas_from(path: str, config: Mapping[str, str]) -> dict[str, int]:
    """The rates, in thousandths, in the ``config`` map of an entity's znode; raises BadZnode.

    At least a thousandth: 0 would never let a client go on.
    """
    quotas = {}
    for name in keys_of(entity_at(path)):
        if name in config:
            try:
                rate = Decimal(config[name])
                if not rate < 2**63:
                    raise ValueError(name)
                quotas[name] = math.ceil(max(rate, Decimal("0.001")) * 1000)
            except (InvalidOperation, ValueError):
                raise BadZnode(path, f"{name} is not a number") from None
    return quotas


# ---------------------------------------------------------------- DescribeClientQuotas


class MatchType(IntEnum):
    """How a component of a filter names entities, numbered as on the wire."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Component(NamedTuple):
    """One part of a filter; ``match`` is a name for EXACT only."""

    entity_type: str
    match_type: int
    match: str | None


def check_components(components: Sequence[Component]) -> None:
    """Raises QuotaRequestRefused for components that cannot be."""
    types = [component.entity_type for component in components]
    for kind, match_type, match in components:
        _check_type(kind)
        if types.count(kind) > 1:
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} filter component entity type")
        if match_type not in set(MatchType):
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Unexpected match type: {match_type}")
        if (match_type == MatchType.EXACT) != (match is not None):
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, "A name is given if and only if it must match exactly")
    if IP in types and len(types) > 1:
        raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, "Invalid entity filter component combination")


def _check_type(kind: str) -> None:
    if not kind:
        raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, "Unexpected empty entity type")
    if kind not in _FIELDS:
        raise QuotaRequestRefused(ErrorCode.UNSUPPORTED_VERSION, f"Custom entity type '{kind}' not supported")


def entity_matches(entity: Entity, components: Iterable[Component], strict: bool) -> bool:
    """Whether an entity is asked for: each component must match; strict: it must name no other type."""
    names: dict[str, Name] = {kind: getattr(entity, name) for kind, name in _FIELDS.items()}
    for kind, match_type, match in components:
        name = names.pop(kind)
        if name is None:
            return False
        if match_type == MatchType.EXACT and name != match:
            return False
        if match_type == MatchType.DEFAULT and name is not DEFAULT:
            return False
    return not strict or all(name is None for name in names.values())


# ---------------------------------------------------------------- AlterClientQuotas


class QuotaAlteration(NamedTuple):
    """One quota to set or to remove."""

    key: str
    value: float
    remove: bool


def entity_of(parts: Sequence[tuple[str, str | None]]) -> Entity:
    """The entity that a request names by type and name (None: the default). Raises QuotaRequestRefused."""
    names: dict[str, Name] = {}
    for kind, name in parts:
        _check_type(kind)
        if _FIELDS[kind] in names:
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Duplicate {kind} entity type")
        if name == "":
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
        names[_FIELDS[kind]] = DEFAULT if name is None else name
    entity = Entity(**names)
    if not names or (entity.ip is not None and len(names) > 1):
        raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, "Invalid client quota entity")
    if isinstance(entity.ip, str):
        try:
            return Entity(ip=str(ipaddress.ip_address(entity.ip)))
        except ValueError:
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"{entity.ip} is not an IP address") from None
    return entity


def altered_config(entity: Entity, config: Mapping[str, str], alterations: Iterable[QuotaAlteration]) -> dict[str, str]:
    """An entity's ``config`` map after the alterations; all else in it stays. Raises QuotaRequestRefused."""
    altered = dict(config)
    for name, value, remove in alterations:
        key = keys_of(entity).get(name)
        if key is None:
            raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {name}")
        if remove:
            altered.pop(name, None)
        else:
            altered[name] = _value_text(key, value)
    return altered


def _value_text(key: QuotaKey, value: float) -> str:
    if not math.isfinite(value) or value <= 0 or value >= 2**63:
        raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Quota {key.name} must be greater than 0")
    if not key.whole:
        return repr(float(value))
    # Clients compute rates as floating-point numbers: what is next to an integer is meant to be one.
    if abs(value - round(value)) > 1e-6:
        raise QuotaRequestRefused(ErrorCode.INVALID_REQUEST, f"Configuration {key.name} must be a whole number")
    return str(round(value))
