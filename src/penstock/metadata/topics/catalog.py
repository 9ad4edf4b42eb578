"""The catalog of topics by name, id, ARN and SNS name, all in memory; the tasks that move
dead letters back to their source queues; and the ids of producers. Keys in the store:

    /topics/{account}/{region}/{name}   the topic as JSON
    /tombs/{topic_id}                   the tombstone of a deleted topic, whose data may be removed
    /moves/{task_id}                    a task that moves dead letters, running or ended

A delete removes the topic and writes the tombstone in one transaction. A broker removes data only
if there is a tombstone, not if a topic is missing, because a catalog that lags or was restored from
a backup must not cause data loss. ``sweep`` removes a tombstone when the data is gone and the
tombstone is old enough. For some time after a delete, the name cannot be used for a new topic."""

import asyncio
import logging
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec

from penstock.metadata.cache import TRIES_MAX, Cache, WatchGroup, put_in, write_all
from penstock.metadata.store import CHANGES_PER_TXN_MAX, Store
from penstock.metadata.topics.sns_names import SnsNames
from penstock.model import errors
from penstock.model.limits import DELETED_NAME_MS
from penstock.model.ports import Catalog, Clock, MoveTask
from penstock.model.topic import Kind, Topic

TOPICS_PREFIX = "/topics/"
TOMBS_PREFIX = "/tombs/"

TOPICS_MAX = 100_000  # about 2 KB each in memory
TOMBSTONE_MS = 5 * DELETED_NAME_MS  # longer than any name guard, so that guards survive a restart
TOMBSTONES_MAX = 10_000  # above it the oldest are removed early, with their name guards

MOVES_PREFIX = "/moves/"
MOVES_PER_SOURCE_MAX = 100
PRODUCER_IDS_KEY = "/producer-ids"
PRODUCER_IDS_BLOCK = 1_000
UNFINISHED = frozenset({"RUNNING", "CANCELLING"})

TOPIC_ID_BYTES = 16
RECEIPT_KEY_BYTES = 32

NameKey = tuple[str, str, str]
Listener = Callable[[Topic | None, Topic | None], None]

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder(Topic).decode
_decode_move = msgspec.json.Decoder(MoveTask).decode


def topic_key(account: str, region: str, name: str) -> str:
    assert "/" not in account + region + name, "a name contains a slash: callers must check names"
    return f"{TOPICS_PREFIX}{account}/{region}/{name}"


def tomb_key(topic_id: str) -> str:
    return f"{TOMBS_PREFIX}{topic_id}"


def _logs_of(topic: Topic) -> int:
    return 0 if topic.is_share else topic.partition_count


def _tell(listeners: Sequence[Callable[..., None]], *change: Topic | None, failed: str) -> None:
    for listener in listeners:
        try:
            listener(*change)
        except Exception:
            # The change is durable and in force: a failing listener must not stop the others.
            log.exception(failed)


