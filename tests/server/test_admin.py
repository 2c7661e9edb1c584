"""The operators' HTTP endpoint."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request

import pytest

from brokers.metrics import Metrics
from brokers.server.admin import MAX_REQUEST, Admin


def test_pages() -> None:
    metrics = Metrics()
    metrics.requests.labels("Produce").inc(3)
    missing: list[str | None] = ["starting"]
    troubles: list[str] = []
    admin = Admin(metrics, lambda: missing[0], lambda: troubles)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        loop = asyncio.get_running_loop()

        def get(path: str) -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        assert await loop.run_in_executor(None, get, "/health/live") == (200, "live\n")
        assert await loop.run_in_executor(None, get, "/health/ready") == (503, "not ready: starting\n")
        missing[0] = None
        assert await loop.run_in_executor(None, get, "/health/ready?verbose") == (200, "ready\n")
        troubles.extend(["log directory /a has no room", "log directory /b is offline"])
        said = "ready\nbut: log directory /a has no room\nbut: log directory /b is offline\n"
        assert await loop.run_in_executor(None, get, "/health/ready") == (200, said)
        status, text = await loop.run_in_executor(None, get, "/metrics")
        assert status == 200
        assert 'fleetlog_requests_total{api="Produce"} 3.0' in text
        assert (await loop.run_in_executor(None, get, "/else"))[0] == 404
        await admin.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "head", [b"POST / HTTP/1.1\r\n\r\n", b"\r\n\r\n", b"GET /\r\n\r\n", b"\xff\x00 \x01 \x02\r\n\r\n"]
)
def test_anything_but_get_is_refused(head: bytes) -> None:
    assert asyncio.run(Admin(Metrics(), lambda: None).answer(head)).startswith(b"HTTP/1.1 405 ")


def test_a_request_without_end_is_dropped() -> None:
    admin = Admin(Metrics(), lambda: None)

    async def run() -> None:
        port = await admin.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"x" * (2 * MAX_REQUEST))
        assert await reader.read() == b""
        writer.close()
        await admin.close()

    asyncio.run(run())
