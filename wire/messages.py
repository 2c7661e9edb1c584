"""Every message of the protocol, and the only place that imports ``kafka.protocol``.

One class per message for all versions, from kafka-python's schemas (Kafka's own JSON); what the library lacks, or has
in fewer versions, is declared in ``wire/schemas`` as JSON in the same format. A class is made when it is first asked
for, so commands and Spark's workers make those they use. Decoding goes through :mod:`wire.bounded`, never through the
library's decoder, which trusts its input; the library is the reference in the tests.

The library has one shared default list per field. Never append to a field that was not set; build lists first and
pass them to the constructor.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import kafka.protocol.admin as _admin
import kafka.protocol.consumer as _consumer
import kafka.protocol.metadata as _metadata
import kafka.protocol.producer as _producer
from kafka.protocol.api_message import ApiMessage as _ApiMessage
from kafka.protocol.schemas.fields.codecs.encode_buffer import EncodeBuffer

from fleetlog.wire import api_keys, schemas
from fleetlog.wire.apis import APIS
from fleetlog.wire.bounded import Codec, MalformedRequest, Reader, decode_whole, struct_codec
from fleetlog.wire.deferred import Later

if TYPE_CHECKING:
    from fleetlog._native.wire_tuples import RequestHeader
    from fleetlog.wire.answers import *  # noqa: F403  the types of the classes that __getattr__ has

__all__ = [
    "Encodable",
    "EncodeBuffer",
    "MalformedRequest",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "encode_response_header",
    "frame_request",
    "header_parser",
    "is_flexible",
    "message_class",
    "parse_request_header",
    "request_class",
    "response_class",
    "schema_versions",
    "split_response",
]

MAX_RESPONSE_FIELDS: Final = 32_000_000


class Encodable(Protocol):
    """A request or response of one of the classes here, or of the library's."""

    API_KEY: int

    def encode(self, *, version: int | None = None) -> bytes:
        """The body in that version; None: the message's own."""


# -- the registry -------------------------------------------------------------------------------------------------


_LIBRARY = (_metadata, _consumer, _producer, _admin)
_NAMES: Final = {api.key: api.name for api in APIS.values()}
_OWN: Final = frozenset(file.stem for file in Path(schemas.__file__).parent.glob("*.json"))


@cache
def message_class(name: str) -> Any:
    """The class of a message, with that of its request or response, which the library finds by the key.

    What the library has of that name is made first: else it would read the answers of the library's requests.
    """
    made = next((vars(package)[name] for package in _LIBRARY if name in vars(package)), None)
    if isinstance(made, Later):
        made = made.made()
    if name in _OWN:
        own = {"__module__": __name__, "__qualname__": name}
        made = type(_ApiMessage)(name, (made or _ApiMessage,), own, load_json=schemas)
    elif made is None:
        from kafka.protocol import sasl  # what logs in needs

        made = getattr(sasl, name)
    if name.endswith("Request"):
        message_class(name.removesuffix("Request") + "Response")
    return made


def __getattr__(name: str) -> Any:
    """All message classes by name: ``from fleetlog.wire.messages import MetadataResponse``."""
    kind = re.fullmatch("([A-Z][A-Za-z]+)(Request|Response)", name)
    if kind is None or kind[1] not in _NAMES.values():
        raise AttributeError(f"fleetlog.wire.messages has no message {name!r}")
    made = globals()[name] = message_class(name)
    return made


def request_class(key: int) -> Any:
    """The request class of an API key; KeyError if there is none."""
    return message_class(f"{_NAMES[key]}Request")


def response_class(key: int) -> Any:
    """The response class of an API key; KeyError if there is none."""
    return message_class(f"{_NAMES[key]}Response")


def schema_versions(key: int) -> tuple[int, int]:
    """Lowest and highest version the schema of that key describes."""
    low, high = request_class(key).valid_versions
    return low, high


_NEVER: Final = 2**15


@cache
def _flexible_from(key: int) -> int:
    """The first flexible version of a key, the same for request and response."""
    cls = request_class(key)
    return next((v for v in range(schema_versions(key)[1] + 1) if cls.flexible_version_q(v)), _NEVER)


