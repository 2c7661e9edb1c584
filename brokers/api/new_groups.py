"""The group protocols that are not served yet: consumer groups of KIP-848 and share groups (KIP-932).

Their heartbeats are advertised and refused as Kafka refuses them where the feature is off. The consumers of librdkafka
(seen in 2.16, which asks for ConsumerGroupHeartbeat 1) would wait for ever for a broker that advertises the key; those
of Java fail at once either way.
"""

from __future__ import annotations

from fleetlog.brokers.acls.access import DESCRIBE, DESCRIBE_TOPIC, GROUP, READ, READ_GROUP, TOPIC
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.audit.events import EventType
from fleetlog.wire import api_keys, messages
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest


@in_slices
def handle_consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, context: Context) -> Paced:
    """ConsumerGroupHeartbeat v0-v1: refused."""
    message = "group.protocol=consumer is not served; use classic."
    return _refusal(api_keys.CONSUMER_GROUP_HEARTBEAT, message, request, context)


@in_slices
def handle_share_group_heartbeat(request: ShareGroupHeartbeatRequest, context: Context) -> Paced:
    """ShareGroupHeartbeat v1: refused."""
    return _refusal(api_keys.SHARE_GROUP_HEARTBEAT, "Share groups are not served.", request, context)


def _refusal(
    key: int, message: str, request: ConsumerGroupHeartbeatRequest | ShareGroupHeartbeatRequest, context: Context
) -> Paced:
    response = messages.response_class(key)
    code = context.refusal(READ, GROUP, request.group_id)
    if code is ErrorCode.NONE:
        denied = yield from context.denied_in_turns(DESCRIBE, TOPIC, request.subscribed_topic_names or ())
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else code
    if code is ErrorCode.NONE:
        code, text = ErrorCode.UNSUPPORTED_VERSION, message
    else:
        text = None
    return Done(
        response(
            version=context.api_version,
            error_code=int(code),
            error_message=text,
            member_id=None,
            member_epoch=0,
            heartbeat_interval_ms=0,
            assignment=None,
        )
    )


API = (
    Row(
        api_keys.CONSUMER_GROUP_HEARTBEAT,
        handle_consumer_group_heartbeat,
        (READ_GROUP, DESCRIBE_TOPIC),
        EventType.HEARTBEAT,
        cost=Cost.CHEAP,
    ),
    Row(
        api_keys.SHARE_GROUP_HEARTBEAT,
        handle_share_group_heartbeat,
        (READ_GROUP, DESCRIBE_TOPIC),
        EventType.HEARTBEAT,
        cost=Cost.CHEAP,
    ),
)
