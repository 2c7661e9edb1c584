"""Finalized features in a real ZooKeeper: who refuses a level, and an update beside a registration."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.metadata import features, znodes
from fleetlog.brokers.metadata.features import (
    SAFE_DOWNGRADE,
    TIERING_VERSION,
    FeatureOutcome,
    FeatureUpdate,
    LacksFeature,
    refused_for_tiers,
    update_features,
)
from fleetlog.brokers.topic_config import TopicConfig
from fleetlog.coordination.registration import Advertisement, ListenerAddress, broker_path, register, unregister
from fleetlog.coordination.store import Store
from fleetlog.wire.errors import ErrorCode
from tests.support.clocks import RealClock
from tests.support.nodes import Meddled, Node, Nodes, lose_the_answer
from tests.support.stores import on_loop

pytestmark = pytest.mark.zookeeper
NAME = "transaction.version"


async def enlist(store: Store, broker_id: int, *, old: bool = False, guarded_by: Store | None = None) -> Any:
    """A registration as the broker makes it; ``old``: as the version before, which names no feature."""
    supported = {} if old else features.SUPPORTED
    guards = None if old else partial(features.registration_guards, guarded_by or store)
    clock = RealClock()
    advertisement = Advertisement(broker_id, [ListenerAddress("PLAINTEXT", "h", 1)], features=supported)
    return await register(store, advertisement, wall_ms=clock.wall_ms, mono_ms=clock.mono_ms, guards=guards)


async def update(node: Node, level: int, name: str = NAME, kind: int = 1, *, dry: bool = False) -> FeatureOutcome:
    return await update_features(node.store, node.metadata, [FeatureUpdate(name, level, kind)], validate_only=dry)


@on_loop
async def test_levels_are_finalized_once_every_registration_has_them(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False, registered=False)
        registered = await enlist(node.real, 7, old=True)
        await enlist(node.real, 8)
        assert (node.metadata.features, node.metadata.features_epoch) == ({}, -1), "a tree without the znode"
        refused = await update(node, 2)
        assert refused.error is ErrorCode.INVALID_UPDATE_VERSION
        assert refused.message is not None
        assert "Broker 7 does not support this feature" in refused.message
        await unregister(node.real, registered)
        await enlist(node.real, 7)
        assert await update(node, 2, dry=True) == FeatureOutcome()
        assert node.metadata.features == {}
        assert await update(node, 2) == FeatureOutcome()
        assert node.metadata.features == {NAME: 2}
        epoch = node.metadata.features_epoch
        assert await update(node, 2) == FeatureOutcome(), "nothing to do"
        assert node.metadata.features_epoch == epoch
        for level, kind, why in (
            (3, 1, "only supports versions 0-2"),
            (1, 1, "Can't downgrade"),
            (1, 9, "upgrade type"),
        ):
            refused = await update(node, level, kind=kind)
            assert why in (refused.message or "")
        assert "supports this feature" in ((await update(node, 1, "streams.version")).message or "")
        assert await update(node, 0, kind=SAFE_DOWNGRADE) == FeatureOutcome()
        assert (node.metadata.features, node.metadata.features_epoch) == ({}, epoch + 1)


def test_tiers_begin_and_end_with_no_topic_that_would_suffer() -> None:
    first, begin, end = (FeatureUpdate(TIERING_VERSION, *to) for to in ((1,), (2,), (0, SAFE_DOWNGRADE)))
    base = BrokerConfig(broker_id=1, zookeeper_connect="n:1").topic_defaults()
    on = {"remote.storage.enable": "true"}
    tiered = TopicConfig.parse(on, base)
    idle = {
        "a": TopicConfig.parse({**on, "fleetlog.tiering.waits": "true"}, base),
        "b": TopicConfig.parse({**on, "cleanup.policy": "compact"}, base),
    }
    assert "from when it had no effect: a, b." in (refused_for_tiers(first, {}, idle) or "")
    assert "and 2 more" in (refused_for_tiers(first, {}, dict.fromkeys("abcdefg", tiered)) or "")
    assert "and 2 more" not in (refused_for_tiers(begin, {}, dict.fromkeys("abcdefg", tiered)) or "")
    for level in (1, 2):
        finalized = {TIERING_VERSION: level}
        assert "Topics are tiered" in (refused_for_tiers(end, finalized, {"c": tiered, **idle}) or "")
        assert refused_for_tiers(end, finalized, idle) is None
        assert refused_for_tiers(FeatureUpdate(TIERING_VERSION, level), finalized, {"c": tiered}) is None
    assert refused_for_tiers(begin, {TIERING_VERSION: 1}, {"c": tiered}) is None
    down = FeatureUpdate(TIERING_VERSION, 1, SAFE_DOWNGRADE)
    assert "wait for fleetlog bucket enable" in (refused_for_tiers(down, {TIERING_VERSION: 2}, idle) or "")
    assert refused_for_tiers(end, {}, {"c": tiered}) is None
    assert refused_for_tiers(first, {}, {}) is None
    assert refused_for_tiers(FeatureUpdate(NAME, 2), {}, {"c": tiered}) is None


@on_loop
async def test_a_broker_that_lacks_a_finalized_level_does_not_register(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False, registered=False)
        await node.real.create(znodes.FEATURE, znodes.encode_features({NAME: 3, "from.the.future": 1}))
        with pytest.raises(LacksFeature, match=r"transaction\.version at level 3, and this version .* supports 0 to 2"):
            await enlist(node.real, 7)
        await node.real.set(znodes.FEATURE, znodes.encode_features({"from.the.future": 1}))
        with pytest.raises(LacksFeature, match="no level of it"):
            await enlist(node.real, 7)
        assert await node.real.exists(broker_path(7)) is None


@pytest.mark.parametrize("old", [True, False])
@on_loop
async def test_an_update_that_a_registration_overtakes_counts_it(connect: str, old: bool) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False, registered=False)
        first = await enlist(node.real, 7, old=old)
        await unregister(node.real, first)
        node.store.before_multi = lambda number, operations: enlist(node.real, 7, old=old) if number == 1 else None
        outcome = await update(node, 2)
        assert outcome.error is (ErrorCode.INVALID_UPDATE_VERSION if old else ErrorCode.NONE)
        assert node.store.multis == (1 if old else 2), "the first one failed in either case"


@on_loop
async def test_a_registration_that_an_update_overtakes_looks_again(
    connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker lacks the new level: it does not come in unnoticed."""
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False, registered=False)
        await features.registration_guards(node.real)
        meddled = Meddled(node.real)

        async def finalized() -> None:
            assert await update(node, 2) == FeatureOutcome()
            monkeypatch.setattr(features, "SUPPORTED", {NAME: (0, 1)})

        meddled.before_multi = lambda number, operations: finalized() if number == 1 else None
        with pytest.raises(LacksFeature, match="at level 2"):
            await enlist(meddled, 7)
        assert await node.real.exists(broker_path(7)) is None


@on_loop
async def test_an_update_whose_answer_is_lost_counts(connect: str) -> None:
    async with Nodes(connect) as nodes:
        node = await nodes.start(1, controller=False, registered=False)
        await enlist(node.real, 7)
        node.store.after_multi = lose_the_answer
        assert await update(node, 2) == FeatureOutcome()
        assert node.metadata.features == {NAME: 2}
