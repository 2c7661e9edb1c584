"""Checkpoints that were lost or rolled back, and fences that were reset."""

from __future__ import annotations

import json

from fleetlog.spark import reset_fence
from tests.spark.matrix.rig import SOURCE_PARTITIONS, Rig
from tests.spark.matrix.scenarios import scenario
from tests.spark.matrix.together import took_place
from tests.spark.matrix.wire import COMMIT, HOLD, REQUEST


@scenario()
def checkpoint_rolled_back(rig: Rig) -> None:
    """An older copy is refused, and the newer one goes on."""
    query = rig.start()
    query.started()
    rig.batch_done(0)
    trap = rig.trap(COMMIT, REQUEST, HOLD, skip=1)
    trap.wait()
    old = rig.copy_checkpoint("older")
    for path in (old / "offsets").iterdir():
        if path.name.strip(".").split(".")[0].isdigit() and int(path.name.strip(".").split(".")[0]) > 1:
            path.unlink()
    for path in (old / "commits").iterdir():
        if path.name.strip(".").split(".")[0] not in ("0", "metadata"):
            path.unlink()
    trap.release()
    rig.finish(query)
    fence = rig.fence()
    assert fence is not None
    assert fence.batch_id == 2, fence
    error = rig.start(checkpoint=old).ended()
    assert "FenceConflict" in error, error
    assert "rolled back" in error, error
    rig.note("a checkpoint of batch 0 was brought to a sink at batch 2, and refused: FenceConflict, rolled back")
    rig.fill_more()
    rig.finish()


@scenario()
def checkpoint_lost(rig: Rig) -> None:
    """A new checkpoint is refused until the fence is reset; it starts where the old one ended."""
    rig.finish()
    old_query = rig.query_id
    old_batches = rig.batches()
    new = rig.directory / "new-checkpoint"
    rig.fill_more()
    starting = json.dumps(
        {rig.source: {str(n): len(old_batches) // SOURCE_PARTITIONS for n in range(SOURCE_PARTITIONS)}}
    )
    error = rig.start(checkpoint=new, starting=starting).ended()
    assert "FenceConflict" in error, error
    rig.note("a new checkpoint was refused: FenceConflict")
    reset_fence(rig.fleet.inner, rig.sink_id, expected_query_id=old_query)
    rig.note(f"the fence of query {old_query} was reset")
    rig.finish(checkpoint=new, starting=starting)
    assert rig.query_id != old_query
    rig.earlier = old_batches
    rig.checkpoint = new


@scenario()
def checkpoints_last_note_lost(rig: Rig) -> None:
    """The note that a batch is done vanishes, as when a machine loses power: the batch is replayed, in vain."""
    rig.finish()
    for path in (rig.checkpoint / "commits").glob("*2*"):
        path.unlink()
    rig.note("Spark's note of batch 2 is gone")
    rig.fill_more()
    rig.finish()
    took_place(rig.aborted() >= 300, "batch 2 should have been written again, in vain")
