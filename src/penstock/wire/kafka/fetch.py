"""The codecs of Fetch requests and replies and of ShareFetch replies.

A reply is a list of buffers, which the connection writes in order. Headers alternate with batches,
which are not copied."""

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

from penstock.model.file_slice import Piece, in_memory
from penstock.wire.kafka.compiler import codec
from penstock.wire.kafka.primitives import ZERO_UUID, Leader, Message, NodeEndpoint

VERSION_MIN, VERSION_MAX, FLEXIBLE_FROM = _VERSIONS = (4, 18, 12)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
HIGH_WATERMARK_UNKNOWN = 2**63 - 1


class FetchPartition(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("index", "current_leader_epoch", "offset", "last_fetched_epoch", "log_start_offset"),
        *("bytes_max", "replica_directory_id", "high_watermark"),
    )

    index: Annotated[int, "int32", "0+"]
    offset: Annotated[int, "int64", "0+"]
    bytes_max: Annotated[int, "int32", "0+"]
    current_leader_epoch: Annotated[int, "int32", "9+", "ignorable"] = -1  # −1: not checked
    last_fetched_epoch: Annotated[int, "int32", "12+", "ignorable"] = -1
    log_start_offset: Annotated[int, "int64", "5+", "ignorable"] = -1  # start of a follower's log
    replica_directory_id: Annotated[bytes, "uuid", "17+", "tag 0 17+", "ignorable"] = ZERO_UUID
    # The high watermark that the follower knows.
    high_watermark: Annotated[int, "int64", "18+", "tag 1 18+", "ignorable"] = (
        HIGH_WATERMARK_UNKNOWN
    )


class FetchTopic(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12", "ignorable"] = ""
    topic_id: Annotated[bytes, "uuid", "13+", "ignorable"] = ZERO_UUID
    partitions: Annotated[Sequence[FetchPartition], "[]FetchPartition", "0+"] = ()


class ForgottenTopic(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12", "ignorable"] = ""
    topic_id: Annotated[bytes, "uuid", "13+", "ignorable"] = ZERO_UUID
    partitions: Annotated[Sequence[int], "[]int32", "0+"] = ()


class ReplicaState(Message, frozen=True, gc=False):
    replica_id: Annotated[int, "int32", "0+"] = -1
    replica_epoch: Annotated[int, "int64", "0+"] = -1


class FetchRequest(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("replica_id", "wait_ms_max", "bytes_min", "bytes_max", "isolation_level", "session_id"),
        *("session_epoch", "topics", "forgotten_topics", "rack_id", "cluster_id", "replica_state"),
    )

    wait_ms_max: Annotated[int, "int32", "0+"]
    bytes_min: Annotated[int, "int32", "0+"]
    topics: Annotated[Sequence[FetchTopic], "[]FetchTopic", "0+"]
    bytes_max: Annotated[int, "int32", "0+"] = 2**31 - 1
    isolation_level: Annotated[int, "int8", "0+"] = READ_UNCOMMITTED
    session_id: Annotated[int, "int32", "7+", "ignorable"] = 0
    session_epoch: Annotated[int, "int32", "7+", "ignorable"] = -1
    forgotten_topics: Annotated[Sequence[ForgottenTopic], "[]ForgottenTopic", "7+"] = ()
    rack_id: Annotated[str, "string", "11+", "ignorable"] = ""
    replica_id: Annotated[int, "int32", "0-14", "ignorable"] = -1  # −1: a consumer
    replica_state: Annotated[ReplicaState, "ReplicaState", "15+", "tag 1 15+", "ignorable"] = (
        ReplicaState()
    )
    cluster_id: Annotated[str | None, "string", "12+", "null 12+", "tag 0 12+", "ignorable"] = None


decode_fetch_request, encode_fetch_request = codec(FetchRequest, *_VERSIONS)


class AbortedTransaction(Message, frozen=True, gc=False):
    producer_id: Annotated[int, "int64", "0+"]
    first_offset: Annotated[int, "int64", "0+"]


class EpochEnd(Message, frozen=True, gc=False):
    """The end of the last epoch that is in both the leader's log and the reader's log."""

    epoch: Annotated[int, "int32", "0+"] = -1
    end_offset: Annotated[int, "int64", "0+"] = -1


class FetchPartitionResponse(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("index", "error_code", "high_watermark", "last_stable_offset", "log_start_offset"),
        *("aborted", "preferred_read_replica", "records", "diverging_epoch", "current_leader"),
    )

    index: Annotated[int, "int32", "0+"]
    error_code: Annotated[int, "int16", "0+"] = 0
    high_watermark: Annotated[int, "int64", "0+"] = -1
    last_stable_offset: Annotated[int, "int64", "0+"] = -1
    log_start_offset: Annotated[int, "int64", "5+"] = -1
    records: Annotated[Sequence[Piece], "slices", "0+", "null 0+"] = ()  # whole batches, in order
    aborted: Annotated[
        Sequence[AbortedTransaction] | None, "[]AbortedTransaction", "0+", "null 0+"
    ] = None
    preferred_read_replica: Annotated[int, "int32", "11+"] = -1
    diverging_epoch: Annotated[EpochEnd | None, "EpochEnd", "12+", "tag 0 12+"] = None
    current_leader: Annotated[Leader | None, "Leader", "12+", "tag 1 12+"] = None


class FetchTopicResponse(Message, frozen=True, gc=False):
    name: Annotated[str, "string", "0-12"] = ""
    topic_id: Annotated[bytes, "uuid", "13+"] = ZERO_UUID
    partitions: Annotated[Sequence[FetchPartitionResponse], "[]FetchPartitionResponse", "0+"] = ()


class FetchResponse(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("throttle_time_ms", "error_code", "session_id", "topics", "node_endpoints"),
    )

    topics: Annotated[Sequence[FetchTopicResponse], "[]FetchTopicResponse", "0+"]
    throttle_time_ms: Annotated[int, "int32", "0+"] = 0
    error_code: Annotated[int, "int16", "7+"] = 0
    session_id: Annotated[int, "int32", "7+"] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], "[]NodeEndpoint", "16+", "tag 0 16+"] = ()


