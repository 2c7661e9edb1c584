"""Share groups (KIP-932), which are not served yet: their heartbeat is refused as where Kafka's feature is off."""

from __future__ import annotations

from fleetlog.brokers.acls.access import DESCRIBE_TOPIC, READ_GROUP
from fleetlog.brokers.api.base import Context, Done, Paced, in_slices
from fleetlog.brokers.api.rows import Cost, Row
from fleetlog.brokers.audit.events import EventType
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.messages import ShareGroupHeartbeatResponse
from fleetlog.wire.requests import ShareGroupHeartbeatRequest


@Row(api_keys.SHARE_GROUP_HEARTBEAT, (READ_GROUP, DESCRIBE_TOPIC), EventType.HEARTBEAT, cost=Cost.CHEAP)
@in_slices
def handle_share_group_heartbeat(request: ShareGroupHeartbeatRequest, context: Context) -> Paced:
    """ShareGroupHeartbeat v1: refused."""
    text: str | None = None
    code = context.refusal(*READ_GROUP, request.group_id)
    if code is ErrorCode.NONE:
        denied = yield from context.denied_in_turns(*DESCRIBE_TOPIC, request.subscribed_topic_names or ())
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else code
    if code is ErrorCode.NONE:
        code, text = ErrorCode.UNSUPPORTED_VERSION, "Share groups are not served."
    return Done(ShareGroupHeartbeatResponse(version=context.api_version, error_code=int(code), error_message=text))
