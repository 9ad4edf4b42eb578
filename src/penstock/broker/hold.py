"""What a backup asks of a broker for a while: to keep what is being copied, and to let nothing
cross from one log to another while positions are taken.

A message that crosses (a dead letter, a message moved back, the end of a transaction) is written in
one log before it is finished with in another. Positions of several nodes are never taken at one
instant, so a message could be finished with below the one and not be there yet below the other. As
long as crossings are held, the second half of none begins; what had begun before has its first half
behind it. Sends, receives and deletes go on.

Kept is what lies below those positions. Segments are not dropped; and nothing is compacted or
rewritten, for a record whose successor lies behind the position is the last one of its key there.

Both end by themselves: whoever asked may be gone. A node that runs out of disk drops what nobody
needs all the same (``partition.py``).
"""

import asyncio
from typing import Final

HOLDERS_MAX: Final = 16  # backups that begin at the same moment; more than anybody needs
CROSSINGS_MS_MAX: Final = 10_000
SEGMENTS_MS_MAX: Final = 600_000


class Hold:
    def __init__(self) -> None:
        self._segments_until_ms = 0
        self._holders: dict[str, asyncio.TimerHandle] = {}
        self._released: asyncio.Event | None = None  # None: nothing is held

    # ── What is being copied ─────────────────────────────────────────────────────────────────

    def keep_segments(self, for_ms: int, *, now_ms: int) -> None:
        """By a monotonic clock. Never shortens what was asked for before."""
        until_ms = now_ms + min(for_ms, SEGMENTS_MS_MAX)
        self._segments_until_ms = max(self._segments_until_ms, until_ms)

    def keeps_segments(self, *, now_ms: int) -> bool:
        return now_ms < self._segments_until_ms

    # ── What crosses ─────────────────────────────────────────────────────────────────────────

    async def crossing(self) -> None:
        """To be waited for before the second half."""
        if self._released is not None:
            await self._released.wait()

    def hold_crossings(self, holder: str, for_ms: int) -> bool:
        """Until ``release_crossings`` by the same holder, or the time is over. False: there are
        too many."""
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
