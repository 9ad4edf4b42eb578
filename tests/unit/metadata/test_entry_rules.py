"""What nodes and managers of a cluster may write through a metadata node, and what a view over it
sees. Rules are pure; the rest is a real service over a real store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.metadata.cluster import QUICK, Cluster, running

from penstock.membership.cluster_view import ClusterView
from penstock.membership.registration import Membership
from penstock.metadata.cluster_entries import (
    MANAGER_KEY,
    NODE_ID_MAX,
    NODES_PREFIX,
    PARTITIONS_PREFIX,
    ManagerEntry,
    NodeEntry,
    PartitionKey,
    PlacementRequest,
    drain_key,
    encode_entry,
    node_key,
    partition_key,
    placement_key,
)
from penstock.metadata.serving.entry_rules import RULES, check_txn, prefix_of
from penstock.metadata.serving.remote_store import RemoteStore
from penstock.metadata.store import Store, Txn
from penstock.metadata.topics.catalog import MoveTasks
from penstock.model.errors import InvalidRequest, QuotaExceeded, VersionConflict
from penstock.model.ports import MoveTask
from penstock.replication.row import Change, PartitionRow
from penstock.telemetry.clock import SystemClock

LEASE = 7
KEY = PartitionKey("ab" * 16, 3)
ROW_AT, WISH_AT, NODE_AT = partition_key(KEY), placement_key(KEY), node_key(1)
ROW = PartitionRow((1, 2), frozenset({1}), leader=1, leader_incarnation=4, epoch=2)
NODE = NodeEntry(1, "one", "127.0.0.1:9400")


def row(**changes: object) -> bytes:
    """Not through the row itself, which would refuse some of them."""
    plain = msgspec.json.decode(encode_entry(ROW))
    return msgspec.json.encode({**plain, **changes})


def node(**changes: object) -> bytes:
    return encode_entry(msgspec.structs.replace(NODE, **changes))


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


def test_a_manager_changes_rows_and_wishes_of_many_partitions_at_once() -> None:
    other = PartitionKey("cd" * 16, 0)
    txn = Txn(
        compare=[(ROW_AT, 5), (WISH_AT, 0), (partition_key(other), 9), (placement_key(other), 8)],
        compare_created=[(MANAGER_KEY, 2), (NODE_AT, 4)],
        puts=[(ROW_AT, encode_entry(ROW)), (WISH_AT, encode_entry(PlacementRequest((2, 1))))],
        deletes=[partition_key(other), placement_key(other)],
    )
    assert check_txn(txn) == [WISH_AT]


def test_having_seen_in_which_revision_a_key_came_to_be_is_having_looked_at_it() -> None:
    entry = node()
    assert check_txn(Txn([], [(NODE_AT, entry)], (), [(NODE_AT, 4)], LEASE)) == []
    assert check_txn(Txn([(NODE_AT, 0)], [(NODE_AT, entry)], lease=LEASE)) == [NODE_AT]
    assert check_txn(Txn([], [], [MANAGER_KEY], [(MANAGER_KEY, 4)])) == []


def test_a_wish_is_the_last_word_and_a_node_may_be_forgotten_unseen() -> None:
    assert check_txn(Txn([], [(drain_key(3), b"")])) == [drain_key(3)]
    assert check_txn(Txn([], [(WISH_AT, encode_entry(PlacementRequest((3,))))])) == [WISH_AT]
    assert check_txn(Txn([], [], [drain_key(3), WISH_AT, NODE_AT])) == []


@pytest.mark.parametrize(
    ("txn", "why"),
    [
        (Txn([], [(ROW_AT, row())]), "must be conditional"),
        (Txn([], [], [ROW_AT]), "must be conditional"),
        (Txn([], [], [MANAGER_KEY]), "must be conditional"),
        (Txn([], [(NODE_AT, node())], lease=LEASE), "must be conditional"),
        (Txn([(NODE_AT, 0)], [(NODE_AT, node())]), "must be attached to a lease"),
        (Txn([(MANAGER_KEY, 0)], [(MANAGER_KEY, b'{"node":1}')]), "must be attached to a lease"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row())], lease=LEASE), "must not be attached to a lease"),
        (Txn([], [(drain_key(1), b"")], lease=LEASE), "must not be attached to a lease"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, b"{}")]), "cannot be read"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(in_sync=[3]))]), "cannot be read"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(in_sync=[]))]), "cannot be read"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(leader=3))]), "the leader must be one of"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(epoch=-1))]), "a number is negative"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(in_sync_min=0))]), "in_sync_min is below 1"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(replicas=[1, 1]))]), "no node twice"),
        (Txn([(ROW_AT, 0)], [(ROW_AT, row(replicas=[0, 1]))]), "node numbers must be 1 to"),
        (Txn([(ROW_AT + "/1", 0)], [(ROW_AT + "/1", row())]), "the value belongs under"),
        (Txn([("/partitions/a/+1", 0)], [("/partitions/a/+1", row())]), "the value belongs under"),
        (
            Txn([("/partitions/a/-1", 0)], [("/partitions/a/-1", row())]),
            "not the key of a partition",
        ),
        (Txn([("/partitions/a/b", 0)], [("/partitions/a/b", row())]), "cannot be read"),
        (Txn([(node_key(2), 0)], [(node_key(2), node())], lease=LEASE), "the value belongs under"),
        (
            Txn([(node_key(0), 0)], [(node_key(0), node(node=0))], lease=LEASE),
            "node numbers must be 1 to",
        ),
        (Txn([(NODE_AT, 0)], [(NODE_AT, node(name="x" * 2_000))], lease=LEASE), "more than"),
        (Txn([(NODE_AT, 0)], [(NODE_AT, b"[]")], lease=LEASE), "cannot be read"),
        (
            Txn([(MANAGER_KEY, 0)], [(MANAGER_KEY, b'{"node":0}')], lease=LEASE),
            "node numbers must be 1 to",
        ),
        (Txn([], [(drain_key(1), b"x")]), "must be empty"),
        (Txn([], [("/wishes/drains/x", b"")]), "cannot be read"),
        (Txn([], [("/wishes/drains/01", b"")]), "the value belongs under"),
        (Txn([], [("/wishes/other/1", b"")]), "Only topics"),
        (Txn([], [("/wishes/drains", b"")]), "Only topics"),
        (Txn([], [(WISH_AT, encode_entry(PlacementRequest(())))]), "at least one node"),
        (Txn([], [(WISH_AT, encode_entry(PlacementRequest((2, 2))))]), "no node twice"),
        (Txn([], [(WISH_AT, encode_entry(PlacementRequest((2,), (1, 1))))]), "no node twice"),
        (Txn([("/topics/x", 1)], [(drain_key(1), b"")]), "entries of one kind"),
        (Txn([], [(drain_key(1), b"")], (), [("/topics/x", 1)]), "entries of one kind"),
        (Txn([], [("/moves/x", b"{}")]), "cannot be read"),
    ],
)
def test_nobody_writes_of_a_cluster_what_others_could_not_act_on(txn: Txn, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        check_txn(txn)


@given(
    topic_id=st.text("0123456789abcdef", min_size=32, max_size=32),
    index=st.integers(0, 100_000),
    node=st.integers(1, NODE_ID_MAX),
)
@settings(max_examples=50)
def test_every_key_that_a_cluster_makes_has_its_rule(topic_id: str, index: int, node: int) -> None:
    key = PartitionKey(topic_id, index)
    replicas = (node, 1 + node % NODE_ID_MAX)
    made = PartitionRow(replicas, frozenset(replicas), leader=node, epoch=1)
    for at, value, lease in (
        (partition_key(key), encode_entry(made), 0),
        (placement_key(key), encode_entry(PlacementRequest(replicas)), 0),
        (drain_key(node), b"", 0),
        (node_key(node), encode_entry(NodeEntry(node, "n", "h:1")), LEASE),
        (MANAGER_KEY, encode_entry(ManagerEntry(node)), LEASE),
    ):
        assert prefix_of(at) in RULES
        assert check_txn(Txn([(at, 0)], [(at, value)], lease=lease)) == [at]


# ── By way of a metadata node ────────────────────────────────────────────────────────────────


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path, "m1") as cluster:
        yield cluster


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[RemoteStore]:
    remote = RemoteStore(cluster.caller("m1"), clock=SystemClock(), config=QUICK)
    yield remote
    await remote.close()


def membership(store: Store, entry: NodeEntry = NODE) -> Membership:
    return Membership(store, entry, clock=SystemClock(), on_lost=lambda: None)


async def until(condition: Callable[[], bool]) -> None:
    """For the watch of a view, which has no event to wait for."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.002)


