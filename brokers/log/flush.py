"""What makes a log durable: fsync of what was appended, in the background or at once, and the end of a clean stop."""

from __future__ import annotations

from fleetlog.brokers.log.disk.checkpoints import LEADER_EPOCH_CHECKPOINT
from fleetlog.brokers.log.disk.failures import DiskFull
from fleetlog.brokers.log.producers.snapshots import snapshot_path
from fleetlog.brokers.log.state import LogState, guarded


class Flusher:
    """The part of a log that makes it durable."""

    __slots__ = ("_log",)

    def __init__(self, log: LogState) -> None:
        self._log = log

    @guarded
    def flush(self) -> None:
        """fsync everything above the recovery point, then raise it to the log's end. Raises DiskFull, LogOffline.

        Without room for the leader epochs the point stays: recovery makes them anew from the batches above it.
        """
        log = self._log
        end = log.log_end_offset
        if log.recovery_point < end:
            for segment in log.segments.changed_since(log.recovery_point):
                if segment.size:
                    segment.sync()
                    if segment.took_names():  # a start believes that an index without a file has no entries
                        log.dirty_names = True
        if log.epochs.dirty or not log.epochs_durable:
            log.save_epochs(durable=True)
        if log.dirty_names:
            log.disk.sync_directory(log.directory)
            log.dirty_names = False
        if not log.epochs.behind:  # else there was no room: a log that ends at the recovery point is not scanned
            log.recovery_point = end
        log.unflushed_since_ms = None

    @guarded
    def begin_flush(self, *, active: bool) -> None:
        """Start to flush in the background: closed segments, and with ``active`` the active one too."""
        log = self._log
        if log.pending_flush is not None:
            return
        end = log.log_end_offset if active else log.segments.active.base_offset
        paths: list[str] = []
        for segment in log.segments.changed_since(log.recovery_point):
            if segment.size and segment.base_offset < end:
                segment.flush_indexes()
                paths += segment.paths()
        if log.epochs.dirty or not log.epochs_durable:
            log.save_epochs()
            paths.append(f"{log.directory}/{LEADER_EPOCH_CHECKPOINT}")
        paths.append(log.directory)
        log.dirty_names = False
        log.unflushed_since_ms = None if active else log.unflushed_since_ms
        log.pending_flush = (log.disk.sync_later(paths), end, log.cuts, log.epochs.saves)

    @guarded
    def end_flush(self) -> None:
        """Take over a background flush that is done. Raises DiskFull or LogOffline if it failed."""
        log = self._log
        if log.pending_flush is None or not log.pending_flush[0].done:
            return
        pending, end, cuts, saves = log.pending_flush
        log.pending_flush = None
        if pending.error is not None:
            log.dirty_names = True
        elif cuts == log.cuts:
            log.durable_epochs = saves
            if not log.epochs.behind:  # else there was no room for them: recovery makes them anew above the point
                log.recovery_point = max(log.recovery_point, end)
        if log.recovery_point < min(end, log.log_end_offset) and log.unflushed_since_ms is None:
            log.unflushed_since_ms = log.last_now_ms  # to be tried again
        if pending.error is not None:
            raise pending.error

    @guarded
    def settle(self) -> bool:
        """Write everything for a clean stop, but don't wait for the disk: the caller makes it durable afterwards.

        Returns whether there was anything to write.
        """
        log = self._log
        if log.settled and not log.dirty_names and not log.epochs.behind and log.epochs_durable:
            return False
        if log.segments.active.size:
            log.segments.active.seal()
        for segment in log.segments.changed_since(log.recovery_point):
            segment.flush_indexes()
        if log.epochs.behind:
            log.save_epochs()
        if log.epochs.behind:
            raise DiskFull(f"{log.directory}/{LEADER_EPOCH_CHECKPOINT}", "no room for the leader epochs")
        path = snapshot_path(log.directory, log.log_end_offset)
        if log.producers.entries or log.producers.positions is not None:
            log.disk.replace(path, log.producers.to_snapshot(), durable=False)
        else:
            log.disk.remove(path)
        return True

    @guarded
    def trim_if_idle(self, since_ms: int) -> None:
        """Give back the room ahead of the active segment if nothing was appended since then."""
        log = self._log
        if log.last_now_ms < since_ms:
            log.segments.active.log.trim()
