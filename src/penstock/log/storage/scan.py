"""A scan of one segment file: which batches are whole, what is damaged and where the file ends.

Everything is read and verified; nothing is changed. Recovery, the rebuilding of side files and
``penstock storage verify`` use this scan.

A bad batch means one of two things. If no whole batch follows, it is the torn end of a log whose
last write did not finish: nothing after it can be saved. If a whole batch follows, bytes in the
middle have changed: the range is reported as damage and the scan continues after it. A message body
that looks like a batch must not count as "a whole batch follows": either the index must contain the
position, or ``.check`` the header, or an unbroken chain of whole batches must lead from there to
the end of the file.
"""

import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path

from penstock.log.storage.check import HOLE, header_check, is_entry_intact, read_checks
from penstock.log.storage.damage import Damage
from penstock.log.storage.entries import EntryFile
from penstock.log.storage.files import Disk
from penstock.log.storage.index import RELATIVE_MAX, START, BatchStart, SegmentIndex
from penstock.model.limits import BATCH_BYTES_MAX, MIB
from penstock.record.batch import CRC_FROM, HEADER, HEADER_BYTES, LENGTH_FROM, MAGIC, BatchHeader
from penstock.record.crc32c import crc32c

WINDOW_BYTES = 4 * MIB
CANDIDATES_MAX = 1_000  # positions tried for one gap; more look-alikes than that are an attack
EPOCH_MIN = -(2**31)
ZEROS_REASON = "zeros up to the end of the file: space that was never written"


def header_fault(header: BatchHeader, offset: int) -> str | None:
    """Return why a header cannot belong at ``offset``, or None if it can."""
    if header.magic != MAGIC:
        return f"magic {header.magic} at the start of a batch, expected {MAGIC}"
    if header.base_offset != offset:
        return f"base offset {header.base_offset}, expected {offset}"
    if not HEADER_BYTES <= header.total_bytes <= BATCH_BYTES_MAX:
        return f"invalid batch size of {header.total_bytes} bytes"
    if header.last_offset_delta < 0:
        return f"invalid last offset delta {header.last_offset_delta}"
    return None


def _fault(header: BatchHeader, offset: int, epoch: int) -> str:
    reason = header_fault(header, offset)
    return reason or f"leader epoch {header.leader_epoch} after epoch {epoch}"


def is_zero_from(disk: Disk, fd: int, position: int, size: int) -> bool:
    """Return whether only zeros follow up to the end: space that was never written."""
    while position < size:
        chunk = disk.pread(fd, MIB, position)
        if chunk.count(0) != len(chunk):
            return False
        if not chunk:
            break
        position += len(chunk)
    return True


@dataclass(slots=True)
class Source:
    """The files of one segment that a scan reads."""

    path: Path
    base_offset: int
    fd: int
    size: int
    disk: Disk
    checks: EntryFile
    index: SegmentIndex
    interval_bytes: int


@dataclass(slots=True)
class Scan:
    """The state and results of a scan. ``checks`` and ``places`` are the side files as they should
    be, from the first scanned batch on."""

    position: int
    offset: int
    ordinal: int
    epoch: int = EPOCH_MIN
    max_timestamp: int = -1
    last: BatchStart | None = None
    checks: "array[int]" = field(default_factory=lambda: array("I"))
    places: list[tuple[BatchStart, int]] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    tail_reason: str | None = None  # why the scan stopped before the end of the file

    def seal(self) -> None:
        """Index the last batch of a closed segment, whatever the interval."""
        if self.last is not None and (not self.places or self.places[-1][0] != self.last):
            self.places.append((self.last, self.max_timestamp))


