"""Controller election, and writes that only the elected controller can make.

One multi creates the ephemeral ``/controller`` and compares-and-sets ``/controller_epoch``; so epochs rise by one with
each election, and the epoch's znode version, checked by every multi of the controller, rejects a deposed controller's
writes. The outcome of an unanswered write is decided by reading again, after a sync, in a live session.

Source: Kafka 3.9's KafkaZkClient.registerControllerAndIncrementControllerEpoch.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fleetlog.coordination.store import (
    BadVersion,
    Check,
    Create,
    Delete,
    MultiFailed,
    NodeExists,
    NoNode,
    Operation,
    OperationResult,
    SessionEvent,
    SessionExpired,
    SessionState,
    SetData,
    Store,
    StoreError,
    UnknownOutcome,
    WatchEvent,
)

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
FIRST_EPOCH = 0
_RETRY_S = 0.5
_RESIGN_S = 5.0

_log = logging.getLogger(__name__)


class ControllerMoved(StoreError):
    """Another controller was elected: nothing was written, and this one must not decide any more."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The right to write as controller. ``epoch_version`` is the version of ``/controller_epoch`` to check."""

    epoch: int
    epoch_version: int
    session_id: int

    def fence(self) -> Check:
        """The operation that fails a multi once another controller was elected."""
        return Check(CONTROLLER_EPOCH, self.epoch_version)


@dataclass(frozen=True, slots=True)
class ElectionOutcome:
    """The outcome: ``leadership`` if the election was won; ``controller_id`` is -1 while there is no controller."""

    controller_id: int
    leadership: Leadership | None = None


async def fenced_multi(store: Store, leadership: Leadership, operations: Sequence[Operation]) -> list[OperationResult]:
    """``store.multi`` as controller: raises ControllerMoved if deposed; MultiFailed's index excludes the fence."""
    try:
        results = await store.multi([leadership.fence(), *operations])
    except MultiFailed as failed:
        if failed.index == 0:
            raise ControllerMoved(f"controller epoch {leadership.epoch} is over", CONTROLLER_EPOCH) from failed
        raise MultiFailed(failed.index - 1, failed.cause) from failed
    return results[1:]


async def campaign(store: Store, broker_id: int, wall_ms: Callable[[], int]) -> ElectionOutcome:
    """Try once to become controller in the present session. Raises SessionExpired when it ends meanwhile."""
    session = store.session()
    if session is None:
        raise SessionExpired("there is no ZooKeeper session", CONTROLLER)
    try:
        data, stat = await store.get(CONTROLLER_EPOCH)
    except NoNode:
        try:
            await store.create(CONTROLLER_EPOCH, str(FIRST_EPOCH).encode())
        except (NodeExists, UnknownOutcome):
            pass
        data, stat = await store.get(CONTROLLER_EPOCH)
    epoch = int(data) + 1
    document = {"version": 2, "brokerid": broker_id, "timestamp": str(wall_ms()), "kraftControllerEpoch": -1}
    try:
        results = await store.multi(
            [
                Create(CONTROLLER, json.dumps(document, separators=(",", ":")).encode(), ephemeral=True),
                SetData(CONTROLLER_EPOCH, str(epoch).encode(), stat.version),
            ]
        )
    except UnknownOutcome:
        return await _decide(store, session.session_id)
    except MultiFailed as failed:
        if not isinstance(failed.cause, (NodeExists, BadVersion)):
            raise
        return await _decide(store, session.session_id)
    written = results[1].stat
    assert written is not None, "a set in a multi answers with a Stat"
    _check_session(store, session.session_id)
    return ElectionOutcome(broker_id, Leadership(epoch, written.version, session.session_id))


async def _decide(store: Store, session_id: int) -> ElectionOutcome:
    """Read the present controller. It is this broker only if its session owns the ephemeral."""
    await store.sync(CONTROLLER)
    try:
        data, stat = await store.get(CONTROLLER)
    except NoNode:
        _check_session(store, session_id)
        return ElectionOutcome(-1)
    controller_id = _controller_id(data)
    if stat.ephemeral_owner != session_id:
        return ElectionOutcome(controller_id)
    # No other broker is elected while this session owns the ephemeral: an epoch read between two reads of it is its own
    epoch, epoch_stat = await store.get(CONTROLLER_EPOCH)
    again = await store.exists(CONTROLLER)
    _check_session(store, session_id)
    if again is None or again.ephemeral_owner != session_id:
        return ElectionOutcome(-1)
    return ElectionOutcome(controller_id, Leadership(int(epoch), epoch_stat.version, session_id))


