"""Counts of the messages of one partition that are not delivered, by reason.

A queue may have hundreds of thousands of messages in flight, so the search is a generator that
yields after every few hundred; messages that change meanwhile are counted as they are when the
search reaches them. Messages that the cursor has not read yet are not counted."""

from collections.abc import Generator, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from penstock.cursor.leases.parts import DELAYED, LEASED, Entry, is_dead
from penstock.model.topic import GroupLock, Obstacles, worst_locks

AT_ONCE: Final = 500  # records counted between two yields, about half a millisecond

ObstacleSearch = Generator[None, None, Obstacles]


class QueueTerms(NamedTuple):
    partition: int
    attempts_max: int | None
    retention_ms: int
    queue_delay_ms: int
    now_ms: int  # monotonic
    wall_ms: int


class ObstacleCounter:
    """Counts the records of a partition, which must be added in ascending order of offsets."""

    def __init__(self, terms: QueueTerms, *, is_fifo: bool, delay_ends_ms: int | None) -> None:
        self._terms = terms
        self._is_fifo = is_fifo
        self._expired_at_ms = terms.wall_ms - terms.retention_ms
        self._locks: dict[str, tuple[int, int]] = {}  # group → offset in flight, end of its lease
        self._waiting: dict[str, int] = {}  # group → number of messages after the one in flight
        self.available = self.blocked = self.exhausted = self.expired = 0
        self.lease_ends_ms: int | None = None
        self.delay_ends_ms = delay_ends_ms

    def add_all(self, table: Mapping[int, Entry]) -> Iterator[None]:
        following = iter(list(table))  # a copy, since the table may change at each yield
        while some := list(islice(following, AT_ONCE)):
            for offset in some:
                entry = table.get(offset)
                if entry is not None:
                    self._add_entry(offset, entry)
            yield None

    def _add_entry(self, offset: int, entry: Entry) -> None:
        if entry.state == LEASED:
            if self.lease_ends_ms is None or entry.until_ms < self.lease_ends_ms:
                self.lease_ends_ms = entry.until_ms
            if self._is_fifo and entry.group is not None:
                self._locks.setdefault(entry.group, (offset, entry.until_ms))
        elif entry.state == DELAYED:
            if self.delay_ends_ms is None or entry.until_ms < self.delay_ends_ms:
                self.delay_ends_ms = entry.until_ms
        else:
            self.add_free(entry.group, entry.sent_at_ms, entry.attempts)

    def add_free(self, group: str | None, sent_at_ms: int, attempts: int = 0) -> None:
        """Count a record that is neither in flight nor delayed."""
        if group is not None and group in self._locks:
            self.blocked += 1
            self._waiting[group] = self._waiting.get(group, 0) + 1
        elif sent_at_ms <= self._expired_at_ms:
            self.expired += 1
        elif is_dead(attempts, self._terms.attempts_max):
            self.exhausted += 1
        else:
            self.available += 1

    def result(self) -> ObstacleSearch:
        partition, ahead_ms = self._terms.partition, self._terms.wall_ms - self._terms.now_ms
        worst: list[GroupLock] = []
        waiting = iter(self._waiting.items())
        while some := list(islice(waiting, AT_ONCE)):
            for group, blocked in some:
                offset, until_ms = self._locks[group]
                worst.append(GroupLock(partition, group, offset, until_ms + ahead_ms, blocked))
            worst = worst_locks(worst)
            yield None
        return Obstacles(
            available=self.available,
            blocked=self.blocked,
            locked_groups=len(self._waiting),
            locks=worst,
            exhausted=self.exhausted,
            expired=self.expired,
            lease_ends_ms=None if self.lease_ends_ms is None else self.lease_ends_ms + ahead_ms,
            delay_ends_ms=None if self.delay_ends_ms is None else self.delay_ends_ms + ahead_ms,
        )
