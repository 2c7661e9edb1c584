"""``fleetlog bucket``: what is in the bucket of tiered storage, whether it is whole, what deleted topics left there.

It reads the bucket itself, with the credentials of whoever runs it; only a sweep asks a fleet, for its topics.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Set
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.protocol.metadata import MetadataRequest

from fleetlog._native.batch import crc32c, scan, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.cli.client import (
    PartitionsOf,
    Target,
    admin,
    client_options,
    complete_topics,
    known_partitions,
    reworded,
)
from fleetlog.brokers.cli.command_group import CommandGroup
from fleetlog.brokers.cli.output import CliError, Output, bytes_text, count_text, iso, warn
from fleetlog.brokers.cli.overview import TIERING_WAITS, topic_settings
from fleetlog.brokers.tiering.decisions import Listed
from fleetlog.brokers.tiering.leader import DELETED_TOGETHER, BucketError, NoSuchObject, newest_manifest
from fleetlog.brokers.tiering.manifest import (
    MANIFESTS,
    BadObject,
    Chunk,
    Manifest,
    TieredSegment,
    decode_index,
    decode_manifest,
    generation_of,
)

if TYPE_CHECKING:
    from fleetlog.brokers.metadata.repair import Tiers
    from fleetlog.brokers.tiering.bucket import BucketOwner, ObjectBucket

TOPICS = "topics/"
AT_ONCE = 8
"""Calls to the bucket that wait at the same time: each has its deadline from then on."""
TOPIC_IDS = 12
"""The version of Metadata whose topics have ids."""


@click.group(cls=CommandGroup)
def bucket() -> None:
    """The bucket of tiered storage: what is in it, and whether that is whole."""


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


class TieredPartition(NamedTuple):
    """A partition's objects: its newest manifest, or why there is none that can be read."""

    prefix: str
    manifest: Manifest | None
    problem: str
    objects: dict[str, Listed]

    @property
    def title(self) -> str:
        """``topic-partition``; the id of the topic is in the prefix."""
        topic, _, partition = self.prefix.removeprefix(TOPICS).rstrip("/").rpartition("/")
        return f"{topic.rpartition('.')[0]}-{partition}"

    @property
    def unnamed(self) -> list[Listed]:
        """Objects that the newest manifest does not name; some are of uploads under way."""
        named = set(self.manifest.names()) if self.manifest is not None else set()
        return [entry for name, entry in self.objects.items() if generation_of(name) < 0 and name not in named]


def _run(url: str, work: Callable[[ObjectBucket], Coroutine[Any, Any, Any]]) -> Any:
    import asyncio  # what help does not need

    from fleetlog.brokers.tiering.bucket import BadUrl, ObjectBucket

    async def whole() -> Any:
        store = ObjectBucket(url, makes_folder=False)
        try:
            return await work(store)
        finally:
            store.close()

    try:
        return asyncio.run(whole())
    except (BadUrl, BucketError) as wrong:
        raise CliError(str(wrong)) from wrong


async def _owner(store: ObjectBucket) -> BucketOwner | None:
    from fleetlog.brokers.tiering.bucket import read_owner

    try:
        return await read_owner(store)
    except BadObject as wrong:
        raise CliError(str(wrong)) from wrong


def tiered_topic(url: str, topic: str, topic_id: str) -> dict[str, Any]:
    """What the bucket has of one topic, as ``status --json`` shows it; only that is listed. Raises CliError."""
    return _told(*_looked_at(url, f"{TOPICS}{topic}.{topic_id}/"))


def _looked_at(url: str, folder: str = TOPICS) -> tuple[str, list[TieredPartition]]:
    """The cluster id of a bucket's owner, empty if nobody has it, and what is below a folder. Raises CliError."""

    async def look(store: ObjectBucket) -> tuple[BucketOwner | None, list[TieredPartition]]:
        return await _owner(store), await _parts(store, folder)

    known, parts = _run(url, look)
    return known.cluster_id if known is not None else "", parts


