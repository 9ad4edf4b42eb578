"""The calls of group and transaction coordinators: one struct per call, as in ``model/calls.py``.

Replies have Kafka's error codes; no call raises. Topics are identified by their ids, so a topic
that is deleted and created again has no old offsets or transactions. Every call may return
COORDINATOR_NOT_AVAILABLE; the client then looks up the coordinator and retries."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from penstock.cursor.groups.assignors import TopicPartition
from penstock.cursor.groups.classic.classic_state import (
    JoinReply,
    JoinRequest,
    LeaveReply,
    State,
    SyncReply,
    SyncRequest,
)
from penstock.cursor.groups.consumer import ConsumerHeartbeat, ConsumerReply
from penstock.cursor.groups.decision import Description, Listing, Reply
from penstock.cursor.groups.offsets import CommitReply, CommitRequest, FetchReply
from penstock.cursor.groups.settings import ShareSettings
from penstock.cursor.groups.share import ShareHeartbeat, ShareReply
from penstock.cursor.groups.streams.streams_requests import StreamsHeartbeat, StreamsReply
from penstock.cursor.patterns.matches import TopicVisibility
from penstock.cursor.transaction_values import TopicPartition as Place
from penstock.cursor.transaction_values import TxnReply, TxnValue
from penstock.wire.kafka.faults import ErrorCode

R = TypeVar("R")  # the reply of a call
R_co = TypeVar("R_co", covariant=True)


class CoordinatorCall(msgspec.Struct, Generic[R_co], frozen=True):
    """A request to a coordinator. Its reply has the type ``R_co``."""


Handlers = dict[type[CoordinatorCall[Any]], Callable[[Any], Coroutine[Any, Any, Any]]]


class Coordinators(Protocol):
    def call(self, call: CoordinatorCall[R], /) -> Coroutine[Any, Any, R]: ...


class GroupCoordinators(Coordinators, Protocol):
    def share_settings(self, group_id: str) -> ShareSettings:
        """Return the settings of a share group, even if the group does not exist yet. Below feature
        level 3, nodes other than the group's coordinator return the defaults."""
        ...

    @property
    def has_stored_configs(self) -> bool:
        """Return whether the cluster has feature level 3, at which all group configs can be set."""
        ...


# ── Groups ───────────────────────────────────────────────────────────────────────────────────


class GroupCall(CoordinatorCall[R_co], Generic[R_co], frozen=True):
    group_id: str


class Join(GroupCall[JoinReply], frozen=True):
    """Join a classic group. A cancelled call leaves the member in the group until it times out."""

    request: JoinRequest


class Sync(GroupCall[SyncReply], frozen=True):
    request: SyncRequest


class Heartbeat(GroupCall[Reply], frozen=True):
    member_id: str
    generation: int
    instance_id: str | None


class Leave(GroupCall[LeaveReply], frozen=True):
    leavers: Sequence[tuple[str, str | None]]


class BeatConsumer(GroupCall[ConsumerReply], frozen=True):
    request: ConsumerHeartbeat
    # The topics that the member's pattern may match; None for all topics of the tenant.
    visibility: TopicVisibility | None = None


class BeatShare(GroupCall[ShareReply], frozen=True):
    request: ShareHeartbeat


class BeatStreams(GroupCall[StreamsReply], frozen=True):
    """A heartbeat of a streams group member. Requires feature level 5."""

    request: StreamsHeartbeat


Beat: TypeAlias = BeatConsumer | BeatShare | BeatStreams


class MakeShareGroup(GroupCall[Reply], frozen=True):
    """Create a share group. Returns GROUP_ID_NOT_FOUND if a group of another kind has this id."""


class ReadConfigs(GroupCall[tuple[ErrorCode, Mapping[str, str]]], frozen=True):
    pass


class ChangeConfigs(GroupCall[Reply], frozen=True):
    """Set configs of a group to values that the caller has checked. None restores the default."""

    changes: Mapping[str, str | None]


class Commit(GroupCall[CommitReply], frozen=True):
    request: CommitRequest


class CommitInTransaction(GroupCall[CommitReply], frozen=True):
    """Commit offsets as part of a transaction that the group was already added to."""

    request: CommitRequest
    producer_id: int
    producer_epoch: int


class CompleteTransaction(GroupCall[Reply], frozen=True):
    """End a transaction for all groups that have the same coordinator as ``group_id``."""

    producer_id: int
    producer_epoch: int
    is_commit: bool


