"""One broker's coordinators over real logs, without sockets and ZooKeeper; requests and responses go through bytes."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import DelayedResponse, Done, InSlices, InTask, through
from fleetlog.brokers.api.rows import api_table
from fleetlog.brokers.api.share_sessions import ShareSessions
from fleetlog.brokers.coordinators.dead_letters import DeadLetters
from fleetlog.brokers.coordinators.lags import LagWatch
from fleetlog.brokers.coordinators.runtime import CoordinatorRuntime
from fleetlog.brokers.coordinators.share_offsets import ShareOffsets
from fleetlog.brokers.coordinators.share_partitions import SharePartitions
from fleetlog.brokers.coordinators.share_states import ShareStates
from fleetlog.brokers.coordinators.transactions import coordinator, verification
from fleetlog.brokers.coordinators.transactions.coordinator import TransactionCoordinator, partition_count_of
from fleetlog.brokers.groups.requests import GroupSettings
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.brokers.log import Origin
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from fleetlog.brokers.shares.coordinator import ShareShard
from fleetlog.brokers.timers import Timers
from fleetlog.wire import hot
from tests.support.clocks import RealClock
from tests.support.stage import ME, Stage

TRANSACTIONAL = 16


class Broker(Stage):
    """Use inside a running loop. ``disk`` may be a directory another (crashed) Broker used before."""

    def __init__(self, directory: Path, znode: Any, epoch: int = 0, **settings: str) -> None:
        few = {
            "offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "2",
            "share.coordinator.state.topic.num.partitions": "2",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1",
        }  # fmt: skip
        super().__init__(directory, RealClock(), **{**few, **settings})
        loop = asyncio.get_running_loop()
        self.services.timers = Timers(loop, self.clock)
        group_settings = GroupSettings.of(self.config)
        groups = CoordinatorRuntime(
            "groups",
            GROUP_METADATA_TOPIC,
            lambda partition: GroupShard(partition, group_settings),
            partition_count=partition_count_of(self.metadata, GROUP_METADATA_TOPIC, 2),
            loop=loop,
            timers=self.services.timers,
            clock=self.clock,
            origin=Origin.COORDINATOR,
        )
        self.transactions = TransactionCoordinator(
            self.config,
            metadata=self.metadata,
            replicas=self.replicas,
            groups=groups,
            peers=SimpleNamespace(),  # type: ignore[arg-type]
            store=znode,
            loop=loop,
            timers=self.services.timers,
            clock=self.clock,
            incarnation=lambda: epoch,
        )
        self.services.loop = loop
        self.services.groups = groups
        self.services.transactions = self.transactions
        no_peers = SimpleNamespace()
        share_states = CoordinatorRuntime(
            "share", SHARE_STATE_TOPIC, ShareShard, loop=loop, timers=self.services.timers, clock=self.clock,
            partition_count=partition_count_of(self.metadata, SHARE_STATE_TOPIC, 2), origin=Origin.COORDINATOR,
        )  # fmt: skip
        asks = self.transactions.verifier.ask
        states = ShareStates(
            ME, self.metadata, no_peers, share_states, self._create, asks, self.clock,  # type: ignore[arg-type]
        )  # fmt: skip
        self.transactions.states_of[SHARE_STATE_TOPIC] = share_states
        letters = DeadLetters(
            ME, self.metadata, no_peers, self.transactions, self.replicas, states, self._create,  # type: ignore[arg-type]
            self.clock, self.services.metrics.dead_letters,
        )  # fmt: skip
        self.services.share_states = share_states
        self.services.share_offsets = ShareOffsets(
            ME, groups, states, self.metadata, self.replicas, no_peers,  # type: ignore[arg-type]
        )  # fmt: skip
        self.services.share_partitions = SharePartitions(
            states, self.services.timers, self.clock, letters, self.services.share_offsets.subscribed,
            self.services.metrics.early_deliveries,
        )  # fmt: skip
        self.services.lags = LagWatch(
            ME,
            5_000,
            groups,
            self.metadata,
            self.replicas,
            no_peers,  # type: ignore[arg-type]
            self.clock,
            self.services.share_offsets,
        )
        self.services.share_sessions = ShareSessions()
        for runtime in (groups, self.transactions, share_states):
            self.replicas.on_leader(runtime.partition_elected)
            self.replicas.on_resigned(runtime.partition_resigned)
            self.replicas.on_deleted(runtime.partition_resigned)
        for topic, partitions in (
            ("t", 2), (GROUP_METADATA_TOPIC, 2), (SHARE_STATE_TOPIC, 2), (TRANSACTION_STATE_TOPIC, 2),
        ):  # fmt: skip
            self.topic(topic, partitions, leader=ME, epoch=epoch, topic_id=uuid.uuid5(uuid.NAMESPACE_URL, topic))

    async def ready(self) -> Broker:
        for runtime in (self.transactions, self.services.groups, self.services.share_states):
            while runtime.loading or len(runtime.shards()) < 2:
                await asyncio.sleep(0.001)
        return self

    async def _create(self, names: object, *how: object) -> Any:
        raise AssertionError(f"{names} are there")

    async def stop(self) -> None:
        await self.services.share_partitions.stop()
        await self.transactions.stop()
        self.services.share_states.close()
        self.services.groups.close()
        self.logs.close()

    def crash(self) -> Coroutine[Any, Any, None]:
        """Go away without another request or answer."""
        self.transactions.markers._closed = True
        return self.stop()

    # ---- requests

    async def call(self, key: int, version: int, message: Any) -> Any:
        frame = m.encode_request(key, version, 1, "test", message)
        metadata = memoryview(frame)[4:]
        header = m.parse_request_header(metadata)
        body = metadata[header.body :]
        decode = hot.DECODERS.get(key)
        request = m.decode_request(key, version, body) if decode is None else decode(version, body)
        response = await self.outcome(key, version, request)
        return m.decode_response(key, version, m.encode_response(response, key, version))

    async def outcome(self, key: int, version: int, request: Any) -> Any:
        found = api_table()[key].handler(request, self.context(key, version))
        while isinstance(found, InSlices | InTask):
            found = through(found.work) if isinstance(found, InSlices) else await found.coroutine
        if isinstance(found, Done):
            return through(found.response.work) if isinstance(found.response, InSlices) else found.response
        assert isinstance(found, DelayedResponse)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        found.on_done(lambda response: future.done() or future.set_result(response))
        response = await asyncio.wait_for(future, 10)
        return through(response.work) if isinstance(response, InSlices) else response

    async def init(
        self, name: str | None = "x", version: int = 4, expected: Any = (-1, -1), timeout: int = 60_000
    ) -> Any:
        more = {"producer_id": expected[0], "producer_epoch": expected[1]} if version >= 3 else {}
        request = m.InitProducerIdRequest(
            version=version, transactional_id=name, transaction_timeout_ms=timeout, **more
        )
        return await self.call(22, version, request)

    async def add(
        self, pid: int, epoch: int, *partitions: int, version: int = 3, name: str = "x", topic: str = "t"
    ) -> int:
        """AddPartitionsToTxn of a client, or (from version 4 on) of a broker in its name."""
        kind = m.AddPartitionsToTxnRequest
        if version < 4:
            request = kind(
                version=version,
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=pid,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[
                    kind.AddPartitionsToTxnTopic(version=version, name=topic, partitions=list(partitions))
                ],
            )
            response = await self.call(24, version, request)
            topics = response.results_by_topic_v3_and_below
        else:
            inner = kind.AddPartitionsToTxnTransaction
            request = kind(
                version=version,
                transactions=[
                    inner(
                        version=version,
                        transactional_id=name,
                        producer_id=pid,
                        producer_epoch=epoch,
                        verify_only=False,
                        topics=[inner.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
                    )
                ],
            )
            response = await self.call(24, version, request)
            (result,) = response.results_by_transaction
            assert result.transactional_id == name
            topics = result.topic_results
        errors = [p.partition_error_code for t in topics for p in t.results_by_partition]
        assert len(errors) == len(partitions)
        return max(errors)

    async def end(self, pid: int, epoch: int, commit: bool, version: int = 3, name: str = "x") -> Any:
        request = m.EndTxnRequest(
            version=version, transactional_id=name, producer_id=pid, producer_epoch=epoch, committed=commit
        )
        return await self.call(26, version, request)

    async def add_offsets(self, pid: int, epoch: int, group: str, version: int = 3, name: str = "x") -> int:
        request = m.AddOffsetsToTxnRequest(
            version=version, transactional_id=name, producer_id=pid, producer_epoch=epoch, group_id=group
        )
        return int((await self.call(25, version, request)).error_code)

    async def commit_offsets(
        self, pid: int, epoch: int, group: str, offset: int, version: int = 3, name: str = "x", topic: str = "t"
    ) -> int:
        kind = m.TxnOffsetCommitRequest
        inner = kind.TxnOffsetCommitRequestTopic
        ids = {known: topic_id for topic_id, known in self.metadata.topic_names.items()}
        named = {"name": topic} if version < 6 else {"topic_id": ids.get(topic, uuid.uuid4())}
        request = kind(
            version=version,
            transactional_id=name,
            group_id=group,
            producer_id=pid,
            producer_epoch=epoch,
            topics=[
                inner(
                    version=version,
                    **named,
                    partitions=[
                        inner.TxnOffsetCommitRequestPartition(
                            version=version, partition_index=0, committed_offset=offset, committed_metadata="m"
                        )
                    ],
                )
            ],
        )
        response = await self.call(28, version, request)
        ((partition,),) = [topic.partitions for topic in response.topics]
        return int(partition.error_code)

    async def produce(
        self, pid: int, epoch: int, sequence: int, version: int = 9, name: str = "x", index: int = 0
    ) -> int:
        data = self.batch(attributes=TRANSACTIONAL, producer_id=pid, producer_epoch=epoch, base_sequence=sequence)
        part = hot.ProducePart("t", None, index, memoryview(bytearray(data)))
        request = hot.ProduceRequest(name, -1, 1_000, [part])
        encoded = await self.outcome(0, version, request)
        body = b"".join(bytes(chunk) for chunk in encoded.chunks)
        response = m.decode_response(0, version, body)
        return int(response.responses[0].partition_responses[0].error_code)

    def offset(self, group: str) -> int | None:
        """What the group committed for partition 0 of t."""
        from fleetlog.brokers.groups.requests import FetchRequest
        from fleetlog.wire.types import TopicPartition

        _, shard = self.services.groups.shard_for(group)
        (found,) = shard.fetch(FetchRequest(group, (TopicPartition("t", 0),)))
        return None if found.committed is None else int(found.committed.offset)

    def visible(self, index: int = 0) -> tuple[int, int]:
        """Last stable and log end offset of t."""
        log = self.partition("t", index).log
        return int(log.last_stable_offset), int(log.log_end_offset)


PATIENCE_MS = 30_000
"""For a transaction's end; the real one is 100 ms, which a busy machine may take."""


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (verification, coordinator):
            patch.setattr(module, "PATIENCE_MS", PATIENCE_MS)
        asyncio.run(asyncio.wait_for(scenario(), 60))
