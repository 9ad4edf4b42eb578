"""Unique producer ids: blocks of ids are reserved in the store and handed out from memory. A
restart loses the rest of its block; ids are plentiful."""

import asyncio

from penstock.metadata.store import Store
from penstock.model.errors import VersionConflict

KEY = "/producer-ids"
BLOCK = 1_000


class StoredProducerIds:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        async with self._lock:
            while self._next == self._end:
                await self._reserve()
            self._next += 1
            return self._next - 1

    async def _reserve(self) -> None:
        entry = await self._store.get(KEY)
        start = 0 if entry is None else int(entry.value)
        try:
            await self._store.put(
                KEY, str(start + BLOCK).encode(), if_version=0 if entry is None else entry.version
            )
        except VersionConflict:
            return  # another node has reserved this block: retry
        self._next, self._end = start, start + BLOCK