async def test_rows_are_shown_as_of_the_registration_or_later(store: RemoteStore) -> None:
    """R4: a node does nothing about a row that it has read before it registered."""
    await store.txn(compare=((ROW_AT, 0),), puts=((ROW_AT, encode_entry(ROW)),))
    member = membership(store)
    gone_at = await member.clear()
    _, revision = await store.list(PARTITIONS_PREFIX, min_revision=gone_at)
    assert revision >= gone_at
    incarnation = await member.register()
    view = ClusterView(store)
    await view.start()
    assert view.rows[KEY].revision >= incarnation
    assert view.incarnations == {1: incarnation}
    await member.change(http="http://here")
    await until(lambda: view.nodes[1].http == "http://here")
    assert view.incarnations == {1: incarnation}
    assert await view.refresh_rows() > incarnation
    await member.stop()
    await until(lambda: not view.nodes)
    await view.stop()


async def test_a_list_of_many_pages_is_as_new_as_its_first(
    cluster: Cluster, store: RemoteStore
) -> None:
    keys = [partition_key(PartitionKey(f"{n:032x}", 0)) for n in range(2_500)]
    for at in range(0, len(keys), 100):
        await cluster.store.txn(puts=[(key, encode_entry(ROW)) for key in keys[at : at + 100]])
    last = await cluster.store.put(drain_key(9), b"")
    entries, revision = await store.list(PARTITIONS_PREFIX)
    assert [entry.key for entry in entries] == keys
    assert revision >= last