def _told(owner: str, parts: list[TieredPartition]) -> dict[str, Any]:
    return {"owner": owner, "partitions": [_row(part) for part in parts]}


def tier_reaches(url: str) -> tuple[str, Tiers, list[str]]:
    """The cluster id of a bucket's owner, what the newest manifest of each partition says, and those that cannot be
    read. Raises CliError."""
    from fleetlog.brokers.metadata.loading import gather_bounded  # what the other commands do not need
    from fleetlog.brokers.metadata.repair import TierReach

    async def read(store: ObjectBucket) -> tuple[str, Tiers, list[str]]:
        owner = await _owner(store)
        reaches: dict[uuid.UUID, dict[int, TierReach]] = {}
        problems: list[str] = []

        async def look(prefix: str) -> None:
            topic = prefix.removeprefix(TOPICS).partition("/")[0].rpartition(".")[0]
            try:
                manifest = await newest_manifest(store, prefix)
            except BadObject as wrong:
                problems.append(str(wrong))
                return
            if manifest is not None:
                reach = TierReach(topic, manifest.leader_epoch, bool(manifest.segments))
                reaches.setdefault(manifest.topic_id, {})[manifest.partition] = reach

        prefixes = await gather_bounded(await store.folders(TOPICS), store.folders, AT_ONCE)
        await gather_bounded([prefix for some in prefixes for prefix in some], look, AT_ONCE)
        return owner.cluster_id if owner is not None else "", reaches, problems

    told: tuple[str, Tiers, list[str]] = _run(url, read)
    return told


async def _parts(store: ObjectBucket, folder: str = TOPICS) -> list[TieredPartition]:
    by_prefix: dict[str, dict[str, Listed]] = {}
    for entry in await store.objects(folder):
        folders = entry.name.split("/", 3)
        if len(folders) == 4:
            prefix = "/".join(folders[:3]) + "/"
            by_prefix.setdefault(prefix, {})[folders[3]] = entry
    return [await _part(store, prefix, objects) for prefix, objects in sorted(by_prefix.items())]


async def _part(store: ObjectBucket, prefix: str, objects: dict[str, Listed]) -> TieredPartition:
    newest = max((name for name in objects if name.startswith(MANIFESTS)), default="")
    if not newest:
        return TieredPartition(prefix, None, f"{prefix}: no manifest, so none of its objects counts", objects)
    try:
        return TieredPartition(prefix, decode_manifest(await store.get(prefix + newest), prefix + newest), "", objects)
    except (BadObject, NoSuchObject) as wrong:
        return TieredPartition(prefix, None, str(wrong), objects)


@bucket.command("status")
@click.argument("url")
@json_option
def show_status(url: str, as_json: bool) -> None:
    """Show whose the bucket is, and what each partition has in it.

    URL is the brokers' fleetlog.bucket.url: s3://name/folder, gs://, az:// or file:///path.
    """
    owner, parts = _looked_at(url)
    out = Output(as_json)
    if as_json:
        out.value(_told(owner, parts))
        return
    click.echo(f"cluster id of its owner: {owner or 'nobody has it yet'}")
    rows = [
        [
            part.title, manifest.start, manifest.end, len(manifest.segments), bytes_text(manifest.size),
            len(part.unnamed), manifest.generation, iso(manifest.written_ms),
        ]
        for part in parts
        if (manifest := part.manifest) is not None
    ]  # fmt: skip
    out.rows(["partition", "start", "end", "segments", "size", "unnamed", "generation", "written"], rows)
    for part in parts:
        if part.problem:
            warn(part.problem)


