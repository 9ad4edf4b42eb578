"""A store and a catalog that call the metadata service, for nodes that have no store themselves.

After an outage of the service, a watch continues from the last revision that it has received; all
entries are listed again only if the service no longer has the changes since then. If an outage
lasts, most calls are rejected at once, so that callers do not wait for a timeout.

A get may return a value that is older than a change that the watch has already reported. Then the
get is repeated; otherwise the catalog would keep a deleted entry forever."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.metadata import store
from penstock.metadata.cache import abandon
from penstock.metadata.serving import calls
from penstock.metadata.topics.catalog import TOMBS_PREFIX, TOPICS_PREFIX, StoredCatalog, topic_key
from penstock.model.errors import PenstockError, Throttled, TopicNotFound, VersionConflict
from penstock.model.names import SNS_PREFIX
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.calls import Call, Caller, Q, R
from penstock.wire.internal.faults import DeadlineExceeded

GETS_MAX = 8  # attempts at a value that keeps changing during the call
DOUBTED_MAX = 10_000  # keys whose next get must be read from the store
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0
LOOKUP_RETRY_MS = 50  # the service should have replied by then

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    call_ms: int = 5_000
    away_ms: int = 1_000  # calls are refused at once after an outage of this length
    is_relay: bool = False  # every get reads the store itself, because this node passes replies on
    watch_ms: int = 2_000  # time until a watch without changes gets a reply
    stale_ms_max: int = 10_000  # if the service is away for longer, missing topics may exist
    negative_ms: int = 1_000  # time for which an absent topic is not looked up again
    negatives_max: int = 10_000
    lookups_max: int = 1_024  # topics looked up at once


@dataclass(slots=True)
class _Lookup:
    """The running ``get`` calls for one key."""

    count: int = 0
    version: int = 0  # of the newest change that the watch has reported since they began


class RemoteStore(store.Store):
    def __init__(
        self,
        caller: Caller,
        *,
        clock: Clock,
        config: RemoteConfig,
        on_put: Callable[[str], None] = lambda _key: None,  # called with the key of a stored topic
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.trouble: str | None = None  # why the service is not reachable
        self._caller = caller
        self._clock = clock
        self._config = config
        self._on_put = on_put
        self._chance = chance
        self._passed: dict[str, int] = {}  # by prefix: the last revision that was received
        self._heard_at_ms: dict[str, int] = {}  # by prefix
        self._lookups: dict[str, _Lookup] = {}
        self._doubted: set[str] = set()  # keys whose next get must be read from the store
        self._is_closed = False
        self._away_since_ms: int | None = None
        self._is_far = False  # the metadata node itself has lost its store
        self._on_back: list[Callable[[], None]] = []

    def on_back(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the service, or its store, is reachable again."""
        self._on_back.append(listener)

    @property
    def staleness_ms(self) -> int:
        """The time since the last reply to the watch that has waited longest for a reply."""
        now_ms = self._clock.mono_ms()
        return max((now_ms - heard for heard in self._heard_at_ms.values()), default=0)

    async def _call(self, call: Call[Q, R], request: Q) -> R:
        return await self._caller.call(call, request, timeout_ms=self._config.call_ms)

    async def get(self, key: str) -> store.Entry | None:
        self._check_there()
        lookup = self._lookups.setdefault(key, _Lookup())
        lookup.count += 1
        # Users, keys and the like are read when they have just been created or changed, perhaps
        # through another node; that is rare, and must be correct.
        is_always = self._config.is_relay or not key.startswith((TOPICS_PREFIX, TOMBS_PREFIX))
        try:
            for _ in range(GETS_MAX):
                is_fresh = is_always or key in self._doubted or lookup.version > 0
                passed = self._passed.get(_prefix(key), 0)
                request = calls.Get(key, min_revision=passed, is_fresh=is_fresh)
                got = await self._call(calls.GET, request)
                self._doubted.discard(key)
                if got.revision >= lookup.version:
                    return got.entry
            raise Throttled(f"{key} is being changed by another request; retry.")
        finally:
            lookup.count -= 1
            if lookup.count == 0:
                del self._lookups[key]

    async def list(
        self, prefix: str, *, min_revision: int = 0
    ) -> tuple[Sequence[store.Entry], int]:
        wanted_revision = max(min_revision, self._passed.get(prefix, 0))
        found: list[store.Entry] = []
        after, revision = "", -1
        while True:
            request = calls.ListPage(prefix, after, min_revision=wanted_revision)
            page = await self._call(calls.LIST, request)
            revision = page.revision if revision < 0 else revision
            if revision < min_revision:
                raise store.StoreUnusable(
                    f"The metadata is at revision {revision}, but {min_revision} was seen"
                    " before: the store was restored from an older state."
                )
            found += page.entries
            if page.is_end:
                break
            if not page.entries:
                raise store.StoreUnusable(
                    "The metadata service sent an empty page that is not the last one."
                )
            after = page.entries[-1].key
        self._passed[prefix] = max(revision, self._passed.get(prefix, 0))
        self._heard(prefix)
        return found, revision

    def doubt(self, key: str) -> None:
        """Make the next ``get`` of a key read the store, not the memory of a metadata node."""
        if len(self._doubted) < DOUBTED_MAX:
            self._doubted.add(key)

    async def commit(self, txn: store.Txn) -> int:
        store.check_changes(txn)
        self._check_there()
        try:
            written = await self._call(calls.TXN, txn)
        except VersionConflict:
            for key, _ in (*txn.compare, *txn.compare_created):
                self.doubt(key)
            raise
        except DeadlineExceeded as error:
            raise store.StoreOutcomeUnknown(str(error)) from error
        return written.revision

    async def grant(self, ttl_ms: int) -> int:
        store.check_ttl(ttl_ms)
        self._check_there()
        return (await self._call(calls.GRANT, calls.Grant(ttl_ms))).lease

    async def keep_alive(self, lease: int) -> int:
        # Sent even if the service seems unreachable: it is rare, and the lease depends on it.
        return (await self._call(calls.KEEP_ALIVE, calls.OfLease(lease))).left_ms

    async def revoke(self, lease: int) -> None:
        """Revoke a lease. Its entries may still be listed until the watch reports the deletes."""
        self._check_there()
        await self._call(calls.REVOKE, calls.OfLease(lease))

    async def watch(
        self, prefix: str, *, from_revision: int
    ) -> AsyncGenerator[Sequence[store.Change], None]:
        retry_seconds = RETRY_SECONDS_MIN
        watch_ms = self._config.watch_ms
        while not self._is_closed:
            try:
                watched = await self._caller.call(
                    calls.WATCH,
                    calls.Watch(prefix, from_revision, watch_ms),
                    timeout_ms=watch_ms + self._config.call_ms,
                )
            except store.Compacted:
                raise
            except PenstockError as error:
                if self.trouble is None:
                    self._away_since_ms = self._clock.mono_ms()
                    extra = {"prefix": prefix, "reason": str(error)}
                    log.warning("connection to the metadata service lost", extra=extra)
                self.trouble = str(error)
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
                if prefix == TOPICS_PREFIX and change.kind is store.ChangeKind.PUT:
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

    def _check_there(self) -> None:
        since_ms = self._away_since_ms
        if since_ms is not None and self._clock.mono_ms() - since_ms >= self._config.away_ms:
            raise store.StoreUnreachable(f"The metadata service is unreachable: {self.trouble}")

    async def close(self) -> None:
        self._is_closed = True


