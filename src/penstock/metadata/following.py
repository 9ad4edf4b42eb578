"""Following one prefix of a store: read it whole, then take over what the watch brings, and read it
whole again when the watch has missed something.

``cache.py`` keeps decoded values for its own node and ``mirror.py`` raw ones for others; how each
of them takes an entry or a change over is its own affair, and this loop is the same for both.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing

from penstock.metadata.store import Change, Compacted, Store
from penstock.model.errors import PenstockError

RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)


class Following:
    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        fill: Callable[[], Awaitable[None]],
        take: Callable[[Sequence[Change]], None],
        revision: Callable[[], int],
    ) -> None:
        """``fill`` reads everything, ``take`` takes over what has changed, ``revision`` is what
        the two have passed."""
        self.trouble: str | None = None  # why memory may be behind the store
        self.troubled_at = 0.0  # by the loop's clock, since when
        self.resync_count = 0  # times everything was read again
        self._store = store
        self._prefix = prefix
        self._fill = fill
        self._take = take
        self._revision = revision
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns when everything is in memory. Raises what the store raises."""
        assert self._task is None, "a prefix is followed once"
        await self._fill()
        self._task = asyncio.create_task(self._follow(), name=f"watch {self._prefix}")

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _follow(self) -> None:
        is_behind = False
        retry_seconds = RETRY_SECONDS_MIN
        while True:
            try:
                if is_behind:
                    await self._fill()
                    is_behind, self.trouble = False, None
                    self.resync_count += 1
                watch = self._store.watch(self._prefix, from_revision=self._revision() + 1)
                async with aclosing(watch):
                    async for changes in watch:
                        self._take(changes)
                        retry_seconds = RETRY_SECONDS_MIN
                return  # the store was closed
            except Compacted:
                is_behind = True
            except Exception as error:
                if self.trouble is None:
                    self.troubled_at = asyncio.get_running_loop().time()
                is_behind, self.trouble = True, str(error) or type(error).__name__
                extra = {"prefix": self._prefix, "why": self.trouble}
                if isinstance(error, PenstockError):
                    log.warning("metadata watch failed", extra=extra)
                else:  # of whoever takes changes: without the watch this node would stand still
                    log.exception("metadata watch failed", extra=extra)
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
