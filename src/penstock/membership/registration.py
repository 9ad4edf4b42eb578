"""Registrations of nodes (entries in the metadata store with a lease) and heartbeats of frontends.

The entry's create revision is the node's **incarnation**. A restarted process gets a new one, and
nothing that was granted to the old process applies to the new process. The entry is removed before
the logs are opened, and written again afterwards (rule R4 of docs/replication.md). Whether this
node may still act as a live node depends on its own clock (R20, ``LeaseClock``)."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.log.storage.files import DISK, replace_durably
from penstock.metadata import cluster_entries as cluster
from penstock.metadata.cache import PrefixWatch, abandon
from penstock.metadata.cluster_entries import NodeEntry, decode_node, encode_entry, node_key
from penstock.metadata.store import Change, ChangeKind, LeaseGone, Store
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

FILE_NAME = "registered-at"
TTL_MS = 6_000  # etcd may be without a leader for 2.6 s, so three seconds are too few
BEATS = 4  # number of keep-alives within that time
RETRY_SECONDS = 0.3
BEAT_SECONDS: Final = 2.0  # between two heartbeats of a frontend
SILENT_BEATS_MAX: Final = 4  # after this number of heartbeats a silent frontend no longer counts
FORGOTTEN_BEATS: Final = 60  # after this number its entry is removed
ENTER_TRIES_MAX = 5  # attempts to register while the feature level changes


class StoreSetBack(PenstockError):
    """Raised if the metadata store was reset to a state before this node's last registration."""


class RegisteredAt:
    """The store's revision at this node's last registration, kept in the node's data folder.

    A store with a lower revision was restored from a backup or created again. Its rows describe old
    leaders and epochs, and new leaders may reuse the same epochs, which a log cannot always detect.
    So a node does not join such a cluster."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.revision = 0
        with suppress(FileNotFoundError, ValueError):
            self.revision = int(self._file.read_text("ascii"))

    def check(self, revision: int) -> None:
        """Raise StoreSetBack if the store's current revision is lower than the recorded one."""
        if revision < self.revision:
            raise StoreSetBack(
                f"the metadata store is older than this node: the store is at revision {revision},"
                f" the node registered at {self.revision}. Restore the store's newest data; or, if"
                f" an older state was restored on purpose, remove {self._file} on every node"
            )

    def note(self, revision: int) -> None:
        """Record the revision in a file. If that fails, ``check`` uses an older revision after a
        restart, so it may not detect that the store was set back."""
        self.revision = revision
        try:
            replace_durably(DISK, self._file, f"{revision}\n".encode())
        except OSError as error:
            log_.warning("storing the registration revision failed", extra={"reason": str(error)})


def boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, slots=True)
class LeaseClockConfig:
    # An etcd election can block keep-alives for up to three seconds; shorter leases would end.
    ttl_ms: int = 6_000
    every_ms: int = 1_500
    retry_ms: int = 100  # delay after a failed keep-alive
    used_percent: int = 80  # the part of the granted time that the node uses


