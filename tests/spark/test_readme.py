"""The README's query, run as it is printed: only address, topics and checkpoint are this test's."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.readme import snippets
from tests.spark.conftest import run_until
from tests.spark.sink.job import committed

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]  # never two Sparks side by side


def test_the_query_copies_a_topic(spark: Any, cluster: Any, tmp_path: Path) -> None:
    (snippet,) = snippets("Spark", "python")
    name = f"readme-{uuid.uuid4().hex[:8]}"
    for printed, own in {
        "127.0.0.1:9092": cluster.bootstrap,
        '"flights"': f'"{name}"',
        "flights-copy": f"{name}-copy",
        "/tmp/": f"{tmp_path}/",
    }.items():
        assert printed in snippet
        snippet = snippet.replace(printed, own)
    copy = cluster.topic(name=f"{name}-copy")
    cluster.topic(name=name)
    cluster.send(name, [{"key": b"k", "value": b"v%d" % i} for i in range(5)])

    def start() -> Any:
        names: dict[str, Any] = {"spark": spark}
        exec(snippet, names)
        return names["query"]

    run_until(start, lambda query: query.processAllAvailable()).stop()
    assert committed(cluster, copy, 5) == [f"v{i}" for i in range(5)]
