"""The previous session's credentials: stored, private, and invalid in a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fleetlog.coordination.previous_session import PreviousSession


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "session.json"


def test_kept_and_forgotten(path: Path) -> None:
    previous_session = PreviousSession(path, "boot")
    assert previous_session.load() is None
    previous_session.keep(0x1234, b"\x01\xff")
    assert PreviousSession(path, "boot").load() == (0x1234, b"\x01\xff")
    assert path.stat().st_mode & 0o777 == 0o600
    previous_session.keep(5, b"b")
    assert previous_session.load() == (5, b"b")
    previous_session.forget()
    previous_session.forget()
    assert previous_session.load() is None


def test_another_boot_knows_nothing(path: Path) -> None:
    PreviousSession(path, "boot").keep(1, b"a")
    assert PreviousSession(path, "another").load() is None


def test_a_copy_says_nothing(path: Path, tmp_path: Path) -> None:
    PreviousSession(path, "boot").keep(1, b"a")
    shutil.copytree(tmp_path, tmp_path.with_name("clone"))
    assert PreviousSession(tmp_path.with_name("clone") / path.name, "boot").load() is None
    assert PreviousSession(path, "boot").load() == (1, b"a")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"identity":1}', '{"identity":["boot",0,0]}'])
def test_garbage_says_nothing(path: Path, text: str) -> None:
    path.write_text(text)
    assert PreviousSession(path, "boot").load() is None


def test_a_directory_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path) -> None:
    previous_session = PreviousSession(tmp_path / "missing" / "session.json", "boot")
    previous_session.keep(1, b"a")
    assert previous_session.load() is None
    previous_session.forget()
