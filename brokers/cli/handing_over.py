"""Plans that take all replicas from one broker: to the others, or to the one that replaces it. Pure."""

from __future__ import annotations

from collections import Counter

from fleetlog.brokers.cli.output import CliError, count_text
from fleetlog.brokers.cli.overview import Overview, PartitionOverview
from fleetlog.brokers.controller.placement import crowding
from fleetlog.brokers.model import BrokerId, TopicPartition

Assigned = dict[TopicPartition, tuple[int, ...]]


def without_source(overview: Overview, broker_id: int) -> list[PartitionOverview]:
    """Partitions with a replica on the broker that nothing can be copied from now: they have no leader."""
    return [p for _, p in sorted(overview.partitions.items()) if broker_id in p.target and p.offline]


def away_from(overview: Overview, broker_id: int) -> Assigned:
    """New replicas of the partitions that have one on the broker: where racks, domains and load leave most room.

    Their other replicas stay, and of these the one leads that leads least, where the broker should have led. Raises
    CliError where the other brokers are too few.
    """
    where = {BrokerId(b.id): b.place for b in overview.live_brokers() if b.id != broker_id}
    load = Counter(b for p in overview.partitions.values() for b in p.target)
    leads = Counter(p.target[0] for p in overview.partitions.values() if p.target)
    wanted: Assigned = {}
    for tp, p in sorted(overview.partitions.items()):
        if broker_id not in p.target or p.offline:
            continue
        rest = [BrokerId(b) for b in p.target if b != broker_id]
        others = [b for b in where if b not in rest]
        if not others:
            lower = f"fleetlog topics reassign {p.topic} --replication-factor {len(where)}"
            alive = count_text(len(where), "other broker", "are")
            raise CliError(
                f"{tp} has {count_text(len(p.target), 'replica')}, and {alive} alive: add a broker"
                + (f", or lower its number of replicas: {lower}" if where else "")
            )
        new = min(others, key=lambda b: (crowding(b, rest, where), load[b], b))
        load[new] += 1
        after = [*rest, new] if p.target[0] == broker_id else [new if b == broker_id else b for b in p.target]
        if p.target[0] == broker_id:
            after.sort(key=lambda b: (b == new, leads[b]))
            leads[after[0]] += 1
        wanted[tp] = tuple(after)
    return wanted


def taken_over(overview: Overview, old: int, new: int) -> Assigned:
    """The same assignments with ``new`` in the place of ``old``, as preferred leader, too.

    Raises CliError where ``new`` is not alive, or has a replica of such a partition already.
    """
    overview.need_alive([new])
    held = [p for _, p in sorted(overview.partitions.items()) if old in p.target and not p.offline]
    both = [p for p in held if new in p.target]
    if both:
        raise CliError(
            f"broker {new} has {len(both)} of the partitions already, such as {both[0].tp}: replace broker {old} by an"
            f" empty one, or spread its replicas: fleetlog brokers drain {old}"
        )
    return {p.tp: tuple(new if b == old else b for b in p.target) for p in held}
