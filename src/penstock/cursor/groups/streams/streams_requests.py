"""Requests and replies of streams groups, and the checks of a request that need no group.

The texts of errors are Apache Kafka's, because applications show them to people.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import msgspec

from penstock.cursor.groups.assigned import JOIN, LEAVE_STATIC, Heartbeat
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
from penstock.cursor.patterns.matches import Topics
from penstock.model.limits import STREAMS_MEMBER_BYTES_MAX, STREAMS_TOPOLOGY_BYTES_MAX
from penstock.wire.kafka.faults import ErrorCode

NEW_MEMBER = StreamsMemberValue(None, "", "", 0, -1, "", None, ())
_NO_TIMEOUT = "RebalanceTimeoutMs must be provided in first request."
_TOO_LARGE = f"The member's metadata exceed {STREAMS_MEMBER_BYTES_MAX:,} bytes: shorten its tags."


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


class StreamsHeartbeat(Heartbeat, frozen=True):
    """None means "unchanged" in every field that may be None."""

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

    def refused(self, code: ErrorCode, message: str) -> StreamsReply:
        return StreamsReply(code, message, self.member_epoch)

    def malformed(self, topics: Topics) -> Reply | None:  # noqa: ARG002 - for consumer groups
        epoch, is_join = self.member_epoch, self.member_epoch == JOIN
        owned = (self.active, self.standby, self.warmup)
        active, standby, warmup = (is_join and tasks != frozenset() for tasks in owned)
        given = sum(tasks is not None for tasks in owned)
        size = len(msgspec.msgpack.encode(self.merged_into(NEW_MEMBER, 0)))
        errors = {
            "Static membership is not yet supported.": self.instance_id is not None,
            "TaskOffsets are not supported yet.": self.has_offsets,
            "TaskEndOffsets are not supported yet.": self.has_end_offsets,
            "WarmupTasks are not supported yet.": bool(self.warmup),
            "Regular expressions for source topics are not supported yet.": self.has_patterns,
            "MemberId can't be empty.": not self.member_id,
            "RackId can't be empty.": self.rack_id == "",
            _NO_TIMEOUT: is_join and self.rebalance_ms == -1,
            "ActiveTasks must be empty when (re-)joining.": active,
            "StandbyTasks must be empty when (re-)joining.": standby,
            "WarmupTasks must be empty when (re-)joining.": warmup,
            "Topology must be non-null when (re-)joining.": is_join and self.topology is None,
            "InstanceId can't be null.": epoch == LEAVE_STATIC,
            f"MemberEpoch is {epoch}, but must be greater than or equal to -2.": epoch < -2,
            "If one task-type is non-null, all must be non-null.": 0 < given < len(owned),
            "Topology can only be provided when (re-)joining.": bool(self.topology) and not is_join,
            _TOO_LARGE: size > STREAMS_MEMBER_BYTES_MAX,
        }
        return self.first_of(errors)


def invalid_topology(request: StreamsHeartbeat, topology: TopologyValue) -> StreamsReply | None:
    if topology.epoch < 0:
        text = f"The topology epoch is {topology.epoch}, but must not be negative."
        return request.refused(ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH, text)
    size = len(msgspec.msgpack.encode(topology))
    if size > STREAMS_TOPOLOGY_BYTES_MAX:
        text = (
            f"The topology has {size:,} bytes, at most {STREAMS_TOPOLOGY_BYTES_MAX:,} are allowed."
        )
        return request.refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    try:
        check(topology)
    except InvalidTopology as error:
        return request.refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error))
    return None