async def test_a_row_is_changed_only_while_what_was_counted_on_holds(store: RemoteStore) -> None:
    member = membership(store)
    await member.clear()
    incarnation = await member.register()
    view = ClusterView(store)
    await view.start()
    await view.propose(KEY, Change(0, ROW, {1: incarnation}))
    version = view.rows[KEY].version
    with pytest.raises(VersionConflict):
        await view.propose(KEY, Change(version, ROW, {1: incarnation + 1}))
    with pytest.raises(VersionConflict):
        await view.propose(KEY, Change(0, ROW, {1: incarnation}))
    await view.propose(KEY, Change(version, ROW, {1: incarnation}))
    await member.stop()
    await view.stop()


async def test_what_was_deleted_unseen_is_gone_when_it_is_answered(store: RemoteStore) -> None:
    await store.put(drain_key(4), b"")
    assert [one.key for one in (await store.list("/wishes/drains/"))[0]] == [drain_key(4)]
    await store.delete(drain_key(4))
    assert (await store.list("/wishes/drains/"))[0] == []


async def test_tasks_are_known_to_every_node(cluster: Cluster, store: RemoteStore) -> None:
    here, there = MoveTasks(store), MoveTasks(cluster.store)
    await here.start()
    await there.start()
    task = MoveTask("t1", "arn:source", None, None, "RUNNING", 1)
    await here.put(task)
    await until(lambda: there.get("t1") == task)
    await there.delete("t1")
    await until(lambda: here.get("t1") is None)
    await here.stop()
    await there.stop()


async def test_there_are_only_so_many_nodes(
    cluster: Cluster, store: RemoteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {**RULES, NODES_PREFIX: RULES[NODES_PREFIX]._replace(entries_max=1)}
    monkeypatch.setattr("penstock.metadata.serving.service.RULES", few)
    first = membership(store)
    await first.register()
    with pytest.raises(QuotaExceeded, match="limit of 1 nodes"):
        await membership(store, NodeEntry(2, "two", "127.0.0.1:1")).register()
    await first.change(http="http://here")  # not a new one
    await first.stop()
