"""A partition in miniature for cursor tests: a list as the log, two clocks, no I/O.

It does what the broker does with a cursor: appends the events it returns (through their encoding),
feeds it when asked, and after a restart replays log or snapshot and hydrates."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
from tests.cursor_state import state_hash

from penstock.cursor.leases.events import Event, LeaseOutcome, Pick, decode, encode
from penstock.cursor.leases.fifo import open_cursor, restore_cursor
from penstock.cursor.leases.lease import LeaseCursor, RecordState
from penstock.cursor.leases.obstacles import QueueTerms
from penstock.model.limits import OFFSET_MAX
from penstock.model.message import AckReason, Claim, Message, Record
from penstock.model.topic import Obstacles

WALL = 1_700_000_000_000
DAY_MS = 86_400_000


@dataclass
class Batch:
    records: list[Record]
    at_ms: int
    delay_ms: int


@dataclass
class Shell:
    is_fifo: bool = False
    feed_max: int = 7  # small, so that tests cross the edge of the window often
    attempts_max: int | None = None
    retention_ms: int = 4 * DAY_MS
    queue_delay_ms: int = 0
    in_flight_max: int = 120_000
    wants: Callable[[Record], bool] | None = None
    until: int = OFFSET_MAX
    now_ms: int = 1_000
    wall_skew_ms: int = WALL
    log: list[Batch | tuple[int, int, bytes, int]] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)
    offsets: list[int] = field(default_factory=list)  # of the records, ascending
    end: int = 0

    def __post_init__(self) -> None:
        self.become(open_cursor(is_fifo=self.is_fifo))

    def become(self, cursor: LeaseCursor) -> None:
        self.cursor = cursor
        cursor.wants, cursor.until = self.wants, self.until

    @property
    def wall_ms(self) -> int:
        return self.now_ms + self.wall_skew_ms

    def send(
        self,
        count: int = 1,
        *,
        group: str | None = None,
        delay_ms: int | None = None,
        sent_at_ms: int | None = None,
    ) -> list[int]:
        message = Message(b"m" * 16, b"body", group=group, delay_ms=delay_ms, sent_at_ms=sent_at_ms)
        records = [Record(self.end + i, self.wall_ms, message) for i in range(count)]
        batch = Batch(records, self.now_ms, self.queue_delay_ms if self.is_fifo else delay_ms or 0)
        self.log.append(batch)
        self.records.update((r.offset, r) for r in records)
        self.offsets += [r.offset for r in records]
        self.end += count
        self._tell(batch)
        return [r.offset for r in records]

    def _tell(self, batch: Batch) -> None:
        self.cursor.appended(
            batch.records[0].offset,
            len(batch.records),
            next_offset=batch.records[-1].offset + 1,
            delays=[(r.offset, batch.delay_ms) for r in batch.records] if batch.delay_ms else (),
            appended_at_ms=batch.records[0].appended_at_ms,
            now_ms=self.now_ms,
            elapsed_ms=self.now_ms - batch.at_ms,
        )

    def write(self, events: Sequence[Event]) -> None:
        for event in events:
            number, data = encode(event)
            self.log.append((self.end, number, data, self.now_ms))
            self.end += 1

    def lease(
        self, count: int = 1, lease_ms: int = 30_000, attempt_id: str | None = None
    ) -> LeaseOutcome:
        """One receive, fed as long as the cursor asks for it."""
        dead: list[Pick] = []
        expired = 0
        while True:
            outcome = self.cursor.lease(
                count=count,
                lease_ms=lease_ms,
                attempts_max=self.attempts_max,
                retention_ms=self.retention_ms,
                queue_delay_ms=self.queue_delay_ms,
                in_flight_max=self.in_flight_max,
                attempt_id=attempt_id,
                now_ms=self.now_ms,
                wall_ms=self.wall_ms,
            )
            self.write(outcome.events)
            dead += outcome.dead
            expired += outcome.expired
            if not outcome.needs_feed:
                break
            assert not outcome.picks
            self.feed()
        for pick in outcome.picks:
            assert pick.record is None or pick.record is self.records[pick.offset]
        return msgspec.structs.replace(outcome, dead=tuple(dead), expired=expired)

    def take(self, count: int = 1, lease_ms: int = 30_000) -> list[int]:
        return [pick.offset for pick in self.lease(count, lease_ms).picks]

    def feed(self) -> bool:
        start = self.cursor.scan_from
        at = bisect_left(self.offsets, start)
        offsets = self.offsets[at : at + self.feed_max]
        chunk = [self.records[o] for o in offsets]
        next_offset = chunk[-1].offset + 1 if chunk else self.end
        self.cursor.feed(chunk, next_offset, now_ms=self.now_ms, wall_ms=self.wall_ms)
        return bool(chunk)

    def ack(self, *claims: Claim, reason: AckReason = AckReason.ACKED) -> list[Exception | None]:
        outcome = self.cursor.ack(claims, now_ms=self.now_ms, reason=reason)
        self.write(outcome.events)
        return list(outcome.reply)

    def extend(self, claim: Claim, lease_ms: int) -> Exception | None:
        outcome = self.cursor.extend([(claim, lease_ms)], now_ms=self.now_ms)
        self.write(outcome.events)
        return outcome.reply[0]

    def purge(self) -> None:
        self.write(self.cursor.purge(end_offset=self.end).events)

    def begin_again(self, start: int) -> None:
        backlog = sum(start <= offset < self.until for offset in self.records)
        self.write(self.cursor.start(start, backlog=backlog).events)

    def trim(self, start: int) -> None:
        head = self.cursor.head
        passed = sum(head <= offset < min(start, self.until) for offset in self.records)
        self.write(self.cursor.trim(start, passed=passed).events)

    def pass_unwanted(self) -> None:
        outcome = self.cursor.pass_unwanted(now_ms=self.now_ms, wall_ms=self.wall_ms)
        self.write(outcome.events)

    def expire(self) -> int:
        expired = 0
        while True:
            outcome = self.cursor.expire(
                retention_ms=self.retention_ms, now_ms=self.now_ms, wall_ms=self.wall_ms
            )
            self.write(outcome.events)
            expired += outcome.reply
            if not (self.cursor.wants_feed and self.feed()) and not outcome.reply:
                return expired

    def counts(self) -> tuple[int, int, int]:
        stats = self.cursor.stats(now_ms=self.now_ms, queue_delay_ms=self.queue_delay_ms)
        return stats.visible, stats.in_flight, stats.delayed

    def see(self, offset: int) -> RecordState | None:
        return self.cursor.state_of(
            self.records[offset],
            now_ms=self.now_ms,
            wall_ms=self.wall_ms,
            queue_delay_ms=self.queue_delay_ms,
        )

    def survey(self) -> Obstacles:
        """Of all that the window has room for."""
        while self.cursor.wants_feed and self.feed():
            pass
        terms = QueueTerms(
            partition=0,
            attempts_max=self.attempts_max,
            retention_ms=self.retention_ms,
            queue_delay_ms=self.queue_delay_ms,
            now_ms=self.now_ms,
            wall_ms=self.wall_ms,
        )
        steps = self.cursor.find_obstacles(terms)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return cast(Obstacles, end.value)

    def replay(self, cursor: LeaseCursor, start: int = 0) -> None:
        """Become a process that knows only the log from entry ``start`` on and ``cursor``."""
        self.become(cursor)
        for item in self.log[start:]:
            if isinstance(item, Batch):
                self._tell(item)
            else:
                offset, number, data, at_ms = item
                elapsed_ms = self.now_ms - at_ms
                event = decode(number, data)
                cursor.apply(event, offset=offset, now_ms=self.now_ms, elapsed_ms=elapsed_ms)

    def hydrate(self) -> None:
        offsets = self.cursor.unhydrated()
        for at in range(0, len(offsets), 3):
            chunk = [self.records[o] for o in offsets[at : at + 3]]
            self.cursor.hydrate(chunk, now_ms=self.now_ms, wall_ms=self.wall_ms)

    def restart(self) -> None:
        """From the log alone."""
        before = state_hash(self.cursor)
        self.replay(open_cursor(is_fifo=self.is_fifo))
        assert state_hash(self.cursor) == before
        self.hydrate()

    def snapshot(self) -> tuple[bytes, int, int]:
        return self.cursor.snapshot(now_ms=self.now_ms), len(self.log), self.now_ms

    def restart_from(self, saved: tuple[bytes, int, int]) -> None:
        data, start, at_ms = saved
        before = state_hash(self.cursor)
        cursor = restore_cursor(data, now_ms=self.now_ms, elapsed_ms=self.now_ms - at_ms)
        self.replay(cursor, start)
        assert state_hash(self.cursor) == before
        self.hydrate()


def claim_of(pick: Pick) -> Claim:
    return Claim(0, pick.offset, pick.lease_seq)
