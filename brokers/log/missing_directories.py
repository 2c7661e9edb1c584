"""Log directories that a broker had at its last start or stop, and that are not among ``log.dirs`` any more. Pure.

A directory that is gone cannot say so. So each clean stop names all directories, in each of them, and so does the
registration in ZooKeeper, which a crash leaves, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fleetlog.brokers.log.checkpoints import CleanStop


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
