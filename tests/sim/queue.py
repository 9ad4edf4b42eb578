"""A queue on the node that leads it: the real cursor and deduplication table with everything that
is decided already in them, committed or not, as ``broker/leases/leases.py`` has it. Nothing is
written here: each decision returns what has to be appended, in this order, before anything else
happens."""

from collections.abc import Sequence
from typing import NamedTuple

from tests.sim.disk import MESSAGE
from tests.sim.fold import Fold

from penstock.cursor.leases.dedup import DedupTable, dedup_key
from penstock.cursor.leases.events import Event, Pick
from penstock.model.limits import DEDUP_WINDOW_MS
from penstock.model.message import Claim, Message
from penstock.model.topic import DedupScope

FOREVER_MS = 1 << 60
IN_FLIGHT_MAX = 1_000


class Trim(NamedTuple):
    """Everything before ``before`` may go once the log is committed up to ``settled_at``."""

    before: int
    settled_at: int


class Queue:
    def __init__(self, fold: Fold, dedup: DedupTable, *, is_fifo: bool) -> None:
        self.log = fold.log
        self.fold = fold
        self.cursor = fold.cursor
        self.dedup = dedup
        self.is_fifo = is_fifo

    def first_of(self, message: Message, *, wall_ms: int) -> tuple[int, bytes] | None:
        """The message that this one repeats."""
        key = dedup_key(message, DedupScope.QUEUE)
        return None if key is None else self.dedup.find(key, wall_ms=wall_ms)

    def sent(self, message: Message, offset: int, *, now_ms: int, wall_ms: int) -> None:
        self.cursor.appended(offset, 1, next_offset=offset + 1, now_ms=now_ms)
        key = dedup_key(message, DedupScope.QUEUE)
        if key is not None:
            self.dedup.remember(key, offset, message.message_id, wall_ms)

    def receive(
        self, count: int, lease_ms: int, *, high_watermark: int, now_ms: int, wall_ms: int
    ) -> tuple[list[Event], list[Pick]]:
        cursor = self.cursor
        events: list[Event] = []
        picks: list[Pick] = []
        while True:
            outcome = cursor.lease(
                count=count - len(picks),
                lease_ms=lease_ms,
                attempts_max=None,
                retention_ms=FOREVER_MS,
                queue_delay_ms=0,
                in_flight_max=IN_FLIGHT_MAX,
                now_ms=now_ms,
                wall_ms=wall_ms,
            )
            events += outcome.events
            picks += outcome.picks
            if not outcome.needs_feed or len(picks) >= count:
                return events, picks
            scan_from = cursor.scan_from
            records = self.log.messages(scan_from, high_watermark)
            cursor.feed(records, max(scan_from, high_watermark), now_ms=now_ms, wall_ms=wall_ms)

    def delete(self, claim: Claim, *, now_ms: int) -> tuple[Sequence[Event], Exception | None]:
        outcome = self.cursor.ack([claim], now_ms=now_ms)
        return outcome.events, outcome.reply[0]

    def extend(
        self, claim: Claim, lease_ms: int, *, now_ms: int
    ) -> tuple[Sequence[Event], Exception | None]:
        outcome = self.cursor.extend([(claim, lease_ms)], now_ms=now_ms)
        return outcome.events, outcome.reply[0]

    # ── Dropping ─────────────────────────────────────────────────────────────────────────────

    def finished(self, *, wall_ms: int) -> Trim:
        """What everybody is finished with. By decisions that may not be committed yet."""
        low = self.cursor.low_offset()
        return Trim(min(low, self._wanted_from(wall_ms)), self.log.end)

    def expire_before(self, before: int, *, wall_ms: int) -> tuple[Sequence[Event], Trim]:
        """Drop what is older, finished or not: retention."""
        before = min(before, self._wanted_from(wall_ms))
        head = self.cursor.head
        passed = len(self.log.messages(head, before)) if before > head else 0
        return self.cursor.trim(before, passed=passed).events, Trim(before, self.log.end + 1)

    def _wanted_from(self, wall_ms: int) -> int:
        """Of a FIFO queue, its ids of the last five minutes."""
        if self.is_fifo:
            for offset, entry in enumerate(self.log.entries, self.log.start):
                if entry.kind == MESSAGE and entry.appended_at_ms + DEDUP_WINDOW_MS > wall_ms:
                    return offset
        return self.log.end