def is_flexible(key: int, version: int) -> bool:
    """Whether that version uses compact types and tagged fields (KIP-482)."""
    return version >= _flexible_from(key)


# -- headers ------------------------------------------------------------------------------------------------------


_PREFIX = struct.Struct(">hhi")


@cache
def header_parser() -> Callable[[memoryview], RequestHeader]:
    """What parses request headers, for those who parse one after the other; all classes are made before."""
    from fleetlog._native import wire as kernel  # late: commands and Spark's workers parse no request

    return partial(kernel.parse_request_header, flexible_from={key: _flexible_from(key) for key in _NAMES})


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Parse the header of a frame (without its length prefix); raises MalformedRequest.

    For an API key without a schema the body's position is that of a version 1 header: it is never decoded. An
    ApiVersions of an unknown version is flexible (KIP-511).
    """
    return header_parser()(frame)


def encode_response_header(key: int, version: int, correlation_id: int) -> bytes:
    """The header before a response body. ApiVersions always uses header version 0 (KIP-511)."""
    head = correlation_id.to_bytes(4, "big", signed=True)
    return head + b"\0" if version >= _flexible_from(key) and key != api_keys.API_VERSIONS else head


# -- bodies -------------------------------------------------------------------------------------------------------


@cache
def _codec(key: int, version: int, response: bool) -> Codec:
    cls = response_class(key) if response else request_class(key)
    low, high = schema_versions(key)
    if not min(low, 0) <= version <= high:
        raise MalformedRequest(f"{cls.__name__} has no version {version}")
    slots = (("_header", None), ("_min_version", None), ("_max_version", None))
    return struct_codec(cls._struct, version, cls.flexible_version_q(version), cls, slots)


def decode_request(key: int, version: int, body: memoryview) -> Any:
    """Decode a request body.

    Raises:
        MalformedRequest: the bytes are not such a request, or decode into more than ``MAX_FIELDS`` fields.
        LooseMessage: with the request, where strings are not UTF-8 or bytes are left over at its end.

    """
    return decode_whole(_codec(key, version, False), body)


def decode_response(key: int, version: int, body: memoryview | bytes) -> Any:
    """Decode a response body (after :func:`split_response`), with a budget fit for a large cluster's metadata.

    Raises:
        MalformedRequest: the bytes are not such a response.

    """
    view = memoryview(body)
    if key == api_keys.API_VERSIONS and view[:2].tobytes() == b"\0\x23":
        version = 0  # KIP-511: a broker that does not know the version answers in version 0
    return decode_whole(_codec(key, version, True), view, MAX_RESPONSE_FIELDS)


def split_response(key: int, version: int, frame: memoryview | bytes) -> tuple[int, memoryview]:
    """Split a response frame (without its length prefix) into correlation id and body.

    Raises:
        MalformedRequest: too short, or a broken tagged section.

    """
    reader = Reader(memoryview(frame))
    correlation_id = int.from_bytes(reader.take(4), "big", signed=True)
    if key != api_keys.API_VERSIONS and is_flexible(key, version):
        reader.skip_tags()
    return correlation_id, reader.data[reader.pos :]


def encode_response(message: Encodable, key: int, version: int) -> bytes:
    """Encode a response body, without header and length."""
    assert key == message.API_KEY, f"{type(message).__name__} does not answer API key {key}"
    return bytes(message.encode(version=version))


def encode_request(key: int, version: int, correlation_id: int, client_id: str | None, message: Encodable) -> bytes:
    """Encode a request with its header and its length prefix."""
    assert key == message.API_KEY, f"{type(message).__name__} is not a request of API key {key}"
    return frame_request(key, version, correlation_id, client_id, message.encode(version=version))


def frame_request(key: int, version: int, correlation_id: int, client_id: str | None, body: bytes) -> bytes:
    """Put a request's header and length prefix before its encoded body."""
    name = b"" if client_id is None else client_id.encode()
    head = _PREFIX.pack(key, version, correlation_id) + (-1 if client_id is None else len(name)).to_bytes(
        2, "big", signed=True
    )
    tags = b"\0" if is_flexible(key, version) else b""
    size = len(head) + len(name) + len(tags) + len(body)
    return b"".join((size.to_bytes(4, "big"), head, name, tags, body))
