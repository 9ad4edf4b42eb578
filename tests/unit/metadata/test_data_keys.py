"""Data keys over a real store and a real key ring: when there is another one, who counts its uses,
and how long the old ones stay."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import msgspec
import pytest

from penstock.metadata.security.data_keys import (
    BLOCK_USES,
    COPIES_MS,
    DATA_KEYS_PREFIX,
    DAY_MS,
    KEYS_PER_TOPIC_MAX,
    RESERVED_MS,
    USES_MAX,
    DataKeyEntry,
    DataKeys,
)
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.topics.catalog import StoredCatalog
from penstock.model.errors import Overloaded, PenstockError
from penstock.model.limits import SEGMENT_AGE_MS_MAX
from penstock.model.topic import Kind, Topic
from penstock.node.keys.keyring import MasterKeyRing

HOUR_MS = 3_600_000
MASTER = b"m" * 32


class HandClock:
    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.now_ms

    def mono_ms(self) -> int:
        return self.now_ms


def new_topic(name: str = "orders", **more: object) -> Topic:
    topic = Topic(
        topic_id=os.urandom(16).hex(),
        account="000000000001",
        region="here",
        name=name,
        kind=Kind.STANDARD,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"r" * 32,
    )
    return msgspec.structs.replace(topic, **more)


class Stage:
    def __init__(self, store: Store, truth: SqliteStore, catalog: StoredCatalog) -> None:
        """``truth``: the store itself, however the node comes by it."""
        self.store = store
        self.truth = truth
        self.catalog = catalog
        self.clock = HandClock()
        self.keys = self.node()

    def node(self, ring: MasterKeyRing | None = None) -> DataKeys:
        return DataKeys(
            self.store,
            ring or MasterKeyRing(MASTER),
            self.catalog,
            clock=self.clock,
            entropy=os.urandom,
        )

    async def entries(self) -> dict[str, DataKeyEntry]:
        listed, _ = await self.truth.list(DATA_KEYS_PREFIX)
        return {e.key: msgspec.json.decode(e.value, type=DataKeyEntry) for e in listed}

    async def entry(self) -> DataKeyEntry:
        [entry] = (await self.entries()).values()
        return entry


@pytest.fixture
async def stage(shared: Store, store: SqliteStore) -> AsyncIterator[Stage]:
    catalog = StoredCatalog(shared)
    await catalog.start()
    stage = Stage(shared, store, catalog)
    await stage.keys.start()
    yield stage
    await stage.keys.stop()
    await catalog.stop()


async def test_a_key_is_durable_before_it_is_used_and_never_stored_in_the_clear(
    stage: Stage,
) -> None:
    topic = new_topic()
    assert stage.keys.take(topic, 1) is None
    assert not stage.keys.has(topic.topic_id)
    key = await stage.keys.reserve(topic, 1)
    [(at, entry)] = (await stage.entries()).items()
    assert at == f"/datakeys/{topic.topic_id}/{key.place[16:].hex()}"
    assert entry.account == topic.account
    secret = MasterKeyRing(MASTER).unwrap(entry.wrapped, context=at.encode())
    assert len(secret) == 32
    assert secret not in entry.wrapped
    assert stage.keys.take(topic, 5) is key
    assert stage.keys.find(key.place) is key
    assert stage.keys.has(topic.topic_id)
    assert secret.hex() not in repr(key) + str(stage.keys.trouble)


async def test_many_who_need_a_first_key_at_once_get_the_same_one(stage: Stage) -> None:
    topic = new_topic()
    found = await asyncio.gather(*(stage.keys.reserve(topic, 1) for _ in range(50)))
    assert len({id(key) for key in found}) == 1
    assert (await stage.entry()).reserved == BLOCK_USES


async def test_a_request_that_goes_away_takes_nobodys_key_with_it(stage: Stage) -> None:
    topic = new_topic()
    first = asyncio.create_task(stage.keys.reserve(topic, 1))
    second = asyncio.create_task(stage.keys.reserve(topic, 1))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).place[:16].hex() == topic.topic_id


async def test_a_restart_goes_on_with_the_same_key_and_counts_another_block(stage: Stage) -> None:
    topic = new_topic()
    key = await stage.keys.reserve(topic, 1)
    again = stage.node()
    await again.start()
    assert (await again.reserve(topic, 1)).place == key.place
    assert (await stage.entry()).reserved == 2 * BLOCK_USES
    await again.stop()


async def test_a_key_that_is_used_up_is_followed_by_another(stage: Stage) -> None:
    topic = new_topic()
    places = set()
    for _ in range(USES_MAX // BLOCK_USES + 1):
        key = await stage.keys.reserve(topic, BLOCK_USES)
        places.add(key.place)
        if len(places) == 1:
            assert (await stage.entry()).reserved <= USES_MAX
    assert len(places) == 2


@pytest.mark.slow
async def test_two_nodes_never_use_a_key_more_often_than_allowed(stage: Stage) -> None:
    topic = new_topic()
    other = stage.node()
    await other.start()
    count: dict[bytes, int] = {}

    async def use(keys: DataKeys) -> None:
        for _ in range(USES_MAX // BLOCK_USES):
            place = (await keys.reserve(topic, BLOCK_USES)).place
            count[place] = count.get(place, 0) + BLOCK_USES
            await asyncio.sleep(0.002)  # sixteen million messages take a moment

    await asyncio.gather(use(stage.keys), use(other))
    assert sum(count.values()) == 2 * USES_MAX
    assert max(count.values()) <= USES_MAX
    await other.stop()


async def test_after_a_day_there_is_a_new_key_and_nobody_has_waited_for_it(stage: Stage) -> None:
    topic = new_topic()
    first = await stage.keys.reserve(topic, 1)
    stage.clock.now_ms += RESERVED_MS - HOUR_MS + 1
    assert stage.keys.take(topic, 1) is first  # and another one is on its way
    while (key := stage.keys.take(topic, 1)) in (first, None):
        await asyncio.sleep(0)
    assert key is not None
    assert key.place != first.place
    assert stage.keys.find(first.place) is first


async def test_a_key_past_its_time_is_not_used_even_if_nobody_renewed_it(stage: Stage) -> None:
    topic = new_topic()
    first = await stage.keys.reserve(topic, 1)
    stage.clock.now_ms += RESERVED_MS
    assert stage.keys.take(topic, 1) is None
    assert (await stage.keys.reserve(topic, 1)).place != first.place


async def test_another_kms_key_on_the_queue_is_another_data_key(stage: Stage) -> None:
    topic = new_topic()
    plain = await stage.keys.reserve(topic, 1)
    named = topic.with_settings(now_ms=0, kms_key="alias/one")
    assert stage.keys.take(named, 1) is None
    one = await stage.keys.reserve(named, 1)
    assert one.place != plain.place
    renamed = topic.with_settings(now_ms=0, kms_key="alias/two")
    two = await stage.keys.reserve(renamed, 1)
    # Back and forth makes no more of them.
    assert (await stage.keys.reserve(named, 1)).place == one.place
    assert (await stage.keys.reserve(renamed, 1)).place == two.place
    assert len(await stage.entries()) == 3


async def test_a_key_can_be_replaced_on_demand_and_all_nodes_go_over_to_the_new_one(
    stage: Stage,
) -> None:
    topic = new_topic()
    other = stage.node()
    await other.start()
    first = await stage.keys.reserve(topic, 1)
    assert (await other.learn(first.place)) is not None
    assert (await other.reserve(topic, 1)).place == first.place
    stage.clock.now_ms += 1
    await stage.keys.rotate(topic)
    fresh = stage.keys.take(topic, 1)
    assert fresh is not None
    assert fresh.place != first.place
    while (key := other.take(topic, 1)) is not None and key.place == first.place:
        await asyncio.sleep(0.01)  # the watch is on its way
    assert (await other.reserve(topic, 1)).place == fresh.place
    await other.stop()


async def test_a_key_made_elsewhere_a_moment_ago_is_learned_from_the_store(stage: Stage) -> None:
    other = stage.node()  # not started: it has no watch
    key = await stage.keys.reserve(new_topic(), 1)
    assert other.find(key.place) is None
    learned = await other.learn(key.place)
    assert learned is not None
    assert learned.place == key.place
    assert await other.learn(os.urandom(24)) is None


async def test_a_full_set_of_keys_is_not_added_to_for_the_sake_of_age(stage: Stage) -> None:
    topic = new_topic()
    at_ms = stage.clock.now_ms
    ring = MasterKeyRing(MASTER)
    keys = [f"{DATA_KEYS_PREFIX}{topic.topic_id}/{n:016x}" for n in range(KEYS_PER_TOPIC_MAX)]
    for start in range(0, len(keys), 128):
        puts = []
        for at in keys[start : start + 128]:
            wrapped = ring.wrap(b"k" * 32, context=at.encode())
            puts.append((at, msgspec.json.encode(DataKeyEntry(topic.account, wrapped, at_ms))))
        await stage.truth.txn(puts=puts)
    async with asyncio.timeout(10):  # until the service, if there is one between, has heard of it
        while len((await stage.store.list(DATA_KEYS_PREFIX))[0]) < len(keys):
            await asyncio.sleep(0.01)
    crowded = stage.node()
    await crowded.start()
    stage.clock.now_ms += 3 * DAY_MS
    key = await crowded.reserve(topic, 1)
    assert key.place.hex().endswith(f"{KEYS_PER_TOPIC_MAX - 1:016x}")
    with pytest.raises(Overloaded):
        await crowded.rotate(topic)
    await crowded.stop()


# ── Going ────────────────────────────────────────────────────────────────────────────────────
async def test_old_keys_stay_as_long_as_anything_sealed_with_them_may(stage: Stage) -> None:
    topic = await stage.catalog.create(new_topic())
    await stage.keys.reserve(topic, 1)
    stage.clock.now_ms += 1
    kept_ms = RESERVED_MS + topic.settings.retention_ms + SEGMENT_AGE_MS_MAX + COPIES_MS
    stage.clock.now_ms += kept_ms - 2
    assert await stage.keys.sweep() == 0
    stage.clock.now_ms += HOUR_MS
    assert await stage.keys.sweep() == 1
    assert not stage.keys.has(topic.topic_id)
    assert not await stage.entries()
    assert stage.keys.take(topic, 1) is None  # and nobody seals with it any more


async def test_keys_of_a_topic_that_keeps_everything_stay_for_ever(stage: Stage) -> None:
    topic = new_topic(kind=Kind.STREAM, configs={"retention.ms": "-1"})
    await stage.catalog.create(topic)
    key = await stage.keys.reserve(topic, 1)
    stage.clock.now_ms += 10 * 365 * DAY_MS
    assert await stage.keys.sweep() == 0
    assert stage.keys.find(key.place) is not None


async def test_keys_of_a_deleted_topic_outlive_it_as_long_as_dead_letters_do(stage: Stage) -> None:
    topic = await stage.catalog.create(new_topic())
    key = await stage.keys.reserve(topic, 1)
    await stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=0)
    assert await stage.keys.sweep() == 0
    assert (await stage.entry()).orphaned_at_ms == stage.clock.now_ms
    stage.clock.now_ms += COPIES_MS - 1
    assert await stage.keys.sweep() == 0
    assert stage.keys.find(key.place) is not None
    stage.clock.now_ms += HOUR_MS
    assert await stage.keys.sweep() == 1
    assert stage.keys.find(key.place) is None


async def test_a_topic_that_comes_back_into_sight_keeps_its_keys(stage: Stage) -> None:
    topic = new_topic()
    await stage.keys.reserve(topic, 1)
    await stage.keys.sweep()  # the catalog does not know it yet
    assert (await stage.entry()).orphaned_at_ms
    await stage.catalog.create(topic)
    stage.clock.now_ms += COPIES_MS + HOUR_MS
    assert await stage.keys.sweep() == 0
    assert (await stage.entry()).orphaned_at_ms == 0


async def test_a_sweep_looks_once_an_hour(stage: Stage) -> None:
    await stage.keys.sweep()
    topic = new_topic()
    await stage.keys.reserve(topic, 1)
    stage.clock.now_ms += HOUR_MS - 1
    await stage.keys.sweep()
    assert not (await stage.entry()).orphaned_at_ms
    stage.clock.now_ms += 1
    await stage.keys.sweep()
    assert (await stage.entry()).orphaned_at_ms


# ── Another master key ───────────────────────────────────────────────────────────────────────
async def test_a_new_master_key_wraps_everything_anew_and_the_old_one_can_go(stage: Stage) -> None:
    topic = new_topic()
    key = await stage.keys.reserve(topic, 1)
    sealed = key.encrypt(b"n" * 12, b"content", b"")
    both = MasterKeyRing(b"n" * 32, old=[MASTER])
    turned = stage.node(both)
    await turned.start()
    resealed = await turned.reseal(both.rewrap)
    assert (resealed.count, resealed.unreadable) == (1, 0)
    assert (await turned.reseal(both.rewrap)).count == 0
    await turned.stop()
    fresh = stage.node(MasterKeyRing(b"n" * 32))
    await fresh.start()
    found = fresh.find(key.place)
    assert found is not None
    assert found.decrypt(b"n" * 12, sealed, b"") == b"content"
    assert fresh.trouble is None
    await fresh.stop()


async def test_a_wrong_master_key_is_told_and_gives_no_key(stage: Stage) -> None:
    topic = new_topic()
    key = await stage.keys.reserve(topic, 1)
    ring = MasterKeyRing(b"w" * 32)
    wrong = stage.node(ring)
    await wrong.start()
    assert wrong.find(key.place) is None
    assert wrong.trouble is not None
    assert "1 data keys cannot be unwrapped" in wrong.trouble
    assert (await wrong.reseal(ring.rewrap)).unreadable == 1
    # What is sent now is sealed with a key that can be read.
    assert (await wrong.reserve(topic, 1)).place != key.place
    await wrong.stop()


async def test_an_entry_in_the_place_of_another_gives_no_key(stage: Stage) -> None:
    one, two = new_topic("one"), new_topic("two")
    key = await stage.keys.reserve(one, 1)
    entry = await stage.entry()
    forged = f"{DATA_KEYS_PREFIX}{two.topic_id}/{key.place[16:].hex()}"
    await stage.truth.put(forged, msgspec.json.encode(entry))
    assert await stage.keys.learn(bytes.fromhex(two.topic_id) + key.place[16:]) is None


async def test_a_store_that_fails_is_told_to_whoever_waits_and_to_nobody_else(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    first = await stage.keys.reserve(topic, 1)

    async def fail(*_args: object, **_more: object) -> int:
        raise PenstockError("the store is away")

    monkeypatch.setattr(stage.store, "put", fail)
    stage.clock.now_ms += RESERVED_MS - HOUR_MS + 1
    assert stage.keys.take(topic, 1) is first
    await asyncio.sleep(0.01)  # the attempt has failed, with nobody waiting
    assert stage.keys.take(topic, 1) is first
    stage.clock.now_ms += HOUR_MS
    with pytest.raises(PenstockError, match="away"):
        await stage.keys.reserve(topic, 1)
