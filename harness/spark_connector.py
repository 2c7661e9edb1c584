"""Spark's own Kafka connector, by Maven: the newest set of jars that Maven Central has whole.

The connector of PySpark's own version is asked for first. Central has gaps, so an older one may have to serve; which
one it was stands in the results.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
TARGET = Path(__file__).parents[1] / "build" / "spark"
POM = Path(__file__).with_name("spark.pom.xml")
KNOWN = (("4.2.0", "4.0.0"),)
"""Connector and token provider that were found together and run on the PySpark of today."""
WANTED = ("spark-sql-kafka-0-10_", "spark-token-provider-kafka-0-10_", "kafka-clients-", "commons-pool2-")
"""What PySpark has not itself."""
# Spark's parent pom names repositories that may not answer; everything wanted is on Central.
MIRROR = """<settings><mirrors><mirror><id>central-only</id><mirrorOf>*</mirrorOf>
<url>https://repo.maven.apache.org/maven2</url></mirror></mirrors></settings>"""


class NoConnector(Exception):
    """Maven is not installed, or it can't fetch the connector; the message says which."""


def connector() -> tuple[str, str]:
    """(jars with commas between them, what they are). Raises NoConnector, saying what to do."""
    import pyspark

    problem = ""
    for versions in ((pyspark.__version__, pyspark.__version__), *KNOWN):
        cached = TARGET / f"connector-{versions[0]}"
        if not cached.exists():
            problem = _resolve(cached, *versions)
        if cached.exists():
            jars = [jar for jar in cached.read_text().strip().split(":") if Path(jar).name.startswith(WANTED)]
            if len(jars) == len(WANTED) and all(Path(jar).exists() for jar in jars):
                return ",".join(jars), ", ".join(sorted(Path(jar).stem for jar in jars))
            cached.unlink()
    raise NoConnector(f"Spark's own connector can't be had: {problem}")


def _resolve(target: Path, version: str, provider: str) -> str:
    """Let Maven write the class path to ``target``; why it could not, else nothing."""
    if shutil.which("mvn") is None:
        return "install Maven, which fetches it"
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="maven-") as name:
        settings = Path(name) / "settings.xml"
        settings.write_text(MIRROR)
        command = ["mvn", "-q", "-B", "-s", str(settings), "-f", str(POM), GOAL, f"-Dmdep.outputFile={target}"]
        command += [f"-Dconnector={version}", f"-Dtoken.provider={provider}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 0 and target.exists():
        return ""
    found = re.search(r"ERROR\] (.+)", done.stdout + done.stderr)
    return found.group(1)[:400] if found else f"Maven ended with {done.returncode}"
