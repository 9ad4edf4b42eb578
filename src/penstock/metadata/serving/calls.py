"""The calls by which other nodes use the metadata service. They match the operations of a store.

Other nodes change entries by compare-and-swap. A watch is a long poll: each request names the
revision at which the last reply ended, so a slow watcher uses no memory of the service. The holder
of a lease may keep it alive through any metadata node."""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.metadata.store import Change, Compacted, Entry, Lease, LeaseGone, StoreUnusable, Txn
from penstock.model.errors import Overloaded
from penstock.wire.internal.calls import Call, Nothing


class Misdirected(Overloaded):
    """Raised if a request was forwarded to a node that does not hold the entry either, because the
    two nodes know different members. The request is not forwarded again."""


class Get(msgspec.Struct, frozen=True, array_like=True):
    key: str
    min_revision: int = 0  # the reply must not be older than this revision
    is_fresh: bool = False  # read the store, not memory
    is_forwarded: bool = False


class Got(msgspec.Struct, frozen=True, array_like=True):
    entry: Entry | None
    revision: int  # at which the entry was read


class ListPage(msgspec.Struct, frozen=True, array_like=True):
    prefix: str
    after: str = ""  # the last key of the page before
    count_max: int = 1_000
    bytes_max: int = 4_194_304
    min_revision: int = 0
    ring: str = ""  # if forwarded: fingerprint of the ring whose part the receiver returns


class Listed(msgspec.Struct, frozen=True, array_like=True):
    entries: Sequence[Entry]  # sorted by key; empty only on the last page
    is_end: bool
    revision: int  # of the oldest part of the page; a watch reports later changes
    entry_count: int  # of the whole prefix, held by this or other nodes


class FindId(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    ring: str = ""  # as in ListPage


class Written(msgspec.Struct, frozen=True, array_like=True):
    revision: int


class Watch(msgspec.Struct, frozen=True, array_like=True):
    prefix: str
    from_revision: int
    wait_ms: int


class Watched(msgspec.Struct, frozen=True, array_like=True):
    changes: Sequence[Change]  # oldest first, all changes of a revision together
    next_revision: int  # for the next request
    entry_count: int
    stale_ms: int = 0  # time since the replying node last heard from the store


class Grant(msgspec.Struct, frozen=True, array_like=True):
    ttl_ms: int


class OfLease(msgspec.Struct, frozen=True, array_like=True):
    lease: Lease


class KeptAlive(msgspec.Struct, frozen=True, array_like=True):
    left_ms: int


_ERRORS: Final = (Compacted, StoreUnusable, Misdirected, LeaseGone)

GET: Final = Call(0x0101, "metadata.get", Get, Got, is_idempotent=True, errors=_ERRORS)
LIST: Final = Call(0x0102, "metadata.list", ListPage, Listed, is_idempotent=True, errors=_ERRORS)
FIND_ID: Final = Call(0x0103, "metadata.find_id", FindId, Got, is_idempotent=True, errors=_ERRORS)
TXN: Final = Call(0x0104, "metadata.txn", Txn, Written, is_idempotent=False, errors=_ERRORS)
WATCH: Final = Call(0x0105, "metadata.watch", Watch, Watched, is_idempotent=True, errors=_ERRORS)
# A lease whose reply was lost ends by itself, so a second grant is harmless.
GRANT: Final = Call(0x0106, "metadata.grant", Grant, OfLease, is_idempotent=True, errors=_ERRORS)
KEEP_ALIVE: Final = Call(
    0x0107, "metadata.keep_alive", OfLease, KeptAlive, is_idempotent=True, errors=_ERRORS
)
REVOKE: Final = Call(
    0x0108, "metadata.revoke", OfLease, Nothing, is_idempotent=True, errors=_ERRORS
)
