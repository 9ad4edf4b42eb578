"""Turns batches that were read for a consumer into a copy that covers each offset of a span. Pure.

A read by offset leaves out the batches that compaction has emptied, and may return more batches
than the requested ones. A copy of a log must have no gaps and must end at the right offset: emptied
spans become bare batches again (``compaction.py``), and batches from the end on are left out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.record.batch import HEADER, HEADER_BYTES, LENGTH_FROM, BatchHeader, parse_header
from penstock.record.compaction import SPAN_MAX, empty_batch, is_bare
from penstock.record.malformed import MalformedBatch


class Covered(NamedTuple):
    data: bytes  # whole batches that follow each other
    base_offset: int  # of the first
    next_offset: int  # after the last


def covered(
    buffers: Sequence[bytes | memoryview], start: int, end: int, *, next_offset: int
) -> Covered:
    """Return the batches read from ``start``, up to ``next_offset`` and not beyond ``end``. The
    first batch may begin below the start, if it contains the start. Raises MalformedBatch for a
    batch that lies across the end, or for batches out of order."""
    if _is_plain(buffers, start, end, next_offset):
        return Covered(b"".join(buffers), start, next_offset)
    parts: list[bytes | memoryview] = []
    base = at = start
    last: BatchHeader | None = None
    for buffer in buffers:
        position = 0
        while position < len(buffer):
            header = parse_header(buffer, position)
            total = header.total_bytes
            if header.base_offset >= end:
                last = last or header
                break
            if is_bare(header) and total == HEADER_BYTES:
                # Bare batches may have been merged since, and may reach beyond either side.
                header = _span(header, max(header.base_offset, at), min(header.next_offset, end))
            elif header.next_offset > end:
                raise MalformedBatch(f"a batch lies across offset {end}")
            if header.base_offset < at:
                if parts or header.next_offset <= at:
                    raise MalformedBatch(f"offset {header.base_offset} comes behind {at}")
                base = header.base_offset
            elif header.base_offset > at:
                parts += _bare(header, at, header.base_offset)
            is_cut = is_bare(header) and total == HEADER_BYTES
            whole = buffer[position : position + total]
            parts.append(empty_batch(header, with_producer=False) if is_cut else whole)
            at, last = header.next_offset, header
            position += total
    rest = min(next_offset, end)
    if rest > at and last is not None:
        parts += _bare(last, at, rest)
        at = rest
    return Covered(b"".join(parts), base, at)


def _is_plain(
    buffers: Sequence[bytes | memoryview], start: int, end: int, next_offset: int
) -> bool:
    """Return whether the batches need no change, as nearly always. One flat loop: a log of small
    batches has many of them, and other requests wait meanwhile."""
    unpack, at = HEADER.unpack_from, start
    for buffer in buffers:
        position, size = 0, len(buffer)
        while position + HEADER_BYTES <= size:
            fields = unpack(buffer, position)
            length = fields[1]
            if fields[0] != at or fields[6] < 0 or length < HEADER_BYTES - LENGTH_FROM:
                return False
            at += fields[6] + 1
            position += length + LENGTH_FROM
        if position != size:
            return False
    return at == next_offset <= end


def _span(header: BatchHeader, start: int, end: int) -> BatchHeader:
    return header._replace(base_offset=start, last_offset_delta=end - start - 1)


def _bare(like: BatchHeader, start: int, end: int) -> list[bytes]:
    """Return empty batches that fill a gap, with the epoch and timestamp of a neighbour."""
    found = []
    while start < end:
        until = min(end, start + SPAN_MAX)
        spanned = _span(like, start, until)._replace(base_timestamp=like.max_timestamp)
        found.append(empty_batch(spanned, with_producer=False))
        start = until
    return found
