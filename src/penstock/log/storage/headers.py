"""Walks over the batch headers of a segment to find where to truncate it and which epochs it has. A
header is trusted if it continues where the previous one ended and matches the ``.check`` file.
After an untrusted header, the walk continues at the next indexed batch."""

from collections.abc import Iterator
from typing import NamedTuple

from penstock.log.storage.segment import (
    NO_EPOCH,
    NO_TIMESTAMP,
    BatchReader,
    Cut,
    Segment,
    checked_header,
)
from penstock.log.storage.side_files import START, BatchStart
from penstock.record.batch import HEADER_BYTES, BatchHeader

Epochs = list[tuple[int, int]]  # epoch, first offset; both increase


class Step(NamedTuple):
    place: BatchStart
    offset: int
    header: BatchHeader | None  # None: the bytes up to the next step are not trusted


def walk(segment: Segment, start: BatchStart) -> Iterator[Step]:
    reader = BatchReader(segment, start, bytes_max=0)  # reads about one index interval at once
    position, ordinal, offset = start.position, start.ordinal, segment.base_offset + start.relative
    while position < segment.bytes:
        raw = reader.take(position, HEADER_BYTES)
        header, reason = checked_header(raw, offset, ordinal, reader.checks)
        place = BatchStart(offset - segment.base_offset, position, ordinal)
        yield Step(place, offset, header if reason is None else None)
        if reason is not None:
            after = segment.files.index.find_after(position)
            if after is None or after.ordinal <= ordinal:
                return
            position, ordinal = after.position, after.ordinal
            offset = segment.base_offset + after.relative
        else:
            position, ordinal = position + header.total_bytes, ordinal + 1
            offset = header.next_offset


def find_cut(segment: Segment, to: int, *, epoch: int) -> Cut:
    """Return where to truncate a segment: before the batch that holds offset ``to``, or before
    damage that ends at that batch. ``epoch`` is the last epoch of the earlier segments."""
    index = segment.files.index
    place, max_timestamp = _entry_before(segment, to)
    last, end, hole = START, place, None
    for step in walk(segment, place):
        header = step.header
        if header is None:
            end = hole = hole or step.place
            after = index.find_after(step.place.position)
            if after is None or segment.base_offset + after.relative > to:
                break
            continue
        if header.next_offset > to:
            end = hole or step.place  # damage with no batch after it would look like a torn end
            break
        hole = None
        last, epoch = step.place, header.leader_epoch
        max_timestamp = max(max_timestamp, header.max_timestamp)
        end = BatchStart(
            header.next_offset - segment.base_offset,
            step.place.position + header.total_bytes,
            step.place.ordinal + 1,
        )
    if end.position == 0:
        return Cut(0, segment.base_offset, 0, 0, START, epoch, NO_TIMESTAMP)
    kept = index.offsets.last_at_most(end.position - 1, column=1)
    indexed = 0 if kept is None else kept + 1
    end_offset = segment.base_offset + end.relative
    return Cut(end.position, end_offset, end.ordinal, indexed, last, epoch, max_timestamp)


def _entry_before(segment: Segment, to: int) -> tuple[BatchStart, int]:
    segment.find(to)  # rebuilds a damaged index
    index = segment.files.index
    number = index.offsets.last_at_most(to - segment.base_offset)
    for at in range((number or 0) - 1, 0, -1):
        place, time = index.place(at), index.times.read(at)
        if place is not None and time is not None and _header_at(segment, place) is not None:
            return place, time[0]
    return START, NO_TIMESTAMP


def epochs_of(segment: Segment, start: int) -> Epochs:
    """Return the epochs from the batch that holds ``start`` on, each with its first offset. Batches
    between two indexed batches of the same epoch are not read: they have this epoch too."""
    found: Epochs = []
    index = segment.files.index
    place = segment.find(start)
    number = index.offsets.last_at_most(place.relative)
    if number is None or number < 0:
        _note_all(found, segment, place, None)
        return found
    last = index.count - 1
    _bisect(found, segment, number, last)
    _note_all(found, segment, index.place(last) or place, None)
    return found


def _bisect(found: Epochs, segment: Segment, low: int, high: int) -> None:
    index = segment.files.index
    first, last = index.place(low), index.place(high)
    if first is None or last is None:
        _note_all(found, segment, START, None)  # the index is damaged: walk over the whole segment
        return
    one, other = _header_at(segment, first), _header_at(segment, last)
    if one is not None:
        _note(found, one.leader_epoch, one.base_offset)
    if low == high or (
        one is not None and other is not None and one.leader_epoch == other.leader_epoch
    ):
        return
    if high - low == 1:
        _note_all(found, segment, first, last)
        return
    middle = (low + high) // 2
    _bisect(found, segment, low, middle)
    _bisect(found, segment, middle, high)


def _header_at(segment: Segment, place: BatchStart) -> BatchHeader | None:
    step = next(walk(segment, place), None)
    return None if step is None else step.header


def _note_all(found: Epochs, segment: Segment, first: BatchStart, up_to: BatchStart | None) -> None:
    for step in walk(segment, first):
        if up_to is not None and step.place.position > up_to.position:
            break
        if step.header is not None:
            _note(found, step.header.leader_epoch, step.offset)


def _note(found: Epochs, epoch: int, offset: int) -> None:
    if epoch > (found[-1][0] if found else NO_EPOCH):
        found.append((epoch, offset))
