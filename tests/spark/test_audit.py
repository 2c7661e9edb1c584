"""The example that finds who deleted a topic, over a real audit topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from examples import audit
from tests.support.audited import ADMIN, ADMIN_PASSWORD, AuditReader, audited_fleet, client, of_api
from tests.support.fleet import Fleet
from tests.support.secured import SCRAM_MODULE, USER, confluent, jaas

pytestmark = [pytest.mark.spark, pytest.mark.zookeeper, pytest.mark.xdist_group("spark")]


@pytest.fixture
def fleet(tmp_path: Any) -> Iterator[Fleet]:
    found = audited_fleet(tmp_path, 1)
    try:
        yield found.start()
    finally:
        found.close()


def test_it_finds_who_deleted_a_topic(
    spark: Any, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admin = AdminClient(client(fleet))
    for name in ("orders", "other"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(20)
    alice = AdminClient(client(fleet, confluent("SCRAM-SHA-256"), **{"client.id": "notebook"}))
    with pytest.raises(KafkaException):
        alice.delete_topics(["orders"])["orders"].result(20)
    for name in ("orders", "other"):
        admin.delete_topics([name])[name].result(20)
    reader = AuditReader(fleet)
    reader.wait(of_api("DeleteTopics", "other"), "the last deletion")
    reader.close()
    options = {
        "kafka.bootstrap.servers": fleet.bootstrap,
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": jaas(SCRAM_MODULE, username=ADMIN, password=ADMIN_PASSWORD),
    }
    refused, done = audit.deletions(spark, "orders", options).collect()
    assert (refused.user, refused.client, refused.result) == (USER, "notebook", "TOPIC_AUTHORIZATION_FAILED")
    assert (done.user, done.address, done.result) == (ADMIN, "127.0.0.1", "NONE")
    assert refused.time <= done.time

    file = tmp_path / "admin.properties"
    lines = (f"{name.removeprefix('kafka.')}={value}\n" for name, value in options.items())
    file.write_text("# as for Kafka's own tools\n" + "".join(lines))
    command = ["audit", "orders", "--bootstrap", fleet.bootstrap, "--command-config", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    audit.main()
    shown = capsys.readouterr().out
    rows = [line for line in shown.splitlines() if "127.0.0.1" in line]
    assert [USER in rows[0], ADMIN in rows[1], len(rows)] == [True, True, 2], shown
    assert ADMIN_PASSWORD not in shown
