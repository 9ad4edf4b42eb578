"""Frontends know how many of them there are, whatever the store is, and forget those that end."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.unit.metadata.cluster import QUICK, Cluster
from tests.unit.metadata.conftest import until

from penstock.membership import registration
from penstock.membership.registration import (
    FORGOTTEN_BEATS,
    SILENT_BEATS_MAX,
    LiveFrontends,
)
from penstock.metadata.cache import PrefixWatch
from penstock.metadata.cluster_entries import FRONTENDS_MAX
from penstock.metadata.cluster_entries import FRONTENDS_PREFIX as PREFIX
from penstock.metadata.serving import entry_rules
from penstock.metadata.serving.remote_store import RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.model.errors import InvalidRequest, PenstockError
from penstock.telemetry.clock import SystemClock


@pytest.fixture(autouse=True)
def no_beats_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests say when there is one."""
    monkeypatch.setattr(registration, "BEAT_SECONDS", 3_600.0)


def make(store: Store, node: str = "node") -> LiveFrontends:
    return LiveFrontends(store, node=node, entropy=os.urandom)


async def beat(one: LiveFrontends, times: int = 1) -> None:
    """And hear oneself each time."""
    for _ in range(times):
        turn = one._turn
        await one.beat()
        await until(lambda turn=turn: one._turn > turn)  # type: ignore[misc]


async def killed(one: LiveFrontends) -> None:
    assert one._task is not None
    one._task.cancel()
    await asyncio.wait((one._task,))
    await PrefixWatch.stop(one)


async def test_each_counts_all_that_are_heard_of_and_says_when_that_changes(shared: Store) -> None:
    one, two = make(shared), make(shared)
    told: list[int] = []
    one.on_change(told.append)
    await one.start()
    assert (one.count, told) == (1, [])
    await two.start()
    assert two.count == 2, "known before anybody is served"
    await until(lambda: one.count == 2)
    await two.stop()
    await until(lambda: one.count == 1)
    assert told == [2, 1]
    await one.stop()
    assert (await shared.list(PREFIX))[0] == []


async def test_one_that_falls_silent_stops_counting_and_is_forgotten_later(shared: Store) -> None:
    one, two = make(shared), make(shared)
    await one.start()
    await until(lambda: one._turn == 1)
    await two.start()
    await until(lambda: one.count == 2)
    await killed(two)
    await beat(one, SILENT_BEATS_MAX - 1)
    assert one.count == 2, "some beats may be lost"
    await beat(one)
    assert one.count == 1
    assert len((await shared.list(PREFIX))[0]) == 2
    await beat(one, FORGOTTEN_BEATS - SILENT_BEATS_MAX + 1)
    assert [entry.key for entry in (await shared.list(PREFIX))[0]] == [one._key]
    await two.beat()  # it was only very slow
    await until(lambda: one.count == 2)
    await one.stop()
    await two.stop()


async def test_silence_while_the_metadata_is_away_means_nothing(store: SqliteStore) -> None:
    cluster = Cluster(store, MetadataConfig())
    node = await cluster.join("m1")
    stores = [
        RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=QUICK) for _ in range(2)
    ]
    one, two = (make(each) for each in stores)
    await one.start()
    await two.start()
    await until(lambda: one.count == two.count == 2)
    await node.cut_off()
    for _ in range(2 * SILENT_BEATS_MAX):
        with pytest.raises(PenstockError):
            await one.beat()
    assert one.count == 2
    await node.listen()
    await until(lambda: stores[0].trouble is None and stores[1].trouble is None)
    await beat(one, SILENT_BEATS_MAX - 1)
    assert one.count == 2, "the other has been asked for none of these beats yet"
    await beat(two)
    await beat(one, SILENT_BEATS_MAX - 1)
    assert one.count == 2
    for each in (one, two):
        await each.stop()
    for remote in stores:
        await remote.close()
    await cluster.stop()


async def test_a_beat_whose_answer_was_lost_is_followed_by_another(shared: Store) -> None:
    one, two = make(shared), make(shared)
    await one.start()
    await two.start()
    await shared.put(one._key, b"node", if_version=one._version)  # as the lost one did
    one._version = 1
    await one.beat()
    await shared.delete(two._key, if_version=two._version)  # as who forgot it did
    await two.beat()
    assert len((await shared.list(PREFIX))[0]) == 2
    await one.stop()
    await two.stop()
    assert (await shared.list(PREFIX))[0] == []


async def test_one_too_many_serves_all_the_same(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(FRONTENDS_MAX):
        await store.put(f"{PREFIX}{number:032x}", b"node")
    cluster = Cluster(store, MetadataConfig())
    await cluster.join("m1")
    remote = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
    one = make(remote)
    await one.start()
    assert one.count == FRONTENDS_MAX + 1
    assert [record.message for record in caplog.records].count("frontend heartbeat failed") == 1
    await one.stop()
    await remote.close()
    await cluster.stop()


async def test_what_is_missed_is_read_again_without_taking_old_entries_for_new(
    tmp_path: Path,
) -> None:
    store = await SqliteStore.open(tmp_path / "small.db", history_revisions_max=1)
    one, two = make(store), make(store)
    await two.start()
    await killed(two)
    await one.start()
    await beat(one, SILENT_BEATS_MAX)
    assert one.count == 1
    await one._fill()
    assert one.count == 1, "its entry is the same"
    await one.stop()
    await store.close()


ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (f"{PREFIX}{ID}0", b"node"),
        (f"{PREFIX}{ID[:-1]}G", b"node"),
        (f"{PREFIX}{ID}/{ID}", b"node"),
        (PREFIX, b"node"),
        (f"{PREFIX}{ID}", b""),
        (f"{PREFIX}{ID}", b"n" * 256),
        (f"{PREFIX}{ID}", b"\xff"),
    ],
)
def test_only_names_of_nodes_are_written_and_only_where_they_belong(key: str, value: bytes) -> None:
    good = Txn(compare=((PREFIX + ID, 0),), puts=((PREFIX + ID, b"node"),), deletes=())
    assert entry_rules.check_txn(good) == [PREFIX + ID]
    with pytest.raises(InvalidRequest):
        entry_rules.check_txn(Txn(compare=((key, 0),), puts=((key, value),), deletes=()))
