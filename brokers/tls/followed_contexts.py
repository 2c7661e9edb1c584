"""A TLS context that is kept up to date with the files of its certificates, for connections that are opened rarely."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable

from fleetlog.brokers.tls.contexts import CertificateFiles
from fleetlog.brokers.tls.settings import TlsSettings

logger = logging.getLogger(__name__)


class FollowedContexts:
    """The context of connections that are opened from now on: made anew when the files have changed."""

    def __init__(self, files: CertificateFiles, now_s: Callable[[], float], connections: str) -> None:
        """``now_s`` is the time in seconds since 1970; ``connections`` names them in the log."""
        self._files = files
        self._now_s = now_s
        self._connections = connections
        self._refused = ""

    def want(self, settings: TlsSettings) -> None:
        """Use these settings for the next connection, if they can be used."""
        self._files.want(settings)

    def newest(self) -> ssl.SSLContext:
        """Looks at the files, and reads them where they are others: for a worker. The old ones stay if they are bad."""
        if self._files.changed():
            made = self._files.reloaded(self._now_s())
            if not isinstance(made, str):
                self._refused = ""
                logger.info("%s use the new certificates from now on", self._connections)
            elif made != self._refused:  # each new connection fails alike
                self._refused = made
                logger.error("%s go on with the certificates of before: %s", self._connections, made)
        return self._files.current.context
