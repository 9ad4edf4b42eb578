"""Transactions on a real broker: all of a transaction or nothing, whoever dies in between."""

import asyncio
from pathlib import Path

import pytest
from tests.unit.broker.coordination.transaction_stage import (
    TIMEOUT_MS,
    Client,
    settled,
    transacting,
)
from tests.unit.broker.stage import HandClock

from penstock.broker.coordination import transactions
from penstock.broker.coordination.host import RELOAD_MS_MIN
from penstock.broker.coordination.transactions import MARKER_RETRY_MS, TOPIC_NAME
from penstock.cursor.coordinator_calls import DescribeTransaction, ListTransactions
from penstock.model.calls import AppendBatches, Ends
from penstock.model.errors import DiskFull, Overloaded
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.node.wiring.coordinator_admin import CoordinatorAdmin
from penstock.wire.kafka.faults import ErrorCode

DAY_MS = 24 * 3_600_000

versions = pytest.mark.parametrize("is_v2", [False, True], ids=["version 1", "version 2"])
ends = pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take long to write markers; who gives up is tested with a time of its
    own."""
    monkeypatch.setattr(transactions, "COMPLETION_SECONDS_MAX", 60.0)


# ── Isolation ────────────────────────────────────────────────────────────────────────────────


@versions
async def test_committed_readers_see_whole_transactions_or_nothing(
    tmp_path: Path, is_v2: bool
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        client = Client(rig, is_v2=is_v2)
        assert await client.init() == 0
        for number in range(4):
            for partition in (0, 1):
                assert await client.send(topic, f"{number}", partition=partition) == 0
            seen = [f"{n}" for n in range(0, number, 2)]
            assert await rig.read(topic, 0) == await rig.read(topic, 1) == seen
            assert await client.end(is_commit=number % 2 == 0) == 0
            await settled(rig)
        for partition in (0, 1):
            assert await rig.read(topic, partition) == ["0", "2"]
            everything = await rig.read(topic, partition, is_committed=False)
            assert everything == ["0", "1", "2", "3"]


@versions
async def test_ids_do_not_see_each_other(tmp_path: Path, is_v2: bool) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        clients = [Client(rig, f"tx {n}", is_v2=is_v2) for n in range(20)]
        assert await asyncio.gather(*(client.init() for client in clients)) == [0] * 20
        assert len({client.producer_id for client in clients}) == 20
        sends = (client.send(topic, client.id) for client in clients)
        assert await asyncio.gather(*sends) == [0] * 20
        done = (client.end(is_commit=n % 2 == 0) for n, client in enumerate(clients))
        assert await asyncio.gather(*done) == [0] * 20
        for client in clients:
            await settled(rig, client.id)
        assert sorted(await rig.read(topic)) == sorted(f"tx {n}" for n in range(0, 20, 2))


# ── Fencing ──────────────────────────────────────────────────────────────────────────────────


@versions
async def test_a_new_producer_fences_the_old_one_and_aborts_what_it_left(
    tmp_path: Path, is_v2: bool
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        old, new = Client(rig, is_v2=is_v2), Client(rig, is_v2=is_v2)
        await old.init()
        assert await old.send(topic, "lost") == 0
        assert await new.init() == 0
        assert (new.producer_id, new.epoch) > (old.producer_id, old.epoch)
        assert await old.produce(topic, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await old.commit() == ErrorCode.PRODUCER_FENCED
        assert await old.send_offset("g", topic, 1) in (
            ErrorCode.PRODUCER_FENCED,
            ErrorCode.INVALID_PRODUCER_EPOCH,
        )
        assert await new.send(topic, "kept") == 0
        assert await new.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["kept"]


async def test_older_clients_are_told_of_fences_in_their_words(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        old, new = Client(rig), Client(rig)
        await old.init()
        await new.init()
        assert await old.add(topic, 0, version=3) == ErrorCode.PRODUCER_FENCED
        assert await old.add(topic, 0, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("version", "code"),
    [(10, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
)
async def test_a_batch_outside_of_any_transaction_cannot_open_one(
    tmp_path: Path, version: int, code: ErrorCode
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        assert await client.produce(topic, "never added", version=version) == code
        assert await client.send(topic, "added") == 0
        assert await client.commit() == 0
        await settled(rig)
        assert await client.produce(topic, "late", version=version) == code
        ends = await rig.stage.broker.call(Ends(topic, 0))
        assert ends.last_stable_offset == ends.high_watermark
        assert await rig.read(topic, is_committed=False) == ["added"]


async def test_a_late_batch_of_a_version_2_client_cannot_join_its_next_transaction(
    tmp_path: Path,
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client, late = Client(rig, is_v2=True), Client(rig, is_v2=True)
        await client.init()
        late.producer_id, late.epoch = client.producer_id, client.epoch
        await client.send(topic, "one")
        await client.commit()
        assert await client.send(topic, "two") == 0
        assert await late.produce(topic, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await late.abort() == ErrorCode.PRODUCER_FENCED
        assert await client.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["one", "two"]


# ── Time ─────────────────────────────────────────────────────────────────────────────────────


@versions
async def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(
    tmp_path: Path, is_v2: bool
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "slow")
        rig.clock.advance(TIMEOUT_MS - 1)
        rig.host.tick()
        await settled(rig)
        assert await client.send(topic, "in time") == 0
        rig.clock.advance(1)
        rig.host.tick()
        await settled(rig)
        assert await client.commit() == ErrorCode.PRODUCER_FENCED
        assert await client.produce(topic, "late") == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await rig.read(topic) == []
        ends = await rig.stage.broker.call(Ends(topic, 0))
        assert ends.last_stable_offset == ends.high_watermark
        assert await client.init() == 0
        assert await client.send(topic, "again") == await client.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["again"]


async def test_the_timer_aborts_by_itself(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init(timeout_ms=20)
        await client.send(topic, "slow")
        rig.clock.advance(21)  # the timer was set for twenty milliseconds of the loop's own time
        async with asyncio.timeout(5):
            while not rig.between.markers:
                await asyncio.sleep(0.005)
        assert not rig.between.markers[0].is_commit


@pytest.mark.parametrize("timeout_ms", [0, -1, 15 * 60_000 + 1])
async def test_a_timeout_out_of_bounds_is_refused(tmp_path: Path, timeout_ms: int) -> None:
    async with transacting(tmp_path) as rig:
        code = await Client(rig).init(timeout_ms=timeout_ms)
        assert code == ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_ids_that_do_nothing_for_a_week_are_forgotten(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        idle, busy = Client(rig, "idle"), Client(rig, "busy")
        await idle.init()
        await busy.init()
        await busy.send(topic, "x")
        rig.clock.advance(8 * DAY_MS)
        rig.host.expire()
        assert (await rig.host.call(DescribeTransaction("idle")))[
            0
        ] is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert (await rig.host.call(DescribeTransaction("busy")))[0] is ErrorCode.NONE


# ── Offsets ──────────────────────────────────────────────────────────────────────────────────


@versions
@ends
async def test_offsets_count_when_their_transaction_commits(
    tmp_path: Path, is_v2: bool, is_commit: bool
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        assert await client.send_offset("g", topic, 7) == 0
        assert await client.send(topic, "x") == 0
        assert await rig.committed("g", topic) == (0, -1)
        unstable = await rig.committed("g", topic, requires_stable=True)
        assert unstable[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await client.end(is_commit=is_commit) == 0
        await settled(rig)
        offset = 7 if is_commit else -1
        assert await rig.committed("g", topic, requires_stable=True) == (0, offset)


async def test_offsets_of_a_group_outside_of_the_transaction_are_refused(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        assert await client.commit_offset("g", topic, 7) == ErrorCode.INVALID_TXN_STATE
        assert await client.add_group("") == ErrorCode.INVALID_GROUP_ID
        assert await client.add_group("other") == 0
        assert await client.commit_offset("g", topic, 7) == ErrorCode.INVALID_TXN_STATE
        assert await rig.committed("g", topic, requires_stable=True) == (0, -1)


# ── Restarts ─────────────────────────────────────────────────────────────────────────────────


@versions
@ends
async def test_what_was_decided_is_carried_out_after_a_crash(
    tmp_path: Path, is_v2: bool, is_commit: bool
) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock, is_crash=True) as rig:
        topic = await rig.stream(partitions=2)
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "x", partition=0)
        await client.send(topic, "y", partition=1)
        await client.send_offset("g", topic, 7)
        rig.between.gate.clear()
        assert await client.end(is_commit=is_commit) == 0
        await rig.between.is_waiting.wait()
        assert await rig.read(topic, 0) == []
    async with transacting(tmp_path, clock) as rig:
        await settled(rig)
        assert await rig.read(topic, 0) == (["x"] if is_commit else [])
        assert await rig.read(topic, 1) == (["y"] if is_commit else [])
        offset = 7 if is_commit else -1
        assert await rig.committed("g", topic, requires_stable=True) == (0, offset)
        client.on(rig)
        assert await client.send(topic, "next") == await client.commit() == 0


@versions
async def test_an_open_transaction_goes_on_after_a_crash(tmp_path: Path, is_v2: bool) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock, is_crash=True) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "before")
    async with transacting(tmp_path, clock) as rig:
        client.on(rig)
        assert await client.send(topic, "after") == 0
        assert await rig.read(topic) == []
        assert await client.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["before", "after"]


@versions
async def test_an_open_transaction_is_aborted_in_time_after_a_crash(
    tmp_path: Path, is_v2: bool
) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock, is_crash=True) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "before")
    async with transacting(tmp_path, clock) as rig:
        clock.advance(TIMEOUT_MS)
        rig.host.tick()
        await settled(rig)
        assert await client.on(rig).commit() == ErrorCode.PRODUCER_FENCED
        assert await rig.read(topic) == []
        ends = await rig.stage.broker.call(Ends(topic, 0))
        assert ends.last_stable_offset == ends.high_watermark


# ── Completion ───────────────────────────────────────────────────────────────────────────────


@versions
async def test_the_next_transaction_waits_for_the_end_of_the_last(
    tmp_path: Path, is_v2: bool
) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "one")
        rig.between.gate.clear()
        assert await client.commit() == 0
        sending = asyncio.create_task(client.send(topic, "two"))
        done, _ = await asyncio.wait((sending,), timeout=0.05)
        assert not done
        rig.between.gate.set()
        assert await sending == 0
        assert await client.commit() == 0
        await settled(rig)
        assert await rig.read(topic) == ["one", "two"]


async def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "COMPLETION_SECONDS_MAX", 0.02)
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        await client.send(topic, "one")
        rig.between.gate.clear()
        assert await client.commit() == 0
        assert await client.add(topic, 0) == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await client.commit() == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await Client(rig).init() == ErrorCode.CONCURRENT_TRANSACTIONS
        assert await client.commit_offset("g", topic, 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        rig.between.gate.set()


async def test_a_client_that_hangs_up_stops_nothing(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        await client.send(topic, "x")
        ending = asyncio.create_task(client.commit())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        assert ending.cancelled()
        await settled(rig)
        assert await rig.read(topic) == ["x"]


async def test_what_is_decided_while_the_node_stops_is_told_after_the_next_start(
    tmp_path: Path,
) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock) as rig:
        topic = await rig.stream()
        client = Client(rig)
        await client.init()
        await client.send(topic, "x")
        ending = asyncio.create_task(client.commit())
        for _ in range(3):  # until the decision is made and on its way to the log
            await asyncio.sleep(0)
        await rig.host.stop()
        assert await ending == 0
        assert rig.between.markers == []
        assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("markers")]
    async with transacting(tmp_path, clock) as rig:
        await settled(rig)
        assert await rig.read(topic) == ["x"]


async def test_a_partition_that_takes_no_marker_is_asked_again(tmp_path: Path) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream(partitions=2)
        client = Client(rig)
        await client.init()
        await client.send(topic, "x", partition=0)
        await client.send(topic, "y", partition=1)
        rig.between.marker_failure = Overloaded("not now")
        assert await client.commit() == 0
        await rig.between.is_waiting.wait()
        rig.between.is_waiting.clear()
        await asyncio.sleep(0)
        rig.clock.advance(MARKER_RETRY_MS)
        rig.host.tick()
        await rig.between.is_waiting.wait()
        await asyncio.sleep(0)
        assert rig.between.markers == []
        rig.between.marker_failure = None
        rig.clock.advance(MARKER_RETRY_MS)
        rig.host.tick()
        await settled(rig)
        assert len(rig.between.markers) == 2
        assert (await rig.read(topic, 0), await rig.read(topic, 1)) == (["x"], ["y"])


@ends
async def test_a_topic_deleted_meanwhile_does_not_hold_the_others_up(
    tmp_path: Path, is_commit: bool
) -> None:
    async with transacting(tmp_path) as rig:
        kept, gone = await rig.stream("kept"), await rig.stream("gone")
        client = Client(rig)
        await client.init()
        await client.send(kept, "x")
        await client.send(gone, "y")
        await rig.stage.catalog.delete(gone.account, gone.region, gone.name, now_ms=rig.clock.wall)
        assert await client.end(is_commit=is_commit) == 0
        await settled(rig)
        assert await rig.read(kept) == (["x"] if is_commit else [])


# ── The log of the coordinators ──────────────────────────────────────────────────────────────


@versions
async def test_what_is_not_durable_was_not_decided(tmp_path: Path, is_v2: bool) -> None:
    async with transacting(tmp_path) as rig:
        topic = await rig.stream()
        client = Client(rig, is_v2=is_v2)
        await client.init()
        await client.send(topic, "x")
        rig.between.row_failure = DiskFull("no room")
        assert await client.commit() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert await client.commit() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert rig.host.troubles() != []
        assert await rig.read(topic) == []
        assert rig.between.markers == []
        rig.between.row_failure = None
        rig.clock.advance(RELOAD_MS_MIN)
        async with asyncio.timeout(5):
            while (code := await client.commit()) == ErrorCode.COORDINATOR_NOT_AVAILABLE:
                await asyncio.sleep(0.01)
        assert code == 0
        assert rig.host.troubles() == []
        await settled(rig)
        assert await rig.read(topic) == ["x"]
        assert await client.send(topic, "y") == await client.commit() == 0


async def test_the_log_stays_small_and_says_the_same(tmp_path: Path) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock, segment_bytes=1_024) as rig:
        topic = await rig.stream()
        clients = [Client(rig, f"tx {n}") for n in range(4)]
        for client in clients:
            await client.init()
        for number in range(60):
            client = clients[number % 4]
            await client.send(topic, f"{number}")
            await client.end(is_commit=number % 2 == 0)
        await clients[0].send(topic, "open")
        for client in clients:
            await settled(rig, client.id)
        before = [await rig.host.call(DescribeTransaction(client.id)) for client in clients]
        log = rig.stage.catalog.find(ACCOUNT_DEFAULT, REGION_DEFAULT, TOPIC_NAME)
        assert log is not None
        partitions = [
            await rig.stage.broker._partition(log, index) for index in range(log.partition_count)
        ]
        assert sum([await partition.compact() for partition in partitions]) > 0
    async with transacting(tmp_path, clock) as rig:
        assert [await rig.host.call(DescribeTransaction(client.id)) for client in clients] == before
        assert await clients[0].on(rig).commit() == 0


async def test_a_log_that_cannot_be_read_is_out_of_service_and_says_so(tmp_path: Path) -> None:
    clock = HandClock()
    async with transacting(tmp_path, clock) as rig:
        client = Client(rig)
        await client.init()
        log = rig.stage.catalog.find(ACCOUNT_DEFAULT, REGION_DEFAULT, TOPIC_NAME)
        assert log is not None
        for partition in range(log.partition_count):
            await rig.stage.broker.call(AppendBatches(log, partition, acks=-1, batches=[foreign()]))
    async with transacting(tmp_path, clock) as rig:
        assert await client.on(rig).init() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        rows = rig.host.unreadable_rows()
        assert [row.partition for row in rows] == list(range(log.partition_count))
        assert (await rig.host.call(ListTransactions()))[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        operator = CoordinatorAdmin(
            rig.stage.catalog,
            rig.stage.broker,
            clock,
            (ACCOUNT_DEFAULT, REGION_DEFAULT),
        )
        for row in rows:
            await operator.skip(TOPIC_NAME, row.partition, row.offset)
        async with asyncio.timeout(5):
            while rig.host.unreadable_rows():
                await asyncio.sleep(0)
        code, found = await rig.host.call(ListTransactions())
        assert (code, list(found)) == (ErrorCode.NONE, [client.id])
        epoch = client.epoch
        assert await client.init() == 0
        assert client.epoch == epoch + 1, "the row from before is known"


def foreign() -> bytes:
    from tests.unit.broker.partition.test_stream import batch

    return batch("nothing of ours")
