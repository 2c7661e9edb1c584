"""What differs between ``fleet.yaml`` and a fleet, as changes that can be shown and made. Pure.

Only what the file names is looked at. Nothing is deleted but, with ``prune``: settings of topics, ACLs of principals
and quotas of entities that the file names, which it does not have. Topics and users are never deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from fleetlog.brokers.cli.fleet_file import AclRow, Entity, FleetFile, TopicWanted, UserWanted
from fleetlog.brokers.cli.output import count_text, number_text
from fleetlog.brokers.inert_settings import KAFKA_TOPIC_SETTINGS
from fleetlog.brokers.setting_kinds import ConfigError
from fleetlog.brokers.topic_config import TOPIC_SETTINGS

OF_MOVES: Final = frozenset({"leader.replication.throttled.replicas", "follower.replication.throttled.replicas"})
"""Settings that a move of replicas sets and removes."""


class TopicFound(NamedTuple):
    """A topic of the fleet: partitions, the replication factors of its partitions, settings that are its own."""

    partitions: int
    factors: frozenset[int]
    config: Mapping[str, str]


class FleetFound(NamedTuple):
    """What the fleet has. Users by mechanism with their iterations."""

    topics: Mapping[str, TopicFound]
    users: Mapping[str, Mapping[str, int]]
    acls: Collection[AclRow]
    quotas: Mapping[Entity, Mapping[str, float]]


class CreateTopic(NamedTuple):
    """A topic that does not exist."""

    name: str
    wanted: TopicWanted

    def __str__(self) -> str:
        count, factor, config = self.wanted
        said = [count_text(count, "partition") if count else "default partitions"]
        said += [count_text(factor, "replica") if factor else "default replicas"]
        return f"+ topic {self.name}: {', '.join([*said, *(f'{name}={text}' for name, text in config.items())])}"


class AddPartitions(NamedTuple):
    """More partitions of a topic."""

    name: str
    present: int
    wanted: int

    def __str__(self) -> str:
        return f"~ topic {self.name}: {count_text(self.wanted, 'partition')} instead of {self.present}"


class AlterTopic(NamedTuple):
    """A setting of a topic; back to its default with ``wanted`` None."""

    name: str
    setting: str
    present: str | None
    wanted: str | None

    def __str__(self) -> str:
        instead = "" if self.present is None else f" instead of {self.present}"
        return f"~ topic {self.name}: {self.setting}={'its default' if self.wanted is None else self.wanted}{instead}"


class Impossible(NamedTuple):
    """A difference that no change of this command can end; ``advice`` says what does."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"! {self.what}: {self.advice}"


class SetPassword(NamedTuple):
    """Credentials of a user that it does not have, or not with as many iterations."""

    name: str
    mechanisms: tuple[str, ...]
    wanted: UserWanted

    def __str__(self) -> str:
        cost = count_text(self.wanted.iterations, "iteration")
        return f"+ user {self.name}: {', '.join(self.mechanisms)} with {cost}"


class AlterAcl(NamedTuple):
    """An ACL to add, or to remove."""

    row: AclRow
    removed: bool

    def __str__(self) -> str:
        kind, name, pattern, verdict, operation, principal, host = self.row
        return (
            f"{'-' if self.removed else '+'} acl: {verdict} {operation} on {pattern} {kind} {name} for {principal}"
            + (f" from {host}" if host != "*" else "")
        )


class AlterQuota(NamedTuple):
    """A quota of an entity; removed with ``wanted`` None."""

    entity: Entity
    key: str
    present: float | None
    wanted: float | None

    def __str__(self) -> str:
        kinds = ("user", "client id", "address")
        named = ", ".join(f"{kind} {name}" for kind, name in zip(kinds, self.entity, strict=True) if name)
        if self.wanted is None:
            return f"- quota of {named}: {self.key}={number_text(self.present or 0.0)}"
        instead = "" if self.present is None else f" instead of {number_text(self.present)}"
        return (
            f"{'+' if self.present is None else '~'} quota of {named}: {self.key}={number_text(self.wanted)}{instead}"
        )


FleetChange = CreateTopic | AddPartitions | AlterTopic | Impossible | SetPassword | AlterAcl | AlterQuota


def differences(wanted: FleetFile, found: FleetFound, prune: bool) -> list[FleetChange]:
    """The changes that make the fleet what the file says, in the order in which they are made."""
    changes: list[FleetChange] = []
    for name, topic in sorted((wanted.topics or {}).items()):
        changes += _of_topic(name, topic, found.topics.get(name), prune)
    for name, user in sorted((wanted.users or {}).items()):
        present = found.users.get(name, {})
        missing = tuple(one for one in user.mechanisms if present.get(one) != user.iterations)
        if missing:
            changes.append(SetPassword(name, missing, user))
    rows = wanted.acls or frozenset()
    changes += [AlterAcl(row, False) for row in sorted(rows - set(found.acls))]
    if prune:
        principals = {row[5] for row in rows}
        changes += [AlterAcl(row, True) for row in sorted(set(found.acls) - rows) if row[5] in principals]
    for entity, rates in sorted((wanted.quotas or {}).items()):
        standing = found.quotas.get(entity, {})
        changes += [
            AlterQuota(entity, key, standing.get(key), rate) for key, rate in sorted(rates.items())
            if standing.get(key) != rate
        ]  # fmt: skip
        if prune:
            changes += [AlterQuota(entity, key, standing[key], None) for key in sorted(set(standing) - set(rates))]
    return changes


def _of_topic(name: str, wanted: TopicWanted, found: TopicFound | None, prune: bool) -> list[FleetChange]:
    if found is None:
        return [CreateTopic(name, wanted)]
    changes: list[FleetChange] = []
    if wanted.partitions is not None and wanted.partitions != found.partitions:
        if wanted.partitions < found.partitions:
            what = f"topic {name}: {count_text(wanted.partitions, 'partition')} instead of {found.partitions}"
            changes.append(Impossible(what, "a topic never loses partitions; make another one"))
        else:
            changes.append(AddPartitions(name, found.partitions, wanted.partitions))
    if wanted.replication is not None and found.factors != {wanted.replication}:
        factors = " and ".join(map(str, sorted(found.factors)))
        what = f"topic {name}: {count_text(wanted.replication, 'replica')} instead of {factors}"
        changes.append(Impossible(what, "move replicas with `fleetlog topics reassign`"))
    for setting, text in sorted(wanted.config.items()):
        present = found.config.get(setting)
        if present is None or not _same(setting, present, text):
            changes.append(AlterTopic(name, setting, present, text))
    if prune:
        surplus = set(found.config) - set(wanted.config) - OF_MOVES
        changes += [AlterTopic(name, setting, found.config[setting], None) for setting in sorted(surplus)]
    return changes


def _same(setting: str, one: str, other: str) -> bool:
    row = (TOPIC_SETTINGS | KAFKA_TOPIC_SETTINGS)[setting]
    try:
        return bool(row.parse(one) == row.parse(other))
    except ConfigError:
        return one == other
