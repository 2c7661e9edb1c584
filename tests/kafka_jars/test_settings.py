"""Our tables of settings against Kafka's own: every name, type, default, bound, and whether it is dynamic."""

from __future__ import annotations

import html
import random
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from fleetlog.brokers.api.config_alterations import (
    Alteration,
    Operation,
    Resource,
    Unknown,
    altered,
    check_broker_settings,
    setting_of,
)
from fleetlog.brokers.api.config_values import GROUP_SETTINGS
from fleetlog.brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS, TopicConfig, load_config
from fleetlog.brokers.controller.requests import Refused
from fleetlog.brokers.metadata.cache import effective_config
from fleetlog.brokers.setting_kinds import ConfigError, Setting

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

OTHER_DEFAULTS = {
    "listeners": "loopback unless asked otherwise",
    "group.consumer.session.timeout.ms": ("5000", "45000", "60000", "60001"),
    "group.consumer.min.session.timeout.ms": ("5000", "60001"),
    "group.consumer.max.session.timeout.ms": ("45000", "70000"),
    "group.consumer.heartbeat.interval.ms": ("5000", "4999", "15001"),
    "group.consumer.min.heartbeat.interval.ms": ("1", "5000"),
    "group.consumer.max.heartbeat.interval.ms": ("5000", "20000"),
    "group.consumer.assignment.interval.ms": ("0", "1000", "15001"),
    "group.consumer.max.assignment.interval.ms": ("0", "20000"),
    "log.cleaner.dedupe.buffer.size": "a broker takes tens of megabytes",
    "log.dir": "unset: log.dirs has a default",
    "log.dirs": "a place that survives a restart",
    "max.connections": "bounded",
    "max.connections.per.ip": "bounded",
    "node.id": "broker.id",
    "process.roles": "required there",
    "queued.max.request.bytes": "bounded",
    "socket.listen.backlog.size": "a burst of new connections waits",
    "socket.receive.buffer.bytes": "the system's grows as far as a link needs it",
    "socket.send.buffer.bytes": "the system's grows as far as a link needs it",
    "replica.fetch.backoff.ms": "a lagging follower comes back sooner",
}
"""Where a default, or what may stand there, differs from Kafka's, and why."""
STATIC_HERE = {
    "listeners", "listener.security.protocol.map", "sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol",
}  # fmt: skip

OTHERS = ("fleetlog.", "confluent.")
"""How settings of a topic begin that are not Kafka's: our own, and Confluent's for checks of schemas."""


def printed(classpath: str, name: str) -> dict[str, dict[str, str]]:
    """What a class of Kafka's prints of its definitions: setting to heading to text."""
    command = ["java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", classpath, name]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = {}
    for block in text.split("<h4>")[1:]:
        anchor = re.search(r'<a id="([^"]+)"', block)
        assert anchor is not None, block[:200]
        cells = re.findall(r"<tr><th>([^<]+):</th><td>(.*?)</td></tr>", block, re.DOTALL)
        found[anchor[1]] = {heading: html.unescape(cell) for heading, cell in cells}
    assert len(found) > 5, text[:1000]
    return found


def differences(theirs: dict[str, dict[str, str]], ours: dict[str, Setting]) -> list[str]:
    wrong = [f"{name}: missing" for name in theirs if name not in ours]
    for name, cells in theirs.items():
        row = ours.get(name)
        if row is None:
            continue
        kind = (row.shown_as or row.type).name.lower()
        if kind != cells["Type"]:
            wrong.append(f"{name}: {kind} is {cells['Type']} there")
        default = re.sub(r" \(.*\)$", "", cells["Default"]).strip('"')
        told = row.format(row.default)
        if name not in OTHER_DEFAULTS and ("null" if told is None else told) != (default or told):
            wrong.append(f"{name}: default {told!r} is {default!r} there")
        mode = cells.get("Update Mode")
        if mode is not None and row.live != (mode != "read-only") and name not in STATIC_HERE:
            wrong.append(f"{name}: live={row.live}, {mode} there")
    return wrong