def _row(part: TieredPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"partition": part.title, "prefix": part.prefix, "problem": part.problem}
    manifest = part.manifest
    if manifest is not None:
        row |= {
            "start": manifest.start, "end": manifest.end, "log_start": manifest.log_start, "bytes": manifest.size,
            "segments": len(manifest.segments), "generation": manifest.generation,
            "leader_epoch": manifest.leader_epoch, "broker": manifest.broker_id, "written_ms": manifest.written_ms,
        }  # fmt: skip
    return row | {"unnamed": len(part.unnamed), "unnamed_bytes": sum(entry.size for entry in part.unnamed)}


@bucket.command("verify")
@click.argument("url")
@click.option("--records", "-r", is_flag=True, help="Also read every batch and check its checksum: all bytes.")
@json_option
def verify_bucket(*, url: str, records: bool, as_json: bool) -> None:
    """Compare manifests, indexes and objects. Exits with 1 if anything is damaged or missing.

    Brokers may run meanwhile: what retention removes is then no problem, so run it again where something is missing.
    """

    async def check(store: ObjectBucket) -> tuple[int, int, list[str]]:
        segments, size, problems = 0, 0, []
        for part in await _parts(store):
            problems += [part.problem] if part.problem else []
            for segment in part.manifest.segments if part.manifest is not None else ():
                problems += await _wrong(store, part, segment, records)
                segments, size = segments + 1, size + segment.size
        return segments, size, problems

    segments, size, problems = _run(url, check)
    if as_json:
        Output(as_json).value({"segments": segments, "bytes": size, "problems": problems})
    else:
        verdict = "every batch" if records else "manifests, indexes and sizes"
        click.echo(f"{count_text(segments, 'segment')}, {bytes_text(size)}: {verdict} checked")
        for problem in problems:
            warn(problem)
    if problems:
        sys.exit(1)


async def _wrong(store: ObjectBucket, part: TieredPartition, segment: TieredSegment, records: bool) -> list[str]:
    name = part.prefix + segment.log_name
    try:
        data = await store.get(part.prefix + segment.index_name)
        if crc32c(data) != segment.index_crc:
            return [f"{part.prefix}{segment.index_name}: damaged, it is not what the manifest names"]
        chunks = decode_index(data, part.prefix + segment.index_name).chunks
        whole = sum(chunk.size for chunk in chunks)
        there = part.objects.get(segment.log_name)
        if there is None or there.size != whole:
            return [f"{name}: {'missing' if there is None else f'{there.size} bytes'}, of {whole} bytes"]
        problems: list[str] = []
        for chunk in chunks if records else ():
            problems += _damage(name, chunk, await store.get(name, chunk.position, chunk.size))
    except NoSuchObject as wrong:
        return [f"{name}: missing: {wrong}"]
    except BadObject as wrong:
        return [str(wrong)]
    return problems


def _damage(name: str, chunk: Chunk, data: bytes) -> Iterator[str]:
    if crc32c(data) != chunk.crc:
        yield f"{name}: damaged at {chunk.position}, its checksum does not hold"
        return
    try:
        for position, _ in scan(data):
            validate_batch(data, position)
    except CorruptBatch as wrong:
        yield f"{name}: a batch is damaged at {chunk.position}: {wrong}"


