"""Whoever selects finds low descriptors, however many a worker's tests have left open."""

from __future__ import annotations

import os
import select
import socket

from tests.support import low_descriptors

MANY = 1_100


def test_what_is_opened_meanwhile_can_be_selected() -> None:
    low_descriptors.keep()
    left = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    try:
        with socket.socket() as high:
            assert high.fileno() > 1_023
        with low_descriptors.released(), socket.socket() as low:
            assert select.select([low], [], [], 0) is not None
    finally:
        for descriptor in left:
            os.close(descriptor)
