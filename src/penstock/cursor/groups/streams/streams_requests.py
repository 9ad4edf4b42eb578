"""Requests and replies of streams groups, and the topology of an application, which determines the
partition counts of internal topics and the number of tasks.

A subtopology reads sources, which are created outside the application, and repartition topics,
which another subtopology writes to. It writes its state to changelogs. Repartition topics and
changelogs are internal: the coordinator reports the missing ones, and the frontend creates them.
One task reads the partitions with the same number in all topics of its subtopology.

Error texts are Apache Kafka's, because applications show them to people."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from heapq import heappop, heappush
from typing import TypeAlias

import msgspec

from penstock.cursor.groups.assigned import JOIN, LEAVE_STATIC, Heartbeat
from penstock.cursor.groups.assignors import Partitions
from penstock.cursor.groups.decision import Reply
from penstock.cursor.groups.records import (
    InternalTopic,
    PartitionMap,
    StreamsMemberValue,
    Subtopology,
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
from penstock.cursor.patterns.matches import Topics
from penstock.model.limits import (
    STREAMS_MEMBER_BYTES_MAX,
    STREAMS_TASKS_MAX,
    STREAMS_TOPOLOGY_BYTES_MAX,
)
from penstock.wire.kafka.faults import ErrorCode

Counts: TypeAlias = Mapping[str, int]  # topic name → number of partitions

_NAMES_SHOWN = 3  # number of topics listed in a status text, as in Kafka


class StatusCode(IntEnum):
    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(msgspec.Struct, frozen=True):
    code: StatusCode
    detail: str


class InvalidTopology(Exception):
    """Raised if no set of topics could fit a topology."""


class _Wrong(Exception):
    """Raised if topics do not fit a topology. The arguments are the fields of a ``Status``."""


NEW_MEMBER = StreamsMemberValue(None, "", "", 0, -1, "", None, ())
_NO_TIMEOUT = "RebalanceTimeoutMs must be provided in first request."
_TOO_LARGE = f"The member's metadata exceeds {STREAMS_MEMBER_BYTES_MAX:,} bytes. Shorten its tags."


class Endpoint(msgspec.Struct, frozen=True):
    """The address at which a member serves interactive queries, and the member's tasks."""

    host: str
    port: int
    tasks: Partitions  # with their role
    # Subtopology id → topics that the subtopology reads, with their partition counts.
    read: Mapping[str, Sequence[tuple[str, int]]]

    def partitions(self) -> tuple[PartitionMap, PartitionMap]:
        """Return the partitions that the active and the standby tasks read, by topic name."""
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
    assigned: Partitions | None = None  # tasks with their role; None if unchanged
    endpoint_epoch: int = 0
    endpoints: tuple[Endpoint, ...] | None = None  # None if unchanged
    missing: tuple[InternalTopic, ...] = ()  # topics that the frontend must create

    @property
    def assignment(self) -> tuple[Tasks, Tasks] | None:
        """The active and the standby tasks, or None if they are unchanged."""
        if self.assigned is None:
            return None
        return of_role(ACTIVE, self.assigned), of_role(STANDBY, self.assigned)


class StreamsHeartbeat(Heartbeat, frozen=True):
    """A heartbeat, in which None means "unchanged"."""

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
    has_patterns: bool = False  # whether sources are given as regular expressions
    has_offsets: bool = False
    has_end_offsets: bool = False
    is_shutdown: bool = False  # whether the whole application must shut down
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
        most = STREAMS_TOPOLOGY_BYTES_MAX
        text = f"The topology has {size:,} bytes, but only {most:,} are allowed."
        return request.refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    try:
        check(topology)
    except InvalidTopology as error:
        return request.refused(ErrorCode.STREAMS_INVALID_TOPOLOGY, str(error))
    return None


class Configured(msgspec.Struct, frozen=True):
    tasks: Mapping[str, int] = {}  # subtopology id → number of tasks; empty if not ready
    counts: Mapping[str, int] = {}  # internal topic → number of partitions; empty if unknown
    missing: tuple[InternalTopic, ...] = ()  # internal topics to create
    status: Status | None = None  # why the topology is not ready, or None if it is

    @property
    def is_ready(self) -> bool:
        return self.status is None


def topic_names(topology: TopologyValue) -> frozenset[str]:
    names: set[str] = set()
    for part in topology.subtopologies:
        names.update(part.sources, part.repartition_sinks)
        names.update(topic.name for topic in internal_topics(part))
    return frozenset(names)


def internal_topics(part: Subtopology) -> tuple[InternalTopic, ...]:
    return (*part.repartition_sources, *part.changelogs)


def read_by(part: Subtopology) -> tuple[str, ...]:
    return (*part.sources, *(topic.name for topic in part.repartition_sources))


def readers_of(topology: TopologyValue) -> dict[str, str]:
    """Return a map of topic name → id of the first subtopology that reads the topic."""
    return {
        name: part.subtopology_id
        for part in reversed(topology.subtopologies)
        for name in read_by(part)
    }


def check(topology: TopologyValue) -> None:
    """Raise InvalidTopology if no set of topics could fit the topology."""
    for part in topology.subtopologies:
        for topic in part.changelogs:
            if topic.partition_count:
                raise InvalidTopology(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it"
                    f" is set to {topic.partition_count}."
                )
        if not read_by(part):
            raise InvalidTopology(f"No source topics found for subtopology {part.subtopology_id}")
    # If all sources have one partition, an error can only be in the topology itself.
    sources = {name: 1 for part in topology.subtopologies for name in part.sources}
    _repartition_counts(topology, sources)


