"""The fleet and what its controller is doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from brokers.cli.cluster import overview_value
from brokers.cli.overview import PATIENCE_S, Overview, fetch_overview, read_incarnations
from brokers.cli.reassign import describe_moves
from brokers.console.asking import Answer, Asking
from brokers.console.timeline import read_timeline
from wire import api_keys, messages

ELECTIONS_SHOWN: Final = 100


def fleet_page(asking: Asking) -> Answer:
    """Health in words, brokers, disks, loops, partitions with problems."""
    overview = fetch_overview(asking.client)
    read_incarnations(asking.client, overview)
    value = overview_value(overview)
    late = loop_lags(asking, [broker.id for broker in overview.live_brokers()])
    for broker in value["brokers"]:
        broker["loop_lag_ms"], broker["loop_lag_max_ms"] = late.get(broker["id"], (None, None))
        broker["state"] = "down" if not broker["alive"] else "no answer" if broker["log_dirs"] is None else "up"
    return {"health": health(overview), **value}


def health(overview: Overview) -> dict[str, Any]:
    """``level`` is good, warning or bad; ``words`` say what a user of the fleet feels, the worst first."""
    partitions = list(overview.partitions.values())
    words, level = [], "good"
    offline = sum(p.offline for p in partitions)
    too_few = sum(p.under_min_in_sync and not p.offline for p in partitions)
    behind = sum(p.under_replicated and not p.offline and not p.under_min_in_sync for p in partitions)
    if offline:
        words.append(f"{_count(offline, 'partition')} without a leader: nothing can be written there or read")
    if too_few:
        words.append(f"{_count(too_few, 'partition')} below min.insync.replicas: acks=all is refused there")
    if words:
        level = "bad"
    if behind:
        words.append(
            f"{_count(behind, 'partition')} with replicas that are not in sync: one more failure may stop them"
        )
    if overview.controller < 0:
        words.append("no controller is elected: no leader moves until there is one")
    words += [f"broker {broker_id}: {text}" for broker_id, text in overview.troubles()]
    if words and level == "good":
        level = "warning"
    if not words:
        words.append(
            f"all {len(overview.brokers)} brokers answer, all {len(partitions)} partitions have their replicas in sync"
        )
    return {"level": level, "words": words}


def loop_lags(asking: Asking, brokers: Sequence[int]) -> dict[int, tuple[float | None, float | None]]:
    """How late each broker's loop ran in the last minute: all but one in a hundred of its timers, and the latest.

    In milliseconds; None, or no row, where the broker does not say.
    """
    request = messages.request_class(api_keys.DESCRIBE_HEALTH)(version=0, read_store=False)
    answers = asking.client.ask_each(dict.fromkeys(brokers, request), PATIENCE_S)
    return {
        broker_id: (_milliseconds(row.loop_lag_micros), _milliseconds(row.loop_lag_max_micros))
        for broker_id, row in answers.items()
        if row is not None and not row.error_code
    }


def _milliseconds(micros: int) -> float | None:
    return None if micros < 0 else micros / 1000


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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
    found = [
        {"at": one["at"], "text": f"broker {one['broker']} {'registered' if one['registered'] else 'was gone'}"}
        for one in timeline["registrations"]
    ]
    for one in timeline["controllers"]:
        text = f"broker {one['controller']} is the controller" if one["controller"] >= 0 else "there is no controller"
        found.append({"at": one["at"], "text": text})
    return sorted(found, key=lambda one: -one["at"])
