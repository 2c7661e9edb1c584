"""How long Kafka Streams takes to restore a store from its changelog: from a broker here, and from Apache Kafka.

    python -m tests.kafka_jars.restore --keys 1000000 --rounds 3

One broker each, on this machine; the changelog is compacted and has one record of 100 bytes for each key, in four
partitions. The two take turns; each round begins with an empty state directory.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_jars.kafka import Kafka
from tests.kafka_jars.programs import Program, compiled, kafka_classpath, write_properties
from tests.support.fleet import Fleet

PARTITIONS = 4
VALUE_BYTES = 100
APPLICATION = "restore"
LIMIT_S = 900.0


def fill(bootstrap: str, keys: int) -> None:
    """The changelog as a first run of the program would leave it, and an input without records."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    compacted = {"cleanup.policy": "compact"}
    topics = [
        NewTopic("input", PARTITIONS, 1),
        NewTopic(f"{APPLICATION}-store-changelog", PARTITIONS, 1, config=compacted),
    ]
    for created in admin.create_topics(topics).values():
        created.result(60)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 50, "batch.size": 200_000,
         "queue.buffering.max.messages": 200_000}
    )  # fmt: skip
    failed: list[object] = []
    source = random.Random(3)
    for number in range(keys):
        value = source.randbytes(VALUE_BYTES)
        while True:
            try:
                producer.produce(
                    topics[1].topic, value, b"key-%09d" % number, partition=number % PARTITIONS,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )  # fmt: skip
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0
    assert not failed, failed[:3]


def restore_ms(classpath: str, directory: Path, bootstrap: str, keys: int) -> int:
    """One run of the program with an empty state directory."""
    state = directory / "state"
    shutil.rmtree(state, ignore_errors=True)
    settings = {
        "application.id": APPLICATION,
        "bootstrap.servers": bootstrap,
        "state.dir": state,
        "default.key.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$StringSerde",
    }
    out = directory / "out"
    out.unlink(missing_ok=True)
    program = Program(classpath, out, "Restore", str(write_properties(directory / "properties", settings)), heap_mb=512)
    program.start()
    assert program.process is not None
    try:
        code = program.process.wait(LIMIT_S)
    finally:
        program.kill()
    (line,) = [line for line in program.printed().splitlines() if line.startswith("restored ")]
    assert code == 0, program.tail()
    _, records, time_ms = line.split()
    assert int(records) == keys, f"{records} of {keys} records were restored"
    return int(time_ms)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="restore-"))
    jars = kafka_classpath(directory / "classpath")
    program = compiled(jars, Path(__file__).parent / "Restore.java", directory)
    (directory / "kafka").mkdir()
    kafka = Kafka(jars, directory / "kafka", properties={"log.segment.bytes": 1 << 30})
    fleet = Fleet(directory / "fleet", brokers=1)
    times: dict[str, list[int]] = {"fleetlog": [], "kafka": []}
    try:
        fleet.start()
        kafka.format()
        kafka.start()
        places = {"fleetlog": fleet.bootstrap, "kafka": kafka.bootstrap}
        for bootstrap in places.values():
            fill(bootstrap, options.keys)
        for turn in range(options.rounds):
            for name, bootstrap in places.items():
                times[name].append(restore_ms(program, directory, bootstrap, options.keys))
                print(f"round {turn + 1}: {name} {times[name][-1]} ms", flush=True)
    finally:
        kafka.stop()
        fleet.close()
        shutil.rmtree(directory, ignore_errors=True)
    for name, found in times.items():
        print(f"{name}: {options.keys} keys, median {statistics.median(found):.0f} ms of {found}")


if __name__ == "__main__":
    main()
