# ruff: noqa: E501
"""Deliberate bugs: each takes one safeguard out of the production code, and the simulation must notice.

A mutation rewrites a few lines of named functions while its block runs. If the text is no longer there the mutation
fails loudly: write it anew for the code as it is. ``seed`` is one that catches it; when it no longer does, because the
code has changed, the first ``within`` seeds are tried.
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
        _PARTITION + "maximal_isr", "if self._pending is None:", "if True:"), 36, ("lose an answer", "cut from zookeeper", "isolate")),
    Mutation("the high watermark ignores followers that have not fetched in this epoch", _edit(
        _PARTITION + "advance", "follower.end_offset if follower is not None else -1",
        "follower.end_offset if follower is not None and follower.end_offset >= 0 else watermark"), 1),
    Mutation("the high watermark moves below min.insync.replicas", _edit(
        _PARTITION + "advance", "self.state.elr or self._below_minimum()", "False"), 5, ("cut", "isolate", "kill")),
    Mutation("a new leader takes its whole log for committed", _edit(
        _PARTITION + "become_leader", "self._tell_changed()",
        "self.log.set_high_watermark(self.log.log_end_offset)\n    self._tell_changed()"), 3, ("kill", "isolate", "cut", "slow")),
    Mutation("a follower joins before it has caught up", _edit(
        _PARTITION + "_expand", "follower.end_offset < max(self.log.high_watermark, self._epoch_start)",
        "follower.end_offset < 0"), 3, ("cut", "slow", "kill", "isolate")),
    Mutation("a shrunk in-sync set counts before it is written", _edit(
        _PARTITION + "_propose", "self._writer.propose(self, proposed)",
        "self._writer.propose(self, proposed)\n    self.state, self._pending = proposed, None\n    self.advance()"), 3, ("cut", "isolate", "lose an answer")),
    Mutation("an unknown outcome of an in-sync change is taken for a failure", _edit(
        "brokers.cluster.isr_writer:ZooKeeperIsrWriter._write", "batch = await self._decide(current)",
        "self._refused(current)\n            return"), 36, ("lose an answer", "zookeeper lag", "isolate")),
    Mutation("who leaves a small in-sync set is not eligible", _edit(
        "brokers.cluster.isr:_with", "dict(elr) if len(isr) < min_isr else {}", "{}"), 24, ("isolate", "cut", "power")),
    # ---- epochs, incarnations, elections
    Mutation("a leader counts fetches of other epochs", (
        Edit("brokers.api.fetch_reads:Reader.refusal", "partition.check_epoch(part.current_leader_epoch)",
             "ErrorCode.NONE"),
        Edit("brokers.api.fetch_reads:Reader.diverging", _DIVERGES, "False"),
    ), 8, ("slow", "pause", "kill", "cut")),
    Mutation("logs are not compared by epoch", _edit(
        "brokers.api.fetch_reads:Reader.diverging", _DIVERGES, "False"), 21, ("kill", "cut", "isolate")),
    Mutation("a new follower truncates to its high watermark", _edit(
        _PARTITION + "become_follower", "self.state = state",
        "self.state = state\n    self.log.truncate_to(self.log.high_watermark)"), 5, ("kill", "stop", "slow")),
    Mutation("a fetch of a broker's former life counts", (
        Edit("brokers.api.fetch:_replica_error", "broker is None or broker.epoch != request.replica_epoch", "False"),
        Edit(_PARTITION + "_expand", "broker is None or broker.epoch != session.broker_epoch or", "broker is None or"),
    ), 14, ("power", "cut")),
    Mutation("a broker counts as intact after an unclean restart", _edit(
        "brokers.model:Life.continues", "self.intact_since <= incarnation", "True"), 3, ("power", "isolate")),
    Mutation("the mark of a clean stop stays", _edit(
        "brokers.log.store:LogStore._open_directory", "disk.remove(marker)", "pass"), 15, ("stop", "power")),
    Mutation("a broker leads in whatever life", _edit(
        "brokers.cluster.replicas:ReplicaManager._leads", "and state.leader_incarnation in (-1, self._incarnation())",
        ""), 7, ("power", "kill", "zookeeper lag")),
    Mutation("anybody alive may be elected", _edit(
        "brokers.cluster.elections:successor", "return None",
        "return next((b for b in state.replicas if b in lives), None)"), 5, ("kill", "isolate")),
    Mutation("a move is done before the new replicas are in sync", _edit(
        "brokers.cluster.reassignment:advance", "not counting.issuperset(target)",
        "not counting.intersection(target)"), 2, ("operator", "slow", "cut", "kill")),
    Mutation("leaders write their state without comparing its version", _edit(
        _OPERATIONS, "proposal.base_epoch)", "-1)"), 49, ("lose an answer", "cut from zookeeper", "operator")),
    # One of the two is enough in all histories so far: a state's version also tells that another controller has written.
    Mutation("a controller writes without its epoch and without comparing versions", (
        Edit("coordination.election:Leadership.fence", "self.epoch_version", "-1"),
        Edit("brokers.cluster.writes:StateWrites.add", "encode_state(new), old.partition_epoch)", "encode_state(new), -1)"),
    ), 3, ("zookeeper lag", "cut from zookeeper", "depose the controller", "stop")),
    # ---- answers
    Mutation("acks=all is answered before the record is committed", _edit(
        _PARTITION + "wait_for", "self.is_committed(offset)", "True"), 0),
    Mutation("consumers read up to the log's end", _edit(
        "brokers.api.fetch_reads:Reader._limit", "log.high_watermark", "log.log_end_offset"), 2),
    Mutation("read_committed reads up to the high watermark", _edit(
        "brokers.api.fetch_reads:Reader._limit", "log.last_stable_offset if self._committed_only else ", ""), 0),
    Mutation("the lease is not asked", _edit(
        _PARTITION + "when_confirmed", "elif self._around.lease_valid():", "elif True:"), 35, ("pause", "cut from zookeeper", "isolate")),
    Mutation("duplicates are appended", _edit(
        "brokers.log.producers:ProducerState._check_data",
        "batch.last_sequence == last_sequence and batch.first_sequence == header.base_sequence", "False"), 8, ("reset", "client cut", "slow")),
    # ---- coordinators and transactions
    Mutation("a coordinator answers before its record is committed", _edit(
        _HOST + "_append", "self.partition.wait_for(info.last_offset, partial(self._committed, flight))",
        "self._committed(flight, ErrorCode.NONE)"), 1, ("kill", "die in a write", "slow")),
    Mutation("a transaction completes before its markers are committed", _edit(
        "brokers.coordinators.transactions:TransactionCoordinator._append_run",
        "partition.wait_for(info.last_offset, done)", "done(ErrorCode.NONE)"), 89, ("kill", "isolate", "cut")),
    Mutation("transactional batches are not verified", (
        Edit("brokers.api.produce:_needs_verification", "item.partition.may_serve(Serve.APPEND) is ErrorCode.NONE",
             "False"),
        Edit("brokers.log.producers:ProducerState._check_data", "if asked and (", "if False and ("),
    ), 1),
    Mutation("offsets of open transactions count", _edit(
        "brokers.groups.shard:GroupShard._apply_offset", "if producer is None:", "if True:"), 4),
    # ---- sinks
    Mutation("a former driver commits", _edit(
        "txn.sinks:_refusal", "(t.producer_id, t.producer_epoch) != producer", "False"), 0, ("drivers", "client cut")),
    Mutation("the fence is not compared", (
        Edit("txn.sinks:commit", "_is_retry(t, producer) and fence is not None and", "False and"),
        Edit("txn.sinks:commit", "fence is not None and _names(fence, request)", "False"),
        Edit("txn.sinks:commit", "conflict = _conflict(fence, request)", "conflict = None"),
    ), 0, ("drivers", "client cut")),
    Mutation("members of former batches may write", (
        Edit("txn.sinks:member_refusal", "and member in t.batch.members", ""),
        Edit("brokers.log.producers:ProducerState._check_data", "if epoch < entry.epoch:", "if False:"),
    ), 0, ("drivers", "client cut")),
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
