"""Many decisions to a transaction, and none held up by another."""

import asyncio
from collections import Counter

import pytest
from tests.unit.manager.cluster import Line

from penstock.manager.decision_writer import DECISIONS_PER_TXN_MAX, DecisionWriter, End
from penstock.manager.decisions import Decision, DecisionKind
from penstock.metadata.cluster_entries import (
    MANAGER_KEY,
    PartitionKey,
    decode_row,
    node_key,
    partition_key,
    placement_key,
)
from penstock.metadata.store import Store
from penstock.replication.row import Change, PartitionRow

ROW = PartitionRow((1, 2), frozenset({1, 2}), leader=1, epoch=1)


class Told:
    """What a carrier says."""

    def __init__(self) -> None:
        self.ends: dict[PartitionKey, tuple[End, int]] = {}
        self.is_deposed = False

    def on_end(self, decision: Decision, end: End, revision: int) -> None:
        assert decision.key not in self.ends, "one end each"
        self.ends[decision.key] = (end, revision)

    def on_deposed(self) -> None:
        self.is_deposed = True

    async def all(self, count: int) -> Counter[End]:
        async with asyncio.timeout(10):
            while len(self.ends) < count:
                await asyncio.sleep(0.002)
        return Counter(end for end, _ in self.ends.values())


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def line(store: Store) -> Line:
    return Line(store)


@pytest.fixture
async def carrier(line: Line, told: Told) -> DecisionWriter:
    created = await line.put(MANAGER_KEY, b'{"node":1}')
    return DecisionWriter(
        line, manager_created=created, on_end=told.on_end, on_deposed=told.on_deposed
    )


def new(index: int, *, version: int = 0, incarnations: dict[int, int] | None = None) -> Decision:
    key = PartitionKey("a", index)
    return Decision(key, DecisionKind.CREATED, version, Change(version, ROW, incarnations or {}))


async def test_a_thousand_take_some_twenty_transactions(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    carrier.send([new(index) for index in range(1_000)])
    assert await told.all(1_000) == {End.DONE: 1_000}
    assert line.txns == -(-1_000 // DECISIONS_PER_TXN_MAX)
    entries, _ = await line.list("/partitions/")
    assert len(entries) == 1_000
    assert all(decode_row(entry.key, entry.value) == ROW for entry in entries)


async def test_one_that_does_not_hold_any_more_holds_up_no_other(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    await line.put(partition_key(PartitionKey("a", 17)), b"somebody was faster")
    carrier.send([new(index) for index in range(40)])
    assert await told.all(40) == {End.DONE: 39, End.REFUSED: 1}
    assert told.ends[PartitionKey("a", 17)] == (End.REFUSED, 0)
    assert not told.is_deposed


async def test_a_node_that_was_started_again_is_not_counted_on(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    old = await line.put(node_key(1), b"x")
    await line.delete(node_key(1))
    present = await line.put(node_key(1), b"x")
    carrier.send([new(0, incarnations={1: old}), new(1, incarnations={1: present})])
    await told.all(2)
    assert told.ends[PartitionKey("a", 0)][0] is End.REFUSED
    assert told.ends[PartitionKey("a", 1)][0] is End.DONE


async def test_that_another_one_manages_is_noticed_and_nothing_changed_R3(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    await line.delete(MANAGER_KEY)
    await line.put(MANAGER_KEY, b'{"node":1}')
    carrier.send([new(index) for index in range(10)])
    assert await told.all(10) == {End.REFUSED: 10}
    assert told.is_deposed
    assert not (await line.list("/partitions/"))[0]


async def test_what_nobody_knows_is_read_again_R2(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    line.answers_lost = 1
    carrier.send([new(index) for index in range(3)])
    assert await told.all(3) == {End.FAILED: 3}
    revisions = {revision for _, revision in told.ends.values()}
    assert len(revisions) == 1, "they were carried out together"
    assert revisions != {0}
    told.ends.clear()
    line.requests_lost = 1
    carrier.send([new(index) for index in range(3, 6)])
    assert await told.all(3) == {End.FAILED: 3}
    assert {revision for _, revision in told.ends.values()} == {0}, "they were not"


async def test_wishes_come_and_go_with_their_rows(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    key = PartitionKey("a", 0)
    carrier.send([new(0)._replace(request=(2, 3), request_version=0)])
    await told.all(1)
    _, revision = told.ends.pop(key)
    request = await line.get(placement_key(key))
    assert request is not None
    assert request.value == b'{"replicas":[2,3]}'
    gone = Decision(
        key,
        DecisionKind.DELETED,
        revision,
        is_row_dropped=True,
        is_request_dropped=True,
        request_version=revision,
    )
    carrier.send([gone._replace(request_version=revision + 1)])
    await told.all(1)
    assert told.ends.pop(key)[0] is End.REFUSED, "somebody has wished for something else"
    carrier.send([gone])
    await told.all(1)
    assert not (await line.list("/partitions/"))[0]
    assert not (await line.list("/wishes/"))[0]


async def test_a_store_that_cannot_be_reached_is_no_end(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    line.is_cut = True
    carrier.send([new(index) for index in range(100)])
    assert await told.all(100) == {End.FAILED: 100}


async def test_what_is_under_way_is_left_when_it_stops(
    carrier: DecisionWriter, line: Line, told: Told
) -> None:
    carrier.send([new(index) for index in range(1_000)])
    await carrier.stop()
    assert not told.ends