def test_a_brokers_settings_are_kafkas(classpath: str) -> None:
    theirs = printed(classpath, "kafka.server.KafkaConfig")
    assert differences(theirs, BROKER_SETTINGS) == []
    unknown = {row.name for row in BROKER_SETTINGS.values() if row.inert and not row.retired} - set(theirs)
    assert not unknown, "no settings of Kafka's"


def test_a_topics_settings_are_kafkas(classpath: str) -> None:
    theirs = printed(classpath, "org.apache.kafka.storage.internals.log.LogConfig")
    assert differences(theirs, TOPIC_SETTINGS) == []
    names = {row.name for row in TOPIC_SETTINGS.values() if not row.retired}
    assert {name for name in names if not name.startswith(OTHERS)} == set(theirs), "all others are Kafka's"
    for name, cells in theirs.items():
        assert TOPIC_SETTINGS[name].synonym == cells["Server Default Property"].replace("null", ""), name


def test_a_groups_settings_are_kafkas(classpath: str) -> None:
    theirs = printed(classpath, "org.apache.kafka.coordinator.group.GroupConfig")
    assert differences(theirs, GROUP_SETTINGS) == []


VALUES = (
    "-1", "0", "1", "14", "60000", "100000", "1048575", "1048576", "9223372036854775807", "2147483648", "0.5", "true",
    "false", "compact", "delete", "compact,delete", "delete,delete", "", "0:1", "0:1,1:2", "*", "0:1,*", "0:1,0:1",
    "producer", "gzip", "uncompressed", "CreateTime", "x", " 1", "1 ",
)  # fmt: skip
LEAST_SEGMENT = 1_048_576
"""Kafka's least segment.bytes from 4.0 on; here 14 as in Kafka 3.9, whose topics a fleet may have (docs/apis.md)."""


def pairs(chance: random.Random) -> list[dict[str, str]]:
    """Every setting of a topic with every value, and random ones together; without what docs/apis.md lists."""
    names = sorted(name for name, row in TOPIC_SETTINGS.items() if not name.startswith(OTHERS) and not row.retired)
    found = [{name: value} for name in names for value in VALUES]
    found += [{name: chance.choice(VALUES) for name in chance.sample(names, 2)} for _ in range(2000)]
    related = [name for name in names if any(word in name for word in ("lag", "retention", "cleanup", "throttled"))]
    fitting: dict[str, list[str]] = {}
    for name in related:
        fitting[name] = [value for value in VALUES if accepts(TOPIC_SETTINGS[name], value)]
    for _ in range(3000):
        found.append({name: chance.choice(fitting[name]) for name in chance.sample(related, chance.randint(2, 4))})
    return [one for one in found if one.get("remote.storage.enable") != "true"]


def accepts(row: Setting, value: str) -> bool:
    try:
        row.parse(value)
    except ConfigError:
        return False
    return True


def said_together(classpath: str, asked: list[dict[str, str]], *whose: str) -> list[str]:
    """What Kafka says of each: ok, or why not."""
    text = "".join("\t".join(f"{name}={value}" for name, value in one.items()) + "\n" for one in asked)
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classpath]
    command += [str(Path(__file__).parent / "Together.java"), *whose]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_topics_settings_are_checked_together_as_by_kafka(classpath: str) -> None:
    asked = pairs(random.Random(35))
    theirs = said_together(classpath, asked)
    ours = []
    for one in asked:
        try:
            TopicConfig.parse(one, TopicConfig()).check_together()
            small = one.get("segment.bytes", str(LEAST_SEGMENT)).strip()
            ours.append("ok" if int(small) >= LEAST_SEGMENT else "a small segment, which is taken here")
        except ConfigError as wrong:
            ours.append(str(wrong))
    different = [
        found for found in zip(asked, ours, theirs, strict=True) if (found[1] == "ok") != (found[2] == "ok")
    ]  # fmt: skip
    assert different == []
    together = [mine for one, mine in zip(asked, ours, strict=True) if len(one) > 1]
    assert min(together.count("ok"), sum("max.compaction.lag.ms (" in mine for mine in together)) > 20