@bucket.command("sweep")
@click.argument("url")
@click.option("--execute", is_flag=True, help="Remove it; without, only say what would be removed.")
@click.option("--hours", type=click.FloatRange(0), default=24.0, show_default=True, help="Leave what is newer.")
@click.option("--all-gone", is_flag=True, help="Also where the fleet knows none of the bucket's topics.")
@client_options
def sweep_bucket(*, target: Target, out: Output, url: str, execute: bool, hours: float, all_gone: bool) -> None:
    """Remove the objects of topics that were deleted, from the bucket of this fleet.

    What else no manifest names is removed by the partitions' leaders. A fleet that knows none of the topics (its
    ZooKeeper was rolled back, perhaps) is refused.
    """
    with admin(target) as client:
        answer = client.ask_any(MetadataRequest(version=TOPIC_IDS, topics=None, allow_auto_topic_creation=False))
    known = {topic.topic_id.hex for topic in answer.topics}
    newest_ms = int((time.time() - hours * 3600) * 1000)

    async def sweep(store: ObjectBucket) -> list[dict[str, Any]]:
        owner = await _owner(store)
        if owner is None or owner.cluster_id != answer.cluster_id:
            whose = owner.cluster_id if owner is not None else "nobody"
            raise CliError(f"{url} is of cluster {whose}, and {target.bootstrap} is {answer.cluster_id}")
        rows = left_over(await store.objects(TOPICS), known, newest_ms, all_gone=all_gone)
        for row in rows if execute else ():
            names = row["names"]
            for first in range(0, len(names), DELETED_TOGETHER):
                await store.delete(names[first : first + DELETED_TOGETHER])
        return [{key: value for key, value in row.items() if key != "names"} for row in rows]

    rows = _run(url, sweep)
    if out.as_json:
        out.value({"removed": execute, "topics": rows})
        return
    out.rows(["topic", "id", "objects", "size"], [[*list(row.values())[:3], bytes_text(row["bytes"])] for row in rows])
    if rows and not execute:
        click.echo("nothing is removed yet: --execute does it")


def left_over(
    objects: list[Listed], known: Set[str], newest_ms: int, *, all_gone: bool = False
) -> list[dict[str, Any]]:
    """Topics of which there are objects, none newer, and no topic of that id. Raises CliError if no topic is known."""
    by_topic: dict[str, list[Listed]] = {}
    for entry in objects:
        by_topic.setdefault(entry.name.removeprefix(TOPICS).partition("/")[0], []).append(entry)
    gone = {folder: entries for folder, entries in by_topic.items() if folder.rpartition(".")[2] not in known}
    if gone and len(gone) == len(by_topic) and not all_gone:
        raise CliError(
            "the fleet knows none of the bucket's topics. If its ZooKeeper was rolled back: fleetlog cluster repair. If"
            " all of them were deleted: --all-gone"
        )
    rows = []
    for folder, entries in sorted(gone.items()):
        topic, _, topic_id = folder.rpartition(".")
        if max(entry.modified_ms for entry in entries) <= newest_ms:
            # manifests last: as long as there is one, the next sweep finds whose the rest was
            names = sorted((entry.name for entry in entries), key=lambda name: (f"/{MANIFESTS}" in name, name))
            size = sum(entry.size for entry in entries)
            rows.append({"topic": topic, "id": topic_id, "objects": len(entries), "bytes": size, "names": names})
    return rows


@bucket.command("take")
@click.argument("url")
@click.option("--execute", is_flag=True, help="Take it; without, only say what that would mean.")
@client_options
def take_bucket(*, target: Target, out: Output, url: str, execute: bool) -> None:
    """Make the bucket this fleet's, whosever it was: for one whose fleet is gone for good.

    The former owner's brokers copy and read nothing more within a minute or so; stop them first. This fleet uses what
    is there of topics that it has by the same id, as after its ZooKeeper was made anew from a backup.
    """
    from fleetlog.brokers.tiering.bucket import take

    with admin(target) as client:
        answer = client.ask_any(MetadataRequest(version=TOPIC_IDS, topics=None, allow_auto_topic_creation=False))
    mine, known = answer.cluster_id, {topic.topic_id.hex for topic in answer.topics}

    async def work(store: ObjectBucket) -> tuple[BucketOwner | None, set[str]]:
        owner = await _owner(store)
        folders = {entry.name.split("/", 2)[1] for entry in await store.objects(TOPICS)}
        if execute and (owner is None or owner.cluster_id != mine):
            await take(store, owner, mine, int(time.time() * 1000))
        return owner, folders

    owner, folders = _run(url, work)
    used = sum(folder.rpartition(".")[2] in known for folder in folders)
    whose = owner.cluster_id if owner is not None else ""
    taken = execute and whose != mine
    if out.as_json:
        told = {"owner": mine if taken else whose, "former": whose, "taken": taken}
        out.value(told | {"topics": len(folders), "topics_of_this_fleet": used})
    elif whose == mine:
        click.echo(f"{url} is this fleet's ({mine}) already")
    else:
        click.echo(f"cluster id of its owner: {whose or 'nobody has it yet'}; of this fleet: {mine}")
        click.echo(f"{count_text(len(folders), 'topic')} in it, {used} of them this fleet's by their ids")
        if taken:
            click.echo("taken: brokers that had refused it use it within a minute")
        else:
            click.echo("nothing is changed yet: stop the brokers of its owner, then --execute takes it")


