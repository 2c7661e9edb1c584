"""The archive for Spark's clusters: it runs where nothing is installed, and wherever it is unpacked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest
from click.testing import CliRunner

from fleetlog import _native
from fleetlog.brokers.cli.main import cli
from fleetlog.spark import packing
from fleetlog.spark.java import spark_environment
from tests.spark.conftest import Cluster
from tests.spark.matrix.sessions import Standalone
from tests.spark.sink.job import committed
from tests.support.needs import having

pytestmark = having("compiled kernels", _native.IMPLEMENTATION != "pure")

BARE = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
IMPORTS = """
import json, sys
import click, lz4.frame, numpy, pandas, pyarrow, snappy, sqlite3, ssl, zstandard
import fleetlog.spark.client.connections
from fleetlog import _native
print(json.dumps([sys.prefix, _native.IMPLEMENTATION, fleetlog.spark.__file__, [p for p in sys.path if p]]))
"""

JOB = """
import sys
import pyarrow as pa
from pyspark.sql import SparkSession
from fleetlog.spark import write_stream
bootstrap, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()

def where(rows):
    from fleetlog import _native
    yield pa.record_batch([pa.array([f"{sys.executable} {_native.IMPLEMENTATION}"])], ["found"])

for (found,) in set(spark.range(0, 4, 1, 4).mapInArrow(where, "found string").collect()):
    print("task:", found)
