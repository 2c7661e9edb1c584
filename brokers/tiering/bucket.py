"""The bucket itself, by obstore: ``s3://``, ``gs://``, ``az://`` and ``file://``.

Calls run on daemon threads of their own, some for copying and some for reading, so that neither waits for the other,
and no thread of the logs waits for a bucket. Each call has a deadline; where it is over, the thread may still be in it,
and whatever it does then counts as a call whose answer was lost.

Credentials come by the usual ways (environment, files, the instance's role), and are not in the URL.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from fleetlog import how_to_install
from fleetlog._native.batch import crc32c, scan, validate_batch
from fleetlog._native.errors import CorruptBatch
from fleetlog.brokers.tiering.decisions import Listed
from fleetlog.brokers.tiering.leader import BucketError, NameTaken, NoSuchObject
from fleetlog.brokers.tiering.manifest import BadObject, Chunk

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
COPIERS, READERS = 2, 4
CALL_S = 30.0
UPLOAD_BYTES_S = 1024 * 1024
"""A call's deadline, which is longer by a second for each of these bytes that it writes."""
OWNERS = "fleetlog-owner/"
OWNER_FORMAT = 1
FORMER = 10
"""Fleets that are named as those that had a bucket before."""
CLAIMS = 5
"""Attempts at finding out whose a bucket is, while several brokers claim it."""
CHUNK_BYTES = 4 * 1024 * 1024
PART_BYTES = 8 * 1024 * 1024
WINDOW_BYTES = 64 * 1024
"""Batches that are looked at in one go, without the loop's thread."""
ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Environment variables that name another S3; without TLS only if they say so."""
SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss")


class BadUrl(Exception):
    """The bucket's URL cannot be one, or what it needs is not installed; the message says what to do."""


def open_store(url: str) -> ObjectStore | None:
    """The store behind a URL; nothing is asked of it yet. None of a folder. Raises BadUrl."""
    try:
        from obstore.store import from_url
    except ImportError as wrong:
        raise BadUrl(f"fleetlog.bucket.url needs obstore: {how_to_install('bucket')}") from wrong
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise BadUrl(f"{url!r}: a bucket's URL begins with {', '.join(f'{name}://' for name in SCHEMES[:5])}")
    if parts.username or parts.password or parts.query:
        raise BadUrl("the bucket's URL must have no credentials: they come from the environment, files or roles")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise BadUrl(f"{url!r}: a folder is named from its root, with three slashes: file:///path")
    if parts.scheme == "file":
        return None
    try:
        retries: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=CALL_S / 2)}
        plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
        options: Any = {"timeout": f"{CALL_S:.0f}s", "allow_http": plain}
        return from_url(url, retry_config=retries, client_options=options)
    except Exception as wrong:  # obstore has no common base for what a URL may lack
        raise BadUrl(f"{url}: {remedy(url, wrong) or _brief(wrong)}") from wrong


_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION",
    "gs": "set GOOGLE_SERVICE_ACCOUNT to a key file's path",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_OF_ROLES = ("169.254.169.254", "metadata.google.internal", "Account must be specified", "169.254.170.2")
"""By which a failure of the library is one to find credentials: the last place where it asks is the machine's role."""


def remedy(url: str, wrong: BaseException) -> str:
    """What to do about an error of the library's, where that can be said; '' otherwise."""
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text, scheme = str(wrong), urlsplit(url).scheme
    if any(mark in text for mark in _OF_ROLES):
        how = next((how for begin, how in _CREDENTIALS.items() if scheme.startswith(begin)), _CREDENTIALS["az"])
        return f"there are no credentials: {how} in the environment of this process, or give the machine a role"
    if isinstance(wrong, UnauthenticatedError):
        return "the store does not know the credentials: see to their values and the region"
    if isinstance(wrong, PermissionDeniedError):
        return "the store refuses these credentials: they need to put, get, list and delete (docs/tiering.md)"
    if isinstance(wrong, FileNotFoundError) and scheme != "file":
        return "there is no bucket of that name, or not in that region or at that endpoint"
    return ""


def _brief(wrong: BaseException) -> str:
    """The first line: the rest is for who debugs the library."""
    return (str(wrong).strip().splitlines() or [type(wrong).__name__])[0]


