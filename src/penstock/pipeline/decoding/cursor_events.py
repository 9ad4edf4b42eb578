"""Reads what the server writes to the log of a topic about its messages: control records, which
consumers skip (``docs/formats/log.md``). Each event becomes rows of a reader, an offset, and what
the event says about it. A reader is the id of a share (hex digits) or the name of a bookmark.

    start      the share begins at this offset, and its earlier events no longer count
    head       the first offset that the share has not examined
    trim       the share has dropped the offsets below
    leased     the offset was leased, or put off
    bookmark   everything below the offset is done; -1: the bookmark was removed
    acked, dead, expired, dropped, unwanted    the offset is finished; names of ``AckReason``"""

from collections.abc import Collection, Iterator
from typing import Any, Final

import msgspec

from penstock.model.message import AckReason
from penstock.record.control import iter_control
from penstock.record.malformed import MalformedBatch

START, HEAD, TRIM, LEASED, BOOKMARK = "start", "head", "trim", "leased", "bookmark"
REMOVED: Final = -1  # offset of a bookmark

_BOOKMARK: Final = 69
_LEASE, _ACK, _TRIM, _START = 80, 82, 83, 84  # of a share
_SHARE_ID_BYTES: Final = 16

Row = tuple[int, str, str, int]  # offset of the event, reader, what, offset
_decode: Final = msgspec.msgpack.Decoder().decode


def events_in(batch: bytes, readers: Collection[str]) -> Iterator[Row]:
    """Yield the rows of some readers in a control batch. Raises MalformedBatch."""
    for at, kind, value in iter_control(batch):
        try:
            if kind == _BOOKMARK:
                reader, offset = _decode(value)[:2]
                found = [(BOOKMARK, offset)] if reader in readers else []
            elif _LEASE <= kind <= _START:
                reader = value[:_SHARE_ID_BYTES].hex()
                is_wanted = reader in readers
                found = list(_share_rows(kind, value[_SHARE_ID_BYTES:])) if is_wanted else []
            else:
                continue
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError) as error:
            reason = f"the event at offset {at} (type {kind}) cannot be read: {error}"
            raise MalformedBatch(reason) from None
        for what, offset in found:
            yield at, reader, what, offset


def _share_rows(kind: int, value: bytes) -> Iterator[tuple[str, int]]:
    event: list[Any] = _decode(value)
    if kind == _ACK:
        what = AckReason(event[0]).name.lower()
        yield from ((what, offset) for offset in event[1])
    elif kind == _LEASE:
        detail = event[6] if len(event) > 6 else None
        skipped, held, expired = [*(detail or ()), (), (), ()][:3]
        yield HEAD, event[2]
        for offsets in (event[4], skipped, held):
            yield from ((LEASED, offset) for offset in offsets)
        yield from ((AckReason.EXPIRED.name.lower(), offset) for offset in expired)
    elif kind in (_TRIM, _START):
        yield TRIM if kind == _TRIM else START, event[0]