class StoredCatalog(WatchGroup):
    """Implements ``model.ports.Catalog`` over any store."""

    def __init__(
        self,
        store: Store,
        *,
        recreate_guard_ms: int = 0,
        topics_max: int = TOPICS_MAX,
        partitions_max: int | None = None,
    ) -> None:
        self._store = store
        self._recreate_guard_ms = recreate_guard_ms
        self._topics_max = topics_max
        self._partitions_max = partitions_max
        self.partition_count = 0  # of all topics; shares have no partitions
        self._topics = Cache(store, TOPICS_PREFIX, decode=_decode, on_change=self._on_topic_change)
        self._tombs = Cache(store, TOMBS_PREFIX, decode=_decode, on_change=self._on_tomb_change)
        # Tombstones first: if a topic is missing, it can be checked whether it was deleted.
        super().__init__(self._tombs, self._topics)
        # Views of the topics:
        self._by_name: dict[NameKey, Topic] = {}
        self._by_id: dict[str, Topic] = {}
        self._by_arn: dict[str, Topic] = {}
        self._by_source: dict[str, dict[str, Topic]] = {}  # shares, by topic id and share id
        self._names: dict[tuple[str, str], list[str]] = {}  # sorted
        self._sns = SnsNames()
        self.find_sns, self.sns_topics = self._sns.find, self._sns.topics
        # View of the tombstones: the newest one of each guarded name.
        self._deleted: dict[NameKey, Topic] = {}
        self._listeners: list[Listener] = []
        self._tomb_listeners: list[Callable[[Topic], None]] = []

    def find(self, account: str, region: str, name: str) -> Topic | None:
        return self._by_name.get((account, region, name))

    def find_arn(self, arn: str) -> Topic | None:
        return self._by_arn.get(arn)

    def find_id(self, topic_id: str) -> Topic | None:
        return self._by_id.get(topic_id)

    def shares_of(self, topic_id: str) -> Sequence[Topic]:
        return list(self._by_source.get(topic_id, {}).values())

    def topics(self, account: str, region: str, prefix: str = "") -> Sequence[Topic]:
        names = self._names.get((account, region), [])
        later = (names[position] for position in range(bisect_left(names, prefix), len(names)))
        matching = takewhile(lambda name: name.startswith(prefix), later)
        return [self._by_name[account, region, name] for name in matching]

    def all_topics(self) -> Sequence[Topic]:
        return list(self._by_id.values())

    def recently_deleted(self, account: str, region: str, name: str, *, now_ms: int) -> bool:
        """Return whether a topic was deleted so recently that its name cannot be used yet."""
        tomb = self._deleted.get((account, region, name))
        if tomb is None or tomb.deleted_at_ms is None:
            return False
        return 0 <= now_ms - tomb.deleted_at_ms < self._recreate_guard_ms

    def tombstone(self, topic_id: str) -> Topic | None:
        """Return a deleted topic, whose data may be removed, or None if there is no tombstone."""
        return self._tombs.get(tomb_key(topic_id))

    def tombstones(self) -> Sequence[Topic]:
        return list(self._tombs.values())

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_tombstone(self, listener: Callable[[Topic], None]) -> None:
        """Call ``listener`` with each deleted topic, as soon as its data may be removed."""
        self._tomb_listeners.append(listener)

    async def create(self, topic: Topic) -> Topic:
        assert topic.deleted_at_ms is None
        key = topic_key(topic.account, topic.region, topic.name)
        for _ in range(TRIES_MAX):
            if len(self._topics) >= self._topics_max:
                raise errors.QuotaExceeded(
                    f"The limit of {self._topics_max} queues is reached. Delete some queues."
                )
            self._check_room(_logs_of(topic))
            try:
                await self._topics.write(key, topic, if_version=0)
                return topic
            except errors.VersionConflict as exc:
                # Read the topic of this name, so that the caller can compare; it may be gone.
                if (await self._topics.refresh(key))[0] is not None:
                    raise errors.TopicExists(f"The queue {topic.name} exists already.") from exc
        raise errors.Throttled(
            f"The queue {topic.name} is being changed by another request; retry."
        )

    async def change(
        self, account: str, region: str, name: str, change: Callable[[Topic], Topic]
    ) -> Topic:
        key = topic_key(account, region, name)
        for _ in range(TRIES_MAX):
            before, version = await self._newest(key, name)
            after = change(before)
            assert (after.topic_id, after.arn) == (before.topic_id, before.arn)
            if after == before:
                return before
            self._check_room(_logs_of(after) - _logs_of(before))
            try:
                await self._topics.write(key, after, if_version=version)
                return after
            except errors.VersionConflict:
                await self._topics.refresh(key)
        raise errors.Throttled(f"The queue {name} is being changed by another request; retry.")

    async def delete(self, account: str, region: str, name: str, *, now_ms: int) -> Topic:
        key = topic_key(account, region, name)
        for _ in range(TRIES_MAX):
            topic, version = await self._newest(key, name)
            tomb = msgspec.structs.replace(topic, deleted_at_ms=now_ms)
            writes = ((self._tombs, tomb_key(topic.topic_id), tomb), (self._topics, key, None))
            try:
                await write_all(self._store, ((key, version),), writes)
                return tomb
            except errors.VersionConflict as exc:
                if (await self._topics.refresh(key))[0] is None:
                    raise errors.TopicNotFound(name) from exc
        raise errors.Throttled(f"The queue {name} is being changed by another request; retry.")

    async def sweep(
        self, *, now_ms: int, is_gone: Callable[[str], bool], kept_ms: int = TOMBSTONE_MS
    ) -> int:
        """Remove tombstones older than ``kept_ms``, and the oldest ones if there are too many, and
        return their number. Tombstones of topics for which ``is_gone(topic_id)`` returns False
        are kept, because their data is not removed yet."""
        tombs = sorted(self._tombs.values(), key=lambda tomb: tomb.deleted_at_ms or 0)
        surplus = len(tombs) - TOMBSTONES_MAX
        keys = [
            tomb_key(tomb.topic_id)
            for place, tomb in enumerate(tombs)
            if (place < surplus or now_ms - (tomb.deleted_at_ms or 0) >= kept_ms)
            and is_gone(tomb.topic_id)
        ]
        for start in range(0, len(keys), CHANGES_PER_TXN_MAX):
            some = keys[start : start + CHANGES_PER_TXN_MAX]
            await write_all(self._store, (), [(self._tombs, key, None) for key in some])
        return len(keys)

    def _check_room(self, added: int) -> None:
        most = self._partitions_max
        if added > 0 and most is not None and self.partition_count + added > most:
            raise errors.QuotaExceeded(
                f"This node has {self.partition_count} of {most} partitions; {added} more exceed"
                " its limit of open files. Raise the limit (ulimit -n) or delete queues."
            )

    async def _newest(self, key: str, name: str) -> tuple[Topic, int]:
        topic, version = self._topics.get(key), self._topics.version(key)
        if topic is None:
            # Another node may have created the topic just now, before the watch reports it.
            topic, version = await self._topics.refresh(key)
        if topic is None:
            raise errors.TopicNotFound(name)
        return topic, version

    def _on_topic_change(self, key: str, before: Topic | None, after: Topic | None) -> None:
        if before is not None and after is not None and before.topic_id != after.topic_id:
            # Deleted and created again between two updates: report both to listeners.
            self._on_topic_change(key, before, None)
            before = None
        if before is not None:
            self._forget(before)
        if after is not None:
            self._remember(after)
        _tell(self._listeners, before, after, failed="catalog listener failed")

    def _on_tomb_change(self, _key: str, before: Topic | None, after: Topic | None) -> None:
        tomb = after or before
        assert tomb is not None
        name = (tomb.account, tomb.region, tomb.name)
        known = self._deleted.get(name)
        if after is None:
            if known is not None and known.topic_id == tomb.topic_id:
                del self._deleted[name]
            return
        if known is None or (known.deleted_at_ms or 0) <= (after.deleted_at_ms or 0):
            self._deleted[name] = after
        _tell(self._tomb_listeners, after, failed="listener for deleted topics failed")

    def _remember(self, topic: Topic) -> None:
        place = (topic.account, topic.region)
        name_key = (*place, topic.name)
        if name_key not in self._by_name:
            insort(self._names.setdefault(place, []), topic.name)
        self._by_name[name_key] = topic
        self._by_id[topic.topic_id] = topic
        self._by_arn[topic.arn] = topic
        self.partition_count += _logs_of(topic)
        if topic.source_id is not None:
            put_in(self._by_source, topic.source_id, topic.topic_id, topic)
        self._sns.add(topic)

    def _forget(self, topic: Topic) -> None:
        place = (topic.account, topic.region)
        del self._by_name[(*place, topic.name)]
        del self._by_id[topic.topic_id]
        del self._by_arn[topic.arn]
        self.partition_count -= _logs_of(topic)
        if topic.source_id is not None:
            put_in(self._by_source, topic.source_id, topic.topic_id, None)
        self._sns.remove(topic)
        names = self._names[place]
        del names[bisect_left(names, topic.name)]
        if not names:
            del self._names[place]


