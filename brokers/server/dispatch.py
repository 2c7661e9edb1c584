"""From a frame to its answer: header, API table, admission, decoding, handler, encoding.

Whatever a peer sends ends in one of three ways: an answer, an answer that says which error, or a closed connection with
a line in the log that says why. Whatever a handler does wrong ends in an answer too, or a closed connection, and a
stack trace.

Long work is executed a slice of a few milliseconds at a time, with everything else in between (``InSlices``). Most of
it is through in its first slice and costs nothing. The others take turns: one slice of one of them in each turn of the
loop, however many there are. Work whose connection has closed is given up where it stands.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fleetlog._native.errors import LooseMessage
from fleetlog.brokers.api.audit import audited
from fleetlog.brokers.api.base import (
    CLOSE,
    Batching,
    ClientGone,
    Context,
    DelayedResponse,
    Done,
    InSlices,
    InTask,
    Outcome,
    Run,
    Services,
)
from fleetlog.brokers.api.rows import Cost, Handler, Row, api_table
from fleetlog.brokers.api.unpacking import PAUSE
from fleetlog.brokers.quotas.metering import Meter, TimedCoroutine, client_id_in, timed_work
from fleetlog.brokers.server.connection import Connection, Slot
from fleetlog.brokers.server.framing import LARGE_FRAME, Chunk
from fleetlog.brokers.server.limits import QuietLog
from fleetlog.brokers.server.login import LoginGate
from fleetlog.wire import hot, messages, pieces
from fleetlog.wire.answered_errors import answered_errors, error_response
from fleetlog.wire.apis import APIS, Api
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.throttled import with_throttle_time

if TYPE_CHECKING:
    from fleetlog.brokers.server.limits import ByteBudget

logger = logging.getLogger(__name__)


SLICE_S = 0.003
"""How long a slice lasts, about."""
FIRST_SLICE_S = 0.001
"""The same for the first one: it is in the turn in which the request arrived, perhaps with others."""

Work = Generator[Any, None, Any]


class _Job(NamedTuple):
    work: Work
    gone: Callable[[], bool]
    done: Callable[[Any], None]
    failed: Callable[[], None]


class Pacing:
    """The jobs that are under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float]) -> None:
        self._loop = loop
        self._now = now
        self._jobs: deque[_Job] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._jobs)

    def start(
        self, work: Work, gone: Callable[[], bool], done: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        """Do the work, now or in slices: ``done`` gets what it returns, ``failed`` is called where it raises.

        Neither is called once ``gone()``: then nothing waits for the answer.
        """
        job = _Job(work, gone, done, failed)
        if not self._slice(job, FIRST_SLICE_S):
            self._jobs.append(job)
            self._schedule()

    def _schedule(self) -> None:
        if self._jobs and not self._running:
            self._running = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._running = False
        if not self._jobs:
            return
        job = self._jobs.popleft()
        if job.gone():
            job.work.close()
        elif not self._slice(job, SLICE_S):
            self._jobs.append(job)
        self._schedule()

    def _slice(self, job: _Job, seconds: float) -> bool:
        """Whether the job is through."""
        end = self._now() + seconds
        try:
            while True:
                if next(job.work) is PAUSE or self._now() >= end:
                    return False
        except StopIteration as ended:
            job.done(ended.value)
        except Exception:
            job.failed()
        return True

    def close(self) -> None:
        """Give up what is under way."""
        for job in self._jobs:
            job.work.close()
        self._jobs.clear()


SIZE_BYTES = 4
SMALLEST_RUN = SIZE_BYTES + 10
"""A frame's size and the shortest header."""
LONG_REQUEST = 64 * 1024
"""Above it a request is executed in the turn after the one in which it was decoded; those with records are not."""
LOOSE_MAX = 1_000
"""Client software whose requests are not quite right is named in the log up to so many."""
ADMIN_WEIGHT = 8
"""A small admin body decodes into objects several times its size: what it is counted as while it is in flight."""


Member = tuple[Connection, Run, int]
"""A connection whose requests are executed with those of others, its run, and what is reserved for it."""


@dataclass(slots=True, eq=False)
class Route:
    """One row of the API table, ready to be called."""

    api: Api
    lowest: int
    highest: int
    handler: Handler
    decode: Callable[[int, memoryview], Any]
    since: Callable[[float, int], None]
    """Counts so many requests that began then, and are answered now."""
    delayed: Callable[[float, float, int], None]
    pacing: Pacing
    batch: Batching | None
    cost: Cost
    brokers_from: int
    """From this version on only brokers ask it."""
    large: bool
    counting: bool
    """Whether some page shows what is counted."""
    unserved: Callable[[int], list[Chunk]] | None
    seconds: Callable[[], float]
    """The clock by which requests are measured."""


class Dispatcher:
    """Executes requests. In tests ``handlers`` replaces the table's handlers, ``now`` the clock of paced work, and
    ``seconds`` the one by which requests are measured.
    """

    def __init__(
        self,
        services: Services,
        budget: ByteBudget,
        quiet: QuietLog,
        handlers: dict[int, Handler] | None = None,
        now: Callable[[], float] = time.perf_counter,
        gate: LoginGate | None = None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self._services = services
        self._seconds = time.perf_counter if seconds is None else seconds
        self._gate = gate
        self._budget = budget
        self._quiet = quiet
        self._tasks: set[asyncio.Task[None]] = set()
        self._pacing = Pacing(services.loop, now)
        self._unpacking = services.unpacking
        self._unpacking.count_on(services.loop.call_soon)
        self._loose: set[str] = set()
        self._parse_header = messages.header_parser()  # so that no request waits for its class
        self._routes = {key: self._route(row, handlers) for key, row in api_table().items()}
        self._batches = {key: route for key, route in self._routes.items() if route.batch is not None}

    def _route(self, row: Row, handlers: dict[int, Handler] | None) -> Route:
        api = APIS[row.key]
        if handlers is not None:
            row = replace(row, handler=handlers.get(api.key, _unserved), batching=None)
        metrics, audit = self._services.metrics, self._services.audit
        handler = row.handler if audit is None else audited(audit, row)
        return Route(
            api,
            api.lowest,
            api.max_version,
            handler,
            hot.DECODERS.get(api.key) or functools.partial(messages.decode_request, api.key),
            metrics.request_seconds.labels(api.name).since,
            metrics.delayed.labels(api.name).observe,
            self._pacing,
            row.batching,
            row.cost,
            sys.maxsize if row.brokers_from is None else row.brokers_from,
            api.large,
            metrics.counting,
            row.unserved,
            self._seconds,
        )

    # -- a request ------------------------------------------------------------------------------------------------

    def dispatch(self, connection: Connection, frame: memoryview, slot: Slot) -> None:
        """Execute the request in ``frame``; its answer goes into ``slot``, now or later."""
        connection.batchable = False
        login = connection.login
        if login is not None and (self._gate is None or not self._gate.admits(connection, login, frame, slot)):
            return
        started = self._seconds()
        try:
            header = self._parse_header(frame)
        except LooseMessage as loose:
            header = self._served(connection, "request", loose)
        except messages.MalformedRequest as error:
            self._close(connection, "header", f"malformed header: {error}")
            return
        marks = connection.marks
        if marks.client_id is None:
            marks.client_id = header.client_id or ""
        route = self._routes.get(header.api_key)
        if route is None:
            self._close(connection, "api", f"API key {header.api_key} is not served")
            return
        api, version = route.api, header.api_version
        if not route.lowest <= version <= api.max_version:
            if route.unserved is not None:
                slot.answer(route.unserved(header.correlation_id))
            else:
                self._close(connection, "version", f"{api.name} version {version} is not served")
            return
        try:
            request = route.decode(version, frame[header.body :])
        except LooseMessage as loose:
            request = self._served(connection, f"{api.name} version {version}", loose)
        except messages.MalformedRequest as error:
            self._close(connection, "body", f"malformed {api.name} version {version}: {error}")
            return
        if route.cost is Cost.ADMIN:
            extra = (ADMIN_WEIGHT - 1) * len(frame)
            self._budget.force(extra)
            slot.cost += extra
        context = Context(
            self._services, connection.peer, api.key, version, header.correlation_id, header.client_id, connection
        )  # fmt: skip
        reply = Reply(route, context, connection, slot, started=started)
        meter = connection.meter
        if meter is not None:
            meter.of_client(header.client_id or "")
            meter.asked_s = started
            if version >= route.brokers_from:
                context.exempted = True
            else:
                reply.meter = meter
                if api.large:
                    meter.add(len(frame) + SIZE_BYTES)
                    meter.timed = request.acks != 0
        if len(frame) > LONG_REQUEST and route.cost is not Cost.DATA:
            self._services.loop.call_soon(self._execute, request, reply)  # decoding it was a turn's work
        else:
            self._execute(request, reply)
        if reply.meter is not None:
            reply.measure()

    def _execute(self, request: object, reply: Reply) -> None:
        if reply.connection.closed:
            return
        try:
            outcome = reply.route.handler(request, reply.context)
        except Exception:
            reply.failed()
            return
        if type(outcome) is Done:
            reply.send(outcome.response)
        else:
            self._settle(outcome, reply)

    def dispatch_run(self, connection: Connection, data: memoryview, start: int, end: int, most: int) -> int:
        """Execute requests where they were received; returns where they end, ``start`` if there are none.

        ``data`` from ``start`` to ``end`` begins with a frame's size. At most ``most`` requests.
        """
        if end - start < SMALLEST_RUN or data[start + 4] or self._unpacking.exhausted:
            return start
        key = data[start + 5]
        route = self._batches.get(key)
        if route is None:
            return start
        batch = route.batch
        assert batch is not None, "it is a row with one"
        started = self._seconds()
        run = batch.decode(data, start, end, route.lowest, route.highest, most)
        if run is None:
            return start
        marks = connection.marks
        if marks.client_id is None:
            marks.client_id = client_id_in(data, start)
        ends = run.ends
        # larger ones gain nothing: they only leave the cache
        connection.batchable = batch.batchable and ends[0] - start < LARGE_FRAME
        reserved = 0
        if batch.keeps is not None and batch.keeps(run) is not None:
            reserved = ends[-1] - start
            if not self._budget.reserve(reserved):
                return start
        context = Context(self._services, connection.peer, key, run.version, run.correlation_ids[0], "", connection)
        meter = connection.meter
        if meter is not None:
            meter.asked_s = started
            if not meter.known:
                meter.of_frame(data, start)
        try:
            (outcome,) = batch.execute((run,), (context,))
        except Exception:
            self._budget.release(reserved)
            Reply(route, context, connection, connection.next_slot(), started=started).failed()
            return ends[-1]
        if meter is not None and not context.exempted:
            allowed = meter.produced if route.large else None
            if allowed is not None:
                used = ends[-1] - start
                if meter.time is None and used <= allowed.left and started < allowed.until_s:
                    allowed.left -= used  # as below, but quicker
                else:
                    meter.add(used)
                    meter.measure(connection, started, self._seconds())
            elif meter.time is not None:
                meter.spent(connection, started, self._seconds())
            if connection.muted_until_ms and type(outcome) is Done and type(outcome[0]) is list:
                throttle(route.api.key, run.version, outcome[0], connection)
        if type(outcome) is Done and type(outcome[0]) is list and not reserved:
            connection.deliver(key, outcome[0])
            if route.counting:
                route.since(started, len(ends))
            return ends[-1]
        self._answer_run(route, connection, context, outcome, len(ends), reserved, started)
        return ends[-1]

    def dispatch_runs(self, connections: list[Connection]) -> int:
        """Execute the requests with which what they received begins, together. Returns how many had such."""
        by_key: dict[int, list[Member]] = {}
        started = self._seconds()
        for connection in connections:
            received = connection.received()
            if received is None:
                continue
            data, start, end, most = received
            key = data[start + 5] if end - start >= SMALLEST_RUN and not data[start + 4] else -1
            route = self._batches.get(key)
            if route is None or route.batch is None:
                continue
            run = route.batch.decode(data, start, end, route.lowest, route.highest, most)
            if run is None:
                continue
            alone = route.batch.alone
            if alone is not None and alone(run):
                continue
            connection.batchable = route.batch.batchable and run.ends[0] - start < LARGE_FRAME
            keeps = route.batch.keeps is not None and route.batch.keeps(run) is not None
            reserved = run.ends[-1] - start if keeps else 0
            if not reserved or self._budget.reserve(reserved):
                by_key.setdefault(key, []).append((connection, run, reserved))
                if connection.meter is not None:
                    if not connection.meter.known:
                        connection.meter.of_frame(data, start)
                    if route.large:
                        connection.meter.add(run.ends[-1] - start)
        for key, members in by_key.items():
            self._execute_runs(self._routes[key], members, started)
        return sum(map(len, by_key.values()))

    def _execute_runs(self, route: Route, members: list[Member], started: float) -> None:
        """Execute the runs of several connections, and answer each of them."""
        assert route.batch is not None, "it has decoded them"
        contexts = [
            Context(
                self._services, connection.peer, route.api.key, run.version, run.correlation_ids[0], "", connection
            )
            for connection, run, _ in members
        ]  # fmt: skip
        try:
            outcomes = route.batch.execute([run for _, run, _ in members], contexts)
        except Exception:
            for (connection, run, reserved), context in zip(members, contexts, strict=True):
                self._budget.release(reserved)
                Reply(route, context, connection, connection.next_slot(), started=started).failed()
                connection.executed(run.ends[-1])
            return
        for connection, run, _ in members:
            connection.executed(run.ends[-1])  # all of them, before anything else can go wrong: none comes twice
        shared = (self._seconds() - started) / len(members)
        for (connection, run, reserved), context, outcome in zip(members, contexts, outcomes, strict=True):
            if connection.meter is not None and not context.exempted:
                connection.meter.measure(connection, started, started + shared)
                if connection.muted_until_ms and type(outcome) is Done and type(outcome[0]) is list:
                    throttle(route.api.key, run.version, outcome[0], connection)
            self._answer_run(route, connection, context, outcome, len(run.ends), reserved, started)

    def _answer_run(
        self,
        route: Route,
        connection: Connection,
        context: Context,
        outcome: Outcome,
        count: int,
        reserved: int,
        started: float,
    ) -> None:
        """Answer so many requests that were executed together, now or later; a task keeps what was reserved."""
        try:
            if type(outcome) is Done and type(outcome[0]) is list:
                connection.deliver(route.api.key, outcome[0])
                if route.counting:
                    route.since(started, count)
                return
            reply = Reply(route, context, connection, connection.next_slot(), started=started, requests=count)
            if reserved and type(outcome) is InTask:
                reply.slot.cost += reserved
                reserved = 0
            self._settle(outcome, reply)
        except Exception:
            logger.exception("an answer to %s cannot be given", connection.peer.peer_host)
            connection.close(f"{route.api.name} failed")
        finally:
            if reserved:
                self._budget.release(reserved)

    def _settle(self, outcome: Outcome | object, reply: Reply) -> None:
        if isinstance(outcome, Done):
            reply.send(outcome.response)
        elif isinstance(outcome, DelayedResponse):
            reply.slot.serial = outcome.serial
            reply.delayed_s = self._seconds()
            if outcome.deadline_ms is not None and not outcome.done:
                outcome.timer = self._services.timers.later(
                    outcome.deadline_ms, functools.partial(reply.expire, outcome)
                )
            reply.slot.on_drop = outcome.cancel
            outcome.on_done(reply.send)
            reply.connection.pump()  # a request that may run beside this one has perhaps arrived already
        elif isinstance(outcome, InSlices):
            self._pace(outcome.work, reply)
        elif isinstance(outcome, InTask):
            task = self._services.loop.create_task(self._await(outcome.coroutine, reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            logger.error("the handler of %s returned %r", reply.route.api.name, type(outcome))
            reply.refuse()

    def _pace(self, work: Work, reply: Reply) -> None:
        """Not within :meth:`_settle`, which every request passes: a closure's variables would make it dearer."""
        meter = reply.connection.meter
        if meter is not None and not reply.context.exempted:
            work = timed_work(work, functools.partial(reply.spent, meter), self._seconds)
        if reply.route.api.large:
            self._pace_to_its_end(work, reply)
        else:
            self._pacing.start(work, reply.gone, lambda outcome: self._settle(outcome, reply), reply.failed)

    def _pace_to_its_end(self, work: Work, reply: Reply) -> None:
        """The records of a request are appended though its client has gone, and those of the requests behind it."""
        connection = reply.connection
        connection.lasting = True
        cost, reply.slot.cost = reply.slot.cost, 0  # also when the connection has closed, the frame is held until then

        def done(outcome: Outcome) -> None:
            connection.lasting = False
            self._budget.release(cost)
            self._settle(outcome, reply)

        def failed() -> None:
            connection.lasting = False
            self._budget.release(cost)
            reply.failed()

        self._pacing.start(work, lambda: False, done, failed)

    async def _await(self, coroutine: Coroutine[Any, Any, Outcome], reply: Reply) -> None:
        meter = reply.connection.meter
        if meter is not None and not reply.context.exempted:
            coroutine = TimedCoroutine(coroutine, functools.partial(reply.spent, meter), self._seconds)
        try:
            outcome = await coroutine
        except ClientGone:
            return
        except asyncio.CancelledError:
            reply.refuse()
            raise
        except Exception:
            reply.failed()
            return
        self._settle(outcome, reply)

    def _served(self, connection: Connection, what: str, loose: LooseMessage) -> Any:
        """What such bytes say; logged once for each client software."""
        software = " ".join(connection.software)
        if software not in self._loose and len(self._loose) < LOOSE_MAX:
            self._loose.add(software)
            self._quiet.warning(
                "%s: %s of client software %s: %s; it is served, as are others of that software",
                connection.peer.peer_host, what, software, loose,
            )  # fmt: skip
        return loose.message

    def _close(self, connection: Connection, reason: str, text: str) -> None:
        self._services.metrics.refused.labels(reason).inc()
        self._quiet.warning("%s: %s; the connection is closed", connection.peer.peer_host, text)
        connection.close(text)

    def close(self) -> None:
        """Cancel the tasks that still run."""
        self._pacing.close()
        for task in list(self._tasks):
            task.cancel()


class Reply:
    """Where one request's answer goes."""

    __slots__ = ("connection", "context", "delayed_s", "meter", "requests", "route", "slot", "started")

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
        self.delayed_s = 0.0
        """When it began to wait; 0 if it did not."""
        self.meter: Meter | None = None
        """What measures the request, until it has: before the answer, which says for how long it mutes."""

    def measure(self) -> None:
        """The request is executed, or waits: measure what it has cost."""
        meter, self.meter = self.meter, None
        if meter is not None and not self.context.exempted:
            meter.measure(self.connection, self.started, self.route.seconds())

    def spent(self, meter: Meter, started_s: float, ended_s: float) -> None:
        """A step of work that goes on; :meth:`measure` has those before it.

        A broker's request costs nothing, which its handler may say in the first one.
        """
        if self.meter is None and not self.context.exempted:
            meter.spent(self.connection, started_s, ended_s)

    def send(self, response: Any) -> None:
        """Encode the answer and give it to the connection."""
        if self.meter is not None:
            self.measure()
        route = self.route
        if route.counting:
            route.since(self.started, self.requests)
            if self.delayed_s:
                waited_s = route.seconds() - self.delayed_s
                route.delayed(self.delayed_s - self.started, waited_s, self.requests)
        self.connection.marks.answered_key = route.api.key
        if response is CLOSE:
            self.refuse()
            return
        if self.connection.closed:
            if isinstance(response, hot.Encoded):
                response.release()
            self.slot.answer([])
            return
        if type(response) in _SHORT:  # every Produce and Fetch
            self._give(response)
        elif type(response) is InSlices:
            self.route.pacing.start(response.work, self.gone, self._encode, self.failed)
        else:
            self._encode(response)

    def _encode(self, response: Any) -> None:
        if type(response) not in _SHORT:
            version, metrics = self.context.api_version, self.context.services.metrics
            if metrics.enabled:
                for error in answered_errors(response, version):
                    metrics.failed(self.route.api.name, error)
            if pieces.is_long(response, version):
                self.route.pacing.start(self._pieces(response), self.gone, self.slot.answer, self._cannot_encode)
                return
        self._give(response)

    def _give(self, response: Any) -> None:
        try:
            if response is None:
                chunks = []
            elif type(response) is list:
                chunks = response
            else:
                context = self.context
                header = messages.encode_response_header(context.api_key, context.api_version, context.correlation_id)
                if isinstance(response, hot.Encoded):
                    body = response.chunks
                elif isinstance(response, bytes):
                    body = [response]
                else:
                    body = [messages.encode_response(response, context.api_key, context.api_version)]
                chunks = hot.framed(header, body)
            if self.connection.muted_until_ms:
                throttle(self.route.api.key, self.context.api_version, chunks, self.connection)
        except Exception:
            self._cannot_encode()
            return
        self.slot.answer(chunks)

    def expire(self, delayed: DelayedResponse) -> None:
        """The deadline of the answer that is waited for has passed."""
        try:
            delayed.expire()
        except Exception:
            delayed.cancel()
            self.failed()

    def gone(self) -> bool:
        """Whether the connection has closed, so that nothing waits for the answer."""
        return self.connection.closed

    def _cannot_encode(self) -> None:
        logger.exception("cannot encode the answer to %s version %d", self.route.api.name, self.context.api_version)
        self.refuse()

    def _pieces(self, response: Any) -> Work:
        """The answer's chunks, if it is long."""
        context = self.context
        encoded = []
        for piece in pieces.pieces(response, context.api_version):
            encoded.append(piece)
            yield
        header = messages.encode_response_header(context.api_key, context.api_version, context.correlation_id)
        framed = hot.framed(header, [b"".join(encoded)])
        if self.connection.muted_until_ms:
            throttle(context.api_key, context.api_version, framed, self.connection)
        return framed

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


def throttle(key: int, version: int, chunks: list[Chunk], connection: Connection) -> None:
    """The answers of a muted connection say for how long it is muted; their first byte run is exchanged."""
    left_ms = connection.mute_left_ms
    if left_ms:
        connection.count_throttled(key, left_ms)
        chunks[:1] = with_throttle_time(key, version, chunks[:1], left_ms)


_SHORT = (list, hot.Encoded, bytes, type(None))


def _unserved(request: object, context: Context) -> Outcome:
    raise NotImplementedError(f"no handler for API key {context.api_key}")
