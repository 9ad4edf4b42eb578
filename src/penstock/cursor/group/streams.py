"""Streams groups (KIP-1071): the coordinator assigns the tasks of a Kafka Streams application.

The first member provides the topology (``topology.py``), which never changes. A heartbeat has the
member's epoch and, if they changed, its tasks; the reply has the tasks that it shall have now.
Members move towards the target assignment (``task_assignor.py``) one by one, as those of a consumer
group do: first give up, then take tasks that no other member has (``reconcile.py``).

    epoch in the request:  0 join · -1 leave
    the previous epoch: the reply was lost, and is repeated

While topics are missing or wrongly partitioned, members have no tasks; the reply's status says why.
Kafka 4.3 does not support static members, patterns as sources, warm-up tasks and offsets of tasks;
Penstock rejects them with the same errors.

``streams_fold.py`` has the state; each call gets the topics as a value with an epoch.
"""

from collections.abc import Mapping, Sequence

import msgspec

from penstock.cursor.group.assignors import Partitions
from penstock.cursor.group.codes import Code
from penstock.cursor.group.consumer import JOIN, LEAVE, Topics
from penstock.cursor.group.consumer_fold import Current, MemberState
from penstock.cursor.group.deadlines import Deadlines
from penstock.cursor.group.decision import Draft
from penstock.cursor.group.offsets import PartitionCommit
from penstock.cursor.group.reconcile import epoch_text, reconcile
from penstock.cursor.group.records import (
    StreamsKey,
    StreamsMemberKey,
    StreamsMemberValue,
    StreamsTargetKey,
    StreamsValue,
    TargetValue,
    TopologyKey,
    TopologyValue,
)
from penstock.cursor.group.settings import GroupSettings, streams_settings
from penstock.cursor.group.streams_assignment import Assignment, Work, work_out
from penstock.cursor.group.streams_fold import StreamsFold
from penstock.cursor.group.streams_requests import (
    Endpoint,
    StreamsHeartbeat,
    StreamsReply,
    invalid_topology,
    merged,
    refuse,
)
from penstock.cursor.group.topology import (
    Configured,
    Status,
    StatusCode,
    configure,
    read_by,
    readers_of,
    topic_names,
)

_SESSION = "session"
_REVOKE = "revoke"
_BEING_ASSIGNED = Status(
    StatusCode.ASSIGNMENT_DELAYED, "Assignment delayed: the group's tasks are being assigned."
)


