"""The key-value port beneath all metadata: small, versioned, watchable.

The shape is etcd's, because a cluster keeps its metadata there; one machine keeps it in SQLite
behind the same calls (``sqlite.py``). Every change raises one store-wide revision. An entry's
version is the revision of its last change, so a version never comes back and "changed since I
read it" is one integer comparison. What the values mean is left to ``catalog.py`` and
``moves.py``; nobody calls a store on the path of a message.

An entry may hang on a lease: whoever took the lease keeps it alive, and when that ends the entries
go, as deletes that watches tell of like any other. That is how a cluster notices that a node is no
longer there.

A change whose answer got lost may have happened. Then ``txn`` raises OutcomeUnknown and leaves it
at that: only the caller can tell, by reading, and only the caller knows whether to ask again. Every
other error of ``txn`` means that nothing was changed, but StoreUnusable, after which nothing that
this store says is to be trusted.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from penstock.model.errors import InvalidRequest, PenstockError, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

# All are what etcd accepts by default, so that what fits one machine also fits a cluster.
CHANGES_PER_TXN_MAX = 128  # and as many comparisons
VALUE_BYTES_MAX = 512 * 1_024
KEY_BYTES_MAX = 1_024
TXN_BYTES_MAX = 1_024 * 1_024  # changed keys and values; the rest of its 1.5 MiB is comparisons
LEASE_TTL_MS_MAX = 3_600_000  # nobody should be believed alive for longer than an operator waits


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


class StoreUnreachable(Unreachable):
    """The text names the address; clients are told without it."""

    public = "Metadata store not reachable; retry."


class StoreOutcomeUnknown(OutcomeUnknown):
    public = "Metadata store not reachable, outcome unknown; retry."


class StoreUnusable(PenstockError):
    """The store cannot be opened, or must not be trusted any longer. One line says why."""


class LeaseGone(PenstockError):
    """The lease has ended or never was: what hung on it is gone or about to go."""

    def __init__(self, lease: int) -> None:
        super().__init__(f"Lease {lease:x} has ended.")
        self.lease = lease


class SingleWrites:
    """Puts and deletes of one key, for a store that has transactions."""

    @abstractmethod
    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        compare_created: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
        lease: int = 0,
    ) -> int: ...

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, puts=((key, value),))

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, deletes=(key,))


class Store(Protocol):
    """Beside what each call says, any of them raises StoreUnusable, or an Overloaded when asking
    later may help."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        """All entries under a prefix in key order, and the revision at which this was so: at
        least ``min_revision``, and not older than anything this store has answered or told
        before. A store that is the truth itself (SQLite, etcd) knows every change that was
        answered to anybody. One that does not even know ``min_revision`` has been set back:
        StoreUnusable."""
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
        compare_created: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
        lease: int = 0,
    ) -> int:
        """All changes at one revision, or none: each compared key must be at its version (0:
        absent) or have come into being at its create revision (0: absent), else VersionConflict.
        A key is changed at most once. With ``lease`` all puts hang on it (LeaseGone if it has
        ended), without they hang on none, whatever was before. Raises OutcomeUnknown when nobody
        knows whether it happened; it is not tried again then."""
        ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[Sequence[Change], None]:
        """Changes under a prefix from a revision on, oldest first, those of one revision never
        split over two batches. Raises Compacted when that revision is no longer kept. Ends when
        the store is closed."""
        ...

    async def grant(self, ttl_ms: int) -> int:
        """A new lease, for at least so long. Its number is not 0 and never given again."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Starts its time anew and returns it in ms, as it was when the store answered: count it
        from before the call. Raises LeaseGone."""
        ...

    async def revoke(self, lease: int) -> None:
        """Ends it now: what hangs on it is gone when this returns. Nothing if it had ended."""
        ...

    async def close(self) -> None: ...


def check_changes(
    *,
    compare: Sequence[tuple[str, int]],
    compare_created: Sequence[tuple[str, int]],
    puts: Sequence[tuple[str, bytes]],
    deletes: Sequence[str],
) -> None:
    """What every store refuses alike. Raises InvalidRequest."""
    keys = [*(key for key, _ in puts), *deletes]
    assert len(keys) == len(set(keys)), "a key changes once in a transaction"
    compared = [key for key, _ in (*compare, *compare_created)]
    if len(keys) > CHANGES_PER_TXN_MAX or len(compared) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(
            f"A transaction compares and changes at most {CHANGES_PER_TXN_MAX} keys."
        )
    for key in (*keys, *compared):
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidRequest(f"A metadata key has at most {KEY_BYTES_MAX} bytes.")
    size = sum(len(key.encode()) for key in keys)
    for key, value in puts:
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidRequest(f"{key}: a metadata value has at most {VALUE_BYTES_MAX} bytes.")
        size += len(value)
    if size > TXN_BYTES_MAX:
        raise InvalidRequest(f"A transaction has at most {TXN_BYTES_MAX} bytes.")


def check_ttl(ttl_ms: int) -> None:
    """Raises InvalidRequest."""
    if not 0 < ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequest(f"A lease lasts from 1 to {LEASE_TTL_MS_MAX} ms.")


def conflict(key: str, *, actual: int, expected: int, what: str = "at version") -> VersionConflict:
    return VersionConflict(f"{key} is {what} {actual}, not {expected}.")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """The half-open range of encoded keys that start with ``prefix``. The byte 0xFF never occurs
    in UTF-8, so it lies behind every key, and the last byte of a prefix can always be raised."""
    start = prefix.encode()
    if not start:
        return b"", b"\xff"
    return start, start[:-1] + bytes((start[-1] + 1,))
