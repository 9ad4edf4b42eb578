"""Committed offsets of one group, and commits that wait for their transaction to end.

A commit inside a transaction is pending until the marker of the transaction makes it a committed
offset or drops it. A commit outside of transactions drops the pending commits for its partition,
because it was made later."""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from penstock.cursor.groups.assignors import TopicPartition
from penstock.cursor.groups.decision import Decision, Reply
from penstock.cursor.groups.records import CODEC, FenceValue, OffsetValue, PendingValue, RowKind
from penstock.cursor.groups.settings import COMMIT_METADATA_BYTES_MAX, FENCE_MS, FENCES_MAX
from penstock.cursor.tenants import PartitionUsage
from penstock.model.quotas import NO_LIMIT, OFFSET_BYTES
from penstock.wire.kafka.faults import ErrorCode

NO_OFFSET = -1
ENTRY_BYTES = 128  # approximate memory of an offset without metadata


class PartitionCommit(msgspec.Struct, frozen=True, gc=False):
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitRequest(msgspec.Struct, frozen=True):
    """A commit of offsets. ``generation`` has the member epoch in groups that use member epochs,
    and -1 if the caller is not a member."""

    partitions: tuple[PartitionCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    # True from OffsetCommit v9 on. Older clients may not commit to groups with member epochs.
    knows_epochs: bool = True


class CommitReply(Reply, frozen=True):
    partitions: tuple[tuple[str, int, ErrorCode], ...] = ()


class FetchedOffset(msgspec.Struct, frozen=True, gc=False):
    topic_id: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    code: ErrorCode = ErrorCode.NONE


class FetchReply(Reply, frozen=True):
    partitions: tuple[FetchedOffset, ...] = ()


# Shared by all groups of a coordinator: producer id → groups with its pending commits.
OpenGroups: TypeAlias = dict[int, set[str]]


class Offsets:
    def __init__(self, group_id: str, open_groups: OpenGroups, usage: PartitionUsage) -> None:
        self.group_id = group_id
        self.account = usage.account_of(group_id)
        self._usage = usage
        self._open_groups = open_groups
        # Derived from the rows in the log.
        self._committed: dict[TopicPartition, OffsetValue] = {}
        self._pending: dict[int, dict[TopicPartition, PendingValue]] = {}  # by producer
        self._unstable: dict[TopicPartition, int] = {}  # number of producers with pending commits
        self._pending_only = 0  # number of partitions with pending but no committed offsets

    def __len__(self) -> int:
        return len(self._committed) + self._pending_only

    def apply_offset(self, partition: TopicPartition, value: OffsetValue | None) -> None:
        before = self._committed.pop(partition, None)
        self._usage.add(self.account, OFFSET_BYTES, _size_of(value) - _size_of(before))
        if value is not None:
            self._committed[partition] = value
        if partition in self._unstable:
            self._pending_only += (value is None) - (before is None)

    def apply_pending(
        self, producer_id: int, partition: TopicPartition, value: PendingValue | None
    ) -> None:
        commits = self._pending.setdefault(producer_id, {})
        before = commits.pop(partition, None)
        self._usage.add(self.account, OFFSET_BYTES, _size_of(value) - _size_of(before))
        if before is not None:
            self._unstable[partition] -= 1
            if not self._unstable[partition]:
                del self._unstable[partition]
                self._pending_only -= partition not in self._committed
        if value is not None:
            commits[partition] = value
            if partition not in self._unstable:
                self._pending_only += partition not in self._committed
            self._unstable[partition] = self._unstable.get(partition, 0) + 1
            self._open_groups.setdefault(producer_id, set()).add(self.group_id)
        elif not commits:
            del self._pending[producer_id]
            groups = self._open_groups.get(producer_id, set())
            groups.discard(self.group_id)
            if not groups:
                self._open_groups.pop(producer_id, None)

    def _put(self, decision: Decision, at: TopicPartition, value: OffsetValue | None) -> None:
        decision.rows.append(CODEC.encode(RowKind.OFFSET, (self.group_id, *at), value))
        self.apply_offset(at, value)

    def _put_pending(
        self, decision: Decision, producer_id: int, at: TopicPartition, value: PendingValue | None
    ) -> None:
        key = (self.group_id, producer_id, *at)
        decision.rows.append(CODEC.encode(RowKind.PENDING, key, value))
        self.apply_pending(producer_id, at, value)

    def commit(
        self,
        request: CommitRequest,
        decision: Decision,
        entries_max: int,
        producer: tuple[int, int] | None,
    ) -> CommitReply:
        """Commit offsets, in a transaction if ``producer`` (id and epoch) is set."""
        results, bytes_max = [], self._usage.room(self.account, OFFSET_BYTES)
        for commit in request.partitions:
            partition = (commit.topic_id, commit.partition)
            code = self._refusal(commit, entries_max)
            given = (commit.offset, commit.leader_epoch, commit.metadata)
            value = OffsetValue(*given, decision.wall_ms)
            if not code and bytes_max != NO_LIMIT:
                known = self._pending.get(producer[0], {}) if producer else self._committed
                growth = _size_of(value) - _size_of(known.get(partition))
                if growth > bytes_max:
                    code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
                    self._usage.node.note_refused(self.account, OFFSET_BYTES)
                else:
                    bytes_max -= max(0, growth)
            results.append((*partition, code))
            if not code and producer is not None:
                pending = PendingValue(producer[1], value)
                self._put_pending(decision, producer[0], partition, pending)
            elif not code:
                self._put(decision, partition, value)
                self._drop_pending(decision, partition)
        return CommitReply(partitions=tuple(results))

    def _refusal(self, commit: PartitionCommit, entries_max: int) -> ErrorCode:
        # Compare the characters first, which is cheaper than encoding them.
        if len(commit.metadata) > COMMIT_METADATA_BYTES_MAX or (
            len(commit.metadata.encode()) > COMMIT_METADATA_BYTES_MAX
        ):
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        partition = (commit.topic_id, commit.partition)
        is_known = partition in self._committed or partition in self._unstable
        if len(self) >= entries_max and not is_known:
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        return ErrorCode.NONE

    def complete(self, producer_id: int, decision: Decision, *, is_commit: bool) -> None:
        for partition, pending in list(self._pending.get(producer_id, {}).items()):
            self._put_pending(decision, producer_id, partition, None)
            if is_commit:
                self._put(decision, partition, pending.offset)

    def epoch_of(self, producer_id: int) -> int:
        """Return the epoch of the producer's pending commits, or -1 if it has none."""
        commits = self._pending.get(producer_id, {})
        return max((pending.producer_epoch for pending in commits.values()), default=-1)

    def fetch(self, given: Iterable[TopicPartition] | None, *, requires_stable: bool) -> FetchReply:
        """Return the committed offsets of all partitions, or only of the ``given`` ones."""
        if given is None:
            given = sorted(self._committed.keys() | (self._unstable if requires_stable else ()))
        found = []
        for partition in given:
            value = self._committed.get(partition)
            if requires_stable and partition in self._unstable:
                each = FetchedOffset(*partition, code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
            elif value is None:
                each = FetchedOffset(*partition)
            else:
                each = FetchedOffset(*partition, value.offset, value.leader_epoch, value.metadata)
            found.append(each)
        return FetchReply(partitions=tuple(found))

    def delete(self, partition: TopicPartition, decision: Decision) -> None:
        if partition in self._committed:
            self._put(decision, partition, None)
        self._drop_pending(decision, partition)

    def _drop_pending(self, decision: Decision, partition: TopicPartition) -> None:
        if partition in self._unstable:
            for producer_id in list(self._pending):
                if partition in self._pending[producer_id]:
                    self._put_pending(decision, producer_id, partition, None)

    def erase(self, decision: Decision, topic_ids: frozenset[str] | None = None) -> None:
        """Delete all offsets, or only those of the given topics."""
        for partition in self._committed.keys() | self._unstable.keys():
            if topic_ids is None or partition[0] in topic_ids:
                self.delete(partition, decision)

    def expire(
        self, decision: Decision, *, older_than_ms: int, topics_kept: frozenset[str] = frozenset()
    ) -> None:
        """Delete old offsets, except those of ``topics_kept`` (topics that have subscribers)."""
        for partition, value in list(self._committed.items()):
            if (
                value.committed_at_ms < older_than_ms
                and partition not in self._unstable
                and partition[0] not in topics_kept
            ):
                self._put(decision, partition, None)


def _size_of(value: OffsetValue | PendingValue | None) -> int:
    if value is None:
        return 0
    metadata = value.offset.metadata if isinstance(value, PendingValue) else value.metadata
    return ENTRY_BYTES + len(metadata.encode()) if metadata else ENTRY_BYTES


class Fences:
    """The producer epoch in the last transaction marker of each producer that commits offsets in
    transactions. A commit that arrives after the marker would stay pending, so it is rejected."""

    def __init__(self) -> None:
        self._fences: dict[int, FenceValue] = {}  # oldest first

    def apply(self, producer_id: int, value: FenceValue | None) -> None:
        self._fences.pop(producer_id, None)
        if value is not None:
            self._fences[producer_id] = value

    def _put(self, decision: Decision, producer_id: int, value: FenceValue | None) -> None:
        decision.rows.append(CODEC.encode(RowKind.FENCE, (producer_id,), value))
        self.apply(producer_id, value)

    def epoch_of(self, producer_id: int) -> int:
        value = self._fences.get(producer_id)
        return -1 if value is None else value.producer_epoch

    def raise_to(self, producer_id: int, epoch: int, decision: Decision) -> None:
        self._put(decision, producer_id, FenceValue(epoch, decision.wall_ms))
        while len(self._fences) > FENCES_MAX:
            self._put(decision, next(iter(self._fences)), None)

    def expire(self, decision: Decision) -> None:
        while self._fences:
            producer_id, value = next(iter(self._fences.items()))
            if value.fenced_at_ms + FENCE_MS > decision.wall_ms:
                return
            self._put(decision, producer_id, None)