# Records of a decoded reply are slices of the buffer.
_encode_response: Callable[..., bytes]
decode_fetch_response, _encode_response = codec(FetchResponse, *_VERSIONS, has_slices=True)


def encode_fetch_reply(value: FetchResponse, version: int) -> tuple[list[Piece], int]:
    """Return the buffers of a reply in order, including the records, and their total size."""
    buffers: list[Piece] = []
    buffers.append(_encode_response(value, version, buffers))
    return buffers, sum(map(len, buffers))


def encode_fetch_response(value: FetchResponse, version: int) -> bytes:
    return b"".join(in_memory(encode_fetch_reply(value, version)[0]))


class AcquiredRange(Message, frozen=True, gc=False):
    first_offset: Annotated[int, "int64", "0+"]
    last_offset: Annotated[int, "int64", "0+"]
    delivery_count: Annotated[int, "int16", "0+"]


class SharePartitionReply(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("index", "error_code", "error_message", "acknowledge_error_code"),
        *("acknowledge_error_message", "current_leader", "records", "acquired"),
    )

    index: Annotated[int, "int32", "0+"]
    error_code: Annotated[int, "int16", "0+"] = 0
    acknowledge_error_code: Annotated[int, "int16", "0+"] = 0
    records: Annotated[Sequence[bytes | memoryview], "slices", "0+"] = ()  # whole batches, in order
    acquired: Annotated[Sequence[AcquiredRange], "[]AcquiredRange", "0+"] = ()
    error_message: Annotated[str | None, "string", "0+", "null 0+"] = None
    acknowledge_error_message: Annotated[str | None, "string", "0+", "null 0+"] = None
    current_leader: Annotated[Leader, "Leader", "0+"] = Leader()  # the leader has not changed


class ShareTopicReply(Message, frozen=True, gc=False):
    topic_id: Annotated[bytes, "uuid", "0+"]
    partitions: Annotated[Sequence[SharePartitionReply], "[]SharePartitionReply", "0+"]


class ShareFetchReply(Message, frozen=True, gc=False):
    WIRE_ORDER: ClassVar = (
        *("throttle_time_ms", "error_code", "error_message", "lock_ms", "topics"),
        "node_endpoints",
    )

    topics: Annotated[Sequence[ShareTopicReply], "[]ShareTopicReply", "0+"] = ()
    error_code: Annotated[int, "int16", "0+"] = 0
    error_message: Annotated[str | None, "string", "0+", "null 0+"] = None
    lock_ms: Annotated[int, "int32", "0+"] = 0
    throttle_time_ms: Annotated[int, "int32", "0+"] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], "[]NodeEndpoint", "0+"] = ()


_encode_share: Callable[..., bytes]
_, _encode_share = codec(ShareFetchReply, 1, 2, 0)


def encode_share_fetch_reply(value: ShareFetchReply, version: int) -> list[Piece]:
    buffers: list[Piece] = []
    buffers.append(_encode_share(value, version, buffers))
    return buffers
