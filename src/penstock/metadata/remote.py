"""The catalog of a frontend that has no store: ``model.ports.Catalog`` over the metadata role.

Inside is the same catalog that a node with a store has, over ``remote_store``: reading is a look-up
in memory, one's own changes are seen when the call returns, others' when the watch brings them.

What is new is that memory may not know. A topic that is in memory is served, whether the service
answers or not. One that is missing is absent for certain only while everything is in memory and the
service was heard of lately; otherwise it has to be asked for, which takes a call and so an await:
``resolve`` before ``find``. A ``find`` that nobody resolved for says Throttled and starts the
question, so that the next attempt of the client finds the answer: never that there is no such queue
when there may be one.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from penstock.metadata.calls import FIND_ID, LIST, FindId, ListPage
from penstock.metadata.catalog import TOPICS_MAX, TOPICS_PREFIX, Listener, StoredCatalog, topic_key
from penstock.metadata.remote_store import RemoteConfig, RemoteStore, last_key
from penstock.metadata.store import StoreUnusable
from penstock.model.errors import PenstockError, Throttled, TopicNotFound
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.calls import Caller

ASKED_RETRY_MS = 50  # by then the answer should be here

_decode = msgspec.json.Decoder(Topic).decode


class RemoteCatalog:
    """Implements ``model.ports.Catalog``."""

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
        self._store = RemoteStore(
            caller, clock=clock, config=self._config, on_put=self._was_put, chance=chance
        )
        self._stored = StoredCatalog(
            self._store, recreate_guard_ms=recreate_guard_ms, partitions_max=partitions_max
        )
        self._find = self._stored.find
        # Asked for and not there, until when:
        self._absent: dict[str, int] = {}  # by key
        self._absent_ids: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[Topic | None]] = {}

    async def start(self) -> None:
        """Returns when memory is filled. Raises what the service, or the way to it, raises."""
        try:
            await self._stored.start()
        except BaseException:
            await self._stored.stop()
            raise

    async def stop(self) -> None:
        lookups = list(self._lookups.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)
        await self._store.close()
        await self._stored.stop()

    @property
    def store(self) -> RemoteStore:
        """For what else the metadata role keeps. Closed with the catalog."""
        return self._store

    @property
    def stored(self) -> StoredCatalog:
        """What is in memory, as a broker sees it: a topic that is not there is none of its own."""
        return self._stored

    @property
    def is_whole(self) -> bool:
        """Whether every topic is in memory, not only those that were asked for."""
        return self._store.is_whole

    @property
    def staleness_ms(self) -> int:
        """For how long memory may have missed changes. About the time of a watch when all is
        well."""
        return self._store.staleness_ms

    @property
    def trouble(self) -> str | None:
        """Why memory may be behind (for the health endpoint), or None."""
        if self._stored.trouble is not None:
            return self._stored.trouble
        staleness_ms = self._store.staleness_ms
        if staleness_ms <= self._config.stale_ms_max:
            return None
        why = self._store.trouble or "it does not hear from the store"
        return f"nothing heard from the metadata service for {staleness_ms // 1_000} s: {why}"

    # ── Reading: from memory ─────────────────────────────────────────────────────────────────

    def find(self, account: str, region: str, name: str) -> Topic | None:
        topic = self._find(account, region, name)
        if topic is None and not self._knows_all:
            self._check_absent(account, region, name)
        return topic

    def find_arn(self, arn: str) -> Topic | None:
        topic = self._stored.find_arn(arn)
        if topic is None and not self._knows_all:
            parts = arn.split(":", 5)
            if len(parts) == 6:
                self._check_absent(parts[4], parts[3], parts[5])
        return topic

    def find_id(self, topic_id: str) -> Topic | None:
        topic = self._stored.find_id(topic_id)
        if (
            topic is None
            and not self._knows_all
            and not self._is_absent(self._absent_ids, topic_id)
        ):
            self._start_id(topic_id)
            raise Throttled("The topic is being looked up.", retry_after_ms=ASKED_RETRY_MS)
        return topic

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        """Raises Throttled when memory does not hold all of them: see ``list_topics``."""
        if not self._store.is_whole:
            raise Throttled("There are too many queues to list them from memory.")
        return self._stored.topics(account, region, prefix)

    def all_topics(self) -> Sequence[Topic]:
        """Those in memory."""
        return self._stored.all_topics()

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool:
        return self._stored.recently_deleted(account, region, name, now_ms=now_ms)

    def tombstone(self, topic_id: str) -> Topic | None:
        return self._stored.tombstone(topic_id)

    def on_change(self, listener: Listener) -> None:
        """One that is dropped from memory for want of room has not changed; when it is asked for
        again, it is heard of as if it were new."""

        def heard(before: Topic | None, after: Topic | None) -> None:
            if not self._store.is_dropping:
                listener(before, after)

        self._stored.on_change(heard)

    # ── Reading: asking where memory does not know ───────────────────────────────────────────

    async def resolve(self, account: str, region: str, name: str) -> Topic | None:
        """As ``find``, and the service is asked when it is not in memory: once for all who want to
        know, and not again for a while when there is none. Raises Unreachable or another
        Overloaded when there is no answer."""
        topic = self._find(account, region, name)
        if topic is not None or "/" in name:
            return topic
        key = topic_key(account, region, name)
        if self._is_absent(self._absent, key):
            return None
        # Who is cancelled leaves the question to the others.
        return await asyncio.shield(self._start(key, account, region, name))

    async def resolve_id(self, topic_id: str) -> Topic | None:
        topic = self._stored.find_id(topic_id)
        if topic is not None or self._is_absent(self._absent_ids, topic_id):
            return topic
        return await asyncio.shield(self._start_id(topic_id))

    async def list_topics(
        self, account: str, region: str, prefix: str = "", *, count_max: int = TOPICS_MAX
    ) -> Sequence[Topic]:
        """As ``topics``, from the service when memory does not hold them all. Not kept."""
        if self._store.is_whole:
            return self._stored.topics(account, region, prefix)[:count_max]
        start = f"{TOPICS_PREFIX}{account}/{region}/{prefix}"
        found: list[Topic] = []
        after = ""
        while len(found) < count_max:
            request = ListPage(start, after, count_max=count_max - len(found))
            page = await self._caller.call(LIST, request, timeout_ms=self._config.call_ms)
            for entry in page.entries:
                try:
                    found.append(_decode(entry.value))
                except (msgspec.DecodeError, ValueError) as error:
                    raise StoreUnusable(f"{entry.key} cannot be read: {error}") from error
            if page.is_end:
                break
            after = last_key(page)
        return found[:count_max]

    # ── Changing: the service first ──────────────────────────────────────────────────────────

    async def create(self, topic: Topic) -> Topic:
        created = await self._stored.create(topic)
        self._absent.pop(topic_key(topic.account, topic.region, topic.name), None)
        self._absent_ids.pop(topic.topic_id, None)
        return created

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        self._doubt_missing(account, region, name)
        return await self._stored.change(account, region, name, change)

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        self._doubt_missing(account, region, name)
        return await self._stored.delete(account, region, name, now_ms=now_ms)

    def _doubt_missing(self, account: str, region: str, name: str) -> None:
        """Who changes a topic has most likely just made it, perhaps through another frontend: the
        metadata nodes may not have heard of it, but the store has."""
        if self._find(account, region, name) is None:
            self._store.doubt(topic_key(account, region, name))

    # ── What is not in memory ────────────────────────────────────────────────────────────────

    @property
    def _knows_all(self) -> bool:
        return self._store.is_whole and self._store.staleness_ms <= self._config.stale_ms_max

    def _check_absent(self, account: str, region: str, name: str) -> None:
        """Returns if there is certainly no such topic."""
        if "/" in name or "/" in account or "/" in region:
            return  # nothing is called that
        key = topic_key(account, region, name)
        if self._is_absent(self._absent, key):
            return
        if self._store.trouble is not None and self._store.is_whole:
            raise Throttled(
                f"Whether {name} exists is not known: metadata store not reachable; retry."
            )
        self._start(key, account, region, name)
        raise Throttled(f"{name} is being looked up.", retry_after_ms=ASKED_RETRY_MS)

    def _is_absent(self, absent: dict[str, int], key: str) -> bool:
        until_ms = absent.get(key)
        if until_ms is None:
            return False
        if self._clock.mono_ms() < until_ms:
            return True
        del absent[key]
        return False

    def _note_absent(self, absent: dict[str, int], key: str) -> None:
        absent.pop(key, None)  # to stand behind those that were noted before
        absent[key] = self._clock.mono_ms() + self._config.negative_ms
        if len(absent) > self._config.negatives_max:
            del absent[next(iter(absent))]

    def _was_put(self, key: str) -> None:
        self._absent.pop(key, None)
        self._absent_ids.clear()  # which one it has is not looked at

    def _start(
        self, key: str, account: str, region: str, name: str
    ) -> "asyncio.Task[Topic | None]":
        async def look() -> Topic | None:
            try:
                # A change that changes nothing: reads what is not in memory, and keeps it there.
                return await self._stored.change(account, region, name, _unchanged)
            except TopicNotFound:
                self._note_absent(self._absent, key)
                return None

        return self._look(key, look)

    def _start_id(self, topic_id: str) -> "asyncio.Task[Topic | None]":
        async def look() -> Topic | None:
            got = await self._caller.call(
                FIND_ID, FindId(topic_id), timeout_ms=self._config.call_ms
            )
            if got.entry is not None:
                _, _, account, region, name = got.entry.key.split("/", 4)
                try:
                    topic = await self._stored.change(account, region, name, _unchanged)
                except TopicNotFound:
                    topic = None
                if topic is not None and topic.topic_id == topic_id:
                    return topic
            self._note_absent(self._absent_ids, topic_id)
            return None

        return self._look(topic_id, look)

    def _look(
        self, key: str, look: Callable[[], Coroutine[Any, Any, Topic | None]]
    ) -> "asyncio.Task[Topic | None]":
        task = self._lookups.get(key)
        if task is not None:
            return task
        if len(self._lookups) >= self._config.lookups_max:
            raise Throttled("Too many topics are being looked up.")
        task = asyncio.create_task(look(), name=f"look up {key}")
        self._lookups[key] = task
        task.add_done_callback(lambda task: self._looked(key, task))
        return task

    def _looked(self, key: str, task: "asyncio.Task[Topic | None]") -> None:
        del self._lookups[key]
        if not task.cancelled():
            error = task.exception()  # heard, be it that nobody waits for it any more
            if error is not None and not isinstance(error, PenstockError):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a topic could not be looked up", "exception": error}
                )


def _unchanged(topic: Topic) -> Topic:
    return topic
