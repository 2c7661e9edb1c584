"""A ZooKeeper ensemble of several servers on this machine, which tests kill, pause and restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleetlog.coordination.ensemble import TICK_MS, EnsembleError, ZooKeeperNode
from fleetlog.coordination.ports import free_ports


class Ensemble:
    """Several nodes that form one ensemble. Killing and restarting is done on ``nodes``."""

    def __init__(self, nodes: Sequence[ZooKeeperNode]) -> None:
        self.nodes = list(nodes)

    @property
    def connect_string(self) -> str:
        """``zookeeper.connect`` for all nodes."""
        return ",".join(node.address for node in self.nodes)

    def start(self, timeout_s: float = 60.0) -> None:
        """Start all nodes and wait until each serves."""
        for node in self.nodes:
            node.start()
        for node in self.nodes:
            node.wait_serving(timeout_s)

    def leader(self) -> ZooKeeperNode:
        """The node that leads; raises EnsembleError if there is none."""
        for node in self.nodes:
            if node.mode() in ("leader", "standalone"):
                return node
        raise EnsembleError("no ZooKeeper node leads")

    def stop(self) -> None:
        """Stop all nodes."""
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        """Stop all nodes permanently."""
        self.stop()


def local_ensemble(
    directory: str | Path, size: int, *, tick_ms: int = TICK_MS, settings: Sequence[str] = ()
) -> Ensemble:
    """An ensemble of ``size`` nodes below ``directory``, not yet started."""
    ports = free_ports(3 * size)
    servers = [f"server.{i + 1}=127.0.0.1:{ports[3 * i + 1]}:{ports[3 * i + 2]}" for i in range(size)]
    peers = [*servers, "standaloneEnabled=false"] if size > 1 else []
    base = Path(directory).resolve()
    return Ensemble(
        [
            ZooKeeperNode(
                base / f"zk{i + 1}", ports[3 * i], node_id=i + 1, peers=peers, tick_ms=tick_ms, settings=settings
            )
            for i in range(size)
        ]
    )
