"""Streams groups (KIP-1071), whose coordinator assigns the tasks of a Kafka Streams application.

The first member provides the topology, which never changes. Members move towards the target
assignment (``task_assignor.py``) as in a consumer group (``assigned.py``). While topics are missing
or wrongly partitioned, members have no tasks, and the status in the reply gives the reason. Like
Kafka 4.3, Penstock rejects static members, patterns as sources, warm-up tasks and task offsets."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from penstock.cursor.groups import records
from penstock.cursor.groups.assigned import (
    JOIN,
    LEAVE,
    AssignedGroup,
    Kinds,
    MemberAssignment,
)
from penstock.cursor.groups.assignors import Partitions, TopicPartition
from penstock.cursor.groups.decision import Decision, Description, MemberDescription, Reply
from penstock.cursor.groups.offsets import CommitRequest
from penstock.cursor.groups.records import RowKind, StreamsMemberValue, StreamsValue
from penstock.cursor.groups.settings import GroupSettings, StreamsSettings, streams_settings
from penstock.cursor.groups.streams import streams_requests as requests
from penstock.cursor.groups.streams.streams_requests import Status, StatusCode, StreamsHeartbeat
from penstock.cursor.groups.streams.task_assignor import (
    ACTIVE,
    Assignment,
    AssignmentInput,
    Task,
    compute_assignment,
    held_tasks,
    maps_by_role,
)
from penstock.cursor.patterns.matches import Topics
from penstock.cursor.rows import KeyFields
from penstock.wire.kafka.faults import ErrorCode

_BEING_ASSIGNED = Status(
    StatusCode.ASSIGNMENT_DELAYED, "Assignment delayed: the group's tasks are being assigned."
)


class StreamsGroup(AssignedGroup[StreamsMemberValue, StreamsValue, StreamsSettings]):
    kind = "streams"
    kinds = Kinds(
        RowKind.STREAMS,
        RowKind.STREAMS_MEMBER,
        RowKind.STREAMS_TARGET,
        RowKind.STREAMS_TARGET_OF,
        RowKind.STREAMS_CURRENT,
    )
    _current_type = records.StreamsCurrentValue
    _without_epochs = ErrorCode.UNSUPPORTED_VERSION
    # Epochs begin at 1, as in Kafka, because 0 in a request means that the member joins.
    _nothing = StreamsValue(1, (), False, 0, 0)
    _read_times = staticmethod(streams_settings)

    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id, settings)
        self.topology: records.TopologyValue | None = None
        # Member id → the epochs in which the member got its active tasks.
        self._since: dict[str, dict[Task, int]] = {}
        # Members that have a task, and their roles, until they have given the task up.
        self._holders: dict[Task, set[tuple[str, str]]] = {}
        # Lost at a restart.
        self.pending: AssignmentInput | None = None  # the assignment being computed
        self._assigns_from_ms = 0  # the first assignment waits for more members
        self._configured = requests.Configured()
        self._rows: tuple[tuple[str, str, int], ...] = ()  # name, id, partition count of topics
        self._shut_down_by: str | None = None  # the member that requested a shutdown
        self._endpoint_epoch = 0
        # Cache of the topics that each subtopology reads, with their partition counts.
        self._read: dict[str, list[tuple[str, int]]] | None = None

    def apply(self, kind: int, key: KeyFields, value: Any) -> None:
        if kind == RowKind.TOPOLOGY:
            self.topology = value
        else:
            super().apply(kind, key, value)

    def _held_in(self, value: records.StreamsCurrentValue) -> tuple[Partitions, Partitions]:
        revoking = held_tasks(value.revoking_active, value.revoking_standby)
        return held_tasks(value.active, value.standby), revoking

    def _fields_of(self, member_id: str, current: MemberAssignment) -> tuple[Any, ...]:
        since = self._since.get(member_id, {})
        active, standby = maps_by_role(current.assigned)
        revoking_active, revoking_standby = maps_by_role(current.revoking)
        epochs = [
            (part, partition, since.get((part, partition), current.epoch))
            for tasks in (active, revoking_active)
            for part, partitions in tasks.items()
            for partition in partitions
        ]
        return active, standby, revoking_active, revoking_standby, tuple(epochs)

    def _target_in(self, value: records.StreamsTargetOfValue) -> Partitions:
        return held_tasks(value.active, value.standby)

    def _set_current(self, member_id: str, new: MemberAssignment | None, value: Any) -> None:
        super()._set_current(member_id, new, value)
        self._since.pop(member_id, None)
        if value is not None:
            self._since[member_id] = {(part, p): epoch for part, p, epoch in value.since}

    def _held(self, member_id: str, partitions: Partitions) -> None:
        for text, partition in partitions:
            self._holders.setdefault((text[1:], partition), set()).add((member_id, text[0]))

    def _released(self, member_id: str, partitions: Partitions) -> None:
        for text, partition in partitions:
            holders = self._holders[text[1:], partition]
            holders.discard((member_id, text[0]))
            if not holders:
                del self._holders[text[1:], partition]

    def _is_free(self, member_id: str, partition: TopicPartition) -> bool:
        """Return whether the member may take a task now. An active task has one holder, and a
        process has each task only once, because its members share the folder of task states."""
        role, task = partition[0][0], (partition[0][1:], partition[1])
        process_id = self._members[member_id].process_id
        for holder, held_role in self._holders.get(task, ()):
            if holder == member_id:
                continue
            if role == held_role == ACTIVE:
                return False
            other = self._members.get(holder)
            if other is not None and other.process_id == process_id:
                return False
        return True

    def erase(self, decision: Decision) -> None:
        self._put(decision, RowKind.TOPOLOGY, None)
        super().erase(decision)

    @property
    def is_stored(self) -> bool:
        return self.topology is not None

    @property
    def state(self) -> str:
        return "NotReady" if self._members and not self.value.is_ready else super().state

    @property
    def counts(self) -> Mapping[str, int]:
        return {name: count for name, _, count in self.value.topics}

    def describe(self) -> Description:
        return self._describe(
            streams_members=tuple(MemberDescription(*each) for each in self._described()),
            topology=self.topology,
            partition_counts=self.counts if self.value.is_ready else {},
        )

    def subscribed(self) -> frozenset[str]:
        if self.topology is None or not self._members:
            return frozenset()
        return frozenset(requests.readers_of(self.topology))

    def heartbeat(self, request: StreamsHeartbeat, topics: Topics, decision: Decision) -> None:
        owned = request.owned
        refusal = self._refusal(request, owned)
        if refusal is not None:
            decision.reply(refusal)
            return
        member_id = request.member_id
        if request.is_shutdown and self._shut_down_by is None:
            self._shut_down_by = member_id
        if request.member_epoch == LEAVE:
            self._remove(member_id, decision)
            decision.reply(requests.StreamsReply(member_epoch=LEAVE), after_commit=True)
            return
        was_empty = not self._members
        before = None if request.member_epoch == JOIN else self._currents.get(member_id)
        has_changed = self._update_member(request, decision)
        if self.topology is None:
            assert request.topology is not None, "a join must have a topology"
            self._put(decision, RowKind.TOPOLOGY, request.topology)
        self._refresh(topics, decision, has_changed=has_changed)
        invalid = self._invalid_tasks(request)
        if invalid is not None:
            decision.reply(request.refused(ErrorCode.INVALID_REQUEST, invalid))
            return
        if was_empty:
            self._assigns_from_ms = decision.now_ms + self.times.delay_ms
        delayed = self._assign_in_time(decision)
        # A member that joins has no tasks.
        current = self._advance(member_id, owned, before, decision)
        is_news = before is None or before.assigned != current.assigned
        if is_news:
            self._endpoints_changed(member_id)
        # If the member reports other tasks than it should have, it may have missed a reply.
        is_news |= owned not in (None, current.assigned)
        is_news |= before is not None and request.member_epoch != before.epoch
        has_endpoints = request.endpoint_epoch == self._endpoint_epoch
        reply = requests.StreamsReply(
            member_epoch=current.epoch,
            heartbeat_ms=self.times.heartbeat_ms,
            statuses=self._statuses(member_id, delayed),
            assigned=current.assigned if is_news else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=None if has_endpoints else self._all_endpoints(),
            missing=self._configured.missing,
        )
        decision.reply(reply, after_commit=True)

    def _statuses(self, member_id: str, delayed: Status | None) -> tuple[Status, ...]:
        assert self.topology is not None
        stale = shut_down = None
        epoch, newest = self._members[member_id].topology_epoch, self.topology.epoch
        if epoch < newest:
            group = f"the group's topology epoch {newest}"
            text = f"The member's topology epoch {epoch} is behind {group}."
            stale = Status(StatusCode.STALE_TOPOLOGY, text)
        if self._shut_down_by is not None:
            text = (
                f"Streams group member {self._shut_down_by} encountered a fatal error and requested"
                " a shutdown for the entire application."
            )
            shut_down = Status(StatusCode.SHUTDOWN_APPLICATION, text)
        found = (stale, delayed, self._configured.status, shut_down)
        return tuple(status for status in found if status is not None)

    def _refusal(self, request: StreamsHeartbeat, owned: Partitions | None) -> Reply | None:
        if request.member_epoch != JOIN:
            return self._epoch_refusal(request, owned)
        members_max = self._settings.members_max
        if len(self._members) >= members_max and request.member_id not in self._members:
            text = f"The streams group has reached its maximum capacity of {members_max} members."
            return request.refused(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        topology, known = request.topology, self.topology
        assert topology is not None, "a join must have a topology"
        if known is None:
            return requests.invalid_topology(request, topology)
        if topology.epoch >= known.epoch and topology != known:
            text = "Topology updates are not supported yet."
            return request.refused(ErrorCode.INVALID_REQUEST, text)
        return None

    def _invalid_tasks(self, request: StreamsHeartbeat) -> str | None:
        if not self._configured.is_ready:
            return None
        for part, at in (*(request.active or ()), *(request.standby or ())):
            count = self._configured.tasks.get(part)
            if count is None:
                return f"Subtopology {part} does not exist in the topology."
            if not 0 <= at < count:
                known = f"Number of tasks for this subtopology: {count}"
                return f"Task {at} for subtopology {part} is invalid. {known}"
        return None

    def _update_member(self, request: StreamsHeartbeat, decision: Decision) -> bool:
        """Store the member's metadata. Return True if the member is new or its metadata changed."""
        old = self._members.get(request.member_id)
        epoch = None if request.topology is None else request.topology.epoch
        before, rebalance_ms_max = old or requests.NEW_MEMBER, self._settings.rebalance_ms_max
        new = request.merged_into(before, rebalance_ms_max, topology_epoch=epoch)
        if new == old:
            return False
        self._put(decision, RowKind.STREAMS_MEMBER, new, request.member_id)
        if old is not None and old.endpoint != new.endpoint:
            self._endpoint_epoch += 1
        return True

    def _remove(self, member_id: str, decision: Decision) -> None:
        self._endpoints_changed(member_id)
        self._forget(decision, member_id)
        self._raise_epoch(decision)
        if not self._members:
            self._shut_down_by = None

    def _refresh(self, topics: Topics, decision: Decision, *, has_changed: bool) -> None:
        assert self.topology is not None
        if topics.epoch != self._seen_topics:
            self._seen_topics = topics.epoch
            names = requests.topic_names(self.topology) & topics.by_name.keys()
            self._rows = tuple((name, *topics.by_name[name]) for name in sorted(names))
            existing = {name: count for name, _, count in self._rows}
            self._configured = requests.configure(self.topology, existing)
            self._read = None
            self.pending = None  # the tasks being assigned may no longer exist
        is_ready, value = self._configured.is_ready, self.value
        news = {"topics": self._rows, "is_ready": is_ready, "standbys": self.times.standbys}
        if has_changed or replace(value, **news) != value:
            self._raise_epoch(decision, **news)

    def _assign_in_time(self, decision: Decision) -> Status | None:
        """Assign the tasks if the group's epoch has risen. Return the reason if this is delayed."""
        if decision.now_ms < self._assigns_from_ms:
            text = "Assignment delayed due to the configured initial rebalance delay."
            return Status(StatusCode.ASSIGNMENT_DELAYED, text)
        if self.value.epoch <= self.target_epoch:
            return None
        if self.pending is not None:
            return _BEING_ASSIGNED
        if not self._may_assign(decision.now_ms):
            text = "Assignment delayed due to the configured assignment interval."
            return Status(StatusCode.ASSIGNMENT_DELAYED, text)
        self._assigned_at_ms = decision.now_ms
        assert self.topology is not None
        parts = self.topology.subtopologies
        self.pending = AssignmentInput(
            self.group_id,
            self.value.epoch,
            self._configured.tasks if self._configured.is_ready else {},
            frozenset(part.subtopology_id for part in parts if part.changelogs),
            self.times.standbys,
            tuple((i, m.process_id, self._targets.get(i)) for i, m in self._members.items()),
        )
        if self.pending.is_large:
            return _BEING_ASSIGNED
        self.take_assignment(compute_assignment(self.pending), decision)
        return None

    def take_assignment(self, assignment: Assignment, decision: Decision) -> None:
        """Store a finished assignment, unless the topics have changed since it was started."""
        if assignment.input is not self.pending:
            return
        self.pending = None
        for member_id, tasks, row in assignment.targets:
            if member_id in self._members:  # a member may have left since
                decision.rows.append(row)
                self._targets[member_id] = tasks
        self._put(decision, RowKind.STREAMS_TARGET, records.TargetValue(assignment.input.epoch))

    def _endpoints_changed(self, member_id: str) -> None:
        if self._members[member_id].endpoint is not None:
            self._endpoint_epoch += 1

    def _all_endpoints(self) -> tuple[requests.Endpoint, ...]:
        assert self.topology is not None, "members must have a topology"
        if self._read is None:
            counts, parts = self.counts, self.topology.subtopologies
            self._read = {
                part.subtopology_id: [(n, counts.get(n, 0)) for n in requests.read_by(part)]
                for part in parts
            }
        return tuple(
            requests.Endpoint(*member.endpoint, self._currents[member_id].assigned, self._read)
            for member_id, member in self._members.items()
            if member.endpoint is not None and member_id in self._currents
        )

    def check_commit(self, request: CommitRequest, *, is_transactional: bool) -> ErrorCode:
        """Return the error code for a commit. An earlier epoch is accepted if the member has had
        the tasks of all committed partitions since that epoch."""
        if is_transactional and not request.member_id and request.generation == -1:
            return ErrorCode.NONE  # a producer that is not a member
        code = super().check_commit(request, is_transactional=is_transactional)
        current = self._currents.get(request.member_id)
        if (
            code not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION)
            or current is None
            or request.generation > current.epoch
            or not request.partitions
        ):
            return code
        assert self.topology is not None, "members must have a topology"
        readers = requests.readers_of(self.topology)
        parts = {topic_id: readers.get(name, "") for name, topic_id, _ in self.value.topics}
        since = self._since[request.member_id]
        for each in request.partitions:
            had_since = since.get((parts.get(each.topic_id, ""), each.partition))
            if had_since is None or request.generation < had_since:
                return code
        return ErrorCode.NONE
