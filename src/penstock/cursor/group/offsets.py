"""Committed offsets of one group, and commits that wait for their transaction to end.

A commit inside a transaction is written at once but not visible: the marker of the transaction
turns it into a committed offset or drops it. A plain commit made meanwhile is the later one, so it
wins whatever the marker says: it drops the pending commits for its partition.

``check_commit`` of each kind of group decides who may commit.
"""

from collections.abc import Iterable

import msgspec

from penstock.cursor.group.assignors import TopicPartition
from penstock.cursor.group.codes import Code
from penstock.cursor.group.decision import Draft, Reply
from penstock.cursor.group.records import (
    CODEC,
    OffsetKey,
    OffsetValue,
    PendingKey,
    PendingValue,
)
from penstock.cursor.group.settings import COMMIT_METADATA_BYTES_MAX
from penstock.cursor.tenants import Held
from penstock.model.quotas import NO_LIMIT, OFFSET_BYTES

NO_OFFSET = -1
ENTRY_BYTES = 128  # approximate memory of an offset without metadata


class PartitionCommit(msgspec.Struct, frozen=True, gc=False):
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CommitRequest(msgspec.Struct, frozen=True):
    """``generation``: of a classic group, or the member's epoch in a consumer group; -1 for a
    consumer that is not a member."""

    partitions: tuple[PartitionCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    # OffsetCommit v9 and later has epochs; older clients may not commit to groups that use them.
    knows_epochs: bool = True


class CommitReply(Reply, frozen=True):
    partitions: tuple[tuple[str, int, Code], ...] = ()


class FetchedOffset(msgspec.Struct, frozen=True, gc=False):
    topic_id: str
    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = -1
    metadata: str = ""
    code: Code = Code.NONE


class FetchReply(Reply, frozen=True):
    partitions: tuple[FetchedOffset, ...] = ()


class Offsets:
    def __init__(self, group_id: str, open_groups: dict[int, set[str]], held: Held) -> None:
        """``open_groups``: producer → groups with its pending commits, shared by all groups of a
        coordinator and updated here, so that a marker finds its groups without a search. ``held``
        counts the bytes of the group's tenant."""
        self.group_id = group_id
        self._account = held.account_of(group_id)
        self._held = held
        self._open_groups = open_groups
        # The fold.
        self._committed: dict[TopicPartition, OffsetValue] = {}
        self._pending: dict[int, dict[TopicPartition, PendingValue]] = {}  # by producer
        # Derived: the number of open transactions with a commit for the partition.
        self._unstable: dict[TopicPartition, int] = {}

    def __len__(self) -> int:
        return len(self._committed) + len(self._unstable)

    @property
    def producers(self) -> tuple[int, ...]:
        """Producers with a commit that waits for a marker."""
        return tuple(self._pending)

    def view(self) -> tuple[object, ...]:
        return self._committed, self._pending, self._unstable

    # ── The fold ─────────────────────────────────────────────────────────────────────────────
    def apply_offset(self, key: OffsetKey, value: OffsetValue | None) -> None:
        partition = (key.topic_id, key.partition)
        change = _size_of(value) - _size_of(self._committed.get(partition))
        if change:
            self._held.add(self._account, OFFSET_BYTES, change)
        if value is None:
            self._committed.pop(partition, None)
        else:
            self._committed[partition] = value

    def apply_pending(self, key: PendingKey, value: PendingValue | None) -> None:
        partition = (key.topic_id, key.partition)
        commits = self._pending.setdefault(key.producer_id, {})
        before = commits.pop(partition, None)
        change = _size_of(_offset_in(value)) - _size_of(_offset_in(before))
        if change:
            self._held.add(self._account, OFFSET_BYTES, change)
        if before is not None:
            self._unstable[partition] -= 1
            if not self._unstable[partition]:
                del self._unstable[partition]
        if value is not None:
            commits[partition] = value
            self._unstable[partition] = self._unstable.get(partition, 0) + 1
            self._open_groups.setdefault(key.producer_id, set()).add(self.group_id)
        elif not commits:
            del self._pending[key.producer_id]
            self._close(key.producer_id)

    def _close(self, producer_id: int) -> None:
        groups = self._open_groups.get(producer_id)
        if groups is not None:
            groups.discard(self.group_id)
            if not groups:
                del self._open_groups[producer_id]

    def _put(self, draft: Draft, partition: TopicPartition, value: OffsetValue | None) -> None:
        key = OffsetKey(self.group_id, *partition)
        draft.rows.append(CODEC.encode(key, value))
        self.apply_offset(key, value)

    def _put_pending(
        self,
        draft: Draft,
        producer_id: int,
        partition: TopicPartition,
        value: PendingValue | None,
    ) -> None:
        key = PendingKey(self.group_id, producer_id, *partition)
        draft.rows.append(CODEC.encode(key, value))
        self.apply_pending(key, value)

    # ── Commit ───────────────────────────────────────────────────────────────────────────────
    def commit(
        self,
        request: CommitRequest,
        draft: Draft,
        *,
        wall_ms: int,
        entries_max: int,
        bytes_max: int = NO_LIMIT,
        producer: tuple[int, int] | None = None,
    ) -> CommitReply:
        """Commit offsets. ``bytes_max``: how much more the group's tenant may store. ``producer``:
        id and epoch, for a commit inside a transaction."""
        results = []
        for commit in request.partitions:
            partition = (commit.topic_id, commit.partition)
            code = self._refusal(commit, entries_max)
            value = OffsetValue(commit.offset, commit.leader_epoch, commit.metadata, wall_ms)
            if not code and bytes_max != NO_LIMIT:
                growth = _size_of(value) - self._size_at(partition, producer)
                if growth > bytes_max:
                    code = Code.INVALID_COMMIT_OFFSET_SIZE
                    self._held.note_refused(self._account, OFFSET_BYTES)
                else:
                    bytes_max -= max(0, growth)
            results.append((*partition, code))
            if code:
                continue
            if producer is not None:
                pending = PendingValue(producer[1], value)
                self._put_pending(draft, producer[0], partition, pending)
                continue
            self._put(draft, partition, value)
            if partition in self._unstable:
                for producer_id in self.producers:
                    if partition in self._pending[producer_id]:
                        self._put_pending(draft, producer_id, partition, None)
        return CommitReply(partitions=tuple(results))

    def _size_at(self, partition: TopicPartition, producer: tuple[int, int] | None) -> int:
        """Return the size of the offset that a commit replaces."""
        if producer is None:
            return _size_of(self._committed.get(partition))
        return _size_of(_offset_in(self._pending.get(producer[0], {}).get(partition)))

    def _refusal(self, commit: PartitionCommit, entries_max: int) -> Code:
        # A character is at least a byte: the cheap test first.
        if len(commit.metadata) > COMMIT_METADATA_BYTES_MAX or (
            len(commit.metadata.encode()) > COMMIT_METADATA_BYTES_MAX
        ):
            return Code.OFFSET_METADATA_TOO_LARGE
        partition = (commit.topic_id, commit.partition)
        if len(self) >= entries_max and partition not in self._committed:
            return Code.INVALID_COMMIT_OFFSET_SIZE
        return Code.NONE

    def complete(self, producer_id: int, draft: Draft, *, is_commit: bool) -> None:
        """Commit or drop the producer's pending offsets, at the end of its transaction."""
        for partition, pending in list(self._pending.get(producer_id, {}).items()):
            self._put_pending(draft, producer_id, partition, None)
            if is_commit:
                self._put(draft, partition, pending.offset)

    def epoch_of(self, producer_id: int) -> int:
        """Return the epoch of the producer's pending commits; -1: it has none."""
        commits = self._pending.get(producer_id, {})
        return max((pending.producer_epoch for pending in commits.values()), default=-1)

    # ── Fetch, delete, expire ────────────────────────────────────────────────────────────────
    def fetch(
        self, partitions: Iterable[TopicPartition] | None, *, requires_stable: bool
    ) -> FetchReply:
        """Return committed offsets (None: all); -1 and no error for partitions without a commit."""
        if partitions is None:
            wanted = self._committed.keys() | (self._unstable if requires_stable else ())
            partitions = sorted(wanted)
        found = []
        for partition in partitions:
            value = self._committed.get(partition)
            if requires_stable and partition in self._unstable:
                found.append(FetchedOffset(*partition, code=Code.UNSTABLE_OFFSET_COMMIT))
            elif value is None:
                found.append(FetchedOffset(*partition))
            else:
                found.append(
                    FetchedOffset(*partition, value.offset, value.leader_epoch, value.metadata)
                )
        return FetchReply(partitions=tuple(found))

    def delete(self, partition: TopicPartition, draft: Draft) -> None:
        if partition in self._committed:
            self._put(draft, partition, None)
        for producer_id in self.producers:
            if partition in self._pending[producer_id]:
                self._put_pending(draft, producer_id, partition, None)

    def erase(self, draft: Draft) -> None:
        for partition in list(self._committed.keys() | self._unstable.keys()):
            self.delete(partition, draft)

    def forget_topics(self, topic_ids: frozenset[str], draft: Draft) -> None:
        """Drop the offsets of deleted topics, whose ids are never used again."""
        for partition in list(self._committed.keys() | self._unstable.keys()):
            if partition[0] in topic_ids:
                self.delete(partition, draft)

    def expire(
        self, draft: Draft, *, older_than_ms: int, topics_kept: frozenset[str] = frozenset()
    ) -> None:
        """Drop offsets committed before ``older_than_ms``. ``topics_kept``: ids of topics that
        members still subscribe to."""
        for partition, value in list(self._committed.items()):
            if (
                value.committed_at_ms < older_than_ms
                and partition not in self._unstable
                and partition[0] not in topics_kept
            ):
                self._put(draft, partition, None)


def _offset_in(pending: PendingValue | None) -> OffsetValue | None:
    return None if pending is None else pending.offset


def _size_of(value: OffsetValue | None) -> int:
    if value is None:
        return 0
    return ENTRY_BYTES + len(value.metadata.encode()) if value.metadata else ENTRY_BYTES
