"""Ordered shares: a group is delivered in order and locked while one of its records is in flight or
waits for a retry, on FIFO queues, standard queues and streams."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cursor_state import state_hash
from tests.unit.broker.partition.test_stream import stream
from tests.unit.broker.queues.test_shares import claims, share, values
from tests.unit.broker.stage import HandClock, Stage, bodies, message, on_stage

from penstock.cursor.groups.settings import ShareSettings
from penstock.model.calls import (
    Ack,
    Acquire,
    Append,
    AppendBatches,
    AppendMarker,
    Finish,
    Lease,
    OpenShare,
    Prolong,
    RestartShare,
    ShareLag,
    Stats,
)
from penstock.model.errors import InvalidRequest, NotLeased
from penstock.model.levels import PUSH
from penstock.model.message import AckReason, Claim
from penstock.model.ports import EARLIEST, Acquired, LeaseRequest, Marker
from penstock.model.topic import Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch
from penstock.record.record import encode_record

TEN = LeaseRequest(count=10, lease_ms=30_000)


async def ordered(stage: Stage, source: Topic, group: str = "g", start: int = EARLIEST) -> Topic:
    return await stage.broker.call(OpenShare(source, 0, group, start=start, is_ordered=True))


async def acquire(
    stage: Stage, topic: Topic, count: int = 10, *, bytes_max: int = 1 << 20, group_max: int = 0
) -> Acquired:
    return await stage.broker.call(
        Acquire(topic, 0, count, bytes_max=bytes_max, lease_ms=30_000, group_max=group_max)
    )


def keyed(*records: tuple[str | None, str], attributes: int = 0, producer_id: int = -1) -> bytes:
    """A producer's batch of keys and values."""
    encoded = [
        encode_record(
            offset_delta=at,
            timestamp_delta=0,
            key=None if key is None else key.encode(),
            value=value.encode(),
        )
        for at, (key, value) in enumerate(records)
    ]
    is_numbered = producer_id >= 0
    return encode_batch(
        encoded,
        base_offset=0,
        leader_epoch=0,
        base_timestamp=0,
        max_timestamp=0,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=0 if is_numbered else -1,
        base_sequence=0 if is_numbered else -1,
    )


@pytest.mark.parametrize("kind", [Kind.FIFO, Kind.STANDARD])
async def test_a_group_is_locked_while_one_of_its_records_is_in_flight(
    tmp_path: Path, kind: Kind
) -> None:
    clock = HandClock()
    async with on_stage(tmp_path, clock) as stage:
        queue = await stage.topic("q.fifo" if kind is Kind.FIFO else "q", kind=kind)
        sent = [("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c"), ("b2", "b")]
        for body, group in sent:
            fields = {"group": group} | ({"dedup_id": body} if kind is Kind.FIFO else {})
            await stage.broker.call(Append(queue, 0, [message(body, **fields)]))
        reader = await ordered(stage, queue)
        assert reader.is_fifo
        first = await acquire(stage, reader, group_max=1)
        assert values(first) == ["a1", "b1", "c1"]
        assert (await acquire(stage, reader)).picks == []
        a1, b1, c1 = claims(first)
        assert await stage.broker.call(Finish(reader, 0, [a1])) == (None,)
        assert values(await acquire(stage, reader)) == ["a2"]
        # A retry is a lease that ends later: the group stays locked until then.
        assert await stage.broker.call(Prolong(reader, 0, [(b1, 60_000)])) == (None,)
        clock.advance(30_000)
        assert values(await acquire(stage, reader)) == ["a2", "c1"]
        clock.advance(30_000)
        assert values(await acquire(stage, reader)) == ["b1", "a2", "c1", "b2"]
        [late] = await stage.broker.call(Finish(reader, 0, [c1]))
        assert isinstance(late, NotLeased), "another consumer has it now"
        for reason in AckReason:
            [error] = await stage.broker.call(Ack(reader, 0, [c1], reason))
            assert error is not None, reason
        left = await stage.broker.call(Stats(queue))
        assert left.visible == 5, "the queue itself keeps its messages"


async def test_records_of_a_stream_are_ordered_by_key_and_free_without_one(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await ordered(stage, topic)
        sent = keyed(("k", "k1"), (None, "x"), ("k", "k2"), (None, "y"), ("", "e1"), ("", "e2"))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))
        first = await acquire(stage, reader, group_max=1)
        assert values(first) == ["k1", "x", "y", "e1"]
        assert (await acquire(stage, reader, group_max=1)).picks == []
        await stage.broker.call(Finish(reader, 0, claims(first)[:1]))
        assert values(await acquire(stage, reader)) == ["k2"]
        assert await stage.broker.call(ShareLag(reader, 0)) == 5


