"""A node's place among the living: an entry in the store that hangs on a lease.

The entry's create revision is the node's **incarnation**. A process that comes back is another one:
nothing that was promised to the old one holds for it. How the entry is removed before the logs are
looked at, and put back afterwards, is the order of R4 (``broker/replicators.py``).

Whether this node may still act as one that nobody has taken for dead goes by its own clock (R20,
``lease_clock.py``).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from penstock.metadata.cluster_entries import NodeEntry, decode_node, encode_entry, node_key
from penstock.metadata.lease_clock import LeaseClock, LeaseClockConfig
from penstock.metadata.store import Store
from penstock.model.errors import PenstockError, Throttled, VersionConflict
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

TTL_MS = 6_000  # etcd itself may be without a leader for 2.6 s: three seconds are too few
BEATS = 4  # within that time
RETRY_SECONDS = 0.3
ENTER_TRIES_MAX = 5  # of a registration during which the conditions for it change


class NodeTaken(PenstockError):
    """Somebody else goes by this node's number."""


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
        """``on_lost`` is called when the lease has ended although the process has not. ``admit``
        raises when this node may not be in the cluster; else it returns what has to be so still
        when it enters (``cluster_level.py``)."""
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
        """Whether nobody can have taken this node for dead yet."""
        return self._held.is_held

    @property
    def lease_left_ms(self) -> int:
        """Until it is not good any more, by this node's own clock."""
        return max(0, self._held.deadline_ms - self._clock.mono_ms())

    @property
    def lease(self) -> int:
        """For other entries that shall go with this node."""
        return self._held.lease

    async def clear(self) -> int:
        """Remove what an earlier process of this node left: from now on nobody can count on it.
        Returns the revision as of which that is so. Raises NodeTaken."""
        key = node_key(self.entry.node)
        waited_until_ms = self._clock.mono_ms() + 2 * self._ttl_ms
        while True:
            found = await self._store.get(key)
            if found is None:
                return await self._store.delete(key)  # changes nothing; tells the revision
            other = decode_node(key, found.value)
            if other.folder_id == self.entry.folder_id:
                try:
                    return await self._store.delete(key, if_version=found.version)
                except VersionConflict:
                    continue
            # Another data folder: of a node whose disk was replaced the entry ends with its lease.
            if self._clock.mono_ms() > waited_until_ms:
                raise NodeTaken(
                    f"node {self.entry.node} is running already, as {other.name} at"
                    f" {other.internal}: give this one another cluster.node"
                )
            await asyncio.sleep(RETRY_SECONDS)

    async def register(self) -> int:
        """Returns the incarnation. Raises NodeTaken, and what ``admit`` raises."""
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
                    taken = f"node {self.entry.node} has just been started elsewhere"
                    raise NodeTaken(taken) from None
        raise Throttled("The conditions for being in this cluster keep changing.")

    def seen_gone(self, incarnation_now: int | None) -> None:
        """What the store tells of this node's entry: if that is not the one it made, the lease has
        ended, whatever this node's clock says. An etcd whose leader was stopped for long has been
        seen to end leases too early."""
        if self.incarnation and incarnation_now != self.incarnation:
            self._held.ended()

    def _lost(self) -> None:
        log_.error("this node was taken for dead: it registers anew")
        self._on_lost()

    async def change(self, **changes: object) -> None:
        """Tell the others something new about this node."""
        self.entry = msgspec.structs.replace(self.entry, **changes)
        key = node_key(self.entry.node)
        await self._store.txn(
            compare_created=((key, self.incarnation),),
            puts=((key, encode_entry(self.entry)),),
            lease=self._held.lease,
        )

    async def stop(self) -> None:
        """The node is gone when this returns, as far as the store can be reached."""
        await self._held.stop()
