"""The rules of replication, each of them broken: a checker that does not notice proves nothing.

A mutation replaces one decision of the real code, or one habit of the shell around it, by what it
would be without the rule. Some rules matter so rarely that thousands of schedules pass without
them; ``first`` is a seed not far below one that notices, ``schedules`` how many to try from there.
``python -m tests.sim --mutations`` looks for such seeds from the beginning.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import msgspec
from tests.sim.world import LEASE_STEPS, STEPS, SimNode, World

from penstock.replication.epochs import EpochHistory
from penstock.replication.follower import Append, Follower, Ignore, Step, Truncate
from penstock.replication.leader import Leader, Serve
from penstock.replication.messages import Data, Diverge, Fetch
from penstock.replication.replica import Replica, Role
from penstock.replication.row import Change, View

Patch = tuple[object, str, Any]


class Mutation(NamedTuple):
    rule: str
    world: type[World] = World
    patches: tuple[Patch, ...] = ()
    is_synced: bool = True
    first: int = 0
    schedules: int = 300


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    def put_back(owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)

    with ExitStack() as stack:
        for owner, name, value in mutation.patches:
            stack.callback(put_back, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield


# ── Elections and lives ──────────────────────────────────────────────────────────────────────


class AnybodyLeads(World):
    def elect(self) -> None:
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


class LooksAtOldViews(World):
    """Picks the worst: of an epoch that somebody else still leads."""

    def show(self, node: SimNode, view: View) -> None:
        replica = node.live
        if replica.view is not None:
            super().show(node, view)
            return
        led = {each.live.epoch for each in self.nodes if each is not node and each.leader}
        old = [each for each in self.store.views if each.row.epoch in led] or self.store.views
        replica.view = self.random.choice(old)
        replica._take_role(replica.view, now_ms=self.now)
        self.settle(node)


def _takes_role_in_any_life(self: Replica, view: View, *, now_ms: int) -> None:
    row = view.row
    if row.leader == self.node:
        row = msgspec.structs.replace(row, leader_incarnation=self.incarnation)
    _take_role(self, view._replace(row=row), now_ms=now_ms)


_take_role = Replica._take_role


class KeepsItsTable(World):
    """Followers' offsets of an earlier epoch are still believed."""

    def show(self, node: SimNode, view: View) -> None:
        before = node.live.leader
        kept = dict(before._peers) if before is not None else self.kept.get(node.number, {})
        self.kept[node.number] = kept
        is_first = node.live.view is None
        super().show(node, view)
        now = node.live.leader
        if now is not None and now is not before and not is_first:
            now._peers.update(kept)

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.kept: dict[int, Any] = {}
        super().__init__(seed, is_synced=is_synced)


# ── Commits ──────────────────────────────────────────────────────────────────────────────────


class AnswersBeforeDisk(World):
    def step(self) -> None:
        super().step()
        for node in self.nodes:
            if node.is_up:
                replica = node.live
                on_disk = replica.durable_offset
                replica.synced(len(node.log))
                self.settle(node)
                replica.durable_offset = on_disk


class AnswersDeletesEarly(World):
    kind = "D"

    def begin(self, node: SimNode, kind: str, message: int) -> None:
        super().begin(node, kind, message)
        if kind == self.kind:
            self.answer(node.operations.pop())


class AnswersReceivesEarly(AnswersDeletesEarly):
    kind = "L"


class LeasesByTheWallClock(World):
    def lease_end(self, node: SimNode, offset: int) -> int:
        return node.applied_at[offset] + LEASE_STEPS - 40


def _counts_shrunk(self: Leader) -> frozenset[int]:
    sets = [self.row.in_sync, *(change.row.in_sync for change in self._pending)]
    return min(sets, key=len)


def _counts_without_pending(self: Leader) -> frozenset[int]:
    return self.row.in_sync


# ── The in-sync set ──────────────────────────────────────────────────────────────────────────


def _adds_without_epoch_start(self: Leader, member: int) -> Change | None:
    start, self.epoch_start = self.epoch_start, 0
    try:
        return _adding(self, member)
    finally:
        self.epoch_start = start


def _adds_whoever_it_is(self: Leader, member: int) -> Change | None:
    change = _adding(self, member)
    return None if change is None else change._replace(incarnations={})


_adding = Leader.adding


# ── Replication ──────────────────────────────────────────────────────────────────────────────


