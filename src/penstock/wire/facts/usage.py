"""Records of the topic ``__usage``: a node writes one record at each flush, in the format of
``columnar``. ``docs/usage.md`` describes the fields."""

from collections.abc import Iterator
from typing import Final

import msgspec

from penstock.wire.facts.columnar import Form, Head

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"usage/%d" % VERSION)

CALLS: Final = "calls"  # the row has sums of requests, messages and bytes
STORAGE: Final = "storage"  # the row has the stored bytes, measured once in this minute


class UsageUnreadable(Exception): ...


class UsageRow(msgspec.Struct, frozen=True, gc=False):
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
assert UsageColumns.__struct_fields__ == _NAMES, "rows and columns must have the same fields"


class UsageHead(Head, gc=False):
    minute_ms: int  # start of the minute of these counts
    written_at_ms: int  # all earlier counts of this incarnation are written


class UsageFacts(UsageHead, gc=False):
    columns: UsageColumns


class UsageBlock(UsageHead, gc=False):
    columns: dict[str, msgspec.Raw]


FORM: Final = Form(
    "usage",
    VERSION,
    facts=UsageFacts,
    block=UsageBlock,
    nothing=dict.fromkeys(NUMBERS, 0),
    unreadable=UsageUnreadable,
)


encode = FORM.encode
decode = FORM.decode
