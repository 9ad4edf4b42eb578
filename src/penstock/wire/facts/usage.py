"""What was used, as it stands in ``__usage``: one record for each flush of one node.

A head that holds for all its rows, and the rows as columns (``columnar`` says how):

    head      v · node · incarnation · flush · minute_ms · written_at_ms
    columns   tenant · region · resource · kind · op · requests · messages · bytes_in · bytes_out ·
              units64k · throttled · denied · failed · stored_bytes

(node, incarnation, flush) names a record for good: flushes of one incarnation are numbered from 1
without a gap, and one that is there twice would be a fault of ours that readers can see.
``docs/usage.md`` says what each field means.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.wire.facts.columnar import Form, Head

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


TEXTS: Final = ("tenant", "region", "resource", "kind", "op")
NUMBERS: Final = UsageRow.__struct_fields__[len(TEXTS) :]
_NAMES: Final = (*TEXTS, *NUMBERS)
assert UsageColumns.__struct_fields__ == _NAMES, "a row and the columns have the same fields"


class UsageHead(Head, gc=False):
    minute_ms: int  # when the minute began in which all this was counted
    written_at_ms: int  # nothing counted earlier by this incarnation is still to come


class UsageFacts(UsageHead, gc=False):
    """The value of one record."""

    columns: UsageColumns


class UsageBlock(UsageHead, gc=False):
    """The same, with columns as they came."""

    columns: dict[str, msgspec.Raw]


FORM: Final = Form(
    "usage",
    VERSION,
    facts=UsageFacts,
    block=UsageBlock,
    nothing=dict.fromkeys(NUMBERS, 0),
    unreadable=UsageUnreadable,
)


def encode(facts: UsageFacts) -> bytes:
    return FORM.encode(facts)


def decode(value: bytes) -> UsageFacts:
    """Raises UsageUnreadable."""
    return FORM.decode(value)
