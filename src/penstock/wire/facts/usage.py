"""What was used, as it stands in ``__usage``: one record for each flush of one node.

A record's value is MessagePack: a map with a head that holds for all its rows, and the rows as
columns of equal length. Columns, because whoever sums millions of rows turns a column into an array
in one step and never looks at a row.

    head      v · node · incarnation · flush · minute_ms · written_at_ms
    columns   tenant · region · resource · kind · op · requests · messages · bytes_in · bytes_out ·
              units64k · throttled · denied · failed · stored_bytes

(node, incarnation, flush) names a record for good: flushes of one incarnation are numbered from 1
without a gap, and one that is there twice would be a fault of ours that readers can see.

**Changing it.** A column may be added: readers take a missing one for zeros, and pass over those
they do not know. Anything else (another meaning, another unit, a column gone) is a new ``VERSION``,
which readers that do not know it refuse. ``docs/usage.md`` says what each field means.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"usage/%d" % VERSION)

CALLS: Final = "calls"  # the row counts requests and what they moved: add them up
STORAGE: Final = "storage"  # the row is a level, taken once in this minute


class UsageUnreadable(Exception):
    """The value is no usage record, or one of a version that is not known here."""


class UsageRow(msgspec.Struct, frozen=True, gc=False):
    """One row, for those who want them one by one."""

    tenant: str
    region: str
    resource: str
    kind: str
    op: str
    requests: int = 0
    messages: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    units64k: int = 0
    throttled: int = 0
    denied: int = 0
    failed: int = 0
    stored_bytes: int = 0


class UsageColumns(msgspec.Struct, gc=False):
    """Field by field what ``UsageRow`` has."""

    tenant: list[str] = []
    region: list[str] = []
    resource: list[str] = []
    kind: list[str] = []
    op: list[str] = []
    requests: list[int] = []
    messages: list[int] = []
    bytes_in: list[int] = []
    bytes_out: list[int] = []
    units64k: list[int] = []
    throttled: list[int] = []
    denied: list[int] = []
    failed: list[int] = []
    stored_bytes: list[int] = []

    def __len__(self) -> int:
        return len(self.tenant)

    def rows(self) -> Iterator[UsageRow]:
        return map(UsageRow, *(getattr(self, name) for name in _NAMES))


_NAMES: Final = UsageRow.__struct_fields__
assert UsageColumns.__struct_fields__ == _NAMES, "a row and the columns have the same fields"
_TEXTS: Final = ("tenant", "region", "resource", "kind", "op")


class UsageFacts(msgspec.Struct, gc=False):
    """The value of one record."""

    v: int
    node: str
    incarnation: str  # of the process; another one after each start
    flush: int
    minute_ms: int  # when the minute began in which all this was counted
    written_at_ms: int  # nothing counted earlier by this incarnation is still to come
    columns: UsageColumns

    @property
    def name(self) -> tuple[str, str, int]:
        return self.node, self.incarnation, self.flush


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UsageFacts)


def encode(facts: UsageFacts) -> bytes:
    return _encoder.encode(facts)


def decode(value: bytes) -> UsageFacts:
    """Raises UsageUnreadable."""
    try:
        facts = _decoder.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageUnreadable(f"not a usage record: {error}") from None
    if facts.v != VERSION:
        raise UsageUnreadable(f"a usage record of version {facts.v}, known is {VERSION}")
    columns, count = facts.columns, len(facts.columns)
    for name in _NAMES:
        column = getattr(columns, name)
        if not column and name not in _TEXTS:
            setattr(columns, name, [0] * count)  # written before there was such a column
        elif len(column) != count:
            raise UsageUnreadable(f"column {name} has {len(column)} rows, others have {count}")
    return facts