async def test_a_lease_takes_a_whole_group_unless_told_otherwise(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await ordered(stage, topic)
        sent = keyed(("k", "1"), ("j", "x"), ("k", "2"), ("k", "3"), ("k", "4"))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))
        first = await acquire(stage, reader, 3)
        assert values(first) == ["1", "2", "3"]
        assert values(await acquire(stage, reader)) == ["x"]
        await stage.broker.call(Prolong(reader, 0, [(each, 0) for each in claims(first)]))
        assert values(await acquire(stage, reader, group_max=2)) == ["1", "2"]


async def test_a_reply_has_room_for_the_batches_of_its_records(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        topic = await stream(stage)
        reader = await ordered(stage, topic)
        for at in range(6):
            sent = keyed((f"k{at % 3}", f"{at}" + "x" * 1_000))
            await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[sent]))
        first = await acquire(stage, reader, bytes_max=2_500)
        assert [value[0] for value in values(first)] == ["0", "3"]
        assert sum(map(len, first.batches)) <= 2_500
        alone = await acquire(stage, reader, bytes_max=10)
        assert [value[0] for value in values(alone)] == ["1"], "a larger first batch comes alone"
        strict = Acquire(reader, 0, 10, bytes_max=10, lease_ms=30_000, is_strict=True)
        assert (await stage.broker.call(strict)).picks == []
        rest = await acquire(stage, reader)
        assert [value[0] for value in values(rest)] == ["2", "5"]


async def test_sqs_receives_keep_the_order_too(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        queue = await stage.topic()
        reader = await ordered(stage, queue)
        for body, group in (("a1", "a"), ("b1", "b"), ("a2", "a")):
            await stage.broker.call(Append(queue, 0, [message(body, group=group)]))
        one = LeaseRequest(count=1, lease_ms=30_000)
        [first] = await stage.broker.call(Lease(reader, one))
        assert bodies(await stage.broker.call(Lease(reader, TEN))) == ["b1"]
        await stage.broker.call(Ack(reader, 0, [first.claim]))
        assert bodies(await stage.broker.call(Lease(reader, TEN))) == ["a2"]


async def test_aborted_records_are_passed_and_open_transactions_wait(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        stage.broker.shares.settings_of = lambda _: ShareSettings(is_committed=True)
        topic = await stream(stage)
        reader = await ordered(stage, topic)
        aborted = keyed(("k", "gone"), attributes=ATTR_TRANSACTIONAL, producer_id=7)
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[aborted]))
        await stage.broker.call(AppendBatches(topic, 0, acks=-1, batches=[keyed(("k", "kept"))]))
        assert (await acquire(stage, reader)).picks == [], "the transaction is open"
        await stage.broker.call(AppendMarker(topic, 0, Marker(7, 0, is_commit=False)))
        assert values(await acquire(stage, reader)) == ["kept"]


async def test_order_must_be_asked_for_and_the_level_must_allow_it(tmp_path: Path) -> None:
    async with on_stage(tmp_path) as stage:
        queue = await stage.topic("q.fifo", fifo=True)
        with pytest.raises(InvalidRequest, match="only ordered shares"):
            await share(stage, queue, "g")
        plain = await stage.topic("plain")
        await share(stage, plain, "g")
        with pytest.raises(InvalidRequest, match="without order"):
            await ordered(stage, plain, "g")
        made = await ordered(stage, queue, "o")
        shares = stage.broker.shares
        shares._context = replace(shares._context, level=lambda: PUSH - 1)
        with pytest.raises(InvalidRequest, match="penstock cluster upgrade"):
            await ordered(stage, plain, "later")
        assert await ordered(stage, queue, "o") == made, "a share that exists is found"


# ── A model: one list of records, searched from the front each time ──────────────────────────


@dataclass
class Told:
    offset: int
    group: str
    until_ms: int = 0
    attempts: int = 0


