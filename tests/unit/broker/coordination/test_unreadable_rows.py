"""A row of a coordinator's log that is not a row: the coordinator is out of service and says which
row it is, until an operator skips exactly that row. On a real broker and a real catalog."""

import asyncio
import logging
import struct
from pathlib import Path

import msgspec
import pytest
from tests.unit.broker.coordination.group_stage import Hosting, hosting
from tests.unit.broker.stage import HandClock, Stage, on_stage

from penstock.broker.coordination.groups import TOPIC_NAME
from penstock.broker.coordination.host import PARTITION_COUNT, SEGMENT_BYTES
from penstock.broker.coordination.row_log import RowLog, RowUnreadable, digest_of, encode_rows
from penstock.cursor.rows import Row
from penstock.model.calls import AppendBatches
from penstock.model.errors import Conflict, NotFound, QuotaExceeded
from penstock.model.limits import SKIPPED_ROWS_MAX
from penstock.model.names import ACCOUNT_DEFAULT, REGION_DEFAULT
from penstock.model.topic import SkippedRow, Topic, partition_of_group
from penstock.node.wiring.coordinator_admin import CoordinatorAdmin
from penstock.record.batch import encode_batch
from penstock.wire.kafka.faults import ErrorCode

NAMESPACE = (ACCOUNT_DEFAULT, REGION_DEFAULT)
FOREIGN = Row(b"k", b"the message of somebody")
PARTITION = partition_of_group("g", PARTITION_COUNT)
# Groups of the same partition, and one of another.
SAME = [
    name for name in map(str, range(99)) if partition_of_group(name, PARTITION_COUNT) == PARTITION
]
OTHER = next(
    name for name in map(str, range(99)) if partition_of_group(name, PARTITION_COUNT) != PARTITION
)
UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def operator(stage: Stage) -> CoordinatorAdmin:
    return CoordinatorAdmin(stage.catalog, stage.broker, stage.clock, NAMESPACE)


async def put(hosting_: Hosting, *rows: Row, partition: int = PARTITION) -> int:
    """Append rows as a stranger with access to the log would; the offset of the first."""
    (batch,) = encode_rows([rows], wall_ms=1)
    return await put_batch(hosting_, batch, partition=partition)


async def put_batch(hosting_: Hosting, batch: bytes, *, partition: int = PARTITION) -> int:
    appended = await hosting_.stage.broker.call(
        AppendBatches(hosting_.topic, partition, acks=-1, batches=(batch,))
    )
    return appended.base_offset


async def prepared(
    folder: Path, clock: HandClock, *rows: Row, segment_bytes: int = SEGMENT_BYTES
) -> int:
    """A folder with rows before and behind those; the offset of the first of those."""
    async with hosting(folder, clock, segment_bytes=segment_bytes) as there:
        for at, group in enumerate(SAME[:3]):
            assert await there.commit(group, 10 + at) is ErrorCode.NONE
        assert await there.commit(OTHER, 5) is ErrorCode.NONE
        offset = await put(there, *rows)
        assert await there.commit(SAME[3], 13) is ErrorCode.NONE
        assert await there.commit(SAME[0], 20) is ErrorCode.NONE
    return offset


EXPECTED = {SAME[0]: 20, SAME[1]: 11, SAME[2]: 12, SAME[3]: 13}


async def check_everything_is_there(there: Hosting) -> None:
    for group, offset in EXPECTED.items():
        assert await there.committed(group) == offset
    assert await there.committed(OTHER) == 5
    assert await there.commit("g", 1) is ErrorCode.NONE
    assert (there.host.unreadable_rows(), there.host.troubles()) == ([], [])


