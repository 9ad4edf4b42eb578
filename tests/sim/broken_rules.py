"""The rules of replication, each as it would be if it were not there: replacements for decisions of
the real code and for the few habits that a rule is about. What notices them is in mutations.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from tests.sim.node import SimNode
from tests.sim.store import SimStore
from tests.sim.world import World

from penstock.replication import election
from penstock.replication.election import RepairStep, Standing
from penstock.replication.leader import Leader
from penstock.replication.messages import Behind, Data, Diverge, Fetch
from penstock.replication.replica import Append, Replica, Role, Step, Truncate
from penstock.replication.row import Change, PartitionRow, View

# ── Elections and lives ──────────────────────────────────────────────────────────────────────


class AnybodyLeads(World):
    def elect(self, *, is_certain: bool = False) -> None:
        view = self.store.view
        anybody = [n for n in view.row.replicas if n in self.store.incarnations]
        if anybody:
            node = self.random.choice(anybody)
            row = msgspec.structs.replace(
                view.row,
                leader=node,
                leader_incarnation=self.store.incarnations[node],
                epoch=view.row.epoch + 1,
            )
            self.store.swap(Change(view.version, row))


class SaysNothingOfLoss(World):
    def declare_loss(self, node: SimNode) -> None:
        pass


class RegistersOften(World):
    """So that there are many first looks: by processes that ended, and by some that did not."""

    reborn_share = 0.5

    def care(self, node: SimNode) -> None:
        if node.is_up and self.random.random() < 0.5:
            if self.random.random() < self.reborn_share:
                self.reincarnate(node)
            else:
                self.stop(node)
                self.start(node)
        else:
            super().care(node)


class LooksAtOldViews(RegistersOften):
    """Picks the worst: of an epoch that somebody else still leads."""

    def show(self, node: SimNode, view: View) -> None:
        if node.replica is not None and node.replica.view is None:
            self.look_back(node)
        else:
            super().show(node, view)

    def open(self, node: SimNode) -> None:
        super().open(node)
        self.look_back(node)

    def look_back(self, node: SimNode) -> None:
        replica = node.live
        led = {each.live.epoch for each in self.nodes if each is not node and each.leader}
        old = [each for each in self.store.views if each.row.epoch in led] or self.store.views
        old = [each for each in old if node.number in each.row.replicas] or [self.store.view]
        replica.view = self.random.choice(old)
        replica._take_role(replica.view, now_ms=self.now)
        self.took_role(node)
        self.settle(node)


class LooksBackWhenReborn(LooksAtOldViews):
    """The same, where a node registers again without having ended."""

    reborn_share = 1.0
    is_reborn = False

    def look_back(self, node: SimNode) -> None:
        if self.is_reborn:
            super().look_back(node)

    def show(self, node: SimNode, view: View) -> None:
        if self.is_reborn:
            super().show(node, view)
        else:
            World.show(self, node, view)

    def reincarnate(self, node: SimNode) -> None:
        self.is_reborn = True
        super().reincarnate(node)
        self.is_reborn = False


def takes_role_in_any_life(self: Replica, view: View, *, now_ms: int) -> None:
    row = view.row
    if row.leader == self.node:
        row = msgspec.structs.replace(row, leader_incarnation=self.incarnation)
    _take_role(self, view._replace(row=row), now_ms=now_ms)


_take_role = Replica._take_role


class KeepsItsTable(World):
    """Followers' offsets of an earlier epoch are still believed."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.kept: dict[int, Any] = {}
        super().__init__(seed, is_synced=is_synced)

    def show(self, node: SimNode, view: View) -> None:
        before = node.leader
        if before is not None:
            self.kept[node.number] = dict(before._peers)
        super().show(node, view)
        now = node.leader
        if now is not None and now is not before:
            now._peers.update(self.kept.get(node.number, {}))

    def crash(self, node: SimNode) -> None:
        super().crash(node)
        self.kept.pop(node.number, None)


def swaps_whatever_the_version(self: SimStore, change: Change) -> bool:
    return _swap(self, change._replace(version=self.views[-1].version))


_swap = SimStore.swap


def recovers_with_anybody(
    view: View, incarnations: Mapping[int, int], standings: Mapping[int, Standing]
) -> Change | None:
    shortest = min(standings, key=lambda node: standings[node])
    lies = {node: Standing(int(node == shortest), 0) for node in standings}
    return _recover(view, incarnations, lies)


_recover = election.recover


# ── Damaged copies ───────────────────────────────────────────────────────────────────────────


def empties_what_counts(
    row: PartitionRow, node: int, *, fetched_in: int, incarnations: Mapping[int, int]
) -> RepairStep:
    step = _next_step(row, node, fetched_in=fetched_in, incarnations=incarnations)
    return RepairStep.EMPTY if step is RepairStep.RESIGN and row.leader != node else step


def counts_out_at_once(
    row: PartitionRow, node: int, *, fetched_in: int, incarnations: Mapping[int, int]
) -> RepairStep:
    return _next_step(row, node, fetched_in=-1, incarnations=incarnations)


def resigns_in_the_same_epoch(view: View, node: int) -> Change:
    change = _resign(view, node)
    if view.row.leader == node:
        return change
    return change._replace(row=msgspec.structs.replace(change.row, epoch=view.row.epoch))