rows = (spark.readStream.format("fleetlog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    .option("startingOffsets", "earliest").load().select("value"))
query = write_stream(rows, bootstrap_servers=bootstrap, sink_id=target, topic=target, checkpoint_location=checkpoint,
    trigger={"availableNow": True}, by_format=True)
query.awaitTermination()
spark.stop()
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Made by the command, which prints how to submit with it."""
    path = tmp_path_factory.mktemp("packed") / "fleetlog-spark.tar.gz"
    done = CliRunner().invoke(cli, ["spark", "pack", str(path), "--add", "click"])
    assert done.exit_code == 0, done.output
    assert f"mkdir -p fleetlog && tar xzf {path} -C fleetlog\n" in done.output
    assert f"PYSPARK_PYTHON=./fleetlog/bin/python spark-submit --archives {path}#fleetlog JOB.py" in done.output
    yield path
    path.unlink()


def unpacked(archive: Path, directory: Path) -> Path:
    directory.mkdir(parents=True)
    subprocess.run(["tar", "xzf", str(archive), "-C", str(directory)], check=True)
    return directory


def test_it_runs_wherever_it_is_unpacked(archive: Path, tmp_path: Path) -> None:
    first = unpacked(archive, tmp_path / "some where" / "first")
    place = tmp_path / "another"
    shutil.move(first, place)
    command = [str(place / "bin" / "python"), "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=BARE)
    prefix, kernels, module, path = json.loads(done.stdout)
    assert (prefix, kernels) == (str(place), "cython")
    names = [name for folder in Path(module).parents[1:3] for name in os.listdir(folder)]
    assert not {"pyspark", "kazoo", "brokers"} & set(names)
    assert all(entry.startswith(f"{place}/") for entry in (module, *path)), path


def test_its_python_finds_the_data_sources_with_sparks_own_pyspark(archive: Path, tmp_path: Path) -> None:
    """Spark puts its PySpark on the path of executors, and looks for modules named pyspark_*."""
    import pyspark

    place = unpacked(archive, tmp_path / "fleetlog")
    libraries = sorted(map(str, (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")))
    look = """
import pkgutil, importlib
names = [module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")]
print(sorted(importlib.import_module(name).DefaultSource.name() for name in names))
import fleetlog.spark.sink.writer, fleetlog.spark.sink.starting, fleetlog.spark.functions.avro, fastavro
"""
    command = [str(place / "bin" / "python"), "-c", look]
    env = {**BARE, "PYTHONPATH": os.pathsep.join(libraries)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env)
    assert done.stdout == "['fleetlog', 'fleetlog_segments']\n", done.stderr


def test_what_can_not_be_packed_says_why(tmp_path: Path) -> None:
    with pytest.raises(packing.PackError, match="package no-such-package is not installed: pip install it"):
        packing.write_archive(tmp_path / "x.tar.gz", ["no-such-package"])
    command = [sys.executable, "-m", "fleetlog.brokers.cli.main", "spark", "pack", str(tmp_path / "y.tar.gz")]
    env = {**os.environ, "FLEETLOG_NATIVE": "pure"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "Error: the kernels are not compiled here (pure: FLEETLOG_NATIVE=pure)" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fault", ["packages elsewhere", "no standard library", "no program"])
def test_an_archive_whose_python_does_not_run_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Packages where this Python does not look for them, as those of Debian's were; what was there before stays."""
    target = tmp_path / "x.tar.gz"
    target.write_text("an earlier one")
    if fault == "packages elsewhere":
        monkeypatch.setattr(packing, "_place_of_packages", lambda: PurePosixPath("lib/elsewhere"))
    elif fault == "no standard library":
        monkeypatch.setattr(packing, "_SPARE", packing._SPARE | {"encodings"})
    else:
        monkeypatch.setattr(packing, "_PYTHON", "#!/nonexistent\n{name}")
    done = CliRunner().invoke(cli, ["spark", "pack", str(target)])
    assert done.exit_code == 1
    assert re.search(
        "the archive's own Python, .*, does not run where it is unpacked: .*pack with another", done.output
    )
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier one"]


def test_packages_are_where_debians_python_looks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its virtual environments it looks for site-packages, too."""
    places = ["lib/python3.11/site-packages", "local/lib/python3.11/dist-packages", "lib/python3/dist-packages"]

    def looked_for(prefixes: list[str]) -> list[str]:
        return [f"{prefixes[0]}{place}" for place in (*places, "lib/python3.11/dist-packages")]

    monkeypatch.setattr(packing.site, "getsitepackages", looked_for)
    assert packing._place_of_packages() == PurePosixPath("lib/python3.11/dist-packages")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_a_cluster_whose_python_has_nothing_installed_runs_a_job(
    archive: Path, cluster: Cluster, tmp_path: Path
) -> None:
    """As the command prints it: two workers, and a driver, that know no other Python than the archive's."""
    import pyspark

    source, target = cluster.topic(4), cluster.topic(2)
    cluster.send(source, [{"value": f"v{n}", "partition": n % 4} for n in range(40)])
    unpacked(archive, tmp_path / "fleetlog")
    (tmp_path / "job.py").write_text(JOB)
    home = Path(pyspark.__file__).parent
    java = {name: value for name, value in spark_environment().items() if name == "JAVA_HOME"}
    bare = {**BARE, **java, "SPARK_HOME": str(home)}
    spark = Standalone(tmp_path / "cluster", bare)
    try:
        command = [
            f"{home}/bin/spark-submit", "--master", spark.master, "--archives", f"{archive}#fleetlog",
            "--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.driver.bindAddress=127.0.0.1",
            "--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false",
            "--conf", "spark.fleetlog.native=required",
            "job.py", cluster.bootstrap, source, target, str(tmp_path / "checkpoint"),
        ]  # fmt: skip
        env = {**bare, "PYSPARK_PYTHON": "./fleetlog/bin/python", "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=env, timeout=600)
        assert done.returncode == 0, done.stderr[-5000:]
    finally:
        spark.close()
    tasks = {line.removeprefix("task: ") for line in done.stdout.splitlines() if line.startswith("task: ")}
    assert tasks
    assert all(f"{tmp_path}/cluster/work-127.0.0." in task and task.endswith(" cython") for task in tasks)
    assert committed(cluster, target, 40) == sorted(f"v{n}" for n in range(40))
