"""The broker's calls between nodes: numbers 0x0200-0x02FF.

One for each question of ``model.ports`` (Backend, Streams, Shares) that makes sense from afar; what
they mean is said there. A topic travels as its id: the answering node has the catalog too, and
``modified_at_ms`` tells it how new an entry it should have. Every question about one partition
carries the epoch in which the caller believes it to be led there (ANY_EPOCH: whatever it is).

Heads are ``array_like``. What lies in them (messages, records, deliveries, claims) are the nouns of
the model as they are, by field names: measured, that costs about a tenth of a microsecond and a
hundred bytes more on the wire than rows would, and saves two microseconds of turning one into the
other. Fields of the model may be added with defaults, as fields of a call may.

Two kinds of call have no twin in the ports. ``ADVANCED`` and ``AVAILABLE`` stand for listeners,
which cannot travel: the caller says what it knows, and is answered when that is no longer so.
``GIVE_BACK`` is the end of a ``LEASE`` or ``ACQUIRE`` whose answer nobody will read: the caller has
gone away, or the connection was lost with it. Without it such records would be hidden until their
leases ran out.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.model.limits import MIB
from penstock.model.message import Appended, Claim, Delivery, Message
from penstock.model.ports import (
    Acquired,
    BatchAppended,
    Fetched,
    Marker,
    MoveTask,
    Peeked,
    ProducerSeen,
    StreamEnds,
)
from penstock.model.topic import QueueSettings, QueueStats, Topic
from penstock.wire.internal.calls import Call, Nothing
from penstock.wire.internal.faults import decode_failure, encode_failure

ANY_EPOCH: Final = -1
FETCH_BYTES_MAX: Final = 32 * MIB  # half a frame: one batch more still fits
PEEKED_MAX: Final = 1_000
WATCHED_MAX: Final = 10_000  # partitions of one topic that one call waits for


class OfTopic(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    modified_at_ms: int


class OfLed(OfTopic, frozen=True, array_like=True):
    """Whatever part of the topic is led there; not less than what the caller counts on."""

    counted_on: Sequence[tuple[int, int]] = ()  # partition and epoch


class AtPlace(OfTopic, frozen=True, array_like=True):
    """One partition of a topic."""

    partition: int
    epoch: int


# ── Backend ──────────────────────────────────────────────────────────────────────────────────


class Append(AtPlace, frozen=True, array_like=True):
    messages: Sequence[Message]


class AppendTold(msgspec.Struct, frozen=True, array_like=True):
    appended: Sequence[Appended]


class Lease(OfTopic, frozen=True, array_like=True):
    """From whichever partitions are led there."""

    session: int  # of the caller: a number that no other has
    ticket: int  # of this lease in the session
    count: int
    lease_ms: int
    wait_ms: int
    attempt_id: str | None = None


class LeaseTold(msgspec.Struct, frozen=True, array_like=True):
    deliveries: Sequence[Delivery]


class GiveBack(OfTopic, frozen=True, array_like=True):
    session: int
    ticket: int


class Ack(AtPlace, frozen=True, array_like=True):
    claims: Sequence[Claim]


class Extend(AtPlace, frozen=True, array_like=True):
    claims: Sequence[tuple[Claim, int]]
    is_strict: bool = False  # of a share's leases it always is


class Results(msgspec.Struct, frozen=True, array_like=True):
    """One result per claim. Most are good: only the others are written out."""

    count: int
    failures: dict[int, bytes] = {}  # by the claim's position


class Stats(OfLed, frozen=True, array_like=True):
    is_detailed: bool = False  # a node of an older version answers without obstacles


class StatsTold(msgspec.Struct, frozen=True, array_like=True):
    stats: QueueStats


class Peek(AtPlace, frozen=True, array_like=True):
    start: int
    count: int


class PeekTold(msgspec.Struct, frozen=True, array_like=True):
    records: Sequence[Peeked]
    next_offset: int


class StartMove(msgspec.Struct, frozen=True, array_like=True):
    task: MoveTask


class CancelMove(msgspec.Struct, frozen=True, array_like=True):
    task_id: str


class MoveTold(msgspec.Struct, frozen=True, array_like=True):
    task: MoveTask | None


class ListMoves(msgspec.Struct, frozen=True, array_like=True):
    source_arn: str


class MovesTold(msgspec.Struct, frozen=True, array_like=True):
    tasks: Sequence[MoveTask]


# ── Streams ──────────────────────────────────────────────────────────────────────────────────


class AppendBatches(AtPlace, frozen=True, array_like=True):
    acks: int
    batches: Sequence[bytes]


class BatchTold(msgspec.Struct, frozen=True, array_like=True):
    appended: BatchAppended


class AppendMarker(AtPlace, frozen=True, array_like=True):
    marker: Marker


class OfProducer(AtPlace, frozen=True, array_like=True):
    producer_id: int
    producer_epoch: int


class Truth(msgspec.Struct, frozen=True, array_like=True):
    is_so: bool


class ProducersTold(msgspec.Struct, frozen=True, array_like=True):
    producers: Sequence[ProducerSeen]


class EndsTold(msgspec.Struct, frozen=True, array_like=True):
    ends: StreamEnds


class Fetch(AtPlace, frozen=True, array_like=True):
    """Never as slices of files: those are of use only beside the disk."""

    offset: int
    bytes_max: int
    is_committed: bool


class FetchTold(msgspec.Struct, frozen=True, array_like=True):
    ends: StreamEnds
    buffers: Sequence[bytes]
    next_offset: int
    record_count: int
    aborted: Sequence[tuple[int, int]] = ()


class FindTime(AtPlace, frozen=True, array_like=True):
    timestamp_ms: int


class TimeTold(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    timestamp_ms: int


class DeleteRecords(AtPlace, frozen=True, array_like=True):
    before: int


class Number(msgspec.Struct, frozen=True, array_like=True):
    value: int


class Advanced(OfTopic, frozen=True, array_like=True):
    """Answered when the ends of one of these are not what is known of them."""

    wait_ms: int
    known: Sequence[tuple[int, StreamEnds | None]]  # by partition


class AdvanceTold(msgspec.Struct, frozen=True, array_like=True):
    """Says nothing when the time is over."""

    moved: Sequence[tuple[int, StreamEnds]] = ()
    gone: Sequence[int] = ()  # partitions that are not led there; the others go on


# ── Shares ───────────────────────────────────────────────────────────────────────────────────


class OpenShare(AtPlace, frozen=True, array_like=True):
    """``topic_id``: of the source."""

    group: str
    start: int
    settings: QueueSettings
    tags: dict[str, str]
    attempts_max: int | None


class ShareTold(msgspec.Struct, frozen=True, array_like=True):
    share: Topic


class CloseShare(OfTopic, frozen=True, array_like=True):
    group: str


class Acquire(AtPlace, frozen=True, array_like=True):
    count: int
    bytes_max: int
    lease_ms: int
    session: int = 0
    ticket: int = 0  # as of a lease; 0: of a caller that has none
    is_strict: bool = False  # not known to older nodes, which may exceed bytes_max by a batch


class AcquireTold(msgspec.Struct, frozen=True, array_like=True):
    acquired: Acquired


class Finish(AtPlace, frozen=True, array_like=True):
    claims: Sequence[Claim]
    is_rejected: bool


class RestartShare(AtPlace, frozen=True, array_like=True):
    offset: int


class Available(OfTopic, frozen=True, array_like=True):
    """Answered when something has become available in one of these since it was last answered
    about. ``known``: the number of that answer, by partition; 0 before the first."""

    wait_ms: int
    known: Sequence[tuple[int, int]]


class AvailableTold(msgspec.Struct, frozen=True, array_like=True):
    numbers: Sequence[tuple[int, int]] = ()
    gone: Sequence[int] = ()


# ── The catalogue ────────────────────────────────────────────────────────────────────────────
# Idempotent here means: made twice with the same words it does what it does once. What is so only
# with some words (a message with a dedup id, a batch with its producer's sequence) is not.

APPEND: Final = Call(0x0200, "broker.append", Append, AppendTold, is_idempotent=False)
LEASE: Final = Call(0x0201, "broker.lease", Lease, LeaseTold, is_idempotent=False)
GIVE_BACK: Final = Call(0x0202, "broker.give_back", GiveBack, Nothing, is_idempotent=True)
ACK: Final = Call(0x0203, "broker.ack", Ack, Results, is_idempotent=True)
EXTEND: Final = Call(0x0204, "broker.extend", Extend, Results, is_idempotent=True)
PURGE: Final = Call(0x0205, "broker.purge", OfLed, Nothing, is_idempotent=False)
STATS: Final = Call(0x0206, "broker.stats", Stats, StatsTold, is_idempotent=True)
PEEK: Final = Call(0x0207, "broker.peek", Peek, PeekTold, is_idempotent=True)
START_MOVE: Final = Call(0x0208, "broker.start_move", StartMove, Nothing, is_idempotent=False)
CANCEL_MOVE: Final = Call(0x0209, "broker.cancel_move", CancelMove, MoveTold, is_idempotent=True)
MOVES: Final = Call(0x020A, "broker.moves", ListMoves, MovesTold, is_idempotent=True)

APPEND_BATCHES: Final = Call(
    0x0210, "broker.append_batches", AppendBatches, BatchTold, is_idempotent=False
)
APPEND_MARKER: Final = Call(
    0x0211, "broker.append_marker", AppendMarker, Nothing, is_idempotent=True
)
IS_IN_TRANSACTION: Final = Call(
    0x0212, "broker.is_in_transaction", OfProducer, Truth, is_idempotent=True
)
PRODUCERS: Final = Call(0x0213, "broker.producers", AtPlace, ProducersTold, is_idempotent=True)
ENDS: Final = Call(0x0214, "broker.ends", AtPlace, EndsTold, is_idempotent=True)
FETCH: Final = Call(0x0215, "broker.fetch", Fetch, FetchTold, is_idempotent=True)
FIND_TIME: Final = Call(0x0216, "broker.find_time", FindTime, TimeTold, is_idempotent=True)
MAX_TIMESTAMP: Final = Call(0x0217, "broker.max_timestamp", AtPlace, TimeTold, is_idempotent=True)
DELETE_RECORDS: Final = Call(
    0x0218, "broker.delete_records", DeleteRecords, Number, is_idempotent=False
)
LOG_BYTES: Final = Call(0x0219, "broker.log_bytes", AtPlace, Number, is_idempotent=True)
ADVANCED: Final = Call(0x021A, "broker.advanced", Advanced, AdvanceTold, is_idempotent=True)

OPEN_SHARE: Final = Call(0x0220, "broker.open_share", OpenShare, ShareTold, is_idempotent=True)
CLOSE_SHARE: Final = Call(0x0221, "broker.close_share", CloseShare, Truth, is_idempotent=False)
ACQUIRE: Final = Call(0x0222, "broker.acquire", Acquire, AcquireTold, is_idempotent=False)
FINISH: Final = Call(0x0223, "broker.finish", Finish, Results, is_idempotent=False)
PROLONG: Final = Call(0x0224, "broker.prolong", Extend, Results, is_idempotent=False)
SHARE_START: Final = Call(0x0225, "broker.share_start", AtPlace, Number, is_idempotent=True)
SHARE_LAG: Final = Call(0x0226, "broker.share_lag", AtPlace, Number, is_idempotent=True)
RESTART_SHARE: Final = Call(
    0x0227, "broker.restart_share", RestartShare, Nothing, is_idempotent=False
)
AVAILABLE: Final = Call(0x0228, "broker.available", Available, AvailableTold, is_idempotent=True)


# ── What is not a struct as it stands ────────────────────────────────────────────────────────


def results_of(results: Sequence[Exception | None]) -> Results:
    return Results(
        len(results),
        {at: encode_failure(error) for at, error in enumerate(results) if error is not None},
    )


def results_from(told: Results) -> Sequence[Exception | None]:
    """Raises MalformedFrame."""
    if not told.failures:
        return [None] * told.count
    return [
        None if (failure := told.failures.get(at)) is None else decode_failure(failure, more={})
        for at in range(told.count)
    ]


def fetched_from(told: FetchTold) -> Fetched:
    return Fetched(told.ends, told.buffers, told.next_offset, told.record_count, told.aborted)