async def test_the_coordinator_names_the_row_and_serves_once_it_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with hosting(tmp_path, clock) as there:
        (row,) = there.host.unreadable_rows()
        assert (row.topic, row.partition, row.offset) == (TOPIC_NAME, PARTITION, offset)
        assert row.reason == "the row with key 6b has an unknown kind"
        assert there.host.troubles() == []
        said = [one for one in caplog.records if one.message == "coordinator out of service"]
        told = [
            (one.__dict__["topic"], one.__dict__["partition"], one.__dict__["offset"])
            for one in said
        ]
        assert told == [(TOPIC_NAME, PARTITION, offset)]
        assert await there.commit("g", 1) is UNAVAILABLE
        assert await there.commit(OTHER, 5) is ErrorCode.NONE, "other partitions serve"

        shown = await operator(there.stage).show(TOPIC_NAME, PARTITION, None)
        assert shown.unreadable is not None
        assert (shown.unreadable.offset, shown.unreadable.key) == (offset, "6b")
        assert bytes.fromhex(shown.unreadable.value or "") == FOREIGN.value

        after = await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)
        assert after.unreadable is None
        assert [one.offset for one in after.skipped] == [offset]
        await _loaded(there)
        await check_everything_is_there(there)
    async with hosting(tmp_path, clock) as there:
        await check_everything_is_there(there)


async def _loaded(there: Hosting) -> None:
    """Without the clock being moved: nobody waits for the next attempt."""
    async with asyncio.timeout(5):
        while there.host.unreadable_rows():
            await asyncio.sleep(0)


async def test_the_same_trouble_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = HandClock()
    await prepared(tmp_path, clock, FOREIGN)
    async with hosting(tmp_path, clock) as there:
        reads = there.between.reads
        for _ in range(3):
            clock.advance(20_000)
            assert await there.commit("g", 1) is UNAVAILABLE
            async with asyncio.timeout(5):
                while there.between.reads == reads:
                    await asyncio.sleep(0)
            reads = there.between.reads
        said = [one for one in caplog.records if one.levelno >= logging.ERROR]
        assert len(said) == 1


@pytest.mark.parametrize("partition", [PARTITION, (PARTITION + 1) % PARTITION_COUNT])
async def test_only_the_unreadable_row_can_be_skipped(tmp_path: Path, partition: int) -> None:
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with hosting(tmp_path, clock) as there:
        before = there.topic
        if partition == PARTITION:
            why = f"is at offset {offset}, not {offset - 1}; only that row can be skipped"
        else:
            why = "All rows of .* are readable: there is none to skip"
        with pytest.raises(Conflict, match=why):
            await operator(there.stage).skip(TOPIC_NAME, partition, offset - 1)
        assert there.topic == before
        assert len(there.host.unreadable_rows()) == 1


async def test_rows_are_skipped_one_by_one(tmp_path: Path) -> None:
    clock = HandClock()
    broken = Row(b"\x00\xff", b"\x00\xff")
    offset = await prepared(tmp_path, clock, FOREIGN, broken)
    async with hosting(tmp_path, clock) as there:
        after = await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)
        assert after.unreadable is not None
        assert after.unreadable.offset == offset + 1
        async with asyncio.timeout(5):
            while [row.offset for row in there.host.unreadable_rows()] != [offset + 1]:
                await asyncio.sleep(0)
        assert await there.commit("g", 1) is UNAVAILABLE
        await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset + 1)
        await _loaded(there)
        await check_everything_is_there(there)


async def test_a_skipped_row_is_skipped_in_a_compacted_log_as_well(tmp_path: Path) -> None:
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN, segment_bytes=400)
    async with hosting(tmp_path, clock) as there:
        await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)
        await _loaded(there)
        for number in range(100):
            assert await there.commit("g", number) is ErrorCode.NONE
        assert await there.compact() > 0
        await check_everything_is_there(there)
    async with hosting(tmp_path, clock) as there:
        await check_everything_is_there(there)


async def test_another_row_at_the_offset_is_not_skipped(tmp_path: Path) -> None:
    """As after an election that lost rows: the offset was given again."""
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with hosting(tmp_path, clock) as there:
        other = SkippedRow(PARTITION, offset, digest_of(Row(b"k", b"another")))
        await there.stage.catalog.change(
            *NAMESPACE,
            TOPIC_NAME,
            lambda topic: msgspec.structs.replace(topic, skipped_rows=(other,)),
        )
        shown = await operator(there.stage).show(TOPIC_NAME, PARTITION, None)
        assert shown.unreadable is not None
        await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)
        await _loaded(there)
        await check_everything_is_there(there)


