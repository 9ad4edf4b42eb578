"""What is on a simulated node's disk: a log that may have lost its beginning to retention or its
end to a crash, and a checkpoint of the cursor. One entry of the log is one record at one offset: a
message, or a cursor's event in the bytes that a real log would hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from penstock.cursor.leases.events import Event, decode
from penstock.model.message import Message, Record

MESSAGE = 0  # in the place of an event's type


class Entry(NamedTuple):
    epoch: int
    kind: int
    value: Message | bytes
    appended_at_ms: int  # by the wall clock of the leader that wrote it

    @property
    def event(self) -> Event:
        assert isinstance(self.value, bytes)
        return _decoded(self.kind, self.value)

    def record(self, offset: int) -> Record:
        assert isinstance(self.value, Message)
        return Record(offset, self.appended_at_ms, self.value)


@lru_cache(maxsize=4_096)
def _decoded(kind: int, value: bytes) -> Event:
    """Every replica decodes the same bytes: once is enough."""
    return decode(kind, value)


class Checkpoint(NamedTuple):
    offset: int
    snapshot: bytes
    begun_at: int  # the fold behind it knows nothing of records before this
    bookmarks: Mapping[str, int] = {}


@dataclass(slots=True)
class SimLog:
    start: int
    entries: list[Entry]

    @property
    def end(self) -> int:
        return self.start + len(self.entries)

    def __getitem__(self, offset: int) -> Entry:
        assert offset >= self.start
        return self.entries[offset - self.start]

    def between(self, first: int, end: int) -> list[Entry]:
        assert first >= self.start, "what was dropped cannot be read"
        return self.entries[first - self.start : max(0, end - self.start)]

    def messages(self, first: int, end: int) -> list[Record]:
        found = enumerate(self.between(first, end), first)
        return [entry.record(offset) for offset, entry in found if entry.kind == MESSAGE]

    def truncate(self, to: int) -> None:
        del self.entries[max(0, to - self.start) :]

    def drop_before(self, offset: int) -> None:
        assert self.start <= offset <= self.end
        del self.entries[: offset - self.start]
        self.start = offset

    def restart(self, at: int) -> None:
        self.start = at
        self.entries = []
