"""Compaction of a real log on a real folder: the last value of every key stays, where it was, and
dying at any moment costs nothing but work."""

import os
import shutil
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.full import part
from tests.unit.log.stage import SMALL, QuickDisk, open_log, sync

from penstock.log.compaction import Compaction, Progress, Unreadable, read_clean_offset
from penstock.log.inspection import verify_segment
from penstock.log.log import Log
from penstock.log.replacement import begin_replacement, mark_path, rewritten_folder
from penstock.log.retention import cleanable, grouped
from penstock.log.storage.files import LOG_SUFFIX, SIDE_SUFFIXES, segment_path
from penstock.log.storage.segment import SegmentInfo
from penstock.model.ports import Marker
from penstock.model.stream import StreamSettings
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader, encode_batch, parse_header
from penstock.record.control import encode_control_batch, encode_marker_batch
from penstock.record.record import RawRecord, encode_record, iter_records

DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000
Pair = tuple[str, str | None]


def put(
    log: Log,
    *pairs: Pair,
    producer: tuple[int, int, int] = (-1, -1, -1),
    attributes: int = 0,
) -> int:
    records = [
        encode_record(
            offset_delta=at,
            timestamp_delta=at,
            key=key.encode(),
            value=None if value is None else value.encode(),
        )
        for at, (key, value) in enumerate(pairs)
    ]
    batch = encode_batch(
        records,
        base_offset=log.end_offset,
        leader_epoch=0,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS + len(pairs) - 1,
        attributes=attributes,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
    )
    return log.append(batch, now_ms=NOW_MS)


def mark(log: Log, producer_id: int, *, is_commit: bool) -> int:
    marker = bytearray(encode_marker_batch(Marker(producer_id, 0, is_commit), timestamp=NOW_MS))
    marker[:8] = log.end_offset.to_bytes(8, "big")
    return log.append(bytes(marker), now_ms=NOW_MS)


def begin(
    log: Log,
    *,
    now_ms: int = NOW_MS,
    aborted: tuple[tuple[int, int, int], ...] = (),
    keys_max: int = 1_000,
) -> Compaction | None:
    clean_offset = read_clean_offset(log)
    segments = cleanable(
        log.segments(),
        StreamSettings(dirty_ratio_min=0.0, compaction_lag_ms_max=DAY_MS),
        clean_offset=clean_offset,
        up_to=log.sealed_offset,
        now_ms=now_ms,
    )
    if not segments:
        return None
    return Compaction(
        log,
        segments,
        clean_offset=clean_offset,
        tombstone_ms=DAY_MS,
        now_ms=now_ms,
        aborted=aborted,
        keys_max=keys_max,
    )


def drive(log: Log, compaction: Compaction, aborted: frozenset[int] = frozenset()) -> int:
    """To the end; at every step the log is whole. Returns the bytes freed."""
    freed = 0
    before = values(log, aborted)
    while (progress := compaction.step()) is not Progress.DONE:
        if progress is Progress.SWAP:
            freed += compaction.swap()
        assert values(log, aborted) == before
    compaction.close()
    return freed


def compact(
    log: Log,
    *,
    now_ms: int = NOW_MS,
    aborted: tuple[tuple[int, int, int], ...] = (),
    keys_max: int = 1_000,
) -> int:
    """Close what there is and compact it, in one round."""
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log, now_ms=now_ms, aborted=aborted, keys_max=keys_max)
    taken_back = frozenset(n for _, first, marker in aborted for n in range(first, marker))
    return 0 if compaction is None else drive(log, compaction, taken_back)


def batches(log: Log) -> Iterator[tuple[BatchHeader, bytes]]:
    offset = log.start_offset
    while offset < log.end_offset:
        for batch in log.read(offset, bytes_max=400):
            header = parse_header(batch)
            assert header.base_offset <= offset < header.next_offset
            offset = header.next_offset
            yield header, batch


def records(log: Log) -> list[RawRecord]:
    return [
        record
        for header, batch in batches(log)
        if not header.is_control
        for record in iter_records(batch)
    ]


def values(log: Log, aborted: frozenset[int] = frozenset()) -> dict[bytes, bytes]:
    """The last value of each key, as a reader of committed records has it."""
    found: dict[bytes, bytes] = {}
    for record in records(log):
        if record.offset in aborted:
            continue
        assert record.key is not None
        if record.value is None:
            found.pop(record.key, None)
        else:
            found[record.key] = record.value
    return found


