"""Configs of resources: two nodes over one store, their own or that of a metadata service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metadata.cluster import QUICK, Cluster
from tests.unit.metadata.conftest import ACCOUNT, OTHER, until
from tests.unit.metadata.stores import EtcdPlace

from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.serving.remote_store import RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import KEY_BYTES_MAX, Store, Txn
from penstock.metadata.topics import resource_configs
from penstock.metadata.topics.resource_configs import (
    CONFIGS_PREFIX,
    GROUP,
    Resource,
    ResourceConfigs,
    config_key,
    resource_of,
)
from penstock.model.errors import InvalidRequest, QuotaExceeded
from penstock.model.limits import RESOURCE_CONFIGS_BYTES_MAX
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.faults import OutcomeUnknown

ORDERS = Resource(ACCOUNT, GROUP, "orders")


@pytest.fixture(params=["own", "remote", "etcd"])
async def shared(
    request: pytest.FixtureRequest, store: SqliteStore, tmp_path: Path
) -> AsyncIterator[Store]:
    """Each store there is."""
    if request.param == "own":
        yield store
    elif request.param == "remote":
        cluster = Cluster(store, MetadataConfig())
        await cluster.join("m1")
        remote = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
        yield remote
        await remote.close()
        await cluster.stop()
    else:
        found = await EtcdPlace(request.getfixturevalue("etcd")).open(tmp_path)
        yield found
        await found.close()


@pytest.fixture
async def near(shared: Store) -> AsyncIterator[ResourceConfigs]:
    near = ResourceConfigs(shared)
    await near.start()
    yield near
    await near.stop()


@pytest.fixture
async def far(shared: Store) -> AsyncIterator[ResourceConfigs]:
    """Of a second node on the same store."""
    far = ResourceConfigs(shared)
    await far.start()
    yield far
    await far.stop()


async def test_a_change_is_seen_here_at_once_and_elsewhere_by_the_watch(
    near: ResourceConfigs, far: ResourceConfigs
) -> None:
    told: list[tuple[str, str, dict[str, str]]] = []
    far.on_change(GROUP, lambda account, name, after: told.append((account, name, dict(after))))
    await near.change(ORDERS, {"a": "1", "b": "2"})
    assert near.get(ORDERS) == {"a": "1", "b": "2"}
    await until(lambda: far.get(ORDERS) == {"a": "1", "b": "2"})
    await far.change(ORDERS, {"a": None, "c": "3"})
    assert far.get(ORDERS) == {"b": "2", "c": "3"}
    await until(lambda: near.get(ORDERS) == {"b": "2", "c": "3"})
    await near.change(ORDERS, {"b": None, "c": None})
    assert (near.get(ORDERS), near.names(ACCOUNT, GROUP)) == ({}, ())
    await until(lambda: not far.get(ORDERS))
    assert told == [
        (ACCOUNT, "orders", {"a": "1", "b": "2"}),
        (ACCOUNT, "orders", {"b": "2", "c": "3"}),
        (ACCOUNT, "orders", {}),
    ]


async def test_changes_of_two_nodes_at_once_are_both_kept(
    near: ResourceConfigs, far: ResourceConfigs
) -> None:
    await asyncio.gather(
        *(near.change(ORDERS, {f"n{i}": "x"}) for i in range(10)),
        *(far.change(ORDERS, {f"f{i}": "x"}) for i in range(10)),
    )
    wanted = {f"{node}{i}": "x" for node in "nf" for i in range(10)}
    await until(lambda: near.get(ORDERS) == far.get(ORDERS) == wanted)


async def test_what_is_missing_is_added_and_nothing_is_replaced(near: ResourceConfigs) -> None:
    await near.change(ORDERS, {"a": "1"})
    await near.add_missing(ORDERS, {"a": "old", "b": "old"})
    assert near.get(ORDERS) == {"a": "1", "b": "old"}


async def test_tenants_and_names_are_told_apart(near: ResourceConfigs) -> None:
    names = ["", "/", "a/b", "%2F", "ü", "a b", "..", "\n"]
    for account in (ACCOUNT, OTHER):
        for name in names:
            await near.change(Resource(account, GROUP, name), {"is": f"{account} {name}"})
    for account in (ACCOUNT, OTHER):
        assert sorted(near.names(account, GROUP)) == sorted(names)
        for name in names:
            assert near.get(Resource(account, GROUP, name)) == {"is": f"{account} {name}"}


async def test_configs_outlive_a_restart(store: SqliteStore) -> None:
    first = ResourceConfigs(store)
    await first.start()
    await first.change(ORDERS, {"a": "1"})
    await first.stop()
    again = ResourceConfigs(store)
    await again.start()
    assert again.get(ORDERS) == {"a": "1"}
    await again.stop()


async def test_an_unknown_outcome_is_settled_by_reading(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = ResourceConfigs(store)
    await configs.start()
    put = store.put

    async def put_and_fail(key: str, value: bytes, *, if_version: int | None = None) -> int:
        await put(key, value, if_version=if_version)
        monkeypatch.undo()
        raise OutcomeUnknown("the connection was lost")

    monkeypatch.setattr(store, "put", put_and_fail)
    await configs.change(ORDERS, {"a": "1"})
    assert configs.get(ORDERS) == {"a": "1"}
    await configs.stop()


async def test_there_are_bounds(near: ResourceConfigs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_configs, "RESOURCE_CONFIGS_MAX", 1)
    await near.change(ORDERS, {"a": "1"})
    with pytest.raises(QuotaExceeded, match="1 of 1 resources"):
        await near.change(Resource(OTHER, GROUP, "more"), {"a": "1"})
    await near.change(ORDERS, {"a": "2"})
    with pytest.raises(InvalidRequest, match="at most 65,536 bytes"):
        await near.change(ORDERS, {"a": "x" * RESOURCE_CONFIGS_BYTES_MAX})
    assert near.get(ORDERS) == {"a": "2"}
    long = Resource(ACCOUNT, GROUP, "x" * KEY_BYTES_MAX)
    with pytest.raises(InvalidRequest, match="at most 1024 bytes"):
        await near.change(long, {"a": "1"})
    assert near.get(long) == {}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_every_name_has_one_key(name: str) -> None:
    resource = Resource(ACCOUNT, GROUP, name)
    assert resource_of(config_key(resource)) == resource


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{CONFIGS_PREFIX}{ACCOUNT}/group/%6Frders", b'{"a":"1"}'),  # another way to write it
        (f"{CONFIGS_PREFIX}{ACCOUNT}/group/a/b", b'{"a":"1"}'),
        (f"{CONFIGS_PREFIX}{ACCOUNT}/group", b'{"a":"1"}'),
        (f"{CONFIGS_PREFIX}{ACCOUNT}/nothing/x", b'{"a":"1"}'),
        (f"{CONFIGS_PREFIX}x/group/x", b'{"a":"1"}'),
        (config_key(ORDERS), b"{}"),
        (config_key(ORDERS), b'{"a":1}'),
        (config_key(ORDERS), b"["),
        (config_key(ORDERS), b'{"a":"%s"}' % (b"x" * RESOURCE_CONFIGS_BYTES_MAX)),
    ],
)
def test_other_nodes_cannot_write_what_nobody_can_read(key: str, value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_txn(Txn(compare=((key, 0),), puts=((key, value),)))


def test_other_nodes_write_by_version_only() -> None:
    key, value = config_key(ORDERS), b'{"a":"1"}'
    assert check_txn(Txn(compare=((key, 0),), puts=((key, value),))) == [key]
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn((), puts=((key, value),)))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn((), deletes=(key,)))
    with pytest.raises(InvalidRequest, match="lease"):
        check_txn(Txn(compare=((key, 0),), puts=((key, value),), lease=7))
