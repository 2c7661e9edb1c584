"""Finalized features (KIP-584): levels that every broker has, so that clients and brokers may count on them.

They stand in ``/feature``; its version is their epoch. Each registration names what its broker supports. An update and
a registration that come together cannot both succeed unaware of each other: the registration's multi checks the
version of ``/feature`` and writes ``/fleetlog/registrations``, whose version the update's multi checks. A broker of a
version that writes no such znode is known by the count of its incarnations, which the update checks, too.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fleetlog.brokers.metadata import znodes
from fleetlog.brokers.metadata.cache import MetadataCache
from fleetlog.brokers.metadata.config_writes import (
    ATTEMPTS,
    METADATA_WAIT_MS,
    RETRY_SECONDS,
    EntityGone,
    alter_config,
)
from fleetlog.brokers.metadata.loading import children_or_none, read_many
from fleetlog.brokers.metadata.znodes import FeaturesChanged
from fleetlog.brokers.topic_config import TopicConfig
from fleetlog.coordination.changes import entry
from fleetlog.coordination.registration import broker_path, incarnation_path
from fleetlog.coordination.store import Check, MultiFailed, NodeExists, Operation, SetData, Store, UnknownOutcome
from fleetlog.coordination.tree import BROKER_IDS, INCARNATIONS, ensure
from fleetlog.wire.errors import ErrorCode

logger = logging.getLogger(__name__)

GROUP_VERSION: Final = "group.version"
"""Level 1: groups of the consumer protocol (KIP-848) are served, whose records older coordinators skip."""
SCHEMA_VERSION: Final = "fleetlog.schema.version"
"""Level 1: topics may ask for the ids of schemas, which older leaders do not look at; 2: and for payloads of them.

Level 3: what fails may become dead letters, in the producer's transaction: older brokers would take such a letter for
the producer's own batch.
"""
SCHEMA_LETTERS_LEVEL: Final = 3
SHARE_VERSION: Final = "share.version"
"""Level 1: share groups (KIP-932) are served, of whose records and states older brokers know nothing.

Level 2: dead letters (KIP-1191), with which states are written in transactions; groups may set an order by key and
waits between tries.
"""
SHARE_ORDER_LEVEL: Final = 2
TIERING_VERSION: Final = "fleetlog.tiering.version"
"""Level 1: topics may be tiered; older brokers would delete segments that nobody has copied.

Level 2: flags from before wait (``fleetlog.tiering.waits``).
"""
TIERING_WAITS_LEVEL: Final = 2
TIERING_WAITS: Final = "fleetlog.tiering.waits"
SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {
    GROUP_VERSION: (0, 1), SCHEMA_VERSION: (0, 3), SHARE_VERSION: (0, 2), TIERING_VERSION: (0, 2),
    "transaction.version": (0, 2),
}  # fmt: skip
"""What this release supports: the lowest and the highest level."""
NEWEST: Final = {name: high for name, (_, high) in SUPPORTED.items() if name not in (SHARE_VERSION, TIERING_VERSION)}
"""The finalized features of a new cluster: transactions version 2 (KIP-890), groups of both protocols (KIP-848),
and checks of schemas.
"""
REGISTRATIONS: Final = "/fleetlog/registrations"
"""Its version counts the registrations of all brokers; without data."""
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


class LacksFeature(Exception):
    """The cluster has finalized what this version does not support: it must not register."""


class FeatureUpdate(NamedTuple):
    """A feature's new level; 0 takes it away."""

    name: str
    level: int
    upgrade_type: int = UPGRADE


class FeatureOutcome(NamedTuple):
    """What came of an update, for all of its features together."""

    error: ErrorCode = ErrorCode.NONE
    message: str | None = None


async def registration_guards(store: Store) -> list[Operation]:
    """What a registration's multi contains so that it cannot miss an update. Raises LacksFeature, StoreError."""
    await _ensure_both(store)
    data, stat = await store.get(znodes.FEATURE)
    for name, level in znodes.decode_features(data).items():
        low, high = SUPPORTED.get(name, (0, 0))
        if level and not low <= level <= high:
            raise LacksFeature(
                f"the fleet has finalized {name} at level {level}, and this version of fleetlog supports"
                f" {f'{low} to {high}' if high else 'no level of it'}: install the version that the other brokers run"
            )
    return [Check(znodes.FEATURE, stat.version), SetData(REGISTRATIONS, b"", -1)]


