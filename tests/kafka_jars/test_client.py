"""A Java client that is older than the jars that the others have: it administrates, produces and consumes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kafka_jars.programs import fetched_jars
from tests.support.fleet import Fleet

pytestmark = [pytest.mark.slow, pytest.mark.kafka_jars, pytest.mark.interop, pytest.mark.timeout(600)]

PRINTED = """\
version 4.1.1
partitions 3
classic 91 values, each once: true, with a header: 90 committed {0=32, 1=32, 2=30}
consumer 91 values, each once: true, with a header: 90 committed {0=32, 1=32, 2=30}
retention.ms 1234567
offset 10
offset 32
brokers 3
group Classic Empty
group Consumer Empty
deleted
"""


def test_an_older_client_does_all_that_it_can(fleet: Fleet, tmp_path: Path) -> None:
    classpath = fetched_jars("client.xml", tmp_path / "classpath")
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    program = ["-cp", classpath, str(Path(__file__).parent / "Client.java"), fleet.bootstrap, "older"]
    done = subprocess.run([*command, *program], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout == PRINTED
