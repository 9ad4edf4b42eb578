"""A node's place among the living: an entry in the store that hangs on a lease.

The entry's create revision is the node's **incarnation**. A process that comes back is another one:
nothing that was promised to the old one holds for it. How the entry is removed before the logs are
looked at, and put back afterwards, is the order of R4 (``broker/replicators.py``).

Whether this node may still act as one that nobody has taken for dead goes by its own clock (R20):
the lease is good for four fifths of its time, counted from before the last question that the store
answered. That clock runs on while the machine sleeps.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from penstock.metadata.cluster_entries import NodeEntry, decode_node, encode_entry, node_key
from penstock.metadata.store import LeaseGone, Store
from penstock.model.errors import PenstockError, VersionConflict
from penstock.model.ports import Clock

log_ = logging.getLogger(__name__)

TTL_MS = 6_000  # etcd itself may be without a leader for 2.6 s: three seconds are too few
BEAT_MS = 1_500
GOOD_PART = 0.8
RETRY_SECONDS = 0.3


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
    ) -> None:
        """``on_lost`` is called when the lease has ended although the process has not."""
        self.entry = entry
        self.incarnation = 0
        self._store = store
        self._clock = clock
        self._on_lost = on_lost
        self._ttl_ms = ttl_ms
        self._lease = 0
        self._good_until_ms = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_good(self) -> bool:
        """Whether nobody can have taken this node for dead yet."""
        return self._clock.mono_ms() < self._good_until_ms

    @property
    def lease(self) -> int:
        """For other entries that shall go with this node."""
        return self._lease

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
        """Returns the incarnation."""
        asked_at_ms = self._clock.mono_ms()
        self._lease = await self._store.grant(self._ttl_ms)
        key = node_key(self.entry.node)
        try:
            self.incarnation = await self._store.txn(
                compare=((key, 0),), puts=((key, encode_entry(self.entry)),), lease=self._lease
            )
        except VersionConflict:
            raise NodeTaken(f"node {self.entry.node} has just been started elsewhere") from None
        self._good_until_ms = asked_at_ms + int(GOOD_PART * self._ttl_ms)
        self._task = asyncio.create_task(self._keep_alive(self._lease), name="node lease")
        return self.incarnation

    def seen_gone(self, incarnation_now: int | None) -> None:
        """What the store tells of this node's entry: if that is not the one it made, the lease has
        ended, whatever this node's clock says. An etcd whose leader was stopped for long has been
        seen to end leases too early."""
        if not self._lease or not self.incarnation or incarnation_now == self.incarnation:
            return
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._lost()

    def _lost(self) -> None:
        log_.error("this node was taken for dead: it registers anew")
        self._good_until_ms = 0
        self._lease = 0
        self._on_lost()

    async def change(self, **changes: object) -> None:
        """Tell the others something new about this node."""
        self.entry = msgspec.structs.replace(self.entry, **changes)
        key = node_key(self.entry.node)
        await self._store.txn(
            compare_created=((key, self.incarnation),),
            puts=((key, encode_entry(self.entry)),),
            lease=self._lease,
        )

    async def stop(self) -> None:
        """The node is gone when this returns, as far as the store can be reached."""
        await self._end_task()
        lease, self._lease = self._lease, 0
        self._good_until_ms = 0
        if lease:
            try:
                await self._store.revoke(lease)
            except PenstockError as error:
                log_.warning("lease not revoked: it runs out", extra={"reason": str(error)})

    async def _end_task(self) -> None:
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait((task,))

    async def _keep_alive(self, lease: int) -> None:
        while True:
            await asyncio.sleep(BEAT_MS / 1_000 * (self._ttl_ms / TTL_MS))
            asked_at_ms = self._clock.mono_ms()
            try:
                left_ms = await self._store.keep_alive(lease)
            except LeaseGone:
                self._task = None
                self._lost()
                return
            except PenstockError as error:
                log_.warning("lease not renewed", extra={"reason": str(error)})
                continue
            self._good_until_ms = asked_at_ms + int(GOOD_PART * left_ms)
