"""The metadata role's calls: the store's own verbs, limited to what the catalog keeps there.

Frontends change topics by compare-and-swap, for functions cannot travel: read a value with its
version, change it at home, put it back over that version, and again when someone was faster. So a
few verbs serve every change there will ever be, and the rules of a topic's settings stay where they
are. A watch is a question that waits: who watches asks again from where the last answer ended, so
that a slow watcher is held in nobody's memory but its own. Leases are the store's: whoever took one
may keep it alive through any node.
"""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from penstock.metadata.store import Change, Compacted, Entry, LeaseGone, StoreUnusable
from penstock.model.errors import Overloaded
from penstock.wire.internal.calls import Call, Nothing

Lease = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Misdirected(Overloaded):
    """A question that was forwarded to a node which does not have the answer either: the two
    see different members just now. It is not forwarded again."""


class Get(msgspec.Struct, frozen=True, array_like=True):
    key: str
    min_revision: int = 0  # the answer must be at least of this revision
    is_fresh: bool = False  # from the store itself
    is_forwarded: bool = False


class Got(msgspec.Struct, frozen=True, array_like=True):
    entry: Entry | None
    revision: int  # at which this was so


class ListPage(msgspec.Struct, frozen=True, array_like=True):
    prefix: str
    after: str = ""  # the last key of the page before
    count_max: int = 1_000
    bytes_max: int = 4_194_304
    min_revision: int = 0
    ring: str = ""  # forwarded: only the part of the node asked, on the ring of this fingerprint


class Listed(msgspec.Struct, frozen=True, array_like=True):
    entries: Sequence[Entry]  # by key; never empty unless it is the end
    is_end: bool
    revision: int  # of the oldest part of it: what has changed since is in the watch from there
    entry_count: int  # of all there are, here or elsewhere


class FindId(msgspec.Struct, frozen=True, array_like=True):
    topic_id: str
    ring: str = ""  # forwarded: as in a page


class Txn(msgspec.Struct, frozen=True, array_like=True):
    compare: Sequence[tuple[str, int]]
    puts: Sequence[tuple[str, bytes]] = ()
    deletes: Sequence[str] = ()
    compare_created: Sequence[tuple[str, int]] = ()
    lease: Lease = 0  # that all puts hang on


class Written(msgspec.Struct, frozen=True, array_like=True):
    revision: int


class Watch(msgspec.Struct, frozen=True, array_like=True):
    prefix: str
    from_revision: int
    wait_ms: int


class Watched(msgspec.Struct, frozen=True, array_like=True):
    changes: Sequence[Change]  # oldest first, those of one revision together
    next_revision: int  # to ask from next
    entry_count: int
    stale_ms: int = 0  # for how long the answering node has not heard from the store


class Grant(msgspec.Struct, frozen=True, array_like=True):
    ttl_ms: int


class Granted(msgspec.Struct, frozen=True, array_like=True):
    lease: Lease


class KeepAlive(msgspec.Struct, frozen=True, array_like=True):
    lease: Lease


class KeptAlive(msgspec.Struct, frozen=True, array_like=True):
    left_ms: int


class Revoke(msgspec.Struct, frozen=True, array_like=True):
    lease: Lease


_ERRORS: Final = (Compacted, StoreUnusable, Misdirected, LeaseGone)

GET: Final = Call(0x0101, "metadata.get", Get, Got, is_idempotent=True, errors=_ERRORS)
LIST: Final = Call(0x0102, "metadata.list", ListPage, Listed, is_idempotent=True, errors=_ERRORS)
FIND_ID: Final = Call(0x0103, "metadata.find_id", FindId, Got, is_idempotent=True, errors=_ERRORS)
TXN: Final = Call(0x0104, "metadata.txn", Txn, Written, is_idempotent=False, errors=_ERRORS)
WATCH: Final = Call(0x0105, "metadata.watch", Watch, Watched, is_idempotent=True, errors=_ERRORS)
# A lease that nobody has heard of ends by itself: one more of them is harmless.
GRANT: Final = Call(0x0106, "metadata.grant", Grant, Granted, is_idempotent=True, errors=_ERRORS)
KEEP_ALIVE: Final = Call(
    0x0107, "metadata.keep_alive", KeepAlive, KeptAlive, is_idempotent=True, errors=_ERRORS
)
REVOKE: Final = Call(0x0108, "metadata.revoke", Revoke, Nothing, is_idempotent=True, errors=_ERRORS)
