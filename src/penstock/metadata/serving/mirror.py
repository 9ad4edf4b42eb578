"""Mirrors of the store, which a metadata node keeps for other nodes, and the hash ring by which
large prefixes are divided among metadata nodes.

A mirror has the values of all keys with one prefix, or of this node's part of these keys, and the
latest changes of all keys, so that any node can serve any watch. A watch that needs older
changes raises Compacted; the watcher must then list all entries again. Values are not decoded, to
save memory. ``revision`` is the revision of the last change that the watch reported. After a read
of the store, the values may have a later revision, ``known_revision``."""

import asyncio
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from penstock.metadata.cache import PrefixWatch
from penstock.metadata.serving.calls import Listed
from penstock.metadata.store import Change, ChangeKind, Compacted, Entry, Store
from penstock.model.errors import Throttled
from penstock.model.limits import MIB

VIRTUAL_NODES: Final = 128  # of each member
PLACES_PER_VIRTUAL_NODE: Final = 8
MEMBERS_MAX: Final = 1_024  # about a million places

_PLACES = struct.Struct(f">{PLACES_PER_VIRTUAL_NODE}Q")
_PLACE = struct.Struct(">Q")


def place_of(key: str) -> int:
    (place,) = _PLACE.unpack(blake2b(key.encode(), digest_size=_PLACE.size).digest())
    return int(place)


class Ring:
    """A consistent-hash ring of metadata nodes (members).

    Keys and members have places (positions) on a circle with 2^64 places. A key belongs to the next
    member clockwise, so few keys move when a member joins or leaves. A member has 128 virtual nodes
    of eight places each, so that all members have about the same number of keys. Two nodes that
    know different members detect this by comparing ``fingerprint``."""

    __slots__ = ("_owners", "_places", "fingerprint", "members")

    def __init__(self, members: Iterable[str]) -> None:
        self.members: Sequence[str] = tuple(sorted(members))  # node ids
        assert 0 < len(self.members) <= MEMBERS_MAX, "the ring has no members, or too many"
        assert len(set(self.members)) == len(self.members), "a member is in the ring twice"
        found: list[tuple[int, str]] = []
        for member in self.members:
            for number in range(VIRTUAL_NODES):
                described = f"{member}#{number}".encode()
                digest = blake2b(described, digest_size=_PLACES.size).digest()
                found += ((place, member) for place in _PLACES.unpack(digest))
        found.sort()  # two members at one place: ordered by id, the same on every node
        self._places = [place for place, _ in found]
        self._owners = [node_id for _, node_id in found]
        # Earlier versions had weights of members, which were always 1.
        members_text = repr((VIRTUAL_NODES, [(member, 1.0) for member in self.members]))
        self.fingerprint = blake2b(members_text.encode(), digest_size=8).hexdigest()

    def owner_at(self, place: int) -> str:
        at = bisect_right(self._places, place)
        return self._owners[at if at < len(self._owners) else 0]


HISTORY_CHANGES_MAX = 8_192
HISTORY_BYTES_MAX = 16 * MIB
REPLY_CHANGES_MAX = 1_024  # of one reply, which may exceed it to complete a revision
REPLY_BYTES_MAX = 4 * MIB
SLICE = 2_000  # entries processed before other tasks run
LOADS_MAX = 8  # attempts to read entries that are new enough for the history

Keeps = Callable[[int], bool]  # returns whether this node holds keys at a place of the ring


class _Held:
    """Entries sorted by key, which can also be found by a label such as the topic id."""

    def __init__(self, label: Callable[[bytes], str] | None) -> None:
        self.entries: dict[str, Entry] = {}
        self.keys: list[str] = []  # sorted
        self.labels: dict[str, str] = {}  # label to key
        self._label = label

    def put(self, entry: Entry) -> None:
        before = self.entries.get(entry.key)
        if before is None:
            insort(self.keys, entry.key)
        elif self._label is not None:
            self.labels.pop(self._label(before.value), None)
        self.entries[entry.key] = entry
        if self._label is not None:
            self.labels[self._label(entry.value)] = entry.key

    def remove(self, key: str) -> None:
        entry = self.entries.pop(key, None)
        if entry is None:
            return
        del self.keys[bisect_left(self.keys, key)]
        if self._label is not None:
            self.labels.pop(self._label(entry.value), None)