def configure(topology: TopologyValue, existing: Counts) -> Configured:
    """Return the tasks and missing topics of a checked topology, or a status if it cannot run.
    ``existing`` maps the names of existing topics to their partition counts."""
    try:
        counts = _counts(topology, existing)
        missing = _missing(topology, counts, existing)
        tasks = _tasks(topology, counts, existing)
    except _Wrong as wrong:
        return Configured(status=Status(*wrong.args))
    text = f"Internal topics are missing: {_summary(topic.name for topic in missing)}"
    status = Status(StatusCode.MISSING_INTERNAL_TOPICS, text) if missing else None
    return Configured(tasks, counts, missing, status)


def _counts(topology: TopologyValue, existing: Counts) -> dict[str, int]:
    internal = {t.name for part in topology.subtopologies for t in part.repartition_sources}
    sources = {name for part in topology.subtopologies for name in part.sources} - internal
    absent = sorted(sources - existing.keys())
    if absent:
        text = f"Source topics {_summary(absent)} are missing."
        raise _Wrong(StatusCode.MISSING_SOURCE_TOPICS, text)
    known = {name: existing[name] for name in sources}
    counts = _repartition_counts(topology, known)
    _copartition(topology, counts, known)
    for part in topology.subtopologies:
        width = max(_widths_of(part, counts, known))
        counts.update({topic.name: width for topic in part.changelogs})
    return counts


def _repartition_counts(topology: TopologyValue, sources: Counts) -> dict[str, int]:
    """Return the partition counts of repartition topics. A count that is not given is the highest
    count among the topics read by the subtopology that writes to the repartition topic."""
    parts = topology.subtopologies
    counts = _fixed_counts(topology)
    readers: dict[str, list[int]] = {}
    for index, part in enumerate(parts):
        for topic in part.repartition_sources:
            readers.setdefault(topic.name, []).append(index)
    # Kafka visits all subtopologies in rounds, using the counts known so far. This has the same
    # result, but only visits subtopologies for which a new count is known.
    queue = [(0, at) for at, part in enumerate(parts) if any(_widths_of(part, counts, sources))]
    seen = {index for _, index in queue}
    while queue:
        turn, index = heappop(queue)
        width = max(_widths_of(parts[index], counts, sources))
        for sink in parts[index].repartition_sinks:
            if sink not in counts:
                counts[sink] = width
                for reader in set(readers.get(sink, ())) - seen:
                    seen.add(reader)
                    heappush(queue, (turn if reader > index else turn + 1, reader))
    failed = "Failed to compute number of partitions for all repartition topics"
    if any(sink not in counts for part in parts for sink in part.repartition_sinks):
        text = f"{failed}. There may be loops in the topology that cannot be resolved."
        raise InvalidTopology(text)
    if not readers.keys() <= counts.keys():
        text = f"{failed}, because a repartition source topic is never used as a sink topic."
        raise InvalidTopology(text)
    return counts


def _fixed_counts(topology: TopologyValue) -> dict[str, int]:
    found = (topic for part in topology.subtopologies for topic in part.repartition_sources)
    return {topic.name: topic.partition_count for topic in found if topic.partition_count}


def _widths_of(part: Subtopology, counts: Counts, sources: Counts) -> Iterable[int]:
    for name in read_by(part):
        count = counts.get(name) or sources.get(name)
        if count is not None:
            yield count


def _copartition(topology: TopologyValue, counts: dict[str, int], sources: Counts) -> None:
    """Give repartition topics the same partition count as the topics they are joined with. Raises
    _Wrong if those topics have different counts."""
    fixed = _fixed_counts(topology).keys()
    for part in topology.subtopologies:
        for group in part.copartitions:
            repartitioned = {name: counts[name] for name in group if name in counts}
            others = {name: sources[name] for name in group if name not in counts}
            if others:
                count = _same(others)
            elif fixed.isdisjoint(group):
                count = max(repartitioned.values(), default=0)
            else:
                count = _same({name: n for name, n in repartitioned.items() if name in fixed})
            for name, given in repartitioned.items():
                if name in fixed and given != count:
                    raise _Wrong(
                        StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                        f"Number of partitions [{given}] of repartition topic [{name}] doesn't"
                        f" match number of partitions [{count}] of the source topic.",
                    )
                counts[name] = count


def _same(counts: Mapping[str, int]) -> int:
    found = set(counts.values())
    if len(found) > 1:
        shown = ", ".join(f"{name}={count}" for name, count in sorted(counts.items()))
        raise _Wrong(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{shown}}}]",
        )
    return found.pop()


def _missing(
    topology: TopologyValue, counts: Counts, existing: Counts
) -> tuple[InternalTopic, ...]:
    missing = {}
    for part in topology.subtopologies:
        for topic in internal_topics(part):
            wanted, found = counts[topic.name], existing.get(topic.name)
            if found is None:
                missing[topic.name] = msgspec.structs.replace(topic, partition_count=wanted)
            elif found != wanted:
                raise _Wrong(
                    StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                    f"Existing topic {topic.name} has different number of partitions: expected"
                    f" {wanted}, found {found}",
                )
    return tuple(missing[name] for name in sorted(missing))


def _tasks(topology: TopologyValue, counts: Counts, existing: Counts) -> dict[str, int]:
    tasks = {
        part.subtopology_id: max(_widths_of(part, counts, existing))
        for part in topology.subtopologies
    }
    total = sum(tasks.values())
    if total > STREAMS_TASKS_MAX:
        raise _Wrong(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"The topology has {total:,} tasks, but only {STREAMS_TASKS_MAX:,} are allowed: read"
            " topics with fewer partitions, or split the application.",
        )
    return tasks


def _summary(names: Iterable[str]) -> str:
    listed = sorted(names)
    text = ", ".join(listed[:_NAMES_SHOWN])
    left = len(listed) - _NAMES_SHOWN
    return f"{text} and {left} additional topics" if left > 0 else text