def stays_aside(
    row: PartitionRow, node: int, *, fetched_in: int, incarnations: Mapping[int, int]
) -> RepairStep:
    step = _next_step(row, node, fetched_in=fetched_in, incarnations=incarnations)
    return RepairStep.WAIT if step is RepairStep.REOPEN else step


_next_step = election.next_step
_resign = election.resign


# ── Moves ────────────────────────────────────────────────────────────────────────────────────


def places_at_once(view: View, replicas: Sequence[int]) -> Change | None:
    """Whoever shall have it is counted on before it has anything."""
    change = _place(view, replicas)
    row = view.row
    if change is not None or row.leader not in replicas or row.replicas == tuple(replicas):
        return change
    some = frozenset(replicas)
    moved = msgspec.structs.replace(row, replicas=tuple(replicas), in_sync=some, lost=frozenset())
    return Change(view.version, moved)


_place = election.place


class MovesOften(World):
    """So that replicas go and come back within an epoch."""

    def care(self, node: SimNode) -> None:
        if self.random.random() < 0.7:
            self.move()
        else:
            super().care(node)


class DropsUnasked(MovesOften):
    def close(self, node: SimNode, view: View) -> None:
        super().close(node, view)
        self.drop(node)


def remembers_the_dropped(self: Leader, view: View) -> None:
    peers = dict(self._peers)
    _saw(self, view)
    self._peers = peers


_saw = Leader.saw


# ── Commits ──────────────────────────────────────────────────────────────────────────────────


def counts_shrunk(self: Leader) -> frozenset[int]:
    sets = [self.row.in_sync, *(change.row.in_sync for change in self._pending)]
    return min(sets, key=len)


def counts_without_pending(self: Leader) -> frozenset[int]:
    return self.row.in_sync


# ── The in-sync set ──────────────────────────────────────────────────────────────────────────


def adds_without_epoch_start(self: Leader, member: int) -> Change | None:
    start, self.epoch_start = self.epoch_start, 0
    try:
        return _adding(self, member)
    finally:
        self.epoch_start = start


def adds_whoever_it_is(self: Leader, member: int) -> Change | None:
    change = _adding(self, member)
    return None if change is None else change._replace(incarnations={})


def adds_without_low_watermark(self: Leader, member: int) -> Change | None:
    log = self._log
    low_watermark, log.low_watermark = log.low_watermark, 0
    try:
        return _adding(self, member)
    finally:
        log.low_watermark = low_watermark


_adding = Leader.adding


# ── Replication ──────────────────────────────────────────────────────────────────────────────


def takes_any_answer(self: Replica, answer: Any) -> Step[Any] | None:
    """Whatever has the right epoch and, if it brings records, fits on."""
    if answer.fetch.epoch != self.epoch or answer.fetch.incarnation != self.incarnation:
        return None
    end_offset = self.end_offset
    if isinstance(answer, Data):
        fits = answer.fetch.offset == end_offset
        return Append(answer.batches, answer.high_watermark) if fits else None
    if isinstance(answer, Diverge):
        _, own_end = self.history.end_of(answer.epoch, end_offset=end_offset)
        return Truncate(min(answer.end_offset, own_end, end_offset))
    return None


def truncates_anything(self: Replica, to: int) -> None:
    self.end_offset = to
    self.high_watermark = min(self.high_watermark, to)
    self.durable_offset = min(self.durable_offset, to)
    self.history.truncate(to)


def serves_any_epoch(self: Leader, fetch: Fetch, *, now_ms: int) -> Any:
    found = _fetched(self, fetch._replace(epoch=self.epoch), now_ms=now_ms)
    return None if found is None else found._replace(fetch=fetch)


def serves_without_lineage(self: Leader, fetch: Fetch, *, now_ms: int) -> Any:
    history = self._log.history
    if fetch.offset > self._log.end_offset:
        return None
    _, at = history.end_of(10**9, end_offset=fetch.offset)
    last = [epoch for epoch, start in history if start < fetch.offset]
    same = fetch._replace(last_epoch=last[-1] if last else -1, offset=at)
    found = _fetched(self, same, now_ms=now_ms)
    return None if found is None else found._replace(fetch=fetch)


_fetched = Leader.fetched


def compares_only_behind_its_start(self: Leader, fetch: Fetch) -> Diverge | Behind | None:
    """As if what stands before the beginning were the same for sure."""
    if fetch.offset == self._log.start_offset > 0:
        return None
    return _compare(self, fetch)


_compare = Leader._compare


class CutsToTheWatermark(World):
    """As Kafka did before it had leader epochs."""

    def took_role(self, node: SimNode) -> None:
        super().took_role(node)
        replica = node.live
        if replica.role is Role.FOLLOWER and replica.high_watermark < node.log.end:
            self.truncate(node, replica.high_watermark)


# ── Low watermarks ───────────────────────────────────────────────────────────────────────────

counts_its_own_low_watermark = property(lambda self: self.low_watermark)


class SaysStoredBeforeItIs(World):
    """A crash shows what really is."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.said: dict[int, int] = {}
        super().__init__(seed, is_synced=is_synced)

    def store_low_watermark(self, node: SimNode, offset: int) -> None:
        if node.leader is None:
            node.live.low_watermark = offset
            self.said[node.number] = offset
        else:
            super().store_low_watermark(node, offset)

    def sync(self, node: SimNode) -> None:
        super().sync(node)
        node.low_watermark = max(node.low_watermark, self.said.pop(node.number, 0))

    def forget(self, node: SimNode) -> None:
        super().forget(node)
        self.said.pop(node.number, None)
