"""One connection to another broker: sends requests, receives responses, completes the calls.

Responses are received without copies: small ones in the connection's buffer, large ones in a separate buffer, which is
reused once it has no other references. A call allocates only the future that its caller awaits; one timer covers all
calls.
"""

from __future__ import annotations

import asyncio
import math
import struct
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from fleetlog.brokers.timers import Timer, Timers
from fleetlog.wire import messages

MAX_RESPONSE_BYTES = 100 * 1024 * 1024
AREA_BYTES = 64 * 1024
SPARE_BYTES = 2 * 1024 * 1024
"""The largest buffer that is kept for the next large response."""

_LENGTH = struct.Struct(">i")
_OWN_REFERENCES = 2
"""``sys.getrefcount`` of a buffer without other references."""


class PeerUnavailable(Exception):
    """The broker ``broker_id`` is not registered, not reachable, or did not answer. Retriable."""

    def __init__(self, broker_id: int, reason: str) -> None:
        super().__init__(f"broker {broker_id}: {reason}")
        self.broker_id = broker_id
        self.reason = reason


class _Call(NamedTuple):
    correlation_id: int
    api_key: int
    version: int
    answer: asyncio.Future[Any]
    raw: bool  # the caller decodes the response
    deadline: float
    timeout_ms: int


class PeerLink(asyncio.BufferedProtocol):
    """The connection's protocol; it closes after a malformed response or the timeout of a call."""

    def __init__(self, broker_id: int, loop: asyncio.AbstractEventLoop, timers: Timers) -> None:
        self.broker_id = broker_id
        self.open = True
        self._retiring = False
        self._loop = loop
        self._timers = timers
        self._transport: asyncio.Transport | None = None
        self._calls: deque[_Call] = deque()
        self._next_id = 0
        self._alarm: Timer | None = None
        self._alarm_at = 0.0
        self._writable: asyncio.Event | None = None  # while the transport's send buffer is full
        self._area = bytearray(AREA_BYTES)
        self._end = 0
        self._frame: memoryview | None = None  # a large response that is being received
        self._filled = 0
        self._spare = bytearray()

    # ---- calls

    async def call(
        self, api_key: int, version: int, body: bytes, client_id: str, deadline: float, timeout_ms: int, *, raw: bool
    ) -> Any:
        """Send a request and wait for its response until ``deadline`` (the loop's time); raises PeerUnavailable."""
        while self._writable is not None:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._writable.wait()
            except TimeoutError:
                raise PeerUnavailable(self.broker_id, f"took no request within {timeout_ms} ms") from None
        if not self.open or self._transport is None:
            raise PeerUnavailable(self.broker_id, "closed the connection")
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        self._calls.append(_Call(self._next_id, api_key, version, answer, raw, deadline, timeout_ms))
        if self._alarm is None or deadline < self._alarm_at:
            self._watch(deadline)
        self._transport.write(messages.frame_request(api_key, version, self._next_id, client_id, body))
        return await answer

    def _watch(self, deadline: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._timers.later(math.ceil(1000 * (deadline - self._loop.time())), self._look)
        self._alarm_at = deadline

    def _look(self) -> None:
        """The timer: close the connection after a missed deadline, else set the timer for the next one."""
        self._alarm = None
        waiting = [call for call in self._calls if not call.answer.done()]
        if not waiting:
            return
        first = min(waiting, key=lambda call: call.deadline)
        if first.deadline <= self._loop.time():
            self.close(f"no answer within {first.timeout_ms} ms")
        else:
            self._watch(first.deadline)

    def _answer(self, frame: memoryview | bytes) -> None:
        """Raises MalformedRequest."""
        if not self._calls:
            raise messages.MalformedRequest("sent a response without a request")
        call = self._calls[0]
        correlation_id, body = messages.split_response(call.api_key, call.version, frame)
        if correlation_id != call.correlation_id:
            raise messages.MalformedRequest(f"sent correlation id {correlation_id} instead of {call.correlation_id}")
        response = body if call.raw else messages.decode_response(call.api_key, call.version, body)
        self._calls.popleft()
        if not call.answer.done():
            call.answer.set_result(response)
        if self._retiring and not self._calls:
            self.close("was replaced")

    def retire_after(self, seconds: float, replaced: Callable[[], None]) -> None:
        """Call ``replaced`` after that time; the connection closes once the calls in flight have their answers."""
        self._timers.later(math.ceil(1000 * seconds), partial(self._retire, replaced))

    def _retire(self, replaced: Callable[[], None]) -> None:
        if not self.open:
            return
        replaced()
        self._retiring = True
        if not self._calls:
            self.close("was replaced")

    def close(self, reason: str) -> None:
        """Close the connection; calls in flight fail. Safe to call twice."""
        if not self.open:
            return
        self.open = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for call in self._calls:
            if not call.answer.done():
                call.answer.set_exception(PeerUnavailable(self.broker_id, reason))
        self._calls.clear()
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._transport is not None:
            self._transport.abort()

    # ---- called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, problem: Exception | None) -> None:
        """Fail the calls in flight."""
        self.close(str(problem) if problem is not None else "closed the connection")

    def pause_writing(self) -> None:
        """Hold further calls: the send buffer is full."""
        self._writable = asyncio.Event()

    def resume_writing(self) -> None:
        """Release held calls."""
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def get_buffer(self, _size_hint: int) -> memoryview:
        """The buffer for the next bytes."""
        if self._frame is not None:
            return self._frame[self._filled :]
        return memoryview(self._area)[self._end :]

    def buffer_updated(self, size: int) -> None:
        """Handle ``size`` received bytes."""
        try:
            if self._frame is None:
                self._end += size
                self._cut()
                return
            self._filled += size
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(frame)
        except messages.MalformedRequest as problem:
            self.close(str(problem))

    def _cut(self) -> None:
        """Take complete frames out of the buffer; the beginning of one that does not fit moves to its own buffer."""
        area, start, end = memoryview(self._area), 0, self._end
        self._end = 0  # the connection closes if this raises
        while end - start >= _LENGTH.size and self.open:
            (size,) = _LENGTH.unpack_from(area, start)
            if not 4 <= size <= MAX_RESPONSE_BYTES:
                self.close(f"sent a frame of {size} bytes")
                return
            begin = start + _LENGTH.size
            if end - begin >= size:
                self._answer(bytes(area[begin : begin + size]))
                start = begin + size
                continue
            if size > AREA_BYTES - _LENGTH.size:
                self._frame = self._buffer(size)
                self._filled = end - begin
                self._frame[: self._filled] = area[begin:end]
                return
            break
        self._end = end - start
        if start and self._end:
            area[: self._end] = bytes(area[start:end])

    def _buffer(self, size: int) -> memoryview:
        """A buffer for a large frame: the spare one if it is large enough and has no other references."""
        if size > SPARE_BYTES:
            return memoryview(bytearray(size))
        if len(self._spare) < size or sys.getrefcount(self._spare) > _OWN_REFERENCES:
            self._spare = bytearray(max(size, 2 * AREA_BYTES))
        return memoryview(self._spare)[:size]
