"""One round of compaction of a log, which keeps only the last record of every key.

The first pass over the closed segments finds the last offset of every key in the dirty part (the
part that was never compacted). When KEYS_MAX is reached, later records are left to the next round.
The second pass rewrites the segments without superseded records and replaces the old ones, oldest
first, so when a tombstone gets its expiry time, all older records of its key are gone. ``step`` and
``close`` run in a thread, with file descriptors of their own; ``swap`` runs in the log's thread.
All bytes are verified, and damage ends the round."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path

import msgspec

from penstock.log import replacement
from penstock.log.log import Log
from penstock.log.retention import grouped
from penstock.log.storage.files import CHECK_SUFFIX, Disk, segment_path
from penstock.log.storage.segment import Segment, SegmentInfo, checked_header
from penstock.log.storage.side_files import CHECK_FIELDS, CheckWindow, EntryFile
from penstock.model.errors import PenstockError
from penstock.model.limits import BATCH_BYTES_MAX, KIB
from penstock.record.batch import (
    ATTR_TRANSACTIONAL,
    CRC_FROM,
    HEADER_BYTES,
    NO_PRODUCER,
    BatchHeader,
    parse_header,
)
from penstock.record.compaction import compact_batch, empty_batch, keys_of, merge_empty
from penstock.record.crc32c import crc32c

CHECKPOINT_NAME = "compaction"
CHECKPOINT_VERSION = 1
KEYS_MAX = 500_000  # keys in memory in one round, about 80 MB; more keys take more rounds
PRODUCERS_MAX = 100_000  # producers whose last batch is known; empty batches of others are kept
STEP_BYTES = 256 * KIB  # bytes read in one step, some milliseconds of work
STEP_RECORDS = 2_000  # records in one step, unless one batch has more: batches may be compressed
CHECKS_AHEAD = 512
KEY_HASH_BYTES = 16  # a collision is not expected within the age of the universe

Batch = tuple[BatchHeader, bytes]
Aborted = tuple[int, int, int]  # producer, first offset, offset of the marker


class Progress(Enum):
    MORE = "more"
    SWAP = "swap"
    DONE = "done"


class Unreadable(PenstockError):
    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path.name}: offset {offset}: {reason}")
        self.offset = offset


class Clean(msgspec.Struct, array_like=True, frozen=True):
    version: int
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Clean).decode


def read_clean_offset(log: Log) -> int:
    """Return the offset up to which the log is compacted, or the log's start if unknown."""
    try:
        clean = _decode(log.read_checkpoint(CHECKPOINT_NAME) or b"")
    except msgspec.MsgspecError:
        return log.start_offset
    if clean.version != CHECKPOINT_VERSION or clean.offset > log.end_offset:
        return log.start_offset
    return max(clean.offset, log.start_offset)


def forget_clean_beyond(log: Log, offset: int) -> None:
    """Delete the compaction checkpoint if it is beyond ``offset``. Call this before truncating."""
    if read_clean_offset(log) > offset:
        log.remove_checkpoint(CHECKPOINT_NAME)


