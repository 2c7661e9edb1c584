"""Folders in the directory for temporary files, which another user may have made first."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetlog._native import temporary
from fleetlog._native.temporary import own_directory
from fleetlog.brokers.cli.dev_fleet import reserved
from fleetlog.brokers.cli.dev_state import DevError
from fleetlog.coordination import ports
from fleetlog.spark.java import NoJava, shim_home, worker_python
from fleetlog.spark.sink.events import BatchFigures
from fleetlog.spark.sink.handover import close_handover, hand_over_figures, open_handover, take_over_figures

FIGURES = BatchFigures("committed", 1)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files, as a system has it: anybody may make files, and move their own."""
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o1777)
    monkeypatch.setattr(temporary.tempfile, "gettempdir", lambda: str(directory))
    return directory


def in_a_folder_of_others(own: Path, target: Path) -> None:
    own.mkdir()
    own.chmod(0o777)


def behind_a_link(own: Path, target: Path) -> None:
    target.mkdir(mode=0o700)
    own.symlink_to(target)


def behind_a_link_to_nothing(own: Path, target: Path) -> None:
    own.symlink_to(target)


def in_a_file(own: Path, target: Path) -> None:
    own.write_text("")


def in_a_folder_that_others_read(own: Path, target: Path) -> None:
    own.mkdir(mode=0o755)


TRAPS = (in_a_folder_of_others, behind_a_link, behind_a_link_to_nothing, in_a_file, in_a_folder_that_others_read)
Trap = Callable[[Path, Path], None]


def test_it_is_the_users_own(shared: Path) -> None:
    made = own_directory("java")
    assert made == own_directory("java") == shared / f"fleetlog-{os.getuid()}" / "java"
    assert [path.stat().st_mode & 0o777 for path in (made, made.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("trap", TRAPS)
def test_what_others_may_have_made_is_used_by_nothing(shared: Path, tmp_path: Path, trap: Trap) -> None:
    own, target = shared / f"fleetlog-{os.getuid()}", tmp_path / "target"
    trap(own, target)
    with pytest.raises(PermissionError, match=f"{re.escape(str(own))} is not used, since .*set TMPDIR"):
        own_directory("java")
    with pytest.raises(NoJava, match=r"is not used, since .*JAVA_HOME"):
        shim_home(Path("/usr/bin/java"))
    with pytest.raises(PermissionError, match="is not used"):
        worker_python("/opt/my python/bin/python")
    with pytest.raises(DevError, match="is not used"), reserved([9092]):
        raise AssertionError("nothing keeps the port")
    assert ports._Claims().take(10_000), "without a shared file claims hold in the process"
    open_handover("query")
    hand_over_figures("query", 7, FIGURES)
    assert take_over_figures("query", 7) is None
    close_handover("query")
    assert not target.exists() or list(target.iterdir()) == []
    assert not own.is_dir() or list(own.iterdir()) == []


def test_the_folder_of_another_user_is_not_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.getuid()
    (shared / f"fleetlog-{owner + 1}").mkdir(mode=0o700)
    monkeypatch.setattr(temporary.os, "getuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match=f"it belongs to user {owner}: remove it"):
        own_directory("java")


def test_it_is_looked_at_at_each_use(shared: Path) -> None:
    """Figures that another user put in its place are not taken, and nothing is written through a link."""
    open_handover("query")
    hand_over_figures("query", 7, FIGURES)
    assert take_over_figures("query", 7) == FIGURES
    own, precious = shared / f"fleetlog-{os.getuid()}", shared / "precious"
    own.rename(shared / "moved")
    precious.write_text("precious")
    swapped = own / "figures" / "query"
    swapped.mkdir(parents=True)
    own.chmod(0o777)
    (swapped / "listener").write_text(str(os.getpid()))
    (swapped / "7.part").symlink_to(precious)
    (swapped / "8").write_text('["committed", 5, 0, 0, 0, 0]')
    hand_over_figures("query", 7, FIGURES)
    assert take_over_figures("query", 8) is None
    close_handover("query")
    assert precious.read_text() == "precious"
    assert swapped.exists()


def test_a_directory_whose_files_anybody_may_replace_holds_none(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(PermissionError, match="lacks the sticky bit"):
        own_directory("java")
