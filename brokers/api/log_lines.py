"""DescribeLogLines (ours): the newest lines of this broker's log, as far as it keeps them."""

from __future__ import annotations

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_CLUSTER
from fleetlog.brokers.api.base import Context, Done
from fleetlog.brokers.api.rows import Row
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeLogLinesRequest

LINES_MAX = 200


@Row(api_keys.DESCRIBE_LOG_LINES, (DESCRIBE_CLUSTER,))
def handle_describe_log_lines(request: DescribeLogLinesRequest, context: Context) -> Done:
    """DescribeLogLines v0: the lines behind a number, the oldest first, or the newest; at most ``limit``, 200 at most.

    Numbers begin again with the process, which ``since_ms`` tells apart.
    """
    kind = m.DescribeLogLinesResponse
    if (refusal := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return Done(kind(version=0, error_code=refusal))
    tail = context.services.log_tail
    if tail is None:
        return Done(kind(version=0))
    rows = [
        kind.LogLine(number=one.number, time_ms=one.time_ms, level=one.level, logger=one.logger,
                     message=one.message)
        for one in tail.behind(request.after_number, min(max(request.limit, 1), LINES_MAX))
    ]  # fmt: skip
    return Done(kind(version=0, since_ms=tail.since_ms, lines=rows))