class Compaction:
    def __init__(
        self,
        log: Log,
        segments: Sequence[SegmentInfo],
        *,
        clean_offset: int,
        tombstone_ms: int,
        now_ms: int,
        aborted: Iterable[Aborted] = (),
        keys_max: int = KEYS_MAX,
        held_offset: int | None = None,
    ) -> None:
        """Prepare a round over closed segments. Records of ``aborted`` transactions do not replace
        earlier records. Tombstones from ``held_offset`` on are kept, because a replica that has not
        fetched them may still have the deleted records (None: there are no other replicas)."""
        assert segments, "no segments to compact"
        assert segments[-1].end_offset <= log.sealed_offset, "only sealed segments are compacted"
        self.clean_offset = clean_offset  # advances when the round is done
        self._log = log
        self._folder = log.folder
        self._disk = log.disk
        self._segments = segments
        self._tombstone_ms = tombstone_ms
        self._now_ms = now_ms
        self._keys_max = keys_max
        self._held_offset = held_offset
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        for producer_id, first, marker in aborted:
            self._aborted.setdefault(producer_id, []).append((first, marker))
        # Results of the first pass:
        self._end = segments[-1].end_offset  # records from this offset on are not changed
        self._keys: dict[bytes, int] = {}
        self._last_batches: dict[int, int] = {}  # producer → base offset
        # The segment being written, and the state of its swap:
        self._made: Segment | None = None
        self._held: list[int] = []  # file descriptors of the segments to be replaced
        self._is_changed = False
        self._is_announced = False
        self._is_swapped = False
        self._work: Generator[Progress, None, None] = self._run()

    def step(self) -> Progress:
        """Work for some milliseconds. If SWAP is returned, the log's thread must call ``swap``."""
        try:
            return next(self._work, Progress.DONE)
        except FileNotFoundError:
            return Progress.DONE  # retention has removed the segments

    def swap(self) -> int:
        assert self._made is not None, "swap only after a step returned SWAP"
        assert self._is_announced
        made, self._made = self._made, None  # after a failure the mark stays for the next opening
        freed = self._log.replace_segments(made)
        self._made = made
        self._is_swapped = freed is not None
        return freed or 0

    def close(self) -> None:
        """Release all resources. Must be called after every round, finished or not."""
        self._work.close()
        self._settle()

    def _run(self) -> Generator[Progress, None, None]:
        yield from self._survey()
        chosen = [segment for segment in self._segments if segment.base_offset < self._end]
        for group in grouped(chosen, bytes_max=self._log.config.segment_bytes_max):
            yield from self._rewrite(group)
            if self._is_changed or len(group) > 1:
                self._announce(group)
                yield Progress.SWAP
                if not self._is_swapped:
                    return  # some segments of the group were dropped meanwhile
            self._settle()
        self._log.write_checkpoint(CHECKPOINT_NAME, _encode(Clean(CHECKPOINT_VERSION, self._end)))
        self.clean_offset = self._end

    def _settle(self) -> None:
        while self._held:
            self._disk.close(self._held.pop())
        made = self._made
        if made is None:
            return
        base_offset, end_offset = made.base_offset, made.end_offset
        if self._is_swapped:  # the segment now belongs to the log
            replacement.end_replacement(self._disk, self._folder, base_offset, end_offset)
        else:
            made.close()
            replacement.clear_rewritten(self._disk, self._folder)
        self._made = None

    def _survey(self) -> Iterator[Progress]:
        """Find the last offset of every key, and the last batch of every producer."""
        for segment in self._segments:
            for batches in read_segment(self._folder, segment, self._disk):
                for header, batch in batches:
                    if not self._note(header, batch):
                        self._end = header.base_offset
                        return
                yield Progress.MORE

    def _note(self, header: BatchHeader, batch: bytes) -> bool:
        """Note the keys and the producer of a batch. Returns False if there are too many keys."""
        if header.is_control:
            return True
        if header.base_offset >= self.clean_offset and not self._is_aborted(header):
            keys = self._keys
            if len(keys) >= self._keys_max:
                return False
            for key, offset in keys_of(batch):
                keys[_hash(key)] = offset
        producers, producer_id = self._last_batches, header.producer_id
        has_room = producer_id in producers or len(producers) < PRODUCERS_MAX
        if producer_id != NO_PRODUCER and has_room:
            producers[producer_id] = header.base_offset
        return True

    def _is_aborted(self, header: BatchHeader) -> bool:
        return bool(header.attributes & ATTR_TRANSACTIONAL) and any(
            first <= header.base_offset < marker
            for first, marker in self._aborted.get(header.producer_id, ())
        )

    def _rewrite(self, group: Sequence[SegmentInfo]) -> Iterator[Progress]:
        replacement.clear_rewritten(self._disk, self._folder)
        made = self._made = Segment(
            replacement.rewritten_folder(self._folder),
            group[0].base_offset,
            interval_bytes=self._log.config.index_interval_bytes,
            disk=self._disk,
        )
        self._is_changed = self._is_announced = self._is_swapped = False
        empty: bytes | None = None  # not written yet: the next batch may be merged into it
        for segment in group:
            for batches in read_segment(self._folder, segment, self._disk):
                for header, batch in batches:
                    compacted = self._compact(header, batch)
                    merged = None if empty is None else merge_empty(empty, compacted)
                    self._is_changed |= compacted is not batch or merged is not None
                    if empty is not None and merged is None:
                        made.append(empty, parse_header(empty))
                    empty = merged or compacted
                yield Progress.MORE
        if empty is not None:
            made.append(empty, parse_header(empty))
        made.seal()
        assert made.end_offset == group[-1].end_offset, "compaction must not change offsets"

    def _compact(self, header: BatchHeader, batch: bytes) -> bytes:
        if header.is_control or header.base_offset >= self._end:
            return batch
        if header.count and self._is_aborted(header):
            # Aborted records are never read; once they are gone, the transaction is forgotten too.
            compacted = empty_batch(header, with_producer=True)
        else:
            compacted = compact_batch(
                batch,
                is_wanted=self._is_wanted,
                tombstone_ms=self._tombstone_ms,
                now_ms=self._now_ms,
                is_gone_kept=(
                    self._held_offset is not None and header.next_offset > self._held_offset
                ),
            )
        last_offset = self._last_batches.get(header.producer_id, -1)
        if parse_header(compacted).count == 0 and last_offset > header.base_offset:
            return empty_batch(header, with_producer=False)
        return compacted

    def _is_wanted(self, key: bytes, offset: int) -> bool:
        return self._keys.get(_hash(key), -1) <= offset

    def _announce(self, group: Sequence[SegmentInfo]) -> None:
        made = self._made
        assert made is not None
        # Closing a deleted file frees its blocks, which is slow: keep the files open, so that this
        # thread closes them and not the log's thread.
        for segment in group:
            path = segment_path(self._folder, segment.base_offset)
            self._held.append(self._disk.open_read(path))
        for fd in made.files.fds():
            self._disk.sync_data(fd)
        made.close()
        self._is_announced = True  # set first: the mark may exist even if this call fails
        replacement.begin_replacement(self._disk, self._folder, made.base_offset, made.end_offset)