def _takes_any_answer(
    self: Follower, answer: Any, history: EpochHistory, *, end_offset: int, **_more: int
) -> Step[Any]:
    """Whatever has the right epoch and, if it brings records, fits on."""
    if answer.asked.epoch != self.epoch or answer.asked.incarnation != self.incarnation:
        return Ignore()
    if isinstance(answer, Data):
        fits = answer.asked.offset == end_offset
        return Append(answer.batches, answer.high_watermark) if fits else Ignore()
    if isinstance(answer, Diverge):
        _, own_end = history.end_of(answer.epoch, end_offset=end_offset)
        return Truncate(min(answer.end_offset, own_end, end_offset))
    return Ignore()


def _truncates_anything(self: Replica, to: int) -> None:
    self.end_offset = to
    self.high_watermark = min(self.high_watermark, to)
    self.durable_offset = min(self.durable_offset, to)
    self.history.truncate(to)


def _serves_any_epoch(self: Leader, fetch: Fetch, history: EpochHistory, **more: int) -> Any:
    found = _fetched(self, fetch._replace(epoch=self.epoch), history, **more)
    return found._replace(asked=fetch)


def _serves_without_lineage(self: Leader, fetch: Fetch, history: EpochHistory, **more: int) -> Any:
    if fetch.offset > more["end_offset"]:
        return Serve(fetch)
    _, at = history.end_of(10**9, end_offset=fetch.offset)
    last = [epoch for epoch, start in history if start < fetch.offset]
    same = fetch._replace(last_epoch=last[-1] if last else -1, offset=at)
    found = _fetched(self, same, history, **more)
    return found._replace(asked=fetch)


_fetched = Leader.fetched


class CutsToTheWatermark(World):
    """As Kafka did before it had leader epochs."""

    def show(self, node: SimNode, view: View) -> None:
        before = node.live.epoch
        super().show(node, view)
        replica = node.live
        is_news = replica.role is Role.FOLLOWER and replica.epoch > before
        if is_news and replica.high_watermark < len(node.log):
            self.truncate(node, replica.high_watermark)


MUTATIONS: Mapping[str, Mutation] = {
    "an old view is believed": Mutation(
        "R4",
        LooksAtOldViews,
        schedules=12_000,
    ),
    "a loss is not declared": Mutation("R5", SaysNothingOfLoss),
    "a loss is not declared where disks are not waited for": Mutation(
        "R5", SaysNothingOfLoss, is_synced=False
    ),
    "anybody may lead": Mutation("R7", AnybodyLeads),
    "a new life leads on": Mutation(
        "R8", patches=((Replica, "_take_role", _takes_role_in_any_life),)
    ),
    "followers are believed over epochs": Mutation("R8", KeepsItsTable, first=1400),
    "a follower is added without this epoch's beginning": Mutation(
        "R11", patches=((Leader, "adding", _adds_without_epoch_start),), schedules=12_000
    ),
    "a follower is added whoever it is by now": Mutation(
        "R11", patches=((Leader, "adding", _adds_whoever_it_is),), schedules=12_000
    ),
    "a smaller set counts before it is true": Mutation(
        "R12", patches=((Leader, "_counted", _counts_shrunk),)
    ),
    "a larger set does not count until it is seen": Mutation(
        "R12", patches=((Leader, "_counted", _counts_without_pending),), schedules=12_000
    ),
    "answers do not wait for the disk": Mutation("R13", AnswersBeforeDisk, first=1200),
    "any epoch is served": Mutation(
        "R14", patches=((Leader, "fetched", _serves_any_epoch),), schedules=12_000
    ),
    "the follower's history is not compared": Mutation(
        "R15", patches=((Leader, "fetched", _serves_without_lineage),)
    ),
    "late answers count": Mutation(
        "R16",
        patches=(
            (Follower, "take", _takes_any_answer),
            (Replica, "truncated", _truncates_anything),
        ),
        schedules=12_000,
    ),
    "a follower cuts to the high watermark": Mutation("R17", CutsToTheWatermark),
    "a deletion is answered before it is committed": Mutation("Q2", AnswersDeletesEarly),
    "a receive is answered before it is committed": Mutation("Q2", AnswersReceivesEarly),
    "leases end by another clock": Mutation("Q3", LeasesByTheWallClock),
}


def find_seed(mutation: Mutation, *, first: int, schedules: int) -> tuple[int, str] | None:
    """The first schedule that notices, and what it says."""
    with broken(mutation):
        for seed in range(first, first + schedules):
            try:
                found = mutation.world(seed, is_synced=mutation.is_synced).run(STEPS)
            except AssertionError as noticed:
                found = f"ASSERT {noticed}"
            if found:
                return seed, found
    return None
