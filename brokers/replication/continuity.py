"""Log continuity: whether a starting broker still has everything that its logs held. Each log directory's clean stop is
compared with the broker's last registration in ZooKeeper. Pure.

A clean stop is valid for the incarnation that it ended. An older copy of a directory (a restored snapshot, another
mount) has a clean stop as well, but lacks the records acknowledged since.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fleetlog.brokers.log.disk.checkpoints import CleanStop
from fleetlog.coordination.registration import LastRegistration


def intact_since(
    stops: Mapping[str, CleanStop | None], last: LastRegistration, missing: Mapping[str, str] = MappingProxyType({})
) -> int | None:
    """The incarnation since which no directory has lost records; None if one of them may have.

    ``stops`` has the clean stop of each log directory; None for one that was not closed cleanly or is offline, or is
    new where nothing tells which ones there were. ``missing`` are those that the broker had, and that are not here.
    """
    if missing:
        return None
    clean_stops = [stop for stop in stops.values() if stop is not None and not _is_stale(stop, last)]
    if not clean_stops or len(clean_stops) < len(stops) or any(stop.intact_since < 0 for stop in clean_stops):
        return None
    return max(stop.intact_since for stop in clean_stops)


def stale_directories(broker_id: int, stops: Mapping[str, CleanStop | None], last: LastRegistration) -> list[str]:
    """One log message per directory whose clean stop is not the one that ended the last incarnation."""
    known = (
        f"was last registered in incarnation {last.incarnation} (broker epoch {last.broker_epoch})"
        if last.incarnation
        else "has never been registered in this ZooKeeper"
    )
    return [
        f"log directory {path} is an older copy: it was closed in incarnation {stop.incarnation} (broker epoch"
        f" {stop.broker_epoch}), but broker {broker_id} {known}. Was a snapshot restored, or another volume mounted?"
        " Records acknowledged since are considered lost on this broker: it leads no partition that another in-sync"
        " replica can lead, and fetches the missing records. If the right volume exists, stop this broker and mount it"
        " before other leaders are elected"
        for path, stop in sorted(stops.items())
        if stop is not None and stop.incarnation >= 0 and _is_stale(stop, last)
    ]


def _is_stale(stop: CleanStop, last: LastRegistration) -> bool:
    """Kafka's clean stops have no incarnation; those of earlier fleetlog versions have no broker epoch."""
    if stop.incarnation < 0:
        return False
    return stop.incarnation != last.incarnation or stop.broker_epoch not in (-1, last.broker_epoch)
