"""The leader's side of replication, for one epoch: which offsets the followers have on disk, what
is committed, and which followers are in sync. It does no I/O. Offsets from an earlier epoch do not
count, because a follower may have truncated its log since (rule R8). A record is committed when all
members of the in-sync set have it on disk. While the set is being changed, all members of the new
set must have it too (rule R12). The same applies to a low watermark (rule R25)."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from penstock.replication.epochs import NO_EPOCH
from penstock.replication.messages import Behind, Diverge, Fenced, Fetch, NotYet
from penstock.replication.replica_log import ReplicaLog
from penstock.replication.row import Change, PartitionRow, View

LAG_MS_MAX: Final = 4_000  # a follower that lags longer is removed from the in-sync set
PENDING_MAX: Final = 8  # changes without a known outcome; more are not proposed


@dataclass(slots=True)
class _Peer:
    incarnation: int
    fetched_at_ms: int
    caught_up_at_ms: int
    durable_offset: int = 0
    low_watermark: int = 0
    end_then: int = 0  # end of the leader's log at the last fetch


class Leader:
    def __init__(self, log: ReplicaLog, view: View, *, now_ms: int) -> None:
        assert view.row.leader == log.node
        self._log = log
        self.node = log.node
        self.epoch = view.row.epoch
        self.epoch_start = log.end_offset
        self._view = view
        self._since_ms = now_ms
        self._peers: dict[int, _Peer] = {}
        self._pending: list[Change] = []
        self._doubted: list[Change] = []  # pending changes whose outcome is unknown

    @property
    def row(self) -> PartitionRow:
        return self._view.row

    @property
    def is_settled(self) -> bool:
        """Whether all records that an earlier leader may have confirmed are committed."""
        return self._log.high_watermark >= self.epoch_start

    def saw(self, view: View) -> None:
        assert view.row.epoch == self.epoch
        assert view.row.leader == self.node
        self._view = view
        self._pending = [each for each in self._pending if each.version >= view.version]
        # A node that is no longer a replica may delete its log, so forget its offsets.
        for node in self._peers.keys() - set(view.row.replicas):
            del self._peers[node]
        self._doubted = [each for each in self._doubted if each.version >= view.version]

    def fetched(self, fetch: Fetch, *, now_ms: int) -> Diverge | Behind | Fenced | NotYet | None:
        """Note the offsets of a follower, unless its log has diverged (rule R15). Returns None if
        records can be served, else the reply to the follower's fetch."""
        if fetch.epoch < self.epoch:
            return Fenced(fetch, self.epoch)
        if fetch.epoch > self.epoch or fetch.node not in self.row.replicas:
            return NotYet(fetch)
        peer = self._peers.get(fetch.node)
        if peer is not None and fetch.incarnation < peer.incarnation:
            return Fenced(fetch, self.epoch)
        apart = self._compare(fetch)
        if apart is not None:
            return apart
        if peer is None or fetch.incarnation > peer.incarnation:
            since_ms = self._since_ms
            peer = self._peers[fetch.node] = _Peer(fetch.incarnation, since_ms, since_ms)
        end_offset = self._log.end_offset
        # Fetches may overtake each other. Records on disk stay there for this incarnation.
        peer.durable_offset = max(peer.durable_offset, fetch.durable_offset)
        peer.low_watermark = max(peer.low_watermark, fetch.low_watermark)
        if fetch.offset >= end_offset:
            peer.caught_up_at_ms = now_ms
        elif fetch.offset >= peer.end_then:
            peer.caught_up_at_ms = max(peer.caught_up_at_ms, peer.fetched_at_ms)
        peer.fetched_at_ms = now_ms
        peer.end_then = end_offset
        return None

    def _compare(self, fetch: Fetch) -> Diverge | Behind | None:
        """Return None if this log contains the follower's log, else the reply (rule R15). The reply
        Behind makes the follower start over."""
        start_offset, end_offset = self._log.start_offset, self._log.end_offset
        if fetch.offset < start_offset:
            return Behind(fetch, start_offset)
        if fetch.last_epoch == NO_EPOCH and fetch.offset <= end_offset:
            return None
        epoch, end = self._log.history.end_of(fetch.last_epoch, end_offset=end_offset)
        if epoch == fetch.last_epoch and fetch.offset <= end:
            return None
        if epoch == NO_EPOCH and start_offset:
            return Behind(fetch, start_offset)
        return Diverge(fetch, epoch, end)

    def advance(self) -> None:
        """Advance the high watermark to the offset that all in-sync nodes have on disk (R13)."""
        committed = self._least(self._counted())
        self._log.high_watermark = max(self._log.high_watermark, committed)

    def _least(self, nodes: Iterable[int]) -> int:
        durable_offset = self._log.durable_offset
        for node in nodes:
            if node != self.node:
                peer = self._peers.get(node)
                durable_offset = min(durable_offset, 0 if peer is None else peer.durable_offset)
        return durable_offset

    @property
    def low_watermark_held(self) -> int:
        """The low watermark that every electable replica has stored (rule R25)."""
        peers = [self._peers.get(node) for node in self._counted() if node != self.node]
        held = [0 if peer is None else peer.low_watermark for peer in peers]
        return min((self._log.low_watermark, *held))

    def _counted(self) -> frozenset[int]:
        """Return the in-sync nodes, including those of changes that are still pending."""
        counted = self.row.in_sync
        for change in self._pending:
            counted |= change.row.in_sync
        return counted

    def propose(
        self, *, now_ms: int, lag_ms_max: int = LAG_MS_MAX, gone: Collection[int] = ()
    ) -> Change | None:
        """Return the next change of the in-sync set, or None. Nodes in ``gone`` are removed at once
        (rule R9). If an earlier change has an unknown outcome, the row is rewritten to learn it."""
        if len(self._pending) >= PENDING_MAX:
            return None
        row = self.row
        if self._doubted:
            # Write the same row with a new version. Then the change in progress fails or is known
            # to have been applied. Until that is known, commits wait for the nodes of the change.
            return self._proposed(Change(self._view.version, row))
        late = [
            member
            for member in sorted(row.in_sync)
            if member != self.node and (member in gone or self._lag_ms(member, now_ms) > lag_ms_max)
        ]
        if late and len(row.in_sync) > row.in_sync_min:  # rule R10
            return self._proposed(self.without(late[0]))
        for member in row.replicas:
            if member != self.node and member not in row.whole and member not in gone:
                if self._lag_ms(member, now_ms) > lag_ms_max:
                    continue  # it would be removed again
                change = self.adding(member)
                if change is not None:
                    return self._proposed(change)
        return None

    def _lag_ms(self, member: int, now_ms: int) -> int:
        peer = self._peers.get(member)
        return now_ms - (self._since_ms if peer is None else peer.caught_up_at_ms)

    def refused(self, change: Change) -> None:
        """Drop a change that the store rejected, because pending changes delay commits. Keep it if
        an earlier attempt has an unknown outcome."""
        if change in self._pending and change not in self._doubted:
            self._pending.remove(change)

    def doubted(self, change: Change) -> None:
        """Note that the outcome of a change of the in-sync set is unknown (rule R2)."""
        if change in self._pending and change not in self._doubted:
            self._doubted.append(change)

    def _proposed(self, change: Change) -> Change:
        if change not in self._pending:
            self._pending.append(change)
        return change

    def without(self, member: int) -> Change:
        row = self.row
        assert member != self.node, "a leader cannot leave its own in-sync set"
        assert len(row.in_sync) > row.in_sync_min, "the in-sync set must not fall below its minimum"
        left = replace(row, in_sync=row.in_sync - {member}, lost=row.lost - {member})
        return Change(self._view.version, left)

    def adding(self, member: int) -> Change | None:
        """Return the change that adds a follower to the in-sync set. Returns None if the follower
        lacks the low watermark or a record that may be committed (rule R11)."""
        peer = self._peers.get(member)
        if (
            peer is None
            or peer.durable_offset < max(self._log.high_watermark, self.epoch_start)
            or peer.low_watermark < self._log.low_watermark
        ):
            return None
        row = self.row
        more = replace(row, in_sync=row.in_sync | {member}, lost=row.lost - {member})
        return Change(self._view.version, more, {member: peer.incarnation})

    @property
    def held_offset(self) -> int:
        """The offset up to which all replicas have the log on disk, or 0 while a replica has not
        sent a fetch. Compaction may remove tombstones below this offset."""
        return self._least(self.row.replicas)

    def worst_lag(self, *, now_ms: int) -> tuple[int, int]:
        """Return the largest lag of a follower, in records and in milliseconds."""
        start_offset, end_offset = self._log.start_offset, self._log.end_offset
        least, since_ms = end_offset, now_ms
        for node in self._view.row.replicas:
            if node != self.node:
                peer = self._peers.get(node)
                if peer is None:
                    least, since_ms = start_offset, min(since_ms, self._since_ms)
                else:
                    least = min(least, peer.durable_offset)
                    since_ms = min(since_ms, peer.caught_up_at_ms)
        return end_offset - max(least, start_offset), now_ms - since_ms
