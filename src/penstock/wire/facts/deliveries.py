"""Records of the topic ``__deliveries``: a node writes one record at each flush, in the format of
``columnar``. A row describes one attempt to push one message to the endpoint of a subscription, or
the decision to make no further attempt."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from penstock.wire.facts.columnar import Form, Head

VERSION: Final = 1
SCHEMA_HEADER: Final = (b"schema", b"deliveries/%d" % VERSION)

# Outcomes.
DELIVERED: Final = "delivered"
RETRY: Final = "retry"  # failed; the next attempt is at ``next_ms``
DEAD: Final = "dead"  # moved to the dead-letter queue
DROPPED: Final = "dropped"  # given up, and there is no dead-letter queue
REFUSED: Final = "refused"  # the endpoint has no address that may be called; nothing was sent
EXPIRED: Final = "expired"  # retention deleted the message before it was delivered

NO_STATUS: Final = 0  # no HTTP reply


class DeliveriesUnreadable(Exception): ...


class DeliveryRow(msgspec.Struct, frozen=True, gc=False):
    at_ms: int  # end of the attempt
    tenant: str
    region: str
    subscription: str
    topic: str
    partition: int
    offset: int
    message_id: str
    attempt: int  # 1 for the first
    outcome: str
    status: int = NO_STATUS  # HTTP status of the reply
    ms: int = 0  # duration of the attempt
    bytes: int = 0  # size of the request's body; in a batch, the part of this message
    reason: str = ""
    next_ms: int = 0  # time of the next attempt; 0: none
    is_replay: bool = False
    is_test: bool = False
    share: str = ""  # id of the share, whose acks are in the log; "": none


class DeliveryColumns(msgspec.Struct, gc=False):
    at_ms: list[int] = []
    tenant: list[str] = []
    region: list[str] = []
    subscription: list[str] = []
    topic: list[str] = []
    partition: list[int] = []
    offset: list[int] = []
    message_id: list[str] = []
    attempt: list[int] = []
    outcome: list[str] = []
    status: list[int] = []
    ms: list[int] = []
    bytes: list[int] = []
    reason: list[str] = []
    next_ms: list[int] = []
    is_replay: list[bool] = []
    is_test: list[bool] = []
    share: list[str] = []

    def __len__(self) -> int:
        return len(self.at_ms)

    def rows(self) -> Iterator[DeliveryRow]:
        return map(DeliveryRow, *(getattr(self, name) for name in _NAMES))


def columns_of(rows: Sequence[DeliveryRow]) -> DeliveryColumns:
    return DeliveryColumns(*([getattr(row, name) for row in rows] for name in _NAMES))


_NAMES: Final = DeliveryRow.__struct_fields__
assert DeliveryColumns.__struct_fields__ == _NAMES, "rows and columns must have the same fields"
TEXTS: Final = (
    *("tenant", "region", "subscription", "topic"),
    *("message_id", "outcome", "reason", "share"),
)
FLAGS: Final = ("is_replay", "is_test")
NUMBERS: Final = tuple(name for name in _NAMES if name not in (*TEXTS, *FLAGS))
# A column of these names may be missing.
_DEFAULTS: Final = DeliveryRow.__struct_defaults__
_NOTHING: Final = dict(zip(_NAMES[-len(_DEFAULTS) :], _DEFAULTS, strict=True))


class DeliveryHead(Head, gc=False):
    written_at_ms: int
    left_out: int  # rows dropped before this record, because the topic could not be written


class DeliveryFacts(DeliveryHead, gc=False):
    columns: DeliveryColumns


class DeliveryBlock(DeliveryHead, gc=False):
    columns: dict[str, msgspec.Raw]


FORM: Final = Form(
    "deliveries",
    VERSION,
    facts=DeliveryFacts,
    block=DeliveryBlock,
    nothing=_NOTHING,
    unreadable=DeliveriesUnreadable,
)


encode = FORM.encode
decode = FORM.decode
