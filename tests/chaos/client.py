"""One client process: ``python -m tests.chaos.client ROLE PROC SLOT SEED BOOTSTRAP DIRECTORY``.

ROLE is a key of ROLES, PROC the name in the history, SLOT what stays the same when the process is started anew (its
transactional id). Ends with 0 when it was asked to, with 3 when its client gave up for good.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

from tests.chaos import (
    final,
    workload_batches,
    workload_hurried,
    workload_produce,
    workload_read,
    workload_shares,
    workload_table,
    workload_topics,
    workload_txn,
)
from tests.chaos.history import COMPACTED, JOBS, TELLERS
from tests.chaos.recorder import Recorder, RoleControl

TRIMMED = "trimmed"
"""The topic whose records are deleted now and then."""
TOPICS = {
    "plain": 2,
    "idem": 3,
    "txn": 3,
    "in": 2,
    "out": 2,
    "sink": 3,
    "orders": 2,
    "bank": 3,
    TRIMMED: 2,
    COMPACTED: 2,
    JOBS: 2,
}
"""Topic -> partitions."""
READERS, MOVERS, WORKERS = "readers", "movers", "workers"
GROUPS = {READERS: "idem", MOVERS: "idem", WORKERS: "in", TELLERS: "orders"}
"""Group -> the topic it reads."""
GAVE_UP = 3

Role = Callable[[Recorder, RoleControl, str, str], None]


def _produce(produce: Callable[..., None], topic: str, rate: float) -> Role:
    return lambda recorder, control, bootstrap, _: produce(recorder, control, bootstrap, topic, TOPICS[topic], rate)


def _read(read: Callable[..., None], isolation: str, *topics: str) -> Role:
    some = {topic: TOPICS[topic] for topic in topics or TOPICS}
    return lambda recorder, control, bootstrap, _: read(recorder, control, bootstrap, some, isolation)


ROLES: dict[str, tuple[dict[str, str], Role]] = {
    "plain": ({}, _produce(workload_produce.kafka_python, "plain", 15)),
    "idem": ({}, _produce(workload_produce.confluent, "idem", 30)),
    "idem-aio": ({}, _produce(workload_produce.aiokafka, "idem", 20)),
    "input": ({}, _produce(workload_produce.confluent, "in", 15)),
    "txn": ({"iso": "rc"}, lambda r, li, b, slot: workload_txn.mixed(r, li, b, "txn", TOPICS["txn"], 4, slot)),
    "txn-kp": ({}, lambda r, li, b, slot: workload_txn.kafka_python(r, li, b, "txn", TOPICS["txn"], 4, slot)),
    "txn-raw": ({}, lambda r, li, b, slot: workload_hurried.transactions(r, li, b, "txn", TOPICS["txn"], 6, slot)),
    "sink": ({}, lambda r, li, b, slot: workload_batches.driver(r, li, b, "sink", TOPICS["sink"], slot)),
    "worker": (
        {"iso": "rc", "group": WORKERS},
        lambda r, li, b, slot: workload_txn.worker(r, li, b, "in", "out", TOPICS["out"], slot, WORKERS),
    ),
    "orders": ({}, _produce(workload_produce.confluent, "orders", 8)),
    "teller": (
        {"iso": "rc", "group": TELLERS},
        lambda r, li, b, slot: workload_txn.teller(r, li, b, "orders", "bank", TOPICS["bank"], slot, TELLERS),
    ),
    "trimmed": ({}, _produce(workload_produce.confluent, TRIMMED, 10)),
    "table": ({}, _produce(workload_table.table, COMPACTED, 30)),
    "jobs": ({}, _produce(workload_shares.jobs, JOBS, 20)),
    "sharer": ({}, lambda r, li, b, _: workload_shares.confluent(r, li, b)),
    "sharer-raw": ({}, lambda r, li, b, _: workload_shares.by_hand(r, li, b, TOPICS[JOBS])),
    "finish-shares": ({}, lambda r, li, b, _: workload_shares.finish(r, li, b)),
    "again": ({}, lambda r, li, b, _: workload_topics.again(r, li, b)),
    "reader-rc": ({"iso": "rc"}, _read(workload_read.confluent, "rc")),
    "reader-rack": ({"iso": "rc"}, _read(workload_read.confluent_rack, "rc", "idem", "txn")),
    "reader-ru": ({"iso": "ru"}, _read(workload_read.aiokafka, "ru")),
    "reader-kp": ({"iso": "rc"}, _read(workload_read.kafka_python, "rc", "txn", "out")),
    "member": (
        {"iso": "rc", "group": READERS},
        lambda r, li, b, _: workload_read.confluent_member(r, li, b, "idem", READERS),
    ),
    "member-kp": (
        {"iso": "rc", "group": READERS},
        lambda r, li, b, _: workload_read.kafka_python_member(r, li, b, "idem", READERS),
    ),
    "mover": (
        {"iso": "rc", "group": MOVERS},
        lambda r, li, b, _: workload_read.confluent_mover(r, li, b, "idem", MOVERS),
    ),
    "asker": (
        {},
        lambda r, li, b, _: workload_read.asker(r, li, b, TOPICS, GROUPS, 4),
    ),
    "final": ({}, lambda r, li, b, _: final.read_all(r, li, b, TOPICS, GROUPS)),
}  # fmt: skip


def main() -> int:
    """Play the role."""
    role, proc, slot, seed, bootstrap, directory = sys.argv[1:7]
    logging.basicConfig(level=logging.ERROR)
    start, play = ROLES[role]
    control = RoleControl(seed)
    recorder = Recorder(Path(directory), proc, role=role, **start)
    try:
        play(recorder, control, bootstrap, slot)
    except Exception as problem:  # a client that gave up: the next one takes its place
        recorder.write(e="gone", t=recorder.now(), error=f"{type(problem).__name__} {problem}"[:200])
        return GAVE_UP
    return 0


if __name__ == "__main__":
    sys.exit(main())