def _prefix(key: str) -> str:
    end = key.find("/", 1) + 1
    return key[:end] if end else key


class RemoteCatalog:
    """The catalog of topics on a node without a store. Implements ``model.ports.Catalog``.

    Topics are looked up in memory, even if the service is not reachable. If a topic is missing in
    memory and the service has not replied recently, the topic may exist nevertheless. Then a
    look-up calls the service and raises Throttled; when the client retries, the reply is there."""

    def __init__(
        self,
        caller: Caller,
        *,
        clock: Clock,
        config: RemoteConfig | None = None,
        recreate_guard_ms: int = 0,
        partitions_max: int | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._caller = caller
        self._clock = clock
        self._config = config or RemoteConfig()
        self.store = RemoteStore(  # used for other metadata too
            caller, clock=clock, config=self._config, on_put=self._was_put, chance=chance
        )
        stored = self.stored = StoredCatalog(
            self.store, recreate_guard_ms=recreate_guard_ms, partitions_max=partitions_max
        )
        self._find, self.topics, self.all_topics = stored.find, stored.topics, stored.all_topics
        self.sns_topics = stored.sns_topics
        self.recently_deleted, self.tombstone = stored.recently_deleted, stored.tombstone
        self.on_change, self.start = stored.on_change, stored.start
        # Topics that do not exist, with the time until which they are not looked up again:
        self._absent: dict[str, int] = {}  # by key
        self._absent_ids: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[Topic | None]] = {}

    async def stop(self) -> None:
        await abandon(*self._lookups.values())
        await self.store.close()
        await self.stored.stop()

    @property
    def trouble(self) -> str | None:
        if self.stored.trouble is not None:
            return self.stored.trouble
        staleness_ms = self.store.staleness_ms
        if staleness_ms <= self._config.stale_ms_max:
            return None
        reason = self.store.trouble or "the store does not reply"
        return f"the metadata service has not replied for {staleness_ms // 1_000} s: {reason}"

    def find(self, account: str, region: str, name: str) -> Topic | None:
        topic = self._find(account, region, name)
        if topic is None and not self._is_up_to_date:
            self._check_absent(account, region, name)
        return topic

    def find_arn(self, arn: str) -> Topic | None:
        topic = self.stored.find_arn(arn)
        if topic is None and not self._is_up_to_date:
            parts = arn.split(":", 5)
            if len(parts) == 6:
                self._check_absent(parts[4], parts[3], parts[5])
        return topic

    def find_sns(self, account: str, region: str, name: str) -> Topic | None:
        topic = self.stored.find_sns(account, region, name)
        if topic is None and not self._is_up_to_date:
            # Streams with other names can also be SNS topics. They are known by the watch only.
            self._check_absent(account, region, SNS_PREFIX + name)
        return topic

    def find_id(self, topic_id: str) -> Topic | None:
        topic = self.stored.find_id(topic_id)
        is_known = topic is not None or self._is_up_to_date
        if not is_known and not self._is_absent(self._absent_ids, topic_id):
            self._look(self._look_id, topic_id)
            raise Throttled("The topic is being looked up; retry.", retry_after_ms=LOOKUP_RETRY_MS)
        return topic

    async def create(self, topic: Topic) -> Topic:
        created = await self.stored.create(topic)
        self._absent.pop(topic_key(topic.account, topic.region, topic.name), None)
        self._absent_ids.pop(topic.topic_id, None)
        return created

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        self._doubt_missing(account, region, name)
        return await self.stored.change(account, region, name, change)

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        self._doubt_missing(account, region, name)
        return await self.stored.delete(account, region, name, now_ms=now_ms)

    def _doubt_missing(self, account: str, region: str, name: str) -> None:
        """If a topic is not in memory, make the next ``get`` of its key read the store."""
        if self._find(account, region, name) is None:
            self.store.doubt(topic_key(account, region, name))

    @property
    def _is_up_to_date(self) -> bool:
        return self.store.staleness_ms <= self._config.stale_ms_max

    def _check_absent(self, account: str, region: str, name: str) -> None:
        """Return if the topic is known not to exist; otherwise look it up and raise Throttled."""
        if "/" in name or "/" in account or "/" in region:
            return  # not a valid name
        key = topic_key(account, region, name)
        if self._is_absent(self._absent, key):
            return
        if self.store.trouble is not None:
            raise Throttled(f"Topic {name} cannot be looked up: no metadata node replies; retry.")
        self._look(self._look_name, key, account, region, name)
        raise Throttled(f"Topic {name} is being looked up; retry.", retry_after_ms=LOOKUP_RETRY_MS)

    def _is_absent(self, absent: dict[str, int], key: str) -> bool:
        until_ms = absent.get(key)
        if until_ms is None:
            return False
        if self._clock.mono_ms() < until_ms:
            return True
        del absent[key]
        return False

    def _note_absent(self, absent: dict[str, int], key: str) -> None:
        absent.pop(key, None)  # so that it becomes the newest
        absent[key] = self._clock.mono_ms() + self._config.negative_ms
        if len(absent) > self._config.negatives_max:
            del absent[next(iter(absent))]

    def _was_put(self, key: str) -> None:
        self._absent.pop(key, None)
        self._absent_ids.clear()  # the id of the new topic is not known here

    async def _look_name(self, key: str, account: str, region: str, name: str) -> Topic | None:
        try:
            # This changes nothing, but reads the topic into memory.
            return await self.stored.change(account, region, name, lambda topic: topic)
        except TopicNotFound:
            self._note_absent(self._absent, key)
            return None

    async def _look_id(self, topic_id: str) -> Topic | None:
        request, timeout_ms = calls.FindId(topic_id), self._config.call_ms
        got = await self._caller.call(calls.FIND_ID, request, timeout_ms=timeout_ms)
        if got.entry is not None:
            _, _, account, region, name = got.entry.key.split("/", 4)
            topic = await self._look_name(got.entry.key, account, region, name)
            if topic is not None and topic.topic_id == topic_id:
                return topic
        self._note_absent(self._absent_ids, topic_id)
        return None

    def _look(
        self, look: Callable[..., Coroutine[Any, Any, Topic | None]], key: str, *more: str
    ) -> "asyncio.Task[Topic | None]":
        task = self._lookups.get(key)
        if task is None:
            if len(self._lookups) >= self._config.lookups_max:
                raise Throttled("Too many topics are being looked up; retry.")
            task = asyncio.create_task(look(key, *more), name=f"look up {key}")
            self._lookups[key] = task
            task.add_done_callback(partial(self._looked, key))
        return task

    def _looked(self, key: str, task: "asyncio.Task[Topic | None]") -> None:
        del self._lookups[key]
        if not task.cancelled():
            error = task.exception()  # retrieved even if no caller waits for it any more
            if error is not None and not isinstance(error, PenstockError):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "topic lookup failed", "exception": error}
                )
