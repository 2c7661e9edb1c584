"""Our tables of settings against Kafka's own: every name, type, default, bound, and whether it is dynamic."""

from __future__ import annotations

import html
import re
import subprocess

import pytest

from brokers.api.config_values import GROUP_SETTINGS
from brokers.config import BROKER_SETTINGS, TOPIC_SETTINGS
from brokers.setting_kinds import Setting

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop]

OTHER_DEFAULTS = {
    "listeners": "loopback unless asked otherwise",
    "log.cleaner.dedupe.buffer.size": "a broker takes tens of megabytes",
    "log.dir": "unset: log.dirs has a default",
    "log.dirs": "a place that survives a restart",
    "max.connections": "bounded",
    "max.connections.per.ip": "bounded",
    "node.id": "broker.id",
    "process.roles": "required there",
    "queued.max.request.bytes": "bounded",
    "socket.listen.backlog.size": "a burst of new connections waits",
    "replica.fetch.backoff.ms": "a lagging follower comes back sooner",
}
"""Where a default, or what may stand there, differs from Kafka's, and why."""
STATIC_HERE = {
    "listeners", "listener.security.protocol.map", "sasl.enabled.mechanisms", "sasl.mechanism.inter.broker.protocol",
}  # fmt: skip


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
    assert {name for name in names if not name.startswith("fleetlog.")} == set(theirs), "our own begin with fleetlog."
    for name, cells in theirs.items():
        assert TOPIC_SETTINGS[name].synonym == cells["Server Default Property"].replace("null", ""), name


def test_a_groups_settings_are_kafkas(classpath: str) -> None:
    theirs = printed(classpath, "org.apache.kafka.coordinator.group.GroupConfig")
    assert differences(theirs, GROUP_SETTINGS) == []
