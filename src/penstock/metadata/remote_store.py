"""A ``store.Store`` over calls to the metadata role, for a node without a store.

A catalog over this store keeps everything in memory, as over any store, up to a bound. Above the
bound this store shows the catalog only the topics that were requested: its list contains only
these, its watch reports only their changes, and when they become too many the oldest are evicted by
artificial deletes of the watch (``is_dropping`` marks them). The oldest, not the least used: to
know the latter, every message would have to update a record of use.

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

from penstock.metadata.calls import (
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
    Listed,
    ListPage,
    Revoke,
    Txn,
    Watch,
    Watched,
)
from penstock.metadata.catalog import TOMBS_PREFIX, TOPICS_PREFIX
from penstock.metadata.store import (
    Change,
    ChangeKind,
    Compacted,
    Entry,
    SingleWrites,
    StoreOutcomeUnknown,
    StoreUnreachable,
    StoreUnusable,
    check_changes,
    check_ttl,
)
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.model.ports import Clock
from penstock.wire.internal.calls import Caller
from penstock.wire.internal.faults import DeadlineExceeded

GETS_MAX = 8  # attempts at a value that keeps changing during the call
DROPS_PER_TURN_MAX = 1_024
DOUBTED_MAX = 10_000  # keys to be read from the store, until their next reply
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
WHOLE_AGAIN = 0.8  # of the bound, so that a catalog near it is not listed repeatedly

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    entries_max: int = 50_000  # topics in memory; above it only requested topics are kept
    call_ms: int = 5_000
    away_ms: int = 1_000  # calls are refused at once after an outage of this length
    # Whether the store itself replies to every get: for a node that passes replies on.
    is_relay: bool = False
    watch_ms: int = 2_000  # until a watch without changes gets a reply
    stale_ms_max: int = 10_000  # without the service for longer, no topic is known to be absent
    negative_ms: int = 1_000  # time for which an absent topic is not looked up again
    negatives_max: int = 10_000
    lookups_max: int = 1_024  # topics looked up at once


class _Question:
    """Gets of one key that are in progress."""

    __slots__ = ("count", "is_deleted", "version")

    def __init__(self) -> None:
        self.count = 0
        self.version = 0  # of the newest change reported meanwhile
        self.is_deleted = False  # by that change


class RemoteStore(SingleWrites):
    """Implements ``store.Store`` for the keys that are served to other nodes."""

    def __init__(
        self,
        caller: Caller,
        *,
        clock: Clock,
        config: RemoteConfig,
        on_put: Callable[[str], None] = lambda _key: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``on_put``: called with the key of every topic put by any node, kept here or not."""
        self.is_whole = True  # every topic is in memory
        self.is_dropping = False  # the deletes being reported are evictions
        self.trouble: str | None = None  # why the service is not reachable
        self._caller = caller
        self._clock = clock
        self._config = config
        self._on_put = on_put
        self._chance = chance
        self._kept: dict[str, int] = {}  # topics in memory, oldest first: key to version
        self._passed: dict[str, int] = {}  # by prefix: the revision that memory reflects
        self._heard_at_ms: dict[str, int] = {}  # by prefix
        self._questions: dict[str, _Question] = {}
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

    @property
    def kept_count(self) -> int:
        return len(self._kept)

    # ── Reading ──────────────────────────────────────────────────────────────────────────────

    async def get(self, key: str) -> Entry | None:
        self._check_there()
        is_topic = key.startswith(TOPICS_PREFIX)
        if is_topic and key not in self._kept:
            self._check_room()
            self._kept[key] = 0  # from now on the watch reports its changes
        question = self._questions.setdefault(key, _Question())
        question.count += 1
        entry: Entry | None = None
        try:
            entry = await self._get(key, question)
        finally:
            question.count -= 1
            if question.count == 0:
                del self._questions[key]
            if is_topic and entry is not None:
                self._kept[key] = max(entry.version, self._kept.get(key, 0))
            elif is_topic and question.count == 0:
                self._forget_absent(key, question)
        return entry

    def _forget_absent(self, key: str, question: _Question) -> None:
        # Not if the catalog has the topic: its delete will be reported by the watch.
        if question.is_deleted or (self._kept.get(key) == 0 and question.version == 0):
            self._kept.pop(key, None)

    async def _get(self, key: str, question: _Question) -> Entry | None:
        # Users, keys and the like are read when they have just been created or changed, perhaps
        # through another node; that is rare, and must be correct.
        is_always = self._config.is_relay or not key.startswith((TOPICS_PREFIX, TOMBS_PREFIX))
        for _ in range(GETS_MAX):
            # A doubted key stays marked until there is a reply.
            is_fresh = is_always or key in self._doubted or question.version > 0
            request = Get(key, min_revision=self._passed.get(_prefix(key), 0), is_fresh=is_fresh)
            got = await self._caller.call(GET, request, timeout_ms=self._config.call_ms)
            self._doubted.discard(key)
            if got.revision >= question.version:
                return got.entry
        raise Throttled(f"{key} is being changed elsewhere.")

    async def list(self, prefix: str, *, min_revision: int = 0) -> tuple[Sequence[Entry], int]:
        """Return all entries; of topics only the kept ones if not all fit."""
        most = self._config.entries_max
        wanted_revision = max(min_revision, self._passed.get(prefix, 0))
        found: list[Entry] = []
        after, revision, is_whole = "", -1, True
        while True:
            request = ListPage(prefix, after, min_revision=wanted_revision)
            page = await self._caller.call(LIST, request, timeout_ms=self._config.call_ms)
            if revision < 0:
                revision = page.revision
                if revision < min_revision:
                    raise StoreUnusable(
                        f"The metadata is at revision {revision}, though {min_revision} was seen:"
                        " it has been set back."
                    )
            if prefix == TOPICS_PREFIX and is_whole:
                is_whole = max(page.entry_count, len(found) + len(page.entries)) <= most
                if not is_whole:
                    found = [entry for entry in found if entry.key in self._kept]
            if not is_whole and not self._kept:
                break
            found += (entry for entry in page.entries if is_whole or entry.key in self._kept)
            if page.is_end:
                break
            after = last_key(page)
        if prefix == TOPICS_PREFIX:
            self._keep_listed(found, revision, is_whole=is_whole)
        self._passed[prefix] = max(revision, self._passed.get(prefix, 0))
        self._heard(prefix)
        return found, revision

    def _keep_listed(self, found: Sequence[Entry], revision: int, *, is_whole: bool) -> None:
        # Topics that were written or requested meanwhile are not listed.
        kept = {entry.key: entry.version for entry in found}
        for key, version in self._kept.items():
            if key not in kept and (version > revision or key in self._questions):
                kept[key] = version
        self._kept = kept
        if self.is_whole != is_whole:
            log.info("metadata cache", extra={"whole": is_whole, "kept": len(kept)})
        self.is_whole = is_whole

    def doubt(self, key: str) -> None:
        """Make the next get of this key read the store itself."""
        if len(self._doubted) < DOUBTED_MAX:
            self._doubted.add(key)

    def _check_room(self) -> None:
        # The watch evicts the oldest, but only with its next reply.
        if not self.is_whole and len(self._kept) >= self._config.entries_max * 5 // 4:
            raise Throttled("Too many topics are asked for at once.")

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
        for key, _ in puts:
            if key.startswith(TOPICS_PREFIX):
                self._kept[key] = max(written.revision, self._kept.get(key, 0))
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
        # After an artificial delete the catalog's revision may be one ahead of the watch.
        from_revision = min(from_revision, self._passed.get(prefix, from_revision) + 1)
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
            changes = self._let_through(prefix, watched)
            self._passed[prefix] = from_revision - 1
            if changes:
                yield changes
            if prefix == TOPICS_PREFIX:
                if self._fits_again(watched):
                    raise Compacted(from_revision)  # makes the catalog list everything
                dropped = self._drop(from_revision - 1)
                if dropped:
                    self.is_dropping = True
                    try:
                        yield dropped
                    finally:
                        self.is_dropping = False

    def _let_through(self, prefix: str, watched: Watched) -> Sequence[Change]:
        questions = self._questions
        for change in watched.changes:
            question = questions.get(change.key)
            if question is not None:
                question.version = change.version
                question.is_deleted = change.kind is ChangeKind.DELETE
        if prefix != TOPICS_PREFIX:
            return watched.changes
        kept = self._kept
        changes: list[Change] = []
        for change in watched.changes:
            key, is_put = change.key, change.kind is ChangeKind.PUT
            if is_put:
                self._on_put(key)
            if not self.is_whole and key not in kept:
                continue
            changes.append(change)
            if is_put:
                kept[key] = max(change.version, kept.get(key, 0))
            elif change.version >= kept.get(key, 0) and key not in questions:
                kept.pop(key, None)
        if self.is_whole and len(kept) > self._config.entries_max:
            self.is_whole = False
            log.info("metadata cache", extra={"whole": False, "kept": len(kept)})
        return changes

    def _fits_again(self, watched: Watched) -> bool:
        most = self._config.entries_max * WHOLE_AGAIN
        return not self.is_whole and watched.entry_count <= most

    def _drop(self, revision: int) -> Sequence[Change]:
        """Return artificial deletes of the oldest surplus topics. The catalog applies a delete only
        if it is newer than the value, so it has the next revision; topics that were written here
        and not yet reported by the watch are kept for now."""
        surplus = len(self._kept) - self._config.entries_max
        if self.is_whole or surplus <= 0:
            return ()
        dropped: list[str] = []
        for key, version in self._kept.items():
            if len(dropped) == min(surplus, DROPS_PER_TURN_MAX):
                break
            if 0 < version <= revision and key not in self._questions:
                dropped.append(key)
        for key in dropped:
            del self._kept[key]
        return [Change(ChangeKind.DELETE, key, b"", revision + 1) for key in dropped]

    def _heard(self, prefix: str, *, stale_ms: int = 0) -> None:
        self._heard_at_ms[prefix] = self._clock.mono_ms() - stale_ms
        was_away = self.trouble is not None
        was_far, self._is_far = self._is_far, stale_ms > self._config.stale_ms_max
        if was_away:
            self.trouble = self._away_since_ms = None
            log.info("metadata service is back")
        if was_away or (was_far and not self._is_far):
            for listener in self._on_back:
                listener()

    def _missed(self, prefix: str, error: PenstockError) -> None:
        if self.trouble is None:
            self._away_since_ms = self._clock.mono_ms()
            log.warning("metadata service away", extra={"prefix": prefix, "why": str(error)})
        self.trouble = str(error)

    def _check_there(self) -> None:
        since_ms = self._away_since_ms
        if since_ms is not None and self._clock.mono_ms() - since_ms >= self._config.away_ms:
            raise StoreUnreachable(f"The metadata service is away: {self.trouble}")

    async def close(self) -> None:
        self._is_closed = True


def last_key(page: Listed) -> str:
    """Return the key after which the next page begins. Raises StoreUnusable for an empty page."""
    if not page.entries:
        raise StoreUnusable("A page of the catalog was empty and not the last.")
    return page.entries[-1].key


def _prefix(key: str) -> str:
    end = key.find("/", 1) + 1
    return key[:end] if end else key