class Mirror(PrefixWatch):
    def __init__(
        self,
        store: Store,
        prefix: str,
        *,
        label: Callable[[bytes], str] | None = None,
        on_change: Callable[[Change], None] = lambda _change: None,
        on_gap: Callable[[], None] = lambda: None,
        history_changes_max: int = HISTORY_CHANGES_MAX,
    ) -> None:
        # ``label`` returns a second name that a value contains. ``on_change`` is called with every
        # change, also of keys that are not held; ``on_gap`` when changes were missed.
        super().__init__(store, prefix)
        self._label = label
        self._on_change = on_change
        self._on_gap = on_gap
        self._held = _Held(label)
        self._keeps: Keeps | None = None  # None: everything
        self._places: set[int] = set()  # ring places of all keys, unless all keys are held
        self._floor = 0  # revision at which the held values were read
        self._history: list[Change] = []
        self._history_bytes = 0
        self._history_start = 1  # the history is complete from this revision on
        self._history_changes_max = history_changes_max
        self._moved = asyncio.Event()
        self._is_stopped = False
        self._loading = asyncio.Lock()

    async def start(self) -> None:
        self._is_stopped = False
        await super().start()

    async def stop(self) -> None:
        self._is_stopped = True
        self._moved.set()
        await super().stop()

    @property
    def known_revision(self) -> int:
        return max(self.revision, self._floor)

    @property
    def is_whole(self) -> bool:
        return self._keeps is None

    @property
    def entry_count(self) -> int:
        """The number of all entries with the prefix, including those that only other nodes hold."""
        return len(self._held.entries) if self._keeps is None else len(self._places)

    @property
    def held_count(self) -> int:
        return len(self._held.entries)

    def holds(self, key: str) -> bool:
        """Return whether this node holds the part with this key, even if the key does not exist."""
        return self._keeps is None or self._keeps(place_of(key))

    def get(self, key: str) -> Entry | None:
        return self._held.entries.get(key)

    def find_label(self, label: str) -> Entry | None:
        key = self._held.labels.get(label)
        return None if key is None else self._held.entries[key]

    def page(
        self, prefix: str, *, after: str, count_max: int, bytes_max: int
    ) -> tuple[Sequence[Entry], bool]:
        """Return a page of the entries after the key ``after``, and whether it is the last page."""
        keys, entries = self._held.keys, self._held.entries
        at = bisect_left(keys, prefix)
        if after:
            at = max(at, bisect_right(keys, after))
        found = (entries[keys[position]] for position in range(at, len(keys)))
        return take_page(found, prefix, count_max=count_max, bytes_max=bytes_max)

    def changes(self, from_revision: int) -> tuple[Sequence[Change], int]:
        """Return as many changes since a revision as fit a reply, and the next revision to read."""
        if from_revision < self._history_start:
            raise Compacted(self._history_start)
        history = self._history
        start = end = bisect_left(history, from_revision, key=_version)
        size = 0
        while end < len(history):
            is_new = end == start or history[end].version != history[end - 1].version
            if is_new and (end - start >= REPLY_CHANGES_MAX or size >= REPLY_BYTES_MAX):
                break  # never split a revision
            size += len(history[end].value)
            end += 1
        if end < len(history):
            return history[start:end], history[end].version
        return history[start:], max(from_revision, self.revision + 1)

    async def wait(self, from_revision: int, *, seconds: float) -> None:
        """Wait until the watch has reported ``from_revision``, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.revision < from_revision and not self._is_stopped:
                    if from_revision < self._history_start:
                        return  # it is not in the history: ``changes`` raises Compacted
                    await self._moved.wait()

    async def hold(self, keeps: Keeps | None) -> None:
        """Load the entries whose keys ``keeps`` accepts, or all entries if ``keeps`` is None."""
        async with self._loading:
            await self._load(keeps, is_at_hand=self._keeps is None)

    async def catch_up(self, revision: int, *, seconds: float) -> None:
        """Wait until this mirror has a revision that another node has seen. If the watch reports no
        change of that revision in time, read all entries from the store."""
        await self.wait(revision, seconds=seconds)
        async with self._loading:
            if self.known_revision < revision:
                await self._load(self._keeps, is_at_hand=False)

    async def _load(self, keeps: Keeps | None, *, is_at_hand: bool) -> None:
        for _ in range(LOADS_MAX):
            if is_at_hand:
                entries: Sequence[Entry] = [self._held.entries[key] for key in self._held.keys]
                revision = self.known_revision
            else:
                entries, revision = await self._store.list(self.prefix)
            held, places = await self._sift(entries, keeps)
            if revision + 1 < self._history_start:
                continue  # the watch has advanced beyond the kept history
            self._held, self._places, self._keeps = held, places, keeps
            self._floor = revision
            for change in self._history[bisect_right(self._history, revision, key=_version) :]:
                self._apply(change)
            return
        raise Throttled("The catalog changes faster than it can be read; retry.")

    async def _sift(self, entries: Sequence[Entry], keeps: Keeps | None) -> tuple[_Held, set[int]]:
        held, places = _Held(self._label), set[int]()
        for at, entry in enumerate(entries, 1):
            if keeps is not None:
                place = place_of(entry.key)
                places.add(place)
            if keeps is None or keeps(place):
                held.put(entry)
            if at % SLICE == 0:
                await asyncio.sleep(0)
        return held, places

    async def _fill(self) -> None:
        async with self._loading:
            entries, revision = await self._store.list(self.prefix)
            self._held, self._places = await self._sift(entries, self._keeps)
        self._floor = self.revision = revision
        self._history.clear()
        self._history_bytes = 0
        self._history_start = revision + 1
        self._on_gap()
        self._wake()

    def _take(self, changes: Sequence[Change]) -> None:
        self._history += changes
        self._history_bytes += sum(len(change.value) for change in changes)
        self.revision = changes[-1].version
        for change in changes:
            if change.version > self._floor:
                self._apply(change)
            self._on_change(change)
        self._trim()
        self._wake()

    def _apply(self, change: Change) -> None:
        key, is_put = change.key, change.kind is ChangeKind.PUT
        if self._keeps is not None:
            place = place_of(key)
            if is_put:
                self._places.add(place)
            else:
                self._places.discard(place)
            if not self._keeps(place):
                return
        if not is_put:
            self._held.remove(key)
            return
        before = self._held.entries.get(key)
        created = change.version if before is None else before.create_revision
        self._held.put(Entry(key, change.value, change.version, created))

    def _trim(self) -> None:
        """Drop the oldest changes if the history exceeds a limit by more than a quarter."""
        history = self._history
        many = self._history_changes_max * 5 // 4
        if len(history) <= many and self._history_bytes <= HISTORY_BYTES_MAX * 5 // 4:
            return
        drop = max(0, len(history) - self._history_changes_max)
        gone = sum(len(change.value) for change in history[:drop])
        while drop < len(history) and self._history_bytes - gone > HISTORY_BYTES_MAX:
            gone += len(history[drop].value)
            drop += 1
        self._history_start = history[drop - 1].version + 1
        self._history_bytes -= gone
        del history[:drop]

    def _wake(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()


def take_page(
    entries: Iterable[Entry], prefix: str, *, count_max: int, bytes_max: int
) -> tuple[list[Entry], bool]:
    """Return as many entries with a prefix as fit a page, and whether it is the last page."""
    page: list[Entry] = []
    size = 0
    for entry in entries:
        if not entry.key.startswith(prefix):
            break
        if page and (len(page) >= count_max or size + len(entry.value) > bytes_max):
            return page, False
        page.append(entry)
        size += len(entry.value)
    return page, True


def _version(change: Change) -> int:
    return change.version


def merge_pages(pages: Sequence[Listed], *, entry_count: int) -> Listed:
    """Merge the pages that several nodes returned for the same request. If a page is incomplete,
    entries after its last key are left for the next request."""
    open_ends = [page.entries[-1].key for page in pages if not page.is_end]
    end = min(open_ends, default=None)
    newest: dict[str, Entry] = {}
    for page in pages:
        for entry in page.entries:
            if end is not None and entry.key > end:
                break
            known = newest.get(entry.key)
            # Entries may occur twice: a node that holds all keys returns more than its part.
            if known is None or known.version < entry.version:
                newest[entry.key] = entry
    return Listed(
        [newest[key] for key in sorted(newest)],
        is_end=end is None,
        revision=min(page.revision for page in pages),
        entry_count=entry_count,
    )
