"""A broker's registration: its ephemeral under ``/brokers/ids`` and the persistent count of its incarnations.

Both change in one multi. The broker epoch is the ephemeral's czxid, as in Kafka. A czxid cannot be checked in a multi
and a re-created ephemeral has version 0 again, so elections and ISR changes check ``/brokers/incarnations/<id>``
instead: its version is the incarnation, one more with every registration.

An existing ephemeral is this session's own (a lost answer), one of the broker's previous session that has not expired
yet, or that of another live broker with the same id. The last two are indistinguishable until the previous session's
timeout has passed; the registration logs that it waits for this. With the previous session's credentials it can be
closed at once (``ZookeeperStore.end_session``).

Source: Kafka 3.9's BrokerIdZNode (JSON version 5) and KafkaZkClient.registerBroker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from fleetlog.coordination.store import (
    BadVersion,
    Create,
    MultiFailed,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SetData,
    Store,
    StoreError,
    UnknownOutcome,
    WatchEvent,
)
from fleetlog.coordination.tree import BROKER_IDS, INCARNATIONS, ensure

UNREGISTERED = b'{"unregistered":true}'
"""The record of a broker that is gone for good."""
UNKNOWN_TIMEOUT_MS = 18_000
"""The assumed session timeout of an ephemeral that does not contain it."""
_POLL_MS = 250
_ATTEMPTS = 50


class DuplicateBroker(StoreError):
    """Another live broker has the same id."""


class ListenerAddress(NamedTuple):
    """One advertised listener."""

    name: str
    host: str
    port: int
    security_protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Advertisement:
    """The content of a broker's registration. ``details`` are fleetlog's JSON fields, which Kafka's tools ignore."""

    broker_id: int
    listeners: Sequence[ListenerAddress]
    rack: str | None = None
    jmx_port: int = -1
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Registered:
    """A registration, valid as long as its session."""

    broker_id: int
    broker_epoch: int
    incarnation: int
    session_id: int


class LastRegistration(NamedTuple):
    """The last registration of a broker id, by any process; incarnation 0 before the first.

    ``broker_epoch`` is the zxid of its multi. ``process`` is the id of its process, empty if unknown. ``directories``
    are the log directories that it had, by id with their paths; empty from a version that did not say.
    """

    incarnation: int
    broker_epoch: int
    process: str
    directories: Mapping[str, str] = MappingProxyType({})


def broker_path(broker_id: int) -> str:
    """The broker's ephemeral."""
    return f"{BROKER_IDS}/{broker_id}"


def incarnation_path(broker_id: int) -> str:
    """The persistent count; its version is the incarnation, its mzxid the broker epoch of the last registration."""
    return f"{INCARNATIONS}/{broker_id}"


def encode_registration(
    advertisement: Advertisement, timestamp_ms: int, incarnation: int, session_timeout_ms: int
) -> bytes:
    """Kafka's JSON version 5, plus ``incarnation`` and ``session_timeout_ms``."""
    plaintext = next((one for one in advertisement.listeners if one.security_protocol == "PLAINTEXT"), None)
    document: dict[str, Any] = {
        "version": 5,
        "host": plaintext.host if plaintext else None,
        "port": plaintext.port if plaintext else -1,
        "jmx_port": advertisement.jmx_port,
        "timestamp": str(timestamp_ms),
        "endpoints": [f"{one.name}://{_bracketed(one.host)}:{one.port}" for one in advertisement.listeners],
        "listener_security_protocol_map": {one.name: one.security_protocol for one in advertisement.listeners},
        "features": {
            name: {"min_version": low, "max_version": high} for name, (low, high) in advertisement.features.items()
        },
        **advertisement.details,
        "incarnation": incarnation,
        "session_timeout_ms": session_timeout_ms,
    }
    if advertisement.rack is not None:
        document["rack"] = advertisement.rack
    return json.dumps(document, separators=(",", ":")).encode()


