"""DescribeHealth (ours): what only the broker itself knows of its process and of its connection to ZooKeeper."""

from __future__ import annotations

import asyncio
import statistics

import fleetlog.wire.messages as m
from fleetlog.brokers.acls.access import DESCRIBE_CLUSTER
from fleetlog.brokers.api.base import Context, Done, in_task
from fleetlog.brokers.api.rows import Row
from fleetlog.brokers.metadata import znodes
from fleetlog.coordination.store import StoreError
from fleetlog.wire import api_keys
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.requests import DescribeHealthRequest

READS = 3
READ_TIMEOUT_S = 1.2
"""For all reads together; an answer should come before the patience of those that ask ends."""


@Row(api_keys.DESCRIBE_HEALTH, (DESCRIBE_CLUSTER,))
@in_task
async def handle_describe_health(request: DescribeHealthRequest, context: Context) -> Done:
    """DescribeHealth v0: the wall clock, how long ZooKeeper takes to answer a read, descriptors, certificates,
    fsyncs, how late the loop runs.

    ``zoo_keeper_micros`` is the median of a few reads made now, -1 if they took too long or
    ``read_store`` is not set.
    """
    kind, services = m.DescribeHealthResponse, context.services
    if (refusal := context.refusal(*DESCRIBE_CLUSTER)) is not ErrorCode.NONE:
        return Done(kind(version=0, error_code=refusal))
    wall_ms, lease_ms = services.clock.wall_ms(), services.store.lease.remaining_ms()
    health, micros = services.process_health(), await _read_micros(context) if request.read_store else -1
    certificates = [
        kind.CertificateHealth(listener=one.listener, valid_until_ms=one.valid_until_ms, refusal=one.refusal)
        for one in health.certificates
    ]
    return Done(
        kind(
            version=0, wall_ms=wall_ms, zoo_keeper_micros=micros,
            lease_ms=max(0, round(lease_ms)), open_files=health.open_files,
            file_limit=-1 if health.file_limit is None else health.file_limit, certificates=certificates,
            sync_micros=health.sync_micros, loop_lag_micros=health.loop_lag_micros,
            loop_lag_max_micros=health.loop_lag_max_micros,
        )
    )  # fmt: skip


async def _read_micros(context: Context) -> int:
    services, taken = context.services, []
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            for _ in range(READS):
                begun = services.clock.mono_us()
                await services.store.exists(znodes.CONTROLLER_EPOCH)
                taken.append(services.clock.mono_us() - begun)
    except (StoreError, TimeoutError):
        return -1
    return round(statistics.median(taken))
