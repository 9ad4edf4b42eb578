"""In-memory copies of the store's entries with one key prefix, updated by a watch.

A reader never waits: reading is a dict lookup. A writer writes to the store first and then passes
the result to ``Cache.apply``, so that it sees its own change when its call returns. When the watch
reports the same change later, ``apply`` ignores it, because the version in memory is not older."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any, Final, Generic, TypeVar

import msgspec

from penstock.metadata.store import Change, ChangeKind, Compacted, Entry, Store, StoreUnusable
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown

RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 5.0

log = logging.getLogger(__name__)

G = TypeVar("G")
K = TypeVar("K")
T = TypeVar("T")


async def abandon(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended. Their results and errors are ignored."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.gather(*running, return_exceptions=True)


class PrefixWatch(ABC):
    """Keeps a copy of all entries with one prefix: reads them, applies the changes that the watch
    reports, and reads all entries again if the watch has missed changes. The subclass ``Cache``
    keeps decoded values for this node; ``serving/mirror.py`` keeps raw values for other nodes."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.prefix = prefix
        self.revision = 0  # the store revision up to which the copy is complete
        self.trouble: str | None = None  # why memory may lag behind the store
        self.troubled_at = 0.0  # start of the trouble, by the loop's clock
        self.resync_count = 0  # how many times all entries were read again
        self._store = store
        self._watching: asyncio.Task[None] | None = None

    @abstractmethod
    async def _fill(self) -> None:
        """Read all entries from the store into the copy, and set ``revision``."""

    @abstractmethod
    def _take(self, changes: Sequence[Change]) -> None:
        """Apply changes to the copy, and set ``revision``."""

    async def start(self) -> None:
        """Load all entries into memory and begin to watch."""
        assert self._watching is None, "start was called twice"
        await self._fill()
        self._watching = asyncio.create_task(self._follow(), name=f"watch {self.prefix}")

    async def stop(self) -> None:
        task, self._watching = self._watching, None
        await abandon(task)

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


class WatchGroup:
    """Several watched prefixes, started in the given order and stopped in the reverse order."""

    def __init__(self, *watches: PrefixWatch) -> None:
        self._watches = watches

    async def start(self) -> None:
        try:
            for watch in self._watches:
                await watch.start()
        except BaseException:
            await WatchGroup.stop(self)  # subclasses extend ``stop``
            raise

    async def stop(self) -> None:
        for watch in reversed(self._watches):
            await watch.stop()

    @property
    def trouble(self) -> str | None:
        return next((watch.trouble for watch in self._watches if watch.trouble), None)


def put_in(groups: dict[G, dict[K, T]], group: G, key: K, value: T | None) -> None:
    """Set ``groups[group][key]``, or delete it if the value is None. An empty group is deleted."""
    if value is not None:
        groups.setdefault(group, {})[key] = value
        return
    del groups[group][key]
    if not groups[group]:
        del groups[group]


TRIES_MAX: Final = 32  # attempts at a change that conflicts with changes of other nodes


class Cache(PrefixWatch, Generic[T]):
    """The decoded values of all entries under a prefix, in memory."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes] = msgspec.json.encode,
        on_change: Callable[[str, T | None, T | None], None],  # called with key, old and new value
    ) -> None:
        super().__init__(store, prefix)
        self._decode = decode
        self._encode = encode
        self._on_change = on_change
        self._values: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        # Deletes by this node that the watch has not reported yet: their versions are kept until
        # then, so that an older put that arrives late cannot bring the value back.
        self._deletes: dict[str, int] = {}

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def version(self, key: str) -> int:
        return self._versions.get(key, 0) if key in self._values else 0

    def values(self) -> Collection[T]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)

    def apply(self, key: str, value: T | None, *, version: int) -> None:
        """Set a value in memory, unless memory has a newer version. None deletes the entry."""
        if version <= self._versions.get(key, 0):
            return
        before = self._values.get(key)
        self._versions[key] = version
        if value is None:
            self._deletes[key] = version
            self._values.pop(key, None)
        else:
            self._values[key] = value
        if before is not None or value is not None:
            self._on_change(key, before, value)

    async def write(self, key: str, value: T | None, *, if_version: int | None = None) -> None:
        """Write a value to the store and then to memory. The value None deletes the entry."""
        if value is None:
            version = await self._store.delete(key, if_version=if_version)
        else:
            version = await self._store.put(key, self._encode(value), if_version=if_version)
        self.apply(key, value, version=version)

    async def refresh(self, key: str) -> tuple[T | None, int]:
        """Read a value from the store into memory. Returns it and its version, or (None, 0)."""
        entry = await self._store.get(key)
        if entry is None:
            return None, 0
        self._apply_entry(entry)
        return self.get(key), self.version(key)

    async def update(self, key: str, change: Callable[[T | None], T | None], *, what: str) -> None:
        """Replace a value by ``change(value)``. ``change`` gets None if the entry does not exist,
        and returns None to delete it. After a conflict with another node, ``change`` is called
        again with the new value; after too many conflicts Throttled is raised."""
        before, version = self.get(key), self.version(key)
        for _ in range(TRIES_MAX):
            after = change(before)
            if after == before:
                return
            try:
                await self.write(key, after, if_version=version)
                return
            except VersionConflict:
                before, version = await self.refresh(key)
            except OutcomeUnknown:
                before, version = await self.refresh(key)
                if after == before:
                    return
        raise Throttled(f"{what} is being changed by another request; retry.")

    async def _fill(self) -> None:
        entries, revision = await self._store.list(self.prefix)
        listed = {entry.key for entry in entries}
        for entry in entries:
            self._apply_entry(entry)
        for key in [key for key in self._values if key not in listed]:
            # Values that this node wrote after that revision are not listed.
            if self._versions[key] < revision:
                self.apply(key, None, version=revision)
        self._advance(revision)

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.version > self._versions.get(change.key, 0):
                is_put = change.kind is ChangeKind.PUT
                value = self._decoded(change.key, change.value) if is_put else None
                self.apply(change.key, value, version=change.version)
        self._advance(changes[-1].version)

    def _apply_entry(self, entry: Entry) -> None:
        if entry.version > self._versions.get(entry.key, 0):
            self.apply(entry.key, self._decoded(entry.key, entry.value), version=entry.version)

    def _decoded(self, key: str, value: bytes) -> T:
        try:
            return self._decode(value)
        except (msgspec.DecodeError, ValueError) as exc:
            raise StoreUnusable(f"metadata entry {key} cannot be read: {exc}") from exc

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        for key, version in list(self._deletes.items()):
            if version <= self.revision:
                del self._deletes[key]
                if key not in self._values:
                    self._versions.pop(key, None)


async def write_all(
    store: Store, compare: Sequence[tuple[str, int]], writes: Sequence[tuple[Cache[Any], str, Any]]
) -> None:
    """Write values to the store in one transaction, and then to their caches. ``compare`` has the
    expected versions of keys. In ``writes``, the value None deletes an entry."""
    version = await store.txn(
        compare=compare,
        puts=[(key, cache._encode(value)) for cache, key, value in writes if value is not None],
        deletes=[key for _, key, value in writes if value is None],
    )
    for cache, key, value in writes:
        cache.apply(key, value, version=version)
