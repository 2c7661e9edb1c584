"""What several tests of one server need."""

from __future__ import annotations

import pytest

from tests.support.tls_listeners import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
