"""From a frame to its answer: header, API table, admission, decoding, handler, encoding.

Whatever a peer sends ends in one of three ways: an answer, an answer that says which error, or a closed connection with
a line in the log that says why. Whatever a handler does wrong ends in an answer too, or a closed connection, and a
stack trace.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from brokers.api.base import CLOSE, Context, Done, Park, Services
from brokers.api.fetch_short import short_fetch
from brokers.api.produce_run import handle_produce_run, handle_produce_runs
from brokers.server.connection import Connection, Slot
from brokers.server.framing import LARGE_FRAME, Chunk
from brokers.server.limits import QuietLog
from brokers.server.parking import Parking, Timer
from wire import hot, messages
from wire.apis import APIS, Api, Cost
from wire.errors import ErrorCode

if TYPE_CHECKING:
    from brokers.metrics import Counter
    from brokers.server.limits import ByteBudget

logger = logging.getLogger(__name__)

PRODUCE, FETCH, API_VERSIONS = 0, 1, 18
SMALLEST_SHORT = 4 + 10 + 17
"""No Produce with a batch and no Fetch is smaller than its frame's size, header and first fields."""
LARGEST_SHORT_FETCH = 1024
"""A Fetch of one partition is smaller; a larger one would be decoded twice."""
ADMIN_WEIGHT = 8
"""A small admin body decodes into objects several times its size: what it is counted as while it is in flight."""


class Route(NamedTuple):
    """One row of the API table, ready to be called."""

    api: Api
    lowest: int
    handler: Callable[[Any, Context], Any]
    decode: Callable[[int, memoryview], Any]
    counted: Counter
    observe: Callable[[float, int], None]


def resolve(api: Api) -> Callable[[Any, Context], Any]:
    """The handler that a row of the API table names.

    Raises:
        LookupError: there is no such module or function.

    """
    module, _, function = api.handler.partition(":")
    try:
        handler = getattr(importlib.import_module(f"brokers.api.{module}"), function)
    except (ImportError, AttributeError) as error:
        raise LookupError(f"{api.name}: no handler brokers.api.{api.handler}: {error}") from error
    assert callable(handler), f"brokers.api.{api.handler} is no function"
    return handler  # type: ignore[no-any-return]


