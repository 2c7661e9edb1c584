"""The log: a partition's records in Kafka's directory format, and everything that can be said from them.

``Log`` is one partition, ``LogStore`` all of a broker's. A client's mistakes come back in an ``AppendInfo``; a failing
disk as ``KAFKA_STORAGE_ERROR`` there and as ``LogOffline`` everywhere else.
"""

from fleetlog._native.batch import Admitted
from fleetlog._native.files import FileSlice
from fleetlog.brokers.log.admission import Terms, guards_of
from fleetlog.brokers.log.append import Appended
from fleetlog.brokers.log.disk.failures import (
    DirectoryInUse,
    DiskError,
    DiskFailed,
    DiskFull,
    ForeignDirectory,
    LogOffline,
    OffsetOutOfRange,
    SliceGone,
    StoreRefused,
)
from fleetlog.brokers.log.disk.files import DiskPort, RealDisk, read_if_cached, read_in
from fleetlog.brokers.log.log import Log
from fleetlog.brokers.log.producers.entries import ProducerEntry
from fleetlog.brokers.log.producers.state import Origin, ProducerState, VerificationGuard
from fleetlog.brokers.log.recovery_report import RecoveryReport, StoreReport
from fleetlog.brokers.log.state import AbortedTransaction, AppendInfo, LogSettings, ReadResult
from fleetlog.brokers.log.store import LogStore
from fleetlog.brokers.log.validation import MAX_EXPLAINED_RECORDS

__all__ = [
    "MAX_EXPLAINED_RECORDS",
    "AbortedTransaction",
    "Admitted",
    "AppendInfo",
    "Appended",
    "DirectoryInUse",
    "DiskError",
    "DiskFailed",
    "DiskFull",
    "DiskPort",
    "FileSlice",
    "ForeignDirectory",
    "Log",
    "LogOffline",
    "LogSettings",
    "LogStore",
    "OffsetOutOfRange",
    "Origin",
    "ProducerEntry",
    "ProducerState",
    "ReadResult",
    "RealDisk",
    "RecoveryReport",
    "SliceGone",
    "StoreRefused",
    "StoreReport",
    "Terms",
    "VerificationGuard",
    "guards_of",
    "read_if_cached",
    "read_in",
]
