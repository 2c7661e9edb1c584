"""The files kernel on both twins: what is pinned stays open, and slices know what was cut from under them."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fleetlog._native import files_cy, files_py
from fleetlog._native.files import SliceGone

TWINS = [pytest.param(files_py, id="pure"), pytest.param(files_cy, id="cython")]


def opened(twin: Any, path: Path) -> Any:
    class File(twin.OpenFile):
        def __init__(self) -> None:
            super().__init__()
            self.path = str(path)
            self.opens = 0

        def opened(self) -> int:
            self.opens += 1
            return os.open(path, os.O_RDWR)

        def close(self) -> None:
            if self.fd >= 0 and not self.pins:
                os.close(self.fd)
                self.fd = -1

        def failure(self, wrong: OSError) -> Exception:
            return RuntimeError(wrong.errno)

        def window(self, position: int) -> tuple[str, int]:
            return "window", position

    return File()


@pytest.fixture
def content(tmp_path: Path) -> Path:
    (tmp_path / "log").write_bytes(bytes(range(100)))
    return tmp_path / "log"


@pytest.mark.parametrize("twin", TWINS)
def test_a_file_is_opened_once_and_reads_up_to_its_end(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    assert (file.fd, file.recently_used, file.opens) == (-1, False, 0)
    assert file.read(10, 5) == bytes(range(10, 15))
    assert file.read(98, 5) == bytes((98, 99))
    assert file.read(200, 5) == b""
    assert (file.opens, file.recently_used, file.fileno()) == (1, True, file.fd)
    os.close(file.fd)
    with pytest.raises(RuntimeError, match=str(errno.EBADF)):
        file.read(0, 1)


@pytest.mark.parametrize("twin", TWINS)
def test_the_last_pin_closes_a_file_that_was_removed(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    first, second = twin.FileSlice(file, 0, 10), twin.FileSlice(file, 5, 10)
    assert file.pinned
    first.retain()
    first.release()
    file.removed = True
    first.release()
    assert (file.pins, file.fd >= 0, second.read()) == (1, True, bytes(range(5, 15)))
    second.release()
    assert (file.pins, file.pinned, file.fd) == (0, False, -1)
    with pytest.raises(AssertionError, match="released more often than retained"):
        file.release()


@pytest.mark.parametrize("twin", TWINS)
def test_a_slice_that_is_forgotten_lets_the_file_go(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    piece = twin.FileSlice(file, 0, 10)
    piece.retain()
    del piece
    gc.collect()
    assert file.pins == 0
    file.close()


@pytest.mark.parametrize("twin", TWINS)
def test_a_cut_below_the_end_of_a_slice_is_reported(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    cuts = [3]
    piece = twin.FileSlice(file, 10, 20, cuts)
    cuts.append(30)
    assert piece.read() == bytes(range(10, 30))
    assert tuple(piece.part(12, 4)) == (file.fd, 12, 4, None)
    cuts.append(29)
    for use in (piece.read, piece.fileno, lambda: piece.part(10, 1)):
        with pytest.raises(SliceGone, match="20 bytes at 10 were truncated away"):
            use()
    piece.release()
    file.close()


@pytest.mark.parametrize("twin", TWINS)
def test_medium_parts_name_a_window(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    piece = twin.FileSlice(file, 0, 10)
    found = [
        piece.part(7, length).mapping
        for length in (twin.MAPPED_FROM - 1, twin.MAPPED_FROM, twin.MAPPED_BELOW - 1, twin.MAPPED_BELOW)
    ]
    assert found == [None, ("window", 7), ("window", 7), None]
    piece.release()
    file.close()


@pytest.mark.parametrize("twin", TWINS)
def test_a_slice_that_ends_behind_its_file_is_gone(twin: ModuleType, content: Path) -> None:
    file = opened(twin, content)
    piece = twin.FileSlice(file, 95, 10)
    assert repr(piece) == f"FileSlice({str(content)!r}, 95, 10)"
    with pytest.raises(SliceGone):
        piece.read()
    piece.release()
    file.close()
