"""The table of Avro's verdicts is what Avro's own library says of the pairs today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schemas.avro_pairs import TABLE, verdicts

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.timeout(600)]


def test_the_table_is_what_the_library_says(tmp_path: Path) -> None:
    lines = TABLE.read_text("utf-8").splitlines()
    texts = [(old, new) for _, _, old, new in (line.split("\t") for line in lines)]
    assert verdicts(texts, tmp_path) == lines
