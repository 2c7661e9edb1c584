"""kafka-python's admin client, extended to survive the failure of single brokers.

The stock client asks one random broker, and fails with it; it asks a controller that has crashed only once more. Here
commands continue with the brokers that are left. The stock client also gives up when a partition's leader or the
coordinator of a group (or transactional id) is loading, moves or crashes; here the request is sent again, to the new
one, until the timeout, as Kafka's own tools do.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import kafka.errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest

from fleetlog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from fleetlog.wire.messages import Encodable

TRY_MS = 2_000
"""How long one broker may take to answer a request that any broker can answer."""
CONTROLLER_TRY_MS = 5_000
"""How long the controller may take to answer a request that can be repeated at its successor."""
RECONNECT_MS = 1_000
"""The longest pause before a broker that refused a connection is tried again."""
PAUSE_S = 0.2

GROUP, TRANSACTION = 0, 1
"""The kinds of keys that coordinators are found by."""

GONE = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.Cancelled,
    kafka_errors.UnknownBrokerIdError,
)
"""The broker that was asked did not answer."""


class BrokerGone(kafka_errors.KafkaConnectionError):  # type: ignore[misc]
    """One broker, whose answer was needed, gave none. ``who`` names it and its part.

    ``unknown`` is set where it may have done what it was asked, so that it was not asked again.
    """

    def __init__(self, who: str, unknown: bool = False) -> None:
        super().__init__(who)
        self.who = who
        self.unknown = unknown


_REPEATABLE = frozenset(
    {"AlterPartitionReassignmentsRequest", "ListPartitionReassignmentsRequest", "ElectLeadersRequest"}
)
"""May be sent again when the outcome of the first one is unknown."""


COORDINATOR_MOVES = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
"""The coordinator cannot answer yet, or has moved to another broker; nothing was done."""

_KEYS: dict[str, tuple[int, Callable[[Any], str | None]]] = {
    "DescribeGroupsRequest": (GROUP, lambda request: _only(request.groups)),
    "OffsetFetchRequest": (
        GROUP,
        lambda request: _only([group.group_id for group in request.groups or ()] or [request.group_id]),
    ),
    "OffsetCommitRequest": (GROUP, lambda request: request.group_id),
    "OffsetDeleteRequest": (GROUP, lambda request: request.group_id),
    "DeleteGroupsRequest": (GROUP, lambda request: _only(request.groups_names)),
    "DescribeTransactionsRequest": (TRANSACTION, lambda request: _only(request.transactional_ids)),
    "ListGroupsRequest": (GROUP, lambda request: None),
    "ListTransactionsRequest": (TRANSACTION, lambda request: None),
    "FindCoordinatorRequest": (GROUP, lambda request: None),
}
"""The requests that coordinators answer: the kind of key, and the key by which the coordinator is found again."""


_LED = frozenset({"ListOffsetsRequest", "DescribeProducersRequest"})
"""The requests that a partition's leader answers, and that change nothing."""

_LEADER_MOVES = (
    *GONE,
    kafka_errors.NotLeaderForPartitionError,
    kafka_errors.LeaderNotAvailableError,
    kafka_errors.FencedLeaderEpochError,
    kafka_errors.UnknownLeaderEpochError,
)


def _only(keys: Sequence[str]) -> str | None:
    return keys[0] if len(keys) == 1 else None


def error_codes(answer: Any) -> Iterator[int]:
    """The error codes of a response about groups or transactions, at all its levels."""
    code = getattr(answer, "error_code", None)
    if code is not None:
        yield code
    for name in ("groups", "results", "coordinators", "transaction_states", "sinks", "topics", "partitions"):
        for row in getattr(answer, name, None) or ():
            yield from error_codes(row)