def undecodable(count: int) -> bytes:
    """A batch with a right checksum whose records are noise."""
    batch = encode_batch(
        [b"\x7f" * 9] * count,
        base_offset=0,
        leader_epoch=0,
        base_timestamp=1,
        max_timestamp=1,
        attributes=0,
    )
    assert struct.unpack_from(">i", batch, 57) == (count,)
    return batch


async def test_a_batch_of_one_that_does_not_decode_is_a_row(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as there:
        assert await there.commit(SAME[0], 1) is ErrorCode.NONE
        offset = await put_batch(there, undecodable(1))
    async with hosting(tmp_path, clock) as there:
        (row,) = there.host.unreadable_rows()
        assert row.offset == offset
        shown = await operator(there.stage).show(TOPIC_NAME, PARTITION, offset)
        assert shown.row is not None
        assert shown.row.value == (b"\x7f" * 9).hex()
        await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)
        await _loaded(there)
        assert await there.committed(SAME[0]) == 1


async def test_a_batch_of_several_that_does_not_decode_cannot_be_skipped(tmp_path: Path) -> None:
    clock = HandClock()
    async with hosting(tmp_path, clock) as there:
        offset = await put_batch(there, undecodable(2))
    async with hosting(tmp_path, clock) as there:
        (row,) = there.host.unreadable_rows()
        assert row.offset == offset
        with pytest.raises(Conflict, match="several rows that cannot be distinguished"):
            await operator(there.stage).skip(TOPIC_NAME, PARTITION, offset)


async def test_a_row_is_shown_by_its_offset(tmp_path: Path) -> None:
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with on_stage(tmp_path, clock) as stage:
        ask = operator(stage)
        shown = await ask.show(TOPIC_NAME, PARTITION, offset - 1)
        assert shown.row is not None
        assert (shown.row.offset, shown.row.reason) == (offset - 1, None)
        await ask.skip(TOPIC_NAME, PARTITION, offset)
        skipped = await ask.show(TOPIC_NAME, PARTITION, offset)
        assert skipped.row is not None
        assert skipped.row.key == "6b"
        with pytest.raises(NotFound, match="no row at offset 9999; its offsets go from 0 to"):
            await ask.show(TOPIC_NAME, PARTITION, 9_999)
        with pytest.raises(NotFound, match="no coordinator topic __audit; expected __groups or"):
            await ask.show("__audit", 0, None)
        with pytest.raises(NotFound, match="has partitions 0 to 3"):
            await ask.skip(TOPIC_NAME, PARTITION_COUNT, 0)


async def test_skipped_rows_have_a_bound(tmp_path: Path) -> None:
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with on_stage(tmp_path, clock) as stage:
        many = tuple(SkippedRow(PARTITION, 10_000 + at, "") for at in range(SKIPPED_ROWS_MAX))
        await stage.catalog.change(
            *NAMESPACE, TOPIC_NAME, lambda topic: msgspec.structs.replace(topic, skipped_rows=many)
        )
        with pytest.raises(QuotaExceeded, match="the maximum of 1000 skipped rows"):
            await operator(stage).skip(TOPIC_NAME, PARTITION, offset)


async def test_a_decision_of_the_fold_that_fails_names_its_row(tmp_path: Path) -> None:
    """Not only ValueError: whatever a row does to the fold, the row is named."""
    clock = HandClock()
    offset = await prepared(tmp_path, clock, FOREIGN)
    async with hosting(tmp_path, clock) as there:
        log = RowLog(there.stage.broker, there.topic, PARTITION, clock)

        def replay(row: Row) -> None:
            assert row.key != FOREIGN.key

        with pytest.raises(RowUnreadable, match=f"offset {offset} is unreadable: AssertionError"):
            await log.replay(*await log.ends(), replay)


def test_an_entry_without_skipped_rows_is_what_earlier_versions_wrote() -> None:
    topic = Topic("id", "a", "r", "n", "stream", 1, 0, 0, b"k")  # type: ignore[arg-type]
    assert b"skipped" not in msgspec.json.encode(topic)
