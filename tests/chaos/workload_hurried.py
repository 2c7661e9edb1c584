"""Transactions of protocol 2 in bursts without a pause: several batches in flight, some with nothing in them."""

from __future__ import annotations

from tests.chaos.outcomes import text_of
from tests.chaos.recorder import Recorder, RoleControl, pack
from tests.chaos.workload_txn import Fatal
from tests.support.raw_transactions import RawProducer

BURST = 8
CALL_S = 10.0


def transactions(
    recorder: Recorder, control: RoleControl, bootstrap: str, topic: str, partitions: int, rate: float, slot: str
) -> None:
    """Bursts of transactions; whatever goes wrong is the end of this producer, and the next one takes its id."""
    rng = control.rng
    brokers = bootstrap.split(",")
    rng.shuffle(brokers)
    producer = RawProducer(brokers[0], slot, topic, partitions, rng.randrange(1 << 30), timeout_s=CALL_S)
    while control.on:
        for _ in range(rng.randint(1, BURST)):
            name = recorder.begin("txn")
            kind = rng.choice(("commit", "commit", "abort", "nothing"))
            try:
                for partition in rng.sample(range(partitions), rng.randint(1, partitions)) if kind != "nothing" else ():
                    key = f"{topic}/{partition}"
                    values = [f"{recorder.proc}.{name['n']}.{partition}-{i}" for i in range(rng.randint(1, 4))]
                    for value in values:
                        recorder.then(name, "send", k=key, v=value)
                    offsets = producer.produce(partition, [pack(value) for value in values])
                    for value, offset in zip(values, offsets, strict=True):
                        recorder.then(name, "sent", k=key, v=value, **({"o": offset} if offset >= 0 else {}))
                if kind == "commit":
                    recorder.then(name, "committing")
                producer.end(kind == "commit")
            except Exception as why:
                recorder.then(name, "info", error=text_of(why))
                raise Fatal(str(why)) from why
            recorder.then(name, "ok" if kind == "commit" else "fail")
        control.pause(rng.random() * 2 * BURST / rate)
    producer.close()
