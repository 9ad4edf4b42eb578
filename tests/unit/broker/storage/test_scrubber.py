"""Reading over logs: a changed byte is found wherever it is, and nothing else is."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.harness.damage import flip_bit
from tests.unit.broker.stage import message, on_stage
from tests.unit.log.stage import QuickDisk, append, append_many, open_log, sync

from penstock.broker.storage.scrubber import Scrubber
from penstock.log.log import Log, LogConfig
from penstock.log.storage.checkpoint import Damage
from penstock.log.storage.files import segment_path
from penstock.model.calls import Append
from penstock.model.errors import Overloaded
from penstock.model.limits import MIB

FAST = 1_024 * MIB


class Owner:
    """Of one log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.found: list[Damage] = []

    def note_damage(self, found: Sequence[Damage]) -> None:
        self.found += found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def scrubber(pool: ThreadPoolExecutor, *owners: Owner, rate: int = FAST) -> Scrubber:
    return Scrubber(lambda: owners, pool, bytes_per_second=rate, interval_ms=3_600_000)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
async def test_a_changed_byte_is_found_wherever_it_is(
    tmp_path: Path, pool: ThreadPoolExecutor, which: str
) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    sync(log)
    infos = log.segments()
    assert len(infos) > 3
    info = {"first": infos[0], "middle": infos[1], "last": infos[-1]}[which]
    # Of the last segment its last batch: when a log is opened that would be a torn end.
    position = info.bytes - 5 if which == "last" else info.bytes // 2
    owner = Owner(log)
    scrub = scrubber(pool, owner)
    await scrub.round()
    assert (owner.found, scrub.damage_count) == ([], 0)
    assert scrub.read_bytes >= sum(info.bytes for info in infos)
    flip_bit(segment_path(log.folder, info.base_offset), position)
    await scrub.round()
    assert (scrub.damage_count, scrub.round_count) == (1, 2)
    damage = owner.found[0]
    assert damage.file == segment_path(tmp_path, info.base_offset).name
    assert damage.position <= position < damage.position + damage.size_bytes
    assert info.base_offset <= damage.first_offset < damage.next_offset <= info.end_offset
    log.close()


async def test_what_is_known_is_not_looked_for_again(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    flip_bit(segment_path(log.folder, 0), 70)
    owner = Owner(log)
    scrub = scrubber(pool, owner)
    await scrub.round()
    log.note_damage(owner.found)
    read_bytes = scrub.read_bytes
    await scrub.round()
    assert (scrub.read_bytes, len(owner.found)) == (read_bytes, 1)
    log.close()


@pytest.mark.slow
async def test_a_log_that_is_appended_to_cut_and_trimmed_meanwhile_is_not_taken_for_damaged(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    append_many(log, 60)
    owner = Owner(log)
    scrub = scrubber(pool, owner)
    chance = random.Random(5)
    is_over = False

    async def change() -> None:
        epoch = 0
        while not is_over:
            drawn = chance.random()
            if drawn < 0.15 and log.end_offset - log.start_offset > 30:
                epoch += 1
                log.truncate(log.end_offset - chance.randrange(1, 20))
            elif drawn < 0.25 and log.end_offset - log.start_offset > 60:
                log.detach_before(log.start_offset + 20).remove()
            else:
                for _ in range(chance.randrange(1, 9)):
                    append(log, size=chance.randrange(1, 200), epoch=epoch)
            if drawn < 0.5:
                sync(log)
            await asyncio.sleep(0)

    changing = asyncio.create_task(change())
    for _ in range(8):
        await scrub.round()
    is_over = True
    await changing
    assert (owner.found, scrub.damage_count, scrub.round_count) == ([], 0, 8)
    log.close()


async def test_it_keeps_to_its_rate_and_ends_when_it_is_told(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = open_log(tmp_path, LogConfig(segment_bytes_max=64 * MIB, tail_bytes_max=0))
    while log.size_bytes < MIB:
        append(log, size=10_000)
    scrub = scrubber(pool, Owner(log), rate=2 * MIB)
    began_at = time.monotonic()
    await scrub.round()
    assert time.monotonic() - began_at > 0.45
    slow = scrubber(pool, Owner(log), rate=1)
    task = asyncio.create_task(slow.round())
    while not slow.read_bytes:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    log.close()


async def test_a_partition_whose_unread_messages_are_damaged_says_so(tmp_path: Path) -> None:
    async with on_stage(tmp_path, log=LogConfig(tail_bytes_max=0)) as stage:
        topic = await stage.topic()
        await stage.broker.call(Append(topic, 0, [message("a"), message("b")]))
        partitions = stage.broker.partitions
        queue = partitions.find(topic)
        assert queue is not None
        log = queue.partitions[0].log
        pool = ThreadPoolExecutor(1)
        scrub = Scrubber(
            partitions.scrubber.logs, pool, bytes_per_second=FAST, interval_ms=3_600_000
        )
        await scrub.round()
        assert partitions.damages() == []
        flip_bit(segment_path(log.folder, 0), 100)
        await scrub.round()
        pool.shutdown()
        [(place, reason)] = partitions.damages()
        assert place == "q/0"
        assert "the CRC does not match" in reason
        with pytest.raises(Overloaded, match="damaged"):
            await stage.broker.call(Append(topic, 0, [message("c")]))


async def test_a_log_whose_place_another_has_taken_is_not_told_of(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    log = open_log(tmp_path)
    append_many(log, 40)
    flip_bit(segment_path(log.folder, 0), 70)
    owners = [Owner(log)]
    scrub = Scrubber(lambda: tuple(owners), pool, bytes_per_second=FAST, interval_ms=3_600_000)
    under_way = asyncio.create_task(scrub.round())
    while not scrub.read_bytes:
        await asyncio.sleep(0)
    gone = owners.pop()
    log.close()
    await under_way
    assert (gone.found, scrub.damage_count, scrub.round_count) == ([], 0, 1)