class Dispatcher:
    """Executes requests. ``handlers`` replaces the table's handlers in tests."""

    def __init__(
        self,
        services: Services,
        parking: Parking,
        budget: ByteBudget,
        quiet: QuietLog,
        handlers: dict[int, Callable[[Any, Context], Any]] | None = None,
    ) -> None:
        self._services = services
        self._parking = parking
        self._budget = budget
        self._quiet = quiet
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes = {key: self._route(api, handlers) for key, api in APIS.items()}
        self._runs = handlers is None

    def _route(self, api: Api, handlers: dict[int, Callable[[Any, Context], Any]] | None) -> Route:
        handler = handlers.get(api.key, _unserved) if handlers is not None else resolve(api)
        metrics = self._services.metrics
        return Route(
            api,
            api.lowest,
            handler,
            hot.DECODERS.get(api.key) or _library_decoder(api.key),
            metrics.requests.labels(api.name),
            metrics.request_seconds.labels(api.name).observe,
        )

    # -- a request ------------------------------------------------------------------------------------------------

    def dispatch(self, connection: Connection, frame: memoryview, slot: Slot) -> None:
        """Execute the request in ``frame``; its answer goes into ``slot``, now or later."""
        connection.gathers = False
        started = time.perf_counter()
        try:
            header = messages.parse_request_header(frame)
        except messages.MalformedRequest as error:
            self._close(connection, "header", f"malformed header: {error}")
            return
        route = self._routes.get(header.api_key)
        if route is None:
            self._close(connection, "api", f"API key {header.api_key} is not served")
            return
        api, version = route.api, header.api_version
        if not api.min_version <= version <= api.max_version:
            if api.key == API_VERSIONS:
                self._unsupported_api_versions(slot, header.correlation_id)
            else:
                self._close(connection, "version", f"{api.name} version {version} is not served")
            return
        try:
            request = route.decode(version, frame[header.body :])
        except messages.MalformedRequest as error:
            self._close(connection, "body", f"malformed {api.name} version {version}: {error}")
            return
        if api.cost is Cost.ADMIN:
            extra = (ADMIN_WEIGHT - 1) * len(frame)
            self._budget.force(extra)
            slot.cost += extra
        context = Context(
            self._services, connection.peer, api.key, version, header.correlation_id, header.client_id
        )  # fmt: skip
        reply = Reply(route, context, connection, slot, started=started)
        if version < route.lowest:
            reply.send(error_response(api.key, version, request, ErrorCode.UNSUPPORTED_VERSION))
            return
        try:
            outcome = route.handler(request, context)
        except Exception:
            reply.failed()
            return
        if type(outcome) is Done:
            reply.send(outcome.response)
        else:
            self._settle(outcome, reply)

    def dispatch_run(self, connection: Connection, data: memoryview, start: int, end: int, most: int) -> int:
        """Execute requests in a short way, or together; returns where they end, ``start`` if there are none.

        ``data`` from ``start`` to ``end`` begins with a frame's size. At most ``most`` requests.
        """
        if end - start < SMALLEST_SHORT or data[start + 4] or not self._runs:
            return start
        key = data[start + 5]
        if key == FETCH:
            return self._short_fetch(connection, data, start, end)
        if key != PRODUCE:
            return start
        route = self._routes[PRODUCE]
        started = time.perf_counter()
        run = hot.decode_produce_run(data, start, end, route.lowest, route.api.max_version, most)
        if run is None:
            return start
        connection.gathers = _is_small(run, start)
        context = Context(self._services, connection.peer, PRODUCE, run.version, run.correlation_ids[0], "")
        try:
            executed = handle_produce_run(run, context)
        except Exception:
            Reply(route, context, connection, connection.next_slot(), started=started).failed()
            return end
        if executed is None:
            return start
        taken, outcome = executed
        reply = Reply(route, context, connection, connection.next_slot(), started=started, requests=taken)
        self._settle(outcome, reply)
        return run.ends[taken - 1]

    def dispatch_runs(self, connections: list[Connection]) -> tuple[int, Connection | None]:
        """Execute the Produce requests with which what they received begins, together: one write for each partition.

        Returns how many have such requests. If they cannot be executed together, nothing has happened, and one is
        returned whose requests are in the way.
        """
        if not self._runs:
            return 0, None
        route = self._routes[PRODUCE]
        started = time.perf_counter()
        members: list[Connection] = []
        runs: list[hot.ProduceRun] = []
        for connection in connections:
            received = connection.received
            if received is not None:
                data, start, end, most = received
                run = hot.decode_produce_run(data, start, end, route.lowest, route.api.max_version, most)
                if run is not None:
                    connection.gathers = _is_small(run, start)
                    members.append(connection)
                    runs.append(run)
        if len(runs) < 2:
            return len(runs), None
        contexts = [
            Context(self._services, connection.peer, PRODUCE, run.version, run.correlation_ids[0], "")
            for run, connection in zip(runs, members, strict=True)
        ]

        def reply_to(number: int) -> Reply:
            connection, requests = members[number], len(runs[number].groups)
            slot = connection.next_slot()
            return Reply(route, contexts[number], connection, slot, started=started, requests=requests)

        try:
            outcomes = handle_produce_runs(runs, contexts)
        except Exception:
            for number in range(len(runs)):
                reply_to(number).failed()
            return len(runs), None
        if isinstance(outcomes, int):
            return len(runs), members[outcomes]
        for connection, run in zip(members, runs, strict=True):
            connection.executed(run.ends[-1])  # all of them, before anything else can go wrong: none comes twice
        for number, outcome in enumerate(outcomes):
            reply = reply_to(number)
            try:
                self._settle(outcome, reply)
            except Exception:
                logger.exception("an answer to %s cannot be given", members[number].peer.peer_host)
                reply.refuse()
        return len(runs), None

    def _short_fetch(self, connection: Connection, data: memoryview, start: int, end: int) -> int:
        """Execute a Fetch if the short way has the answer; where it ends. Whatever is wrong is for ``dispatch``."""
        begin = start + 4
        behind = begin + int.from_bytes(data[start:begin], "big")
        if behind > end or behind > begin + LARGEST_SHORT_FETCH:
            return start
        started = time.perf_counter()
        route = self._routes[FETCH]
        try:
            _, version, correlation_id, _, body = messages.parse_request_header(data[begin:behind])
            if not route.lowest <= version <= route.api.max_version:
                return start
            found = short_fetch(route.decode(version, data[begin + body : behind]), self._services, version)
        except messages.MalformedRequest:
            return start
        except Exception:
            logger.exception("the short way of a Fetch failed")
            return start
        if found is None:
            return start
        part, outcome = found
        connection.gathers = False
        connection.deliver(hot.encode_fetch_answer(version, correlation_id, part, outcome))
        route.counted.value += 1
        route.observe(time.perf_counter() - started, 1)
        return behind

    def _settle(self, outcome: Any, reply: Reply) -> None:
        if isinstance(outcome, Done):
            reply.send(outcome.response)
        elif isinstance(outcome, Park):
            if reply.route.api.key == PRODUCE:
                reply.slot.serial = False  # it has appended: the next request need not wait for the replicas
            reply.park(outcome, self._parking)
        elif inspect.iscoroutine(outcome):
            task = self._services.loop.create_task(self._await(outcome, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            logger.error("the handler of %s returned %r", reply.route.api.name, type(outcome))
            reply.refuse()

    async def _await(self, coroutine: Any, reply: Reply) -> None:
        try:
            outcome = await coroutine
        except asyncio.CancelledError:
            reply.refuse()
            raise
        except Exception:
            reply.failed()
            return
        self._settle(outcome, reply)

    def _unsupported_api_versions(self, slot: Slot, correlation_id: int) -> None:
        """KIP-511: whoever asks in a version we don't know is answered in version 0, with what we do know."""
        api = APIS[API_VERSIONS]
        known = messages.ApiVersionsResponse.ApiVersion(
            api_key=API_VERSIONS, min_version=api.min_version, max_version=api.max_version
        )
        body = messages.ApiVersionsResponse(version=0, error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[known])
        payload = messages.encode_response(body, API_VERSIONS, 0)
        slot.answer(hot.framed(messages.encode_response_header(API_VERSIONS, 0, correlation_id), [payload]))

    def _close(self, connection: Connection, reason: str, text: str) -> None:
        self._services.metrics.refused.labels(reason).inc()
        self._quiet.warning("%s: %s; the connection is closed", connection.peer.peer_host, text)
        connection.close(text)

    def close(self) -> None:
        """Cancel the coroutines that still run."""
        for task in list(self._tasks):
            task.cancel()


def _is_small(run: hot.ProduceRun, start: int) -> bool:
    """Whether requests like the run's first gain by being executed with others: large ones only leave the cache."""
    return run.ends[0] - start < LARGE_FRAME


class Reply:
    """Where one request's answer goes."""

    __slots__ = ("connection", "context", "requests", "route", "slot", "started")

    def __init__(
        self,
        route: Route,
        context: Context,
        connection: Connection,
        slot: Slot,
        *,
        started: float,
        requests: int = 1,
    ) -> None:
        self.route = route
        self.requests = requests
        self.context = context
        self.connection = connection
        self.slot = slot
        self.started = started

    def send(self, response: Any) -> None:
        """Encode the answer and give it to the connection."""
        self.route.counted.value += self.requests
        self.route.observe(time.perf_counter() - self.started, self.requests)
        if response is CLOSE:
            self.refuse()
            return
        if self.connection.closed:
            if isinstance(response, hot.Encoded):
                response.release()
            self.slot.answer([])
            return
        try:
            chunks = self._chunks(response)
        except Exception:
            logger.exception("cannot encode the answer to %s version %d", self.route.api.name, self.context.api_version)
            self.refuse()
            return
        self.slot.answer(chunks)

    def _chunks(self, response: Any) -> list[Chunk]:
        if response is None:
            return []
        if type(response) is hot.Frames:
            return [response]
        context = self.context
        header = messages.encode_response_header(context.api_key, context.api_version, context.correlation_id)
        if isinstance(response, hot.Encoded):
            return hot.framed(header, response.chunks)
        if not isinstance(response, bytes):
            response = messages.encode_response(response, context.api_key, context.api_version)
        return hot.framed(header, [response])

    def park(self, park: Park, parking: Parking) -> None:
        """Answer when the park completes, expires, or never if the connection goes first."""
        timer: Timer | None = None

        def complete(response: Any) -> None:
            if timer is not None:
                parking.cancel(timer)
            self.send(response)

        def drop() -> None:
            if timer is not None:
                parking.cancel(timer)
            park.drop()

        def expire() -> None:
            try:
                park.expire()
            except Exception:
                park.drop()
                self.failed()

        if park.deadline_ms is not None and not park.done:
            timer = parking.later(park.deadline_ms, expire)
        self.slot.on_drop = drop
        park.attach(complete)
        self.connection.pump()  # a request that may run beside this one has perhaps arrived already

    def failed(self) -> None:
        """The handler raised: our bug. The client gets UNKNOWN_SERVER_ERROR where the answer has a place for it."""
        api, context = self.route.api, self.context
        logger.exception("%s version %d from %s failed", api.name, context.api_version, context.connection.peer_host)
        response = error_response(api.key, context.api_version, None, ErrorCode.UNKNOWN_SERVER_ERROR)
        if response is None:
            self.refuse()
        else:
            self.send(response)

    def refuse(self) -> None:
        """No answer is possible: close the connection, so that the client does not wait for one."""
        self.connection.close(f"{self.route.api.name} failed")
        self.slot.answer([])


def error_response(key: int, version: int, request: Any, code: ErrorCode) -> Any:
    """An answer that says nothing but the error, if that API's answer has a place for one; else None.

    Most answers carry an ``error_code`` at the top. A Produce carries one per partition, so its request is needed.
    """
    response = messages.response_class(key)
    if key == PRODUCE and request is not None:
        return hot.encode_produce_response(version, [(part, hot.ProduceOutcome(code)) for part in request.parts])
    field = response._struct.fields.get("error_code")
    if field is None or not field.for_version_q(version):
        return None
    return response(version=version, error_code=code)


def _library_decoder(key: int) -> Callable[[int, memoryview], Any]:
    def decode(version: int, body: memoryview) -> Any:
        return messages.decode_request(key, version, body)

    return decode


def _unserved(request: Any, context: Context) -> Any:
    raise NotImplementedError(f"no handler for API key {context.api_key}")
