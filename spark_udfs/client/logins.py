"""kafka-python's connections, with a refused login as an error instead of a silence until the timeout."""

from __future__ import annotations

from typing import Any

from kafka.errors import SaslAuthenticationFailedError, UnsupportedSaslMechanismError
from kafka.net.manager import KafkaConnectionManager

from fleetlog.spark.client.tokens import TokenRefused, TokenUnavailable

REFUSALS = (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)
_REASONS = (*REFUSALS, TokenRefused, TokenUnavailable)


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    """The library's, in two things otherwise.

    A broker answers a refused login and closes. The library drops what arrives together with the end of a connection,
    and so most of these answers; and it tries again without a word what was refused.
    """

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        receive = transport._sock_recv

        def all_that_came() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error  # the end is read once more

        transport._sock_recv = all_that_came
        return transport

    async def _connect(self, node: Any, conn: Any, **options: Any) -> None:
        await super()._connect(node, conn, **options)
        problem = conn.init_future.exception
        if isinstance(problem, _REASONS):
            self._auth_failures[node.node_id] = problem

    def maybe_raise_auth_failure(self, node_id: Any) -> None:
        """Raises a refusal once: the next call logs in again, as the user may be there by then."""
        problem = self._auth_failures.pop(node_id, None)
        if problem is not None:
            raise problem