class Model:
    def __init__(self) -> None:
        self.alive: list[Told] = []

    def free_runs(self, now_ms: int) -> dict[str, list[Told]]:
        """By group: its oldest records up to the first in flight."""
        runs: dict[str, list[Told]] = {}
        locked: set[str] = set()
        for told in self.alive:
            if told.until_ms > now_ms:
                locked.add(told.group)
            elif told.group not in locked:
                runs.setdefault(told.group, []).append(told)
        return runs

    def check(self, got: Acquired, count: int, group_max: int, now_ms: int) -> None:
        runs = self.free_runs(now_ms)
        taken: dict[str, list[int]] = {}
        by_offset = {told.offset: told for told in self.alive}
        for offset, _, attempt in got.picks:
            told = by_offset[offset]
            taken.setdefault(told.group, []).append(offset)
            told.attempts += 1
            assert attempt == told.attempts
        for group, offsets in taken.items():
            assert offsets == [told.offset for told in runs[group]][: len(offsets)]
        most = group_max or count
        assert all(len(offsets) <= most for offsets in taken.values())
        room = sum(min(most, len(run)) for run in runs.values())
        assert len(got.picks) == min(count, room)
        for offset, _, _ in got.picks:
            by_offset[offset].until_ms = now_ms + 30_000


STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from("abc")),
    st.tuples(st.just("batch"), st.sampled_from("abc")),
    st.tuples(st.just("take"), st.sampled_from(["1", "2", "10"])),
    st.tuples(st.just("take one"), st.sampled_from(["2", "10"])),
    st.tuples(st.sampled_from(["ack", "release", "retry"]), st.just("")),
    st.tuples(st.sampled_from(["wait", "checkpoint", "crash", "stop", "restart"]), st.just("")),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=st.lists(STEPS, max_size=40))
async def test_an_ordered_share_is_its_model_over_crashes_and_checkpoints(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    folder, clock = tmp_path_factory.mktemp("ordered"), HandClock()
    model, held = Model(), dict[int, Claim]()
    rounds: list[list[tuple[str, str]]] = [[]]
    for each in steps:
        rounds[-1].append(each)
        if each[0] in ("crash", "stop"):
            rounds.append([])
    queue: Topic | None = None
    before: bytes | None = None
    for todo in rounds:
        is_crash = bool(todo) and todo[-1][0] == "crash"
        async with on_stage(folder, clock, is_crash=is_crash) as stage:
            if queue is None:
                queue = await stage.topic()
            reader = await ordered(stage, queue)
            leases = (await stage.broker.partitions.open(reader)).leases[0]
            partition = (await stage.broker.partitions.open(queue)).partitions[0]
            if before is not None:
                assert state_hash(leases.cursor) == before
            for step, value in todo:
                if step == "send":
                    [done] = await stage.broker.call(Append(queue, 0, [message("m", group=value)]))
                    model.alive.append(Told(done.offset, value))
                elif step == "batch":
                    sent = keyed((value, "1"), ("a", "2"), (value, "3"))
                    placed = await stage.broker.call(
                        AppendBatches(queue, 0, acks=-1, batches=[sent])
                    )
                    base = placed.base_offset
                    model.alive += [
                        Told(base, value),
                        Told(base + 1, "a"),
                        Told(base + 2, value),
                    ]
                elif step in ("take", "take one"):
                    most = 1 if step == "take one" else 0
                    got = await acquire(stage, reader, int(value), group_max=most)
                    model.check(got, int(value), most, clock.mono)
                    held.update((one.offset, one) for one in claims(got))
                elif step in ("ack", "release", "retry") and held:
                    offset, lease = held.popitem()
                    told = next((one for one in model.alive if one.offset == offset), None)
                    is_held = told is not None and told.until_ms > clock.mono
                    lease_ms = 0 if step == "release" else 40_000
                    [error] = await (
                        stage.broker.call(Finish(reader, 0, [lease]))
                        if step == "ack"
                        else stage.broker.call(Prolong(reader, 0, [(lease, lease_ms)]))
                    )
                    assert (error is None) == is_held
                    if is_held and told is not None:
                        if step == "ack":
                            model.alive.remove(told)
                        else:
                            told.until_ms = clock.mono + lease_ms
                elif step == "wait":
                    clock.advance(20_000)
                elif step == "checkpoint":
                    await partition.checkpoint()
                elif step == "restart":
                    at = model.alive[len(model.alive) // 2].offset if model.alive else 0
                    await stage.broker.call(RestartShare(reader, 0, at))
                    model.alive = [
                        replace(one, until_ms=0, attempts=0)
                        for one in model.alive
                        if one.offset >= at
                    ]
                    held.clear()
            await partition.journal.settle()
            before = state_hash(leases.cursor)
            assert sum(leases.counts()) == len(model.alive)
