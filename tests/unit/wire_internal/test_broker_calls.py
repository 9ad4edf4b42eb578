"""The broker's calls between nodes: their bytes are those that nodes of the version before send and
read. ``broker_calls.json`` was written by that version: number, request and reply of each call."""

import json
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from penstock.broker.calls import Broker
from penstock.broker.queues.shares import ShareCalls
from penstock.model import calls
from penstock.model.calls import (
    Ack,
    Acquire,
    Append,
    AppendBatches,
    AppendMarker,
    BrokerCall,
    CancelMove,
    CloseShare,
    DeleteRecords,
    Ends,
    Extend,
    Fetch,
    FindTime,
    Finish,
    IsInTransaction,
    LeadersCall,
    LearnSubscription,
    Lease,
    ListBookmarks,
    LogBytes,
    MaxTimestamp,
    MoveBookmark,
    OpenShare,
    PartitionCall,
    Peek,
    Producers,
    Prolong,
    Publish,
    Purge,
    PushOne,
    ReadBookmark,
    ReadPushStatus,
    RestartShare,
    ShareLag,
    ShareStart,
    StartMove,
    Stats,
    TopicCall,
)
from penstock.model.errors import ExpiredReceipt, NotLeased, PenstockError
from penstock.model.message import AckReason, Appended, Attribute, Claim, Delivery, Message, Record
from penstock.model.ports import (
    EARLIEST,
    LATEST,
    Acquired,
    BatchAppended,
    Fetched,
    LeaseRequest,
    Marker,
    MoveTask,
    Peeked,
    ProducerSeen,
    PushReply,
    PushStatus,
    StreamEnds,
)
from penstock.model.topic import Kind, Obstacles, PeekState, QueueSettings, QueueStats, Topic
from penstock.node.wiring.push_role import PushRole
from penstock.push.pushers import Pushers
from penstock.wire.internal import broker_calls as wire
from penstock.wire.internal.calls import Call, Nothing, encode

SENT: dict[str, tuple[int, str, str]] = json.loads(
    Path(__file__).with_name("broker_calls.json").read_text()
)
EPOCH, TICKET = 5, (11, 12)
TOPIC = Topic(
    topic_id="t",
    account="1",
    region="r",
    name="n",
    kind=Kind.STANDARD,
    partition_count=3,
    created_at_ms=1,
    modified_at_ms=7,
    receipt_key=b"k" * 4,
)
SHARE = Topic(
    topic_id="s",
    account="1",
    region="r",
    name="n:g",
    kind=Kind.STANDARD,
    partition_count=1,
    created_at_ms=1,
    modified_at_ms=2,
    receipt_key=b"k" * 4,
    source_id="t",
)
CLAIM = Claim(2, 9, 4)
MESSAGE = Message(
    b"i" * 16, b"body", attributes={"a": Attribute("String", b"v")}, group="g", dedup_id="d"
)
RECORD = Record(9, 8, MESSAGE)
TASK = MoveTask("id", "arn:s", "arn:d", 5, "RUNNING", 3)
ENDS = StreamEnds(1, 2, 2, 3, True)
AT = (TOPIC, 2)

# Each call with its reply, as they were when the bytes were written.
CALLS: list[tuple[BrokerCall[Any], Any]] = [
    (Append(*AT, [MESSAGE]), [Appended(2, 9, b"i" * 16)]),
    (Publish(*AT, [MESSAGE]), [Appended(2, 9, b"i" * 16)]),
    (Lease(TOPIC, LeaseRequest(10, 30_000, 500, "att")), [Delivery(2, RECORD, 4, 1, 6)]),
    (Ack(*AT, [CLAIM]), [None, ExpiredReceipt("late"), None]),
    (Extend(*AT, [(CLAIM, 0)], is_strict=True), [NotLeased("x")]),
    (Purge(TOPIC, [(0, 5), (2, 5)]), None),
    (Stats(TOPIC, [(0, 5)], is_detailed=True), QueueStats(visible=3)),
    (Peek(*AT, 4, 10), ([Peeked(2, RECORD, PeekState.VISIBLE)], 10)),
    (StartMove(TASK), None),
    (CancelMove("id"), TASK),
    (AppendBatches(*AT, -1, [b"batch"]), BatchAppended(1, 2, 3)),
    (AppendMarker(*AT, Marker(1, 2, is_commit=True)), None),
    (IsInTransaction(*AT, 1, 2), True),
    (Producers(*AT), [ProducerSeen(1, 2, 3, 4, 5, 6)]),
    (Ends(*AT), ENDS),
    (Fetch(*AT, 3, 1_000, True), Fetched(ENDS, [b"batch"], 4, 1, [(1, 2)])),
    (FindTime(*AT, 99), (4, 99)),
    (MaxTimestamp(*AT), (4, 99)),
    (DeleteRecords(*AT, 4), 4),
    (LogBytes(*AT), 44),
    (ReadBookmark(*AT, "r"), 9),
    (ListBookmarks(*AT), {"r": 9}),
    (MoveBookmark(*AT, "r", 9, may_move_back=True), 9),
    (OpenShare(TOPIC, 0, "g", EARLIEST, QueueSettings(), {"a": "b"}, 5), SHARE),
    (CloseShare(TOPIC, "g"), True),
    (Acquire(*AT, 10, 1_000, 30_000, is_strict=True), Acquired(1, [b"batch"], [(2, 3, 1)])),
    (Finish(*AT, [CLAIM], is_rejected=True), [None]),
    (Prolong(*AT, [(CLAIM, 5)]), [None]),
    (ShareStart(*AT), 3),
    (ShareLag(*AT), 3),
    (RestartShare(*AT, LATEST), None),
    (LearnSubscription(TOPIC, [(2, 5)], "id"), None),
    (ReadPushStatus(*AT, "id"), PushStatus(limit=4, failed_at_ms=9, reason="no reply in time")),
    (PushOne(*AT, "id", MESSAGE, 1, 7, is_test=False), PushReply(200, 12, body="ok")),
]


