"""The list of changed users, clients and addresses, on a real ZooKeeper."""

from __future__ import annotations

import pytest

from fleetlog.brokers.metadata import config_changes
from fleetlog.brokers.metadata.client_configs import ClientConfigs, Configs
from fleetlog.brokers.metadata.config_changes import CHANGES, ConfigChanges, change_notice
from fleetlog.coordination.store import Create, Store, StoreError
from tests.support.stores import Stores, on_loop
from tests.support.waiting import eventually_async

EFFECT_S = 15.0
"""Less than until everything is read again without a watch."""
Told = list[frozenset[str] | None]


async def start(store: Store) -> tuple[ConfigChanges, Told]:
    """Followed changes, and what their reader was told."""
    told = Told()

    async def read(paths: frozenset[str] | None) -> None:
        told.append(paths)

    changes = ConfigChanges(store, read)
    await changes.start()
    return changes, told


async def note(store: Store, entity_path: str) -> None:
    await store.multi([change_notice(entity_path)])


@on_loop
async def test_users_clients_and_addresses_are_read_and_nothing_else(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        configs, told = ClientConfigs(store), list[tuple[Configs, bool]]()
        configs.subscribe(lambda read, whole: told.append((read, whole)))
        await configs.start()
        assert told == [({}, True)], "at the start all are read"
        paths = ("ips/10.0.0.1", "clients/app", "users/alice", "users/alice/clients/app")
        for path in (*paths, "topics/orders"):
            await note(other, path)
            await configs.refresh()
        assert told[1:] == [({path: {}}, False) for path in paths]
        await configs.stop()


@on_loop
async def test_an_entry_arrives_without_being_asked_for(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        changes, users = await start(store)
        await note(other, "users/alice")
        await eventually_async(lambda: frozenset({"users/alice"}) in users, "the entry is read", EFFECT_S)
        await changes.stop()


@pytest.mark.parametrize("entry", [b"{]", b"{}", b'{"version":1,"entity_type":"users","entity_name":"alice"}'])
@on_loop
async def test_an_entry_that_names_no_entity_means_that_all_are_read(connect: str, entry: bytes) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        changes, users = await start(store)
        await store.multi([Create(f"{CHANGES}/{config_changes.CHANGE_PREFIX}", entry, sequence=True)])
        await changes.refresh()
        assert users == [None, None]
        await changes.stop()


@on_loop
async def test_entries_that_were_deleted_unseen_mean_that_all_are_read(connect: str) -> None:
    async with Stores() as stores:
        store, other = await stores.open(connect), await stores.open(connect)
        changes, users = await start(store)
        await changes.stop()
        await note(other, "users/alice")
        await other.delete(f"{CHANGES}/{config_changes.CHANGE_PREFIX}0000000000")
        await note(other, "users/bob")
        await changes.refresh()
        assert users == [None, None]


@on_loop
async def test_a_reader_that_fails_hears_of_the_same_again(connect: str) -> None:
    async with Stores() as stores:
        store = await stores.open(connect)
        heard, failing = Told(), [StoreError("lost", "/config/users/alice")]

        async def read(paths: frozenset[str] | None) -> None:
            heard.append(paths)
            if paths is not None and failing:
                raise failing.pop()

        changes = ConfigChanges(store, read)
        await changes.start()
        await note(store, "users/alice")
        await eventually_async(lambda: heard.count(frozenset({"users/alice"})) == 2, "it is read again", EFFECT_S)
        await changes.stop()


@on_loop
async def test_the_oldest_entries_are_deleted(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "CHANGES_KEPT", 3)
    async with Stores() as stores:
        store = await stores.open(connect)
        changes, users = await start(store)
        for number in range(8):
            await note(store, f"users/{number}")
            await changes.refresh()
        assert len(await store.children(CHANGES)) == 3
        assert users[0] is None
        assert None not in users[1:], "what was pruned had been read"
        assert set().union(*(paths or () for paths in users)) == {f"users/{number}" for number in range(8)}
        await changes.stop()
