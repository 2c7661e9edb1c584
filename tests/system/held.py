"""A broker whose loop can be held: ``python -m tests.system.held broker FILE``, for tests of the threads around a loop.

At SIGUSR1 the loop stands still for as long as a file exists that is called as the configuration file is, but for
``.hold`` at its end. Its threads go on, as in a computation that takes too long; SIGSTOP would stop these, too. Before
the broker serves the signal is ignored.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from fleetlog.brokers import app
from fleetlog.brokers.cli.main import main

HOLD = Path(sys.argv[2]).with_suffix(".hold")


def hold_the_loop() -> None:
    while HOLD.exists():
        time.sleep(0.01)


class HeldBroker(app.Broker):
    """A broker that listens to SIGUSR1."""

    async def start(self) -> None:
        await super().start()
        self._loop.add_signal_handler(signal.SIGUSR1, hold_the_loop)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    app.Broker = HeldBroker  # type: ignore[misc]
    main()
