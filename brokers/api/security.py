"""SASL on connections that have nothing to log in for.

What comes before a login never gets here: ``brokers.server.login`` answers it.
"""

from __future__ import annotations

from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.audit.events import EventType
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import SaslAuthenticateRequest, SaslHandshakeRequest

NO_SASL = "There is no login to do: the connection has one already, or its listener is PLAINTEXT."


@Row(api_keys.SASL_HANDSHAKE, audit=EventType.AUTHENTICATE, cost=Cost.CHEAP)
def handle_sasl_handshake(request: SaslHandshakeRequest, context: Context) -> Done:
    """SaslHandshake v0-v1: refused on a PLAINTEXT listener, and after a login."""
    response = messages.SaslHandshakeResponse
    return Done(response(version=context.api_version, error_code=int(ErrorCode.ILLEGAL_SASL_STATE)))


@Row(api_keys.SASL_AUTHENTICATE, audit=EventType.AUTHENTICATE, cost=Cost.CHEAP)
def handle_sasl_authenticate(request: SaslAuthenticateRequest, context: Context) -> Done:
    """SaslAuthenticate v0-v2: refused on a PLAINTEXT listener, and after a login."""
    response = messages.SaslAuthenticateResponse
    code = int(ErrorCode.ILLEGAL_SASL_STATE)
    return Done(response(version=context.api_version, error_code=code, error_message=NO_SASL))