def incarnation_record(advertisement: Advertisement, process: str, timestamp_ms: int) -> bytes:
    """The record of an absent broker: the process and time of its last registration, its log directories, rack and
    failure domain.
    """
    document = {
        "process": process,
        "timestamp": timestamp_ms, "rack": advertisement.rack,
        "failure_domain": advertisement.details.get("failure_domain"),
        "directories": advertisement.details.get("directories", {}),
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode()


async def register(
    store: Store,
    advertisement: Advertisement,
    *,
    wall_ms: Callable[[], int],
    mono_ms: Callable[[], int],
    on_waiting: Callable[[str], None] = lambda message: None,
    process: str = "",
    details: Callable[[LastRegistration], Mapping[str, Any]] = lambda last: {},
    guards: Callable[[], Awaitable[Sequence[Operation]]] | None = None,
) -> Registered:
    """Register in the present session; needs ``coordination.tree.adopt`` before.

    ``details`` adds fields that depend on the last registration; the multi fails if another one came in between, and
    ``details`` is called again, as is ``guards``: what else the multi does or checks; its exceptions reach the caller.
    ``process`` is unique to this process.

    Waits while an ephemeral of another session exists, for as long as that session could last without a heartbeat
    (calls ``on_waiting`` once); then raises DuplicateBroker. Where the last registration is this process's it waits on:
    a ZooKeeper that was starved takes longer to end a session than it says. Raises SessionExpired if the session ends
    meanwhile: register again in the next one.
    """
    broker_id = advertisement.broker_id
    session = store.session()
    if session is None:
        raise SessionExpired("there is no ZooKeeper session", broker_path(broker_id))
    await ensure(store, incarnation_path(broker_id))
    for _ in range(_ATTEMPTS):
        try:
            last = await last_registration(store, broker_id)
        except NoNode as problem:
            raise NoNode(f"{incarnation_path(broker_id)} was deleted", incarnation_path(broker_id)) from problem
        guarded = [] if guards is None else await guards()
        detailed = replace(advertisement, details={**advertisement.details, **details(last)})
        now_ms = wall_ms()
        kept = incarnation_record(detailed, process, now_ms)
        data = encode_registration(detailed, now_ms, last.incarnation + 1, session.timeout_ms)
        try:
            return await _register_once(store, broker_id, data, kept, last.incarnation, session.session_id, guarded)
        except UnknownOutcome:
            pass
        except MultiFailed as failed:
            if not isinstance(failed.cause, (NodeExists, BadVersion)):
                raise
        # Only a read decides: the ephemeral may be this session's own (a lost answer), or another's.
        mine = await _find(store, broker_id, session.session_id)
        if mine is not None:
            return mine
        own = bool(process) and last.process == process
        await _wait_for_other(store, broker_id, session.session_id, mono_ms, on_waiting, own=own)
    raise StoreError(f"registering broker {broker_id} failed {_ATTEMPTS} times", broker_path(broker_id))


async def unregister(store: Store, registered: Registered) -> None:
    """Delete the registration before a clean stop; no-op if it is missing or of another session."""
    path = broker_path(registered.broker_id)
    stat = await store.exists(path)
    if stat is not None and stat.ephemeral_owner == registered.session_id:
        try:
            await store.delete(path)
        except NoNode:
            pass


async def remove_record(store: Store, broker_id: int) -> bool:
    """Forget a broker that is gone for good; False if there is no record of it.

    Its incarnations stay counted: a broker that gets the id later must not have one that was counted on before. The
    count grows by one, so a registration that comes in between is never overwritten. Raises DuplicateBroker while the
    broker is registered.
    """
    path, tried = incarnation_path(broker_id), False
    for _ in range(_ATTEMPTS):
        try:
            data, stat = await store.get(path)
        except NoNode:
            return False
        if stat.version == 0 or data == UNREGISTERED:
            return tried
        if await store.exists(broker_path(broker_id)) is not None:
            raise DuplicateBroker(f"broker {broker_id} is registered", broker_path(broker_id))
        tried = True
        try:
            await store.set(path, UNREGISTERED, stat.version)
        except (BadVersion, UnknownOutcome):
            await asyncio.sleep(_POLL_MS / 1000)  # it registered, or the outcome is unknown: the next read decides
            continue
        return True
    raise StoreError(f"forgetting broker {broker_id} failed {_ATTEMPTS} times", path)


async def last_registration(store: Store, broker_id: int) -> LastRegistration:
    """What ZooKeeper keeps of the broker's last registration. Raises NoNode for an id that never had one."""
    data, stat = await store.get(incarnation_path(broker_id))
    if stat.version == 0:
        return LastRegistration(0, -1, "")
    try:
        document = json.loads(data)
        process = str(document["process"])
        directories = {str(one): str(path) for one, path in document.get("directories", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        process, directories = "", {}  # written by a version that left it empty
    return LastRegistration(stat.version, stat.mzxid, process, directories)


async def registered_directories(store: Store, broker_id: int) -> Mapping[str, str]:
    """The log directories of the broker's last registration, by id with their paths; empty if it told none."""
    try:
        return (await last_registration(store, broker_id)).directories
    except NoNode:
        return {}


async def _register_once(
    store: Store,
    broker_id: int,
    data: bytes,
    kept: bytes,
    count: int,
    session_id: int,
    guarded: Sequence[Operation],
) -> Registered:
    # A create in a multi returns only the path; the set after it returns the Stat, and with it the czxid.
    results = await store.multi(
        [
            Create(broker_path(broker_id), b"", ephemeral=True),
            SetData(broker_path(broker_id), data, 0),
            SetData(incarnation_path(broker_id), kept, count),
            *guarded,
        ]
    )
    ephemeral, counted = results[1].stat, results[2].stat
    assert ephemeral is not None, "a set in a multi answers with a Stat"
    assert counted is not None, "a set in a multi answers with a Stat"
    if ephemeral.ephemeral_owner != session_id:
        raise SessionExpired("the session changed during the registration", broker_path(broker_id))
    return Registered(broker_id, ephemeral.czxid, counted.version, session_id)


async def _find(store: Store, broker_id: int, session_id: int) -> Registered | None:
    await store.sync(broker_path(broker_id))
    _check_session(store, broker_id, session_id)
    try:
        data, stat = await store.get(broker_path(broker_id))
    except NoNode:
        return None
    if stat.ephemeral_owner != session_id:
        return None
    return Registered(broker_id, stat.czxid, int(json.loads(data)["incarnation"]), session_id)


async def _wait_for_other(
    store: Store,
    broker_id: int,
    session_id: int,
    mono_ms: Callable[[], int],
    on_waiting: Callable[[str], None],
    *,
    own: bool,
) -> None:
    """Wait until the ephemeral is gone; ``own``: it is of an earlier session of this process, which has ended."""
    path = broker_path(broker_id)
    owner, patience_ms, address = await _other(store, broker_id)
    if owner is None:
        return
    on_waiting(
        f"broker id {broker_id} is registered by another session ({owner:#x}, {address}): waiting up to"
        f" {patience_ms / 1000:.1f} s for it to expire, in case it is this broker's own from before a crash"
    )
    deadline_ms = mono_ms() + patience_ms
    gone = asyncio.Event()

    def changed(_event: WatchEvent) -> None:
        gone.set()

    while (present := await store.exists(path, changed)) is not None:
        if present.ephemeral_owner in (session_id, 0):
            return
        if present.ephemeral_owner != owner or (mono_ms() > deadline_ms and not own):
            raise DuplicateBroker(
                f"broker id {broker_id} is in use by a live broker at {address} (session"
                f" {present.ephemeral_owner:#x}): give this one another broker.id, or stop that one",
                path,
            )
        try:
            await asyncio.wait_for(gone.wait(), _POLL_MS / 1000)
            gone.clear()
        except TimeoutError:
            pass
        _check_session(store, broker_id, session_id)


async def _other(store: Store, broker_id: int) -> tuple[int | None, int, str]:
    """Owner of the existing ephemeral, how long it may last without a heartbeat in ms, and its address."""
    try:
        data, stat = await store.get(broker_path(broker_id))
    except NoNode:
        return None, 0, ""
    try:
        document = json.loads(data)
        timeout_ms = int(document.get("session_timeout_ms", UNKNOWN_TIMEOUT_MS))
        address = str((document.get("endpoints") or ["unknown address"])[0])
    except (ValueError, TypeError, AttributeError):
        timeout_ms, address = UNKNOWN_TIMEOUT_MS, "unknown address"
    # ZooKeeper expires in steps of a tick, which is at most half the smallest timeout it grants.
    return stat.ephemeral_owner, timeout_ms + timeout_ms // 2 + 1000, address


def _check_session(store: Store, broker_id: int, session_id: int) -> None:
    now = store.session()
    if now is None or now.session_id != session_id:
        raise SessionExpired("the session changed during the registration", broker_path(broker_id))


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
