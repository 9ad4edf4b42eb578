"""Group coordinators on a real broker: what was answered is there after a crash, what was not
committed is not, and nobody waits for ever."""

import asyncio
import secrets
from pathlib import Path

import pytest
from tests.unit.broker.coordination.group_stage import TOPIC_ID, Hosting, Leading, hosting
from tests.unit.broker.stage import HandClock

from penstock.broker.context.disk import DiskBudget
from penstock.broker.coordination.host import PARTITION_COUNT, RELOAD_MS_MIN
from penstock.broker.coordination.row_log import encode_rows
from penstock.cursor.coordinated_groups import Groups
from penstock.cursor.coordinator_calls import (
    BeatConsumer,
    CommitInTransaction,
    CompleteTransaction,
    DeleteGroup,
    DescribeGroup,
    ListGroups,
    Sync,
)
from penstock.cursor.groups.classic.classic_state import SyncRequest
from penstock.cursor.groups.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.groups.decision import Decision
from penstock.cursor.groups.offsets import CommitRequest, PartitionCommit
from penstock.cursor.groups.settings import GroupSettings
from penstock.cursor.rows import Row
from penstock.model.calls import AppendBatches
from penstock.model.errors import DiskFull
from penstock.model.topic import Kind, partition_of_group
from penstock.record.batch import parse_header
from penstock.record.record import iter_records
from penstock.telemetry.clock import SystemClock
from penstock.wire.kafka.faults import ErrorCode

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE
LAST_TURNS = 50  # of the loop: enough for whatever needs no disk


