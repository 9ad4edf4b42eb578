"""The interface of the key-value stores that contain all metadata.

The interface follows etcd, where a cluster keeps its metadata; a single machine uses SQLite
(``sqlite.py``). Every change increments one revision number of the whole store. An entry's version
is the revision of its last change, so a version is never reused. Sending and receiving messages
does not call the store.

An entry may have a lease, which its holder keeps alive. When the lease ends, its entries are
deleted, and watches report these deletes. This is how a cluster detects that a node is dead.

A change whose reply was lost may have happened. Then ``txn`` raises OutcomeUnknown and does not
retry, because only the caller knows whether a retry is safe. After any other error except
StoreUnusable, nothing was changed."""

from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec

from penstock.model.errors import InvalidRequest, PenstockError, VersionConflict
from penstock.wire.internal.faults import OutcomeUnknown, Unreachable

# All limits are etcd's defaults, so that what fits a single machine also fits a cluster.
CHANGES_PER_TXN_MAX = 128  # the number of comparisons has the same limit
VALUE_BYTES_MAX = 512 * 1_024
KEY_BYTES_MAX = 1_024
TXN_BYTES_MAX = 1_024 * 1_024  # changed keys and values; etcd allows 1.5 MiB with comparisons
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
    """A transaction, as passed to a store and sent to other nodes. See ``Store.txn``."""

    compare: Sequence[tuple[str, int]]
    puts: Sequence[tuple[str, bytes]] = ()
    deletes: Sequence[str] = ()
    compare_created: Sequence[tuple[str, int]] = ()
    lease: Lease = 0  # lease of all entries that are put; 0: none


class Compacted(PenstockError):
    """Raised if a watch starts at a revision that the store no longer keeps. The watcher must list
    all entries again and watch from the revision of the list."""

    def __init__(self, oldest_revision: int) -> None:
        super().__init__(f"History before revision {oldest_revision} was compacted.")
        self.oldest_revision = oldest_revision


class StoreUnreachable(Unreachable):
    """Raised if the store does not reply. ``public`` is the text for clients."""

    public = "The metadata store is not reachable; retry."


class StoreOutcomeUnknown(OutcomeUnknown):
    public = (
        "The metadata store is not reachable, and the outcome is unknown."
        " Retry only if the request is idempotent."
    )


class StoreUnusable(PenstockError):
    """Raised if the store cannot be opened, or its data can no longer be trusted."""


class LeaseGone(PenstockError):
    """Raised if a lease has ended or never existed. Its entries are deleted or will be soon."""

    def __init__(self, lease: int) -> None:
        super().__init__(f"Lease {lease:x} has ended.")
        self.lease = lease


class Store(Protocol):
    """The base class of all stores. Any call may raise StoreUnusable or Overloaded."""

    async def get(self, key: str) -> Entry | None: ...

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        """Return all entries with a prefix in key order, and the revision at which they were read.
        This revision is at least ``min_revision``, and not older than any revision that this store
        has returned before. SQLite and etcd include every acknowledged change. Raises StoreUnusable
        if ``min_revision`` does not exist, because the store was restored from an older state."""
        ...

    async def put(self, key: str, value: bytes, *, if_version: int | None = None) -> int:
        """Write a value durably and return the new revision. Raises VersionConflict unless the
        entry has the version ``if_version``: 0 if the key must not exist, None for any version."""
        compare = () if if_version is None else ((key, if_version),)
        return await self.txn(compare=compare, puts=((key, value),))

    async def delete(self, key: str, *, if_version: int | None = None) -> int:
        """Delete a key. Returns the new revision, or the current one if the key did not exist."""
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
        """Make all changes at one new revision, and return the revision. Makes no change and raises
        VersionConflict unless every key in ``compare`` has the given version and every key in
        ``compare_created`` the given create revision; 0 means that the key must not exist. No key
        may be changed twice. All entries that are put get ``lease`` (LeaseGone is raised if it has
        ended), or lose their lease if it is 0. Raises OutcomeUnknown if the reply was lost."""
        return await self.commit(Txn(compare, puts, deletes, compare_created, lease))

    async def commit(self, txn: Txn) -> int: ...

    def watch(self, prefix: str, *, from_revision: int) -> AsyncGenerator[Sequence[Change], None]:
        """Yield the changes of keys with a prefix from a revision on, oldest first, until the store
        closes. All changes of a revision are yielded together. Raises Compacted if the store no
        longer keeps the revision."""
        ...

    async def grant(self, ttl_ms: int) -> int:
        """Create a lease that lasts at least ``ttl_ms``. Returns its id: never 0, never reused."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Renew a lease and return its remaining time in ms. The caller must count this time from
        the start of the call, because the reply may be delayed."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease and delete its entries. Does nothing if the lease has already ended."""
        ...

    async def close(self) -> None: ...


def check_changes(txn: Txn) -> None:
    """Raise InvalidRequest if a transaction exceeds the limits of keys, sizes or changes."""
    keys = [*(key for key, _ in txn.puts), *txn.deletes]
    assert len(keys) == len(set(keys)), "a transaction changes each key at most once"
    compared = [key for key, _ in (*txn.compare, *txn.compare_created)]
    if len(keys) > CHANGES_PER_TXN_MAX or len(compared) > CHANGES_PER_TXN_MAX:
        raise InvalidRequest(
            f"The transaction compares or changes more than {CHANGES_PER_TXN_MAX} keys."
        )
    for key in (*keys, *compared):
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidRequest(f"A metadata key is longer than {KEY_BYTES_MAX} bytes.")
    size = sum(len(key.encode()) for key in keys)
    for key, value in txn.puts:
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidRequest(f"The value of {key} is longer than {VALUE_BYTES_MAX} bytes.")
        size += len(value)
    if size > TXN_BYTES_MAX:
        raise InvalidRequest(f"A transaction must have at most {TXN_BYTES_MAX} bytes, not {size}.")


def check_ttl(ttl_ms: int) -> None:
    if not 0 < ttl_ms <= LEASE_TTL_MS_MAX:
        raise InvalidRequest(f"A lease TTL must be 1 to {LEASE_TTL_MS_MAX} ms, not {ttl_ms}.")


def find_conflict(txn: Txn, revisions: Callable[[str], tuple[int, int]]) -> VersionConflict | None:
    """Return an error if a comparison of the transaction fails, or None. ``revisions`` returns the
    version and the create revision of an entry, or (0, 0) if the key does not exist."""
    compared = ((0, "at version", txn.compare), (1, "of create revision", txn.compare_created))
    for which, what, keys in compared:
        for key, expected in keys:
            if (actual := revisions(key)[which]) != expected:
                return VersionConflict(f"{key} is {what} {actual}, not {expected}.")
    return None


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the start and the (exclusive) end of the encoded keys that begin with ``prefix``. The
    end is the prefix with its last byte incremented; UTF-8 has no byte 0xFF that could overflow."""
    start = prefix.encode()
    if not start:
        return b"", b"\xff"
    return start, start[:-1] + bytes((start[-1] + 1,))


async def store_id(store: Store, entropy: Callable[[int], bytes]) -> str:
    """Return the random id of a store, which is created by the first call."""
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