class FetchOffsets(GroupCall[FetchReply], frozen=True):
    """Return committed offsets. Waits some seconds while the coordinator is moving or loading."""

    partitions: Sequence[TopicPartition] | None  # None for all that have a committed offset
    requires_stable: bool = False
    member_id: str | None = None
    member_epoch: int = -1


class DeleteOffsets(GroupCall[CommitReply], frozen=True):
    partitions: Sequence[tuple[str, str, int]]  # topic id, topic name, partition


class ListGroups(CoordinatorCall[tuple[ErrorCode, Sequence[Listing]]], frozen=True):
    states: Collection[str] = ()
    kinds: Collection[str] = ()


class DescribeGroup(GroupCall[Description], frozen=True):
    pass


class DeleteGroup(GroupCall[Reply], frozen=True):
    pass


# ── Transactions ─────────────────────────────────────────────────────────────────────────────
# If the last transaction of an id is still ending, a call waits before it returns
# CONCURRENT_TRANSACTIONS.


class TransactionCall(CoordinatorCall[R_co], Generic[R_co], frozen=True):
    transactional_id: str


class ProducerCall(TransactionCall[R_co], Generic[R_co], frozen=True):
    producer_id: int
    producer_epoch: int


class InitProducer(ProducerCall[TxnReply], frozen=True):
    """Start a producer with this transactional id. An earlier producer is fenced and its open
    transaction is aborted. A running producer sends its id and epoch, to get a higher epoch."""

    timeout_ms: int


class AddPartitions(ProducerCall[ErrorCode], frozen=True):
    partitions: Sequence[Place]


class AddGroup(ProducerCall[ErrorCode], frozen=True):
    group_id: str


class VerifyPartition(ProducerCall[ErrorCode], frozen=True):
    """Check that a partition is in the open transaction. The result holds until the next await."""

    partition: Place


class CommitOffsets(ProducerCall[CommitReply], frozen=True):
    group_id: str
    request: CommitRequest
    adds_group: bool  # whether the server must add the group to the transaction first


class EndTransaction(ProducerCall[TxnReply], frozen=True):
    """Commit or abort a transaction. Returns when this is durable; markers are written later."""

    is_commit: bool
    raises_epoch: bool  # the client continues with the producer id and epoch of the reply


class DescribeTransaction(TransactionCall[tuple[ErrorCode, TxnValue | None]], frozen=True):
    pass


class ListTransactions(CoordinatorCall[tuple[ErrorCode, dict[str, TxnValue]]], frozen=True):
    pass


# ── Failures ─────────────────────────────────────────────────────────────────────────────────

UNAVAILABLE: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
_REASON: Final = "The coordinator is not available."

_FAILED: Final[dict[type[CoordinatorCall[Any]], Callable[[Any, ErrorCode], Any]]] = {
    Join: lambda _, code: JoinReply(code),
    Sync: lambda _, code: SyncReply(code),
    Leave: lambda _, code: LeaveReply(code),
    BeatConsumer: lambda _, code: ConsumerReply(code, _REASON),
    BeatShare: lambda _, code: ShareReply(code, _REASON),
    BeatStreams: lambda call, code: StreamsReply(code, _REASON, call.request.member_epoch),
    ReadConfigs: lambda _, code: (code, {}),
    FetchOffsets: lambda _, code: FetchReply(code),
    ListGroups: lambda _, code: (code, ()),
    DescribeGroup: lambda call, code: Description(code, call.group_id, state=State.DEAD),
    DescribeTransaction: lambda _, code: (code, None),
    ListTransactions: lambda _, code: (code, {}),
    **dict.fromkeys(
        (Heartbeat, MakeShareGroup, ChangeConfigs, CompleteTransaction, DeleteGroup),
        lambda _, code: Reply(code),
    ),
    **dict.fromkeys(
        (Commit, CommitInTransaction, DeleteOffsets, CommitOffsets),
        lambda _, code: CommitReply(code),
    ),
    **dict.fromkeys((InitProducer, EndTransaction), lambda _, code: TxnReply(code)),
    **dict.fromkeys((AddPartitions, AddGroup, VerifyPartition), lambda _, code: code),
}


def failed(call: CoordinatorCall[R], code: ErrorCode) -> R:
    reply: R = _FAILED[type(call)](call, code)
    return reply