class LeaseClock:
    """The lease of a node in the store, and the time until which the node may assume that it holds
    the lease (rule R20 of docs/replication.md).

    The store counts the time from its reply, the node from before its request, so the lease ends
    for the node first. The node's clock continues while the machine sleeps, as the store's does.
    Only a part of the granted time is used, because two clocks never run at exactly the same speed.

    Check ``is_good`` just before any step that only the holder may take. A lease that has ended in
    the store is not renewed: ``on_gone`` is called, and the owner may start a new one. A store may
    also end a lease too early, for example if the etcd leader was paused for longer than the lease.
    If a watch shows that the entries are gone, the owner calls ``ended``."""

    def __init__(
        self,
        store: Store,
        *,
        config: LeaseClockConfig | None = None,
        on_gone: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = boot_ms,
    ) -> None:
        """Create a clock. ``on_gone`` is called once when the lease has ended in the store."""
        self.lease = 0  # also used for other entries that must disappear with this node
        self.deadline_ms = 0  # on the clock ``clock_ms``
        self.trouble: str | None = None  # why the last keep-alive failed
        self._store = store
        self._config = config or LeaseClockConfig()
        self._on_gone = on_gone
        self._clock_ms = clock_ms
        self._task: asyncio.Task[None] | None = None

    @property
    def is_good(self) -> bool:
        """Return whether the lease is valid. While it is, no node can declare this node dead."""
        return self._clock_ms() < self.deadline_ms

    async def start(self) -> int:
        assert self._task is None or self._task.done(), "a lease is still held"
        self.deadline_ms = 0
        sent_ms = self._clock_ms()
        self.lease = await self._store.grant(self._config.ttl_ms)
        self._renewed(sent_ms, self._config.ttl_ms)
        self._task = asyncio.create_task(self._keep(), name="lease clock")
        return self.lease

    async def stop(self) -> None:
        """Revoke the lease. If the store is not reachable, the lease ends by itself."""
        task, self._task = self._task, None
        await abandon(task)
        self.deadline_ms = 0
        lease, self.lease = self.lease, 0
        if lease:
            try:
                await self._store.revoke(lease)
            except PenstockError as error:
                log_.warning("revoking the node lease failed", extra={"reason": str(error)})

    def ended(self) -> None:
        task, self._task = self._task, None
        if task is None or not self.lease:
            return
        task.cancel()
        self._gone()

    def _gone(self) -> None:
        log_.warning("node lease ended", extra={"lease": f"{self.lease:x}"})
        self.deadline_ms = self.lease = 0
        self._on_gone()

    def _renewed(self, sent_ms: int, left_ms: int) -> None:
        used_ms = min(left_ms, self._config.ttl_ms) * self._config.used_percent // 100
        self.deadline_ms = max(self.deadline_ms, sent_ms + used_ms)

    async def _keep(self) -> None:
        pause_ms = self._config.every_ms
        while True:
            await asyncio.sleep(pause_ms / 1_000)
            sent_ms = self._clock_ms()
            try:
                left_ms = await self._store.keep_alive(self.lease)
            except LeaseGone:
                self._gone()
                return
            except PenstockError as error:
                if self.trouble is None:
                    log_.warning("renewing the node lease failed", extra={"reason": str(error)})
                self.trouble = str(error)
                pause_ms = self._config.retry_ms
                continue
            self.trouble = None
            self._renewed(sent_ms, left_ms)
            pause_ms = max(0, self._config.every_ms - (self._clock_ms() - sent_ms))


class NodeTaken(PenstockError):
    """Raised if another process uses this node's number."""


