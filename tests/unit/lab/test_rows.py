"""Who led and who was in sync, folded from what etcd said."""

from __future__ import annotations

import msgspec
from tests.lab.rows import NAMESPACE, RowHistory, waves

from penstock.model.topic import Kind, Topic
from penstock.replication.row import NO_NODE, PartitionRow

KEY = f"{NAMESPACE}/partitions/t/0"
S = 1_000_000_000


def row(leader: int, epoch: int, *in_sync: int) -> bytes:
    return msgspec.json.encode(
        PartitionRow((1, 2, 3), frozenset(in_sync), leader=leader, epoch=epoch)
    )


def test_another_leader_is_a_failover_and_a_smaller_set_a_change_of_it() -> None:
    rows = RowHistory()
    rows.put(KEY, row(NO_NODE, 0, 1, 2, 3), 1)
    rows.put(KEY, row(1, 1, 1, 2, 3), 2)
    rows.put(KEY, row(2, 2, 1, 2, 3), 3)
    rows.put(KEY, row(2, 2, 2, 3), 4)
    assert [change.at for change in rows.failovers()] == [3]
    assert [change.at for change in rows.in_sync_changes()] == [4]
    assert rows.took_over_from(1, since=3)
    assert not rows.took_over_from(1, since=4)
    assert rows.rows["t/0"].leader == 2


def test_what_changes_at_once_has_one_cause() -> None:
    rows = RowHistory()
    for partition in range(50):
        key = f"{NAMESPACE}/partitions/t/{partition}"
        rows.put(key, row(1, 1, 1, 2, 3), 0)
        rows.put(key, row(2, 2, 1, 2, 3), 10 * S + partition * S // 100)
    rows.put(KEY, row(1, 3, 1, 2, 3), 20 * S)
    assert len(rows.failovers()) == 51
    assert waves(rows.failovers()) == 2
    assert waves([]) == 0


def test_nodes_and_managers_come_and_go() -> None:
    rows = RowHistory()
    rows.put(f"{NAMESPACE}/nodes/1", b"{}", 1)
    rows.put(f"{NAMESPACE}/nodes/2", b"{}", 2)
    rows.put(f"{NAMESPACE}/manager", b'{"node": 2}', 3)
    rows.delete(f"{NAMESPACE}/nodes/2", 4)
    rows.delete(f"{NAMESPACE}/manager", 5)
    assert rows.nodes == {1}
    assert rows.managers == [(3, 2), (5, None)]
    assert rows.registrations == [(1, 1, True), (2, 2, True), (4, 2, False)]


def test_queues_that_come_and_go_are_not_waited_for() -> None:
    rows = RowHistory()
    for name in ("stays", "passing-1"):
        topic = Topic(name, "000000000000", "us-east-1", name, Kind.STANDARD, 1, 0, 0, b"k" * 32)
        key = f"{NAMESPACE}/topics/000000000000/us-east-1/{name}"
        rows.put(key, msgspec.json.encode(topic), 1)
        rows.put(f"{NAMESPACE}/partitions/{name}/0", row(1, 1, 1, 2), 2)
    assert len(rows.rows) == 2
    assert rows.lasting() == [rows.rows["stays/0"]]
    rows.delete(f"{NAMESPACE}/topics/000000000000/us-east-1/stays", 3)
    assert rows.lasting() == []


def test_a_partition_that_is_deleted_is_no_failover() -> None:
    rows = RowHistory()
    rows.put(KEY, row(1, 1, 1, 2), 1)
    rows.delete(KEY, 2)
    assert not rows.rows
    assert not rows.failovers()
