"""StampTopic, an API that a test plants: its handler with its row, in the form of every API."""

from __future__ import annotations

from typing import Any

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import ALTER, ALTER_TOPIC, TOPIC
from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.changes import named
from fleetlog.brokers.api.rows import Recorded, Row
from fleetlog.brokers.audit.events import Changes
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import StampTopicRequest


def _stamp_topic(request: StampTopicRequest, response: Any) -> Changes:
    return named("Topic", ALTER, [(request.topic_name, "stamped")], {}, response.error_code)


@Row(api_keys.STAMP_TOPIC, (ALTER_TOPIC,), Recorded(_stamp_topic, ("stamps",)))
def handle_stamp_topic(request: StampTopicRequest, context: Context) -> Done:
    """StampTopic v0-1: counts the stamps."""
    allowed = context.allows(ALTER, TOPIC, request.topic_name)
    error = ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    stamped = len(request.stamps) if allowed else 0
    return Done(m.StampTopicResponse(version=context.api_version, error_code=error, stamped=stamped))
