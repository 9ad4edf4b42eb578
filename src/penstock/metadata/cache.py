"""A cache of one prefix of the store: all values, decoded, in memory, updated by a watch.

A reader never waits: reading is a dict lookup. A writer writes to the store first and then passes
the result to ``apply``, so that it sees its own change when its call returns, before the watch
reports it. The watch then reports the same change again; ``apply`` ignores it by its version, since
a value is replaced only by a newer one.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from penstock.metadata.prefix_watch import PrefixWatch
from penstock.metadata.store import Change, ChangeKind, Entry, Store, StoreUnusable
from penstock.model.errors import Throttled, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown

TRIES_MAX: Final = 32  # attempts at a change that conflicts with changes of other nodes

T = TypeVar("T")


class Cache(PrefixWatch, Generic[T]):
    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        decode: Callable[[bytes], T],
        encode: Callable[[T], bytes] = msgspec.json.encode,
        on_change: Callable[[str, T | None, T | None], None],
    ) -> None:
        """``on_change`` is called with key, old and new value after each change by any node."""
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

    async def write(self, key: str, value: T | None, *, if_version: int | None = None) -> None:
        """Put or delete (None) a value in the store, then here. Raises VersionConflict."""
        if value is None:
            version = await self._store.delete(key, if_version=if_version)
        else:
            version = await self._store.put(key, self._encode(value), if_version=if_version)
        self.apply(key, value, version=version)

    async def refresh(self, key: str) -> tuple[T | None, int]:
        """Read one value from the store, because memory may lag behind it. Returns the newest known
        value and its version, 0 if it is absent."""
        entry = await self._store.get(key)
        if entry is None:
            return None, 0
        self._apply_entry(entry)
        return self.get(key), self.version(key)

    async def update(self, key: str, change: Callable[[T | None], T | None], *, what: str) -> None:
        """Store the result of a pure function of the newest value (None: absent, or delete it).
        After a conflict the function is called again; after an unknown outcome only if the store
        does not have its result. Raises its errors, and Throttled if conflicts do not end."""
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