class AdminClient(KafkaAdminClient):  # type: ignore[misc]
    """The client of all commands."""

    def __init__(self, *, suspects: Collection[str] = (), **config: Any) -> None:
        """``suspects`` are addresses, ``host:port``, whose brokers are asked last."""
        super().__init__(reconnect_backoff_max_ms=RECONNECT_MS, **config)
        self.looked: tuple[float, Mapping[int, Any]] | None = None
        """When all log directories were last read by this client (monotonic), and what was read."""
        brokers = self._manager.cluster.brokers()
        self._silent = {broker.node_id for broker in brokers if f"{broker.host}:{broker.port}" in suspects}
        self._send_to = self._manager.send
        self._manager.send = self._send

    def ask_each(self, requests: Mapping[int, Encodable], timeout_s: float) -> dict[int, Any]:
        """Ask several brokers at once; None stands for one without a valid answer in time."""
        return self.begin_each(requests, timeout_s)()

    def begin_each(self, requests: Mapping[int, Encodable], timeout_s: float) -> Callable[[], dict[int, Any]]:
        """The same while other things are asked: the function that it returns waits for the answers."""
        sent = self._manager.call_soon(self._ask_all, list(requests.items()), timeout_s)

        async def answers() -> list[Any]:
            answered: list[Any] = await sent
            return answered

        return lambda: dict(zip(requests, self._manager.run(answers), strict=True))

    def ask_any(self, request: Encodable) -> Any:
        """The first answer of any broker. Raises KafkaTimeoutError when there is none."""
        return self._manager.run(self._ask_any, request)

    def cut_off(self) -> list[int]:
        """The brokers that say that ZooKeeper does not answer them."""
        from fleetlog.wire import messages  # which few commands need

        ask = messages.DescribeHealthRequest(version=0)
        answers = self.ask_each({one.node_id: ask for one in self._manager.cluster.brokers()}, TRY_MS / 1000)
        return sorted(
            broker_id for broker_id, row in answers.items()
            if row is not None and not row.error_code and row.zoo_keeper_micros < 0
        )  # fmt: skip

    def know(self, metadata: Any) -> None:
        """Use the brokers' addresses of a Metadata response."""
        self._manager.cluster.update_metadata(metadata)

    def find_coordinators(self, key: str, timeout_s: float, kind: int = GROUP) -> list[Any]:
        """The coordinator of a group (or transactional id), by each broker that answers."""
        brokers = sorted(broker.node_id for broker in self._manager.cluster.brokers())
        find = FindCoordinatorRequest(key_type=kind, key=key, coordinator_keys=[key], min_version=4)
        answers = self.ask_all([(broker_id, find) for broker_id in brokers], timeout_s)
        return [answer.coordinators[0] for answer in answers if answer is not None and answer.coordinators]

    def ask_coordinator(
        self, key: str, request: Encodable, timeout_s: float, again: Set[int] = COORDINATOR_MOVES
    ) -> Any:
        """The answer of a transactional id's coordinator, once it has no error of ``again``; the last at the deadline.

        None: there is no coordinator, or it did not answer.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            answer = None
            rows = self.find_coordinators(key, min(timeout_s, TRY_MS / 1000), TRANSACTION)
            for broker_id in dict.fromkeys(row.node_id for row in rows if not row.error_code):
                (answer,) = self.ask_all([(broker_id, request)], timeout_s)
                if answer is not None:
                    break
            done = answer is not None and again.isdisjoint(error_codes(answer))
            if done or time.monotonic() + PAUSE_S >= deadline:
                return answer
            time.sleep(PAUSE_S)

    def ask_all(self, requests: Sequence[tuple[int, Encodable]], timeout_s: float) -> list[Any]:
        """The same for pairs of broker and request; the answers come in their order."""
        answers: list[Any] = self._manager.run(self._ask_all, requests, timeout_s)
        return answers

    async def _ask_all(self, requests: Sequence[tuple[int, Encodable]], timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        sent = [self._manager.call_soon(self._ask, broker_id, request) for broker_id, request in requests]
        answers = []
        for (broker_id, _), answer in zip(requests, sent, strict=True):
            try:
                left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
                answers.append(await self._manager.wait_for(answer, left_ms))
            except kafka_errors.KafkaError:
                self._silent.add(broker_id)
                answers.append(None)
        return answers

    async def _ask(self, broker_id: int, request: Encodable) -> Any:
        return await self._send_to(request, node_id=broker_id)

    def _send(self, request: Encodable, node_id: int | None = None, request_timeout_ms: float | None = None) -> Any:
        name = type(request).__name__
        if name in _KEYS:
            return self._manager.call_soon(self._ask_coordinator, request, node_id)
        if node_id is None:
            return self._manager.call_soon(self._ask_any, request)
        if name in _LED:
            return self._manager.call_soon(self._ask_one, request, node_id, "which leads partitions asked for")
        return self._send_to(request, node_id=node_id, request_timeout_ms=request_timeout_ms)

    async def _ask_one(self, request: Encodable, broker_id: int, part: str) -> Any:
        """The answer of one broker, within half of the time. Raises BrokerGone, LeaderNotAvailableError."""
        if broker_id < 0:
            raise kafka_errors.LeaderNotAvailableError
        try:
            answer = self._send_to(request, node_id=broker_id)
            return await self._manager.wait_for(answer, self.config["request_timeout_ms"] / 2)
        except GONE as error:
            self._silent.add(broker_id)
            raise BrokerGone(self._named(broker_id, part)) from error

    def _named(self, broker_id: int, part: str) -> str:
        broker = self._manager.cluster.broker_metadata(broker_id)
        return f"broker {broker_id}{'' if broker is None else f' at {broker.host}:{broker.port}'}, {part}"

    async def _until_answered(self, ask: Callable[..., Awaitable[Any]], *given: Any) -> Any:
        """What ``ask`` returns, which is asked again with newer metadata while brokers are gone or leaders move."""
        deadline = time.monotonic() + self.config["request_timeout_ms"] / 1000
        while True:
            try:
                return await ask(*given)
            except _LEADER_MOVES:
                if time.monotonic() + PAUSE_S >= deadline:
                    raise
            await self._net.sleep(PAUSE_S)
            self.know(await self._ask_any(MetadataRequest(topics=[])))

    async def _async_list_groups(self, *given: Any) -> Any:
        return await self._until_answered(super()._async_list_groups, *given)

    async def _async_list_transactions(self, *given: Any) -> Any:
        return await self._until_answered(super()._async_list_transactions, *given)

    async def _async_list_partition_offsets(self, *given: Any) -> Any:
        return await self._until_answered(super()._async_list_partition_offsets, *given)

    async def _async_describe_producers(self, *given: Any) -> Any:
        return await self._until_answered(super()._async_describe_producers, *given)

    async def _ask_coordinator(self, request: Encodable, broker_id: int | None) -> Any:
        """The answer of a coordinator; the last error if it cannot answer by the deadline."""
        deadline = time.monotonic() + self.config["request_timeout_ms"] / 1000
        key = _KEYS[type(request).__name__][1](request)
        part = "which coordinates groups or transactions" if key is None else f"which coordinates {key}"
        while True:
            try:
                if broker_id is None:
                    answer = await self._ask_any(request)
                else:
                    answer = await self._ask_one(request, broker_id, part)
            except BrokerGone:
                if key is None or broker_id is None or time.monotonic() + PAUSE_S >= deadline:
                    raise
                await self._net.sleep(PAUSE_S)
                broker_id = await self._coordinator_again(request, broker_id)
                continue
            moves = COORDINATOR_MOVES.intersection(error_codes(answer))
            if not moves or time.monotonic() + PAUSE_S >= deadline:
                return answer
            await self._net.sleep(PAUSE_S)
            if ErrorCode.NOT_COORDINATOR in moves and broker_id is not None:
                broker_id = await self._coordinator_again(request, broker_id)

    async def _coordinator_again(self, request: Encodable, broker_id: int) -> int:
        """The coordinator of the request's key now; the same broker as long as that is unknown."""
        kind, key_of = _KEYS[type(request).__name__]
        key = key_of(request)
        if key is None:
            return broker_id
        find = FindCoordinatorRequest(key_type=kind, key=key, coordinator_keys=[key], min_version=4)
        (coordinator,) = (await self._ask_any(find)).coordinators
        if coordinator.error_code:
            return broker_id
        moved: int = self._manager.cluster.add_coordinator(coordinator, kind, key, synthesize_node_id=False)
        return moved

    async def _ask_any(self, request: Encodable) -> Any:
        """The first answer of any broker; those that were silent before are asked last."""
        deadline = time.monotonic() + self.config["request_timeout_ms"] / 1000
        while True:
            first = self._manager.least_loaded_node()
            others = [broker.node_id for broker in self._manager.cluster.brokers() if broker.node_id != first]
            nodes = sorted([*([] if first is None else [first]), *others], key=self._silent.__contains__)
            for number, broker_id in enumerate(nodes, 1):
                left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
                patience_ms = min(TRY_MS, left_ms) if number < len(nodes) else left_ms
                try:
                    return await self._manager.wait_for(self._send_to(request, node_id=broker_id), patience_ms)
                except GONE as error:
                    self._silent.add(broker_id)
                    if time.monotonic() >= deadline:
                        raise kafka_errors.KafkaTimeoutError(str(error)) from error
            await self._net.sleep(PAUSE_S)

    async def _send_request_to_controller(
        self,
        request: Encodable,
        get_errors_fn: Callable[[Any], Iterable[type[Exception]]] = lambda response: (),
        raise_errors: bool = True,
        ignore_errors: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Ask the controller, or its successor."""
        deadline = time.monotonic() + self.config["request_timeout_ms"] / 1000
        while True:
            response, errors = None, [kafka_errors.NotControllerError]
            self._controller_id = (await self._ask_any(MetadataRequest(topics=[]))).controller_id
            if self._controller_id >= 0:
                repeatable = type(request).__name__ in _REPEATABLE
                patience_ms = CONTROLLER_TRY_MS if repeatable else None
                sent = False
                try:
                    connection = self._manager.get_connection(self._controller_id)
                    await self._manager.wait_for(connection.init_future, CONTROLLER_TRY_MS)
                    sent = True
                    answer = self._send_to(request, node_id=self._controller_id)
                    response = await self._manager.wait_for(answer, patience_ms)
                    errors = list(get_errors_fn(response))
                except GONE as problem:
                    # a request that was never sent can be sent again; one that was sent may have been performed
                    once = sent and not repeatable
                    if once or time.monotonic() >= deadline:
                        raise BrokerGone(self._named(self._controller_id, "the controller"), once) from problem
            if kafka_errors.NotControllerError not in errors:
                break
            if time.monotonic() >= deadline:
                raise kafka_errors.NotControllerError("no controller")
            await self._net.sleep(PAUSE_S)
        for error in errors:
            if raise_errors and error is not kafka_errors.NoError and error not in ignore_errors:
                raise error(f"Request '{request}' failed with response '{response}'.")
        return response
