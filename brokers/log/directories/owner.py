"""The broker and cluster that a log directory belongs to, by its ``meta.properties`` (Kafka's file), and those it had.

A directory that was there at the last start or stop and is not among ``log.dirs`` any more cannot say so. So each clean
stop names all directories, in each of them, and so does the registration in ZooKeeper, which a crash leaves, too.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from fleetlog.brokers.log.directories.directories import PARTITION_DIRECTORY, LogDirectory
from fleetlog.brokers.log.disk import checkpoints
from fleetlog.brokers.log.disk.checkpoints import CleanStop, DamagedFile
from fleetlog.brokers.log.disk.failures import DiskError, DiskFailed, DiskFull, ForeignDirectory
from fleetlog.brokers.log.disk.files import DiskPort
from fleetlog.brokers.model import id_text


def remembered(stops: Iterable[CleanStop], registered: Mapping[str, str]) -> dict[str, str]:
    """The broker's directories by id, with their paths; empty if nothing tells.

    ``registered`` is what the last registration said, ``stops`` what the directories at hand say. Of the stops only
    the last counts: a directory that was away since then may name others that have been given up.
    """
    known, every = dict(registered), list(stops)
    last = max((stop.incarnation for stop in every), default=-1)
    for stop in every:
        if stop.incarnation == last:
            known |= stop.directories
    return known


def missing_message(missing: Mapping[str, str]) -> str:
    """The message for the broker's log."""
    named = ", ".join(f"{path} (directory.id {one})" for one, path in sorted(missing.items(), key=lambda one: one[1]))
    return (
        f"{len(missing)} log director(y/ies) that this broker had at its last start or stop are not here: {named}. Was"
        " one taken out of log.dirs, is a volume not mounted, was a disk replaced? Records that were only there are"
        " considered lost on this broker: it leads no partition that another in-sync replica can lead, and makes no log"
        " anew that is counted on. If the directories exist, stop this broker and bring them back before other leaders"
        " are elected"
    )


def unmounted_message(path: str) -> str:
    """Why an empty directory is not used."""
    return (
        f"it is empty, but held this broker's logs at {path}: its volume may not be mounted. Mount it and restart the"
        " broker; if the disk was replaced, say so first: fleetlog broker CONFIG_FILE --new-directory " + path
    )


logger = logging.getLogger(__name__)


