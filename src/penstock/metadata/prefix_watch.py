"""Following one prefix of a store: read it whole, apply the changes of the watch, and read it whole
again when the watch has missed changes.

``cache.py`` keeps decoded values for this node, ``serving/mirror.py`` raw values for other nodes;
each applies entries and changes in its own way.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import aclosing

from penstock.metadata.store import Change, Compacted, Store
from penstock.model.errors import PenstockError

RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)


class PrefixWatch(ABC):
    def __init__(self, store: Store, prefix: str) -> None:
        self.prefix = prefix
        self.revision = 0  # the last one that ``_fill`` and ``_take`` have covered
        self.trouble: str | None = None  # why memory may lag behind the store
        self.troubled_at = 0.0  # start of the trouble, by the loop's clock
        self.resync_count = 0  # times everything was read again
        self._store = store
        self._watching: asyncio.Task[None] | None = None

    @abstractmethod
    async def _fill(self) -> None:
        """Read everything and set ``revision``."""

    @abstractmethod
    def _take(self, changes: Sequence[Change]) -> None:
        """Apply changes and set ``revision``."""

    async def start(self) -> None:
        """Load everything into memory. Raises the errors of the store."""
        assert self._watching is None, "start called twice"
        await self._fill()
        self._watching = asyncio.create_task(self._follow(), name=f"watch {self.prefix}")

    async def stop(self) -> None:
        task, self._watching = self._watching, None
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
                watch = self._store.watch(self.prefix, from_revision=self.revision + 1)
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
                extra = {"prefix": self.prefix, "reason": self.trouble}
                if isinstance(error, PenstockError):
                    log.warning("metadata watch failed", extra=extra)
                else:  # an error of ``_take``: without the watch this node would get no changes
                    log.exception("metadata watch failed", extra=extra)
                await asyncio.sleep(retry_seconds)
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
