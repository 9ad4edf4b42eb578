"""Looking at the records of a partition without leasing them."""

import asyncio
from collections.abc import Callable, Generator

from penstock.broker.record_reader import Opening, RecordReader
from penstock.model import limits
from penstock.model.message import Record
from penstock.model.ports import Peeked
from penstock.record.batch import parse_header
from penstock.record.malformed import MalformedBatch

PEEK_BYTES_MAX = 8 * limits.READ_BYTES_MAX

Peeking = Generator[Opening | None, None, tuple[list[Peeked], int]]


def peek(
    reader: RecordReader,
    start: int,
    end: int,
    count: int,
    read_bytes_max: int,
    peeked: Callable[[Record], Peeked | None],
) -> Peeking:
    """Find up to ``count`` records below ``end`` that ``peeked`` knows, and where to look next.
    Yields None for others to have their turn, or what is to be waited for."""
    if start < 0:
        return [], end
    offset = max(start, reader.log.start_offset)
    found: list[Peeked] = []
    read_bytes = 0
    while offset < end and len(found) < count and read_bytes < PEEK_BYTES_MAX:
        batches = reader.log.read(offset, bytes_max=read_bytes_max, up_to=end)
        if not batches:
            break
        for data in batches:
            header = parse_header(data)
            read_bytes += len(data)
            if not header.is_control:
                opened = reader.open(data, header)
                if isinstance(opened, asyncio.Task):
                    yield opened
                    opened = opened.result()
                if isinstance(opened, MalformedBatch):
                    raise opened
                for piece in opened.pieces(offset):
                    for record in piece:
                        if len(found) == count:
                            return found, record.offset
                        one = peeked(record)
                        if one is not None:
                            found.append(one)
                    yield None
            offset = header.next_offset
    return found, offset


async def all_in_turns(steps: Peeking) -> tuple[list[Peeked], int]:
    """Return what is found and where to look next; other work of the loop is done in between."""
    while True:
        try:
            opening = next(steps)
        except StopIteration as end:
            found: tuple[list[Peeked], int] = end.value
            return found
        if opening is None:
            await asyncio.sleep(0)
        else:
            await asyncio.wait((opening,))


def first_at_once(steps: Peeking) -> Peeked | None:
    """Return the first record that is found. None also while its batch is being opened: the next
    call finds it."""
    while True:
        try:
            if next(steps) is not None:
                return None
        except StopIteration as end:
            found: list[Peeked] = end.value[0]
            return found[0] if found else None