def named(found: tuple[BrokerCall[Any], Any]) -> str:
    return type(found[0]).__name__


@pytest.mark.parametrize(("call", "reply"), CALLS, ids=map(named, CALLS))
def test_the_bytes_are_those_of_the_version_before(call: BrokerCall[Any], reply: Any) -> None:
    form = wire.wire_of(type(call))
    number, request_sent, reply_sent = SENT[type(call).__name__]
    assert form.number == number
    assert encode(form.pack(call, EPOCH, TICKET)).hex() == request_sent
    assert encode(form.reply_of(reply)).hex() == reply_sent
    request = form.decode_request(bytes.fromhex(request_sent))
    assert form.unpack(request, TOPIC if form.has_topic else None) == call
    is_lease = isinstance(call, Lease | Acquire)
    assert form.ticket_of(request) == (TICKET if is_lease else None)
    found = form.decode_reply(bytes.fromhex(reply_sent))
    if isinstance(reply, list) and any(isinstance(each, PenstockError) for each in reply):
        assert list(map(repr, found)) == list(map(repr, reply))
    else:
        assert found == reply


@pytest.mark.parametrize(
    "call",
    [
        OpenShare(TOPIC, 0, "g", EARLIEST, is_ordered=True),
        OpenShare(TOPIC, 0, "g", EARLIEST, starts=(1, 2, 3)),
        Acquire(*AT, 10, 1_000, 30_000, group_max=1),
        Lease(TOPIC, LeaseRequest(10, 30_000, group_max=1)),
        Ack(*AT, [CLAIM], AckReason.DROPPED),
    ],
    ids=["ordered OpenShare", "OpenShare with starts", "Acquire", "Lease", "Ack"],
)
def test_fields_of_a_later_level_are_sent_only_if_set(call: BrokerCall[Any]) -> None:
    form = wire.wire_of(type(call))
    sent = encode(form.pack(call, EPOCH, TICKET))
    assert form.unpack(form.decode_request(sent), TOPIC) == call


@pytest.mark.parametrize(
    ("call", "request_", "reply"),
    [
        (
            wire.GIVE_BACK,
            wire.GiveBack("t", 7, *TICKET),
            Nothing(),
        ),
        (
            wire.ADVANCED,
            wire.Advanced("t", 7, 20_000, [(0, ENDS), (1, None)]),
            wire.AdvancedReply([(0, ENDS)], [1]),
        ),
        (
            wire.AVAILABLE,
            wire.Available("t", 7, 20_000, [(0, 3)]),
            wire.AvailableReply([(0, 4)], [1]),
        ),
    ],
)
def test_the_bytes_of_calls_between_nodes_only(
    call: Call[Any, Any], request_: msgspec.Struct, reply: msgspec.Struct
) -> None:
    number, request_sent, reply_sent = SENT[type(request_).__name__]
    assert call.number == number
    assert encode(request_).hex() == request_sent
    assert encode(reply).hex() == reply_sent
    assert call.decode_request(bytes.fromhex(request_sent)) == request_
    assert call.decode_reply(bytes.fromhex(reply_sent)) == reply


def test_every_call_has_a_row_a_handler_and_bytes_of_the_version_before() -> None:
    kinds = {
        kind
        for kind in vars(calls).values()
        if isinstance(kind, type) and issubclass(kind, BrokerCall)
    } - {BrokerCall, TopicCall, LeadersCall, PartitionCall}
    assert kinds == set(wire.RULES)
    assert {type(call) for call, _ in CALLS} == kinds
    assert len(SENT) == len(kinds) + 3
    numbers = [rule.number for rule in wire.RULES.values()]
    assert len(set(numbers)) == len(numbers)
    assert all(0x0200 <= number <= 0x02FF for number in numbers)
    for kind in kinds:
        assert (wire.RULES[kind].join is not None) == issubclass(kind, LeadersCall)


