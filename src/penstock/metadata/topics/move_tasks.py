"""Tasks that move dead letters back, and producer ids.

Tasks are in the store, so that a restarted broker continues running ones, and an operator can see
the last ones that ended; the broker performs them. One entry per task under ``/moves/{task_id}``,
the newest hundred of each source, all in memory because ``Backend.moves`` replies at once."""

import asyncio
from collections.abc import Sequence

import msgspec

from penstock.metadata.cache import Cache
from penstock.metadata.store import Store
from penstock.model.errors import VersionConflict
from penstock.model.ports import MoveTask

MOVES_PREFIX = "/moves/"
MOVES_PER_SOURCE_MAX = 100
PRODUCER_IDS_KEY = "/producer-ids"
PRODUCER_IDS_BLOCK = 1_000
UNFINISHED = frozenset({"RUNNING", "CANCELLING"})

_decode = msgspec.json.Decoder(MoveTask).decode


def move_key(task_id: str) -> str:
    return f"{MOVES_PREFIX}{task_id}"


class MoveTasks:
    def __init__(self, store: Store, *, per_source_max: int = MOVES_PER_SOURCE_MAX) -> None:
        self._per_source_max = per_source_max
        self._by_source: dict[str, dict[str, MoveTask]] = {}
        self._tasks = Cache(store, MOVES_PREFIX, decode=_decode, on_change=self._on_change)
        self.start, self.stop = self._tasks.start, self._tasks.stop

    def get(self, task_id: str) -> MoveTask | None:
        return self._tasks.get(move_key(task_id))

    def list(self, source_arn: str) -> Sequence[MoveTask]:
        """Return the tasks of a source, newest first, including ended ones."""
        tasks = self._by_source.get(source_arn, {})
        return sorted(tasks.values(), key=lambda task: (-task.started_at_ms, task.task_id))

    def unfinished(self) -> Sequence[MoveTask]:
        """Return the tasks that a starting broker must continue."""
        return [task for task in self._tasks.values() if task.status in UNFINISHED]

    async def put(self, task: MoveTask) -> None:
        """Store a task; above the bound, the oldest ended tasks of its source are deleted."""
        await self._tasks.write(move_key(task.task_id), task)
        for old in self.list(task.source_arn)[self._per_source_max :]:
            if old.status not in UNFINISHED:
                await self.delete(old.task_id)

    async def delete(self, task_id: str) -> None:
        await self._tasks.write(move_key(task_id), None)

    def _on_change(self, _key: str, before: MoveTask | None, after: MoveTask | None) -> None:
        if before is not None:
            tasks = self._by_source[before.source_arn]
            del tasks[before.task_id]
            if not tasks:
                del self._by_source[before.source_arn]
        if after is not None:
            self._by_source.setdefault(after.source_arn, {})[after.task_id] = after


class StoredProducerIds:
    """Unique ids: blocks are reserved in the store and handed out from memory. A restart loses the
    rest of its block; ids are plentiful."""

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
        entry = await self._store.get(PRODUCER_IDS_KEY)
        start = 0 if entry is None else int(entry.value)
        try:
            await self._store.put(
                PRODUCER_IDS_KEY,
                str(start + PRODUCER_IDS_BLOCK).encode(),
                if_version=0 if entry is None else entry.version,
            )
        except VersionConflict:
            return  # another node has reserved this block: retry
        self._next, self._end = start, start + PRODUCER_IDS_BLOCK
