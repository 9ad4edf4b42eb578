"""Server-side assignors, which assign partitions to the members of a consumer group.

``range``    assigns contiguous ranges of each topic: members that read several topics with the
             same partition count get the same partition numbers, so keys stay together.
``uniform``  spreads all partitions evenly and moves as few as possible.

Both are deterministic and do not depend on the order of their arguments."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import msgspec

from penstock.cursor.groups.records import PartitionMap

TopicPartition: TypeAlias = tuple[str, int]  # topic id, partition
Partitions: TypeAlias = frozenset[TopicPartition]
Shares: TypeAlias = dict[str, Partitions]  # by member id

# Limit of the rounds in which members with different subscriptions are balanced. Usually a few
# rounds suffice.
_ROUNDS_MAX = 16


def to_map(partitions: Iterable[TopicPartition]) -> PartitionMap:
    found: dict[str, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}


def from_map(partitions: PartitionMap) -> Partitions:
    return frozenset((t, p) for t, numbers in partitions.items() for p in numbers)


class MemberSpec(msgspec.Struct, frozen=True):
    member_id: str
    topic_ids: frozenset[str]
    current: Partitions = frozenset()
    instance_id: str | None = None


Assignor: TypeAlias = Callable[[Sequence[MemberSpec], Mapping[str, int]], Shares]


def assign_range(members: Sequence[MemberSpec], topics: Mapping[str, int]) -> Shares:
    """Assign ranges of partitions. ``topics`` maps topic ids to partition counts. Static members
    are sorted by instance id, so they keep their range when they return with another member id."""
    ordered = sorted(members, key=lambda m: (not m.instance_id, m.instance_id or "", m.member_id))
    shares: dict[str, set[TopicPartition]] = {m.member_id: set() for m in members}
    for topic_id, count in topics.items():
        readers = [m.member_id for m in ordered if topic_id in m.topic_ids]
        if not readers:
            continue
        each, rest = divmod(count, len(readers))
        start = 0
        for index, member_id in enumerate(readers):
            end = start + each + (1 if index < rest else 0)
            shares[member_id].update((topic_id, p) for p in range(start, end))
            start = end
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def assign_uniform(members: Sequence[MemberSpec], topics: Mapping[str, int]) -> Shares:
    ordered = sorted(members, key=lambda m: m.member_id)
    if not ordered:
        return {}
    shares: dict[str, set[TopicPartition]] = {}
    free = {(t, p) for m in ordered for t in m.topic_ids if t in topics for p in range(topics[t])}
    for member in ordered:
        kept = {tp for tp in member.current & free if tp[0] in member.topic_ids}
        free -= kept
        shares[member.member_id] = kept
    if all(m.topic_ids == ordered[0].topic_ids for m in ordered):
        _level(shares, free)
    else:
        _spread(ordered, shares, free)
    return {member_id: frozenset(share) for member_id, share in shares.items()}


def _level(shares: dict[str, set[TopicPartition]], free: set[TopicPartition]) -> None:
    total = len(free) + sum(len(share) for share in shares.values())
    each, rest = divmod(total, len(shares))
    # Members with more partitions get the remainder, so that fewer partitions move.
    by_size = sorted(shares, key=lambda member_id: (-len(shares[member_id]), member_id))
    quotas = {member_id: each + (1 if i < rest else 0) for i, member_id in enumerate(by_size)}
    for member_id in by_size:
        share = shares[member_id]
        surplus = len(share) - quotas[member_id]
        if surplus > 0:
            given = sorted(share)[-surplus:]
            share.difference_update(given)
            free.update(given)
    waiting = sorted(free)
    start = 0
    for member_id in sorted(shares):
        end = start + quotas[member_id] - len(shares[member_id])
        shares[member_id].update(waiting[start:end])
        start = end
    assert start == len(waiting), "the quotas must cover all partitions"


def _spread(
    members: Sequence[MemberSpec],
    shares: dict[str, set[TopicPartition]],
    free: set[TopicPartition],
) -> None:
    """Assign the free partitions if members have different subscriptions. Each free partition goes
    to its least loaded reader, then partitions move from more to less loaded readers. The result
    may not be optimal, because each single move must improve the balance."""
    readers: dict[str, list[str]] = {}
    for member in members:
        for topic_id in member.topic_ids:
            readers.setdefault(topic_id, []).append(member.member_id)
    # Assign topics with few readers first, because they leave the least choice.
    topic_ids = sorted(readers, key=lambda t: (len(readers[t]), t))
    waiting: dict[str, list[TopicPartition]] = {}
    for partition in sorted(free):
        waiting.setdefault(partition[0], []).append(partition)
    for topic_id in topic_ids:
        heap = _loads(readers[topic_id], shares)
        for partition in waiting.get(topic_id, ()):
            load, member_id = heappop(heap)
            shares[member_id].add(partition)
            heappush(heap, (load + 1, member_id))
    for _ in range(_ROUNDS_MAX):
        moved = sum(_even_out(topic_id, readers[topic_id], shares) for topic_id in topic_ids)
        if not moved:
            return


def _even_out(topic_id: str, readers: list[str], shares: dict[str, set[TopicPartition]]) -> int:
    heap = _loads(readers, shares)
    moved = 0
    for giver in sorted(readers, key=lambda member_id: (-len(shares[member_id]), member_id)):
        movable = sorted(tp for tp in shares[giver] if tp[0] == topic_id)
        while movable:
            load, taker = heap[0]
            if load != len(shares[taker]):
                heappop(heap)
                heappush(heap, (len(shares[taker]), taker))
                continue
            if len(shares[giver]) - load <= 1:
                break
            partition = movable.pop()
            shares[giver].discard(partition)
            shares[taker].add(partition)
            heappop(heap)
            heappush(heap, (load + 1, taker))
            moved += 1
    return moved


def _loads(
    readers: Iterable[str], shares: Mapping[str, set[TopicPartition]]
) -> list[tuple[int, str]]:
    heap = [(len(shares[member_id]), member_id) for member_id in readers]
    heapify(heap)
    return heap


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
ASSIGNOR_DEFAULT = "uniform"
