"""The fleet and what its controller is doing."""

from __future__ import annotations

from typing import Any, Final

from fleetlog.brokers.cli.cluster import overview_value
from fleetlog.brokers.cli.doctor import judged
from fleetlog.brokers.cli.overview import fetch_overview, read_incarnations
from fleetlog.brokers.cli.reassign import describe_moves
from fleetlog.brokers.console.asking import Answer, Asking
from fleetlog.brokers.console.timeline import read_timeline

ELECTIONS_SHOWN: Final = 100


def fleet_page(asking: Asking) -> Answer:
    """Health in words, brokers, disks, loops, partitions with problems."""
    overview = fetch_overview(asking.client)
    read_incarnations(asking.client, overview)
    facts, health = judged(asking.client, overview)
    value = overview_value(overview, health)
    for broker in value["brokers"]:
        told = facts.health.get(broker["id"])
        broker["loop_lag_ms"] = None if told is None else _milliseconds(told.loop_micros)
        broker["loop_lag_max_ms"] = None if told is None else _milliseconds(told.loop_max_micros)
    return value


def _milliseconds(micros: int) -> float | None:
    return None if micros < 0 else micros / 1000


def controller_page(asking: Asking) -> Answer:
    """The controller: which broker it is, moves under way, leaders that are not the preferred replica."""
    overview = fetch_overview(asking.client)
    partitions = overview.partitions.values()
    columns = ("topic", "partition", "adding", "removing", "copied")
    elsewhere = [
        {"topic": p.topic, "partition": p.index, "leader": p.leader, "preferred": p.target[0]}
        for p in sorted(partitions, key=lambda p: p.tp)
        if not p.led_by_preferred and not p.offline and p.target
    ]
    leads: dict[int, int] = {broker.id: 0 for broker in overview.live_brokers()}
    for p in partitions:
        if not p.offline:
            leads[p.leader] = leads.get(p.leader, 0) + 1
    timeline = read_timeline(asking.client, [one.id for one in overview.live_brokers()], None, ELECTIONS_SHOWN)
    elected = sorted(partitions, key=lambda p: -p.leader_epoch)[:20]
    return {
        "controller": overview.controller,
        "moves": [dict(zip(columns, row, strict=True)) for row in describe_moves(overview)],
        "offline": sum(p.offline for p in partitions),
        "timeline": timeline,
        "events": _events(timeline),
        "led_elsewhere": elsewhere[:200],
        "led_elsewhere_count": len(elsewhere),
        "leads": [{"broker": broker_id, "partitions": count} for broker_id, count in sorted(leads.items())],
        "most_elections": [
            {"topic": p.topic, "partition": p.index, "leader": p.leader, "leader_epoch": p.leader_epoch}
            for p in elected
        ],
    }


def _events(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """Controllers and registrations as one list of sentences, the newest first."""
    events = [
        {"at": one["at"], "text": f"broker {one['broker']} {'registered' if one['registered'] else 'was gone'}"}
        for one in timeline["registrations"]
    ]
    for one in timeline["controllers"]:
        text = f"broker {one['controller']} is the controller" if one["controller"] >= 0 else "there is no controller"
        events.append({"at": one["at"], "text": text})
    return sorted(events, key=lambda one: -one["at"])
