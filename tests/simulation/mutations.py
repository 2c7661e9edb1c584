# ruff: noqa: E501
"""Deliberate bugs: each takes one safeguard out of the production code, and the simulation must notice.

A mutation rewrites a few lines of named functions while its block runs. If the text is no longer there the mutation
fails loudly: write it anew for the code as it is. ``seed`` is one that catches it; ``within`` is how many seeds may be
tried from there when that one no longer does.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.simulation.world import Report, World

_HOUSE = ("brokers.", "coordination.", "txn.")


class Edit(NamedTuple):
    """In the source of ``where`` (``module:Class.function``), ``old`` becomes ``new``."""

    where: str
    old: str
    new: str


class Mutation(NamedTuple):
    """A named bug. ``kinds`` are the faults that bring it to light soonest; none: any."""

    name: str
    edits: tuple[Edit, ...]
    seed: int
    kinds: tuple[str, ...] = ()
    within: int = 200


def _edit(where: str, old: str, new: str) -> tuple[Edit]:
    return (Edit(where, old, new),)


_PARTITION = "brokers.cluster.partition:Partition."
_HOST = "brokers.coordinators.hosting:ShardHost."
_COORDINATOR = "txn.coordinator:TransactionShard."

_OPERATIONS = "brokers.cluster.isr_writer:ZooKeeperIsrWriter._operations"
_DIVERGES = "epoch < part.last_fetched_epoch or end_offset < part.fetch_offset"

MUTATIONS = (
    # ---- the in-sync set and the high watermark
    Mutation("the high watermark ignores the pending in-sync set", _edit(
        _PARTITION + "maximal_isr", "if self._pending is None:", "if True:"), 0, ("zookeeper lag", "kill", "slow", "isolate")),
    Mutation("the high watermark ignores followers that have not fetched in this epoch", _edit(
        _PARTITION + "advance", "follower.end_offset if follower is not None else -1",
        "follower.end_offset if follower is not None and follower.end_offset >= 0 else watermark"), 0),
    Mutation("the high watermark moves below min.insync.replicas", _edit(
        _PARTITION + "advance", "self.state.elr or len(self.state.isr) < self.effective_min_isr", "False"), 0, ("cut", "isolate", "kill")),
    Mutation("a new leader takes its whole log for committed", _edit(
        _PARTITION + "become_leader", "self._tell_changed()",
        "self.log.set_high_watermark(self.log.log_end_offset)\n    self._tell_changed()"), 0),
    Mutation("a follower joins before it has caught up", _edit(
        _PARTITION + "_expand", "follower.end_offset < max(self.log.high_watermark, self._epoch_start)",
        "follower.end_offset < 0"), 0, ("cut", "slow", "kill", "isolate")),
    Mutation("a follower joins before the epoch's start offset", _edit(
        _PARTITION + "_expand", "max(self.log.high_watermark, self._epoch_start)", "self.log.high_watermark"), 0, ("cut", "slow", "kill", "pause")),
    Mutation("a shrunk in-sync set counts before it is written", _edit(
        _PARTITION + "_propose", "self._writer.propose(self, proposed)",
        "self._writer.propose(self, proposed)\n    self.state, self._pending = proposed, None\n    self.advance()"), 0, ("cut", "isolate", "lose an answer")),
    Mutation("an unknown outcome of an in-sync change is taken for a failure", _edit(
        "brokers.cluster.isr_writer:ZooKeeperIsrWriter._write", "batch = await self._decide(current)",
        "self._refused(current)\n            return"), 0, ("lose an answer", "kill", "slow", "isolate")),
    Mutation("leaders write their state without comparing its version", _edit(
        _OPERATIONS, "proposal.base_epoch)", "-1)"), 0, ("cut from zookeeper", "operator", "zookeeper lag")),
    Mutation("who leaves a small in-sync set is not eligible", _edit(
        "brokers.cluster.isr:_with", "dict(elr) if len(isr) < min_isr else {}", "{}"), 0, ("isolate", "cut", "power")),
    # ---- epochs, incarnations, elections
    Mutation("a leader counts fetches of other epochs", (
        Edit("brokers.api.fetch_reads:Reader.refusal", "partition.check_epoch(part.current_leader_epoch)",
             "ErrorCode.NONE"),
        Edit("brokers.api.fetch_reads:Reader.diverging", _DIVERGES, "False"),
    ), 0, ("slow", "pause", "kill", "cut")),
    Mutation("logs are not compared by epoch", _edit(
        "brokers.api.fetch_reads:Reader.diverging", _DIVERGES, "False"), 0, ("kill", "cut", "isolate")),
    Mutation("a new follower truncates to its high watermark", _edit(
        _PARTITION + "become_follower", "self.state = state",
        "self.state = state\n    self.log.truncate_to(self.log.high_watermark)"), 0),
    Mutation("a fetch of a broker's former life counts", (
        Edit("brokers.api.fetch:_replica_error", "broker is None or broker.epoch != request.replica_epoch", "False"),
        Edit(_PARTITION + "_expand", "broker is None or broker.epoch != session.broker_epoch or", "broker is None or"),
    ), 0, ("power", "cut")),
    Mutation("a broker counts as intact after an unclean restart", _edit(
        "brokers.model:Life.continues", "self.intact_since <= incarnation", "True"), 0, ("power", "isolate")),
    Mutation("the mark of a clean stop stays", _edit(
        "brokers.log.store:LogStore._open_directory", "disk.remove(marker)", "pass"), 0, ("stop", "power")),
    Mutation("a broker leads in whatever life", _edit(
        "brokers.cluster.replicas:ReplicaManager._leads", "and state.leader_incarnation in (-1, self._incarnation())",
        ""), 0, ("power", "kill", "zookeeper lag")),
    Mutation("anybody alive may be elected", _edit(
        "brokers.cluster.elections:successor", "return None",
        "return next((b for b in state.replicas if b in lives), None)"), 0, ("power", "isolate", "cut", "kill")),
    Mutation("a controller writes without its epoch", _edit(
        "coordination.election:Leadership.fence", "self.epoch_version", "-1"), 0, ("depose the controller", "cut from zookeeper", "kill", "zookeeper lag")),
    Mutation("a move is done before the new replicas are in sync", _edit(
        "brokers.cluster.reassignment:advance", "not counting.issuperset(target)",
        "not counting.intersection(target)"), 0, ("operator", "slow", "cut", "kill")),
    # ---- answers
    Mutation("acks=all is answered before the record is committed", _edit(
        _PARTITION + "wait_for", "offset < self.log.high_watermark", "True"), 0),
    Mutation("consumers read up to the log's end", _edit(
        "brokers.api.fetch_reads:Reader._limit", "log.high_watermark", "log.log_end_offset"), 0),
    Mutation("read_committed reads up to the high watermark", _edit(
        "brokers.api.fetch_reads:Reader._limit", "log.last_stable_offset if self._committed_only else ", ""), 0),
    Mutation("a new leader tells offsets before it knows what is committed", _edit(
        "brokers.api.offsets:_lookup", "log.high_watermark < partition.epoch_start_offset", "False"), 0, ("kill", "stop", "cut")),
    Mutation("the lease is not asked", _edit(
        _PARTITION + "when_confirmed", "elif self._around.lease_valid():", "elif True:"), 0, ("pause", "cut from zookeeper", "isolate")),
    Mutation("duplicates are appended", _edit(
        "brokers.log.producers:ProducerState._check_data",
        "batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence", "False"), 0, ("reset", "client cut", "slow")),
    Mutation("a truncation keeps the producers' state", _edit(
        "brokers.log.log:Log.truncate_to", "recovery.restore_producers(", "str("), 0, ("kill", "cut", "isolate")),
    # ---- coordinators and transactions
    Mutation("a coordinator answers before its record is committed", _edit(
        _HOST + "_append", "self.partition.wait_for(info.last_offset, partial(self._committed, flight))",
        "self._committed(flight, ErrorCode.NONE)"), 0, ("kill", "isolate", "cut")),
    Mutation("a coordinator serves before what it loaded is committed", _edit(
        _HOST + "_replayed", "end > self.partition.log.high_watermark", "False"), 0, ("kill", "isolate", "cut")),
    Mutation("a coordinator appends in whatever epoch", _edit(
        _HOST + "_append", "expected_leader_epoch=self.leader_epoch", "expected_leader_epoch=None"), 0, ("stop", "zookeeper lag", "cut from zookeeper")),
    Mutation("a transaction completes before its markers are committed", _edit(
        "brokers.coordinators.transactions:TransactionCoordinator._append_run",
        "partition.wait_for(info.last_offset, done)", "done(ErrorCode.NONE)"), 0, ("kill", "isolate", "cut")),
    Mutation("transactional batches are not verified", (
        Edit("brokers.api.produce:_needs_verification", "header.is_transactional", "False"),
        Edit("brokers.log.producers:ProducerState._check_data", "if asked and (", "if False and ("),
    ), 0),
    Mutation("markers of former coordinators are taken", _edit(
        "brokers.log.producers:ProducerState._marker", "marker.coordinator_epoch < entry.coordinator_epoch",
        "False"), 0, ("slow", "cut", "pause", "kill")),
    Mutation("the epoch is not bumped at EndTxn", (
        Edit(_COORDINATOR + "end_transaction", "bumps = end.client_version >= 2",
             "end, bumps = End(end.commit, 0), False"),
        Edit(_COORDINATOR + "end_transaction", "t.producer_epoch))\n    return Result(EndAnswer(error))",
             "t.producer_epoch))\n    return Result(EndAnswer(error, producer.producer_id, producer.epoch))"),
        Edit(_COORDINATOR + "_prepare", "answer = EndAnswer(ErrorCode.NONE)\n",
             "answer = EndAnswer(ErrorCode.NONE, t.producer_id, t.producer_epoch)\n"),
    ), 0, ("client cut", "reset", "slow")),
    Mutation("producers of former epochs may write", (
        Edit("brokers.log.producers:ProducerState._check_data", "if epoch < entry.epoch:", "if False:"),
        Edit("brokers.log.producers:ProducerState._check_data", "if asked and (", "if False and ("),
    ), 0, ("client cut", "reset", "slow")),
    Mutation("offsets of open transactions count", _edit(
        "brokers.groups.shard:GroupShard._apply_offset", "if producer is None:", "if True:"), 0),
    Mutation("commits of former generations count", _edit(
        "brokers.groups.offsets:commit_error", "request.generation != group.generation", "False"), 0, ("client cut", "reset")),
    Mutation("a producer id block is taken without comparing", _edit(
        "brokers.coordinators.producer_ids:ProducerIdAllocator._try_once",
        "await self._store.set(PATH, written, stat.version)", "await self._store.set(PATH, written)"), 0),
)  # fmt: skip


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """The house with that bug, as long as the block runs."""
    undo: list[Callable[[], None]] = []
    try:
        for edit in mutation.edits:
            _apply(edit, undo)
        yield
    finally:
        for step in reversed(undo):
            step()


def _apply(edit: Edit, undo: list[Callable[[], None]]) -> None:
    module_name, _, path = edit.where.partition(":")
    module = importlib.import_module(module_name)
    owner: Any = module
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    original = inspect.getattr_static(owner, name)
    function = original.fget if isinstance(original, property) else getattr(original, "__func__", original)
    known = getattr(function, "_mutated_source", None)
    source = known or textwrap.dedent(inspect.getsource(function))
    if edit.old not in source:
        raise AssertionError(f"{edit.where} no longer has {edit.old!r}")
    source = source.replace(edit.old, edit.new)
    code = compile(source, inspect.getsourcefile(function) or module_name, "exec", __future__.annotations.compiler_flag)
    made: dict[str, Any] = {}
    exec(code, module.__dict__, made)
    fresh = made[name]
    bare = fresh.fget if isinstance(fresh, property) else getattr(fresh, "__func__", fresh)
    bare._mutated_source = source
    setattr(owner, name, fresh)
    undo.append(lambda: setattr(owner, name, original))
    if owner is module:  # others may have imported it by name
        for other in [m for n, m in sys.modules.items() if n.startswith(_HOUSE) and m is not module]:
            for alias, value in list(vars(other).items()):
                if value is original:
                    setattr(other, alias, fresh)
                    undo.append(lambda other=other, alias=alias: setattr(other, alias, original))  # type: ignore[misc]


def caught(mutation: Mutation, seed: int) -> Report | None:
    """Run a seed with the bug; the report if an invariant was violated (an exception alone doesn't count)."""
    with mutated(mutation):
        report = World(seed, kinds=mutation.kinds).run()
    return report if report.violations and not report.violations[0].startswith("not healed") else None
