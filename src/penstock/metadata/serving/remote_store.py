"""A ``store.Store`` over calls to the metadata role, for a node without a store.

Callers need not handle lost connections or outages of the service: the watch continues where it
was when the service is back, and reports meanwhile since when it has heard nothing. Only a gap in
the history makes the catalog list again. After a short outage all other calls are refused at once:
the watches retry often enough, and callers need not wait for a timeout.

Replies and watched changes are not ordered: a change may overtake the reply to a get. Such a get is
repeated; otherwise the catalog would keep a deleted entry forever.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

from penstock.metadata.serving.calls import (
    GET,
    GRANT,
    KEEP_ALIVE,
    LIST,
    REVOKE,
    TXN,
    WATCH,
    Get,
    Grant,
    KeepAlive,
    ListPage,
    Revoke,
    Txn,
    Watch,
)
from penstock.metadata.store import (
    Change,
    ChangeKind,
    Compacted,
    Entry,
    Store,
    StoreOutcomeUnknown,
    StoreUnreachable,
    StoreUnusable,
    check_changes,
    check_ttl,
)
from penstock.metadata.topics.catalog import TOMBS_PREFIX, TOPICS_PREFIX
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.model.ports import Clock
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import DeadlineExceeded

GETS_MAX = 8  # attempts at a value that keeps changing during the call
DOUBTED_MAX = 10_000  # keys to be read from the store, until their next reply
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    call_ms: int = 5_000
    away_ms: int = 1_000  # calls are refused at once after an outage of this length
    # Whether the store itself replies to every get: for a node that passes replies on.
    is_relay: bool = False
    watch_ms: int = 2_000  # until a watch without changes gets a reply
    stale_ms_max: int = 10_000  # without the service for longer, no topic is known to be absent
    negative_ms: int = 1_000  # time for which an absent topic is not looked up again
    negatives_max: int = 10_000
    lookups_max: int = 1_024  # topics looked up at once


class _Lookup:
    """Gets of one key that are in progress."""

    __slots__ = ("count", "version")

    def __init__(self) -> None:
        self.count = 0
        self.version = 0  # of the newest change reported meanwhile


class RemoteStore(Store):
    """A store of the keys that are served to other nodes."""

    def __init__(
        self,
        caller: Caller,
        *,
        clock: Clock,
        config: RemoteConfig,
        on_put: Callable[[str], None] = lambda _key: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``on_put``: called with the key of every topic put by any node."""
        self.trouble: str | None = None  # why the service is not reachable
        self._caller = caller
        self._clock = clock
        self._config = config
        self._on_put = on_put
        self._chance = chance
        self._passed: dict[str, int] = {}  # by prefix: the revision that memory reflects
        self._heard_at_ms: dict[str, int] = {}  # by prefix
        self._lookups: dict[str, _Lookup] = {}
        self._doubted: set[str] = set()  # keys that are newer in the store, according to a conflict
        self._is_closed = False
        self._away_since_ms: int | None = None
        self._is_far = False  # the replying node has not heard from its store for long
        self._on_back: list[Callable[[], None]] = []

    def on_back(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when the service, or its store, is reachable again."""
        self._on_back.append(listener)

    @property
    def staleness_ms(self) -> int:
        """The longest time for which memory may have missed changes."""
        now_ms = self._clock.mono_ms()
        return max((now_ms - heard for heard in self._heard_at_ms.values()), default=0)

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    async def get(self, key: str) -> Entry | None:
        self._check_there()
        lookup = self._lookups.setdefault(key, _Lookup())
        lookup.count += 1
        try:
            return await self._get(key, lookup)
        finally:
            lookup.count -= 1
            if lookup.count == 0:
                del self._lookups[key]

    async def _get(self, key: str, lookup: _Lookup) -> Entry | None:
        # Users, keys and the like are read when they have just been created or changed, perhaps
        # through another node; that is rare, and must be correct.
        is_always = self._config.is_relay or not key.startswith((TOPICS_PREFIX, TOMBS_PREFIX))
        for _ in range(GETS_MAX):
            # A doubted key stays marked until there is a reply.
            is_fresh = is_always or key in self._doubted or lookup.version > 0
            request = Get(key, min_revision=self._passed.get(_prefix(key), 0), is_fresh=is_fresh)
            got = await self._caller.call(GET, request, timeout_ms=self._config.call_ms)
            self._doubted.discard(key)
            if got.revision >= lookup.version:
                return got.entry
        raise Throttled(f"{key} is being changed by another request; retry.")

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        wanted_revision = max(min_revision, self._passed.get(prefix, 0))
        found: list[Entry] = []
        after, revision = "", -1
        while True:
            request = ListPage(prefix, after, min_revision=wanted_revision)
            page = await self._caller.call(LIST, request, timeout_ms=self._config.call_ms)
            revision = page.revision if revision < 0 else revision
            if revision < min_revision:
                raise StoreUnusable(
                    f"The metadata is at revision {revision}, but {min_revision} was seen"
                    " before: it was restored from an older state."
                )
            found += page.entries
            if page.is_end:
                break
            if not page.entries:
                raise StoreUnusable("A page of the catalog is empty although it is not the last.")
            after = page.entries[-1].key
        self._passed[prefix] = max(revision, self._passed.get(prefix, 0))
        self._heard(prefix)
        return found, revision

    def doubt(self, key: str) -> None:
        """Make the next get of this key read the store itself."""
        if len(self._doubted) < DOUBTED_MAX:
            self._doubted.add(key)

    # ── Writing ──────────────────────────────────────────────────────────────────────────────

    async def txn(
        self,
        *,
        compare: Sequence[tuple[str, int]] = (),
        compare_created: Sequence[tuple[str, int]] = (),
        puts: Sequence[tuple[str, bytes]] = (),
        deletes: Sequence[str] = (),
        lease: int = 0,
    ) -> int:
        check_changes(compare=compare, compare_created=compare_created, puts=puts, deletes=deletes)
        self._check_there()
        request = Txn(compare, puts, deletes, compare_created, lease)
        try:
            written = await self._caller.call(TXN, request, timeout_ms=self._config.call_ms)
        except VersionConflict:
            for key, _ in (*compare, *compare_created):
                self.doubt(key)
            raise
        except DeadlineExceeded as error:
            raise StoreOutcomeUnknown(str(error)) from error
        return written.revision

    async def grant(self, ttl_ms: int) -> int:
        check_ttl(ttl_ms)
        self._check_there()
        granted = await self._caller.call(GRANT, Grant(ttl_ms), timeout_ms=self._config.call_ms)
        return granted.lease

    async def keep_alive(self, lease: int) -> int:
        # Sent even if the service seems unreachable: it is rare, and the lease depends on it.
        kept = await self._caller.call(
            KEEP_ALIVE, KeepAlive(lease), timeout_ms=self._config.call_ms
        )
        return kept.left_ms

    async def revoke(self, lease: int) -> None:
        """Revoke a lease. Lists may contain its entries until the watch has reported their end."""
        self._check_there()
        await self._caller.call(REVOKE, Revoke(lease), timeout_ms=self._config.call_ms)

    # ── Watching ─────────────────────────────────────────────────────────────────────────────

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[Change], None]:
        retry_seconds = RETRY_SECONDS_MIN
        watch_ms = self._config.watch_ms
        while not self._is_closed:
            try:
                watched = await self._caller.call(
                    WATCH,
                    Watch(prefix, from_revision, watch_ms),
                    timeout_ms=watch_ms + self._config.call_ms,
                )
            except Compacted:
                raise
            except PenstockError as error:
                self._missed(prefix, error)
                await asyncio.sleep(retry_seconds * (0.5 + self._chance() / 2))
                retry_seconds = min(2 * retry_seconds, RETRY_SECONDS_MAX)
                continue
            retry_seconds = RETRY_SECONDS_MIN
            self._heard(prefix, stale_ms=watched.stale_ms)
            from_revision = watched.next_revision
            self._passed[prefix] = from_revision - 1
            for change in watched.changes:
                lookup = self._lookups.get(change.key)
                if lookup is not None:
                    lookup.version = change.version
                if prefix == TOPICS_PREFIX and change.kind is ChangeKind.PUT:
                    self._on_put(change.key)
            if watched.changes:
                yield watched.changes

    def _heard(self, prefix: str, *, stale_ms: int = 0) -> None:
        self._heard_at_ms[prefix] = self._clock.mono_ms() - stale_ms
        was_away = self.trouble is not None
        was_far, self._is_far = self._is_far, stale_ms > self._config.stale_ms_max
        if was_away:
            self.trouble = self._away_since_ms = None
            log.info("metadata service reachable again")
        if was_away or (was_far and not self._is_far):
            for listener in self._on_back:
                listener()

    def _missed(self, prefix: str, error: PenstockError) -> None:
        if self.trouble is None:
            self._away_since_ms = self._clock.mono_ms()
            log.warning("metadata service lost", extra={"prefix": prefix, "reason": str(error)})
        self.trouble = str(error)

    def _check_there(self) -> None:
        since_ms = self._away_since_ms
        if since_ms is not None and self._clock.mono_ms() - since_ms >= self._config.away_ms:
            raise StoreUnreachable(f"The metadata service is unreachable: {self.trouble}")

    async def close(self) -> None:
        self._is_closed = True


def _prefix(key: str) -> str:
    end = key.find("/", 1) + 1
    return key[:end] if end else key