def leftovers(folder: Path) -> list[str]:
    spare = rewritten_folder(folder)
    return [path.name for path in (*folder.glob("*.swap"), *spare.glob("*"), *folder.glob("*.tmp"))]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = open_log(tmp_path, disk=QuickDisk())
    yield log
    log.close(clean=False)


# ── What stays ───────────────────────────────────────────────────────────────────────────────


def test_the_last_record_of_each_key_stays_at_its_offset(log: Log) -> None:
    for at in range(60):
        put(log, (f"k{at % 7}", f"v{at}"))
    end_offset, size_bytes = log.end_offset, log.size_bytes
    before = {record.offset: record for record in records(log)}
    freed = compact(log)
    after = records(log)
    assert [record.offset for record in after] == list(range(53, 60))
    assert all(before[record.offset] == record for record in after)
    assert (log.start_offset, log.end_offset) == (0, end_offset)
    assert log.size_bytes == size_bytes - freed == sum(info.bytes for info in log.segments())
    assert read_clean_offset(log) == end_offset
    assert leftovers(log.folder) == []


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_compacted_log_is_opened_without_a_scan(tmp_path: Path, is_clean: bool) -> None:
    log = open_log(tmp_path)
    for at in range(60):
        put(log, (f"k{at % 7}", f"v{at}"))
    compact(log)
    infos, found = log.segments(), records(log)
    log.close(clean=is_clean)
    again = open_log(tmp_path)
    assert again.recovery.scanned_bytes == 0
    assert again.recovery.damage == ()
    assert again.segments() == infos
    assert records(again) == found
    assert compact(again) == 0, "nothing is dirty"


def test_only_the_segment_being_appended_to_is_left_alone(log: Log) -> None:
    put(log, ("a", "1"), ("a", "2"))
    log.roll(now_ms=NOW_MS)
    put(log, ("a", "3"))
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    drive(log, compaction)
    assert [record.value for record in records(log)] == [b"2", b"3"]


def test_a_segment_is_not_touched_before_it_is_synced(log: Log) -> None:
    put(log, ("a", "1"), ("a", "2"))
    log.roll(now_ms=NOW_MS)
    assert log.sealed_offset == 0
    assert begin(log) is None
    sync(log)
    assert log.sealed_offset == 2
    assert begin(log) is not None


def test_records_of_the_clean_part_go_when_the_dirty_part_has_their_keys(log: Log) -> None:
    for at in range(20):
        put(log, (f"k{at}", "old"))
    compact(log)
    assert len(records(log)) == 20
    for at in range(15):
        put(log, (f"k{at}", "new"))
    compact(log)
    assert [record.offset for record in records(log)] == list(range(15, 35))


def test_small_neighbours_become_one_segment(log: Log) -> None:
    for at in range(100):
        put(log, ("k", f"v{at}"))
    compact(log)
    count = len(log.segments())
    put(log, ("k", "last"))
    compact(log)
    assert len(log.segments()) < count / 4
    assert values(log) == {b"k": b"last"}
    assert log.read(0, bytes_max=1), "an offset whose record is gone can still be asked for"
    names = {path.name for path in log.folder.glob("*.log")}
    assert names == {segment_path(log.folder, info.base_offset).name for info in log.segments()}