class Flagged(NamedTuple):
    """What ``bucket enable`` makes of a topic."""

    topic: str
    state: str
    waits: bool = False


@bucket.command("enable")
@click.argument("names", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--execute", is_flag=True, help="Do it; without, only say what would begin to be tiered.")
@client_options
def enable_topics(*, target: Target, out: Output, names: tuple[str, ...], execute: bool) -> None:
    """Begin to tier topics whose remote.storage.enable is from when it had no effect.

    Without TOPIC: all topics that have the flag, and what becomes of each. Compacted topics stay as they are.
    """
    if execute and not names:
        raise click.UsageError("--execute needs the topics' names")
    names = tuple(dict.fromkeys(names))
    asked = len(names)
    with admin(target) as client:
        if names:
            known_partitions(client, [PartitionsOf(name, None) for name in names])
        else:
            names = tuple(sorted(topic["name"] for topic in client.describe_topics()))
        answers = topic_settings(client, names, *FLAGS)
        told = {name: [answers[flag].get(name, "") for flag in FLAGS] for name in names}
        rows = [flagged(name, *values) for name, values in told.items()]
        enabled = [row.topic for row in rows if row.waits] if execute else []
        if enabled:
            changes = {TIERING_WAITS: (AlterConfigOp.DELETE, None)}
            resources = [ConfigResource(ConfigResourceType.TOPIC, name, configs=changes) for name in enabled]
            answer = client.alter_configs(resources, raise_on_unknown=False, incremental=True)
            results = {name: answer.get("topic", {}).get(name, "no answer") for name in enabled}
            refused = [f"topic {name}: {reworded(said)}" for name, said in results.items() if said != "OK"]
            if refused:
                raise CliError("\n".join(refused))
    if not asked:
        rows = [row for row in rows if not row.state.startswith(NO_FLAG)]
    if out.as_json:
        out.value([{"topic": row.topic, "state": row.state, "enabled": row.topic in enabled} for row in rows])
        return
    if not rows:
        click.echo("no topic has remote.storage.enable=true")
        return
    out.rows(["topic", "state"], [[r.topic, "is tiered from now on" if r.topic in enabled else r.state] for r in rows])
    if not execute and any(row.waits for row in rows):
        click.echo("nothing is changed yet: fleetlog bucket enable TOPIC --execute begins to copy")


FLAGS = ("remote.storage.enable", TIERING_WAITS, "cleanup.policy", "local.retention.ms", "local.retention.bytes")
NO_FLAG = "remote.storage.enable is false"


def flagged(topic: str, enable: str, waits: str, policy: str, local_ms: str, local_bytes: str) -> Flagged:
    """A topic by its settings, as brokers tell them."""
    if enable != "true":
        return Flagged(topic, f"{NO_FLAG}: fleetlog topics alter {topic} --set remote.storage.enable=true")
    if "compact" in policy:
        return Flagged(topic, "compacted: remote.storage.enable has no effect, and cannot have one")
    if waits != "true":
        return Flagged(topic, "is tiered")
    kept = "" if (local_ms, local_bytes) != ("-2", "-2") else ", all of it is kept here, too: see local.retention.ms"
    return Flagged(topic, f"waits: closed segments would be copied{kept}", True)
