"""A cache of one prefix of the store: all values, decoded, in memory, updated by a watch.

A reader never waits: reading is a dict lookup. A writer writes to the store first and then passes
the result to ``apply``, so that it sees its own change when its call returns, before the watch
reports it. The watch then reports the same change again; ``apply`` ignores it by its version, since
a value is replaced only by a newer one.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

import msgspec

from penstock.metadata.following import Following
from penstock.metadata.store import Change, ChangeKind, Entry, Store, StoreUnusable

T = TypeVar("T")


class Cache(Generic[T]):
    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        decode: Callable[[bytes], T],
        on_change: Callable[[str, T | None, T | None], None],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._decode = decode
        self._on_change = on_change
        self._values: dict[str, T] = {}
        self._versions: dict[str, int] = {}
        # Deletes by this node that the watch has not reported yet: their versions are kept until
        # then, so that an older put that arrives late cannot bring the value back.
        self._deletes: dict[str, int] = {}
        self._revision = 0  # the last one that the watch has reported
        self._following = Following(
            store, prefix, fill=self._fill, take=self._take, revision=lambda: self._revision
        )

    async def start(self) -> None:
        """Load the whole prefix into memory. Raises StoreUnusable."""
        await self._following.start()

    async def stop(self) -> None:
        await self._following.stop()

    @property
    def trouble(self) -> str | None:
        """Why memory may lag behind the store, or None."""
        return self._following.trouble

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def version(self, key: str) -> int:
        """Return the version of an existing value, otherwise 0."""
        return self._versions.get(key, 0) if key in self._values else 0

    def values(self) -> Collection[T]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)

    def apply(self, key: str, value: T | None, *, version: int) -> None:
        """Apply a change (None: a delete), unless this or a newer one is known."""
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

    async def refresh(self, key: str) -> T | None:
        """Read one value from the store, after a conflict showed that memory lags behind it."""
        entry = await self._store.get(key)
        if entry is None:
            return None
        self._apply_entry(entry)
        return self._values.get(key)

    async def _fill(self) -> None:
        entries, revision = await self._store.list(self._prefix)
        listed = {entry.key for entry in entries}
        for entry in entries:
            self._apply_entry(entry)
        for key in [key for key in self._values if key not in listed]:
            # Values that this node wrote after that revision are not listed.
            if self._versions[key] < revision:
                self.apply(key, None, version=revision)
        self._pass(revision)

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._apply_change(change)
        self._pass(changes[-1].version)

    def _apply_entry(self, entry: Entry) -> None:
        if entry.version > self._versions.get(entry.key, 0):
            self.apply(entry.key, self._decoded(entry.key, entry.value), version=entry.version)

    def _apply_change(self, change: Change) -> None:
        if change.version <= self._versions.get(change.key, 0):
            return
        is_put = change.kind is ChangeKind.PUT
        value = self._decoded(change.key, change.value) if is_put else None
        self.apply(change.key, value, version=change.version)

    def _decoded(self, key: str, value: bytes) -> T:
        try:
            return self._decode(value)
        except (msgspec.DecodeError, ValueError) as exc:
            raise StoreUnusable(f"metadata entry {key} cannot be read: {exc}") from exc

    def _pass(self, revision: int) -> None:
        self._revision = max(self._revision, revision)
        for key, version in list(self._deletes.items()):
            if version <= self._revision:
                del self._deletes[key]
                if key not in self._values:
                    self._versions.pop(key, None)
