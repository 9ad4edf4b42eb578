"""One prefix of the store, whole, decoded, in memory, and kept fresh by a watch.

A reader never waits: reading is a dict lookup. A writer puts to the store first and then hands
the result to ``apply``, so that it sees its own change when its call returns and not when the
watch comes round. The watch then brings the same change again, which is known by its version and
ignored: an object is replaced only by a newer one.
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
        # Deletes of ours that the watch has yet to pass: until then their versions stay known,
        # so that an older put still on its way cannot bring the value back.
        self._deletes: dict[str, int] = {}
        self._revision = 0  # what the watch has passed
        self._following = Following(
            store, prefix, fill=self._fill, take=self._take, revision=lambda: self._revision
        )

    async def start(self) -> None:
        """Returns when the whole prefix is in memory. Raises StoreUnusable."""
        await self._following.start()

    async def stop(self) -> None:
        await self._following.stop()

    @property
    def trouble(self) -> str | None:
        """Why the memory may be behind the store, or None."""
        return self._following.trouble

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def version(self, key: str) -> int:
        """Of a value that is there; 0 otherwise."""
        return self._versions.get(key, 0) if key in self._values else 0

    def values(self) -> Collection[T]:
        return self._values.values()

    def __len__(self) -> int:
        return len(self._values)

    def apply(self, key: str, value: T | None, *, version: int) -> None:
        """Take over a change (None: a delete), unless this or a newer one is known already."""
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
        """Read one value from the store itself, after a conflict said that memory is behind."""
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
            # What we wrote behind that revision is rightly not listed.
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
