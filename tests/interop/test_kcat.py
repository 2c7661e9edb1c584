"""kcat, where Debian's package is present; CI installs it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support.needs import needs, program

KCAT = program("kcat")
pytestmark = [
    pytest.mark.interop,
    needs("kcat"),
]


def _kcat(*arguments: str, text: str = "") -> str:
    assert KCAT is not None, "CI must have kcat"
    done = subprocess.run([KCAT, *arguments], input=text, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_produce_consume_list(bootstrap: str, fresh: Callable[[str], str]) -> None:
    topic = fresh("kcat")
    _kcat("-P", "-b", bootstrap, "-t", topic, "-K:", "-z", "snappy", text="a:1\nb:2\nc:3\n")
    out = _kcat("-C", "-b", bootstrap, "-t", topic, "-o", "beginning", "-e", "-q", "-f", "%k=%s;")
    assert out == "a=1;b=2;c=3;"
    assert f'topic "{topic}"' in _kcat("-L", "-b", bootstrap)
    offsets = _kcat("-Q", "-b", bootstrap, "-t", f"{topic}:0:-1")
    assert "offset 3" in offsets
