"""Requests and replies of streams groups, and the checks of a request that need no group.

The texts of errors are Apache Kafka's, because applications show them to people.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from penstock.cursor.groups.assigned import JOIN, LEAVE_STATIC
from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.records import (
    InternalTopic,
    PartitionMap,
    StreamsMemberValue,
    TopologyValue,
)
from penstock.cursor.groups.streams.task_assignor import (
    ACTIVE,
    STANDBY,
    Tasks,
    maps_by_role,
    of_role,
    with_role,
)
from penstock.cursor.groups.streams.topology import InvalidTopology, Status, check
from penstock.model.limits import STREAMS_MEMBER_BYTES_MAX, STREAMS_TOPOLOGY_BYTES_MAX
from penstock.wire.kafka.faults import ErrorCode


class StreamsHeartbeat(msgspec.Struct, frozen=True):
    """None means "unchanged" in every field that may be None."""

    member_id: str  # made by the client
    member_epoch: int
    endpoint_epoch: int = -1
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_ms: int = -1
    topology: TopologyValue | None = None
    active: Tasks | None = None
    standby: Tasks | None = None
    warmup: Tasks | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    client_tags: tuple[tuple[str, str], ...] | None = None
    has_patterns: bool = False  # sources are named by regular expressions
    has_offsets: bool = False
    has_end_offsets: bool = False
    is_shutdown: bool = False  # of the whole application
    client_id: str = ""
    client_host: str = ""

    @property
    def owned(self) -> Partitions | None:
        if self.active is None or self.standby is None:
            return None
        return with_role(ACTIVE, self.active) | with_role(STANDBY, self.standby)


class Endpoint(msgspec.Struct, frozen=True):
    """The address at which a member serves queries of its state, and its tasks."""

    host: str
    port: int
    tasks: Partitions  # with their role
    # By subtopology: the topics that it reads, with their numbers of partitions.
    read: Mapping[str, Sequence[tuple[str, int]]]

    def partitions(self) -> tuple[PartitionMap, PartitionMap]:
        """Partitions that the active and the standby tasks read, by topic name."""
        active, standby = maps_by_role(self.tasks)
        return self._read_by(active), self._read_by(standby)

    def _read_by(self, tasks: PartitionMap) -> PartitionMap:
        return {
            name: numbers[: bisect_left(numbers, count)]
            for part, numbers in tasks.items()
            for name, count in self.read.get(part, ())
        }


class StreamsReply(Reply, frozen=True):
    message: str | None = None
    member_epoch: int = 0
    heartbeat_ms: int = 0
    statuses: tuple[Status, ...] = ()
    assigned: Partitions | None = None  # tasks with their role; None: unchanged
    endpoint_epoch: int = 0
    endpoints: tuple[Endpoint, ...] | None = None  # None: unchanged
    missing: tuple[InternalTopic, ...] = ()  # topics that the frontend creates

    @property
    def assignment(self) -> tuple[Tasks, Tasks] | None:
        """Active and standby tasks; None: unchanged."""
        if self.assigned is None:
            return None
        return of_role(ACTIVE, self.assigned), of_role(STANDBY, self.assigned)


def refuse(request: StreamsHeartbeat, code: ErrorCode, message: str) -> StreamsReply:
    return StreamsReply(code, message, request.member_epoch)


def unsupported(request: StreamsHeartbeat) -> StreamsReply | None:
    for is_used, text in (
        (request.instance_id is not None, "Static membership is not yet supported."),
        (request.has_offsets, "TaskOffsets are not supported yet."),
        (request.has_end_offsets, "TaskEndOffsets are not supported yet."),
        (bool(request.warmup), "WarmupTasks are not supported yet."),
        (request.has_patterns, "Regular expressions for source topics are not supported yet."),
    ):
        if is_used:
            return refuse(request, ErrorCode.INVALID_REQUEST, text)
    return None


def malformed(request: StreamsHeartbeat) -> StreamsReply | None:
    is_join = request.member_epoch == JOIN
    owned = (request.active, request.standby, request.warmup)
    for is_wrong, text in (
        (not request.member_id, "MemberId can't be empty."),
        (request.rack_id == "", "RackId can't be empty."),
        (
            is_join and request.rebalance_ms == -1,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        (
            is_join and (request.active is None or bool(request.active)),
            "ActiveTasks must be empty when (re-)joining.",
        ),
        (
            is_join and (request.standby is None or bool(request.standby)),
            "StandbyTasks must be empty when (re-)joining.",
        ),
        (
            is_join and (request.warmup is None or bool(request.warmup)),
            "WarmupTasks must be empty when (re-)joining.",
        ),
        (is_join and request.topology is None, "Topology must be non-null when (re-)joining."),
        (request.member_epoch == LEAVE_STATIC, "InstanceId can't be null."),
        (
            request.member_epoch < LEAVE_STATIC,
            f"MemberEpoch is {request.member_epoch}, but must be greater than or equal to -2.",
        ),
        (
            any(tasks is None for tasks in owned) and any(tasks is not None for tasks in owned),
            "If one task-type is non-null, all must be non-null.",
        ),
        (
            not is_join and request.topology is not None,
            "Topology can only be provided when (re-)joining.",
        ),
        (
            len(msgspec.msgpack.encode(merged(request, None))) > STREAMS_MEMBER_BYTES_MAX,
            f"The member's metadata exceed {STREAMS_MEMBER_BYTES_MAX:,} bytes: shorten its tags.",
        ),
    ):
        if is_wrong:
            return refuse(request, ErrorCode.INVALID_REQUEST, text)
    return None


def invalid_topology(request: StreamsHeartbeat, topology: TopologyValue) -> StreamsReply | None:
    if topology.epoch < 0:
        text = f"The topology epoch is {topology.epoch}, but must not be negative."
        return refuse(request, ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, text)
    size = len(msgspec.msgpack.encode(topology))
    if size > STREAMS_TOPOLOGY_BYTES_MAX:
        text = (
            f"The topology has {size:,} bytes, at most {STREAMS_TOPOLOGY_BYTES_MAX:,} are allowed."
        )
        return refuse(request, ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    try:
        check(topology)
    except InvalidTopology as error:
        return refuse(request, ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error))
    return None


def merged(
    request: StreamsHeartbeat, old: StreamsMemberValue | None, *, rebalance_ms_max: int = 0
) -> StreamsMemberValue:
    """Return the member's metadata with the changes of a request."""
    if old is None:
        old = StreamsMemberValue(None, "", "", 0, -1, "", None, ())
    return StreamsMemberValue(
        old.rack_id if request.rack_id is None else request.rack_id,
        request.client_id or old.client_id,
        request.client_host or old.client_host,
        old.rebalance_ms
        if request.rebalance_ms <= 0
        else min(request.rebalance_ms, rebalance_ms_max),
        old.topology_epoch if request.topology is None else request.topology.epoch,
        old.process_id if request.process_id is None else request.process_id,
        old.endpoint if request.endpoint is None else request.endpoint,
        old.client_tags if request.client_tags is None else request.client_tags,
    )