KRAFT = {
    "process.roles": "broker", "node.id": "1", "controller.quorum.voters": "2@localhost:9093",
    "controller.listener.names": "CONTROLLER", "listeners": "PLAINTEXT://localhost:9092",
}  # fmt: skip
HERE = "broker.id=1\nzookeeper.connect=z:1\nzookeeper.session.timeout.ms=2000\n"
RELATED = {
    "replica.fetch.wait.max.ms": ("500", "2999", "3000", "3001", "31000"),
    "replica.lag.time.max.ms": ("3000", "30000"),
    "replica.socket.timeout.ms": ("60000",),
    "connection.failed.authentication.delay.ms": ("0", "99", "100", "101", "5000"),
    "connections.max.idle.ms": ("100", "101", "6000"),
    "max.connections.per.ip": ("0", "1"),
    "max.connections.per.ip.overrides": ("", "127.0.0.1:1"),
    "log.retention.ms": ("-1", "1", "0"),
    "log.retention.hours": ("-1", "1"),
    "log.roll.ms": ("0", "1"),
    "group.min.session.timeout.ms": ("1000", "70000"),
    "group.max.session.timeout.ms": ("2000", "80000"),
    "log.cleaner.dedupe.buffer.size": ("1048577", "134217728"),
    "socket.request.max.bytes": ("104857600",),
    "message.max.bytes": ("0", "1000000"),
}


def test_a_brokers_settings_are_checked_together_as_by_kafka(classpath: str) -> None:
    chance = random.Random(35)
    asked = []
    for _ in range(1500):
        names = chance.sample(sorted(RELATED), chance.randint(1, 6))
        asked.append({name: chance.choice(RELATED[name]) for name in names})
    theirs = said_together(classpath, [KRAFT | {"replica.socket.timeout.ms": "60000"} | one for one in asked], "broker")
    ours = []
    for one in asked:
        try:
            load_config(HERE + "".join(f"{name}={value}\n" for name, value in one.items()))
            ours.append("ok")
        except ConfigError as wrong:
            ours.append(str(wrong))
    different = [found for found in zip(asked, ours, theirs, strict=True) if (found[1] == "ok") != (found[2] == "ok")]
    assert different == []
    assert min(ours.count("ok"), sum("must not pass" in mine for mine in ours)) > 20


def test_what_alters_a_broker_is_checked_together_as_by_kafka(classpath: str) -> None:
    """Of settings that a start takes, those that are dynamic are altered: the start's rules hold then, too."""
    chance = random.Random(36)
    live = sorted(name for name in RELATED if BROKER_SETTINGS[name].live and name != "log.cleaner.dedupe.buffer.size")
    asked: list[dict[str, str]] = []
    ours: list[str] = []
    while len(asked) < 1500:
        static = {name: chance.choice(RELATED[name]) for name in chance.sample(sorted(RELATED), chance.randint(0, 3))}
        wanted = {name: chance.choice(RELATED[name]) for name in chance.sample(live, chance.randint(1, 3))}
        try:
            broker = load_config(HERE + "".join(f"{name}={value}\n" for name, value in static.items()))
        except ConfigError:
            continue
        asked.append(static | {f"+{name}": value for name, value in wanted.items()})
        steps = [Alteration(name, Operation.SET, value) for name, value in wanted.items()]
        try:
            rows = {one.name: setting_of(one, BROKER_SETTINGS, Resource.BROKER, Unknown()) for one in steps}
            after = altered({}, steps, {name: row for name, row in rows.items() if row is not None}, {})
            check_broker_settings({}, after, partial(effective_config, broker, {}, after))
            ours.append("ok")
        except Refused as wrong:
            ours.append(wrong.message)
    theirs = said_together(classpath, [KRAFT | {"replica.socket.timeout.ms": "60000"} | one for one in asked], "broker")
    different = [found for found in zip(asked, ours, theirs, strict=True) if (found[1] == "ok") != (found[2] == "ok")]
    assert different == []
    assert min(ours.count("ok"), *(sum(word in mine for mine in ours) for word in ("shuts out", "for ever"))) > 20
