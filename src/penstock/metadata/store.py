"""The key-value port beneath all metadata: small, versioned, watchable.

The shape is etcd's, because a cluster keeps its metadata there; one machine keeps it in SQLite
behind the same calls (``sqlite.py``). Every change raises one store-wide revision. An entry's
version is the revision of its last change, so a version never comes back and "changed since I
read it" is one integer comparison. What the values mean is left to ``catalog.py`` and
``moves.py``; nobody calls a store on the path of a message.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from penstock.model.errors import PenstockError

# Both are what etcd accepts by default, so that what fits one machine also fits a cluster.
CHANGES_PER_TXN_MAX = 128
VALUE_BYTES_MAX = 512 * 1_024
KEY_BYTES_MAX = 1_024


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int  # revision of its last change
    create_revision: int  # revision at which the key came into being, this time


class ChangeKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True):
    kind: ChangeKind
    key: str
    value: bytes  # empty for a delete
    version: int  # the revision of this change


class Compacted(PenstockError):
    """A watch asked for history that is gone; the watcher lists again and goes on from there."""

    def __init__(self, oldest_revision: int) -> None:
        super().__init__(f"History before revision {oldest_revision} is no longer kept.")
        self.oldest_revision = oldest_revision


class StoreUnusable(PenstockError):
    """The store cannot be opened, or must not be trusted any longer. One line says why."""


class SingleWrites:
    """Puts and deletes of one key, for a store that has transactions."""

    @abstractmethod
    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
    ) -> int: ...

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, puts=((key, value),))

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, deletes=(key,))


class Store(Protocol):
    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str) -> tuple[Sequence[Entry], int]:
        """All entries under a prefix in key order, and the revision at which this was so."""
        ...

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        """Returns the new revision once it is durable. ``if_version``: None writes whatever is
        there, 0 only when nothing is, any other only over that version; else VersionConflict."""
        ...

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        """Returns the revision of the delete, or the present one when there was nothing."""
        ...

    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
    ) -> int:
        """All changes at one revision, or none: each compared key must be at its version (0:
        absent), else VersionConflict. A key is changed at most once."""
        ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[Sequence[Change], None]:
        """Changes under a prefix from a revision on, oldest first, those of one revision never
        split over two batches. Raises Compacted when that revision is no longer kept. Ends when
        the store is closed."""
        ...

    async def close(self) -> None: ...
