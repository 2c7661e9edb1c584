"""What is wrong with a fleet, why, and what to do: checks over facts that were gathered before. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from fleetlog.brokers.cli.output import count_text
from fleetlog.brokers.cli.overview import Overview, PartitionOverview
from fleetlog.brokers.model import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition

NAMED = 5
"""Partitions, groups or topics that a finding names; the rest is counted."""
DAY_MS = 86_400_000
FEW_FILES = 4_096
FULL_SHARE = 0.8


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0
    """Works as it is, but will not survive what a fleet should."""
    WARNING = 1
    """Nothing fails yet, or clients are slowed down."""
    ERROR = 2
    """Clients fail, or records may be lost."""


class Finding(NamedTuple):
    """One trouble: ``check`` is the kind, ``where`` a broker, partition, group or setting."""

    severity: Severity
    check: str
    where: str
    what: str
    why: str
    todo: str


class Thresholds(NamedTuple):
    """From when on something counts as a trouble."""

    clock_ms: int = 500
    zookeeper_ms: int = 100
    transaction_s: float = 900.0
    lag_s: float = 600.0
    certificate_days: int = 14
    sync_ms: int = 500
    loop_ms: int = 500
    hot_mb: float = 1.0


class OpenTransaction(NamedTuple):
    """A transaction under way: for how long, and what its producer asked for."""

    transactional_id: str
    state: str
    open_s: float
    timeout_s: float
    partitions: tuple[str, ...]


class ListenerCertificate(NamedTuple):
    """A listener's certificate, as its broker tells it."""

    listener: str
    valid_until_ms: int
    refusal: str | None


class BrokerHealth(NamedTuple):
    """What a broker says of itself; ``read_micros`` is -1 where ZooKeeper did not answer, ``file_limit`` where
    there is none."""

    wall_ms: int
    read_micros: int
    lease_ms: int
    open_files: int
    file_limit: int
    certificates: tuple[ListenerCertificate, ...]
    sync_micros: int = -1
    """How long all but one in a hundred fsyncs of the last minutes took at most; -1: unknown."""
    loop_micros: int = -1
    """How late the loop ran all but one in a hundred of the last minute's timers at most; -1: unknown."""
    loop_max_micros: int = -1


@dataclass(slots=True)
class FleetFacts:
    """Everything that the checks look at. ``now_ms`` is this machine's wall clock.

    ``health`` lacks brokers that did not answer. ``settings`` are each broker's by name. ``untold`` says what could not
    be asked.
    """

    overview: Overview
    now_ms: int
    health: dict[int, BrokerHealth] = field(default_factory=dict)
    settings: dict[int, dict[str, str | None]] = field(default_factory=dict)
    unclean_topics: list[str] = field(default_factory=list)
    idle_tiers: list[str] = field(default_factory=list)
    """Topics whose ``remote.storage.enable`` waits for ``fleetlog bucket enable``."""
    min_in_sync: dict[str, int] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    empty_groups: set[str] = field(default_factory=set)
    transactions: list[OpenTransaction] = field(default_factory=list)
    rates: dict[TopicPartition, float] = field(default_factory=dict)
    """Bytes that the largest replica of a partition grew by in a second."""
    untold: list[tuple[str, str]] = field(default_factory=list)


def findings_of(facts: FleetFacts, limits: Thresholds) -> list[Finding]:
    """All findings, the worst first."""
    checks: tuple[Callable[[FleetFacts, Thresholds], Iterable[Finding]], ...] = (
        _controller, _brokers, _partitions, _moves, _zookeeper, _loops, _disks, _clocks, _files, _certificates,
        _transactions, _groups, _hot_partitions, _same_settings, _safe_settings, _domains, _untold,
    )  # fmt: skip
    findings = [one for check in checks for one in check(facts, limits)]
    return sorted(findings, key=lambda one: -one.severity)


class FleetHealth(NamedTuple):
    """How a fleet is: ``level`` is good, warning or bad; ``words`` say why, the worst first."""

    level: str
    words: list[str]