class BucketThreads:
    """Daemon threads with one queue, started by the first call. The process ends without waiting for them."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count
        self._threads: list[threading.Thread] = []
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    async def call(self, function: Callable[[], T], deadline_s: float) -> T:
        """What the function returns or raises; BucketError where the deadline is over before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(take: Callable[[Any], None], outcome: Any) -> None:
            if not future.done():
                take(outcome)

        def work() -> None:
            try:
                outcome = function()
            except BaseException as wrong:
                take, told = future.set_exception, wrong.with_traceback(None)
            else:
                take, told = future.set_result, outcome  # type: ignore[assignment]
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, take, told)

        if not self._threads:
            self._threads = [
                threading.Thread(target=self._run, name=f"{self._name} {number}", daemon=True)
                for number in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        self._waiting.put(work)
        try:
            async with asyncio.timeout(deadline_s):
                return await future
        except TimeoutError as wrong:
            raise BucketError(f"no answer from the bucket within {deadline_s:.0f} s") from wrong

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            work()

    def close(self) -> None:
        """The threads end behind what they still have to do."""
        for _ in self._threads:
            self._waiting.put(None)


class ObjectBucket:
    """See the module, and :class:`~brokers.tiering.leader.BucketPort`. On the loop."""

    def __init__(self, url: str, *, makes_folder: bool = True) -> None:
        """``makes_folder``: a folder that is not there is made when it is used. Raises BadUrl."""
        self.url = url
        self._makes_folder = makes_folder
        self.requests = dict.fromkeys(("put", "get", "list", "delete", "sign"), 0)
        self.failures = 0
        self.failure = ""
        """What the latest call said that failed; '' after one that did not."""
        self._opened = open_store(url)
        self._copying = BucketThreads("bucket copy", COPIERS)
        self._reading = BucketThreads("bucket read", READERS)

    async def put_new(self, name: str, data: bytes) -> None:
        """Write an object only if there is none of that name."""
        import obstore

        await self._call("put", lambda: obstore.put(self._store(), name, data, mode="create"), size=len(data))

    async def put_parts(self, name: str, parts: Iterator[bytes], size: int) -> None:
        """Write an object of some ``size`` in parts, which are made on the bucket's threads as they are needed."""
        import obstore

        await self._call(
            "put",
            lambda: obstore.put(self._store(), name, parts, chunk_size=PART_BYTES, max_concurrency=2),
            size=size,
        )

    async def get(self, name: str, start: int = 0, size: int = -1) -> bytes:
        """Bytes of an object; all of them without a size."""
        return await self.read(name, bytes, start, size)

    async def read(self, name: str, then: Callable[[Any], T], start: int = 0, size: int = -1) -> T:
        """What ``then`` makes of an object's bytes, also on the bucket's threads."""
        import obstore

        def get() -> T:
            if size < 0:
                return then(memoryview(obstore.get(self._store(), name).bytes()))
            return then(memoryview(obstore.get_range(self._store(), name, start=start, length=size)))

        return await self._call("get", get)

    @property
    def signs(self) -> bool:
        """Whether objects have URLs for others: those of a folder have none."""
        return not self.url.startswith("file:")

    async def sign(self, names: list[str], lifetime_ms: int) -> list[str]:
        """A URL for each object, by which whoever has it may get that object until the time is over.

        S3's are computed here; of other stores the credentials may have to ask. Raises BucketError.
        """
        import obstore

        def sign() -> list[str]:
            if not self.signs:
                raise BucketError("files have no URLs for others")
            store: Any = self._store()  # no folder, and nothing in memory
            return list(obstore.sign(store, "GET", names, timedelta(milliseconds=lifetime_ms)))

        return await self._call("sign", sign) if names else []

    async def objects(self, prefix: str) -> list[Listed]:
        """Objects whose names begin with that folder."""
        import obstore

        def listed() -> list[Listed]:
            return [
                Listed(row["path"], row["size"], int(row["last_modified"].timestamp() * 1000))
                for rows in obstore.list(self._store(), prefix=prefix)
                for row in rows
            ]

        return await self._call("list", listed)

    async def folders(self, prefix: str) -> list[str]:
        """The folders in that folder, by their whole names with the slash, sorted."""
        import obstore

        listed = await self._call("list", lambda: obstore.list_with_delimiter(self._store(), prefix=prefix))
        return sorted(f"{name.rstrip('/')}/" for name in listed["common_prefixes"])

    async def delete(self, names: list[str]) -> None:
        """Remove objects; absent ones don't matter."""
        import obstore

        def delete() -> None:
            for name in names:
                try:
                    obstore.delete(self._store(), name)
                except FileNotFoundError:
                    continue

        await self._call("delete", delete)

    def _store(self) -> ObjectStore:
        """On a thread: a folder's disk may be gone, or come later."""
        if self._opened is None:
            from obstore.store import LocalStore

            folder = urlsplit(self.url).path
            if not self._makes_folder and not os.path.isdir(folder):
                raise BucketError(f"there is no folder {folder}")
            try:
                self._opened = LocalStore(folder, mkdir=True)
            except Exception as wrong:  # obstore has no common base for it
                raise BucketError(_brief(wrong)) from wrong
        return self._opened

    async def _call(self, kind: str, function: Callable[[], T], size: int = 0) -> T:
        from obstore.exceptions import AlreadyExistsError, BaseError

        self.requests[kind] += 1
        threads = self._reading if kind in ("get", "sign") else self._copying
        try:
            outcome = await threads.call(function, CALL_S + size / UPLOAD_BYTES_S)
        except AlreadyExistsError as wrong:
            raise NameTaken(_brief(wrong)) from wrong
        except (BucketError, BaseError, OSError) as wrong:
            if kind == "get" and isinstance(wrong, FileNotFoundError):
                raise NoSuchObject(_brief(wrong)) from wrong  # of other calls it is the bucket that is not there
            self.failures += 1
            self.failure = remedy(self.url, wrong) or _brief(wrong)
            raise BucketError(f"{self.url}: {self.failure}") from wrong
        self.failure = ""
        return outcome

    def close(self) -> None:
        """Call nothing any more."""
        self._copying.close()
        self._reading.close()


class ForeignBucket(Exception):
    """The bucket is another fleet's; the message says what to do."""


class BucketOwner(NamedTuple):
    """Whose a bucket is: a generation, written create-only, of which the highest counts. ``former``: whose it was."""

    generation: int
    cluster_id: str
    since_ms: int
    former: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """As it stands in the bucket."""
        mine = {"cluster_id": self.cluster_id, "since_ms": self.since_ms, "format": OWNER_FORMAT}
        return json.dumps({**mine, "former": list(self.former)} if self.former else mine).encode()


def owner_name(generation: int) -> str:
    """Of the object that says whose the bucket is; the highest generation counts."""
    return f"{OWNERS}{generation:020d}"


async def read_owner(bucket: ObjectBucket) -> BucketOwner | None:
    """The highest generation, also one that the listing does not have yet; None without any. Raises BucketError,
    BadObject."""
    digits = [entry.name.removeprefix(OWNERS) for entry in await bucket.objects(OWNERS)]
    generation, owner = max((int(one) for one in digits if one.isdecimal()), default=1), None
    while True:
        name = owner_name(generation)
        try:
            owner = _decode_owner(await bucket.get(name), generation, f"{bucket.url}: {name}")
        except NoSuchObject:
            return owner
        generation += 1


def _decode_owner(data: bytes, generation: int, name: str) -> BucketOwner:
    try:
        told = json.loads(data)
        version = int(told.get("format", OWNER_FORMAT))
        former = tuple(str(one) for one in told.get("former", ()))
        owner = BucketOwner(generation, str(told["cluster_id"]), int(told.get("since_ms", 0)), former)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise BadObject(f"{name}, which says whose the bucket is, cannot be read: restore it from a copy") from wrong
    if version != OWNER_FORMAT:
        raise BadObject(f"{name}: format {version}, of which this version of fleetlog knows {OWNER_FORMAT}: upgrade it")
    return owner


async def own(bucket: ObjectBucket, cluster_id: str, now_ms: int, *, claim: bool = True) -> None:
    """See that the bucket is this fleet's; with ``claim`` make it so if it is nobody's. Raises ForeignBucket,
    BucketError.

    An empty folder may be one that is not mounted: to claim it would begin all manifests anew.
    """
    for _ in range(CLAIMS):
        try:
            owner = await read_owner(bucket)
        except BadObject as wrong:
            raise BucketError(str(wrong)) from wrong
        if owner is not None:
            if owner.cluster_id != cluster_id:
                raise ForeignBucket(_foreign(bucket.url, owner, cluster_id))
            return
        mine = BucketOwner(1, cluster_id, now_ms)
        if not claim:
            raise BucketError(
                f"{bucket.url} does not say whose it is, and topics are tiered already: is it the right one, and"
                f" mounted? If it is new on purpose: fleetlog bucket take {bucket.url}"
            )
        try:
            await bucket.put_new(owner_name(1), mine.encode())
        except NameTaken:
            continue  # another broker of this fleet, mostly
        return
    raise BucketError(f"{bucket.url}: who owns it changes while it is read")


def _foreign(url: str, owner: BucketOwner, cluster_id: str) -> str:
    if cluster_id in owner.former:
        return (
            f"{url} was taken from this fleet by the one with cluster id {owner.cluster_id}: nothing is copied or read"
            f" any more. If that was a mistake, stop the brokers of that fleet, then here: fleetlog bucket take {url}."
            " Otherwise delete the topics that are tiered, and give this fleet another bucket (fleetlog.bucket.url)"
        )
    return (
        f"{url} belongs to the fleet with cluster id {owner.cluster_id}, and this one is {cluster_id}: nothing is"
        " copied or read; give this fleet another bucket or folder (fleetlog.bucket.url), or, if that fleet is gone"
        f" for good: fleetlog bucket take {url}"
    )


async def take(bucket: ObjectBucket, owner: BucketOwner | None, cluster_id: str, now_ms: int) -> BucketOwner:
    """Make the bucket this fleet's, after ``owner``. Raises BucketError: also where another fleet was first."""
    generation = owner.generation + 1 if owner is not None else 1
    former = tuple(dict.fromkeys((owner.cluster_id, *owner.former))) if owner is not None else ()
    mine = BucketOwner(generation, cluster_id, now_ms, tuple(one for one in former if one != cluster_id)[:FORMER])
    try:
        await bucket.put_new(owner_name(generation), mine.encode())
    except (NameTaken, BucketError) as wrong:
        # its answer may be lost: what stands there is true
        try:
            standing = await read_owner(bucket)
        except BadObject as bad:
            raise BucketError(str(bad)) from bad
        if standing is None or standing.cluster_id != cluster_id:
            whose = f" it is of cluster id {standing.cluster_id}" if standing is not None else " nobody has it"
            raise BucketError(f"{bucket.url} is not taken:{whose}: {wrong}") from wrong
        return standing
    return mine


class Pace:
    """Bytes per second that are copied, or read, all partitions together. On the bucket's threads, or the loop."""

    def __init__(self, bytes_s: int) -> None:
        self.bytes_s = bytes_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def reserve(self, size: int) -> float:
        """Seconds until so many bytes may go; they count from now on."""
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(now_s, self._free_s)
            self._free_s = begin_s + size / self.bytes_s
        return begin_s - now_s

    def take(self, size: int) -> None:
        """Wait until so many bytes may go."""
        wait_s = self.reserve(size)
        if wait_s > 0:
            time.sleep(wait_s)


class SegmentParts:
    """A part of a closed segment's file as chunks of whole batches. Iterated on a thread; then it has the chunks.

    A damaged batch ends it with BucketError: what is copied is sound.
    """

    def __init__(self, path: str, position: int, size: int, pace: Pace) -> None:
        self.chunks: list[Chunk] = []
        self._path = path
        self._position = position
        self._end = position + size
        self._pace = pace

    def __iter__(self) -> Iterator[bytes]:
        fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at, wanted = self._position, CHUNK_BYTES
            while at < self._end:
                data = os.pread(fd, min(wanted, self._end - at), at)
                chunk = self._chunk(data, at)
                if chunk is None:
                    wanted *= 2
                    if len(data) == self._end - at or wanted > 2**31:
                        raise BucketError(f"{self._path}: a batch is cut off at {at}")
                    continue
                wanted = CHUNK_BYTES
                self.chunks.append(chunk)
                self._pace.take(chunk.size)
                yield data[: chunk.size]
                at += chunk.size
        finally:
            os.close(fd)

    def _chunk(self, data: bytes, at: int) -> Chunk | None:
        """The whole batches at the beginning of the data; None if not even one is."""
        size, base, newest = 0, -1, -1
        try:
            while size < len(data):
                batches = scan(data, size, min(len(data), size + WINDOW_BYTES)) or scan(data, size)[:1]
                if not batches:
                    break
                for position, header in batches:
                    validate_batch(data, position)
                    newest = max(newest, header.max_timestamp)
                    base = header.base_offset if base < 0 else base
                    size = position + header.size
        except CorruptBatch as wrong:
            raise BucketError(f"{self._path}: not copied, a batch is damaged: {wrong}") from wrong
        if not size:
            return None
        return Chunk(base, at - self._position, size, crc32c(memoryview(data)[:size]), newest)
