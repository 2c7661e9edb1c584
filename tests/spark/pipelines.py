"""The example of a declarative pipeline, run by ``spark-pipelines`` on any PySpark, and killed.

    python -m tests.spark.pipelines run --spec ...

is ``spark-pipelines`` with a Java, the Python that runs this, and this directory's package.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from tests.spark.processes import ROOT, SUBMIT, SparkProcess

EXAMPLE = ROOT / "examples" / "pipeline"
HELD = """from pyspark.sql.functions import udf
    from pyspark.sql.types import BooleanType
    import time
    return orders.where(udf(lambda _: time.sleep(600) or True, BooleanType())("key"))"""
"""Instead of the flow's ``return orders``: no row comes through. The type in words would be refused in a flow."""
STARTS = 8
"""Of a run whose Python worker does not call back in the ten seconds that Spark gives it."""


class Pipeline:
    """A copy of the example between two topics, with a flow of its own. ``python``: one whose PySpark has pipelines."""

    def __init__(self, bootstrap: str, source: str, target: str, directory: Path, python: str = sys.executable) -> None:
        self.flow = f"flow_{uuid.uuid4().hex[:8]}"
        self.checkpoints = directory / "storage" / "_checkpoints" / "orders_upper" / self.flow
        self._source, self._python, self._runs = source, python, 0
        self._directory, self._project = directory, directory / "pipeline"
        shutil.copytree(EXAMPLE, self._project, ignore=shutil.ignore_patterns("__pycache__"))
        for name, before, after in (
            ("spark-pipeline.yml", "/tmp/fleetlog-pipeline", str(directory / "storage")),
            ("spark-pipeline.yml", "127.0.0.1:9092", bootstrap),
            ("transformations/orders.py", '"orders-upper"', f'"{target}"'),
            ("transformations/orders.py", '"orders"', f'"{source}"'),
            ("transformations/orders.py", "to_orders_upper", self.flow),
        ):
            self.edit(name, before, after)

    def edit(self, name: str, before: str, after: str) -> None:
        """Put a text in another's place, in one of its files."""
        text = (self._project / name).read_text()
        assert before in text, (name, before)
        (self._project / name).write_text(text.replace(before, after))

    def _start(self, more: tuple[str, ...]) -> SparkProcess:
        self._runs += 1
        conf = SUBMIT[SUBMIT.index("--conf") :]  # the command's master is Spark's own
        spec = ["--spec", str(self._project / "spark-pipeline.yml")]
        command = [self._python, "-m", "tests.spark.pipelines", "run", *spec, *more, *conf]
        return SparkProcess(command, self._directory / f"run-{self._runs}.log")

    def run(self, *more: str, until: str = "") -> SparkProcess:
        """To its end, or to what it says, when it is killed. Spark's Python worker may start too late: then again."""
        for _ in range(STARTS):
            process = self._start(more)
            try:
                if process.wait(until) or process.exit_code == 0 or not process.was_too_slow:
                    return process
            finally:
                process.kill()
        raise AssertionError(f"too slow {STARTS} times, see {process.log_file}")

    def run_again_after_a_kill(self, batch: int) -> None:
        """Kill a run when a batch is committed, as before Spark's note of it, and run it again to its end."""
        first = self.run(until=f"batch {batch}: committed")
        assert f"batch {batch}: committed" in first.log(), first.log()[-4000:]
        for note in (self.checkpoints / "0" / "commits").glob(f"*{batch}*"):
            note.unlink()  # the kill may not have been in time for it
        again = self.run()
        assert again.exit_code == 0, again.log()[-4000:]
        assert f"batch {batch}: skipped, it was committed before" in again.log()

    def run_again_after_a_kill_in_its_first_batch(self, starts: dict[str, int], meanwhile: Callable[[], None]) -> None:
        """Kill a run whose first batch is planned and waits in a function, do something, and run it again to its end.

        ``starts``: starting offsets of the source's partitions, with records for the first batch.
        """
        flow = "transformations/orders.py"
        self.edit(flow, '"earliest"', repr(json.dumps({self._source: starts})))
        self.edit(flow, "return orders", HELD)
        first = self._killed_while_held()
        assert (self.checkpoints / "0" / "offsets" / "0").exists(), first.log()[-4000:]
        assert not list((self.checkpoints / "0" / "commits").glob("[0-9]*")), "it was held"
        meanwhile()
        self.edit(flow, HELD, "return orders")
        again = self.run()
        assert again.exit_code == 0, again.log()[-4000:]
        assert "batch 0: committed" in again.log()

    def _killed_while_held(self) -> SparkProcess:
        """A run that was killed when it had planned its first batch, or ended before that."""
        for _ in range(STARTS):
            process = self._start(())
            planned = self.checkpoints / "0" / "offsets" / "0"
            try:
                process.wait_for(planned)
            finally:
                process.kill()
            if planned.exists() or not process.was_too_slow:
                return process
        raise AssertionError(f"too slow {STARTS} times, see {process.log_file}")


def main() -> None:
    """Become the command of this Python's PySpark."""
    import pyspark

    from fleetlog.spark import spark_environment

    of_another = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_SUBMIT_ARGS")
    environ = spark_environment({name: value for name, value in os.environ.items() if name not in of_another})
    program = str(Path(str(pyspark.__file__)).parent / "bin" / "spark-pipelines")
    os.execve(program, [program, *sys.argv[1:]], environ)


if __name__ == "__main__":
    main()