def verdict(facts: FleetFacts) -> FleetHealth:
    """The judgement of what was examined, by the rules of doctor; its notes don't count, nor what could not be asked.

    The first page of the console and ``cluster describe`` show this.
    """
    shown = [one for one in findings_of(facts, Thresholds()) if one.severity > Severity.NOTE and one.check != "unknown"]
    if shown:
        level = "bad" if shown[0].severity is Severity.ERROR else "warning"
        where = [f"{one.where}: " if one.where.startswith("broker ") else "" for one in shown]
        return FleetHealth(level, [f"{at}{one.what} ({one.why})" for at, one in zip(where, shown, strict=True)])
    brokers, partitions = len(facts.overview.brokers), len(facts.overview.partitions)
    answer = "the broker answers" if brokers == 1 else f"all {brokers} brokers answer"
    if not partitions:
        return FleetHealth("good", [f"{answer}, there is no partition, or none that this login may describe"])
    synced = "the partition has its" if partitions == 1 else f"all {partitions} partitions have their"
    return FleetHealth("good", [f"{answer}, {synced} replicas in sync"])


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - NAMED} more" if len(every) > NAMED else ""
    return ", ".join(every[:NAMED]) + more


def _untold(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    for subject, reason in facts.untold:
        yield Finding(
            Severity.WARNING, "unknown", subject, f"{subject} could not be examined", reason,
            "see the other findings first; then run this command again",
        )  # fmt: skip


def _controller(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    if facts.overview.controller < 0:
        yield Finding(
            Severity.ERROR, "controller", "fleet", "there is no controller",
            "no broker holds /controller in ZooKeeper: leaders are not replaced, topics cannot be changed",
            "look after ZooKeeper, then at the brokers' logs for `controller`",
        )  # fmt: skip


# ---------------------------------------------------------------- brokers and partitions


_TROUBLES = (
    ("not registered", Severity.ERROR, "broker", "start it, or replace it: fleetlog brokers replace"),
    ("does not answer", Severity.ERROR, "broker", "see its log and whether its process runs; restart it if it hangs"),
    ("file descriptors", Severity.ERROR, "files", "raise LimitNOFILE (ulimit -n) and restart the broker"),
    ("is offline", Severity.ERROR, "disk", "repair or replace the disk, then restart the broker"),
    ("is full", Severity.ERROR, "disk", "free space, shorten retention.ms, or move replicas: fleetlog brokers drain"),
    ("nearly full", Severity.WARNING, "disk", "shorten retention.ms of large topics, add room, or move replicas"),
    (
        "is damaged",
        Severity.ERROR,
        "segment",
        "stop the broker, move the partition's directory away, start it: it fetches a whole copy (docs/reliability.md)",
    ),
    ("more segments are damaged", Severity.ERROR, "segment", "fleetlog log verify LOGDIR names all of them"),
    ("does not follow broker", Severity.ERROR, "replica", "decide which records stay, as it says; runbook.md"),
    ("the log is", Severity.ERROR, "replica", "bring the log directory back and restart the broker; runbook.md"),
    (
        "lie aside in",
        Severity.WARNING,
        "stray",
        "if nobody misses the records, on its machine: fleetlog log strays LOGDIR --remove (docs/zookeeper-backup.md)",
    ),
    ("its bucket is of no use", Severity.ERROR, "bucket", "as it says; old records are read again once it is so"),
    ("the tier of", Severity.ERROR, "bucket", "see to the bucket (docs/tiering.md); copying goes on by itself"),
    ("objects of deleted topics stay", Severity.WARNING, "bucket", "as it says; they go by themselves once it is so"),
    ("it has no bucket", Severity.ERROR, "bucket", "give it the bucket's settings of the others, and restart it"),
    ("no log of", Severity.ERROR, "replica", "see the broker's log; restart it once its disk works"),
)


def _brokers(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    for broker_id, text in facts.overview.troubles():
        severity, check, todo = next(
            ((one, kind, todo) for part, one, kind, todo in _TROUBLES if part in text),
            (Severity.WARNING, "broker", "see the broker's log"),
        )
        if check == "files" and broker_id in facts.health and _few_left(facts.health[broker_id]):
            continue  # its figures say the same, and why that is bad
        what, _, why = text.partition(": ")
        yield Finding(severity, check, f"broker {broker_id}", what, why or "reported by the broker itself", todo)


def _partitions(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    kinds = (
        ("offline", Severity.ERROR, "", "cannot be read or written",
         "bring one of its replicas back; only if all are lost: fleetlog topics elect --unclean"),
        ("under min ISR", Severity.ERROR, "refuse", "writes with acks=all",
         "bring the missing replicas back, or move them: fleetlog brokers replace"),
        ("under-replicated", Severity.WARNING, "have", "fewer copies than assigned",
         "bring the missing replicas back, or move them: fleetlog brokers replace"),
    )  # fmt: skip
    every = facts.overview.troubled()
    for problem, severity, verb, effect, todo in kinds:
        troubled = [p for p in every if p.problem == problem]
        if troubled:
            what = f"{count_text(len(troubled), 'partition', verb)} {effect}: {_listed(str(p.tp) for p in troubled)}"
            yield Finding(severity, "partitions", problem, what, _missing(facts, troubled), todo)


def _moves(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    """Moves that wait for a broker which is away: they go on by themselves only if it comes back."""
    away: dict[int, list[TopicPartition]] = {}
    for partition in facts.overview.moving():
        for broker_id in partition.adding:
            broker = facts.overview.brokers.get(broker_id)
            if broker is None or not broker.alive:
                away.setdefault(broker_id, []).append(partition.tp)
    for broker_id, tps in sorted(away.items()):
        yield Finding(
            Severity.WARNING, "move", f"broker {broker_id}",
            f"{count_text(len(tps), 'move', 'wait')} for it, and it is not registered: {_listed(map(str, tps))}",
            "a move ends when all its new replicas are in sync; until then the old ones stay",
            "start the broker, or give the moves up: fleetlog topics reassign TOPIC --cancel",
        )  # fmt: skip


def _missing(facts: FleetFacts, troubled: list[PartitionOverview]) -> str:
    lacking = Counter(b for p in troubled for b in p.settled if b not in p.isr)
    causes = []
    for broker_id, count in sorted(lacking.items()):
        broker = facts.overview.brokers.get(broker_id)
        if broker is None or not broker.alive:
            state = "which is not registered"
        elif broker.directories is None:
            state = "which does not answer"
        elif any(d.trouble for d in broker.directories):
            state = "which has a log directory in trouble"
        else:
            state = "which runs, and is catching up or cut off from the leaders"
        causes.append(f"{count} {'lacks' if count == 1 else 'lack'} the replica on broker {broker_id}, {state}")
    return "; ".join(causes) or "no replica of the in-sync set is alive"


# ---------------------------------------------------------------- processes


def _zookeeper(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    for broker_id, health in sorted(facts.health.items()):
        where = f"broker {broker_id}"
        if health.read_micros < 0:
            lease = f"its lease runs out in {health.lease_ms} ms" if health.lease_ms else "its lease has run out"
            yield Finding(
                Severity.ERROR, "zookeeper", where, "ZooKeeper does not answer this broker",
                f"no read came back; {lease}",
                "see whether the ZooKeeper servers run, have a majority and can be reached from the broker",
            )  # fmt: skip
        elif health.read_micros > limits.zookeeper_ms * 1000:
            yield Finding(
                Severity.WARNING, "zookeeper", where, f"a read of ZooKeeper takes {health.read_micros / 1000:.0f} ms",
                f"more than {limits.zookeeper_ms} ms: a slow disk or network of the servers, or too many on one host",
                "give ZooKeeper's transaction log a disk of its own; see its `mntr` for latencies",
            )  # fmt: skip


def _loops(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    for broker_id, health in sorted(facts.health.items()):
        if health.loop_micros > limits.loop_ms * 1000:
            yield Finding(
                Severity.WARNING, "loop", f"broker {broker_id}",
                f"its loop runs {health.loop_micros / 1000:.0f} ms late, once {health.loop_max_micros / 1000:.0f} ms",
                f"in the last minute, more than {limits.loop_ms} ms: every client of this broker waits so long",
                "does it get a core (top, steal time)? Its log has the stack of a loop that stood still for 1 s; "
                "see runbook.md, FleetlogLoopLag",
            )  # fmt: skip


def _disks(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    slow = {b: one.sync_micros / 1000 for b, one in sorted(facts.health.items())}
    for broker_id, millis in slow.items():
        if millis <= limits.sync_ms:
            continue
        others = [one for b, one in slow.items() if b != broker_id]
        alone = bool(others) and max(others) <= limits.sync_ms
        yield Finding(
            Severity.WARNING, "disk", f"broker {broker_id}", f"its disk is slow: an fsync takes {millis:.0f} ms",
            f"of the last minutes, more than {limits.sync_ms} ms; "
            + ("the other brokers' disks are fast" if alone else "acknowledgements, elections and checkpoints wait"),
            "see iostat -x 5: what else writes there? Give the log a disk of its own, replace a failing one",
        )  # fmt: skip


HOT_TIMES = 4
"""How many times the mean of its topic's other partitions a hot partition gets."""


def _hot_partitions(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    topics: dict[str, dict[TopicPartition, float]] = {}
    for tp, rate in facts.rates.items():
        topics.setdefault(tp.topic, {})[tp] = rate
    for topic, rates in sorted(topics.items()):
        hot, most = max(rates.items(), key=lambda one: one[1])
        total = sum(rates.values())
        if len(rates) < 2 or most < limits.hot_mb * 1e6 or most < HOT_TIMES * (total - most) / (len(rates) - 1):
            continue
        partition = facts.overview.partitions.get(hot)
        where = f"broker {partition.leader}" if partition is not None else "its leader"
        yield Finding(
            Severity.WARNING, "hot partition", str(hot),
            f"it gets {most / 1e6:.1f} MB a second, {100 * most / total:.0f} % of what the"
            f" {count_text(len(rates), 'partition')} of {topic} get",
            f"most records have the same key, or name that partition; {where} and one consumer do all the work",
            "see which keys they have: fleetlog consume; spread them by another key; more partitions alone do not help",
        )  # fmt: skip


def _clocks(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    """With three brokers or more a wrong clock is told from the right ones; with two, this machine's is the third.

    One broker's is compared with this machine's.
    """
    walls = {broker_id: one.wall_ms for broker_id, one in facts.health.items()}
    if len(walls) > 1:
        compared, clocks = "the other brokers", [*walls.values(), *([facts.now_ms] if len(walls) == 2 else [])]
    else:
        compared, clocks = "this machine's clock", [facts.now_ms]
    reference = sorted(clocks)[(len(clocks) - 1) // 2]
    for broker_id, wall_ms in sorted(walls.items()):
        off_ms = wall_ms - reference
        if abs(off_ms) > limits.clock_ms:
            direction = "ahead" if off_ms > 0 else "behind"
            yield Finding(
                Severity.WARNING, "clock", f"broker {broker_id}",
                f"its clock is {abs(off_ms) / 1000:.1f} s {direction}",
                f"compared with {compared}; timestamps, retention, and lag in seconds are wrong by as much",
                "see chronyc tracking or timedatectl on its host, and start time synchronization",
            )  # fmt: skip


def _few_left(health: BrokerHealth) -> bool:
    return 0 < health.file_limit <= health.open_files / FULL_SHARE


def _files(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    todo = "raise LimitNOFILE (ulimit -n), 100000 or more, and restart the broker"
    for broker_id, health in sorted(facts.health.items()):
        used, limit = health.open_files, health.file_limit
        if _few_left(health):
            yield Finding(
                Severity.ERROR, "files", f"broker {broker_id}", f"{used} of {limit} file descriptors are in use",
                "without one no connection is accepted and no segment opened", todo,
            )  # fmt: skip
        elif 0 < limit < FEW_FILES:
            yield Finding(
                Severity.NOTE, "files", f"broker {broker_id}", f"it may open {count_text(limit, 'file')} only",
                "each segment takes three and each connection one", todo,
            )  # fmt: skip


def _certificates(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    for broker_id, health in sorted(facts.health.items()):
        for one in health.certificates:
            where = f"broker {broker_id}, listener {one.listener}"
            left_days = (one.valid_until_ms - health.wall_ms) / DAY_MS
            if one.refusal is not None:
                yield Finding(
                    Severity.ERROR, "certificate", where, "the certificate on disk cannot be used", one.refusal,
                    "correct the files; the old certificate stays in use until then, and a restart would fail",
                )  # fmt: skip
            if left_days < limits.certificate_days:
                severity = Severity.ERROR if left_days < 2 else Severity.WARNING
                what = (
                    f"its certificate expires in {left_days:.1f} days" if left_days > 0 else "its certificate expired"
                )
                yield Finding(
                    severity, "certificate", where, what, "clients refuse an expired certificate",
                    "replace the file; brokers take it over within seconds, without a restart",
                )  # fmt: skip


# ---------------------------------------------------------------- clients


def _transactions(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    for one in facts.transactions:
        if one.open_s <= limits.transaction_s:
            continue
        ending = one.state.startswith("Prepare")
        why = (
            "its outcome is decided, but a partition has not taken the marker: its leader is away"
            if ending
            else f"its producer has not ended it; it may take {one.timeout_s:.0f} s (transaction.timeout.ms)"
        )
        todo = (
            "bring the leaders of its partitions back; see the other findings"
            if ending
            else "see whether the producer lives; stop it, or start it anew: its first call ends the transaction"
        )
        what = (
            f"open for {one.open_s:.0f} s: read_committed consumers wait at {_listed(one.partitions) or 'nothing yet'}"
        )
        yield Finding(Severity.WARNING, "transaction", one.transactional_id, what, why, todo)


_PROGRESS = {
    "STOP": ("has stopped committing", "see whether its consumers are stuck in one record"),
    "STALL": ("commits the same offset again and again", "look at the record at that offset: fleetlog consume"),
    "REWIND": ("went back to an older offset", "see whether its offsets were reset on purpose"),
    "WARN": ("consumes more slowly than records come", "add members, up to one for each partition, or speed them up"),
    "OK": ("is far behind, but gets on", "wait, or add members, up to one for each partition"),
}
_NO_MEMBERS = ("has no members", "start its consumers, or delete it if nobody uses it: fleetlog groups delete")


def _groups(facts: FleetFacts, limits: Thresholds) -> Iterator[Finding]:
    for group in facts.groups:
        late = group["seconds"] > limits.lag_s
        if group["status"] != "ERR" and not late:
            continue
        order = list(_PROGRESS)
        behind = [one for one in group["partitions"] if one["lag"]]
        worst = min(behind, key=lambda one: (order.index(one["status"]), -one["seconds"]), default=None)
        if worst is None:
            continue
        what, todo = _NO_MEMBERS if group["group"] in facts.empty_groups else _PROGRESS[worst["status"]]
        yield Finding(
            Severity.WARNING, "group", group["group"],
            f"it {what}: {group['lag']} records, {group['seconds']:.0f} s behind",
            f"worst is {worst['topic']}:{worst['partition']}, committed {worst['committed']} of {worst['end']}", todo,
        )  # fmt: skip


# ---------------------------------------------------------------- settings


ALIKE = (
    "auto.create.topics.enable", "default.replication.factor", "min.insync.replicas", "num.partitions",
    "message.max.bytes", "unclean.leader.election.enable", "offsets.retention.minutes", "log.retention.ms",
    "log.flush.policy", "zookeeper.session.timeout.ms", "replica.lag.time.max.ms", "transaction.max.timeout.ms",
    "group.max.session.timeout.ms", "authorizer.class.name", "audit.enable", "group.lag.interval.ms",
)  # fmt: skip
"""Settings that should be the same on all brokers: else what happens depends on which broker leads."""


def _same_settings(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    for name in ALIKE:
        values = {b: rows[name] for b, rows in facts.settings.items() if name in rows}
        if len(set(values.values())) > 1:
            values_text = ", ".join(
                f"{'not set' if value is None else value} on broker {b}" for b, value in sorted(values.items())
            )
            yield Finding(
                Severity.WARNING, "settings", name, f"{name} differs between brokers", values_text,
                "set it alike in all properties files, or for all at run time, and restart what needs it",
            )  # fmt: skip


def _safe_settings(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    partitions, live = facts.overview.partitions.values(), len(facts.overview.live_brokers())
    factors = {p.topic: len(p.target) for p in partitions}
    lone = sorted(topic for topic, factor in factors.items() if factor == 1)
    if lone and live > 1:
        inner = [topic for topic in lone if topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)]
        severity = Severity.WARNING if inner else Severity.NOTE
        yield Finding(
            severity, "settings", "replication factor",
            f"{count_text(len(lone), 'topic')} with one replica: {_listed(lone)}",
            "a broker that stops takes them away, a disk that fails loses them",
            "fleetlog topics reassign TOPIC --replication-factor 3",
        )  # fmt: skip
    brittle = sorted(t for t, factor in factors.items() if factor > 1 and facts.min_in_sync.get(t, 0) >= factor)
    if brittle:
        yield Finding(
            Severity.WARNING, "settings", "min.insync.replicas",
            f"{count_text(len(brittle), 'topic', 'need')} every replica for a write: {_listed(brittle)}",
            "min.insync.replicas is not below the replication factor: one broker that stops refuses writes",
            "lower min.insync.replicas to one less than the factor: fleetlog topics alter",
        )  # fmt: skip
    weak = sorted(t for t, factor in factors.items() if factor > 2 and facts.min_in_sync.get(t) == 1)
    if weak:
        yield Finding(
            Severity.NOTE, "settings", "min.insync.replicas",
            f"{count_text(len(weak), 'topic', 'take')} writes with one replica in sync: {_listed(weak)}",
            "with acks=all a record may then be on one disk only", "set min.insync.replicas=2: fleetlog topics alter",
        )  # fmt: skip
    if facts.unclean_topics:
        yield Finding(
            Severity.WARNING, "settings", "unclean.leader.election.enable",
            f"{count_text(len(facts.unclean_topics), 'topic', 'allow')} unclean elections:"
            f" {_listed(facts.unclean_topics)}",
            "a replica that lacks acknowledged records may lead", "set unclean.leader.election.enable=false",
        )  # fmt: skip
    if facts.idle_tiers:
        yield Finding(
            Severity.NOTE, "settings", "remote.storage.enable",
            f"{count_text(len(facts.idle_tiers), 'topic', 'have')} the flag without effect:"
            f" {_listed(facts.idle_tiers)}",
            "it is from when it had none, and waits for a word", "fleetlog bucket enable says what becomes of each",
        )  # fmt: skip


def _domains(facts: FleetFacts, _limits: Thresholds) -> Iterator[Finding]:
    brokers = facts.overview.live_brokers()
    if len(brokers) > 1 and len({broker.place.domain for broker in brokers}) == 1:
        yield Finding(
            Severity.NOTE, "settings", "failure.domain", "all brokers share one failure domain",
            f"replicas fail together with {brokers[0].place.domain}",
            "set failure.domain or broker.rack if they stand on different hosts; else add hosts",
        )  # fmt: skip