class Membership(LeaseClock):
    def __init__(
        self,
        store: Store,
        entry: NodeEntry,
        *,
        clock: Clock,
        on_lost: Callable[[], None],
        ttl_ms: int = TTL_MS,
        admit: Callable[[], Awaitable[tuple[str, int]]] | None = None,
    ) -> None:
        """Create a registration. ``on_lost`` is called when the lease has ended although the
        process is alive. ``admit`` raises if this node may not join the cluster, else returns the
        key and version of an entry that must not change before this node is registered."""
        timing = LeaseClockConfig(ttl_ms=ttl_ms, every_ms=ttl_ms // BEATS)
        super().__init__(store, config=timing, on_gone=self._lost, clock_ms=clock.mono_ms)
        self.entry = entry
        self.incarnation = 0
        self._on_lost = on_lost
        self._admit = admit

    @property
    def lease_left_ms(self) -> int:
        return max(0, self.deadline_ms - self._clock_ms())

    async def clear(self) -> int:
        """Remove the entry of an earlier process and return the store's revision. Raises NodeTaken
        if another process holds the entry."""
        key = node_key(self.entry.node)
        waited_until_ms = self._clock_ms() + 2 * self._config.ttl_ms
        while True:
            found = await self._store.get(key)
            if found is None:
                return await self._store.delete(key)  # only to get the revision
            other = decode_node(key, found.value)
            if other.folder_id == self.entry.folder_id:
                try:
                    return await self._store.delete(key, if_version=found.version)
                except VersionConflict:
                    continue
            # The entry is of another data folder. If the disk was replaced, its lease will end.
            if self._clock_ms() > waited_until_ms:
                raise NodeTaken(
                    f"node {self.entry.node} is already running as {other.name} at"
                    f" {other.internal}; set another cluster.node on this node"
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def register(self) -> int:
        """Register this node and return its incarnation, the entry's create revision."""
        lease = await self.start()
        try:
            self.incarnation = await self._enter(lease)
        except PenstockError:
            await self.stop()
            raise
        return self.incarnation

    async def _enter(self, lease: int) -> int:
        key = node_key(self.entry.node)
        puts = ((key, encode_entry(self.entry)),)
        for _ in range(ENTER_TRIES_MAX):
            admitted = () if self._admit is None else (await self._admit(),)
            try:
                return await self._store.txn(compare=((key, 0), *admitted), puts=puts, lease=lease)
            except VersionConflict:
                if not admitted or await self._store.get(key) is not None:
                    taken = f"node {self.entry.node} was just started on another machine"
                    raise NodeTaken(taken) from None
        raise Throttled("The feature level of the cluster keeps changing; retry.")

    def seen_gone(self, incarnation_now: int | None) -> None:
        """End the lease if ``incarnation_now``, read from this node's entry in the store, is not
        the incarnation of this process: etcd may end a lease too early after a pause."""
        if self.incarnation and incarnation_now != self.incarnation:
            self.ended()

    def _lost(self) -> None:
        log_.error("node lease lost: the cluster treats this node as dead, registering again")
        self._on_lost()

    async def change(self, **changes: object) -> None:
        self.entry = msgspec.structs.replace(self.entry, **changes)
        key = node_key(self.entry.node)
        await self._store.txn(
            compare_created=((key, self.incarnation),),
            puts=((key, encode_entry(self.entry)),),
            lease=self.lease,
        )


class _Heard(NamedTuple):
    turn: int
    version: int


class LiveFrontends(PrefixWatch):
    """The number of live frontends, among which limits and quotas are divided.

    Each frontend rewrites its entry in the store every BEAT_SECONDS (its heartbeat) and watches the
    entries of all frontends. A frontend counts as silent if none of its heartbeats was seen during
    several heartbeats of this frontend. So no clocks are compared, and limits do not rise
    during an outage of the store, because then no frontend counts as silent. A frontend has a new
    id after each start. The entry of a killed frontend is removed after FORGOTTEN_BEATS."""

    def __init__(self, store: Store, *, node: str, entropy: Callable[[int], bytes]) -> None:
        super().__init__(store, cluster.FRONTENDS_PREFIX)
        self._key = cluster.FRONTENDS_PREFIX + entropy(16).hex()
        self._value = node[: cluster.FRONTEND_NAME_CHARS_MAX].encode()
        self._version = 0  # version of this frontend's entry
        self._turn = 0  # number of own heartbeats that the watch has reported
        self._others: dict[str, _Heard] = {}  # by key
        self._task: asyncio.Task[None] | None = None
        self._beat_trouble: str | None = None
        self.count = 1  # number of live frontends, including this one
        self._listeners: list[Callable[[int], None]] = []

    def on_change(self, listener: Callable[[int], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        """Start to send heartbeats and to count live frontends. The count is known on return."""
        await super().start()
        await self._try_to_beat()
        self._task = asyncio.create_task(self._beat_forever(), name="frontend beat")

    async def stop(self) -> None:
        """Stop, and remove this frontend's entry, so that the other frontends notice at once."""
        task, self._task = self._task, None
        await abandon(task)
        await super().stop()
        if self._version:
            with suppress(PenstockError):
                await self._store.delete(self._key, if_version=self._version)

    async def _fill(self) -> None:
        entries, revision = await self._store.list(cluster.FRONTENDS_PREFIX)
        before, self._others = self._others, {}
        for entry in entries:
            if entry.key == self._key:
                continue
            known = before.get(entry.key)
            if known is None or known.version != entry.version:
                known = _Heard(self._turn, entry.version)
            self._others[entry.key] = known
        self.revision = revision
        self._recount()

    def _take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_put = change.kind is ChangeKind.PUT
            if change.key == self._key:
                self._turn += is_put
                # The reply to a heartbeat may arrive before the watch reports an older one.
                self._version = max(change.version, self._version) if is_put else 0
            elif is_put:
                self._others[change.key] = _Heard(self._turn, change.version)
            else:
                self._others.pop(change.key, None)
        self.revision = changes[-1].version
        self._recount()

    def _recount(self) -> None:
        since = self._turn - SILENT_BEATS_MAX
        count = 1 + sum(heard.turn > since for heard in self._others.values())
        if count == self.count:
            return
        self.count = count
        log_.info("number of frontends changed", extra={"alive": count})
        for listener in self._listeners:
            listener(count)

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            await self._try_to_beat()

    async def _try_to_beat(self) -> None:
        try:
            await self.beat()
        except PenstockError as error:
            if self._beat_trouble is None:
                log_.warning("frontend heartbeat failed", extra={"reason": str(error)})
            self._beat_trouble = str(error)
        else:
            self._beat_trouble = None

    async def beat(self) -> None:
        """Send a heartbeat by rewriting this frontend's entry in the store."""
        try:
            version = await self._store.put(self._key, self._value, if_version=self._version)
        except VersionConflict:  # the last reply was lost, or the entry was removed
            entry = await self._store.get(self._key)
            version = await self._store.put(
                self._key, self._value, if_version=entry.version if entry else 0
            )
        self._version = max(version, self._version)
        before = self._turn - FORGOTTEN_BEATS
        for key, heard in tuple(self._others.items()):
            if heard.turn <= before:
                with suppress(VersionConflict):  # another frontend removed it, or it is alive again
                    await self._store.delete(key, if_version=heard.version)
