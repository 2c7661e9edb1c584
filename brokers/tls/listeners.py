"""Listeners with TLS: their certificates, which follow their files, and the principals of clients.

A worker looks at the files every ``CHECK_MS``. What it finds is used by the next handshakes; connections go on with
what they have. Files that cannot be used are left alone, and the broker says so until they can.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Final

from fleetlog.brokers.addresses import TLS_PROTOCOLS
from fleetlog.brokers.logins.principals import USER, Principal
from fleetlog.brokers.tls.contexts import CertificateFiles, TlsContext, server_context
from fleetlog.brokers.tls.machine import TlsEngine
from fleetlog.brokers.tls.settings import TlsSettings

if TYPE_CHECKING:
    import asyncio

    from fleetlog.brokers.metrics.registry import Metrics
    from fleetlog.brokers.model import Clock
    from fleetlog.brokers.timers import Timer, Timers

logger = logging.getLogger(__name__)

CHECK_MS: Final = 3_000


class TlsListener:
    """TLS of one listener. Raises ConfigError where its files cannot be used; ``now_s`` as in ``server_context``.

    ``make`` is that function, or another one that refuses more.
    """

    def __init__(
        self,
        name: str,
        protocol: str,
        settings: TlsSettings,
        now_s: float,
        make: Callable[[TlsSettings, float], TlsContext] = server_context,
    ) -> None:
        assert protocol in TLS_PROTOCOLS, "a listener without TLS"
        self.name = name
        self.protocol = protocol
        self.refusal: str | None = None
        """Why the files, as they are now, are not in use."""
        self.withheld = False
        """Whether no connection is served, since what is in use is older than what should be."""
        self._unusable: str | None = None
        self._files = CertificateFiles(settings, make, now_s)
        self._followed = threading.Lock()
        self._mapper = settings.mapper if protocol == "SSL" else None
        for warning in self._files.current.warnings:
            logger.warning("%s", warning)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next handshake."""
        return self._files.current.context

    @property
    def verifies(self) -> bool:
        """Whether clients are asked for a certificate."""
        return self._files.current.context.verify_mode is not ssl.CERT_NONE

    @property
    def valid_until_s(self) -> float:
        """When the certificate in use expires, in seconds since 1970."""
        certificate = self._files.current.certificate
        assert certificate is not None, "a listener has one"
        return certificate.not_after_s

    def principal(self, engine: TlsEngine) -> str | None:
        """The principal of the client's certificate, as ``Type:name``; None where it counts for nothing, or is none.

        With SASL the login decides. Raises BadPrincipal and NoRuleMatches.
        """
        subject = engine.peer_subject() if self._mapper is not None else None
        if subject is None or self._mapper is None:
            return None
        return str(Principal(USER, self._mapper.principal_name(subject)))

    def follow(self, now_s: float) -> str | None:
        """Take over files that have changed, if they can be used; a line for the log, if there is news. In a worker."""
        with self._followed:
            return self._follow(now_s)

    def want(self, settings: TlsSettings) -> None:
        """Let the next :meth:`follow` take over the files of these settings."""
        self._unusable = None
        self._files.want(settings)

    def refuse(self, why: str) -> None:
        """What was wanted gives no settings: what is in use stays until the next :meth:`want`."""
        self._unusable = why

    def check(self, settings: TlsSettings, now_s: float) -> None:
        """Try files of other settings. Raises ConfigError where they would be refused. In a worker."""
        self._files.check(settings, now_s)

    def _follow(self, now_s: float) -> str | None:
        before, refusal = self.refusal, self._unusable
        if refusal is None:
            if not self._files.changed():
                self.refusal = None  # the old files are back
                return None
            made = self._files.reloaded(now_s)
            refusal = made if isinstance(made, str) else None
        self.refusal = refusal
        if refusal is not None:
            return None if refusal == before else f"listener {self.name}: the old certificate stays in use: {refusal}"
        self.withheld = False
        return f"listener {self.name}: the certificate was replaced"


class CertificateWatch:
    """Looks at the files of all listeners with TLS, in ``workers``, until :meth:`stop`."""

    def __init__(
        self,
        listeners: Mapping[str, TlsListener],
        workers: Executor,
        *,
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._listeners = listeners
        self._workers = workers
        self._loop = loop
        self._timers = timers
        self._clock = clock
        self._timer: Timer | None = None
        self._stopped = False
        metrics.watch_family(
            "fleetlog_certificate_seconds", "Time until a listener's certificate expires.", "listener",
            self._each(lambda one: one.valid_until_s - clock.wall_ms() / 1000),
        )  # fmt: skip
        metrics.watch_family(
            "fleetlog_certificate_refused",
            "1 while the certificate on disk cannot be used, and a listener continues with the one before.",
            "listener",
            self._each(lambda one: one.refusal is not None),
        )

    def _each(self, number: Callable[[TlsListener], float]) -> Callable[[], dict[str, float]]:
        return lambda: {name: float(number(one)) for name, one in self._listeners.items()}

    def start(self) -> None:
        """Look for the first time in ``CHECK_MS``."""
        self._timer = self._timers.later(CHECK_MS, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._workers.submit(self._follow, self._clock.wall_ms() / 1000)

    def _follow(self, now_s: float) -> None:
        """In a worker: disks and keys take their time."""
        for listener in self._listeners.values():
            try:
                news = listener.follow(now_s)
            except Exception:
                logger.exception("the certificate of listener %s cannot be followed", listener.name)
                continue
            if news is not None:
                logger.log(logging.WARNING if listener.refusal else logging.INFO, "%s", news)
        self._loop.call_soon_threadsafe(self._looked)

    def _looked(self) -> None:
        if not self._stopped:
            self.start()
