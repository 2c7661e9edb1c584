"""Answers that say nothing but an error."""

from __future__ import annotations

from typing import Any

from fleetlog.wire import hot, messages
from fleetlog.wire.errors import ErrorCode

PRODUCE = 0


def error_response(key: int, version: int, request: Any, code: ErrorCode) -> Any:
    """An answer that says nothing but the error, if that API's answer has a place for one; else None.

    Most answers carry an ``error_code`` at the top. A Produce carries one per partition, so its request is needed.
    """
    response = messages.response_class(key)
    if key == PRODUCE and request is not None:
        return hot.encode_produce_response(version, [(part, hot.ProduceOutcome(code)) for part in request.parts])
    field = response._struct.fields.get("error_code")
    if field is None or not field.for_version_q(version):
        return None
    return response(version=version, error_code=code)
