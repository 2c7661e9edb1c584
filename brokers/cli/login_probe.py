"""One login by hand before a command begins: clients try a refused one again until their timeout, without a word."""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from fleetlog.brokers.cli.output import CliError
from fleetlog.brokers.logins.mechanism_names import SCRAM_MECHANISMS
from fleetlog.brokers.logins.mechanisms import AuthenticationFailed
from fleetlog.brokers.logins.oauthbearer import OAUTHBEARER, token_message
from fleetlog.brokers.logins.plain import plain_message
from fleetlog.brokers.logins.sasl import SASL_AUTHENTICATE, SASL_HANDSHAKE
from fleetlog.brokers.logins.scram import ScramClient, random_text
from fleetlog.wire import messages

_CLIENT_ID: Final = "fleetlog-cli"
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_ANSWER_BYTES_MAX: Final = 65_536


class LoginRefused(CliError):
    """A broker does not take the login."""


def probe_login(connection: socket.socket, security: Mapping[str, Any]) -> None:
    """Log in over a connection. Raises LoginRefused, and OSError where it does not answer."""
    mechanism = str(security["sasl_mechanism"])
    user, password = str(security.get("sasl_plain_username", "")), str(security.get("sasl_plain_password", ""))
    try:
        handshake = messages.request_class(SASL_HANDSHAKE)(version=_HANDSHAKE_VERSION, mechanism=mechanism)
        answer = _ask(connection, SASL_HANDSHAKE, _HANDSHAKE_VERSION, handshake)
        if answer.error_code:
            listed = ", ".join(answer.mechanisms)
            raise AuthenticationFailed(f"the listener has {listed or 'no SASL'}; see listener.security.protocol.map")
        if mechanism == OAUTHBEARER:
            if _exchange(connection, token_message(security["sasl_oauth_token_provider"].token())):
                raise AuthenticationFailed("the brokers do not accept the token: it has expired, or is of another")
            return
        scram = SCRAM_MECHANISMS.get(mechanism)
        if scram is None:
            _exchange(connection, plain_message(user, password))
            return
        client = ScramClient(scram, user, password, random_text(secrets.randbits))
        client.check(_exchange(connection, client.final(_exchange(connection, client.first()))))
    except AuthenticationFailed as error:
        who = f"of user {user} " if user else ""
        raise LoginRefused(f"the login {who}by {mechanism} failed: {error}") from None


def _exchange(connection: socket.socket, token: bytes) -> bytes:
    request = messages.request_class(SASL_AUTHENTICATE)(version=_AUTHENTICATE_VERSION, auth_bytes=token)
    answer = _ask(connection, SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, request)
    if answer.error_code:
        raise AuthenticationFailed(answer.error_message or f"error {answer.error_code}")
    return bytes(answer.auth_bytes)


def _ask(connection: socket.socket, key: int, version: int, request: messages.Encodable) -> Any:
    connection.sendall(messages.frame_request(key, version, 1, _CLIENT_ID, bytes(request.encode(version=version))))
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    if not 0 <= size <= _ANSWER_BYTES_MAX:
        raise OSError("no answer of a broker")
    try:
        _, body = messages.split_response(key, version, _exactly(connection, size))
        return messages.decode_response(key, version, body)
    except messages.MalformedRequest as error:
        raise OSError("no answer of a broker") from error


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise OSError("closed")
        data += more
    return data
