"""Subscriptions: two nodes over one store, their own or that of a metadata service or etcd."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.metadata.cluster import Cluster
from tests.unit.metadata.cluster import until as until_within
from tests.unit.metadata.conftest import ACCOUNT, MASTER, OTHER, make_node, make_tenant
from tests.unit.metadata.stores import CALL_MS, EtcdPlace

from penstock.metadata.serving.entry_rules import check_txn
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.serving.service import MetadataConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store, Txn
from penstock.metadata.subscriptions import (
    SUBSCRIPTIONS_PREFIX,
    StoredSubscriptions,
    encode_subscription,
    subscription_key,
)
from penstock.model import limits
from penstock.model.errors import InvalidRequest, NotFound, Overloaded, QuotaExceeded
from penstock.model.levels import PUSH
from penstock.model.limits import CONFIRMATION_MS
from penstock.model.names import sns_arn
from penstock.model.ports import Subscriptions
from penstock.model.subscription import Subscription, SubscriptionState, new_id
from penstock.node.keys.keyring import MasterKeyRing
from penstock.telemetry.clock import SystemClock
from penstock.wire.internal.faults import OutcomeUnknown

REGION = "us-east-1"
TOPIC, OTHER_TOPIC = "ab" * 16, "cd" * 16
PENDING, CONFIRMED = SubscriptionState.PENDING, SubscriptionState.CONFIRMED
DELETED = SubscriptionState.DELETED


def make(
    endpoint: str = "https://a.example/", topic_id: str = TOPIC, **changes: object
) -> Subscription:
    account = str(changes.pop("account", ACCOUNT))
    protocol = str(changes.pop("protocol", "https"))
    one = Subscription(
        id=new_id(topic_id, protocol, endpoint, random=os.urandom(8)),
        topic_id=topic_id,
        source_arn=sns_arn(account, REGION, "orders"),
        account=account,
        region=REGION,
        protocol=protocol,
        endpoint=endpoint,
        created_at_ms=1_000,
    )
    return msgspec.structs.replace(one, **changes)


def with_attributes(one: Subscription, **attributes: str) -> Subscription:
    return msgspec.structs.replace(one, attributes={**one.attributes, **attributes})


def in_state(one: Subscription, state: SubscriptionState, at_ms: int = 0) -> Subscription:
    return msgspec.structs.replace(one, state=state, deleted_at_ms=at_ms)


until = partial(until_within, seconds=CALL_MS / 1_000)
PATIENT = RemoteConfig(watch_ms=500, call_ms=CALL_MS)


async def listed(store: Store, prefix: str, keys: set[str]) -> None:
    """Wait until these are the keys in the store, as a metadata node lists them."""
    async with asyncio.timeout(CALL_MS / 1_000):
        while {entry.key for entry in (await store.list(prefix))[0]} != keys:
            await asyncio.sleep(0.002)


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
        remote = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=PATIENT)
        yield remote
        await remote.close()
        await cluster.stop()
    else:
        found = await EtcdPlace(request.getfixturevalue("etcd")).open(tmp_path)
        yield found
        await found.close()


class Node:
    def __init__(self, store: Store, level: int = PUSH) -> None:
        self.identities = make_node(store)
        self.stored = StoredSubscriptions(
            store, self.identities, own_account="000000000000", level=lambda: level
        )
        self.port: Subscriptions = self.stored  # for the type checker
        self.changes: list[tuple[Subscription | None, Subscription | None]] = []
        self.stored.on_change(lambda before, after: self.changes.append((before, after)))

    async def start(self) -> "Node":
        await self.identities.start()
        await self.stored.start()
        return self

    async def stop(self) -> None:
        await self.stored.stop()
        await self.identities.stop()

    def ids(self, topic_id: str = TOPIC) -> list[str]:
        return sorted(one.id for one in self.stored.of_topic(topic_id))


@pytest.fixture
async def near(shared: Store) -> AsyncIterator[Node]:
    node = await Node(shared).start()
    yield node
    await node.stop()


@pytest.fixture
async def far(shared: Store) -> AsyncIterator[Node]:
    """A second node on the same store."""
    node = await Node(shared).start()
    yield node
    await node.stop()


async def test_a_subscription_is_found_here_at_once_and_elsewhere_by_the_watch(
    near: Node, far: Node
) -> None:
    one = make(attributes={"RawMessageDelivery": "true"})
    assert await near.stored.create(one) == one
    for node in (near, far):
        await until(lambda node=node: node.stored.find(one.id) == one)  # type: ignore[misc]
        assert node.stored.find_endpoint(TOPIC, "https", one.endpoint) == one
        assert list(node.stored.of_topic(TOPIC)) == [one]
        assert node.stored.page(ACCOUNT, REGION, count=10) == [one]
        assert node.stored.page_of_topic(TOPIC, count=10) == [one]
        assert node.stored.count(TOPIC, PENDING) == 1
        assert node.changes == [(None, one)]
        assert node.stored.find_endpoint(TOPIC, "http", one.endpoint) is None
        assert node.stored.find("x") is None
        assert node.stored.page(OTHER, REGION, count=10) == []
    await far.stored.delete(one.id)
    for node in (far, near):
        await until(lambda node=node: node.stored.find(one.id) is None)  # type: ignore[misc]
        assert node.changes[1:] == [(one, None)]
        assert len(node.stored) == 0
        assert not node.stored._ids
        assert not node.stored._by_topic
        assert not node.stored._states
        assert (node.stored.used(ACCOUNT), node.stored._bytes.total) == (0, 0)


async def test_another_node_learns_of_a_subscription_before_its_watch_reports_it(
    near: Node, far: Node
) -> None:
    one = await near.stored.create(make())
    assert await far.stored.learn(one.id) == one
    assert await far.stored.learn(make("https://b.example/").id) is None
    assert await far.stored.learn("no id") is None
    later = make()  # the same endpoint, but another id
    assert await far.stored.learn(later.id) is None


async def test_the_same_endpoint_is_subscribed_once_by_whichever_node(
    near: Node, far: Node
) -> None:
    endpoints = [f"https://e{n}.example/" for n in range(10)]
    made = await asyncio.gather(
        *(node.stored.create(make(one)) for one in endpoints for node in (near, far, near))
    )
    assert len({one.id for one in made}) == len(endpoints)
    await until(lambda: near.ids() == far.ids() == sorted({one.id for one in made}))
    keys = {subscription_key(one.id) for one in made}
    await listed(near.stored._store, SUBSCRIPTIONS_PREFIX, keys)


async def test_a_subscription_is_not_found_again_that_another_node_has_deleted(
    near: Node, far: Node
) -> None:
    first = await near.stored.create(make())
    await until(lambda: far.stored.find(first.id) is not None)
    await far.stored._rows.stop()  # it gets no changes any more
    await near.stored.delete(first.id)
    second = await far.stored.create(make())
    assert second.id != first.id
    await until(lambda: near.stored.find(second.id) == second)
    with pytest.raises(NotFound):
        await far.stored.change(first.id, lambda one: with_attributes(one, A="1"))
    assert far.changes[-2:] == [(first, None), (None, second)]


async def test_changes_of_two_nodes_are_all_made(near: Node, far: Node) -> None:
    one = await near.stored.create(make())

    async def add(node: Node, name: str) -> None:
        await node.stored.change(one.id, lambda found: with_attributes(found, **{name: "1"}))

    names = [f"A{n}" for n in range(20)]
    await asyncio.gather(*(add(near if n % 2 else far, name) for n, name in enumerate(names)))
    for node in (near, far):
        await until(
            lambda node=node: set(node.stored.find(one.id).attributes) == set(names)  # type: ignore
        )
    assert near.stored.count(TOPIC, PENDING) == len(near.stored) == 1


async def test_a_change_that_memory_takes_for_done_is_made(near: Node, far: Node) -> None:
    one = await near.stored.create(make(attributes={"A": "1"}))
    await until(lambda: far.stored.find(one.id) is not None)
    await far.stored._rows.stop()
    await near.stored.change(one.id, lambda found: with_attributes(found, A="2"))
    changed = await far.stored.change(one.id, lambda found: with_attributes(found, A="1"))
    assert changed.attributes == {"A": "1"}
    await until(lambda: near.stored.find(one.id) == changed)


async def test_an_unknown_subscription_is_not_changed_and_deleted_without_effect(
    near: Node, far: Node
) -> None:
    one = await near.stored.create(make())
    for unknown in (make().id, make("https://b.example/").id, "x", ""):
        with pytest.raises(NotFound, match=r"^Subscription does not exist$"):
            await near.stored.change(unknown, lambda found: found)
        await near.stored.delete(unknown)
    assert near.stored.find(one.id) == one
    await far.stored.delete(one.id)  # before its watch may have reported it
    assert await near.stored._store.get(subscription_key(one.id)) is None


async def test_a_deleted_subscription_can_be_restored_or_replaced(near: Node) -> None:
    one = await near.stored.create(make(state=CONFIRMED))
    gone = await near.stored.change(one.id, lambda found: in_state(found, DELETED, 5_000))
    assert near.stored.find(one.id) is near.stored.find_endpoint(TOPIC, "https", one.endpoint)
    assert near.stored.find(one.id) is await near.stored.learn(one.id) is None
    assert near.ids() == []
    assert near.stored.page(ACCOUNT, REGION, count=9) == []
    counts = [near.stored.count(TOPIC, state) for state in SubscriptionState]
    assert counts == [0, 0, 1]
    back = await near.stored.change(one.id, lambda found: in_state(found, CONFIRMED))
    assert near.stored.find(one.id) == back
    await near.stored.change(one.id, lambda _found: gone)
    other = await near.stored.create(make())
    assert other.id != one.id
    assert near.ids() == [other.id]
    with pytest.raises(NotFound):
        await near.stored.change(one.id, lambda found: in_state(found, CONFIRMED))
    assert near.changes == [
        (None, one), (one, None), (None, back), (back, None), (None, other),
    ]  # fmt: skip


async def test_pages_follow_each_other_although_some_are_deleted(near: Node) -> None:
    made = [await near.stored.create(make(f"https://{n}.example/")) for n in range(25)]
    await near.stored.create(make(account=OTHER, topic_id=OTHER_TOPIC))
    ids = sorted(one.id for one in made)
    found: list[str] = []
    after = ""
    while page := near.stored.page(ACCOUNT, REGION, after=after, count=10):
        after = page[-1].id
        found += (one.id for one in page)
        await near.stored.delete(after)
    assert found == ids
    assert [one.id for one in near.stored.page_of_topic(TOPIC, count=100)] == near.ids()
    assert len(near.ids()) == 22


async def test_all_subscriptions_of_a_topic_are_deleted_in_few_transactions(
    near: Node, far: Node
) -> None:
    store = near.stored._store
    many = [make(f"https://{n}.example/") for n in range(300)]
    for start in (0, 100, 200):
        some = many[start : start + 100]
        await store.txn(
            compare=[(subscription_key(one.id), 0) for one in some],
            puts=[(subscription_key(one.id), encode_subscription(one)) for one in some],
        )
    kept = await near.stored.create(make(topic_id=OTHER_TOPIC))
    await until(lambda: len(near.stored) == len(far.stored) == 301)
    # One is changed by another node, and not yet known here.
    await near.stored._rows.stop()
    await far.stored.change(many[0].id, lambda one: with_attributes(one, A="1"))
    assert await near.stored.delete_of_topic(TOPIC) == 300
    await listed(store, SUBSCRIPTIONS_PREFIX, {subscription_key(kept.id)})
    await until(lambda: list(far.stored.of_topic(TOPIC)) == [])
    assert far.stored.find(kept.id) == kept
    assert await far.stored.delete_all() == 1
    await listed(store, SUBSCRIPTIONS_PREFIX, set())


async def test_a_sweep_deletes_what_was_not_confirmed_and_what_has_no_topic(near: Node) -> None:
    old, now_ms = 1_000, 1_000 + CONFIRMATION_MS
    make_all = {
        "late": make("https://late/"),
        "young": make("https://young/", created_at_ms=old + 1),
        "webhook": make("https://webhook/", webhook="{}"),
        "confirmed": make("https://confirmed/", state=CONFIRMED),
        "gone": make("https://gone/", state=CONFIRMED),
        "just gone": make("https://just-gone/", state=CONFIRMED),
        "orphan": make("https://orphan/", OTHER_TOPIC, state=CONFIRMED),
    }
    made = {name: await near.stored.create(one) for name, one in make_all.items()}
    await near.stored.change(made["gone"].id, lambda one: in_state(one, DELETED, old))
    await near.stored.change(made["just gone"].id, lambda one: in_state(one, DELETED, old + 1))
    assert await near.stored.sweep(now_ms=now_ms - 1, is_deleted=lambda _topic: False) == 0
    assert await near.stored.sweep(now_ms=now_ms, is_deleted=lambda topic: topic != TOPIC) == 3
    assert near.ids() == sorted(made[name].id for name in ("young", "webhook", "confirmed"))
    assert [near.stored.count(TOPIC, state) for state in SubscriptionState] == [2, 1, 1]
    assert near.ids(OTHER_TOPIC) == []
    restored = await near.stored.change(made["just gone"].id, lambda one: in_state(one, CONFIRMED))
    assert near.stored.find(restored.id) == restored


async def test_a_subscription_that_was_not_confirmed_in_time_is_replaced(near: Node) -> None:
    first = await near.stored.create(make())
    in_time = make(created_at_ms=first.created_at_ms + CONFIRMATION_MS - 1)
    assert await near.stored.create(in_time) == first
    late = make(created_at_ms=first.created_at_ms + CONFIRMATION_MS)
    assert await near.stored.create(late) == late
    confirmed = await near.stored.change(late.id, lambda one: in_state(one, CONFIRMED))
    assert await near.stored.create(make(created_at_ms=9 * CONFIRMATION_MS)) == confirmed


async def test_subscriptions_are_bounded(near: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_MAX", 6)
    monkeypatch.setattr(limits, "SUBSCRIPTIONS_PER_TOPIC_MAX", 4)
    await near.identities.create_tenant(make_tenant())
    tenant = await near.identities.change_tenant(
        ACCOUNT,
        lambda one: msgspec.structs.replace(
            one, quotas=msgspec.structs.replace(one.quotas, subscriptions_max=5)
        ),
    )
    assert tenant.quotas.subscriptions_max == 5
    made = [await near.stored.create(make(f"https://{n}.example/")) for n in range(4)]
    with pytest.raises(QuotaExceeded, match="The topic has 4 of 4"):
        await near.stored.create(make())
    assert (await near.stored.create(make("https://0.example/"))).id == made[0].id
    await near.stored.create(make(topic_id=OTHER_TOPIC))
    assert near.stored.used(ACCOUNT) == 5
    with pytest.raises(QuotaExceeded, match=r"has 5 of 5 subscriptions.*--subscriptions-max"):
        await near.stored.create(make("https://b.example/", OTHER_TOPIC))
    await near.stored.create(make(topic_id="ef" * 16, account=OTHER))
    with pytest.raises(QuotaExceeded, match="All tenants together have 6 of 6"):
        await near.stored.create(make("https://b.example/", "ef" * 16, account=OTHER))
    # A deleted one counts until it is gone, and makes room in its topic.
    await near.stored.change(made[0].id, lambda one: in_state(one, DELETED, 1))
    assert len(near.stored) == 6
    assert (await near.stored.create(make("https://0.example/"))).id != made[0].id


async def test_their_bytes_are_bounded(near: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near.stored._bytes, "bound", 30_000)
    monkeypatch.setattr(near.stored._bytes, "most", 10_000)
    one = await near.stored.create(make(attributes={"FilterPolicy": "x" * 8_000}))
    with pytest.raises(QuotaExceeded, match=r"1,0\d\d more do not fit"):
        await near.stored.create(make("https://b.example/"))
    with pytest.raises(QuotaExceeded):
        await near.stored.change(one.id, lambda found: with_attributes(found, A="x" * 2_000))
    await near.stored.change(one.id, lambda found: with_attributes(found, FilterPolicy=""))
    await near.stored.create(make("https://b.example/"))
    await near.stored.change(one.id, lambda found: in_state(found, CONFIRMED))  # no more bytes
    own = make("https://c.example/", account="000000000000")
    with pytest.raises(QuotaExceeded):
        await near.stored.create(with_attributes(own, FilterPolicy="x" * 30_000))
    await near.stored.create(with_attributes(own, FilterPolicy="x" * 20_000))


@pytest.mark.parametrize("is_done", [False, True])
async def test_an_unknown_outcome_is_settled_by_looking(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    node = await Node(store).start()
    txn = store.txn
    lost = 0

    async def lose(**given: Any) -> int:
        nonlocal lost
        lost += 1
        if lost % 2:
            if is_done:
                await txn(**given)
            raise OutcomeUnknown("the reply was lost")
        return await txn(**given)

    def longer(found: Subscription) -> Subscription:
        return with_attributes(found, A=found.attributes.get("A", "") + "x")

    monkeypatch.setattr(store, "txn", lose)
    try:
        one = make()
        assert await node.stored.create(one) == one
        lost = 0
        assert (await node.stored.change(one.id, longer)).attributes == {"A": "x"}
        lost = 0
        await node.stored.delete(one.id)
        assert await store.get(subscription_key(one.id)) is None
        await until(lambda: node.stored.find(one.id) is None)
    finally:
        await node.stop()


async def test_nothing_is_written_below_the_feature_level(store: SqliteStore) -> None:
    node = await Node(store, level=PUSH - 1).start()
    with pytest.raises(Overloaded, match=r"feature level 8.*penstock cluster upgrade"):
        await node.stored.create(make())
    assert (await store.list(SUBSCRIPTIONS_PREFIX))[0] == []
    await node.stop()


async def test_a_failing_listener_stops_nothing(store: SqliteStore) -> None:
    node = Node(store)

    def fail(_before: Subscription | None, _after: Subscription | None) -> None:
        raise RuntimeError("a bug")

    node.stored._listeners.insert(0, fail)
    await node.start()
    one = await node.stored.create(make())
    assert node.changes == [(None, one)]
    await node.stop()


async def test_another_endpoint_with_the_same_hash_is_refused(store: SqliteStore) -> None:
    """The entry is forged here, because no two endpoints with the same hash are known."""
    one = make()
    forged = msgspec.json.encode(msgspec.structs.replace(one, endpoint="https://b.example/"))
    await store.put(subscription_key(one.id), forged)
    node = await Node(store).start()
    assert node.stored.find_endpoint(TOPIC, "https", one.endpoint) is None
    with pytest.raises(InvalidRequest, match="cannot be subscribed"):
        await node.stored.create(make())
    await node.stop()


async def test_secrets_are_wrapped_again_by_a_new_master_key(store: SqliteStore) -> None:
    before, after = MasterKeyRing(MASTER), MasterKeyRing(b"n" * 32, old=(MASTER,))
    node = await Node(store).start()
    one = make()
    sealed = before.wrap(b"whsec_1", context=one.secrets_context)
    await node.stored.create(msgspec.structs.replace(one, secrets=sealed))
    plain = await node.stored.create(make("https://b.example/"))
    resealed = await node.stored.reseal(after.rewrap)
    assert (resealed.count, resealed.unreadable) == (1, 0)
    found = node.stored.find(one.id)
    assert found is not None
    only_new = MasterKeyRing(b"n" * 32)
    assert only_new.unwrap(found.secrets, context=one.secrets_context) == b"whsec_1"
    assert node.stored.find(plain.id) == plain
    assert (await node.stored.reseal(MasterKeyRing(b"x" * 32).rewrap)).unreadable == 1
    await node.stop()


async def test_they_are_there_after_a_restart(store: SqliteStore) -> None:
    node = await Node(store).start()
    made = [await node.stored.create(make(f"https://{n}.example/")) for n in range(5)]
    await node.stored.change(made[0].id, lambda one: in_state(one, DELETED, 1))
    await node.stop()
    again = await Node(store).start()
    assert again.ids() == sorted(one.id for one in made[1:])
    assert again.stored.count(TOPIC, DELETED) == 1
    await again.stop()


# ── Entry rules ──────────────────────────────────────────────────────────────────────────────


def test_the_metadata_service_takes_subscriptions_at_their_own_place_only() -> None:
    one = make()
    key, value = subscription_key(one.id), encode_subscription(one)
    assert check_txn(Txn(compare=[(key, 0)], puts=[(key, value)])) == [key]
    assert check_txn(Txn(compare=[(key, 4)], deletes=[key])) == []
    plain = msgspec.json.decode(value)
    for at, wrong in (
        (key[:-1] + ("0" if key[-1] != "0" else "1"), value),
        (key + "/x", value),
        (key, b"{}"),
        (key, b"\xff"),
        (key, msgspec.json.encode({**plain, "endpoint": "https://b.example/"})),
        (key, msgspec.json.encode({**plain, "topic_id": OTHER_TOPIC})),
        (key, msgspec.json.encode({**plain, "account": "x"})),
        (key, msgspec.json.encode({**plain, "state": "other"})),
        (key, msgspec.json.encode({**plain, "attributes": {"A": "x" * 400_000}})),
    ):
        with pytest.raises(InvalidRequest):
            check_txn(Txn(compare=[(at, 0)], puts=[(at, wrong)]))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn(compare=(), puts=[(key, value)]))
    with pytest.raises(InvalidRequest, match="must be conditional"):
        check_txn(Txn(compare=(), deletes=[key]))
    with pytest.raises(InvalidRequest, match="must not be attached to a lease"):
        check_txn(Txn(compare=[(key, 0)], puts=[(key, value)], lease=7))
    with pytest.raises(InvalidRequest, match="entries of one kind"):
        check_txn(Txn(compare=[(key, 0), ("/topics/x", 1)], puts=[(key, value)]))
