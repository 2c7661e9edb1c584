from __future__ import annotations

from pathlib import Path

import pytest

from tests.replication.trio import Trio


@pytest.fixture
def trio(tmp_path: Path) -> Trio:
    return Trio(tmp_path)