# Handlers that the push role of a node adds to its broker.
_OF_PUSH: dict[type[BrokerCall[Any]], Any] = {
    Publish: PushRole.publish,
    LearnSubscription: PushRole.learn,
    ReadPushStatus: Pushers.read_status,
    PushOne: Pushers.push_one,
}


def test_handlers_take_their_call_and_return_its_reply() -> None:
    """A handler is found by the type of the call, which mypy cannot check."""
    for kind in wire.RULES:
        name = wire.wire_of(kind).name.replace("broker.", "_")
        handler = _OF_PUSH.get(kind) or getattr(Broker, name, None) or getattr(ShareCalls, name)
        hints = get_type_hints(handler)
        assert hints["call"] is kind
        bases = [base for base in vars(kind).get("__orig_bases__", ()) if get_args(base)]
        if bases:  # else it inherits from another call
            assert hints["return"] == get_args(bases[0])[0], name


def test_a_node_of_an_older_version_reads_and_is_read() -> None:
    """Stats has grown: an older node ignores fields that it does not know, and its reply lacks
    what it cannot tell."""

    class Older(msgspec.Struct, array_like=True):
        topic_id: str
        modified_at_ms: int
        counted_on: list[tuple[int, int]] = []

    form = wire.wire_of(Stats)
    sent = encode(form.pack(Stats(TOPIC, [(0, 1)], is_detailed=True), EPOCH, TICKET))
    assert msgspec.msgpack.decode(sent, type=Older) == Older("t", 7, [(0, 1)])
    reply = form.reply_of(QueueStats(visible=2, obstacles=Obstacles(blocked=1)))
    assert set(msgspec.msgpack.decode(encode(reply))[0]) >= {"visible", "obstacles"}
    before = msgspec.msgpack.encode([{"visible": 2}])
    assert form.decode_reply(before) == QueueStats(visible=2)
    request = form.decode_request(msgspec.msgpack.encode(["t", 1, []]))
    assert not form.unpack(request, TOPIC).is_detailed


def test_an_acquire_of_a_node_without_tickets_is_read() -> None:
    form = wire.wire_of(Acquire)
    request = form.decode_request(msgspec.msgpack.encode(["t", 7, 2, 5, 10, 1_000, 30_000]))
    assert form.ticket_of(request) is None
    assert form.unpack(request, TOPIC) == Acquire(*AT, 10, 1_000, 30_000)


@pytest.mark.parametrize(
    ("call", "is_idempotent"),
    [
        (Append(TOPIC, 0, [MESSAGE]), False),
        (Append(msgspec.structs.replace(TOPIC, kind=Kind.FIFO), 0, [MESSAGE]), True),
        (DeleteRecords(TOPIC, 0, 5), True),
        (DeleteRecords(TOPIC, 0, -1), False),
        (Prolong(TOPIC, 0, [(CLAIM, 5)]), True),
        (Prolong(TOPIC, 0, [(CLAIM, 0)]), False),
        (Extend(TOPIC, 0, [(CLAIM, 0)]), True),
        (RestartShare(TOPIC, 0, EARLIEST), True),
        (RestartShare(TOPIC, 0, LATEST), False),
        (MoveBookmark(TOPIC, 0, "r", 9), True),
        (MoveBookmark(TOPIC, 0, "r", 9, may_move_back=True), False),
        (MoveBookmark(TOPIC, 0, "r", -1), False),
        (Acquire(TOPIC, 0, 1, 1, 1), False),
        (Finish(TOPIC, 0, [CLAIM]), False),
        (Purge(TOPIC), True),
    ],
)
def test_calls_that_may_be_repeated(call: BrokerCall[Any], is_idempotent: bool) -> None:
    assert wire.is_idempotent(call) is is_idempotent


def test_only_calls_that_may_always_be_repeated_are_sent_again_by_a_connection() -> None:
    again = {kind for kind in wire.RULES if wire.wire_of(kind).is_idempotent}
    assert {Ack, Extend, Stats, Fetch, OpenShare} <= again
    # A purge that is repeated raises PurgeInProgress: routing knows that it was the same purge.
    assert not again & {Append, AppendBatches, Purge, Lease, Acquire, DeleteRecords, Prolong}


def test_a_call_that_waits_has_its_wait_and_a_margin() -> None:
    assert wire.timeout_ms(Lease(TOPIC, LeaseRequest(wait_ms=20_000))) == 25_000
    assert wire.timeout_ms(Lease(TOPIC, LeaseRequest())) == wire.timeout_ms(Ends(*AT)) == 12_000
