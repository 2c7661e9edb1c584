"""The keys of an OAUTHBEARER listener's issuer: fetched at the start, followed in the background, asked by logins.

A fetch runs in a worker, takes 5 s and 1 MiB at most, follows no redirect and uses no proxy. If it fails, the keys that
are known stay, and it is tried again after a growing pause. A token with a key id that is not known waits for one more
fetch, unless there was one in the last 5 s: forged tokens cannot flood the issuer.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fleetlog.brokers.logins.oauthbearer import BadToken, TokenOutcome

if TYPE_CHECKING:
    from fleetlog.brokers.logins.oidc_settings import OidcSettings
    from fleetlog.brokers.logins.token_signatures import SigningKeys, TokenHeader
    from fleetlog.brokers.model import Clock

logger = logging.getLogger(__name__)

FETCH_S: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
EARLY_INTERVAL_MS: Final = 5_000
WAITING_MAX: Final = 1_000
START_ATTEMPTS: Final = 3
ON_LOOP_BYTES_MAX: Final = 16_384
"""A token up to this size is checked in less than a millisecond; longer ones are for a worker."""

Fetch = Callable[[str], bytes]


class KeysUnavailable(Exception):
    """The issuer's keys cannot be had; the text says from where, and why."""


def fetch_keys(url: str) -> bytes:
    """What stands at that address (https, http, file). Blocks for ``FETCH_S`` at most; raises OSError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return _file(unquote(parts.path))
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=FETCH_S, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=FETCH_S)
    )
    deadline = time.monotonic() + FETCH_S
    ends: threading.Timer | None = None
    try:
        connection.connect()
        ends = threading.Timer(deadline - time.monotonic(), partial(_cut, connection.sock))  # the answer takes it over
        ends.daemon = True
        ends.start()
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", target, headers={"Accept": "application/json", "Accept-Encoding": "identity"})
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise OSError(f"it answers {answer.status} {answer.reason[:100]!r}")
        document = answer.read(DOCUMENT_BYTES_MAX + 1)
    except OSError as error:  # also what is wrong with a certificate, which is a ValueError, too
        if time.monotonic() < deadline:
            raise OSError(str(error)) from None
        raise _late() from None
    except (http.client.HTTPException, ValueError) as error:
        if time.monotonic() < deadline:
            raise OSError(f"it answers no HTTP: {type(error).__name__}") from None
        raise _late() from None
    finally:
        if ends is not None:
            ends.cancel()
        connection.close()
    if time.monotonic() >= deadline:
        raise _late()
    return _bounded(document)


def _late() -> OSError:
    return OSError(f"it took longer than {FETCH_S:.0f} s")


def _cut(sock: socket.socket) -> None:
    """The end of a fetch whose bytes come one by one."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def _file(path: str) -> bytes:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is no file")
    with open(path, "rb") as file:
        return _bounded(file.read(DOCUMENT_BYTES_MAX + 1))


def _bounded(document: bytes) -> bytes:
    if len(document) > DOCUMENT_BYTES_MAX:
        raise OSError(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
    return document


class IssuerKeys:
    """The keys of one listener's issuer, followed; :meth:`verify` decides about tokens. ``start`` once, ``stop`` once.

    ``fetch`` runs in a worker.
    """

    def __init__(self, settings: OidcSettings, clock: Clock, fetch: Fetch = fetch_keys) -> None:
        from fleetlog.brokers.logins import token_signatures

        self._settings = settings
        self._clock = clock
        self._fetch = fetch
        self._signatures = token_signatures
        self._keys: SigningKeys = token_signatures.SigningKeys([])
        self._worker: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._fetched_mono_ms = -EARLY_INTERVAL_MS
        self._fetching = False
        self._waiting: list[Callable[[], None]] = []

    # ---- following the keys

    async def start(self) -> None:
        """Fetch the keys, and follow them. Raises KeysUnavailable."""
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                await self._refresh()
                break
            except KeysUnavailable:
                if attempt == START_ATTEMPTS:
                    raise
                await asyncio.sleep(self._pause_ms(attempt) / 1000)
        self._task = asyncio.create_task(self._follow(), name="issuer's keys")

    async def stop(self) -> None:
        """Stop following the keys."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._worker is not None:
            self._worker.shutdown(wait=False, cancel_futures=True)

    def _pause_ms(self, failures: int) -> int:
        settings = self._settings
        if not failures:
            return settings.refresh_ms
        doubled: int = settings.retry_ms * 2 ** min(failures - 1, 20)
        return min(doubled, settings.retry_max_ms)

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(self._pause_ms(failures) / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._refresh()
                failures = 0
            except KeysUnavailable as error:
                failures += 1
                logger.warning("%s; the keys that are known stay", error)
            except Exception:  # a broker that stopped following would accept keys that were withdrawn
                failures += 1
                logger.exception("following the keys of an issuer failed; fetching them again")
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                asyncio.get_running_loop().call_soon(resume)  # what fails there does not end this task

    async def _refresh(self) -> None:
        """Raises KeysUnavailable."""
        url, loop = self._settings.keys_url, asyncio.get_running_loop()
        self._fetching = True
        try:
            keys = self._signatures.parse_keys(await loop.run_in_executor(None, self._fetch, url))
        except OSError as error:
            reason = error.strerror or str(error)
            raise KeysUnavailable(f"the issuer's keys at {url} cannot be fetched: {reason}") from None
        except self._signatures.BadKeys as error:
            raise KeysUnavailable(f"the issuer's keys at {url} cannot be used: {error}") from None
        finally:
            self._fetching = False
            self._fetched_mono_ms = self._clock.mono_ms()
        if len(self._keys) == 0:
            logger.info("%d keys of the issuer at %s", len(keys), url)
        self._keys = keys

    # ---- logins

    def verify(self, token: bytes, done: Callable[[TokenOutcome], None]) -> None:
        """Decide about a token; ``done`` is called once, on the loop."""
        try:
            header = self._signatures.token_header(token)
        except BadToken as refusal:
            done(refusal)
            return
        if self._keys.find(header) is None and self._fetches_early():
            self._waiting.append(partial(self._check, token, header, done))
        else:
            self._check(token, header, done)

    def _fetches_early(self) -> bool:
        """Whether a fetch is under way, or begins now, whose outcome a token can wait for."""
        if len(self._waiting) >= WAITING_MAX or self._task is None:
            return False
        if not self._fetching and not self._wanted.is_set():
            if self._clock.mono_ms() - self._fetched_mono_ms < EARLY_INTERVAL_MS:
                return False
            self._wanted.set()
        return True

    def _check(self, token: bytes, header: TokenHeader, done: Callable[[TokenOutcome], None]) -> None:
        key = self._keys.find(header)
        if key is None:
            named = "no key id" if header.key_id is None else f"the key id {header.key_id[:100]!r}"
            done(BadToken(f"it has {named}, and the issuer has no such key for {header.algorithm}"))
            return
        check = partial(
            self._signatures.checked_token, token, header, key, self._settings.rules, self._clock.wall_ms()
        )  # fmt: skip
        if len(token) <= ON_LOOP_BYTES_MAX:
            done(check())
            return
        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, "tokens")
        future = asyncio.get_running_loop().run_in_executor(self._worker, check)
        future.add_done_callback(lambda found: done(_outcome(found)))


def _outcome(future: asyncio.Future[TokenOutcome]) -> TokenOutcome:
    if future.cancelled():
        return BadToken("the broker stops")
    error = future.exception()
    if error is None:
        return future.result()
    logger.error("a token could not be checked", exc_info=error)
    return BadToken("it could not be checked")