async def make_internal_topic(
    catalog: Catalog,
    namespace: tuple[str, str],
    name: str,
    *,
    partition_count: int,
    configs: Mapping[str, str],
    clock: Clock,
    entropy: Callable[[int], bytes],
) -> Topic:
    """Create an internal topic, which only nodes use, or return the existing one."""
    account, region = namespace
    now_ms = clock.wall_ms()
    topic = Topic(
        topic_id=entropy(TOPIC_ID_BYTES).hex(),
        account=account,
        region=region,
        name=name,
        kind=Kind.STREAM,
        partition_count=partition_count,
        created_at_ms=now_ms,
        modified_at_ms=now_ms,
        receipt_key=entropy(RECEIPT_KEY_BYTES),
        configs=dict(configs),
    )
    try:
        return await catalog.create(topic)
    except errors.TopicExists:  # created by another node
        found = catalog.find(account, region, name)
        if found is None:
            raise
        return found


def move_key(task_id: str) -> str:
    return f"{MOVES_PREFIX}{task_id}"


class MoveTasks:
    """The tasks that move messages from dead-letter queues back to their source queues."""

    def __init__(self, store: Store, *, per_source_max: int = MOVES_PER_SOURCE_MAX) -> None:
        self._per_source_max = per_source_max
        self._by_source: dict[str, dict[str, MoveTask]] = {}
        self._tasks = Cache(store, MOVES_PREFIX, decode=_decode_move, on_change=self._on_change)
        self.start, self.stop = self._tasks.start, self._tasks.stop

    def get(self, task_id: str) -> MoveTask | None:
        return self._tasks.get(move_key(task_id))

    def list(self, source_arn: str) -> Sequence[MoveTask]:
        """Return all tasks of a dead-letter queue, newest first, including ended tasks."""
        tasks = self._by_source.get(source_arn, {})
        return sorted(tasks.values(), key=lambda task: (-task.started_at_ms, task.task_id))

    def unfinished(self) -> Sequence[MoveTask]:
        return [task for task in self._tasks.values() if task.status in UNFINISHED]

    async def put(self, task: MoveTask) -> None:
        """Store a task, and delete the oldest ended tasks if its queue has too many tasks."""
        await self._tasks.write(move_key(task.task_id), task)
        for old in self.list(task.source_arn)[self._per_source_max :]:
            if old.status not in UNFINISHED:
                await self.delete(old.task_id)

    async def delete(self, task_id: str) -> None:
        await self._tasks.write(move_key(task_id), None)

    def _on_change(self, _key: str, before: MoveTask | None, after: MoveTask | None) -> None:
        if before is not None:
            put_in(self._by_source, before.source_arn, before.task_id, None)
        if after is not None:
            put_in(self._by_source, after.source_arn, after.task_id, after)


class StoredProducerIds:
    """Returns unique producer ids from blocks of ids that are reserved in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        async with self._lock:
            while self._next == self._end:
                entry = await self._store.get(PRODUCER_IDS_KEY)
                start, version = (0, 0) if entry is None else (int(entry.value), entry.version)
                end = start + PRODUCER_IDS_BLOCK
                try:
                    await self._store.put(PRODUCER_IDS_KEY, b"%d" % end, if_version=version)
                except errors.VersionConflict:
                    continue  # another node has reserved this block
                self._next, self._end = start, end
            self._next += 1
            return self._next - 1