class StreamsGroup(StreamsFold):
    def __init__(self, group_id: str, settings: GroupSettings) -> None:
        super().__init__(group_id)
        self._settings = settings
        self.times = streams_settings({}, settings)  # set again before each heartbeat
        # Memory of this coordinator, which a restart loses.
        self._assigned_at_ms: int | None = None
        self._work: Work | None = None  # an assignment under way
        self._assigns_from_ms = 0  # the first assignment waits for more members
        self._deadlines: Deadlines[tuple[str, str]] = Deadlines()
        self._seen_topics: int | None = None  # epoch of the topics at the last heartbeat
        self._configured = Configured()
        self._rows: tuple[tuple[str, str, int], ...] = ()  # name, id, partitions
        self._shut_down_by: str | None = None  # the member that requested a shutdown
        self._endpoint_epoch = 0
        # Topics that each subtopology reads with their numbers of partitions; cached.
        self._read: dict[str, list[tuple[str, int]]] | None = None

    def arm(self, *, now_ms: int) -> None:
        """Restart the timers of all members, after replay."""
        self._deadlines.clear()
        for member_id, current in self._currents.items():
            if member_id in self._members:
                self._arm_session(member_id, now_ms)
                if current.state is MemberState.UNREVOKED:
                    self._arm_revoke(member_id, now_ms)

    # ── Queries ──────────────────────────────────────────────────────────────────────────────
    @property
    def value(self) -> StreamsValue:
        return self._value

    @property
    def topology(self) -> TopologyValue | None:
        return self._topology

    @property
    def target_epoch(self) -> int:
        return self._target_epoch

    @property
    def is_empty(self) -> bool:
        return not self._members

    @property
    def state(self) -> str:
        if not self._members:
            return "Empty"
        if not self._value.is_ready:
            return "NotReady"
        if self._value.epoch > self._target_epoch:
            return "Assigning"
        settled = self._states[MemberState.STABLE, self._target_epoch]
        return "Stable" if settled == len(self._members) else "Reconciling"

    @property
    def counts(self) -> Mapping[str, int]:
        """Partitions of the topics in use, by name."""
        return {name: count for name, _, count in self._value.topics}

    def members(self) -> Sequence[tuple[str, StreamsMemberValue, Current, Partitions]]:
        """Return the id, metadata, current tasks and target tasks of each member."""
        return [
            (
                member_id,
                member,
                self._currents.get(member_id, Current()),
                self._targets.get(member_id, frozenset()),
            )
            for member_id, member in self._members.items()
        ]

    def subscribed(self) -> frozenset[str]:
        if self._topology is None or not self._members:
            return frozenset()
        return frozenset(name for part in self._topology.subtopologies for name in read_by(part))

    def next_wake_ms(self) -> int | None:
        return self._deadlines.next_ms()

    # ── Heartbeat ────────────────────────────────────────────────────────────────────────────
    def heartbeat(
        self,
        request: StreamsHeartbeat,
        topics: Topics,
        draft: Draft,
        *,
        ticket: int,
        now_ms: int,
        wall_ms: int,
    ) -> None:
        owned = request.owned
        refusal = self._refusal(request, owned)
        if refusal is not None:
            draft.answer(ticket, refusal)
            return
        member_id = request.member_id
        if request.is_shutdown and self._shut_down_by is None:
            self._shut_down_by = member_id
        if request.member_epoch == LEAVE:
            self._remove(member_id, draft, wall_ms)
            draft.answer(ticket, StreamsReply(member_epoch=LEAVE), after_commit=True)
            return
        was_empty = not self._members
        before = None if request.member_epoch == JOIN else self._currents.get(member_id)
        has_changed = self._update_member(request, draft)
        if self._topology is None:
            assert request.topology is not None, "a join has a topology"
            self._put(draft, TopologyKey(self.group_id), request.topology)
        self._refresh(topics, draft, has_changed=has_changed, wall_ms=wall_ms)
        invalid = self._invalid_tasks(request)
        if invalid is not None:
            draft.answer(ticket, refuse(request, Code.INVALID_REQUEST, invalid))
            return
        if was_empty:
            self._assigns_from_ms = now_ms + self.times.delay_ms
        delayed = self._assign_in_time(draft, now_ms)
        current = self._reconcile(member_id, owned)  # a member that joins has no tasks
        self._put_current(draft, member_id, current)
        self._arm_session(member_id, now_ms)
        if current.state is not MemberState.UNREVOKED:
            self._deadlines.drop((_REVOKE, member_id))
        elif before != current:
            self._arm_revoke(member_id, now_ms)
        if before is None or before.assigned != current.assigned:
            self._endpoints_changed(member_id)
        reply = self._reply(request, owned, before, current, delayed)
        draft.answer(ticket, reply, after_commit=True)

    def _reply(
        self,
        request: StreamsHeartbeat,
        owned: Partitions | None,
        before: Current | None,
        current: Current,
        delayed: Status | None,
    ) -> StreamsReply:
        # A member that reports other tasks than it was given may have missed a reply.
        is_news = (
            before is None
            or before.assigned != current.assigned
            or request.member_epoch != before.epoch
            or owned not in (None, current.assigned)
        )
        has_endpoints = request.endpoint_epoch == self._endpoint_epoch
        return StreamsReply(
            member_epoch=current.epoch,
            heartbeat_ms=self.times.heartbeat_ms,
            statuses=self._statuses(request.member_id, delayed),
            assigned=current.assigned if is_news else None,
            endpoint_epoch=self._endpoint_epoch,
            endpoints=None if has_endpoints else self._all_endpoints(),
            missing=self._configured.missing,
        )

    def _statuses(self, member_id: str, delayed: Status | None) -> tuple[Status, ...]:
        assert self._topology is not None
        found: list[Status | None] = []
        epoch = self._members[member_id].topology_epoch
        if epoch < self._topology.epoch:
            text = (
                f"The member's topology epoch {epoch} is behind the group's topology epoch"
                f" {self._topology.epoch}."
            )
            found.append(Status(StatusCode.STALE_TOPOLOGY, text))
        found += [delayed, self._configured.status]
        if self._shut_down_by is not None:
            text = (
                f"Streams group member {self._shut_down_by} encountered a fatal error and requested"
                " a shutdown for the entire application."
            )
            found.append(Status(StatusCode.SHUTDOWN_APPLICATION, text))
        return tuple(status for status in found if status is not None)

    def _refusal(self, request: StreamsHeartbeat, owned: Partitions | None) -> StreamsReply | None:
        """Return an error if the member is unknown, or has another epoch or topology than it
        should."""
        epoch = request.member_epoch
        if epoch == JOIN:
            members_max = self._settings.members_max
            if len(self._members) >= members_max and request.member_id not in self._members:
                text = (
                    f"The streams group has reached its maximum capacity of {members_max} members."
                )
                return refuse(request, Code.GROUP_MAX_SIZE_REACHED, text)
            return self._wrong_topology(request)
        current = self._currents.get(request.member_id)
        if current is None or request.member_id not in self._members:
            text = f"Member {request.member_id} is not a member of the group."
            return refuse(request, Code.UNKNOWN_MEMBER_ID, text)
        if epoch > 0 and epoch != current.epoch:
            # The previous epoch is accepted if the member cannot have missed a revocation.
            has_lost_answer = (
                epoch == current.previous_epoch < current.epoch
                and owned is not None
                and owned <= current.assigned
            )
            if not has_lost_answer:
                text = epoch_text("streams", epoch, current.epoch)
                return refuse(request, Code.FENCED_MEMBER_EPOCH, text)
        return None

    def _wrong_topology(self, request: StreamsHeartbeat) -> StreamsReply | None:
        topology = request.topology
        assert topology is not None, "a join has a topology"
        known = self._topology
        if known is None:
            return invalid_topology(request, topology)
        if topology.epoch >= known.epoch and topology != known:
            text = "Topology updates are not supported yet."
            return refuse(request, Code.INVALID_REQUEST, text)
        return None

    def _invalid_tasks(self, request: StreamsHeartbeat) -> str | None:
        if not self._configured.is_ready:
            return None
        for part, partition in (*(request.active or ()), *(request.standby or ())):
            count = self._configured.tasks.get(part)
            if count is None:
                return f"Subtopology {part} does not exist in the topology."
            if not 0 <= partition < count:
                return (
                    f"Task {partition} for subtopology {part} is invalid. Number of tasks for this"
                    f" subtopology: {count}"
                )
        return None

    def _update_member(self, request: StreamsHeartbeat, draft: Draft) -> bool:
        """Store the member's metadata. True if the member is new or its metadata changed."""
        old = self._members.get(request.member_id)
        new = merged(request, old, rebalance_ms_max=self._settings.rebalance_ms_max)
        if new == old:
            return False
        self._put(draft, StreamsMemberKey(self.group_id, request.member_id), new)
        if old is not None and old.endpoint != new.endpoint:
            self._endpoint_epoch += 1
        return True

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────
    def _remove(self, member_id: str, draft: Draft, wall_ms: int) -> None:
        self._endpoints_changed(member_id)
        self._forget(draft, member_id)
        self._drop_deadlines(member_id)
        value = msgspec.structs.replace(
            self._value, epoch=self._value.epoch + 1, changed_at_ms=wall_ms
        )
        self._put(draft, StreamsKey(self.group_id), value)
        if not self._members:
            self._shut_down_by = None

    def tick(self, draft: Draft, *, wall_ms: int, now_ms: int) -> None:
        """Remove members whose session or revocation timed out. The next heartbeat reassigns their
        tasks."""
        while (name := self._deadlines.pop_due(now_ms)) is not None:
            self._remove(name[1], draft, wall_ms)

    # ── Assignment ───────────────────────────────────────────────────────────────────────────
    def _refresh(self, topics: Topics, draft: Draft, *, has_changed: bool, wall_ms: int) -> None:
        """Raise the group's epoch if anything an assignment depends on has changed."""
        assert self._topology is not None
        if topics.epoch != self._seen_topics:
            self._seen_topics = topics.epoch
            names = topic_names(self._topology) & topics.by_name.keys()
            self._rows = tuple((name, *topics.by_name[name]) for name in sorted(names))
            self._configured = configure(
                self._topology, {name: count for name, _, count in self._rows}
            )
            self._read = None
            self._work = None  # its tasks may no longer exist
        value = StreamsValue(
            self._value.epoch,
            self._rows,
            self._configured.is_ready,
            self.times.standbys,
            self._value.changed_at_ms,
        )
        if has_changed or value != self._value:
            value = msgspec.structs.replace(value, epoch=value.epoch + 1, changed_at_ms=wall_ms)
            self._put(draft, StreamsKey(self.group_id), value)

    def _assign_in_time(self, draft: Draft, now_ms: int) -> Status | None:
        """Assign the tasks if that is due, or return the status of a delay. The next heartbeat
        tries again."""
        if now_ms < self._assigns_from_ms:
            text = "Assignment delayed due to the configured initial rebalance delay."
            return Status(StatusCode.ASSIGNMENT_DELAYED, text)
        if self._value.epoch <= self._target_epoch:
            return None
        if self._work is not None:
            return _BEING_ASSIGNED
        assigned_at_ms = self._assigned_at_ms
        if assigned_at_ms is not None and now_ms < assigned_at_ms + self.times.assignment_ms:
            text = "Assignment delayed due to the configured assignment interval."
            return Status(StatusCode.ASSIGNMENT_DELAYED, text)
        self._assigned_at_ms = now_ms
        work = self._work = self._new_work()
        if work.is_large:
            return _BEING_ASSIGNED
        self.take_assignment(work_out(work), draft)
        return None

    def _new_work(self) -> Work:
        assert self._topology is not None
        return Work(
            self.group_id,
            self._value.epoch,
            self._configured.tasks if self._configured.is_ready else {},
            frozenset(
                part.subtopology_id for part in self._topology.subtopologies if part.changelogs
            ),
            self.times.standbys,
            tuple(
                (member_id, member.process_id, self._targets.get(member_id))
                for member_id, member in self._members.items()
            ),
        )

    @property
    def work(self) -> Work | None:
        """The assignment that is due, if the group is too large to assign it at once."""
        return self._work

    def take_assignment(self, assignment: Assignment, draft: Draft) -> None:
        """Store the new targets, unless the topics have changed since the work was begun."""
        if assignment.work is not self._work:
            return
        self._work = None
        for target in assignment.targets:
            if target.member_id in self._members:  # a member may have left since
                self._put_target(draft, target.member_id, target.tasks, target.row)
        self._put(draft, StreamsTargetKey(self.group_id), TargetValue(assignment.work.epoch))

    def _reconcile(self, member_id: str, owned: Partitions | None) -> Current:
        """Return the member's tasks after its next step towards the target."""
        return reconcile(
            self._currents.get(member_id, Current()),
            self._targets.get(member_id, frozenset()),
            target_epoch=self._target_epoch,
            owned=owned,
            is_free=lambda task: self._is_free(member_id, task),
        )

    def _arm_session(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((_SESSION, member_id), now_ms + self.times.session_ms)

    def _arm_revoke(self, member_id: str, now_ms: int) -> None:
        self._deadlines.set((_REVOKE, member_id), now_ms + self._members[member_id].rebalance_ms)

    def _drop_deadlines(self, member_id: str) -> None:
        self._deadlines.drop((_SESSION, member_id))
        self._deadlines.drop((_REVOKE, member_id))

    # ── Endpoints ────────────────────────────────────────────────────────────────────────────
    def _endpoints_changed(self, member_id: str) -> None:
        if self._members[member_id].endpoint is not None:
            self._endpoint_epoch += 1

    def _all_endpoints(self) -> tuple[Endpoint, ...]:
        assert self._topology is not None, "members come with a topology"
        if self._read is None:
            counts = self.counts
            self._read = {
                part.subtopology_id: [(name, counts.get(name, 0)) for name in read_by(part)]
                for part in self._topology.subtopologies
            }
        return tuple(
            Endpoint(*member.endpoint, self._currents[member_id].assigned, self._read)
            for member_id, member in self._members.items()
            if member.endpoint is not None and member_id in self._currents
        )

    # ── Commits ──────────────────────────────────────────────────────────────────────────────
    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Sequence[PartitionCommit] = (),
        *,
        is_transactional: bool = False,
        stale: Code,
    ) -> Code:
        """Check a commit. ``stale``: the code for a wrong epoch, which differs between plain and
        transactional commits. An older epoch is valid for tasks that the member has had since."""
        is_nobody = is_transactional and not member_id and epoch == -1
        if (epoch < 0 and not self._members) or is_nobody:
            return Code.NONE  # an operator, or a producer that is not a member
        current = self._currents.get(member_id)
        if current is None:
            return Code.UNKNOWN_MEMBER_ID
        if epoch == current.epoch:
            return Code.NONE
        if epoch > current.epoch or not partitions:
            return stale
        assert self._topology is not None, "members come with a topology"
        readers = readers_of(self._topology)
        parts = {topic_id: readers.get(name, "") for name, topic_id, _ in self._value.topics}
        since = self._since[member_id]
        for each in partitions:
            had_since = since.get((parts.get(each.topic_id, ""), each.partition))
            if had_since is None or epoch < had_since:
                return stale
        return Code.NONE
