"""The metadata role: answers other nodes' questions about topics, identities and keys from memory,
and passes their changes on to the store.

Topics are many; everything else is held whole. While topics are few every metadata node holds all
of them, and any of them answers anything. Above a bound a node holds what the ring gives it, and a
bounded number of others' entries that it was asked for; a question about another's entry goes to
its owner and no further. The store stays the truth throughout: when the owner is away, or two nodes
see different members, the one that was asked reads the store. Who holds what is therefore a matter
of memory and never of being right, and each node decides it by itself.

Writes go from any node straight to the store, as compare-and-swap; nobody writes around a rule that
is checked here. Watches are served by any node: each hears of every change.

The store may itself be another metadata node's (``remote_store``): then this one is a mirror that
answers from memory and passes changes on. How long it has heard nothing from there it tells with
every answer to a watch. Who the members are, and how to call one, is given from outside.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.metadata.calls import (
    FIND_ID,
    GET,
    GRANT,
    KEEP_ALIVE,
    LIST,
    REVOKE,
    TXN,
    WATCH,
    FindId,
    Get,
    Got,
    Grant,
    Granted,
    KeepAlive,
    KeptAlive,
    Listed,
    ListPage,
    Misdirected,
    Revoke,
    Txn,
    Watch,
    Watched,
    Written,
)
from penstock.metadata.catalog import TOPICS_MAX, TOPICS_PREFIX
from penstock.metadata.cluster_entries import MANAGER_KEY
from penstock.metadata.entry_rules import RULES, Family, check_txn, prefix_of, topic_id_of
from penstock.metadata.mirror import HISTORY_CHANGES_MAX, Keeps, Mirror, take_page
from penstock.metadata.ring import Member, Ring, place_of
from penstock.metadata.store import Change, Entry, Store
from penstock.model.errors import (
    Draining,
    InvalidRequest,
    Overloaded,
    PenstockError,
    QuotaExceeded,
    Throttled,
)
from penstock.wire.internal.calls import Answers, Asked, Call, Caller, Nothing, Q, R

PAGE_ENTRIES_MAX = 2_000
PAGE_BYTES_MAX = 8 * 1_048_576  # of a page put together from the members' parts
CATCH_UP_SECONDS = 0.25  # for the watch to bring what somebody else has seen
SETTLE_RETRY_SECONDS = 1.0
WHOLE_AGAIN = 0.8  # of the bound: a catalog about its size must not be read over and over

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    whole_entries_max: int = 50_000  # up to so many topics every metadata node holds all of them
    read_through_entries_max: int = 10_000  # of others' entries that are remembered
    topics_max: int = TOPICS_MAX
    watchers_max: int = 4_096  # waiting for a change at once
    watch_ms_max: int = 30_000
    forward_ms_max: int = 1_000  # then the store is asked instead
    stale_ms_max: int = 10_000  # after so long without the store nothing is known to be absent
    history_changes_max: int = HISTORY_CHANGES_MAX


class MetadataService:
    def __init__(
        self,
        store: Store,
        *,
        node_id: str,
        members: Callable[[], Sequence[Member]],
        peer: Callable[[str], Caller],
        config: MetadataConfig | None = None,
        store_stale_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """``members``: the metadata nodes, this one included once it has joined; a plain look-up.
        ``peer``: how to call one of them, by its id. ``store_stale_ms``: for how long the store
        itself may have missed changes."""
        self._store = store
        self._node_id = node_id
        self._members = members
        self._peer = peer
        self._config = config or MetadataConfig()
        self._store_stale_ms = store_stale_ms
        history = self._config.history_changes_max
        self._topics = Mirror(
            store,
            TOPICS_PREFIX,
            label=topic_id_of,
            on_change=self._changed,
            on_gap=self._missed,
            history_changes_max=history,
        )
        # Tombstones before topics: who sees a topic missing can look whether it was deleted.
        self._mirrors = {
            prefix: Mirror(store, prefix, history_changes_max=history)
            for prefix in RULES
            if prefix != TOPICS_PREFIX
        }
        self._mirrors[TOPICS_PREFIX] = self._topics
        self._ring = Ring([Member(node_id)])
        self._ring_members: Sequence[Member] = self._ring.members
        self._held_ring: str | None = None  # fingerprint of the ring whose part is held
        self._read_through: OrderedDict[str, Entry] = OrderedDict()
        self.watcher_count = 0
        self._unsettled = asyncio.Event()  # another part should be held, or may have to be
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopped = False
        # What an operator may ask for:
        self.forwarded_count = 0
        self.fallback_count = 0  # questions that should have been another's and went to the store

    async def start(self) -> None:
        """Returns when everything is in memory. Raises what the store raises."""
        try:
            for mirror in self._mirrors.values():
                await mirror.start()
        except BaseException:
            for mirror in self._mirrors.values():
                await mirror.stop()
            raise
        self.members_changed()
        await self._settle()
        self._keeper = asyncio.create_task(self._keep(), name="metadata ring")

    async def stop(self) -> None:
        """Watches that wait are answered, so that the listener can drain; whoever asks from now on
        is sent elsewhere, for memory no longer follows the store."""
        self._is_stopped = True
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        for mirror in self._mirrors.values():
            await mirror.stop()

    def register(self, answers: Answers) -> None:
        answers.add(GET, self._get)
        answers.add(LIST, self._list)
        answers.add(FIND_ID, self._find_id)
        answers.add(TXN, self._txn)
        answers.add(WATCH, self._watch)
        answers.add(GRANT, self._grant)
        answers.add(KEEP_ALIVE, self._keep_alive)
        answers.add(REVOKE, self._revoke)

    @property
    def trouble(self) -> str | None:
        """Why memory may be behind the store, or None."""
        return next((one.trouble for one in self._mirrors.values() if one.trouble), None)

    @property
    def is_whole(self) -> bool:
        return self._topics.is_whole

    @property
    def is_settled(self) -> bool:
        """Whether this node holds what it should: everything, or its part of the present ring."""
        topics, most = self._topics, self._config.whole_entries_max
        if topics.is_whole:
            return topics.entry_count <= most
        is_part = self._held_ring == self._ring.fingerprint
        return is_part and topics.entry_count > most * WHOLE_AGAIN

    @property
    def topic_count(self) -> int:
        return self._topics.entry_count

    @property
    def held_count(self) -> int:
        return self._topics.held_count

    # ── Members ──────────────────────────────────────────────────────────────────────────────

    @property
    def ring(self) -> Ring:
        return self._ring

    def members_changed(self) -> None:
        """To be called when somebody came or went. A change is also noticed by the next question
        that depends on it."""
        members = tuple(sorted(self._members())) or (Member(self._node_id),)
        if members != self._ring_members:
            self._ring_members = members
            self._ring = Ring(members)
            self._unsettled.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._unsettled.wait()
            self._unsettled.clear()
            try:
                await self._settle()
            except PenstockError as error:
                log.warning("metadata ring not settled", extra={"why": str(error)})
                loop.call_later(SETTLE_RETRY_SECONDS, self._unsettled.set)

    async def _settle(self) -> None:
        """Hold what this node should hold by now."""
        if self.is_settled:
            return
        topics, ring = self._topics, self._ring
        if topics.entry_count <= self._config.whole_entries_max * WHOLE_AGAIN:
            await topics.hold(None)
            self._held_ring = None
        else:
            await topics.hold(self._part_of(ring))
            self._held_ring = ring.fingerprint
        log.info(
            "metadata held",
            extra={
                "topics": topics.entry_count,
                "held": topics.held_count,
                "members": len(ring.members),
            },
        )

    def _part_of(self, ring: Ring) -> Keeps:
        owner_at, own = ring.owner_at, self._node_id
        return lambda place: owner_at(place) == own

    def _changed(self, change: Change) -> None:
        self._read_through.pop(change.key, None)
        self._consider()

    def _missed(self) -> None:
        self._read_through.clear()
        self._consider()

    def _consider(self) -> None:
        if not self.is_settled:
            self._unsettled.set()

    # ── One entry ────────────────────────────────────────────────────────────────────────────

    def _get(self, request: Get, asked: Asked) -> Got | Coroutine[Any, Any, Got]:
        mirror, key = self._mirror_of(request.key), request.key
        revision = mirror.known_revision
        if request.is_fresh or revision < request.min_revision:
            return self._read_store(request)
        if mirror.is_whole or mirror.holds(key):
            entry = mirror.get(key)
            if entry is None and self._store_stale_ms() > self._config.stale_ms_max:
                return self._read_store(request)  # made since, perhaps: only the store can say no
            return Got(entry, revision)
        remembered = self._read_through.get(key)
        if remembered is not None:
            self._read_through.move_to_end(key)
            return Got(remembered, revision)
        self.members_changed()
        owner = self._ring.owner_at(place_of(key))
        if owner == self._node_id:
            return self._read_store(request)  # it has just become this node's
        if request.is_forwarded:
            raise Misdirected(f"{key} is not with node {self._node_id}.")
        return self._ask_owner(owner, request, asked)

    async def _read_store(self, request: Get) -> Got:
        # What was known before, here or by the caller, the store knew before it was asked.
        revision = max(self._mirror_of(request.key).known_revision, request.min_revision)
        entry = await self._store.get(request.key)
        return Got(entry, revision if entry is None else max(revision, entry.version))

    async def _ask_owner(self, owner: str, request: Get, asked: Asked) -> Got:
        self.forwarded_count += 1
        forwarded = msgspec.structs.replace(request, is_forwarded=True)
        timeout_ms = min(asked.timeout_ms, self._config.forward_ms_max)
        try:
            got = await self._peer(owner).call(GET, forwarded, timeout_ms=timeout_ms)
        except PenstockError as error:
            # Away, overloaded, or of another mind about the ring: the store knows.
            self._fell_back("get", error)
            got = await self._read_store(request)
        # Only what no change can have passed by already: the watch drops it with the next one.
        if got.entry is not None and got.revision >= self._topics.known_revision:
            self._read_through[request.key] = got.entry
            if len(self._read_through) > self._config.read_through_entries_max:
                self._read_through.popitem(last=False)
        return got

    def _find_id(self, request: FindId, asked: Asked) -> Got | Coroutine[Any, Any, Got]:
        topics = self._mirror_of(TOPICS_PREFIX)
        entry = topics.find_label(request.topic_id)
        if entry is not None or topics.is_whole or request.ring == self._held_ring:
            return Got(entry, topics.known_revision)
        if request.ring:
            raise Misdirected(f"Node {self._node_id} does not hold that part.")
        return self._ask_all(request, asked)

    async def _ask_all(self, request: FindId, asked: Asked) -> Got:
        """An id says nothing of its place on the ring: everybody is asked for their own."""
        self.members_changed()
        revision = self._topics.known_revision
        forwarded = FindId(request.topic_id, ring=self._ring.fingerprint)
        answers, failure = await self._of_others(FIND_ID, forwarded, asked)
        for answer in answers:
            if answer.entry is not None:
                return answer
        if failure is not None:
            # Perhaps that one would have had it.
            raise Overloaded("Not every metadata node could be asked.") from failure
        return Got(None, revision)

    async def _of_others(
        self, call: Call[Q, R], request: Q, asked: Asked
    ) -> tuple[Sequence[R], PenstockError | None]:
        """What the other members say, and one of the reasons why some did not."""
        self.forwarded_count += 1
        if self._held_ring != self._ring.fingerprint:
            return (), Misdirected(f"Node {self._node_id} is about to hold another part.")
        timeout_ms = min(asked.timeout_ms, self._config.forward_ms_max)
        others = [one.node_id for one in self._ring.members if one.node_id != self._node_id]

        async def ask(node_id: str) -> R:
            return await self._peer(node_id).call(call, request, timeout_ms=timeout_ms)

        answers = await asyncio.gather(*map(ask, others), return_exceptions=True)
        found: list[R] = []
        failure: PenstockError | None = None
        for answer in answers:
            if isinstance(answer, PenstockError):
                failure = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found, failure

    # ── Pages ────────────────────────────────────────────────────────────────────────────────

    def _list(self, request: ListPage, asked: Asked) -> Listed | Coroutine[Any, Any, Listed]:
        mirror = self._mirror_of(request.prefix)
        if RULES[mirror.prefix].family is Family.CLUSTER and not request.after:
            return self._list_as_of_now(mirror, request)
        if mirror.known_revision < request.min_revision:
            return self._list_later(mirror, request, asked)
        if mirror.is_whole or (request.ring and request.ring == self._held_ring):
            return self._page(mirror, request)
        if request.ring:
            raise Misdirected(f"Node {self._node_id} does not hold that part.")
        return self._gather(request, asked)

    async def _list_later(self, mirror: Mirror, request: ListPage, asked: Asked) -> Listed:
        await mirror.catch_up(request.min_revision, seconds=CATCH_UP_SECONDS)
        listed = self._list(msgspec.structs.replace(request, min_revision=0), asked)
        return listed if isinstance(listed, Listed) else await listed

    async def _list_as_of_now(self, mirror: Mirror, request: ListPage) -> Listed:
        """A node acts only on rows that are no older than its registration, which is a change of
        another kind: what stands in memory may be as new, but only the store can say so. Further
        pages are never older than the first."""
        _, revision = await self._store.list(MANAGER_KEY)  # one entry at most, and the revision
        await mirror.catch_up(max(revision, request.min_revision), seconds=0)
        return self._page(mirror, request)

    def _page(self, mirror: Mirror, request: ListPage) -> Listed:
        entries, is_end = mirror.page(
            request.prefix,
            after=request.after,
            count_max=max(1, min(request.count_max, PAGE_ENTRIES_MAX)),
            bytes_max=min(request.bytes_max, PAGE_BYTES_MAX),
        )
        return Listed(entries, is_end, mirror.known_revision, mirror.entry_count)

    async def _gather(self, request: ListPage, asked: Asked) -> Listed:
        """One page out of the parts of all members."""
        self.members_changed()
        ring, topics = self._ring, self._topics
        part = msgspec.structs.replace(
            request,
            ring=ring.fingerprint,
            bytes_max=min(request.bytes_max, PAGE_BYTES_MAX) // len(ring.members),
        )
        pages, failure = await self._of_others(LIST, part, asked)
        if failure is not None:
            return await self._list_store(request, failure)
        if self._held_ring != ring.fingerprint:
            # Meanwhile this node holds another part than the others told of.
            moved = Misdirected(f"Node {self._node_id} holds another part by now.")
            return await self._list_store(request, moved)
        return merge_pages([self._page(topics, part), *pages], entry_count=topics.entry_count)

    async def _list_store(self, request: ListPage, error: PenstockError) -> Listed:
        """One account's topics are read from the store then. All of them are not: whoever wants
        them asks for page after page, and each would be a read of everything."""
        if request.prefix == TOPICS_PREFIX:
            raise Overloaded("Not every metadata node could be asked.") from error
        self._fell_back("list", error)
        entries, revision = await self._store.list(request.prefix)
        page, is_end = take_page(
            (entry for entry in entries if entry.key > request.after),
            request.prefix,
            count_max=max(1, min(request.count_max, PAGE_ENTRIES_MAX)),
            bytes_max=min(request.bytes_max, PAGE_BYTES_MAX),
        )
        return Listed(page, is_end, revision, self._topics.entry_count)

    # ── Changes ──────────────────────────────────────────────────────────────────────────────

    async def _txn(self, request: Txn, _asked: Asked) -> Written:
        for key in check_txn(request):
            self._check_room(key)
        # What goes for certain, or is about to as far as is known here.
        known = {**dict(request.compare_created), **dict(request.compare)}
        gone = [key for key in request.deletes if known.get(key) or self._mirror_of(key).get(key)]
        revision = await self._store.txn(
            compare=request.compare,
            compare_created=request.compare_created,
            puts=request.puts,
            deletes=request.deletes,
            lease=request.lease,
        )
        # Heard here before it is answered: whoever asks this node from now on is told of it.
        for prefix in {prefix_of(key) for key in (*(key for key, _ in request.puts), *gone)}:
            await self._mirrors[prefix].wait(revision, seconds=CATCH_UP_SECONDS)
        return Written(revision)

    async def _grant(self, request: Grant, _asked: Asked) -> Granted:
        return Granted(await self._store.grant(request.ttl_ms))

    async def _keep_alive(self, request: KeepAlive, _asked: Asked) -> KeptAlive:
        return KeptAlive(await self._store.keep_alive(request.lease))

    async def _revoke(self, request: Revoke, _asked: Asked) -> Nothing:
        await self._store.revoke(request.lease)
        return Nothing()

    def _check_room(self, key: str) -> None:
        mirror = self._mirror_of(key)
        if mirror.get(key) is not None:
            return  # not new after all, or held by its version
        if mirror is self._topics:
            most, what = self._config.topics_max, "queues"
        else:
            most, what = RULES[mirror.prefix].entries_max, mirror.prefix.strip("/")
        if mirror.entry_count >= most:
            raise QuotaExceeded(f"The catalog holds its maximum of {most} {what}.")

    def _watch(self, request: Watch, asked: Asked) -> Watched | Coroutine[Any, Any, Watched]:
        mirror = self._mirror_of(request.prefix)
        if request.prefix != mirror.prefix:
            raise InvalidRequest("Changes are told of a whole kind of entries.")
        if request.from_revision <= mirror.revision or request.wait_ms <= 0:
            return self._watched(mirror, request.from_revision)
        mirror.changes(request.from_revision)  # raises Compacted
        return self._watch_later(mirror, request, asked)

    async def _watch_later(self, mirror: Mirror, request: Watch, asked: Asked) -> Watched:
        if self.watcher_count >= self._config.watchers_max:
            raise Throttled("Too many nodes watch this one.")
        self.watcher_count += 1
        try:
            # A little sooner than the caller gives up: an answer without changes is one too.
            wait_ms = min(request.wait_ms, self._config.watch_ms_max, asked.timeout_ms * 9 // 10)
            await mirror.wait(request.from_revision, seconds=wait_ms / 1_000)
        finally:
            self.watcher_count -= 1
        return self._watched(mirror, request.from_revision)

    def _watched(self, mirror: Mirror, from_revision: int) -> Watched:
        changes, next_revision = mirror.changes(from_revision)
        stale_ms = self._store_stale_ms()
        if mirror.trouble is not None:
            now = asyncio.get_running_loop().time()
            stale_ms = max(stale_ms, int((now - mirror.troubled_at) * 1_000))
        return Watched(changes, next_revision, mirror.entry_count, stale_ms)

    def _mirror_of(self, key: str) -> Mirror:
        if self._is_stopped:
            raise Draining("The metadata service is about to stop.")
        return self._mirrors[prefix_of(key)]

    def _fell_back(self, what: str, error: PenstockError) -> None:
        self.fallback_count += 1
        log.debug("metadata read from the store", extra={"call": what, "why": str(error)})


def merge_pages(pages: Sequence[Listed], *, entry_count: int) -> Listed:
    """Pages of disjoint parts behind the same key, as one. A part that goes on may go on anywhere
    behind its last key: what the others have behind that one is left for the next page."""
    open_ends = [page.entries[-1].key for page in pages if not page.is_end]
    end = min(open_ends, default=None)
    newest: dict[str, Entry] = {}
    for page in pages:
        for entry in page.entries:
            if end is not None and entry.key > end:
                break
            known = newest.get(entry.key)
            # Twice: a node that has gone over to everything told more than its part.
            if known is None or known.version < entry.version:
                newest[entry.key] = entry
    return Listed(
        [newest[key] for key in sorted(newest)],
        is_end=end is None,
        revision=min(page.revision for page in pages),
        entry_count=entry_count,
    )