def _hash(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_HASH_BYTES).digest()


def read_segment(folder: Path, segment: SegmentInfo, disk: Disk) -> Iterator[list[Batch]]:
    """Yield the verified batches of a closed segment, in lists. Raises Unreadable on damage."""
    path = segment_path(folder, segment.base_offset)
    checks_path = segment_path(folder, segment.base_offset, CHECK_SUFFIX)
    with ExitStack() as opened:
        fd = disk.open_read(path)
        opened.callback(disk.close, fd)
        checks = None
        with suppress(FileNotFoundError):
            checks_fd = disk.open_read(checks_path)
            opened.callback(disk.close, checks_fd)
            checks = CheckWindow(EntryFile(checks_fd, CHECK_FIELDS, disk=disk), CHECKS_AHEAD)
        yield from _walk(path, segment, fd, checks, disk)


def _walk(
    path: Path, segment: SegmentInfo, fd: int, checks: CheckWindow | None, disk: Disk
) -> Iterator[list[Batch]]:
    position, offset, ordinal = 0, segment.base_offset, 0
    while position < segment.bytes:
        window = disk.pread(fd, min(STEP_BYTES, segment.bytes - position), position)
        wanted = parse_header(window).total_bytes if len(window) >= HEADER_BYTES else 0
        if wanted > len(window):
            window = disk.pread(fd, min(wanted, BATCH_BYTES_MAX), position)
        batches: list[Batch] = []
        at = count = 0
        while len(window) - at >= HEADER_BYTES and count < STEP_RECORDS:
            header, reason = checked_header(window[at : at + HEADER_BYTES], offset, ordinal, checks)
            end = at + header.total_bytes
            if reason is None:
                if end > len(window):
                    break
                if crc32c(memoryview(window)[at + CRC_FROM : end]) != header.crc:
                    reason = "the CRC does not match"
            if reason is not None:
                raise Unreadable(path, offset, reason)
            batches.append((header, window[at:end]))
            at, offset, ordinal = end, header.next_offset, ordinal + 1
            count += header.count
        if not batches:
            raise Unreadable(path, offset, "the file ends inside a batch")
        position += at
        yield batches
    if offset != segment.end_offset:
        raise Unreadable(path, offset, "records are missing at the end of the file")
