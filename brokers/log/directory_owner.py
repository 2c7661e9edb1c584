"""The broker and cluster that a log directory belongs to, by its ``meta.properties``: Kafka's file."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from brokers.log import checkpoints
from brokers.log.checkpoints import DamagedFile
from brokers.log.directories import PARTITION_DIRECTORY, LogDirectory
from brokers.log.failures import ForeignDirectory
from brokers.log.files import DiskPort
from brokers.model import id_text

logger = logging.getLogger(__name__)


class DirectoryOwner:
    """This broker, as the owner of its log directories. ``cluster_id`` is None where the cluster is not known."""

    __slots__ = ("_broker_id", "_cluster_id", "_disk")

    def __init__(self, disk: DiskPort, broker_id: int, cluster_id: str | None) -> None:
        self._disk = disk
        self._broker_id = broker_id
        self._cluster_id = cluster_id

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
        if "directory.id" in values:
            try:
                directory.id = checkpoints.decode_topic_id(values["directory.id"])
            except DamagedFile:
                logger.warning("%s: directory.id is not readable", path)
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
