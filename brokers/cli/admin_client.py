"""kafka-python's admin client, made to outlive single brokers.

The stock client asks one broker, chosen by chance, and gives up with it; and it asks a controller that has just died
once more and no further. In a fleet that fails over, commands go on with whoever is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import kafka.errors as kafka_errors
from kafka import KafkaAdminClient
from kafka.protocol.metadata import MetadataRequest

TRY_MS = 2_000
"""How long one broker may take over a question that another could answer as well."""
CONTROLLER_TRY_MS = 5_000
"""How long the controller may take over a request that can be repeated at its successor."""
PAUSE_S = 0.2

GONE = (
    kafka_errors.KafkaConnectionError,
    kafka_errors.NodeNotReadyError,
    kafka_errors.KafkaTimeoutError,
    kafka_errors.RequestTimedOutError,
    kafka_errors.Cancelled,
    kafka_errors.UnknownBrokerIdError,
)
"""The broker that was asked did not answer."""

_REPEATABLE = frozenset(
    {"AlterPartitionReassignmentsRequest", "ListPartitionReassignmentsRequest", "ElectLeadersRequest"}
)
"""May be sent again when nobody knows whether the first one was performed."""


class Admin(KafkaAdminClient):  # type: ignore[misc]
    """The client of all commands."""

    def __init__(self, *, suspects: Collection[str] = (), **config: Any) -> None:
        """``suspects`` are addresses, ``host:port``, whose brokers are asked last."""
        super().__init__(**config)
        brokers = self._manager.cluster.brokers()
        self._silent = {broker.node_id for broker in brokers if f"{broker.host}:{broker.port}" in suspects}
        self._send_to = self._manager.send
        self._manager.send = self._send

    def ask_each(self, requests: Mapping[int, Any], timeout_s: float) -> dict[int, Any]:
        """Ask several brokers at once; None stands for one that did not answer in time, or not so."""
        return dict(zip(requests, self.ask_all(list(requests.items()), timeout_s), strict=True))

    def ask_all(self, requests: Sequence[tuple[int, Any]], timeout_s: float) -> list[Any]:
        """The same for pairs of broker and request; the answers come in their order."""
        found: list[Any] = self._manager.run(self._ask_all, requests, timeout_s)
        return found

    async def _ask_all(self, requests: Sequence[tuple[int, Any]], timeout_s: float) -> list[Any]:
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

    async def _ask(self, broker_id: int, request: Any) -> Any:
        return await self._send_to(request, node_id=broker_id)

    def _send(self, request: Any, node_id: int | None = None, request_timeout_ms: float | None = None) -> Any:
        if node_id is None:
            return self._manager.call_soon(self._ask_any, request)
        return self._send_to(request, node_id=node_id, request_timeout_ms=request_timeout_ms)

    async def _ask_any(self, request: Any) -> Any:
        """The answer of whichever broker gives one; those that were silent before are asked last."""
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
        request: Any,
        get_errors_fn: Callable[[Any], Iterable[type[Exception]]] = lambda response: (),
        raise_errors: bool = True,
        ignore_errors: tuple[type[Exception], ...] = (),
    ) -> Any:
        """Ask the controller, also the one that comes after it."""
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
                except GONE:
                    # what never left can be sent again; what did may have been performed
                    if (sent and not repeatable) or time.monotonic() >= deadline:
                        raise
            if kafka_errors.NotControllerError not in errors:
                break
            if time.monotonic() >= deadline:
                raise kafka_errors.NotControllerError("no controller")
            await self._net.sleep(PAUSE_S)
        for error in errors:
            if raise_errors and error is not kafka_errors.NoError and error not in ignore_errors:
                raise error(f"Request '{request}' failed with response '{response}'.")
        return response
