"""The registration of a node: an entry in the store that has a lease.

The entry's create revision is the node's **incarnation**. A restarted process has a new one:
nothing that was granted to the old one applies to it. The order in which the entry is removed
before the logs are opened, and written afterwards, is R4 (``broker/replicas/replicators.py``).

Whether this node may still act as a live node depends on its own clock (R20, ``lease_clock.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from penstock.membership.lease_clock import LeaseClock, LeaseClockConfig
from penstock.metadata.cluster_entries import NodeEntry, decode_node, encode_entry, node_key
from penstock.metadata.store import Store
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

TTL_MS = 6_000  # etcd may be without a leader for 2.6 s: three seconds are too few
BEATS = 4  # keep-alives within that time
RETRY_SECONDS = 0.3
ENTER_TRIES_MAX = 5  # attempts at a registration while its conditions change


class NodeTaken(PenstockError):
    """Another process uses this node's number."""


class Membership:
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
        """``on_lost`` is called when the lease has ended although the process is alive. ``admit``
        raises if this node may not be in the cluster; else it returns a key and version that the
        registration must compare (``cluster_level.py``)."""
        self.entry = entry
        self.incarnation = 0
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._ttl_ms = ttl_ms
        self._admit = admit
        self._held = LeaseClock(
            store,
            config=LeaseClockConfig(ttl_ms=ttl_ms, every_ms=ttl_ms // BEATS),
            on_gone=self._lost,
            clock_ms=clock.mono_ms,
        )

    @property
    def is_good(self) -> bool:
        """Whether no other node can have declared this node dead yet."""
        return self._held.is_held

    @property
    def lease_left_ms(self) -> int:
        """The time until ``is_good`` ends, by this node's clock."""
        return max(0, self._held.deadline_ms - self._clock.mono_ms())

    @property
    def lease(self) -> int:
        """The lease, for other entries that shall disappear with this node."""
        return self._held.lease

    async def clear(self) -> int:
        """Remove the entry of an earlier process of this node, so that no node relies on it any
        more. Returns the revision of the removal. Raises NodeTaken."""
        key = node_key(self.entry.node)
        waited_until_ms = self._clock.mono_ms() + 2 * self._ttl_ms
        while True:
            found = await self._store.get(key)
            if found is None:
                return await self._store.delete(key)  # changes nothing; returns the revision
            other = decode_node(key, found.value)
            if other.folder_id == self.entry.folder_id:
                try:
                    return await self._store.delete(key, if_version=found.version)
                except VersionConflict:
                    continue
            # Another data folder: if the disk was replaced, the old entry ends with its lease.
            if self._clock.mono_ms() > waited_until_ms:
                raise NodeTaken(
                    f"node {self.entry.node} is running already, as {other.name} at"
                    f" {other.internal}: give this one another cluster.node"
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def register(self) -> int:
        """Register and return the incarnation. Raises NodeTaken, and the errors of ``admit``."""
        lease = await self._held.start()
        try:
            self.incarnation = await self._enter(lease)
        except PenstockError:
            await self._held.stop()
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
        """Called with the incarnation of this node's entry in the store. If it is not the own one,
        the lease has ended, whatever this node's clock shows: an etcd whose leader was stopped for
        long may end leases too early."""
        if self.incarnation and incarnation_now != self.incarnation:
            self._held.ended()

    def _lost(self) -> None:
        log_.error("lease lost: the cluster treats this node as dead, registering again")
        self._on_lost()

    async def change(self, **changes: object) -> None:
        """Change this node's entry."""
        self.entry = msgspec.structs.replace(self.entry, **changes)
        key = node_key(self.entry.node)
        await self._store.txn(
            compare_created=((key, self.incarnation),),
            puts=((key, encode_entry(self.entry)),),
            lease=self._held.lease,
        )

    async def stop(self) -> None:
        """Revoke the lease, which removes the entry, if the store can be reached."""
        await self._held.stop()
