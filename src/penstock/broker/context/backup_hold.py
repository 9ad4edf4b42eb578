"""What backups in progress require of a broker for a while: segments are kept, and crossings wait.

A message that crosses from one log to another (a dead letter, a message moved back, the end of a
transaction) is written in one log before it is acked in the other. The positions of several nodes
are not taken at one instant, so a message could be acked before the position of one log and missing
before that of the other. While crossings are held, none begins its second half; those that had
begun it have finished the first half. Sends, receives and deletes continue.

Everything before the positions is kept: segments are not dropped, and nothing is compacted, because
a record whose successor comes after the position is the last one of its key in the backup.

Both end by themselves, in case the client is gone. A node with a low disk drops segments anyway
(``partition.py``).
"""

import asyncio
from typing import Final

HOLDERS_MAX: Final = 16  # backups that begin at the same time
CROSSINGS_MS_MAX: Final = 10_000
SEGMENTS_MS_MAX: Final = 600_000


class BackupHold:
    def __init__(self) -> None:
        self._segments_until_ms = 0
        self._holders: dict[str, asyncio.TimerHandle] = {}
        self._released: asyncio.Event | None = None  # None: nothing is held

    # ── Segments ─────────────────────────────────────────────────────────────────────────────

    def keep_segments(self, for_ms: int, *, now_ms: int) -> None:
        """Keep segments for a time. Never shortens an earlier request."""
        until_ms = now_ms + min(for_ms, SEGMENTS_MS_MAX)
        self._segments_until_ms = max(self._segments_until_ms, until_ms)

    def keeps_segments(self, *, now_ms: int) -> bool:
        return now_ms < self._segments_until_ms

    # ── Crossings ────────────────────────────────────────────────────────────────────────────

    async def crossing(self) -> None:
        """Await this before the second half of a crossing."""
        if self._released is not None:
            await self._released.wait()

    def hold_crossings(self, holder: str, for_ms: int) -> bool:
        """Hold crossings until ``release_crossings`` by the same holder, or the time is over.
        Returns False if there are too many holders."""
        if holder not in self._holders and len(self._holders) >= HOLDERS_MAX:
            return False
        self.release_crossings(holder)
        loop = asyncio.get_running_loop()
        seconds = min(for_ms, CROSSINGS_MS_MAX) / 1_000
        self._holders[holder] = loop.call_later(seconds, self.release_crossings, holder)
        if self._released is None:
            self._released = asyncio.Event()
        return True

    def holds_crossings(self, holder: str) -> bool:
        return holder in self._holders

    def release_crossings(self, holder: str) -> None:
        timer = self._holders.pop(holder, None)
        if timer is not None:
            timer.cancel()
        if not self._holders and self._released is not None:
            self._released.set()
            self._released = None
