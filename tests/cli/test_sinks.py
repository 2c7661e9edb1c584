"""``fleetlog sinks`` on a fleet: fences are listed, described and moved, with the query id that they name."""

from __future__ import annotations

import json
import uuid
from typing import Any

from click.testing import CliRunner

from fleetlog.brokers.cli.main import cli
from fleetlog.spark.client.connections import Client
from fleetlog.spark.client.settings import kafka_python_settings
from fleetlog.spark.sink.batch_transactions import BatchTransactions
from tests.support.fleet import Fleet


def run(fleet: Fleet, *arguments: str) -> Any:
    return CliRunner().invoke(cli, [*arguments, "--bootstrap", fleet.bootstrap, "--json"], prog_name="fleetlog")


def test_a_fence_is_listed_described_and_moved(fleet: Fleet) -> None:
    name = f"sink-{uuid.uuid4().hex[:8]}"
    client = Client(kafka_python_settings({"bootstrap.servers": fleet.bootstrap}))
    sink = BatchTransactions(client, name)
    sink.commit(sink.begin(60_000), "query-1", 7, "", [])
    listed = run(fleet, "sinks", "list")
    assert listed.exit_code == 0, listed.output
    (row,) = (row for row in json.loads(listed.stdout) if row["sink"] == name)
    assert (row["query"], row["batch"]) == ("query-1", 7)
    sink.enlist(sink.begin(60_000), 3)
    described = run(fleet, "sinks", "describe", name)
    (row,) = json.loads(described.stdout)
    assert (row["state"], row["members"], row["batch"]) == ("Ongoing", 3, 7)
    open_batch = run(fleet, "sinks", "reset", name, "query-1")
    assert open_batch.exit_code != 0
    assert "stop the query first" in open_batch.stderr
    batch = sink.begin(60_000)
    wrong = run(fleet, "sinks", "reset", name, "query-2")
    assert "query-1" in wrong.stderr
    moved = run(fleet, "sinks", "reset", name, "query-1", "--query", "query-2", "--batch", "0")
    assert moved.exit_code == 0, moved.output
    batch = sink.begin(60_000)
    assert batch.fence is not None
    assert (batch.fence.query_id, batch.fence.batch_id) == ("query-2", 0)
    assert not sink.commit(batch, "query-2", 1, "", [])
    unknown = run(fleet, "sinks", "describe", "unknown-sink")
    assert unknown.exit_code != 0
    assert "sink unknown-sink: there is no such sink" in unknown.stderr
    client.close()
