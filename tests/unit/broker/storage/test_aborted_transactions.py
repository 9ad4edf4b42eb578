"""The index of aborted transactions of a compacted topic: it loses what compaction has removed, and
nothing that a reader of committed records must still be told of."""

import random
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tests.harness.full import part
from tests.unit.broker.stage import HandClock, Stage, on_stage

from penstock.broker.partition.partition import Partition
from penstock.broker.storage.compaction import Compactor
from penstock.log.log import LogConfig
from penstock.log.storage.files import LOG_SUFFIX
from penstock.model.calls import AppendBatches, AppendMarker, Fetch
from penstock.model.ports import Marker
from penstock.model.topic import Kind, Topic
from penstock.record.batch import ATTR_TRANSACTIONAL, encode_batch, parse_header, split_batches
from penstock.record.record import encode_record, iter_records

SMALL = LogConfig(segment_bytes_max=800, index_interval_bytes=200, tail_bytes_max=0)


class Scene:
    def __init__(self, stage: Stage, topic: Topic, pool: ThreadPoolExecutor) -> None:
        self.stage = stage
        self.topic = topic
        self._pool = pool
        self._sequences: dict[int, int] = {}

    @property
    def partition(self) -> Partition:
        queue = self.stage.broker.partitions.find(self.topic)
        assert queue is not None
        return queue.partitions[0]

    async def put(self, key: str, value: str, *, producer: int | None = None) -> None:
        """As part of the producer's transaction, if there is one."""
        sequence = -1
        if producer is not None:
            sequence = self._sequences.get(producer, 0)
            self._sequences[producer] = sequence + 1
        wall_ms = self.stage.clock.wall
        data = encode_batch(
            [
                encode_record(
                    offset_delta=0, timestamp_delta=0, key=key.encode(), value=value.encode()
                )
            ],
            base_offset=0,
            leader_epoch=-1,
            base_timestamp=wall_ms,
            max_timestamp=wall_ms,
            attributes=0 if producer is None else ATTR_TRANSACTIONAL,
            producer_id=-1 if producer is None else producer,
            producer_epoch=-1 if producer is None else 0,
            base_sequence=sequence,
        )
        await self.stage.broker.call(AppendBatches(self.topic, 0, acks=-1, batches=[data]))

    async def end(self, producer: int, *, is_commit: bool) -> None:
        marker = Marker(producer_id=producer, producer_epoch=0, is_commit=is_commit)
        await self.stage.broker.call(AppendMarker(self.topic, 0, marker))

    async def aborted(self, key: str, value: str, *, producer: int) -> None:
        await self.put(key, value, producer=producer)
        await self.end(producer, is_commit=False)

    async def fill(self, count: int = 40) -> None:
        """So that everything before is in segments that nobody appends to."""
        for number in range(count):
            await self.put("filler", f"{number}")

    async def compact(self) -> None:
        partition = self.partition
        compactor = Compactor(partition.log, partition._context)
        producers, up_to = partition.stream.producers, partition.journal.high_watermark
        await compactor.run(self.topic, lambda: producers, up_to=up_to, held_offset=None)
        await compactor.stop()

    def index(self) -> list[int]:
        """First offsets of the aborted transactions that are known."""
        end = self.partition.log.end_offset
        aborted = self.partition.stream.producers.aborted_between(0, end)
        return sorted(each.first_offset for each in aborted)

    async def read(self, bytes_max: int = 300) -> tuple[dict[str, str], set[int]]:
        """The last value of each key as a consumer of committed records has it, and the offsets of
        the records that it was told to skip."""
        values: dict[str, str] = {}
        skipped: set[int] = set()
        offset = 0
        while True:
            fetched = await self.stage.broker.call(
                Fetch(self.topic, 0, offset=offset, bytes_max=bytes_max, is_committed=True)
            )
            if not fetched.buffers:
                return values, skipped
            waiting = sorted(fetched.aborted, key=lambda each: each[1])
            aborted: set[int] = set()
            for data in split_batches(fetched.buffers):
                header = parse_header(data)
                offset = header.next_offset
                while waiting and waiting[0][1] < header.next_offset:
                    aborted.add(waiting.pop(0)[0])
                if header.is_control:
                    aborted.discard(header.producer_id)
                    continue
                for record in iter_records(data):
                    if header.attributes & ATTR_TRANSACTIONAL and header.producer_id in aborted:
                        skipped.add(record.offset)
                    else:
                        values[(record.key or b"").decode()] = (record.value or b"").decode()


