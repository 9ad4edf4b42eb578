"""What the configs of a share group do, as bytes in and out; and what ShareFetch makes of sizes and
of transactions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka_shares.stage import (
    ALTER_OFFSETS,
    LIST,
    ShareRig,
    only,
    shares,
    values,
)

from penstock.cursor.coordinator_calls import Commit, MakeShareGroup
from penstock.cursor.groups.offsets import CommitRequest, PartitionCommit
from penstock.model.calls import AppendBatches, AppendMarker, Ends
from penstock.model.ports import Marker
from penstock.model.topic import Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, split_batches
from penstock.record.record import iter_records
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from penstock.wire.kafka.generated.list_groups import ListGroupsRequest
from penstock.wire.kafka.generated.share_fetch import ShareFetchResponse

ACCEPT, RELEASE, RENEW = (1,), (2,), (4,)


class Transaction:
    """A producer with one transaction after the other in one partition."""

    def __init__(self, rig: ShareRig, topic: Topic, producer_id: int) -> None:
        self._broker = rig.stage.broker
        self._topic = topic
        self._id = producer_id
        self._sequence = 0

    async def send(self, *sent: bytes) -> None:
        data = batch(
            *sent,
            attributes=ATTR_TRANSACTIONAL,
            producer_id=self._id,
            base_sequence=self._sequence,
        )
        self._sequence += len(sent)
        await self._broker.call(AppendBatches(self._topic, 0, acks=-1, batches=[data]))

    async def end(self, *, is_commit: bool) -> None:
        await self._broker.call(AppendMarker(self._topic, 0, Marker(self._id, 0, is_commit)))


def sizes(found: ShareFetchResponse) -> list[int]:
    """Of all batches in a reply."""
    assert found.error_code == 0, found.error_message
    return [
        len(one)
        for topic in found.responses
        for partition in topic.partitions
        for one in split_batches([partition.records])
    ]


def offsets_of(found: ShareFetchResponse) -> list[tuple[int, bytes]]:
    return [
        (record.offset, record.value or b"")
        for one in split_batches([only(found).records])
        for record in iter_records(one)
    ]


# ── Configs ──────────────────────────────────────────────────────────────────────────────────
async def test_a_changed_lock_holds_for_the_next_lease_without_a_heartbeat(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a", b"b")
        found = await member.fetch(topic, max_records=1)
        assert found.acquisition_lock_timeout_ms == 30_000
        await rig.configure(share_record_lock_duration_ms="2000")
        found = await member.fetch(max_records=1)
        assert found.acquisition_lock_timeout_ms == 2_000
        rig.hand.advance(3_000)
        other = await rig.joined("t", name="other")
        assert values(await other.fetch(topic)) == [b"b"], "the lease of a goes on"


async def test_a_changed_lock_holds_for_a_fetch_that_waits(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        waiting = asyncio.create_task(member.fetch(topic, max_wait_ms=60_000))
        await asyncio.sleep(0)
        await rig.configure(share_record_lock_duration_ms="2000")
        await rig.send(topic, b"a")
        assert (await waiting).acquisition_lock_timeout_ms == 2_000
        rig.hand.advance(3_000)
        other = await rig.joined("t", name="other")
        assert values(await other.fetch(topic)) == [b"a"]


async def test_the_delivery_limit_of_a_group_is_its_own(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.configure(share_delivery_count_limit="2")
        await rig.send(topic, b"a", b"b")
        await member.fetch(topic, max_records=1)
        found = await member.fetch(topic, acks=[(0, 0, RELEASE)], max_records=1)
        assert rig.acquired(found) == [(0, 0, 2)]
        found = await member.fetch(topic, acks=[(0, 0, RELEASE)], max_records=1)
        assert rig.acquired(found) == [(1, 1, 1)], "a is finished with"
        await rig.configure(share_delivery_count_limit=None)
        for count in range(2, 6):
            found = await member.fetch(topic, acks=[(1, 1, RELEASE)], max_records=1)
            assert rig.acquired(found) == [(1, 1, count)]


async def test_a_partition_leases_as_many_records_as_its_group_may(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        one, two = await rig.joined("t", name="one"), await rig.joined("t", name="two")
        await rig.configure(share_partition_max_record_locks="100")
        await rig.send(topic, *[b"x"] * 150)
        assert rig.acquired(await one.fetch(topic)) == [(0, 99, 1)]
        assert rig.acquired(await two.fetch(topic)) == []
        await one.acknowledge(topic, [(0, 9, ACCEPT)])
        assert rig.acquired(await two.fetch()) == [(100, 109, 1)]


async def test_leases_are_renewed_only_where_that_is_allowed(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"a")
        await member.fetch(topic)
        await rig.configure(share_renew_acknowledge_enable="false")
        done = await member.acknowledge(topic, [(0, 0, RENEW)], is_renewal=True)
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == ErrorCode.INVALID_RECORD_STATE
        done = await member.acknowledge(topic, [(0, 0, ACCEPT)])
        ((partition,),) = (each.partitions for each in done.responses)
        assert partition.error_code == 0, "a refused renewal leaves the lease alone"


# ── Transactions ─────────────────────────────────────────────────────────────────────────────
async def test_a_group_that_reads_committed_gets_no_open_and_no_aborted_records(
    tmp_path: Path,
) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        await rig.configure(share_isolation_level="read_committed")
        member = await rig.joined("t")
        good, bad = Transaction(rig, topic, 1), Transaction(rig, topic, 2)
        await rig.send(topic, b"plain")
        await bad.send(b"bad 1", b"bad 2")
        await good.send(b"good")
        assert values(await member.fetch(topic)) == [b"plain"]
        assert rig.acquired(await member.fetch()) == []
        await bad.end(is_commit=False)
        assert rig.acquired(await member.fetch()) == [], "the other one is open"
        await good.end(is_commit=True)
        await rig.stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[batch(b"last")]))
        found = await member.fetch()
        assert values(found) == [b"good", b"last"]
        assert len(sizes(found)) == 2, "no batch of the aborted transaction"
        rig.hand.advance(31_000)
        assert values(await member.fetch()) == [b"plain", b"good", b"last"]


async def test_a_group_that_reads_uncommitted_gets_all_records(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        bad = Transaction(rig, topic, 2)
        await bad.send(b"bad")
        assert values(await member.fetch(topic)) == [b"bad"]


async def test_a_fetch_that_waits_is_told_of_a_commit(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        await rig.configure(share_isolation_level="read_committed")
        member = await rig.joined("t")
        waiting = asyncio.create_task(member.fetch(topic, max_wait_ms=60_000))
        bad, good = Transaction(rig, topic, 1), Transaction(rig, topic, 2)
        await bad.send(b"bad")
        await good.send(b"good")
        await bad.end(is_commit=False)
        assert not waiting.done()
        await good.end(is_commit=True)
        async with asyncio.timeout(10):
            assert values(await waiting) == [b"good"]


async def test_what_was_read_ahead_before_the_change_is_held_back(tmp_path: Path) -> None:
    """Records are read ahead of leases, so some of an open transaction may be in memory when the
    group begins to read committed records only."""
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        await rig.send(topic, b"plain")
        tx = Transaction(rig, topic, 1)
        for number in range(3):
            await tx.send(b"%d" % number)
        assert values(await member.fetch(topic, max_records=2)) == [b"plain", b"0"]
        await rig.configure(share_isolation_level="read_committed")
        assert rig.acquired(await member.fetch()) == []
        await tx.end(is_commit=True)
        assert values(await member.fetch()) == [b"1", b"2"]


# ── Sizes ────────────────────────────────────────────────────────────────────────────────────
async def test_a_reply_is_not_larger_than_asked_for(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        member = await rig.joined("t")
        for partition in range(2):
            for _ in range(4):
                await rig.send(topic, b"x" * 1_000, partition=partition)
        size = len(batch(b"x" * 1_000))
        found = await member.fetch(topic, range(2), max_bytes=3 * size)
        assert sizes(found) == [size] * 3
        found = await member.fetch(max_bytes=3 * size - 1)
        assert sizes(found) == [size] * 2
        found = await member.fetch(max_bytes=1)
        assert sizes(found) == [size], "a first batch comes whatever its size"
        found = await member.fetch()
        assert sizes(found) == [size] * 2, "each of eight came once"


@pytest.mark.parametrize("large", [0, 1])
async def test_a_large_batch_comes_alone(tmp_path: Path, large: int) -> None:
    """Whichever of the two partitions is looked at first."""
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        member = await rig.joined("t")
        await rig.send(topic, b"small", partition=1 - large)
        await rig.send(topic, b"x" * 5_000, partition=large)
        found = await member.fetch(topic, range(2), max_bytes=1_000)
        assert len(sizes(found)) == 1
        again = await member.fetch(max_bytes=1_000)
        assert len(sizes(again)) == 1
        assert max(sizes(found) + sizes(again)) > 5_000
        counts = [
            each.delivery_count
            for one in (found, again)
            for topics in one.responses
            for partition in topics.partitions
            for each in partition.acquired_records
        ]
        assert counts == [1, 1], "what had no room was not leased"


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=12),
    st.integers(1, 1_500),
    st.integers(1, 8),
    st.sets(st.integers(0, 20)),
)
async def test_every_record_comes_once_within_the_bounds(
    tmp_path_factory: pytest.TempPathFactory,
    counts: Sequence[int],
    bytes_max: int,
    records_max: int,
    released: set[int],
) -> None:
    """Batches of several records; what is fetched in some turns is released, the rest accepted."""
    async with shares(tmp_path_factory.mktemp("t")) as rig:
        topic = await rig.stream()
        member = await rig.joined("t")
        sent: list[bytes] = []
        for number, count in enumerate(counts):
            some = [b"%d-%d" % (number, at) + b"x" * 50 for at in range(count)]
            await rig.send(topic, *some)
            sent += some
        rig.base = 0
        got: list[bytes] = []
        for turn in range(200):
            found = await member.fetch(topic, max_bytes=bytes_max, max_records=records_max)
            if not found.responses:
                break
            assert 1 <= len(values(found)) <= records_max
            assert len(sizes(found)) == 1 or sum(sizes(found)) <= bytes_max
            is_released = turn in released and turn % 3 == 0
            for each in only(found).acquired_records:
                ack = RELEASE if is_released and each.delivery_count < 4 else ACCEPT
                acks = [(each.first_offset, each.last_offset, ack)]
                await member.acknowledge(topic, acks)
                got += (
                    []
                    if ack is RELEASE
                    else [
                        value
                        for offset, value in offsets_of(found)
                        if each.first_offset <= offset <= each.last_offset
                    ]
                )
        assert sorted(got) == sorted(sent)


# ── Offsets of a new group ───────────────────────────────────────────────────────────────────
async def begin(rig: ShareRig, offset: int, *, topic: str = "t", group: str = "new") -> int:
    """AlterShareGroupOffsets of partition 0: the first code that is not 0."""
    asked = AlterShareGroupOffsetsRequestPartition(0, offset)
    request = AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequestTopic(topic, [asked])]
    )
    found = await rig.ask(ALTER_OFFSETS, 0, request)
    if found.error_code:
        return int(found.error_code)
    ((one,),) = (each.partitions for each in found.responses)
    return int(one.error_code)


async def listed(rig: ShareRig) -> list[tuple[str, str, str]]:
    found = await rig.ask(LIST, 5, ListGroupsRequest([], []))
    return [(each.group_id, each.group_state, each.group_type) for each in found.groups]


async def test_a_new_group_is_told_where_to_begin(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        await rig.send(topic, b"a", b"b", b"c")
        base = rig.base
        assert await begin(rig, base + 1) == 0
        assert await listed(rig) == [("new", "Empty", "share")]
    async with shares(tmp_path) as rig:
        assert await listed(rig) == [("new", "Empty", "share")], "survives a restart"
        found = rig.stage.catalog.find(topic.account, topic.region, "t")
        assert found is not None
        rig.base = base
        member = await rig.joined("t", group="new")
        assert values(await member.fetch(found)) == [b"b", b"c"]


async def test_a_refused_offset_leaves_no_group_behind(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        await rig.stream()
        assert await begin(rig, -3) == ErrorCode.INVALID_REQUEST
        assert await begin(rig, 0, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await listed(rig) == []


async def test_other_partitions_of_a_new_group_begin_where_its_config_says(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        await rig.send(topic, b"zero", partition=0)
        await rig.send(topic, b"one", partition=1)
        await rig.configure("new", share_auto_offset_reset="earliest")
        ends = await rig.stage.broker.call(Ends(topic, 0))
        assert await begin(rig, ends.high_watermark) == 0
        member = await rig.joined("t", group="new")
        found = await member.fetch(topic, range(2))
        assert values(found) == [b"one"]


async def test_a_group_of_another_kind_is_not_made_a_share_group(tmp_path: Path) -> None:
    async with shares(tmp_path) as rig:
        topic = await rig.stream()
        commit = CommitRequest((PartitionCommit(topic.topic_id, 0, 1),))
        assert (await rig.host.call(Commit("new", commit))).code == 0
        assert await begin(rig, 0) == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await rig.host.call(MakeShareGroup("new"))).code is ErrorCode.GROUP_ID_NOT_FOUND
