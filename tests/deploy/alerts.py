"""Fires the alerts by real faults on a real fleet, and sees them go away: ``python -m tests.deploy.alerts``.

Run by hand; it takes some minutes and a Prometheus (``--prometheus PATH``; Debian's package has one). The rules are
those of the tree with minutes as seconds, or longer ones (``--minute 3``) where much else runs. At the end it names the
panels of the dashboards for which there was nothing to show.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource

from fleetlog.brokers.model import AUDIT_TOPIC
from fleetlog.coordination.ports import free_row
from tests.deploy.alert_stage import PATIENCE_S, Stage, nothing, start_patiently, stuttering
from tests.deploy.bucket_faults import held_copies, lost_bucket
from tests.deploy.client_faults import (
    busy_loop,
    damaged_produces,
    forgotten_transaction,
    frequent_rebalances,
    garbage,
    groups_behind,
    hanging_transaction,
    refused_produces,
    slow_rebalance,
    tight_quota,
    unframed_records,
    waiting_letters,
    wrong_passwords,
)
from tests.deploy.disk_faults import (
    damaged_batch,
    damaged_compacted_log,
    damaged_segment,
    filling_disk,
    late_replica,
    shortened_log,
    slow_cleaner,
    slow_fsync,
    unclean_election,
)
from tests.deploy.panels import blank_panels
from tests.support.audited import audited_fleet, client, flood
from tests.support.certificates import replaced
from tests.support.registry_process import RegistryProcess
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


def one_broker_down(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("lonely", [3])
    stage.topic("pair", [1, 3])
    stage.topic("strict", [1, 3], min_insync_replicas="2")
    stage.fleet.brokers[2].kill()
    yield nothing
    stage.fleet.brokers[2].start()


def all_brokers_down(stage: Stage) -> Iterator[Callable[[], None]]:
    for broker in stage.fleet.brokers:
        broker.kill()
    yield nothing
    for broker in stage.fleet.brokers:
        broker.start()
    for broker in stage.fleet.brokers:
        broker.wait_ready()


def dead_zookeeper(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.fleet.zookeeper.pause()
    yield nothing
    stage.fleet.zookeeper.resume()


def slow_zookeeper(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("altered", [1, 2])
    numbers = itertools.count(1_000_000)

    def alter() -> None:
        """A request that the controller must write into ZooKeeper."""
        with suppress(KafkaException):
            stage.alter(ConfigResource.Type.TOPIC, "altered", "retention.ms", str(next(numbers)))
        time.sleep(0.4)  # longer than ZooKeeper runs: else most requests are those that it answers at once

    with stuttering(stage.fleet.zookeeper, 1.2, 0.2):
        yield alter


def flapping_follower(stage: Stage) -> Iterator[Callable[[], None]]:
    """A follower that stands still for a little longer than the leader waits for it, again and again."""
    one, _, three = stage.fleet.brokers
    assert one.stop(PATIENCE_S) == 0
    one.start("zookeeper.session.timeout.ms=2000", "replica.lag.time.max.ms=2100")
    one.wait_ready(PATIENCE_S)
    stage.topic("flapping", [1, 3])

    def write() -> None:
        stage.produce("flapping")
        time.sleep(0.1)

    with stuttering(three, 2.8, 1.2):
        yield write
    stage.flush()
    assert one.stop(PATIENCE_S) == 0
    one.start()
    one.wait_ready(PATIENCE_S)
    stage.wait_in_sync("flapping", {1, 3})
    stage.prefer()


def stalling_loop(stage: Stage) -> Iterator[Callable[[], None]]:
    with stuttering(stage.fleet.brokers[1], 0.4, 0.3):
        yield nothing


def slow_follower(stage: Stage) -> Iterator[Callable[[], None]]:
    stage.topic("slow", [1, 2, 3], min_insync_replicas="2")

    def write() -> None:
        stage.produce("slow", 5)
        time.sleep(0.1)

    with stuttering(stage.fleet.brokers[2], 1.0, 0.3):
        yield write
    stage.flush()


def few_descriptors(stage: Stage) -> Iterator[Callable[[], None]]:
    process = stage.fleet.brokers[1].process
    assert process is not None
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    used = len(os.listdir(f"/proc/{process.pid}/fd"))
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 6, before[1]))
    yield nothing
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)


def short_certificate(stage: Stage) -> Iterator[Callable[[], None]]:
    replaced(str(stage.certificate), stage.short)
    yield nothing
    replaced(str(stage.certificate), stage.long)


def unread_schemas(stage: Stage) -> Iterator[Callable[[], None]]:
    """The one replica of ``_schemas`` is gone: nothing is read, and no registration is confirmed."""
    stage.topic("_schemas", [3], cleanup_policy="compact")
    registry = RegistryProcess(stage.fleet.bootstrap, "--timeout", "2")
    try:
        with stage.beside(registry.url.removeprefix("http://")):
            registry.ask("POST", "/subjects/s/versions", {"schema": '"int"'})
            stage.fleet.brokers[2].kill()
            yield lambda: registry.ask("POST", "/subjects/s/versions", {"schema": '"string"'})
            stage.fleet.brokers[2].start()
            stage.fleet.brokers[2].wait_ready()
    finally:
        registry.close()


def broken_certificate(stage: Stage) -> Iterator[Callable[[], None]]:
    replaced(str(stage.certificate), "no certificate\n")
    yield nothing
    replaced(str(stage.certificate), stage.long)


def late_follower(stage: Stage) -> Iterator[Callable[[], None]]:
    three = stage.fleet.brokers[2]
    three.stop()
    stage.topic("far", [1, 3], follower_replication_throttled_replicas="*")
    for _ in range(15):
        stage.produce("far", 10_000, "1")
        stage.flush()
    three.start("follower.replication.throttled.rate=20000")
    yield nothing
    stage.alter(ConfigResource.Type.TOPIC, "far", "follower.replication.throttled.replicas", None)
    three.wait_ready()


def full_audit_queue(stage: Stage) -> Iterator[Callable[[], None]]:
    fleet = audited_fleet(stage.directory / "audited", 2, **{"audit.queue.max.bytes": 65_536})
    try:
        start_patiently(fleet)
        first, second = fleet.brokers
        with stage.instead(f"127.0.0.1:{first.admin_port}"):
            eventually(
                lambda: AUDIT_TOPIC in AdminClient(client(fleet)).list_topics(timeout=30).topics, "the audit topic"
            )
            second.kill()  # events are written to two replicas, and wait meanwhile
            flood(first, 20)
            yield nothing
            second.start()
            second.wait_ready()
            stage.prometheus.wait(lambda firing: "AuditLoss" not in firing, "AuditLoss goes away", nothing)
    finally:
        fleet.close()


def tilted_leaders(stage: Stage) -> Iterator[Callable[[], None]]:
    three = stage.fleet.brokers[2]
    stage.topic("tilted", [3, 1])
    assert three.stop() == 0
    three.start()
    three.wait_ready()
    stage.wait_in_sync("tilted", {1, 3})
    yield nothing
    stage.prefer()


def crashing_broker(stage: Stage) -> Iterator[Callable[[], None]]:
    """A unit of two brokers, one of which is killed whenever it runs."""
    port = free_row(5)[0]
    page = port + 2
    directory = stage.directory / "host"
    directory.mkdir()
    config = directory / "host.properties"
    config.write_text(
        f"broker.id=11\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={directory / 'data'}\n"
        f"admin.listener=127.0.0.1:{page}\nzookeeper.connect={stage.fleet.zookeeper_connect}/host\n"
    )
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "host", str(config), "--brokers", "2"]

    def kill() -> None:
        time.sleep(0.5)
        with suppress(OSError), urlopen(f"http://127.0.0.1:{page}/brokers", timeout=10) as answer:
            process = json.load(answer)["brokers"][0]["process"]
            if process:
                os.kill(process, signal.SIGKILL)

    with (directory / "host.out").open("wb") as out:
        unit = subprocess.Popen(command, stdout=out, stderr=out, cwd=ROOT)
    try:
        with stage.instead(f"127.0.0.1:{page}"):
            yield kill
            stage.prometheus.wait(lambda firing: "BrokerRestarts" not in firing, "BrokerRestarts goes away", nothing)
    finally:
        unit.terminate()
        assert unit.wait(90) == 0


Fault = Callable[[Stage], Iterator[Callable[[], None]]]
"""Makes a generator: what it yields is called while the alerts are awaited, its rest ends the fault."""

FAULTS: dict[Fault, set[str]] = {
    one_broker_down: {"BrokerDown", "OfflinePartitions", "UnderReplicated", "UnderMinIsr"},
    all_brokers_down: {"BrokersDown", "NoController"},
    dead_zookeeper: {"NoLease"},
    slow_zookeeper: {"ZooKeeperLatency"},
    flapping_follower: {"IsrFlapping"},
    stalling_loop: {"LoopLag"},
    busy_loop: {"LoopBusy"},
    slow_follower: {"ProduceSlow"},
    garbage: {"RefusedRequests"},
    wrong_passwords: {"AuthFailures"},
    few_descriptors: {"Troubles"},
    filling_disk: {"DiskFilling", "DiskAlmostFull"},
    short_certificate: {"CertificateExpires", "CertificateExpiresSoon"},
    broken_certificate: {"CertificateRefused"},
    damaged_batch: {"DamagedData"},
    late_follower: {"FollowerBehind"},
    groups_behind: {"GroupLag", "GroupLagHigh", "GroupLate", "GroupStopped"},
    unclean_election: {"UncleanElection", "LostCommits"},
    tight_quota: {"Throttled"},
    damaged_compacted_log: {"UncleanablePartitions"},
    slow_cleaner: {"CompactionLate"},
    full_audit_queue: {"AuditLoss"},
    tilted_leaders: {"LeaderImbalance"},
    crashing_broker: {"BrokerRestarts"},
    damaged_produces: {"DamagedProduces"},
    refused_produces: {"FailedProduces"},
    unframed_records: {"SchemaRefusals"},
    waiting_letters: {"DeadLettersWait"},
    hanging_transaction: {"TransactionHangs"},
    forgotten_transaction: {"TransactionHangs"},
    slow_rebalance: {"RebalanceSlow"},
    frequent_rebalances: {"RebalancesOften"},
    slow_fsync: {"FsyncSlow"},
    late_replica: {"ReplicationLate"},
    damaged_segment: {"DamagedSegment"},
    shortened_log: {"ShortenedLogs"},
    lost_bucket: {"BucketFails", "TierBehind"},
    held_copies: {"TierHeld"},
    unread_schemas: {"RegistryBehind", "RegistryFails"},
}
"""With the alerts that each must fire."""


def run_fault(stage: Stage, fault: Fault, alerts: set[str]) -> str:
    """One line of the report. Raises AssertionError."""
    prometheus = stage.prometheus
    seen: set[str] = set()

    def all_seen(firing: set[str]) -> bool:
        seen.update(firing)
        return alerts <= seen

    prometheus.wait(lambda firing: not alerts & firing, f"before {fault.__name__} {sorted(alerts)} are silent", nothing)
    work = fault(stage)
    step = next(work)
    fired_s = prometheus.wait(all_seen, f"{fault.__name__}: {sorted(alerts)} must fire", step)
    with suppress(StopIteration):
        next(work)
    gone_s = prometheus.wait(lambda firing: not alerts & firing, f"{fault.__name__}: {sorted(alerts)} go away", nothing)
    return f"{fault.__name__}: {', '.join(sorted(alerts))}: fired after {fired_s:.0f} s, gone after {gone_s:.0f} s"


def main() -> None:
    """Run all faults, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help=f"default: all of {', '.join(one.__name__ for one in FAULTS)}")
    parser.add_argument("--prometheus", default=shutil.which("prometheus"))
    parser.add_argument("--minute", type=int, default=1, help="seconds that a minute of the rules takes")
    options = parser.parse_args()
    known = {one.__name__ for one in FAULTS}
    if unknown := set(options.faults) - known:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    if options.prometheus is None:
        parser.error("no prometheus found: give --prometheus PATH")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="fleetlog-alerts-") as name:
        stage, began_s = Stage(Path(name), options.prometheus, options.minute), time.time()
        try:
            for fault, alerts in FAULTS.items():
                if options.faults and fault.__name__ not in options.faults:
                    continue
                try:
                    print(run_fault(stage, fault, alerts), flush=True)
                except (AssertionError, KafkaException, subprocess.CalledProcessError) as error:
                    failed += 1
                    print(f"FAILED {fault.__name__}: {error}", flush=True)
                    stage.heal()
            blank = blank_panels(stage.prometheus.address, began_s)
            print(*(f"no series for {line}" for line in blank), f"{len(blank)} lines of panels are blank", sep="\n")
        finally:
            stage.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
