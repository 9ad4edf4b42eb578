"""The catalog of topics on a node without a metadata store, which calls the metadata service.

It uses ``StoredCatalog`` over ``remote_store``, so topics are looked up in memory. A topic in
memory is served even if the service is not reachable. If a topic is missing in memory and the
service has not replied recently, the topic may exist. Then a look-up raises Throttled and calls the
service, so that the client's next attempt finds the result."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.metadata.serving.calls import FIND_ID, FindId
from penstock.metadata.serving.remote_store import RemoteConfig, RemoteStore
from penstock.metadata.topics.catalog import StoredCatalog, topic_key
from penstock.model.errors import PenstockError, Throttled, TopicNotFound
from penstock.model.ports import Clock
from penstock.model.topic import Topic
from penstock.wire.internal.calls import Caller

LOOKUP_RETRY_MS = 50  # the service should have replied by then


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
        self.store = RemoteStore(  # used for other metadata too
            caller, clock=clock, config=self._config, on_put=self._was_put, chance=chance
        )
        stored = self.stored = StoredCatalog(
            self.store, recreate_guard_ms=recreate_guard_ms, partitions_max=partitions_max
        )
        self._find, self.topics, self.all_topics = stored.find, stored.topics, stored.all_topics
        self.recently_deleted, self.tombstone = stored.recently_deleted, stored.tombstone
        self.on_change = stored.on_change
        # Topics that do not exist, with the time until which they are not looked up again:
        self._absent: dict[str, int] = {}  # by key
        self._absent_ids: dict[str, int] = {}
        self._lookups: dict[str, asyncio.Task[Topic | None]] = {}

    async def start(self) -> None:
        try:
            await self.stored.start()
        except BaseException:
            await self.stored.stop()
            raise

    async def stop(self) -> None:
        lookups = list(self._lookups.values())
        for task in lookups:
            task.cancel()
        if lookups:
            await asyncio.wait(lookups)
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

    def find_id(self, topic_id: str) -> Topic | None:
        topic = self.stored.find_id(topic_id)
        is_known = topic is not None or self._is_up_to_date
        if not is_known and not self._is_absent(self._absent_ids, topic_id):
            self._start_id(topic_id)
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
        """If a topic is not in memory, make the next get of its key read the store."""
        if self._find(account, region, name) is None:
            self.store.doubt(topic_key(account, region, name))

    @property
    def _is_up_to_date(self) -> bool:
        return self.store.staleness_ms <= self._config.stale_ms_max

    def _check_absent(self, account: str, region: str, name: str) -> None:
        """Raise Throttled and look the topic up, unless it is known not to exist."""
        if "/" in name or "/" in account or "/" in region:
            return  # not a valid name
        key = topic_key(account, region, name)
        if self._is_absent(self._absent, key):
            return
        if self.store.trouble is not None:
            raise Throttled(f"{name} cannot be looked up: the metadata is not reachable; retry.")
        self._start(key, account, region, name)
        raise Throttled(f"{name} is being looked up; retry.", retry_after_ms=LOOKUP_RETRY_MS)

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

    def _start(
        self, key: str, account: str, region: str, name: str
    ) -> "asyncio.Task[Topic | None]":
        async def look() -> Topic | None:
            try:
                # This changes nothing, but reads the topic into memory.
                return await self.stored.change(account, region, name, _unchanged)
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
                    topic = await self.stored.change(account, region, name, _unchanged)
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
            raise Throttled("Too many topics are being looked up; retry.")
        task = asyncio.create_task(look(), name=f"look up {key}")
        self._lookups[key] = task
        task.add_done_callback(lambda task: self._looked(key, task))
        return task

    def _looked(self, key: str, task: "asyncio.Task[Topic | None]") -> None:
        del self._lookups[key]
        if not task.cancelled():
            error = task.exception()  # retrieved even if no caller waits for it any more
            if error is not None and not isinstance(error, PenstockError):
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "topic lookup failed", "exception": error}
                )


def _unchanged(topic: Topic) -> Topic:
    return topic