@asynccontextmanager
async def scene(
    folder: Path, clock: HandClock | None = None, *, is_crash: bool = False
) -> AsyncIterator[Scene]:
    async with on_stage(folder, clock, log=SMALL, is_crash=is_crash) as stage:
        topic = stage.catalog.find("000000000000", "us-east-1", "t") or await stage.topic("t")
        topic = await stage.catalog.change(
            topic.account,
            topic.region,
            topic.name,
            lambda found: msgspec.structs.replace(
                found, kind=Kind.STREAM, configs={"cleanup.policy": "compact"}
            ),
        )
        with ThreadPoolExecutor(1) as pool:
            yield Scene(stage, topic, pool)


async def test_what_was_taken_back_goes_with_its_entry(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.aborted("a", "never", producer=1)  # superseded below
        await s.aborted("only here", "never", producer=2)  # and nothing supersedes it
        await s.put("a", "last")
        await s.fill()
        assert s.index() == [0, 2]
        await s.compact()
        assert s.index() == []
        values, skipped = await s.read()
        assert (values["a"], skipped) == ("last", set())
        assert "only here" not in values


async def test_a_long_transaction_goes_once_all_of_it_was_compacted(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        for number in range(20):
            await s.put(f"k{number}", "never", producer=1)
        await s.end(1, is_commit=False)
        for number in range(20):
            await s.put(f"k{number}", "last")
        await s.fill()
        await s.compact()
        assert s.index() == []
        values, skipped = await s.read()
        assert not skipped
        assert {values[f"k{number}"] for number in range(20)} == {"last"}


async def test_nothing_above_what_was_compacted_is_forgotten(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        await s.aborted("a", "never", producer=1)
        await s.put("a", "last")
        await s.fill()
        await s.put("b", "never", producer=2)
        begun = s.partition.log.end_offset - 1
        await s.end(2, is_commit=False)
        await s.compact()
        assert s.index() == [begun]


async def test_the_index_stops_growing_where_only_compaction_removes(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        sizes = []
        for number in range(6):
            for producer in range(10):
                await s.aborted(f"k{producer}", f"never {number}", producer=producer)
            for producer in range(10):
                await s.put(f"k{producer}", f"{number}")
            await s.fill()
            await s.compact()
            sizes.append(len(s.index()))
        assert sizes[-1] <= 10, sizes
        values, _ = await s.read()
        assert {values[f"k{producer}"] for producer in range(10)} == {"5"}


async def test_a_log_whose_segments_vanish_meanwhile_loses_no_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene(tmp_path) as s:
        await s.aborted("a", "never", producer=1)
        await s.put("a", "last")
        await s.fill()

        def vanished(*_: object) -> object:
            raise FileNotFoundError(LOG_SUFFIX)

        monkeypatch.setattr("penstock.broker.storage.compaction.read_segment", vanished)
        await s.compact()
        assert s.index() == [0]
        monkeypatch.undo()
        await s.fill(120)
        await s.compact()
        assert s.index() == []


@pytest.mark.parametrize("is_crash", [False, True])
@pytest.mark.full_set
@pytest.mark.parametrize("seed", part(range(4), 1))
async def test_readers_of_committed_records_see_what_was_committed_whatever_is_compacted(
    tmp_path: Path, seed: int, is_crash: bool
) -> None:
    chance = random.Random(seed)
    clock = HandClock()
    expected: dict[str, str] = {}
    begun: dict[int, dict[str, str]] = {}
    async with scene(tmp_path, clock, is_crash=is_crash) as s:
        for number in range(250):
            producer = chance.randrange(4)
            key, value = f"k{chance.randrange(12)}", f"{number}"
            step = chance.random()
            if step < 0.6:
                await s.put(key, value, producer=producer)
                begun.setdefault(producer, {})[key] = value
            elif producer in begun:
                is_commit = step < 0.75
                await s.end(producer, is_commit=is_commit)
                written = begun.pop(producer)
                if is_commit:
                    # What counts is the order in the log, so the others' newer values stay.
                    expected |= {
                        k: v for k, v in written.items() if int(v) > int(expected.get(k, -1))
                    }
            if number % 50 == 49:
                await s.compact()
        for producer in list(begun):
            await s.end(producer, is_commit=False)
        await s.fill()
        await s.compact()
        values, skipped = await s.read()
        values.pop("filler")
        assert values == expected
        left = len(s.index())
        # Of each producer one transaction may reach over the end of what was compacted.
        assert left <= len(skipped) + 4
    async with scene(tmp_path, clock) as s:
        values, again = await s.read()
        values.pop("filler")
        assert (values, again) == (expected, skipped)
        await s.fill(250)
        await s.compact()
        assert len(s.index()) <= left
