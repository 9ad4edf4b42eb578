"""The metadata service: serves topics, identities and keys to other nodes from memory, and passes
their changes on to the store.

Every metadata node holds all entries in memory, except if there are very many topics. Then a node
holds its part of the topics (by a hash ring), and a limited number of other topics that were
requested. A request for a topic of another node is forwarded once, to the topic's owner. If the
owner is not reachable, or the two nodes know different members, the first node reads the store.

Every metadata node can write to the store, by compare-and-swap, after checking ``entry_rules``, and
can serve watches, because it receives every change. The store may itself be another metadata node
(``remote_store``). Every reply to a watch states for how long the store has not replied."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.metadata.cache import WatchGroup, abandon
from penstock.metadata.cluster_entries import MANAGER_KEY
from penstock.metadata.serving import calls
from penstock.metadata.serving.entry_rules import CLUSTER, RULES, check_txn, prefix_of, topic_id_of
from penstock.metadata.serving.mirror import (
    HISTORY_CHANGES_MAX,
    Mirror,
    Ring,
    merge_pages,
    place_of,
    take_page,
)
from penstock.metadata.store import Change, Entry, Store, Txn
from penstock.metadata.topics.catalog import TOPICS_MAX, TOPICS_PREFIX
from penstock.model import errors
from penstock.wire.internal.calls import Call, Caller, CallerInfo, CallHandlers, Nothing, Q, R

PAGE_ENTRIES_MAX = 2_000
PAGE_BYTES_MAX = 8 * 1_048_576  # size of a page that is merged from the pages of all members
CATCH_UP_SECONDS = 0.25  # wait for the watch to report a revision that another node has seen
SETTLE_RETRY_SECONDS = 1.0
WHOLE_AGAIN = 0.8  # below this part of whole_entries_max all topics are held again

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    whole_entries_max: int = 50_000  # up to this number of topics every metadata node holds all
    read_through_entries_max: int = 10_000  # cached entries of other members
    topics_max: int = TOPICS_MAX
    watchers_max: int = 4_096  # number of watches that wait at once
    watch_ms_max: int = 30_000
    forward_ms_max: int = 1_000  # after this time the store is read instead
    stale_ms_max: int = 10_000  # if the store is away for longer, missing entries may exist
    history_changes_max: int = HISTORY_CHANGES_MAX


class MetadataService(WatchGroup):
    def __init__(
        self,
        store: Store,
        *,
        node_id: str,
        members: Callable[[], Sequence[str]],
        peer: Callable[[str], Caller],
        config: MetadataConfig | None = None,
        store_stale_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        # ``members`` returns the metadata nodes, with this node once it has joined; ``peer`` the
        # caller for a member's id; ``store_stale_ms`` for how long the store may lack changes.
        self._store = store
        self._node_id = node_id
        self._members = members
        self._peer = peer
        self._config = config or MetadataConfig()
        self._store_stale_ms = store_stale_ms
        history = self._config.history_changes_max
        self.topics = Mirror(
            store,
            TOPICS_PREFIX,
            label=topic_id_of,
            on_change=self._changed,
            on_gap=self._missed,
            history_changes_max=history,
        )
        # Tombstones before topics: if a topic is missing, it can be checked whether it was deleted.
        self._mirrors = {
            prefix: Mirror(store, prefix, history_changes_max=history)
            for prefix in RULES
            if prefix != TOPICS_PREFIX
        }
        self._mirrors[TOPICS_PREFIX] = self.topics
        super().__init__(*self._mirrors.values())
        self.ring = Ring([node_id])
        self._held_ring: str | None = None  # fingerprint of the ring whose part is held
        self._read_through: OrderedDict[str, Entry] = OrderedDict()
        self.watcher_count = 0
        self._unsettled = asyncio.Event()  # set if the held part may have to change
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopped = False
        # For metrics:
        self.forwarded_count = 0
        self.fallback_count = 0  # requests for other members that were served from the store

    async def start(self) -> None:
        await super().start()
        self.members_changed()
        await self._settle()
        self._keeper = asyncio.create_task(self._keep(), name="metadata ring")

    async def stop(self) -> None:
        """Reply to waiting watches, so that the listener can stop, and reject later requests."""
        self._is_stopped = True
        keeper, self._keeper = self._keeper, None
        await abandon(keeper)
        await super().stop()

    def register(self, answers: CallHandlers) -> None:
        answers.add(calls.GET, self._get)
        answers.add(calls.LIST, self._list)
        answers.add(calls.FIND_ID, self._find_id)
        answers.add(calls.TXN, self._txn)
        answers.add(calls.WATCH, self._watch)
        answers.add(calls.GRANT, self._grant)
        answers.add(calls.KEEP_ALIVE, self._keep_alive)
        answers.add(calls.REVOKE, self._revoke)

    @property
    def is_settled(self) -> bool:
        """Whether this node holds the topics that it should hold: all, or its part of the ring."""
        topics, most = self.topics, self._config.whole_entries_max
        if topics.is_whole:
            return topics.entry_count <= most
        is_part = self._held_ring == self.ring.fingerprint
        return is_part and topics.entry_count > most * WHOLE_AGAIN

    def members_changed(self) -> None:
        members = tuple(sorted(self._members())) or (self._node_id,)
        if members != self.ring.members:
            self.ring = Ring(members)
            self._unsettled.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._unsettled.wait()
            self._unsettled.clear()
            try:
                await self._settle()
            except errors.PenstockError as error:
                log.warning("loading metadata entries failed", extra={"reason": str(error)})
                loop.call_later(SETTLE_RETRY_SECONDS, self._unsettled.set)

    async def _settle(self) -> None:
        if self.is_settled:
            return
        topics, ring = self.topics, self.ring
        if topics.entry_count <= self._config.whole_entries_max * WHOLE_AGAIN:
            await topics.hold(None)
            self._held_ring = None
        else:
            own = self._node_id
            await topics.hold(lambda place: ring.owner_at(place) == own)
            self._held_ring = ring.fingerprint
        log.info(
            "metadata entries loaded",
            extra={
                "topics": topics.entry_count,
                "held": topics.held_count,
                "members": len(ring.members),
            },
        )

    def _changed(self, change: Change) -> None:
        self._read_through.pop(change.key, None)
        self._consider()

    def _missed(self) -> None:
        self._read_through.clear()
        self._consider()

    def _consider(self) -> None:
        if not self.is_settled:
            self._unsettled.set()

    def _get(
        self, request: calls.Get, asked: CallerInfo
    ) -> calls.Got | Coroutine[Any, Any, calls.Got]:
        mirror, key = self._mirror_of(request.key), request.key
        revision = mirror.known_revision
        if request.is_fresh or revision < request.min_revision:
            return self._read_store(request)
        if mirror.is_whole or mirror.holds(key):
            entry = mirror.get(key)
            if entry is None and self._store_stale_ms() > self._config.stale_ms_max:
                return self._read_store(request)  # it may have been created since
            return calls.Got(entry, revision)
        remembered = self._read_through.get(key)
        if remembered is not None:
            self._read_through.move_to_end(key)
            return calls.Got(remembered, revision)
        self.members_changed()
        owner = self.ring.owner_at(place_of(key))
        if owner == self._node_id:
            return self._read_store(request)  # this node has just become its owner
        if request.is_forwarded:
            raise calls.Misdirected(f"Metadata node {self._node_id} does not hold {key}.")
        return self._ask_owner(owner, request, asked)

    async def _read_store(self, request: calls.Get) -> calls.Got:
        # The store had at least this revision before the read.
        revision = max(self._mirror_of(request.key).known_revision, request.min_revision)
        entry = await self._store.get(request.key)
        return calls.Got(entry, revision if entry is None else max(revision, entry.version))

    async def _ask_owner(self, owner: str, request: calls.Get, asked: CallerInfo) -> calls.Got:
        self.forwarded_count += 1
        forwarded = msgspec.structs.replace(request, is_forwarded=True)
        timeout_ms = min(asked.timeout_ms, self._config.forward_ms_max)
        try:
            got = await self._peer(owner).call(calls.GET, forwarded, timeout_ms=timeout_ms)
        except errors.PenstockError as error:
            # Not reachable, overloaded, or using another ring: read the store.
            self._fell_back("get", error)
            got = await self._read_store(request)
        # Cache an entry only if it is as new as memory; its next change removes it.
        if got.entry is not None and got.revision >= self.topics.known_revision:
            self._read_through[request.key] = got.entry
            if len(self._read_through) > self._config.read_through_entries_max:
                self._read_through.popitem(last=False)
        return got

    def _find_id(
        self, request: calls.FindId, asked: CallerInfo
    ) -> calls.Got | Coroutine[Any, Any, calls.Got]:
        topics = self._mirror_of(TOPICS_PREFIX)
        entry = topics.find_label(request.topic_id)
        if entry is not None or topics.is_whole or request.ring == self._held_ring:
            return calls.Got(entry, topics.known_revision)
        if request.ring:
            raise calls.Misdirected(f"Node {self._node_id} does not hold this part of the topics.")
        return self._ask_all(request, asked)

    async def _ask_all(self, request: calls.FindId, asked: CallerInfo) -> calls.Got:
        """Ask all members for a topic, because its id does not determine which member holds it."""
        self.members_changed()
        revision = self.topics.known_revision
        forwarded = calls.FindId(request.topic_id, ring=self.ring.fingerprint)
        answers, failure = await self._of_others(calls.FIND_ID, forwarded, asked)
        for answer in answers:
            if answer.entry is not None:
                return answer
        if failure is not None:
            # The member that failed may hold the topic.
            raise errors.Overloaded("Not every metadata node replied; retry.") from failure
        return calls.Got(None, revision)

    async def _of_others(
        self, call: Call[Q, R], request: Q, asked: CallerInfo
    ) -> tuple[Sequence[R], errors.PenstockError | None]:
        """Call all other members. Returns their replies, and an error if a call failed."""
        self.forwarded_count += 1
        if self._held_ring != self.ring.fingerprint:
            return (), calls.Misdirected(
                f"Node {self._node_id} is loading another part of the topics."
            )
        timeout_ms = min(asked.timeout_ms, self._config.forward_ms_max)
        others = [one for one in self.ring.members if one != self._node_id]

        async def ask(node_id: str) -> R:
            return await self._peer(node_id).call(call, request, timeout_ms=timeout_ms)

        answers = await asyncio.gather(*map(ask, others), return_exceptions=True)
        found: list[R] = []
        failure: errors.PenstockError | None = None
        for answer in answers:
            if isinstance(answer, errors.PenstockError):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found, failure

    def _list(
        self, request: calls.ListPage, asked: CallerInfo
    ) -> calls.Listed | Coroutine[Any, Any, calls.Listed]:
        mirror = self._mirror_of(request.prefix)
        if RULES[mirror.prefix].family == CLUSTER and not request.after:
            return self._list_as_of_now(mirror, request)
        if mirror.known_revision < request.min_revision:
            return self._list_later(mirror, request, asked)
        if mirror.is_whole or (request.ring and request.ring == self._held_ring):
            return self._page(mirror, request)
        if request.ring:
            raise calls.Misdirected(f"Node {self._node_id} does not hold this part of the topics.")
        return self._gather(request, asked)

    async def _list_later(
        self, mirror: Mirror, request: calls.ListPage, asked: CallerInfo
    ) -> calls.Listed:
        await mirror.catch_up(request.min_revision, seconds=CATCH_UP_SECONDS)
        listed = self._list(msgspec.structs.replace(request, min_revision=0), asked)
        return listed if isinstance(listed, calls.Listed) else await listed

    async def _list_as_of_now(self, mirror: Mirror, request: calls.ListPage) -> calls.Listed:
        """Return a page of entries after catching up with the store, because a node must not act on
        partition rows that are older than its registration."""
        _, revision = await self._store.list(MANAGER_KEY)  # at most one entry; the revision matters
        await mirror.catch_up(max(revision, request.min_revision), seconds=0)
        return self._page(mirror, request)

    def _page(self, mirror: Mirror, request: calls.ListPage) -> calls.Listed:
        entries, is_end = mirror.page(request.prefix, after=request.after, **_limits(request))
        return calls.Listed(entries, is_end, mirror.known_revision, mirror.entry_count)

    async def _gather(self, request: calls.ListPage, asked: CallerInfo) -> calls.Listed:
        self.members_changed()
        ring, topics = self.ring, self.topics
        part = msgspec.structs.replace(
            request,
            ring=ring.fingerprint,
            bytes_max=min(request.bytes_max, PAGE_BYTES_MAX) // len(ring.members),
        )
        pages, failure = await self._of_others(calls.LIST, part, asked)
        if failure is not None:
            return await self._list_store(request, failure)
        if self._held_ring != ring.fingerprint:
            # The held part has changed since the members were called.
            moved = calls.Misdirected(f"Node {self._node_id} now holds other topics.")
            return await self._list_store(request, moved)
        return merge_pages([self._page(topics, part), *pages], entry_count=topics.entry_count)

    async def _list_store(
        self, request: calls.ListPage, error: errors.PenstockError
    ) -> calls.Listed:
        """Return a page of one account's topics from the store. Raises Overloaded if all topics are
        requested, because each page would have to read all of them from the store."""
        if request.prefix == TOPICS_PREFIX:
            raise errors.Overloaded("Not every metadata node replied; retry.") from error
        self._fell_back("list", error)
        entries, revision = await self._store.list(request.prefix)
        later = (entry for entry in entries if entry.key > request.after)
        page, is_end = take_page(later, request.prefix, **_limits(request))
        return calls.Listed(page, is_end, revision, self.topics.entry_count)

    async def _txn(self, request: Txn, _caller: CallerInfo) -> calls.Written:
        for key in check_txn(request):
            mirror = self._mirror_of(key)
            if mirror.get(key) is not None:
                continue  # not new, or its version is compared
            most, what = RULES[mirror.prefix].entries_max, mirror.prefix.strip("/")
            if mirror is self.topics:
                most, what = self._config.topics_max, "queues"
            if mirror.entry_count >= most:
                raise errors.QuotaExceeded(f"The limit of {most} {what} in the catalog is reached.")
        # Deleted keys that exist, as far as this node knows.
        known = {**dict(request.compare_created), **dict(request.compare)}
        gone = [key for key in request.deletes if known.get(key) or self._mirror_of(key).get(key)]
        revision = await self._store.commit(request)
        # Wait for the watch, so that later requests to this node see the change.
        for prefix in {prefix_of(key) for key in (*(key for key, _ in request.puts), *gone)}:
            await self._mirrors[prefix].wait(revision, seconds=CATCH_UP_SECONDS)
        return calls.Written(revision)

    async def _grant(self, request: calls.Grant, _caller: CallerInfo) -> calls.OfLease:
        return calls.OfLease(await self._store.grant(request.ttl_ms))

    async def _keep_alive(self, request: calls.OfLease, _caller: CallerInfo) -> calls.KeptAlive:
        return calls.KeptAlive(await self._store.keep_alive(request.lease))

    async def _revoke(self, request: calls.OfLease, _caller: CallerInfo) -> Nothing:
        await self._store.revoke(request.lease)
        return Nothing()

    def _watch(
        self, request: calls.Watch, asked: CallerInfo
    ) -> calls.Watched | Coroutine[Any, Any, calls.Watched]:
        mirror = self._mirror_of(request.prefix)
        if request.prefix != mirror.prefix:
            raise errors.InvalidRequest("A watch must be for a whole prefix, such as /topics/.")
        if request.from_revision <= mirror.revision or request.wait_ms <= 0:
            return self._watched(mirror, request.from_revision)
        mirror.changes(request.from_revision)  # raises Compacted
        return self._watch_later(mirror, request, asked)

    async def _watch_later(
        self, mirror: Mirror, request: calls.Watch, asked: CallerInfo
    ) -> calls.Watched:
        if self.watcher_count >= self._config.watchers_max:
            raise errors.Throttled("Too many watches are open on this node; retry.")
        self.watcher_count += 1
        try:
            # A little before the caller's timeout: a reply without changes is useful too.
            wait_ms = min(request.wait_ms, self._config.watch_ms_max, asked.timeout_ms * 9 // 10)
            await mirror.wait(request.from_revision, seconds=wait_ms / 1_000)
        finally:
            self.watcher_count -= 1
        return self._watched(mirror, request.from_revision)

    def _watched(self, mirror: Mirror, from_revision: int) -> calls.Watched:
        changes, next_revision = mirror.changes(from_revision)
        stale_ms = self._store_stale_ms()
        if mirror.trouble is not None:
            now = asyncio.get_running_loop().time()
            stale_ms = max(stale_ms, int((now - mirror.troubled_at) * 1_000))
        return calls.Watched(changes, next_revision, mirror.entry_count, stale_ms)

    def _mirror_of(self, key: str) -> Mirror:
        if self._is_stopped:
            raise errors.Draining("The metadata service is stopping.")
        return self._mirrors[prefix_of(key)]

    def _fell_back(self, what: str, error: errors.PenstockError) -> None:
        self.fallback_count += 1
        log.debug("peer call failed, reading store", extra={"call": what, "reason": str(error)})


def _limits(request: calls.ListPage) -> dict[str, int]:
    return {
        "count_max": max(1, min(request.count_max, PAGE_ENTRIES_MAX)),
        "bytes_max": min(request.bytes_max, PAGE_BYTES_MAX),
    }