class Scanner:
    def __init__(
        self,
        source: Source,
        start: BatchStart = START,
        *,
        epoch: int = EPOCH_MIN,
        max_timestamp: int = -1,
    ) -> None:
        """``epoch`` and ``max_timestamp``: the highest values before ``start``."""
        self.source = source
        self._wanted_bytes = 0  # for the next batch
        self.scan = Scan(
            start.position,
            source.base_offset + start.relative,
            start.ordinal,
            epoch=epoch,
            max_timestamp=max_timestamp,
        )
        self._first_ordinal = start.ordinal
        self._known = read_checks(
            source.checks, start.ordinal, max(0, source.checks.count - start.ordinal)
        )
        self._indexed_position = start.position - source.interval_bytes
        self._by_check: dict[int, int] | None = None

    def run(self) -> Scan:
        while self.advance():
            pass
        return self.scan

    def advance(self, window_bytes: int = WINDOW_BYTES) -> bool:
        """Scan one window. False if the scan is finished."""
        scan, source = self.scan, self.source
        if scan.position >= source.size:
            return False
        size = min(max(window_bytes, self._wanted_bytes), source.size - scan.position)
        window = source.disk.pread(source.fd, size, scan.position)
        # A short read is the end too: the file shrank meanwhile.
        is_end = len(window) < size or scan.position + len(window) >= source.size
        reason, self._wanted_bytes = self._walk(window, is_end)
        if reason is None and not window:
            reason = "the file ends here"
        return reason is None or self._step_over(reason)

    def _walk(self, window: bytes, is_end: bool) -> tuple[str | None, int]:
        """Take whole batches from the window. Returns why the next batch is bad (None: it is not
        all in the window) and how large the next window must be. One loop on local names, for
        speed: a segment has a hundred thousand batches, and the node's start waits for it."""
        scan, known, source = self.scan, self._known, self.source
        view, limit, at, start = memoryview(window), len(window), 0, scan.position
        unpack, crc_of, add_check = HEADER.unpack_from, crc32c, scan.checks.append
        offset, epoch, max_timestamp = scan.offset, scan.epoch, scan.max_timestamp
        number, known_count = scan.ordinal - self._first_ordinal, len(known)
        index_at = self._indexed_position + source.interval_bytes
        reason, wanted, last_at = None, 0, -1
        while limit - at >= HEADER_BYTES:
            fields = unpack(view, at)
            end = at + fields[1] + LENGTH_FROM
            if (
                fields[0] != offset
                or fields[3] != MAGIC
                or not HEADER_BYTES <= end - at <= BATCH_BYTES_MAX
                or fields[6] < 0
                or fields[2] < epoch
            ):
                reason = _fault(tuple.__new__(BatchHeader, fields), offset, epoch)
                break
            check = crc_of(view[at : at + HEADER_BYTES]) or 1
            if number < known_count and known[number] != check and self._is_intact(number):
                reason = "the header differs from its check"
                break
            if end > limit:
                if is_end:
                    reason = f"the batch is truncated by {end - limit} bytes"
                wanted = end - at
                break
            if crc_of(view[at + CRC_FROM : end]) != fields[4]:
                reason = "the CRC does not match"
                break
            if fields[8] > max_timestamp:
                max_timestamp = fields[8]
            if start + at >= index_at:
                place = BatchStart(
                    offset - source.base_offset, start + at, self._first_ordinal + number
                )
                scan.places.append((place, max_timestamp))
                index_at = start + at + source.interval_bytes
            add_check(check)
            number += 1
            last_at, at, epoch = at, end, fields[2]
            offset += fields[6] + 1
        else:
            if is_end and at < limit:
                reason = f"{limit - at} bytes are too few for a batch"
        if last_at >= 0:
            self._note_last(unpack(view, last_at), start + last_at, start + at)
        scan.max_timestamp = max_timestamp
        self._indexed_position = index_at - source.interval_bytes
        return reason, wanted

    def _is_intact(self, number: int) -> bool:
        return is_entry_intact(self.source.checks, self._first_ordinal + number)

    def _note_last(self, fields: tuple[int, ...], position: int, end: int) -> None:
        """Update the scan's position after the last whole batch of a window."""
        scan = self.scan
        scan.ordinal = self._first_ordinal + len(scan.checks)
        scan.last = BatchStart(fields[0] - self.source.base_offset, position, scan.ordinal - 1)
        scan.epoch = fields[2]
        scan.offset = fields[0] + fields[6] + 1
        scan.position = end

    # ── After a bad batch ────────────────────────────────────────────────────────────────────

    def _step_over(self, reason: str) -> bool:
        """Find the next whole batch and report the damage before it. False if none follows."""
        scan, source = self.scan, self.source
        if is_zero_from(source.disk, source.fd, scan.position, source.size):
            scan.tail_reason = ZEROS_REASON
            return False
        place = self._next_whole()
        if place is None:
            scan.tail_reason = reason
            return False
        next_offset = source.base_offset + place.relative
        scan.damage.append(
            Damage(
                source.path.name,
                scan.position,
                place.position - scan.position,
                scan.offset,
                next_offset,
                reason,
            )
        )
        scan.checks.extend([HOLE] * (place.ordinal - scan.ordinal))
        scan.position, scan.ordinal, scan.offset = place.position, place.ordinal, next_offset
        # The batch after a hole is always indexed, so that reads can skip the hole.
        self._indexed_position = place.position - source.interval_bytes
        return True

    def _next_whole(self) -> BatchStart | None:
        """Return the nearest start of a trusted batch after the bad one, or None."""
        indexed = self._next_indexed()
        limit = self.source.size if indexed is None else indexed.position
        return self._search(limit) or indexed

    def _next_indexed(self) -> BatchStart | None:
        index = self.source.index
        number = index.offsets.last_at_most(self.scan.position, column=1)
        for at in range(0 if number is None else number + 1, index.count):
            place = index.place(at)
            if place is None or place.position <= self.scan.position:
                continue
            header = self._whole_at(place.position)
            if (
                header is not None
                and header.base_offset == self.source.base_offset + place.relative
                and place.ordinal > self.scan.ordinal
            ):
                return place
        return None

    def _whole_at(self, position: int) -> BatchHeader | None:
        """Return the header of a whole batch at ``position`` with a later offset, or None."""
        scan, source = self.scan, self.source
        raw = source.disk.pread(source.fd, HEADER_BYTES, position)
        if len(raw) < HEADER_BYTES:
            return None
        header = tuple.__new__(BatchHeader, HEADER.unpack(raw))
        relative = header.next_offset - source.base_offset
        if (
            header_fault(header, header.base_offset) is not None
            or header.base_offset <= scan.offset
            or header.leader_epoch < scan.epoch
            or relative > RELATIVE_MAX
            or position + header.total_bytes > source.size
        ):
            return None
        body = source.disk.pread(source.fd, header.total_bytes - CRC_FROM, position + CRC_FROM)
        return header if crc32c(body) == header.crc else None

    def _search(self, limit: int) -> BatchStart | None:
        """Search every byte up to ``limit`` for a header that ``.check`` contains, or for one from
        which whole batches lead to the end of the file."""
        scan, source = self.scan, self.source
        data = source.disk.pread(source.fd, limit - scan.position, scan.position)
        pattern = re.compile(
            b"(?=" + re.escape(scan.offset.to_bytes(8, "big")[:3]) + b".{5}[\x00\x01].{7}\x02)",
            re.DOTALL,
        )
        tried = 0
        for match in pattern.finditer(data, 1):
            position = scan.position + match.start()
            raw = source.disk.pread(source.fd, HEADER_BYTES, position)
            if len(raw) < HEADER_BYTES:
                break
            ordinal = self._ordinal_of(header_check(raw))
            if ordinal is None and tried >= CANDIDATES_MAX:
                continue
            tried += ordinal is None
            header = self._whole_at(position)
            if header is None:
                continue
            if ordinal is None:
                if not self._leads_to_end(position, header):
                    continue
                ordinal = scan.ordinal + 1
            return BatchStart(header.base_offset - source.base_offset, position, ordinal)
        return None

    def _ordinal_of(self, check: int) -> int | None:
        """Return the ordinal of the later batch whose header has this check, or None."""
        if self._by_check is None:
            first = self._first_ordinal
            self._by_check = {known: first + at for at, known in enumerate(self._known)}
        ordinal = self._by_check.get(check)
        if ordinal is None or ordinal <= self.scan.ordinal:
            return None
        return ordinal if is_entry_intact(self.source.checks, ordinal) else None

    def _leads_to_end(self, position: int, header: BatchHeader) -> bool:
        while True:
            position += header.total_bytes
            if position == self.source.size:
                return True
            following = self._whole_at(position)
            if following is None or following.base_offset != header.next_offset:
                return False
            header = following
