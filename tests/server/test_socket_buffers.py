"""What the kernel holds of a connection: as the settings say; by itself, what a near reader needs of an answer."""

from __future__ import annotations

import contextlib
import os
import socket

import pytest

import fleetlog.wire.messages as m
from fleetlog.brokers.api.base import Done
from fleetlog.brokers.server.connection import NEAR_SEND_BUFFER
from tests.support.harness import RunningServer

METADATA = 3
Topic = m.MetadataResponse.MetadataResponseTopic
TOPICS = [
    Topic(version=1, error_code=0, name=f"{number:0249}", is_internal=False, partitions=[]) for number in range(20_000)
]


def buffers(client: socket.socket) -> tuple[int, int]:
    """SO_SNDBUF and SO_RCVBUF of the server's end, which is in this process."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as end:
            if end.getpeername() == client.getsockname():
                return tuple(end.getsockopt(socket.SOL_SOCKET, what) for what in (socket.SO_SNDBUF, socket.SO_RCVBUF))
    raise AssertionError("the server's end is not open")


def handler(*_: object) -> Done:
    return Done(m.MetadataResponse(version=1, brokers=[], controller_id=0, topics=TOPICS))


@pytest.mark.parametrize("given", [{}, {"socket.send.buffer.bytes": "50000", "socket.receive.buffer.bytes": "60000"}])
def test_a_long_answer_to_a_near_reader_is_held_in_a_small_buffer(given: dict[str, str]) -> None:
    """Linux doubles what is asked for."""
    with RunningServer({METADATA: handler}, given) as server:
        client = server.client()
        server.until(lambda: server.server.described(0)[0] == 1, "the connection")
        before = buffers(client.sock)
        assert (before == (100_000, 120_000)) == bool(given)
        client.send(m.MetadataRequest(version=1, topics=None), 1, 7)
        server.until(lambda: any(c.unsent for c in server.server.described(0)[1]), "an answer that waits")
        assert buffers(client.sock) == (before if given else (2 * NEAR_SEND_BUFFER, before[1]))
        number, answer = client.receive()
        assert (number, len(answer.topics)) == (7, len(TOPICS))
