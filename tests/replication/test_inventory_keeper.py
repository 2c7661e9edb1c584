"""What a broker knows of its cluster before it has asked ZooKeeper."""

from __future__ import annotations

from pathlib import Path

from fleetlog.brokers.log import RealDisk
from fleetlog.brokers.replication.inventory_keeper import cluster_id_of


def test_a_directory_that_cannot_be_read_has_no_say_in_the_cluster(tmp_path: Path) -> None:
    good, broken = tmp_path / "good", tmp_path / "broken"
    (good / "t-0").mkdir(parents=True)
    (good / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=ours\n")
    broken.write_text("no directory\n")
    assert cluster_id_of(RealDisk(), [str(broken), str(good)]) == "ours"
    assert cluster_id_of(RealDisk(), [str(broken)]) is None
