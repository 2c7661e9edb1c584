"""A Fetch with more than some hundred partitions to look at, in slices, in between which partitions move.

Each partition leaves the dirty ones, and is watched, in the moment in which it is read: what moves later marks it
again. While such a fetch waits, only what moves is read, to know when there is enough for an answer.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from fleetlog.brokers.api import fetch_answers as answers
from fleetlog.brokers.api.base import Done, Paced
from fleetlog.brokers.api.fetch_answers import encoded_in_slices, is_urgent, refused, slices_of
from fleetlog.brokers.api.fetch_followers import count_in_slices
from fleetlog.wire.errors import ErrorCode
from fleetlog.wire.hot import Encoded, FetchOutcome, encode_fetch_response

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from fleetlog.brokers.api.base import Context, DelayedResponse
    from fleetlog.brokers.api.fetch_reads import PartitionReader
    from fleetlog.brokers.api.fetch_sessions import FetchSession, SessionPart
    from fleetlog.wire.hot import FetchRequest

Found = tuple["SessionPart", FetchOutcome]


class SlicedFetch(Protocol):
    """A fetch (``fetch.Fetch``)."""

    request: FetchRequest
    context: Context
    session: FetchSession
    full: bool
    reader: PartitionReader
    found: list[Found] | None
    total: int
    urgent: bool
    crowded: bool
    stirred: dict[SessionPart, None] | None
    sizes: dict[SessionPart, int] | None

    @property
    def most_bytes(self) -> int:
        """Bytes of records that the answer may have."""
        ...

    def open(self) -> None:
        """Begin a session if the fetch asks for one."""
        ...

    def follow(self) -> None:
        """Read as the follower whose session it is."""
        ...

    def without_session(self) -> FetchSession:
        """A session for this fetch only."""
        ...

    def begin(self) -> None:
        """Nothing is found yet."""
        ...

    def look(self, parts: Iterable[SessionPart], found: list[Found] | None = None) -> bool:
        """Read these, behind what was ``found``."""
        ...

    def over_quota(self) -> bool:
        """Whether the client may not have what was found now."""
        ...

    def empty_answer(self, whole: bool) -> Encoded | list[Any]:
        """Nothing, and the session is as it was."""
        ...

    def count_sent(self, found: list[Found]) -> None:
        """What a follower gets."""
        ...

    def count(self, found: Sequence[Found]) -> None:
        """What is answered, by topic."""
        ...

    def wait(self) -> DelayedResponse:
        """Wait for data, news, or ``max_wait_ms``."""
        ...

    def schedule(self) -> None:
        """Look in a turn to come."""
        ...

    def drop(self) -> None:
        """Let go of what was found."""
        ...

    def dropped(self) -> None:
        """The connection is gone."""
        ...

    def end_wait(self) -> None:
        """No timer calls back any more."""
        ...

    def woken(self, part: SessionPart, urgent: bool) -> None:
        """A partition moved."""
        ...

    def reply_early(self) -> None:
        """The fetch that acknowledges this answer may be waited for."""
        ...

    def abandoned(self) -> None:
        """The session is evicted."""
        ...


def names_many(request: FetchRequest) -> bool:
    """Whether the fetch forgets so many partitions that it is executed in slices."""
    return sum(1 + len(indexes) for _, indexes in request.forgotten) > answers.LONG_PARTS


def begin_in_slices(fetch: SlicedFetch) -> Paced:
    """Name partitions, read them, and answer or wait."""
    over = False
    try:
        if fetch.full:
            fetch.open()
            fetch.follow()
        fetch.session.waiter = fetch
        while not (yield from _name(fetch)):
            # A full fetch of the follower that came meanwhile has ended it: what this one says is older, perhaps.
            overtaken = fetch.session.closed and fetch.session.replica is not None
            fetch.context.services.fetch_sessions.close(fetch.session)
            if overtaken or not fetch.full:
                return Done(refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, fetch.context))
            fetch.without_session().waiter = fetch
        session = fetch.session
        if not session.parts and not fetch.full:
            fetch.context.services.fetch_sessions.close(session)
            return Done(encode_fetch_response(fetch.context.api_version, []))
        if session.isolation_level != fetch.request.isolation_level:
            session.isolate(fetch.request.isolation_level)
        if session.replica is not None:
            yield from count_in_slices(session, session.replica, fetch.reader)
        yield from _look(fetch)
        if session.closed:
            return Done(refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, fetch.context))
        if fetch.request.max_wait_ms <= 0 or fetch.urgent or fetch.total >= fetch.request.min_bytes:
            answer = yield from _answer(fetch)
            over = True
            return Done(answer)
        fetch.sizes = {part: outcome.size for part, outcome in fetch.found or ()}
        _restore(fetch)
        over = True
        delayed = fetch.wait()
        if fetch.stirred:
            fetch.schedule()
        return delayed
    finally:
        if not over:
            _give_up(fetch)


def answer_in_slices(fetch: SlicedFetch) -> Generator[None, None, Encoded]:
    """The answer of one that has waited: with what there is now."""
    over = False
    try:
        yield from _look(fetch)
        answer = yield from _answer(fetch)
        over = True
        return answer
    finally:
        if not over:
            _give_up(fetch)


def looks_enough(fetch: SlicedFetch) -> bool:
    """Whether what moved makes an answer worth sending. Reads some dozens of partitions at most."""
    reader, sizes, stirred = fetch.reader, fetch.sizes, fetch.stirred
    if sizes is None:  # it was short when it began
        return True
    for part in list(islice(stirred or (), answers.SLICE_PARTS)):
        if stirred is not None:
            del stirred[part]
        partition = reader.partition_of(part)
        if isinstance(partition, FetchOutcome):
            return True
        outcome = reader.read(partition, part.asked, fetch.most_bytes, True)
        for piece in outcome.slices:
            piece.release()
        fetch.total += outcome.size - sizes.get(part, 0)
        sizes[part] = outcome.size
        if is_urgent(outcome) or fetch.total >= fetch.request.min_bytes:
            return True
    return False


def _name(fetch: SlicedFetch) -> Generator[None, None, bool]:
    """Forget and name what the request says. False if that is too much, or the session was evicted meanwhile."""
    session, request = fetch.session, fetch.request
    sessions = fetch.context.services.fetch_sessions
    for topic, indexes in request.forgotten if not fetch.full else ():
        for some in slices_of(indexes):
            if session.closed:
                return False
            sessions.update(session, (), [(topic, some)])
            yield
    for parts in slices_of(request.parts):
        if session.closed or not sessions.update(session, parts, ()):
            return False
        yield
    return not session.closed


def _look(fetch: SlicedFetch) -> Generator[None, None, None]:
    _restore(fetch)
    fetch.begin()
    session = fetch.session
    found: list[Found] = []
    for some in slices_of(list(session.dirty)):
        if session.closed:
            return
        before = len(found)
        fetch.look(some, found)
        for part, _ in found[before:]:
            session.settled(part)
        if fetch.crowded:
            return
        yield


def _answer(fetch: SlicedFetch) -> Generator[None, None, Encoded]:
    """The answer with what was found last; the slices of files go with it."""
    if fetch.total and fetch.over_quota():
        _restore(fetch)
        fetch.end_wait()
        answer = fetch.empty_answer(False)
        assert isinstance(answer, Encoded), "without its size and header"
        return answer
    session, found = fetch.session, fetch.found or []
    pairs = []
    shares: list[SessionPart] = []
    counts = fetch.context.services.replicas.topic_figures is not None
    for some in slices_of(found):
        if counts:
            fetch.count(some)
        for part, outcome in some:
            if part.tell(outcome) and not session.closed:
                if outcome.size:
                    shares.append(part)
                else:  # its turn is to come
                    session.served(part)
            pairs.append((part.asked, outcome))
        yield
    for part in shares if not session.closed else ():
        session.served(part)
    pairs += [(asked, FetchOutcome(ErrorCode.INVALID_REQUEST)) for asked in session.twice or ()]
    answer = yield from encoded_in_slices(fetch.context, pairs, session.id)
    fetch.found = None
    fetch.end_wait()
    if session.replica is not None:
        fetch.count_sent(found)
    if not session.id:
        session.close(forget=False)
    return answer


def _restore(fetch: SlicedFetch) -> None:
    """What was found is not answered now: it stays to be answered."""
    if not fetch.session.closed:
        fetch.session.dirty.update((part, None) for part, _ in fetch.found or ())
    fetch.drop()


def _give_up(fetch: SlicedFetch) -> None:
    """The connection is gone, or the session: what was found and not answered is as before."""
    _restore(fetch)
    fetch.dropped()
