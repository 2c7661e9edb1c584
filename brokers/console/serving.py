"""Runs the console by uvicorn, which is plain Python and needs only h11 and click: a console serves a few people."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

import uvicorn

from brokers.cli.client import Target
from brokers.cli.output import CliError
from brokers.console.web import ConsoleSettings, create_console

OPEN_MAX = 200
"""Requests that are open at the same time; more are answered with 503."""
BACKLOG = 64


def serve(
    *,
    target: Target,
    hosts: frozenset[str],
    login: str | None,
    secure_cookie: bool,
    host: str,
    port: int,
    certificate: tuple[str, str] | None,
    stop_s: int,
    ready: Callable[[int], None],
) -> None:
    """Listen, call ``ready`` with the port, and serve until SIGINT or SIGTERM. Raises CliError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise CliError(f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port") from None
    config = uvicorn.Config(
        create_console(ConsoleSettings(target, hosts, login, secure_cookie)),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        limit_concurrency=OPEN_MAX,
        timeout_graceful_shutdown=stop_s,
        ssl_certfile=certificate[0] if certificate is not None else None,
        ssl_keyfile=certificate[1] if certificate is not None else None,
    )
    ready(listening.getsockname()[1])
    with contextlib.suppress(KeyboardInterrupt), listening:
        uvicorn.Server(config).run(sockets=[listening])
