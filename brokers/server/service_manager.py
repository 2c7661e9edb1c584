"""What is sent to systemd: datagrams of ``NAME=value`` lines to the socket in ``NOTIFY_SOCKET`` (sd_notify(3)).

Without that variable nothing is sent, and nothing runs. A path that begins with ``@`` is an abstract socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping

logger = logging.getLogger(__name__)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
WATCHDOG_SHARE = 3
"""How often the watchdog is fed in its time."""


class ServiceManager:
    """Tells the service manager how the process stands; each call is one datagram, and never raises."""

    def __init__(self, environment: Mapping[str, str], process_id: int) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        if name and name[0] not in "/@":
            logger.warning("NOTIFY_SOCKET=%s is neither a path nor abstract: the service manager gets nothing", name)
            name = ""
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog_s = _watchdog_s(environment, process_id) if name else None
        """The time in which the watchdog wants to be fed, in seconds; None without one."""
        self._feeding: asyncio.Task[None] | None = None

    def ready(self, status: str) -> None:
        """The start is complete."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """The stop has begun; the watchdog is no longer fed."""
        if self._feeding is not None:
            self._feeding.cancel()
            self._feeding = None
        self._send("STOPPING=1\nSTATUS=stopping")

    def feed_watchdog(self, loop: asyncio.AbstractEventLoop, well: Callable[[], bool] = lambda: True) -> None:
        """Feed the watchdog from this loop while ``well`` says so: a loop that stands still feeds nothing."""
        if self.watchdog_s is not None and self._feeding is None:
            self._feeding = loop.create_task(self._feed(self.watchdog_s / WATCHDOG_SHARE, well), name="watchdog")

    async def _feed(self, pause_s: float, well: Callable[[], bool]) -> None:
        while True:
            if well():
                self._send("WATCHDOG=1")
            await asyncio.sleep(pause_s)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.setblocking(False)
                out.sendto(text.encode(), self._address)
        except OSError as error:
            logger.warning("cannot send %s to the service manager: %s", text.partition("\n")[0], error)


def _watchdog_s(environment: Mapping[str, str], process_id: int) -> float | None:
    """``WATCHDOG_USEC`` in seconds, if it is meant for this process."""
    text, meant = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not text.isdecimal() or not int(text) or (meant and meant != str(process_id)):
        return None
    return int(text) / 1_000_000


def service_manager(environment: MutableMapping[str, str]) -> ServiceManager:
    """That of this process. Its variables are taken out of the environment: children have nothing to tell it."""
    made = ServiceManager(environment, os.getpid())
    for name in VARIABLES:
        environment.pop(name, None)
    return made