async def turns(count: int = LAST_TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def neighbours(count: int) -> list[str]:
    """Names of groups that share a coordinator."""
    names = (f"g{n}" for n in range(1_000))
    wanted = partition_of_group("g0", PARTITION_COUNT)
    return [n for n in names if partition_of_group(n, PARTITION_COUNT) == wanted][:count]


async def beat(
    stage: Hosting,
    group_id: str,
    member_id: str,
    epoch: int,
    *,
    names: tuple[str, ...] | None = None,
    owned: frozenset[tuple[str, int]] | None = None,
) -> ConsumerReply:
    if not epoch and owned is None:
        owned = frozenset()
    return await stage.host.call(
        BeatConsumer(
            group_id,
            ConsumerHeartbeat(
                member_id, epoch, rebalance_ms=60_000, topic_names=names, owned=owned, client_id="c"
            ),
        )
    )


# ── Leaders ──────────────────────────────────────────────────────────────────────────────────


async def answered(stage: Hosting, group_id: str) -> ErrorCode:
    """Once it is known whether this node coordinates it."""
    async with asyncio.timeout(10):
        while (code := await stage.commit(group_id, 5)) is UNAVAILABLE:
            await asyncio.sleep(0)
    return code


async def test_groups_are_coordinated_where_their_partition_is_led(tmp_path: Path) -> None:
    partition = partition_of_group("g", PARTITION_COUNT)
    async with hosting(tmp_path, others=Leading().seen_by(1, {})) as stage:
        assert await stage.commit("g", 5) is ErrorCode.NOT_COORDINATOR
        stage.host.led(partition, True)
        assert await answered(stage, "g") is ErrorCode.NONE
        stage.host.led(partition, False)
        assert await stage.commit("g", 6) is ErrorCode.NOT_COORDINATOR


async def test_a_leader_for_less_than_a_turn_of_the_loop_coordinates_when_it_leads_again(
    tmp_path: Path,
) -> None:
    partition = partition_of_group("g", PARTITION_COUNT)
    async with hosting(tmp_path, others=Leading().seen_by(1, {})) as stage:
        for is_led in (True, False):
            stage.host.led(partition, is_led)
        await turns()
        assert await stage.commit("g", 5) is ErrorCode.NOT_COORDINATOR
        stage.host.led(partition, True)
        assert await answered(stage, "g") is ErrorCode.NONE
        for is_led in (False, True, False, True):
            stage.host.led(partition, is_led)
        assert await answered(stage, "g") is ErrorCode.NONE


# ── Restarts ─────────────────────────────────────────────────────────────────────────────────


async def test_the_internal_topic_is_made_once(tmp_path: Path) -> None:
    async with hosting(tmp_path) as first:
        topic = first.topic
    async with hosting(tmp_path) as second:
        assert second.topic == topic
    assert topic.kind is Kind.STREAM
    assert topic.partition_count == PARTITION_COUNT


async def test_a_committed_offset_survives_a_crash(tmp_path: Path) -> None:
    async with hosting(tmp_path, is_crash=True) as stage:
        for n in range(20):
            assert await stage.commit(f"g{n}", 100 + n) is ErrorCode.NONE
        assert await stage.commit("g3", 555) is ErrorCode.NONE
    async with hosting(tmp_path) as stage:
        found = [await stage.committed(f"g{n}") for n in range(20)]
    assert found == [555 if n == 3 else 100 + n for n in range(20)]


async def test_a_stable_group_survives_a_crash_without_a_rebalance(tmp_path: Path) -> None:
    async with hosting(tmp_path, is_crash=True) as stage:
        member_id, generation = await stage.stable("g")
    async with hosting(tmp_path) as stage:
        assert await stage.heartbeat("g", member_id, generation) is ErrorCode.NONE
        synced = await stage.host.call(Sync("g", SyncRequest(member_id, generation)))
        assert synced.assignment == b"share"


async def test_a_group_assigned_here_survives_a_crash(tmp_path: Path) -> None:
    async with hosting(tmp_path, is_crash=True) as stage:
        topic = await stage.stage.topic("orders", partitions=3)
        share = frozenset((topic.topic_id, p) for p in range(3))
        joined = await beat(stage, "g", "m", 0, names=("orders",), owned=frozenset())
        assert joined.assignment == share
    async with hosting(tmp_path) as stage:
        reply = await beat(stage, "g", "m", joined.member_epoch, owned=share)
        assert (reply.code, reply.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
        described = await stage.host.call(DescribeGroup("g"))
        assert described.consumer_members[0].assigned == share


async def test_after_a_restart_a_member_has_its_whole_session_time_again(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        member_id, generation = await stage.stable("g")
        clock.advance(9_000)
    async with hosting(tmp_path, clock) as stage:
        clock.advance(9_000)
        stage.host.tick()
        assert await stage.heartbeat("g", member_id, generation) is ErrorCode.NONE


# ── What an answer promises ──────────────────────────────────────────────────────────────────


async def test_neither_a_commit_nor_what_it_changed_is_shown_before_it_is_in_the_log(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as stage:
        stage.between.gate.clear()
        commit = asyncio.create_task(stage.commit("g", 7))
        await stage.between.is_waiting.wait()
        fetch = asyncio.create_task(stage.committed("g"))
        await turns()
        assert not commit.done()
        assert not fetch.done()
        stage.between.gate.set()
        assert await commit is ErrorCode.NONE
        assert await fetch == 7


async def test_commits_during_an_append_go_into_the_next_one_together_and_in_order(
    tmp_path: Path,
) -> None:
    names = neighbours(3)
    async with hosting(tmp_path) as stage:
        stage.between.gate.clear()
        first = asyncio.create_task(stage.commit(names[0], 1))
        await stage.between.is_waiting.wait()
        rest = [asyncio.create_task(stage.commit(name, 2)) for name in names]
        await turns()
        stage.between.gate.set()
        assert await asyncio.gather(first, *rest) == [ErrorCode.NONE] * 4
        assert [parse_header(batch).count for batch in stage.between.appended] == [1, 3]
        keys = [record.key or b"" for record in iter_records(stage.between.appended[1])]
        assert [name for name in names for key in keys if name.encode() in key] == names
        assert await stage.committed(names[0]) == 2


async def test_a_heartbeat_does_not_wait_for_the_log(tmp_path: Path) -> None:
    first, second = neighbours(2)
    async with hosting(tmp_path) as stage:
        member_id, generation = await stage.stable(first)
        stage.between.gate.clear()
        commit = asyncio.create_task(stage.commit(second, 1))
        await stage.between.is_waiting.wait()
        assert await stage.heartbeat(first, member_id, generation) is ErrorCode.NONE
        assert not commit.done()
        stage.between.gate.set()
        await commit


@pytest.mark.parametrize(("is_commit", "shown"), [(True, 9), (False, 1)])
async def test_an_offset_of_a_transaction_is_shown_when_that_has_been_committed(
    tmp_path: Path, is_commit: bool, shown: int
) -> None:
    request = CommitRequest((PartitionCommit(TOPIC_ID, 0, 9),))
    async with hosting(tmp_path, is_crash=True) as stage:
        await stage.commit("g", 1)
        reply = await stage.host.call(
            CommitInTransaction("g", request, producer_id=5, producer_epoch=0)
        )
        assert reply.code is ErrorCode.NONE
        assert await stage.committed("g") == 1
    async with hosting(tmp_path) as stage:
        assert await stage.committed("g") == 1
        done = await stage.host.call(
            CompleteTransaction("g", producer_id=5, producer_epoch=0, is_commit=is_commit)
        )
        assert done.code is ErrorCode.NONE
        assert await stage.committed("g") == shown


# ── Failures ─────────────────────────────────────────────────────────────────────────────────


async def test_a_failed_append_is_told_to_all_who_wait_and_leaves_what_the_log_says(
    tmp_path: Path,
) -> None:
    first, second = neighbours(2)
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        assert await stage.commit(first, 1) is ErrorCode.NONE
        await stage.stable(second)
        parked = asyncio.create_task(stage.join(second, name="other"))
        await turns()
        assert not parked.done()
        clock.advance(RELOAD_MS_MIN)
        stage.between.failure = DiskFull("full")
        assert await stage.commit(first, 2) is UNAVAILABLE
        assert (await parked).code is UNAVAILABLE
        stage.between.failure = None
        await turns()
        assert await stage.committed(first) == 1
        assert (await stage.host.call(DescribeGroup(second))).state == "Stable"
        assert await stage.commit(first, 3) is ErrorCode.NONE
        assert await stage.committed(first) == 3


async def test_a_disk_that_refuses_everything_does_not_make_us_read_all_the_time(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        stage.between.failure = DiskFull("full")
        reads = stage.between.reads
        for n in range(20):
            assert await stage.commit("g", n) is UNAVAILABLE
            await turns()
        assert stage.between.reads == reads
        (trouble,) = stage.host.troubles()
        assert trouble.endswith("append failed: full")
        clock.advance(RELOAD_MS_MIN)
        stage.between.failure = None
        assert await stage.commit("g", 1) is UNAVAILABLE  # and this one makes it read
        await turns()
        assert stage.between.reads == reads + 1
        assert stage.host.troubles() == []
        assert await stage.commit("g", 5) is ErrorCode.NONE


async def test_the_longer_a_disk_refuses_the_more_rarely_the_log_is_read(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        assert await stage.commit("g", 1) is ErrorCode.NONE
        stage.between.failure = DiskFull("full")
        began = []
        for second in range(40):
            reads = stage.between.reads
            assert await stage.commit("g", 2) is UNAVAILABLE
            await turns()
            if stage.between.reads > reads:
                began.append(second)
            clock.advance(1_000)
        assert began == [1, 3, 7, 15, 25, 35]
        stage.between.failure = None
        clock.advance(60_000)
        assert await stage.commit("g", 3) is UNAVAILABLE
        await turns()
        assert await stage.commit("g", 4) is ErrorCode.NONE
        # From now on a single failure is over as soon as ever.
        clock.advance(RELOAD_MS_MIN)
        stage.between.failure = DiskFull("full")
        assert await stage.commit("g", 5) is UNAVAILABLE
        stage.between.failure = None
        await turns()
        assert await stage.committed("g") == 4


async def test_a_decision_that_fails_half_way_is_read_anew_and_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()

    def fails(*_: object, **__: object) -> Decision:
        raise ArithmeticError("a fault of ours")

    async with hosting(tmp_path, clock) as stage:
        assert await stage.commit("g", 1) is ErrorCode.NONE
        monkeypatch.setattr(Groups, "expire", fails)
        stage.host.expire()
        assert len(stage.host.troubles()) == PARTITION_COUNT
        monkeypatch.undo()
        clock.advance(RELOAD_MS_MIN)
        stage.host.tick()
        await turns()
        assert stage.host.troubles() == []
        assert await stage.committed("g") == 1


async def test_a_row_of_another_program_puts_only_its_partition_out_of_service(
    tmp_path: Path,
) -> None:
    names = [f"x{n}" for n in range(99)]
    ours = next(n for n in names if partition_of_group(n, PARTITION_COUNT) == 0)
    other = next(n for n in names if partition_of_group(n, PARTITION_COUNT) != 0)
    async with hosting(tmp_path) as stage:
        assert await stage.commit(ours, 1) is ErrorCode.NONE
        batches = encode_rows([[Row(b"not a row", b"")]], wall_ms=1)
        await stage.stage.broker.call(AppendBatches(stage.topic, 0, acks=-1, batches=batches))
    async with hosting(tmp_path, settings=GroupSettings(fetch_ms_max=100)) as stage:
        assert await stage.committed(ours) is UNAVAILABLE
        assert await stage.commit(ours, 2) is UNAVAILABLE
        assert await stage.commit(other, 3) is ErrorCode.NONE
        assert len(stage.host.unreadable_rows()) == 1
        code, _ = await stage.host.call(ListGroups(states=(), kinds=()))
        assert code is UNAVAILABLE


async def test_an_internal_topic_that_somebody_deletes_is_made_anew(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        assert await stage.commit("g", 1) is ErrorCode.NONE
        old = stage.topic
        await stage.stage.catalog.delete(old.account, old.region, old.name, now_ms=1)
        clock.advance(RELOAD_MS_MIN)
        assert await stage.commit("g", 2) is UNAVAILABLE
        async with asyncio.timeout(5):
            while stage.host.troubles():
                await asyncio.sleep(0.001)
        assert stage.topic.topic_id != old.topic_id
        assert await stage.commit("g", 3) is ErrorCode.NONE
        assert await stage.committed("g") == 3


async def test_rows_that_no_batch_can_hold_fail_alone(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        assert await stage.commit("g", 1) is ErrorCode.NONE
        clock.advance(RELOAD_MS_MIN)
        joined = await stage.join("g")
        huge = ((joined.member_id, secrets.token_bytes(17_000_000)),)
        reply = await stage.host.call(
            Sync("g", SyncRequest(joined.member_id, joined.generation, assignments=huge))
        )
        assert reply.code is UNAVAILABLE
        await turns()
        assert await stage.committed("g") == 1


async def test_a_waiter_that_went_away_is_not_missed(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        member_id, _ = await stage.stable("g")
        parked = asyncio.create_task(stage.join("g", name="other", rebalance_ms=1_000))
        await turns()
        parked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await parked
        again = asyncio.create_task(stage.join("g", member_id))
        await turns()
        assert (await again).code is ErrorCode.NONE


# ── Time ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_member_that_is_not_heard_of_is_out_after_its_session_time(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        member_id, generation = await stage.stable("g")
        clock.advance(9_999)
        stage.host.tick()
        assert (await stage.host.call(DescribeGroup("g"))).state == "Stable"
        clock.advance(1)
        stage.host.tick()
        assert (await stage.host.call(DescribeGroup("g"))).state == "Empty"
        assert await stage.heartbeat("g", member_id, generation) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_the_timer_ends_a_rebalance_that_nobody_else_ends(tmp_path: Path) -> None:
    async with hosting(tmp_path, host_clock=SystemClock()) as stage:
        first = await stage.join("g", rebalance_ms=30)
        share = ((first.member_id, b"share"),)
        await stage.host.call(Sync("g", SyncRequest(first.member_id, 1, assignments=share)))
        async with asyncio.timeout(5):
            # Parked until the first member's thirty milliseconds to join again are over.
            second = await stage.join("g", name="other", rebalance_ms=30)
        assert (second.code, second.generation) == (ErrorCode.NONE, 2)
        assert [member for member, _, _ in second.members] == [second.member_id]


async def test_offsets_out_of_retention_go_and_stay_gone(tmp_path: Path) -> None:
    clock = HandClock()
    settings = GroupSettings(initial_delay_ms=0, offsets_retention_ms=1_000)
    async with hosting(tmp_path, clock, settings=settings) as stage:
        await stage.commit("old", 1)
        clock.advance(900)
        await stage.commit("new", 2)
        clock.advance(200)
        stage.host.expire()
        assert await stage.committed("old") == -1
        assert await stage.committed("new") == 2
    async with hosting(tmp_path, clock, settings=settings) as stage:
        assert await stage.committed("old") == -1
        assert await stage.committed("new") == 2


# ── Topics ───────────────────────────────────────────────────────────────────────────────────


async def test_a_deleted_topic_takes_its_offsets_along(tmp_path: Path) -> None:
    async with hosting(tmp_path) as stage:
        topic = await stage.stage.topic("orders")
        await stage.commit("g", 5, topic_id=topic.topic_id)
        await stage.commit("g", 6)
        await stage.stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=1)
        assert await stage.committed("g", topic_id=topic.topic_id) == -1
        assert await stage.committed("g") == 6
    async with hosting(tmp_path) as stage:
        assert await stage.committed("g", topic_id=topic.topic_id) == -1


async def test_a_topic_deleted_while_the_log_is_read_anew_is_not_forgotten_about(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        topic = await stage.stage.topic("orders")
        await stage.commit("g", 5, topic_id=topic.topic_id)
        stage.between.failure = DiskFull("full")
        assert await stage.commit("g", 6) is UNAVAILABLE
        stage.between.failure = None
        await stage.stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=1)
        clock.advance(RELOAD_MS_MIN)
        stage.host.tick()
        await turns()
        assert await stage.committed("g", topic_id=topic.topic_id) == -1


async def test_a_deleted_topic_is_not_forgotten_about_when_the_append_fails(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as stage:
        topic = await stage.stage.topic("orders")
        await stage.commit("g", 5, topic_id=topic.topic_id)
        stage.between.failure = DiskFull("full")
        await stage.stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=1)
        await turns()
        assert stage.host.troubles() != []
        stage.between.failure = None
        clock.advance(RELOAD_MS_MIN)
        stage.host.tick()
        await turns()
        assert await stage.committed("g", topic_id=topic.topic_id) == -1
    async with hosting(tmp_path) as stage:
        assert await stage.committed("g", topic_id=topic.topic_id) == -1


async def test_more_offsets_than_a_batch_holds_go_with_their_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.coordination.row_log.BATCH_BYTES_MAX", 4_000)
    monkeypatch.setattr("penstock.broker.coordination.row_log.BATCH_ROWS_BYTES_MAX", 2_000)
    async with hosting(tmp_path) as stage:
        topic = await stage.stage.topic("orders")
        for partition in range(200):
            await stage.commit("g", 5, partition=partition, topic_id=topic.topic_id)
        await stage.commit("g", 6)
        before = len(stage.between.appended)
        await stage.stage.catalog.delete(topic.account, topic.region, topic.name, now_ms=1)
        assert await stage.committed("g", topic_id=topic.topic_id, partition=199) == -1
        assert len(stage.between.appended) > before + 2
        assert stage.host.troubles() == []
    async with hosting(tmp_path) as stage:
        assert await stage.committed("g", topic_id=topic.topic_id, partition=199) == -1
        assert await stage.committed("g") == 6


async def test_members_get_the_partitions_of_new_topics_with_their_next_heartbeat(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as stage:
        joined = await beat(stage, "g", "m", 0, names=("orders",), owned=frozenset())
        assert joined.assignment == frozenset()
        topic = await stage.stage.topic("orders", partitions=2)
        reply = await beat(stage, "g", "m", joined.member_epoch, owned=frozenset())
        assert reply.assignment == frozenset((topic.topic_id, p) for p in range(2))


async def test_internal_topics_are_assigned_to_nobody(tmp_path: Path) -> None:
    async with hosting(tmp_path) as stage:
        joined = await beat(stage, "g", "m", 0, names=("__groups",), owned=frozenset())
        assert joined.assignment == frozenset()


# ── Draining ─────────────────────────────────────────────────────────────────────────────────


async def test_a_draining_node_answers_the_parked_and_parks_no_more_but_takes_commits(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as stage:
        await stage.stable("g")
        parked = asyncio.create_task(stage.join("g", name="other"))
        stage.between.gate.clear()
        commit = asyncio.create_task(stage.commit("g2", 3))
        await stage.between.is_waiting.wait()
        stage.host.end_waits()
        assert (await parked).code is UNAVAILABLE
        assert (await stage.join("g", name="late")).code is UNAVAILABLE
        stage.between.gate.set()
        assert await commit is ErrorCode.NONE
        assert await stage.commit("h", 4) is ErrorCode.NONE
    async with hosting(tmp_path) as stage:
        assert await stage.committed("h") == 4


# ── Compaction ───────────────────────────────────────────────────────────────────────────────


async def test_a_log_that_has_grown_is_compacted_and_says_the_same(tmp_path: Path) -> None:
    one, two, three = neighbours(3)
    async with hosting(tmp_path, segment_bytes=4_000, is_crash=True) as stage:
        member_id, generation = await stage.stable(one)
        await stage.commit(two, 42, partition=7)
        await stage.commit(three, 1)
        assert (await stage.host.call(DeleteGroup(three))).code is ErrorCode.NONE
        for offset in range(300):
            assert await stage.commit(two, offset) is ErrorCode.NONE
        assert await stage.compact() > 10_000
        assert await stage.commit(two, 300) is ErrorCode.NONE
    async with hosting(tmp_path) as stage:
        assert await stage.committed(two) == 300
        assert await stage.committed(two, partition=7) == 42
        assert await stage.heartbeat(one, member_id, generation) is ErrorCode.NONE
        _, listed = await stage.host.call(ListGroups(states=(), kinds=()))
        assert {each.group_id for each in listed} == {one, two}


async def test_many_commit_while_the_log_is_compacted_again_and_again(tmp_path: Path) -> None:
    names = neighbours(8)

    async def commits(stage: Hosting, name: str) -> None:
        for offset in range(60):
            assert await stage.commit(name, offset) is ErrorCode.NONE

    async with hosting(tmp_path, segment_bytes=2_000, is_crash=True) as stage:
        committing = asyncio.gather(*(commits(stage, name) for name in names))
        freed_bytes = 0
        while not committing.done():
            freed_bytes += await stage.compact()
            await asyncio.sleep(0)
        await committing
        assert freed_bytes > 0
    async with hosting(tmp_path) as stage:
        assert [await stage.committed(name) for name in names] == [59] * len(names)


async def test_rows_are_compacted_while_the_disk_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are committed then, too, so the log would take the rest of the disk."""
    async with hosting(tmp_path, segment_bytes=2_000) as stage:
        for offset in range(100):
            assert await stage.commit("g", offset) is ErrorCode.NONE
        monkeypatch.setattr(DiskBudget, "is_low", True)
        assert await stage.compact() > 0


async def test_settings_reach_the_groups(tmp_path: Path) -> None:
    settings = GroupSettings(initial_delay_ms=0, members_max=1)
    async with hosting(tmp_path, settings=settings) as stage:
        await stage.stable("g")
        assert (await stage.join("g", name="other")).code is ErrorCode.GROUP_MAX_SIZE_REACHED
