"""The key-value interface below all metadata: small, versioned, watchable.

It follows etcd, where a cluster keeps its metadata; a single machine uses SQLite with the same
calls (``sqlite.py``). Every change raises one store-wide revision. An entry's version is the
revision of its last change, so a version is never reused, and "changed since it was read" is one
comparison of integers. No store is called on the path of a message.

An entry may have a lease, which its holder keeps alive. When the lease ends, its entries are
deleted, and watches report these deletes: so a cluster notices that a node is gone.

A change whose reply was lost may have happened. Then ``txn`` raises OutcomeUnknown and does not
retry: only the caller can find out, by reading, and knows whether a retry is safe. Every other
error of ``txn`` means that nothing was changed, except StoreUnusable, after which nothing that this
store returns can be trusted."""

from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec

from penstock.model.errors import InvalidRequest, PenstockError, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

# All limits are etcd's defaults, so that what fits a single machine also fits a cluster.
CHANGES_PER_TXN_MAX = 128  # and the same number of comparisons
VALUE_BYTES_MAX = 512 * 1_024
KEY_BYTES_MAX = 1_024
TXN_BYTES_MAX = 1_024 * 1_024  # changed keys and values; comparisons need the rest of 1.5 MiB
LEASE_TTL_MS_MAX = 3_600_000  # a dead node must not count as alive for longer

Lease = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

ID_KEY = "/store"
ID_BYTES = 12


class Entry(msgspec.Struct, frozen=True):
    key: str
    value: bytes
    version: int  # revision of the last change
    create_revision: int  # revision at which the present key was created


class ChangeKind(StrEnum):
    PUT = "put"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True):
    kind: ChangeKind
    key: str
    value: bytes  # empty for a delete
    version: int  # the revision of this change


class Txn(msgspec.Struct, frozen=True, array_like=True):
    """The changes of a transaction, also as sent to other nodes. See ``Store.txn``."""

    compare: Sequence[tuple[str, int]]
    puts: Sequence[tuple[str, bytes]] = ()
    deletes: Sequence[str] = ()
    compare_created: Sequence[tuple[str, int]] = ()
    lease: Lease = 0  # of all puts


class Compacted(PenstockError):
    """A watch requested history that is gone; the watcher must list again and continue there."""

    def __init__(self, oldest_revision: int) -> None:
        super().__init__(f"History before revision {oldest_revision} was compacted.")
        self.oldest_revision = oldest_revision


class StoreUnreachable(Unreachable):
    """The text names the address; the public text for clients does not."""

    public = "Metadata store not reachable; retry."


class StoreOutcomeUnknown(OutcomeUnknown):
    public = "Metadata store not reachable, outcome unknown; retry."


class StoreUnusable(PenstockError):
    """The store cannot be opened, or can no longer be trusted. The text is one line."""


class LeaseGone(PenstockError):
    """The lease has ended or never existed: its entries are gone or will be soon."""

    def __init__(self, lease: int) -> None:
        super().__init__(f"Lease {lease:x} has ended.")
        self.lease = lease


class Store(Protocol):
    """Base class of all stores. Any call may raise StoreUnusable, or Overloaded: retry."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        """Return all entries under a prefix in key order, and the revision of this state: at least
        ``min_revision``, and not older than anything this store has returned or reported before. An
        authoritative store (SQLite, etcd) includes every acknowledged change. Raises StoreUnusable
        if the store has not reached ``min_revision``: it has been set back."""
        ...

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        """Write a value durably and return the new revision. ``if_version``: None always writes, 0
        only if the key is absent, any other only over that version. Raises VersionConflict."""
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, puts=((key, value),))

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        """Return the revision of the delete, or the present one if the key was absent."""
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, deletes=(key,))

    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        compare_created: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
        lease: int = 0,
    ) -> int:
        """Make all changes at one revision, or none. Each compared key must have its version or its
        create revision (0: absent); otherwise VersionConflict is raised. A key is changed at most
        once. With ``lease``, all puts have that lease (raises LeaseGone if it has ended); without
        it, they have none, even if they had one before. Raises OutcomeUnknown if it is not known
        whether the change happened; it is not retried then."""
        return await self.commit(Txn(compare, puts, deletes, compare_created, lease))

    async def commit(self, txn: Txn) -> int: ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[Sequence[Change], None]:
        """Yield changes under a prefix from a revision on, oldest first; the changes of one
        revision are never split over two batches. Raises Compacted if the revision is no longer
        kept. Ends when the store is closed."""
        ...

    async def grant(self, ttl_ms: int) -> int:
        """Return a new lease that lasts at least this long. Its id is not 0 and never reused."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease and return its time in ms, which began when the store replied: count it
        from before the call. Raises LeaseGone."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease now: its entries are gone when this returns. Idempotent."""
        ...

    async def close(self) -> None: ...


def check_changes(txn: Txn) -> None:
    """Check the limits of all stores. Raises InvalidRequest."""
    keys = [*(key for key, _ in txn.puts), *txn.deletes]
    assert len(keys) == len(set(keys)), "a transaction changes each key at most once"
    compared = [key for key, _ in (*txn.compare, *txn.compare_created)]
    if len(keys) > CHANGES_PER_TXN_MAX or len(compared) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(
            f"A transaction compares and changes at most {CHANGES_PER_TXN_MAX} keys."
        )
    for key in (*keys, *compared):
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidRequest(f"A metadata key has at most {KEY_BYTES_MAX} bytes.")
    size = sum(len(key.encode()) for key in keys)
    for key, value in txn.puts:
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidRequest(f"{key}: a metadata value has at most {VALUE_BYTES_MAX} bytes.")
        size += len(value)
    if size > TXN_BYTES_MAX:
        raise InvalidRequest(f"A transaction has at most {TXN_BYTES_MAX} bytes, not {size}.")


def check_ttl(ttl_ms: int) -> None:
    """Raises InvalidRequest if the TTL is out of range."""
    if not 0 < ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequest(f"A lease TTL must be 1 to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}.")


def conflict(key: str, *, actual: int, expected: int, what: str = "at version") -> VersionConflict:
    return VersionConflict(f"{key} is {what} {actual}, not {expected}.")


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the half-open range of encoded keys that start with ``prefix``. The byte 0xFF never
    occurs in UTF-8, so it sorts after every key, and a prefix's last byte can be incremented."""
    start = prefix.encode()
    if not start:
        return b"", b"\xff"
    return start, start[:-1] + bytes((start[-1] + 1,))


async def store_id(store: Store, entropy: Callable[[int], bytes]) -> str:
    """Return the random id of a store, by which a node notices that it is served from another."""
    entry = await store.get(ID_KEY)
    if entry is None:
        drawn = urlsafe_b64encode(entropy(ID_BYTES))
        try:
            await store.put(ID_KEY, drawn, if_version=0)
            return drawn.decode()
        except VersionConflict:
            entry = await store.get(ID_KEY)
            assert entry is not None, "the store id is never deleted"
    return entry.value.decode("ascii", "replace")