def test_when_memory_is_full_the_round_ends_there_and_the_next_goes_on(log: Log) -> None:
    for at in range(40):
        put(log, (f"k{at % 20}", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    expected = values(log)
    clean_offsets = []
    while (compaction := begin(log, keys_max=8)) is not None:
        drive(log, compaction)
        clean_offsets.append(read_clean_offset(log))
    assert clean_offsets == [8, 16, 24, 32, 40]
    assert values(log) == expected
    assert [record.offset for record in records(log)] == list(range(20, 40))


def test_a_tombstone_goes_a_day_after_it_was_first_compacted(log: Log) -> None:
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", None))
    compact(log)
    assert [(record.offset, record.value) for record in records(log)] == [(1, b"1"), (2, None)]
    times = [record.timestamp for record in records(log)]
    for later_ms, expected in ((DAY_MS - 1, [1, 2, 3]), (DAY_MS, [1, 4])):
        put(log, ("c", "1"))
        compact(log, now_ms=NOW_MS + later_ms)
        assert [record.offset for record in records(log)] == expected
    assert times == [NOW_MS + 1, NOW_MS]


def test_a_record_of_an_aborted_transaction_is_no_successor_and_goes(log: Log) -> None:
    put(log, ("a", "committed"))
    first = put(log, ("a", "aborted"), producer=(7, 0, 0), attributes=ATTR_TRANSACTIONAL)
    marker = mark(log, 7, is_commit=False)
    put(log, ("b", "old"), producer=(7, 0, 1), attributes=ATTR_TRANSACTIONAL)
    mark(log, 7, is_commit=True)
    put(log, ("b", "new"))
    compact(log, aborted=((7, first, marker),))
    assert [record.value for record in records(log)] == [b"committed", b"new"]
    put(log, ("a", "newer"))
    compact(log, aborted=((7, first, marker),))
    assert [record.value for record in records(log)] == [b"new", b"newer"]


def test_each_producers_last_sequence_can_still_be_read_from_the_log(log: Log) -> None:
    for at in range(30):
        put(log, ("k", f"v{at}"), producer=(at % 2, 0, at // 2))
    put(log, ("k", "last"))
    compact(log)
    last: dict[int, int] = {}
    count = 0
    for header, _ in batches(log):
        count += 1
        if header.producer_id >= 0:
            last[header.producer_id] = header.base_sequence + header.last_offset_delta
    assert last == {0: 14, 1: 14}
    assert count < 31


def test_events_and_markers_stay(log: Log) -> None:
    put(log, ("a", "1"))
    event = encode_control_batch([(64, b"event")], base_offset=1, leader_epoch=0, timestamp=NOW_MS)
    log.append(event, now_ms=NOW_MS)
    put(log, ("a", "2"))
    compact(log)
    assert [batch for header, batch in batches(log) if header.is_control] == [event]


# ── Meanwhile ────────────────────────────────────────────────────────────────────────────────


def test_appends_and_rolls_go_on_during_a_round(log: Log) -> None:
    for at in range(40):
        put(log, (f"k{at % 4}", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    added = 0
    while (progress := compaction.step()) is not Progress.DONE:
        if progress is Progress.SWAP:
            compaction.swap()
        put(log, (f"n{added}", "new"))
        added += 1
        sync(log)
    compaction.close()
    assert len(records(log)) == 4 + added
    assert [r.offset for r in records(log)] == [*range(36, 40), *range(40, 40 + added)]


def test_segments_that_are_dropped_meanwhile_end_the_round(log: Log) -> None:
    for at in range(40):
        put(log, ("k", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    while compaction.step() is not Progress.SWAP:
        pass
    log.detach_before(log.segments()[2].end_offset).remove()
    start_offset = log.start_offset
    assert compaction.swap() == 0
    assert compaction.step() is Progress.DONE
    compaction.close()
    assert leftovers(log.folder) == []
    assert log.start_offset == start_offset
    assert values(log) == {b"k": b"v39"}
    compact(log)
    assert [record.offset for record in records(log)] == [39]


@pytest.mark.parametrize("steps", range(12))
def test_a_round_that_is_given_up_leaves_nothing(tmp_path: Path, steps: int) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    for at in range(30):
        put(log, (f"k{at % 3}", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    for _ in range(steps):
        if compaction.step() is Progress.SWAP and steps % 2:
            compaction.swap()
    compaction.close()
    compaction.close()
    assert leftovers(tmp_path) == []
    log.close()
    again = open_log(tmp_path, disk=QuickDisk())
    assert again.recovery.damage == ()
    compact(again)
    assert [record.offset for record in records(again)] == [27, 28, 29]


@pytest.mark.parametrize("byte", [70, 14, 9])  # a record, the leader epoch, the length
def test_damage_ends_the_round_and_is_not_made_to_look_whole(tmp_path: Path, byte: int) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    for at in range(30):
        put(log, ("k", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    info = log.segments()[1]
    path = segment_path(tmp_path, info.base_offset)
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1
    path.write_bytes(raw)
    compaction = begin(log)
    assert compaction is not None
    with pytest.raises(Unreadable) as unreadable:
        drive_blindly(compaction)
    compaction.close()
    assert unreadable.value.offset == info.base_offset
    assert path.read_bytes() == raw
    assert leftovers(tmp_path) == []


def drive_blindly(compaction: Compaction) -> None:
    while (progress := compaction.step()) is not Progress.DONE:
        if progress is Progress.SWAP:
            compaction.swap()


def test_a_clean_offset_that_cannot_be_right_is_ignored(log: Log) -> None:
    put(log, ("a", "1"))
    for data in (b"", b"\x92\x01\xcd\x27\x10", b"\x92\x09\x00", b"junk"):
        log.write_checkpoint("compaction", data)
        assert read_clean_offset(log) == 0


# ── Dying ────────────────────────────────────────────────────────────────────────────────────


class Killed(Exception):
    pass


class MortalDisk(QuickDisk):
    """Dies at a given operation: that one does not happen, and neither does any after it. Bytes
    that were not synced by then are gone, at ``is_power_cut``."""

    def __init__(self, dies_at: int) -> None:
        self.operations = 0
        self.dies_at = dies_at
        self._unsynced: dict[int, int] = {}  # inode → bytes that are safe

    @property
    def is_dead(self) -> bool:
        return self.operations > self.dies_at

    def _is_alive(self) -> bool:
        """Counts; what a dead process does in its last clauses has no effect."""
        if self.is_dead:
            return False
        self.operations += 1
        if self.is_dead:
            raise Killed
        return True

    def open(self, path: Path) -> int:
        self._is_alive()
        return super().open(path) if not self.is_dead else os.open("/dev/null", os.O_RDWR)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        if self._is_alive():
            self._unsynced.setdefault(os.fstat(fd).st_ino, position)
            return super().pwrite(fd, data, position)
        return len(data)

    def truncate(self, fd: int, length: int) -> None:
        if self._is_alive():
            super().truncate(fd, length)

    def sync_data(self, fd: int) -> None:
        if self._is_alive():
            self._unsynced.pop(os.fstat(fd).st_ino, None)

    sync = sync_data

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir() or self._is_alive():
            super().make_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        if self._is_alive():
            super().rename(source, target)

    def unlink(self, path: Path) -> None:
        if self._is_alive():
            super().unlink(path)

    def cut_power(self, folder: Path) -> None:
        for path in (*folder.glob("*"), *rewritten_folder(folder).glob("*")):
            safe = self._unsynced.get(path.stat().st_ino)
            if safe is not None and path.is_file():
                os.truncate(path, safe)


def written(folder: Path) -> tuple[dict[int, RawRecord], dict[bytes, bytes], int]:
    log = open_log(folder, disk=QuickDisk())
    for at in range(13):
        put(log, (f"k{at % 4}", f"v{at}"), (f"once{at}", None if at % 3 else "v"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    found = {record.offset: record for record in records(log)}, values(log), log.end_offset
    log.close(clean=False)
    return found


def rewrite_and_join(log: Log) -> None:
    """Two rounds: one that rewrites, one that makes one segment of several."""
    for now_ms in (NOW_MS, NOW_MS + 2 * DAY_MS):
        put(log, ("k0", "v12"))
        log.roll(now_ms=NOW_MS)
        sync(log)
        compaction = begin(log, now_ms=now_ms)
        assert compaction is not None
        try:
            drive_blindly(compaction)
        finally:
            compaction.close()


def count_operations(origin: Path, folder: Path) -> int:
    """Return the number of file operations of ``rewrite_and_join`` on a copy of the log."""
    shutil.copytree(origin, folder)
    log = open_log(folder, disk=QuickDisk())
    log.disk = disk = MortalDisk(dies_at=sys.maxsize)
    rewrite_and_join(log)
    operations = disk.operations
    log.close(clean=False)
    shutil.rmtree(folder)
    return operations


@pytest.mark.full_set
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_dying_between_any_two_file_operations_loses_nothing(
    tmp_path: Path, is_power_cut: bool
) -> None:
    origin = tmp_path / "origin"
    folder = tmp_path / "copy"
    before, expected, end_offset = written(origin)
    operations = count_operations(origin, folder)
    assert operations > 100
    for dies_at in part(range(operations), 25):
        shutil.copytree(origin, folder)
        log = open_log(folder, disk=QuickDisk())
        log.disk = disk = MortalDisk(dies_at)
        with pytest.raises(Killed):
            rewrite_and_join(log)
        log.close(clean=False)
        if is_power_cut:
            disk.cut_power(folder)
        again = open_log(folder, disk=QuickDisk())
        assert again.recovery.damage == ()
        assert again.recovery.end_offset >= again.recovery.recovery_point
        assert leftovers(folder) == []
        assert again.start_offset == 0
        assert again.end_offset >= end_offset
        found = records(again)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        assert all(before[r.offset] == r for r in found if r.offset < end_offset)
        assert values(again) == expected
        rewrite_and_join(again)
        assert values(again) == expected
        again.close()
        shutil.rmtree(folder)


@pytest.mark.full_set
def test_any_part_of_a_swap_may_have_reached_the_disk(tmp_path: Path) -> None:
    """Renames and removals of a swap are not synced one by one: whichever of them a power cut
    leaves, the next opening carries the swap to its end."""
    origin = tmp_path / "origin"
    _, expected, end_offset = written(origin)
    log = open_log(origin, disk=QuickDisk())
    compact(log)
    put(log, ("k0", "v12"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    while True:
        if compaction.step() is Progress.SWAP:
            (marked,) = origin.glob("*.swap")
            base, end = (int(part) for part in marked.stem.split("-"))
            if any(base < info.base_offset < end for info in log.segments()):
                break
            compaction.swap()
    inside = [i.base_offset for i in log.segments() if base < i.base_offset < end]
    log.close(clean=False)
    suffixes = (LOG_SUFFIX, *SIDE_SUFFIXES)
    moves = [(base, suffix) for suffix in suffixes] + [(inside[0], suffix) for suffix in suffixes]
    for number, done in enumerate(part([*product((False, True), repeat=len(moves))], 32)):
        folder = tmp_path / str(number)
        shutil.copytree(origin, folder)
        for (at, suffix), is_done in zip(moves, done, strict=True):
            if is_done and at == base:
                spare = segment_path(rewritten_folder(folder), base, suffix)
                spare.rename(segment_path(folder, base, suffix))
            elif is_done:
                segment_path(folder, at, suffix).unlink()
        again = open_log(folder, disk=QuickDisk())
        assert again.recovery.damage == ()
        assert leftovers(folder) == []
        assert not set(inside) & {info.base_offset for info in again.segments()}
        assert (values(again), again.end_offset) == (expected, end_offset + 1)
        again.close(clean=False)
        shutil.rmtree(folder)


def test_looking_at_an_interrupted_swap_finds_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    for at in range(30):
        put(log, ("k", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    while compaction.step() is not Progress.SWAP:
        pass
    first, second = log.segments()[:2]
    log.close(clean=False)
    spare = segment_path(rewritten_folder(tmp_path), first.base_offset)
    spare.rename(segment_path(tmp_path, first.base_offset))  # the side files have not followed
    survey = verify_segment(tmp_path, first.base_offset, first.end_offset)
    assert survey.damage == []
    assert len(survey.remarks) == 1
    assert verify_segment(tmp_path, second.base_offset, second.end_offset).remarks == []


def test_a_mark_whose_files_are_gone_removes_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    for at in range(30):
        put(log, ("k", f"v{at}"))
    expected = records(log)
    first, second = log.segments()[:2]
    log.close()
    rewritten_folder(tmp_path).mkdir()
    begin_replacement(QuickDisk(), tmp_path, first.base_offset, second.end_offset)
    again = open_log(tmp_path, disk=QuickDisk())
    assert records(again) == expected
    assert not mark_path(tmp_path, first.base_offset, second.end_offset).exists()


def test_a_segment_that_was_dropped_is_not_brought_back(tmp_path: Path) -> None:
    log = open_log(tmp_path, disk=QuickDisk())
    for at in range(30):
        put(log, ("k", f"v{at}"))
    log.roll(now_ms=NOW_MS)
    sync(log)
    compaction = begin(log)
    assert compaction is not None
    while compaction.step() is not Progress.SWAP:
        pass
    log.detach_before(log.segments()[0].end_offset).remove()
    start_offset = log.start_offset
    log.close(clean=False)
    again = open_log(tmp_path, disk=QuickDisk())
    assert again.start_offset == start_offset > 0
    assert leftovers(tmp_path) == []
    assert values(again) == {b"k": b"v29"}


# ── Any history ──────────────────────────────────────────────────────────────────────────────

KEYS = st.sampled_from(["a", "b", "c", "d"])
WRITES = st.lists(st.tuples(KEYS, st.none() | st.text("xyz", max_size=3)), min_size=1, max_size=4)
ACTIONS = st.lists(
    WRITES | st.sampled_from(["compact", "compact a little", "stop", "crash", "a day"]),
    min_size=5,
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(ACTIONS)
def test_after_any_history_each_key_has_the_value_that_a_dict_has(
    tmp_path_factory: pytest.TempPathFactory, actions: list[list[Pair] | str]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    log = open_log(folder, disk=QuickDisk())
    model: dict[bytes, bytes] = {}
    written_at: dict[int, tuple[bytes | None, bytes | None]] = {}
    now_ms = NOW_MS
    for action in actions:
        if isinstance(action, list):
            base_offset = put(log, *action)
            for at, (key, value) in enumerate(action):
                if value is None:
                    written_at[base_offset + at] = key.encode(), None
                    model.pop(key.encode(), None)
                else:
                    written_at[base_offset + at] = key.encode(), value.encode()
                    model[key.encode()] = value.encode()
        elif action.startswith("compact"):
            compact(log, now_ms=now_ms, keys_max=2 if action != "compact" else 100)
        elif action == "a day":
            now_ms += DAY_MS
        else:
            log.close(clean=action == "stop")
            log = open_log(folder, disk=QuickDisk())
            assert log.recovery.damage == ()
        assert values(log) == model
    compact(log, now_ms=now_ms)
    found = records(log)
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert all(written_at[record.offset] == (record.key, record.value) for record in found)
    assert values(log) == model
    keys = [record.key for record in found]
    assert len(keys) == len(set(keys)), "one record per key"
    log.close()
    shutil.rmtree(folder)


# ── What is worth it ─────────────────────────────────────────────────────────────────────────

SEGMENTS = [
    SegmentInfo(0, 10, 100, 1_000),
    SegmentInfo(10, 20, 100, 2_000),
    SegmentInfo(20, 30, 100, 3_000),
    SegmentInfo(30, 35, 50, 4_000),
]


def worth(
    *,
    clean_offset: int = 0,
    up_to: int = 30,
    ratio: float = 0.5,
    lag_ms_min: int = 0,
    lag_ms_max: int = 10**9,
) -> list[int]:
    chosen = cleanable(
        SEGMENTS,
        StreamSettings(
            dirty_ratio_min=ratio,
            compaction_lag_ms_min=lag_ms_min,
            compaction_lag_ms_max=lag_ms_max,
        ),
        clean_offset=clean_offset,
        up_to=up_to,
        now_ms=5_000,
    )
    return [segment.base_offset for segment in chosen]


def test_compaction_waits_until_enough_is_dirty_or_it_has_waited_too_long() -> None:
    assert worth() == [0, 10, 20]
    assert worth(clean_offset=10) == [0, 10, 20]
    assert worth(clean_offset=20) == []
    assert worth(clean_offset=20, ratio=0.3) == [0, 10, 20]
    assert worth(clean_offset=20, lag_ms_max=1_999) == [0, 10, 20]
    assert worth(clean_offset=30, ratio=0.0) == []


def test_nothing_at_or_above_a_limit_or_too_young_is_compacted() -> None:
    assert worth(up_to=29) == [0, 10]
    assert worth(up_to=9) == []
    assert worth(up_to=99) == [0, 10, 20], "never the one being appended to"
    assert worth(lag_ms_min=2_999) == [0, 10]
    assert worth(lag_ms_min=3_000) == [0, 10]
    assert worth(lag_ms_min=4_000) == [0]


def test_neighbours_are_joined_as_far_as_they_fit() -> None:
    def bases(bytes_max: int) -> list[list[int]]:
        groups = grouped(SEGMENTS, bytes_max=bytes_max)
        return [[segment.base_offset for segment in group] for group in groups]

    assert bases(10) == [[0], [10], [20], [30]]
    assert bases(200) == [[0, 10], [20, 30]]
    assert bases(349) == [[0, 10, 20], [30]]
    assert bases(350) == [[0, 10, 20, 30]]
    far = [SegmentInfo(0, 10, 1, 0), SegmentInfo(10, 2**32 + 10, 1, 0)]
    assert len(grouped(far, bytes_max=SMALL.segment_bytes_max)) == 2
