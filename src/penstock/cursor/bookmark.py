"""Bookmarks: how far each named reader has read a partition. A reader that keeps up needs no lease
for each record: one event says that everything below an offset is done.

    type  event     fields, in order, as a MessagePack array
    69    Bookmark  reader, offset (-1 removes the bookmark)

The events are in the partition's own log, and the newest event of a reader counts. An event comes
after the records that it speaks of. So if it was deleted with its segment, those records are gone
too, and the reader begins at the start of the log."""

from collections.abc import Mapping
from typing import Final

import msgspec

from penstock.model.errors import InvalidRequest
from penstock.model.limits import BOOKMARKS_PER_PARTITION_MAX, READER_CHARS_MAX

BOOKMARK_TYPE: Final = 69  # the types of cursor/leases/events.py end at 68
REMOVED: Final = -1


class _Bookmark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    reader: str
    offset: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Bookmark).decode


class Bookmarks:
    def __init__(self, offsets: Mapping[str, int] | None = None) -> None:
        self._offsets = dict(offsets or {})

    def offsets(self) -> dict[str, int]:
        """Return the offsets by reader, for a checkpoint."""
        return dict(self._offsets)

    def find(self, reader: str) -> int | None:
        return self._offsets.get(reader)

    def move(self, reader: str, offset: int, *, may_move_back: bool) -> tuple[int, bytes] | None:
        """Move or remove a bookmark. Return the event to append to the log, or None if the bookmark
        stays, because it is at or above ``offset`` and may not move back."""
        if not 0 < len(reader) <= READER_CHARS_MAX or not reader.isprintable():
            raise InvalidRequest(
                f"The name of a reader must have 1 to {READER_CHARS_MAX} printable characters."
            )
        known = self._offsets.get(reader, REMOVED)
        if offset == known or (REMOVED < offset < known and not may_move_back):
            return None
        if known == REMOVED and len(self._offsets) >= BOOKMARKS_PER_PARTITION_MAX:
            raise InvalidRequest(
                f"The partition has the maximum of {BOOKMARKS_PER_PARTITION_MAX} bookmarks: remove"
                " the bookmark of another reader first."
            )
        self._put(reader, offset)
        return BOOKMARK_TYPE, _encode(_Bookmark(reader, offset))

    def apply(self, value: bytes | memoryview) -> None:
        """Replay an event. Raises ValueError if it is damaged."""
        try:
            event = _decode(value)
        except msgspec.MsgspecError as error:
            text = f"control record of type {BOOKMARK_TYPE} is malformed: {error}"
            raise ValueError(text) from error
        self._put(event.reader, event.offset)

    def _put(self, reader: str, offset: int) -> None:
        if offset == REMOVED:
            self._offsets.pop(reader, None)
        else:
            self._offsets[reader] = offset