class DirectoryOwner:
    """This broker, as the owner of its log directories. ``cluster_id`` is None where the cluster is not known."""

    __slots__ = ("_broker_id", "_cluster_id", "_disk", "missing", "remembers")

    def __init__(self, disk: DiskPort, broker_id: int, cluster_id: str | None) -> None:
        self._disk = disk
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self.missing: dict[str, str] = {}
        """Directories that it had, by id with their paths, and that are not here."""
        self.remembers = False
        """Whether anything tells which directories it had."""

    def look_for_missing(self, directories: Sequence[LogDirectory], registered: Mapping[str, str]) -> None:
        """Compare the directories with those of the last start or stop; ``registered`` is what ZooKeeper has of them.

        Raises ForeignDirectory, also if two have one id: one of them is a copy.
        """
        present: dict[str, str] = {}
        stops: list[CleanStop] = []
        for directory in directories:
            try:
                values = self.properties_of(directory)
                left = self._disk.read(f"{directory.path}/{checkpoints.CLEAN_SHUTDOWN}")
            except DiskError:
                continue  # it says so when it is opened
            if values is None:
                continue
            if left is not None:
                stops.append(checkpoints.decode_clean_stop(left))
            known = values.get("directory.id")
            if known in present:
                raise ForeignDirectory(
                    f"{present[known]} and {directory.path} have the same directory.id {known} (meta.properties): one"
                    " is a copy of the other; take it out of log.dirs"
                )
            if known is not None:
                present[known] = directory.path
        had = remembered(stops, registered)
        self.remembers = bool(had)
        self.missing = {one: path for one, path in had.items() if one not in present}
        if self.missing:
            logger.error("%s", missing_message(self.missing))

    def accept(self, directory: LogDirectory, others: Sequence[LogDirectory], new_id: uuid.UUID) -> None:
        """Make an empty directory this broker's, for it to be used in place of a lost one; the broker does not run.

        Raises StoreRefused if it is not empty or a broker runs, DiskError.
        """
        if self.properties_of(directory) is not None:
            raise ForeignDirectory(f"{directory.path} is no new directory: it has meta.properties")
        self.check(others)
        if self._cluster_id is None:
            known = (self.properties_of(other) for other in others)
            self._cluster_id = next(
                (values["cluster.id"] for values in known if values and "cluster.id" in values), None
            )
        self._disk.make_directory(directory.path)
        self.claim(directory, lambda path: new_id)

    def check(self, directories: Iterable[LogDirectory]) -> None:
        """Only look whether those that exist are this broker's and free. Raises DirectoryInUse, ForeignDirectory."""
        for directory in directories:
            if not self._disk.is_directory(directory.path):
                continue
            self.properties_of(directory)
            if checkpoints.LOCK in self._disk.names(directory.path):
                self._disk.lock(f"{directory.path}/{checkpoints.LOCK}").close()

    def refuse_unmounted(self, directory: LogDirectory, others: Iterable[LogDirectory]) -> None:
        """An empty directory that had this broker's logs is not taken for a new one while others can be used.

        Raises DiskFailed, DiskError, ForeignDirectory.
        """
        if directory.path in self.missing.values() and self.properties_of(directory) is None:
            if any(not other.offline and self.properties_of(other) is not None for other in others):
                raise DiskFailed(directory.path, unmounted_message(directory.path))
            logger.error("%s is empty, and the only log directory: it begins anew", directory.path)

    def claim(self, directory: LogDirectory, new_id: Callable[[str], uuid.UUID]) -> bool:
        """Compare ``meta.properties`` with this broker's ids; write it in a directory that has none: True then.

        Raises ForeignDirectory, DiskError.
        """
        values = self.properties_of(directory)
        path = f"{directory.path}/{checkpoints.META_PROPERTIES}"
        if values is None:
            directory.id = new_id(directory.path)
            values = {"version": "0", "broker.id": str(self._broker_id)}
            if self._cluster_id is not None:
                values["cluster.id"] = self._cluster_id
            values["directory.id"] = id_text(directory.id)
            self._disk.replace(path, checkpoints.encode_properties(values))
            return True
        try:
            if "directory.id" in values:
                directory.id = checkpoints.decode_topic_id(values["directory.id"])
                return False
        except DamagedFile:
            logger.warning("%s: directory.id is not readable; it gets another one", path)
        made = new_id(directory.path)  # Kafka before 3.7 wrote none
        try:
            self._disk.replace(path, checkpoints.encode_properties(values | {"directory.id": id_text(made)}))
        except DiskFull as wrong:
            logger.warning("%s: no room for a directory.id: it would not be missed at the next start: %s", path, wrong)
        else:
            directory.id = made
        return False

    def properties_of(self, directory: LogDirectory) -> dict[str, str] | None:
        """``meta.properties`` of a directory, compared with this broker's ids; None where there is none.

        Raises ForeignDirectory, DiskError.
        """
        data = self._disk.read(f"{directory.path}/{checkpoints.META_PROPERTIES}")
        broker_id = str(self._broker_id)
        if data is None:
            others = [name for name in self._disk.names(directory.path) if PARTITION_DIRECTORY.fullmatch(name)]
            if others:
                raise ForeignDirectory(
                    f"{directory.path} holds partitions ({others[0]}, ...) but no meta.properties: it is unknown"
                    " whose they are; choose another directory in log.dirs"
                )
            return None
        values = checkpoints.decode_properties(data)
        cluster_id = values.get("cluster.id")
        if self._cluster_id is not None and cluster_id not in (None, self._cluster_id):
            raise ForeignDirectory(
                f"{directory.path} belongs to cluster {cluster_id}, this broker to {self._cluster_id}"
                " (meta.properties); choose another directory in log.dirs"
            )
        owner = values.get("broker.id", values.get("node.id"))
        if owner not in (None, broker_id):
            raise ForeignDirectory(
                f"{directory.path} belongs to broker {owner}, this is broker {broker_id} (meta.properties);"
                " choose another directory in log.dirs or set broker.id"
            )
        return values
