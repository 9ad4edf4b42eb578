"""The table of the broker's calls, and their encoding between nodes (call numbers 0x0200-0x02FF).

``RULES`` has one row for each struct of ``model/calls.py``. A new call needs only its struct, its
row and its handler in the broker.

A request is an array. It has the id and ``modified_at_ms`` of the topic (the receiver waits until
its catalog has this version), the partition with the leader epoch that the sender knows, then the
fields of the struct. Structs in the fields are encoded with field names, which saves 2 µs of
conversion. A reply is an array of one value, or of the values of a tuple.

Three calls exist only between nodes. ``ADVANCED`` and ``AVAILABLE`` implement listeners: the sender
states what it knows, and gets a reply when that has changed. ``GIVE_BACK`` releases the messages of
a ``Lease`` or ``Acquire`` call whose reply was lost. The number 0x020A must not be used."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args, get_origin

import msgspec

from penstock.model import calls
from penstock.model.call_times import CALL_MS, PUSH_MS, WAIT_MARGIN_MS
from penstock.model.calls import BrokerCall, PartitionCall, Results, TopicCall
from penstock.model.errors import PenstockError, PurgeInProgress
from penstock.model.file_slice import in_memory
from penstock.model.limits import MIB
from penstock.model.message import AckReason
from penstock.model.ports import LATEST, Fetched, LeaseRequest, StreamEnds
from penstock.model.topic import Topic, join_stats
from penstock.record.batch import parse_header
from penstock.wire.internal.calls import Call, Nothing
from penstock.wire.internal.faults import decode_failure, encode_failure

ANY_EPOCH: Final = -1
FETCH_BYTES_MAX: Final = 32 * MIB  # half a frame, so that another batch still fits
PEEKED_MAX: Final = 1_000
WATCHED_MAX: Final = 10_000  # partitions of one topic that one call waits for


# ── The table ────────────────────────────────────────────────────────────────────────────────


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    number: int  # identifies the call between nodes; never reused
    # Whether the call may be retried after an unknown outcome, perhaps depending on its values.
    is_idempotent: bool | Callable[[Any], bool] = False
    call_ms: int = CALL_MS  # timeout at another node, without the wait
    repeated: type[PenstockError] | None = None  # raised by a retry if the call was carried out
    join: Callable[[Sequence[Any]], Any] | None = None  # joins the replies to a LeadersCall
    needs_metadata: bool = False  # the call waits for the metadata store, not for a log
    local_fields: int = 0  # number of last fields that are not sent to other nodes


def _is_deduplicated(call: calls.Append | calls.Publish) -> bool:
    return call.topic.is_fifo and all(each.dedup_id is not None for each in call.messages)


def _is_numbered(call: calls.AppendBatches) -> bool:
    return all(parse_header(batch).producer_id >= 0 for batch in call.batches)


def _releases_nothing(call: calls.Prolong) -> bool:
    return all(lease_ms > 0 for _, lease_ms in call.claims)


def _moves_forward(call: calls.MoveBookmark) -> bool:
    return call.offset >= 0 and not call.may_move_back  # else a retry could undo a later move


RULES: Final[dict[type[BrokerCall[Any]], Rule]] = {
    calls.Append: Rule(number=0x0200, is_idempotent=_is_deduplicated),
    calls.Publish: Rule(number=0x021D, is_idempotent=_is_deduplicated),
    calls.Lease: Rule(number=0x0201),
    calls.Ack: Rule(number=0x0203, is_idempotent=True),
    calls.Extend: Rule(number=0x0204, is_idempotent=True),
    calls.Purge: Rule(
        number=0x0205, is_idempotent=True, repeated=PurgeInProgress, join=lambda _replies: None
    ),
    calls.Stats: Rule(number=0x0206, is_idempotent=True, join=join_stats),
    calls.Peek: Rule(number=0x0207, is_idempotent=True),
    calls.StartMove: Rule(number=0x0208, needs_metadata=True),
    calls.CancelMove: Rule(number=0x0209, is_idempotent=True, needs_metadata=True),
    calls.AppendBatches: Rule(number=0x0210, is_idempotent=_is_numbered),
    calls.AppendMarker: Rule(number=0x0211, is_idempotent=True),
    calls.IsInTransaction: Rule(number=0x0212, is_idempotent=True),
    calls.Producers: Rule(number=0x0213, is_idempotent=True),
    calls.Ends: Rule(number=0x0214, is_idempotent=True),
    calls.Fetch: Rule(number=0x0215, is_idempotent=True, local_fields=1),
    calls.FindTime: Rule(number=0x0216, is_idempotent=True),
    calls.MaxTimestamp: Rule(number=0x0217, is_idempotent=True),
    # -1 is the high watermark, which may be higher at a retry.
    calls.DeleteRecords: Rule(number=0x0218, is_idempotent=lambda call: call.before >= 0),
    calls.LogBytes: Rule(number=0x0219, is_idempotent=True),
    calls.ReadBookmark: Rule(number=0x021B, is_idempotent=True),
    calls.ListBookmarks: Rule(number=0x021E, is_idempotent=True),
    calls.MoveBookmark: Rule(number=0x021C, is_idempotent=_moves_forward),
    calls.OpenShare: Rule(number=0x0220, is_idempotent=True, needs_metadata=True),
    calls.CloseShare: Rule(number=0x0221, needs_metadata=True),
    calls.Acquire: Rule(number=0x0222),
    calls.Finish: Rule(number=0x0223),
    calls.Prolong: Rule(number=0x0224, is_idempotent=_releases_nothing),
    calls.ShareStart: Rule(number=0x0225, is_idempotent=True),
    calls.ShareLag: Rule(number=0x0226, is_idempotent=True),
    calls.RestartShare: Rule(number=0x0227, is_idempotent=lambda call: call.offset != LATEST),
    calls.LearnSubscription: Rule(
        number=0x022B, is_idempotent=True, needs_metadata=True, join=lambda _replies: None
    ),
    calls.ReadPushStatus: Rule(number=0x0229, is_idempotent=True),
    calls.PushOne: Rule(number=0x022A, call_ms=PUSH_MS),
}


def is_idempotent(call: BrokerCall[Any]) -> bool:
    found = RULES[type(call)].is_idempotent
    return found if isinstance(found, bool) else found(call)


def timeout_ms(call: BrokerCall[Any]) -> int:
    wait_ms = call.wait_ms
    return wait_ms + WAIT_MARGIN_MS if wait_ms > 0 else RULES[type(call)].call_ms


# ── Replies ──────────────────────────────────────────────────────────────────────────────────


class ResultsSent(msgspec.Struct, frozen=True, array_like=True):
    count: int
    failures: dict[int, bytes] = {}  # by position of the claim


def _send_results(results: Results) -> ResultsSent:
    return ResultsSent(
        len(results),
        {at: encode_failure(error) for at, error in enumerate(results) if error is not None},
    )


def _read_results(sent: ResultsSent) -> Results:
    if not sent.failures:
        return [None] * sent.count
    return [
        None if (failure := sent.failures.get(at)) is None else decode_failure(failure, more={})
        for at in range(sent.count)
    ]


class FetchedSent(msgspec.Struct, frozen=True, array_like=True):
    ends: StreamEnds
    buffers: Sequence[bytes]
    next_offset: int
    record_count: int
    aborted: Sequence[tuple[int, int]] = ()


def _send_fetched(fetched: Fetched) -> tuple[object, ...]:
    # A view is encoded without a copy; the receiver decodes bytes.
    buffers = in_memory(fetched.buffers)
    return fetched.ends, buffers, fetched.next_offset, fetched.record_count, fetched.aborted


def _read_fetched(sent: FetchedSent) -> Fetched:
    return Fetched(sent.ends, sent.buffers, sent.next_offset, sent.record_count, sent.aborted)


# The struct of a reply, the conversion before encoding, and the conversion after decoding.
_ReplyForm = tuple[type[msgspec.Struct], Callable[[Any], object], Callable[[Any], Any]]


def _form_of(reply: Any, name: str) -> _ReplyForm:
    if reply is type(None):
        return Nothing, lambda _: Nothing(), lambda _: None
    if reply == Results:
        return ResultsSent, _send_results, _read_results
    if reply is Fetched:
        return FetchedSent, _send_fetched, _read_fetched
    types = get_args(reply) if get_origin(reply) is tuple else (reply,)
    fields = [(f"value_{at}", each) for at, each in enumerate(types)]
    struct = msgspec.defstruct(name, fields, frozen=True, array_like=True)
    if get_origin(reply) is tuple:
        return struct, lambda values: values, msgspec.structs.astuple
    return struct, lambda value: (value,), lambda sent: sent.value_0


def _reply_of(kind: type[BrokerCall[Any]]) -> Any:
    for base in kind.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            if get_args(generic):
                return get_args(generic)[0]
    raise AssertionError(f"{kind.__name__} does not declare the type of its reply")


# ── Requests ─────────────────────────────────────────────────────────────────────────────────


class OfTopic(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    modified_at_ms: int


_TOPIC: Final = (("topic_id", str), ("modified_at_ms", int))
_PLACE: Final = (*_TOPIC, ("partition", int), ("epoch", int))
_READ_AS: Final = {Sequence[bytes | memoryview]: Sequence[bytes]}

# The sender's session and the number of a lease, for GIVE_BACK; 0 if it cannot be given back.
Ticket = tuple[int, int]


class BrokerWire(Call[Any, Any]):
    request: type[msgspec.Struct] | None = None  # generated, unless a subclass has one
    has_ticket = False

    def __init__(self, kind: type[BrokerCall[Any]]) -> None:
        self.kind = kind
        self.rule = rule = RULES[kind]
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        fields = msgspec.structs.fields(kind)
        self._end = len(fields) - rule.local_fields
        head: tuple[tuple[str, type], ...] = ()
        self._skip = 0  # number of fields that ``head`` replaces
        if issubclass(kind, PartitionCall):
            self._skip, head = 2, _PLACE
        elif issubclass(kind, TopicCall):
            self._skip, head = 1, _TOPIC
        self._head = len(head)
        self.has_topic, self.has_partition = self._skip > 0, self._skip == 2
        struct, self.reply_of, self._read = _form_of(_reply_of(kind), f"{kind.__name__}Reply")
        request = self.request or msgspec.defstruct(
            f"{kind.__name__}Request",
            [*head, *(_field(each) for each in fields[self._skip : self._end])],
            frozen=True,
            array_like=True,
        )
        # A call whose retry may raise ``repeated`` is retried only by ``calls/routing``.
        super().__init__(
            rule.number,
            f"broker.{name}",
            request,
            struct,
            is_idempotent=rule.is_idempotent is True and rule.repeated is None,
        )

    def decode_reply(self, payload: bytes | memoryview) -> Any:
        return self._read(super().decode_reply(payload))

    def pack(self, call: Any, epoch: int, _ticket: Ticket) -> Sequence[object]:
        fields = msgspec.structs.astuple(call)[self._skip : self._end]
        if not self._skip:
            return fields
        topic = call.topic
        if self._skip == 1:
            return topic.topic_id, topic.modified_at_ms, *fields
        return topic.topic_id, topic.modified_at_ms, call.partition, epoch, *fields

    def unpack(self, request: Any, topic: Topic | None) -> Any:
        values = msgspec.structs.astuple(request)[self._head :]
        if self._skip == 2:
            return self.kind(topic, request.partition, *values)
        return self.kind(topic, *values) if self._skip else self.kind(*values)

    def ticket_of(self, _request: Any) -> Ticket | None:
        return None


def _field(info: msgspec.structs.FieldInfo) -> tuple[str, Any] | tuple[str, Any, Any]:
    read_as = _READ_AS.get(info.type, info.type)
    if info.default is not msgspec.NODEFAULT:
        return info.encode_name, read_as, info.default
    if info.default_factory is not msgspec.NODEFAULT:
        return info.encode_name, read_as, msgspec.field(default_factory=info.default_factory)
    return info.encode_name, read_as


class _LeaseSent(OfTopic, frozen=True, array_like=True):
    session: int
    ticket: int
    count: int
    lease_ms: int
    wait_ms: int
    attempt_id: str | None = None
    group_max: int = 0  # only for ordered shares, which older nodes do not have


class _LeaseWire(BrokerWire):
    request = _LeaseSent
    has_ticket = True

    def pack(self, call: calls.Lease, _epoch: int, ticket: Ticket) -> Sequence[object]:
        topic, request = call.topic, call.request
        head = (topic.topic_id, topic.modified_at_ms, *ticket)
        fields = (*head, request.count, request.lease_ms, request.wait_ms, request.attempt_id)
        return (*fields, request.group_max) if request.group_max else fields

    def unpack(self, request: _LeaseSent, topic: Topic | None) -> calls.Lease:
        assert topic is not None, "a lease names its topic"
        wanted = (request.count, request.lease_ms, request.wait_ms, request.attempt_id)
        return calls.Lease(topic, LeaseRequest(*wanted, request.group_max))

    def ticket_of(self, request: _LeaseSent) -> Ticket | None:
        return request.session, request.ticket


class _AcquireSent(OfTopic, frozen=True, array_like=True):
    partition: int
    epoch: int
    count: int
    bytes_max: int
    lease_ms: int
    session: int = 0
    ticket: int = 0  # 0: from an older node without GIVE_BACK
    is_strict: bool = False  # ignored by older nodes, which may exceed bytes_max by a batch
    group_max: int = 0  # only for ordered shares, which older nodes do not have


class _AcquireWire(BrokerWire):
    request = _AcquireSent
    has_ticket = True

    def pack(self, call: calls.Acquire, epoch: int, ticket: Ticket) -> Sequence[object]:
        topic = call.topic
        head = (topic.topic_id, topic.modified_at_ms, call.partition, epoch)
        fields = (*head, call.count, call.bytes_max, call.lease_ms, *ticket, call.is_strict)
        return (*fields, call.group_max) if call.group_max else fields

    def unpack(self, request: _AcquireSent, topic: Topic | None) -> calls.Acquire:
        assert topic is not None, "a lease names its topic"
        place = (topic, request.partition)
        wanted = (request.count, request.bytes_max, request.lease_ms)
        return calls.Acquire(*place, *wanted, request.is_strict, request.group_max)

    def ticket_of(self, request: _AcquireSent) -> Ticket | None:
        return (request.session, request.ticket) if request.ticket else None


class _AckWire(BrokerWire):
    def pack(self, call: calls.Ack, epoch: int, ticket: Ticket) -> Sequence[object]:
        """Omit the reason, of feature level PUSH, if it is the default."""
        fields = super().pack(call, epoch, ticket)
        return fields if call.reason is not AckReason.ACKED else fields[:-1]


class _OpenShareWire(BrokerWire):
    def pack(self, call: calls.OpenShare, epoch: int, ticket: Ticket) -> Sequence[object]:
        """Omit the fields of feature level PUSH if they have their defaults."""
        fields = super().pack(call, epoch, ticket)
        return fields if call.is_ordered or call.until or call.starts else fields[:-3]


_WIRES: Final[dict[type[BrokerCall[Any]], BrokerWire]] = {}


_FORMS: Final[dict[type[BrokerCall[Any]], type[BrokerWire]]] = {
    calls.Lease: _LeaseWire,
    calls.Acquire: _AcquireWire,
    calls.Ack: _AckWire,
    calls.OpenShare: _OpenShareWire,
}


def wire_of(kind: type[BrokerCall[Any]]) -> BrokerWire:
    found = _WIRES.get(kind)
    if found is None:
        form = _FORMS.get(kind, BrokerWire)
        found = _WIRES[kind] = form(kind)
    return found


# ── Calls that exist only between nodes ──────────────────────────────────────────────────────


class GiveBack(OfTopic, frozen=True, array_like=True):
    session: int
    ticket: int


class Advanced(OfTopic, frozen=True, array_like=True):
    """A call that waits until the offsets of at least one partition differ from ``known``."""

    wait_ms: int
    known: Sequence[tuple[int, StreamEnds | None]]  # by partition


class AdvancedReply(msgspec.Struct, frozen=True, array_like=True):
    moved: Sequence[tuple[int, StreamEnds]] = ()
    gone: Sequence[int] = ()  # partitions that the node does not lead


class Available(OfTopic, frozen=True, array_like=True):
    """A call that waits until records become available in one of the partitions. Each such event
    changes the partition's number. ``known`` has the numbers of the last reply, at first 0."""

    wait_ms: int
    known: Sequence[tuple[int, int]]


class AvailableReply(msgspec.Struct, frozen=True, array_like=True):
    numbers: Sequence[tuple[int, int]] = ()
    gone: Sequence[int] = ()


GIVE_BACK: Final = Call(0x0202, "broker.give_back", GiveBack, Nothing, is_idempotent=True)
ADVANCED: Final = Call(0x021A, "broker.advanced", Advanced, AdvancedReply, is_idempotent=True)
AVAILABLE: Final = Call(0x0228, "broker.available", Available, AvailableReply, is_idempotent=True)