async def update_features(
    store: Store, metadata: MetadataCache, updates: Sequence[FeatureUpdate], *, validate_only: bool
) -> FeatureOutcome:
    """All of the updates, or none; when it returns, this broker's ApiVersions shows them. Raises StoreError."""
    for _ in range(ATTEMPTS):
        await _ensure_both(store)
        registrations = await store.exists(REGISTRATIONS)
        assert registrations is not None, "it is never deleted"
        ids = sorted(int(name) for name in await children_or_none(store, INCARNATIONS) if name.isdigit())
        known = zip(ids, await read_many(store, [incarnation_path(b) for b in ids]), strict=True)
        checks = [Check(incarnation_path(b), row[1].version) for b, row in known if row is not None]
        supported = await _supported(store)
        data, stat = await store.get(znodes.FEATURE)
        levels = znodes.decode_features(data)
        wanted = dict(levels)
        topics = {name: metadata.topic_config(name) for name in metadata.topics}
        flagged = {name: config for name, config in topics.items() if config.remote_storage_enable}
        for update in updates:
            message = _refusal(update, levels.get(update.name, 0), supported)
            message = message or refused_for_tiers(update, levels, flagged)
            if message is not None:
                return FeatureOutcome(ErrorCode.INVALID_UPDATE_VERSION, message)
            wanted[update.name] = update.level
        wanted = {name: level for name, level in wanted.items() if level}
        if validate_only:
            return FeatureOutcome()
        if wanted == levels:
            await _shown(metadata, stat.version)
            return FeatureOutcome()
        if wanted.get(TIERING_VERSION, 0) > levels.get(TIERING_VERSION, 0) == 0:
            await _let_wait(store, metadata, flagged)
        written = SetData(znodes.FEATURE, znodes.encode_features(wanted), stat.version)
        change = entry(znodes.encode_changes([FeaturesChanged(stat.version + 1, wanted)]))
        try:
            await store.multi([Check(REGISTRATIONS, registrations.version), *checks, written, change])
        except (MultiFailed, UnknownOutcome):
            await asyncio.sleep(RETRY_SECONDS)  # a broker registered, or the outcome is unknown: the next read decides
            continue
        await _shown(metadata, stat.version + 1)
        return FeatureOutcome()
    return FeatureOutcome(ErrorCode.FEATURE_UPDATE_FAILED, "Brokers kept registering. Try again in a moment.")


def refused_for_tiers(
    update: FeatureUpdate, levels: Mapping[str, int], flagged: Mapping[str, TopicConfig]
) -> str | None:
    """Why tiers may not begin, or end, by an update; ``flagged`` topics have ``remote.storage.enable``.

    Those that got it while it had no effect must not begin to be tiered by an upgrade, and those that are tiered have
    records which are in the bucket only.
    """
    before, after = levels.get(TIERING_VERSION, 0), update.level
    if update.name != TIERING_VERSION:
        return None
    tiered = sorted(name for name, config in flagged.items() if config.tiers)
    if before and not after and tiered:
        return f"Topics are tiered, and what is in the bucket only would be lost: {a_few(tiered)}. Delete them first."
    if after == 1 != before and flagged:
        return (
            f"Topics have remote.storage.enable, some perhaps from when it had no effect: {a_few(flagged)}. With level"
            f" {TIERING_WAITS_LEVEL} such topics wait for fleetlog bucket enable."
        )
    return None


def a_few(names: Iterable[str]) -> str:
    """A few of the names, in order, and how many more there are."""
    names = sorted(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


async def _let_wait(store: Store, metadata: MetadataCache, flagged: Mapping[str, TopicConfig]) -> None:
    """Mark flags from before there were tiers; without the feature the mark has no effect. Raises StoreError."""
    for name, config in flagged.items():
        if not config.fleetlog_tiering_waits:
            try:
                await alter_config(
                    store, metadata, znodes.CONFIG_TOPICS, name, lambda have: {**have, TIERING_WAITS: "true"}
                )
            except EntityGone:
                continue  # deleted meanwhile
    if flagged:
        logger.warning("remote.storage.enable waits for fleetlog bucket enable: %s", a_few(flagged))


async def _ensure_both(store: Store) -> None:
    await ensure(store, REGISTRATIONS)
    if await store.exists(znodes.FEATURE) is None:  # a cluster from before there were features
        try:
            await store.create(znodes.FEATURE, znodes.encode_features({}))
        except NodeExists:
            pass


async def _shown(metadata: MetadataCache, epoch: int) -> None:
    await metadata.wait_until(lambda: metadata.features_epoch >= epoch, METADATA_WAIT_MS)


async def _supported(store: Store) -> dict[int, Mapping[str, tuple[int, int]]]:
    """What the registered brokers support, by broker id."""
    ids = sorted(int(name) for name in await children_or_none(store, BROKER_IDS) if name.isdigit())
    rows = zip(ids, await read_many(store, [broker_path(b) for b in ids]), strict=True)
    return {broker_id: _named(row[0]) for broker_id, row in rows if row is not None}


def _named(data: bytes) -> Mapping[str, tuple[int, int]]:
    try:
        rows = json.loads(data).get("features", {}).items()
        return {str(name): (int(row["min_version"]), int(row["max_version"])) for name, row in rows}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # it names none


def _refusal(update: FeatureUpdate, present: int, supported: Mapping[int, Mapping[str, tuple[int, int]]]) -> str | None:
    """Why the update is not possible; in Kafka's words where it has some."""
    name, level, kind = update
    begin = f"Invalid update version {level} for feature {name}."
    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return f"{begin} The controller does not support the given upgrade type."
    if level < 0:
        return f"{begin} A feature version cannot be less than 0."
    if level < present and kind == UPGRADE:
        return (
            f"{begin} Can't downgrade the version of this feature without setting the upgrade type to either safe or"
            " unsafe downgrade."
        )
    if level > present and kind != UPGRADE:
        return f"{begin} Can't downgrade to a newer version."
    if name not in SUPPORTED:
        return f"{begin} No broker of this version supports this feature."
    if level:
        return next(_lacking(begin, name, level, supported), None)
    return None


def _lacking(
    begin: str, name: str, level: int, supported: Mapping[int, Mapping[str, tuple[int, int]]]
) -> Iterator[str]:
    for broker_id, features in supported.items():
        if name not in features:
            yield f"{begin} Broker {broker_id} does not support this feature: upgrade it first."
        elif not features[name][0] <= level <= features[name][1]:
            low, high = features[name]
            yield f"{begin} Broker {broker_id} only supports versions {low}-{high}."
