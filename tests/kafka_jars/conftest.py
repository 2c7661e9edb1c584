"""Apache Kafka 4.4.0's own jars, by the Maven coordinates of ``pom.xml``; those of Connect by ``connect.xml``.

These tests are marked ``kafka_jars`` and no part of ``make test``, which needs PyPI only; ``make test-jars`` (CI runs
it) fetches the jars and fails when it can't. FLEETLOG_KAFKA_JARS may hold a class path instead.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.kafka_jars.programs import fetched_jars, kafka_classpath
from tests.support.fleet import Fleet


@pytest.fixture(scope="session")
def classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    return kafka_classpath(tmp_path_factory.mktemp("jars") / "classpath")


@pytest.fixture(scope="session")
def connect_classpath(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fetched_jars("connect.xml", tmp_path_factory.mktemp("jars") / "classpath")


class Tools:
    """Kafka's command line tools against a fleet: ``tools("org.apache.kafka.tools.TopicCommand", "--list")``."""

    def __init__(self, classpath: str, fleet: Fleet) -> None:
        self.classpath = classpath
        self.bootstrap = fleet.bootstrap
        self.properties: dict[str, str] = {}
        """Of the JVM."""

    def __call__(self, name: str, *arguments: str, text: str = "", bootstrap: bool = True, code: int = 0) -> str:
        """Run a tool to its end, which must be the exit code ``code``; what it printed, and its errors unless 0."""
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        command += [f"-D{key}={value}" for key, value in self.properties.items()]
        command += ["-cp", self.classpath, name]
        done = subprocess.run(
            [*command, *(("--bootstrap-server", self.bootstrap) if bootstrap else ()), *arguments],
            input=text, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{name}: {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + (done.stderr if code else "")


@pytest.fixture(scope="session")
def tools(classpath: str, fleet: Fleet) -> Tools:
    return Tools(classpath, fleet)