async def resign(store: Store, leadership: Leadership) -> None:
    """Resign as controller, so that another broker is elected at once. No-op if another one is controller already.

    Waits for a connection; the caller bounds the wait.
    """
    while True:
        try:
            await store.multi([leadership.fence(), Delete(CONTROLLER)])
        except UnknownOutcome:
            continue  # repeating is harmless: the fence or the missing znode rejects the second write
        except (MultiFailed, SessionExpired):
            pass
        return


class ControllerElection:
    """Takes part in controller elections in every session whenever there is no controller.

    ``on_elected(leadership)`` and ``on_resigned()`` alternate; ``on_controller(id)`` is called for every controller,
    this broker included. All run synchronously on the loop: ``on_resigned`` of an expired session comes before the next
    session is opened. Between an expiry at ZooKeeper and its event only the lease and the fence protect.
    While ``tree_is_current`` answers that the tree is not, this broker is not elected.
    """

    def __init__(
        self,
        store: Store,
        broker_id: int,
        *,
        wall_ms: Callable[[], int],
        on_elected: Callable[[Leadership], None],
        on_resigned: Callable[[], None],
        on_controller: Callable[[int], None] = lambda controller_id: None,
        tree_is_current: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._wall_ms = wall_ms
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._on_controller = on_controller
        self._tree_is_current = tree_is_current
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.leadership: Leadership | None = None

    def start(self) -> None:
        """Take part in elections from now on."""
        self._store.on_session(self._on_session)
        self._wake.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="controller-election")

    async def stop(self) -> None:
        """Resign if elected, and take part in no further election."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._lose()
        try:
            await asyncio.wait_for(self._give_up(), _RESIGN_S)
        except (StoreError, TimeoutError) as error:
            _log.info("resigning as controller failed: %r; the end of the session ends the controllership", error)

    async def _give_up(self) -> None:
        """Resign also if a campaign that was cancelled a moment ago has won the election."""
        session = self._store.session()
        if session is None:
            return
        outcome = await _decide(self._store, session.session_id)
        if outcome.leadership is not None:
            await resign(self._store, outcome.leadership)

    def deposed(self) -> None:
        """Note that a fenced write failed with ControllerMoved: another controller exists."""
        self._lose()
        self._wake.set()

    def _lose(self) -> None:
        if self.leadership is not None:
            self.leadership = None
            self._on_resigned()

    def _on_session(self, event: SessionEvent) -> None:
        if self._stopped:
            return
        if event.state is SessionState.EXPIRED or (
            self.leadership is not None and event.session_id != self.leadership.session_id
        ):
            self._lose()
        if event.state is SessionState.CONNECTED:
            self._wake.set()

    def _on_watch(self, _event: WatchEvent) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._round()
            except SessionExpired:
                pass  # the next session's CONNECTED event continues
            except StoreError as error:
                _log.warning("controller election failed, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)
                self._wake.set()

    async def _round(self) -> None:
        if self._tree_is_current is not None and not await self._tree_is_current():
            self._lose()
            self._wake.set()
            return
        present = await self._store.exists(CONTROLLER, self._on_watch)
        if self.leadership is not None:
            if present is not None and present.ephemeral_owner == self.leadership.session_id:
                return
            self._lose()  # an operator deleted the ephemeral to force another election
        if present is None:
            outcome = await campaign(self._store, self._broker_id, self._wall_ms)
            if outcome.controller_id == -1:
                self._wake.set()
                return
        else:
            session = self._store.session()
            if session is None:
                return
            outcome = await _decide(self._store, session.session_id)
        self._conclude(outcome)

    def _conclude(self, outcome: ElectionOutcome) -> None:
        session = self._store.session()
        if outcome.leadership is not None:
            if session is None or session.session_id != outcome.leadership.session_id:
                return
            self.leadership = outcome.leadership
            self._on_elected(outcome.leadership)
        self._on_controller(outcome.controller_id)


def _controller_id(data: bytes) -> int:
    try:
        return int(json.loads(data)["brokerid"])
    except (ValueError, KeyError, TypeError):
        return -1


def _check_session(store: Store, session_id: int) -> None:
    now = store.session()
    if now is None or now.session_id != session_id:
        raise SessionExpired("the session changed during the election", CONTROLLER)
