"""Drives a GroupShard by the contract of txn.commands, without a loop; appends succeed at once unless set otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleetlog.brokers.coordinators.pending import PendingAnswer
from fleetlog.brokers.groups.consumer.group import NO_PICTURE
from fleetlog.brokers.groups.records import CommittedOffset
from fleetlog.brokers.groups.requests import (
    FetchRequest,
    GroupSettings,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    Leaver,
    OffsetCommitRequest,
    Protocol,
    SyncAnswer,
    SyncRequest,
)
from fleetlog.brokers.groups.shard import GroupShard
from fleetlog.txn.commands import (
    DEFERRED,
    Answer,
    Cancel,
    Command,
    CommandFailed,
    CoordinatorRecord,
    Now,
    Result,
    Schedule,
    Ticket,
)
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.types import TopicPartition

Marker = tuple[int, int, bool]
Entry = tuple[CoordinatorRecord, tuple[int, int] | None] | Marker


class _KeptAnswer(PendingAnswer):
    """An answer that can be looked at after its callback had it."""

    def complete(self, response: Any) -> None:
        super().complete(response)
        self.response = response


class Driver:
    """Also stands in for CoordinatorRuntime (submit, shard_for, shards, loading)."""

    def __init__(self, settings: GroupSettings | None = None, log: list[Entry] | None = None, wall_ms: int = 10**12):
        self.settings = settings or GroupSettings()
        self.shard = GroupShard(0, self.settings)
        self.now = Now(wall_ms, 5_000)
        self.log: list[Entry] = []
        self.timers: dict[str, int] = {}
        self.pending: dict[Ticket, PendingAnswer] = {}
        self.fail_appends: ErrorCode | None = None
        self.picture = NO_PICTURE
        self.loading = False
        self._tickets = 0
        for entry in log or []:
            self.replay(entry)
            self.log.append(entry)
        self._perform(None, self.shard.loaded(self.now))

    def restart(self) -> Driver:
        return Driver(self.settings, list(self.log), self.now.wall_ms)

    def durable(self) -> dict[str, object]:
        """What must survive a restart, for comparison with a reload."""
        return {
            group.id: (
                group.durable,
                {partition: committed for partition, (_, committed) in group.offsets.items()},
                {pid: {p: c for p, (_, c) in pending.items()} for pid, pending in group.pending_offsets.items()},
            )
            for group in self.shard.groups.values()
            if group.durable is not None or group.offsets or group.pending_offsets
        }

    # -- the runtime's part

    def replay(self, entry: Entry) -> None:
        if len(entry) == 3:
            self.shard.apply_marker(entry[0], entry[1], entry[2], self.now)
        else:
            self.shard.apply(entry[0], entry[1], self.now)

    def submit(
        self, key: str, command: Command, *, deadline_ms: int | None = None, beside: Any = None
    ) -> PendingAnswer:
        self._tickets += 1
        ticket = Ticket(self._tickets)
        pending = self.pending[ticket] = _KeptAnswer(ticket)
        self._perform(ticket, command(self.shard, self.now, ticket))
        return pending

    def submit_beside(self, commands: Sequence[tuple[str, Command, Callable[[GroupShard], bool]]]) -> list[Any]:
        """The answers to commands of one key that come together, by part: the records of those that commute are applied
        when the others have been run, too.
        """
        answers: list[PendingAnswer] = []
        flights: dict[str, tuple[Ticket, Result]] = {}

        def land() -> None:
            for flight in flights.values():
                self._perform(*flight)
            flights.clear()

        for part, command, commutes in commands:
            if part in flights or not commutes(self.shard):
                land()
            beside = commutes(self.shard)
            self._tickets += 1
            ticket = Ticket(self._tickets)
            answers.append(_KeptAnswer(ticket))
            self.pending[ticket] = answers[-1]
            result = command(self.shard, self.now, ticket)
            if beside:
                flights[part] = ticket, result
            else:
                self._perform(ticket, result)
        land()
        return [answer.response for answer in answers]

    def idle_host(self, key: str, part: str) -> Driver:
        return self

    def schedule(self, name: str, delay_ms: int) -> None:
        self.timers[name] = self.now.mono_ms + delay_ms

    def shard_for(self, key: str) -> tuple[ErrorCode, GroupShard]:
        return ErrorCode.NONE, self.shard

    def shards(self) -> list[GroupShard]:
        return [self.shard]

    def marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        entry = (producer_id, producer_epoch, commit)
        self.log.append(entry)
        self.replay(entry)

    def _perform(self, ticket: Ticket | None, result: Result) -> None:
        if result.records and self.fail_appends is not None:
            error, self.fail_appends = self.fail_appends, None
            alternative = result.failed(error, self.now) if result.failed else Result(response=CommandFailed(error))
            self._perform(ticket, alternative)
            return
        for record in result.records:
            self.log.append((record, result.producer))
            self.shard.apply(record, result.producer, self.now)
        if ticket is not None and result.response is not DEFERRED:
            self.pending.pop(ticket).complete(result.response)
        for effect in result.effects:
            match effect:
                case Answer(to, response):
                    waiting = self.pending.pop(to, None)
                    if waiting is not None:
                        waiting.complete(response)
                case Schedule(name, delay_ms):
                    self.schedule(name, delay_ms)
                case Cancel(name):
                    self.timers.pop(name, None)
                case _:
                    raise AssertionError(effect)

    def advance(self, ms: int) -> None:
        """Let time pass, firing what is due in order."""
        end = self.now.mono_ms + ms
        while self.timers:
            name = min(self.timers, key=lambda n: self.timers[n])
            if self.timers[name] > end:
                break
            self._at(max(self.timers.pop(name), self.now.mono_ms))
            self.shard.timer_key(name)
            self._perform(None, self.shard.on_timer(name, self.now))
        self._at(end)

    def _at(self, mono_ms: int) -> None:
        self.now = Now(self.now.wall_ms + mono_ms - self.now.mono_ms, mono_ms)


class Client:
    """One member, as a client of that protocol generation behaves."""

    def __init__(
        self,
        driver: Driver,
        name: str,
        group: str = "g",
        instance_id: str | None = None,
        protocols: tuple[Protocol, ...] | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 9,
    ):
        self.driver = driver
        self.name = name
        self.group = group
        self.instance_id = instance_id
        self.protocols = protocols or (Protocol("range", name.encode()),)
        self.session_ms = session_ms
        self.rebalance_ms = rebalance_ms
        self.version = version
        self.protocol_type = "consumer"
        self.member_id = ""
        self.generation = -1
        self.joins = 0
        self.joining: PendingAnswer | None = None
        self.syncing: PendingAnswer | None = None

    def submit(self, call: Callable[..., Result]) -> PendingAnswer:
        return self.driver.submit(self.group, call)

    def send_join(self) -> PendingAnswer:
        self.joins += 1
        request = JoinRequest(
            self.group,
            self.member_id,
            self.instance_id,
            self.name,
            "/127.0.0.1",
            self.protocol_type,
            self.protocols,
            self.session_ms,
            self.rebalance_ms,
            f"{self.name}{self.joins}",
            requires_known_member_id=self.version >= 4,
            supports_skipping_assignment=self.version >= 9,
        )
        self.joining = self.submit(lambda shard, now, ticket: shard.join(request, now, ticket, self.driver.picture))
        self.joining.on_done(self._joined)
        return self.joining

    def _joined(self, answer: Any) -> None:
        if isinstance(answer, JoinAnswer) and answer.error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            self.member_id = answer.member_id
            self.generation = answer.generation

    def join(self) -> PendingAnswer:
        """As far as it goes: takes the member id and joins with it."""
        pending = self.send_join()
        if pending.done and pending.response.error is ErrorCode.MEMBER_ID_REQUIRED:
            pending = self.send_join()
        return pending

    def sync(self, assignments: dict[str, bytes] | None = None, generation: int | None = None) -> PendingAnswer:
        request = SyncRequest(
            self.group,
            self.generation if generation is None else generation,
            self.member_id,
            self.instance_id,
            self.protocol_type,
            self.protocols[0].name if len(self.protocols) == 1 else None,
            tuple((assignments or {}).items()),
        )
        self.syncing = self.submit(lambda shard, now, ticket: shard.sync(request, now, ticket, self.driver.picture))
        return self.syncing

    def heartbeat(self, generation: int | None = None) -> ErrorCode:
        request = HeartbeatRequest(
            self.group, self.generation if generation is None else generation, self.member_id, self.instance_id
        )
        picture = self.driver.picture
        return self.submit(lambda shard, now, ticket: shard.heartbeat(request, now, ticket, picture)).response

    def leave(self) -> ErrorCode:
        leavers = (Leaver(self.member_id, self.instance_id),)
        answer = self.submit(
            lambda shard, now, ticket: shard.leave(self.group, leavers, now, ticket, self.driver.picture)
        ).response
        return answer.members[0][1]

    def commit(self, offset: int, partition: int = 0, *, generation: int | None = None, anonymous: bool = False, **kw):
        return commit(
            self.driver,
            self.group,
            {TopicPartition("t", partition): CommittedOffset(offset)},
            -1 if anonymous else self.generation if generation is None else generation,
            "" if anonymous else self.member_id,
            None if anonymous else self.instance_id,
            **kw,
        )[TopicPartition("t", partition)]

    @property
    def assignment(self) -> bytes:
        assert self.syncing is not None
        assert isinstance(self.syncing.response, SyncAnswer)
        assert self.syncing.response.error is ErrorCode.NONE
        return self.syncing.response.assignment


def commit(
    driver: Driver,
    group: str,
    offsets: dict[TopicPartition, CommittedOffset],
    generation: int = -1,
    member_id: str = "",
    instance_id: str | None = None,
    retention_ms: int = -1,
    producer: tuple[int, int] | None = None,
) -> dict[TopicPartition, ErrorCode]:
    request = OffsetCommitRequest(group, generation, member_id, instance_id, tuple(offsets.items()), retention_ms)
    if producer is None:
        return driver.submit(group, lambda shard, now, ticket: shard.commit(request, now, ticket)).response
    return driver.submit(
        group, lambda shard, now, ticket: shard.commit_transactional(request, producer, now, ticket)
    ).response


def fetched(driver: Driver, group: str, partition: int = 0, stable: bool = False) -> int | ErrorCode:
    (one,) = driver.shard.fetch(FetchRequest(group, (TopicPartition("t", partition),), stable))
    if one.error is not ErrorCode.NONE:
        return one.error
    return one.committed.offset if one.committed else -1


def settle(*clients: Client) -> Client:
    """All join, the leader assigns each its own name; returns the leader."""
    for client in clients:
        client.join()
    clients[0].driver.advance(2 * clients[0].driver.settings.initial_rebalance_delay_ms)
    return assign(*clients)


def assign(*clients: Client) -> Client:
    leader = None
    for client in clients:
        assert client.joining is not None
        assert client.joining.done, f"{client.name} still waits"
        answer = client.joining.response
        assert answer.error is ErrorCode.NONE, (client.name, answer)
        if answer.leader == client.member_id:
            leader = client
    assert leader is not None
    plan = {c.member_id: c.name.encode() for c in clients}
    for client in clients:
        if client is not leader:
            client.sync()
    leader.sync(plan)
    for client in clients:
        assert client.assignment == client.name.encode()
    return leader
