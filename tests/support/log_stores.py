"""A broker's logs on one directory, and one log in it."""

from __future__ import annotations

from fleetlog.brokers.config import BrokerConfig
from fleetlog.brokers.log import Log, LogStore, RealDisk
from tests.support.clocks import ManualClock
from tests.support.logs import DEFAULTS, TP


def started(path, disk=None) -> LogStore:
    config = BrokerConfig(broker_id=3, zookeeper_connect="z:1", log_dirs=(str(path),))
    store = LogStore(config, disk or RealDisk(), ManualClock(), cluster_id="cluster-1")
    store.load()
    return store


def made(store: LogStore) -> Log:
    return store.create(TP, None, DEFAULTS)
