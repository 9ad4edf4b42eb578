"""A simulated cluster of one partition: the real replication rules over a store, a network, disks
and clocks that a seed decides about. This part is the shell of a node, as
``broker/replicas/replicators.py`` and ``broker/replicas/replicator.py`` are: lives, views,
elections, moves, and what replicas say to each other. What clients do, what happens next, and how
it ends is in world.py.

It stands for the shell's habits as they have to be; a mutation breaks one of them.
"""

import random

from tests.sim.book import Book, Operation
from tests.sim.disk import Checkpoint, Entry
from tests.sim.fold import Fold
from tests.sim.ledger import Ledger
from tests.sim.network import DropReply, DropRequest, Sent, What
from tests.sim.node import STEP_MS, SimNode
from tests.sim.queue import Queue
from tests.sim.store import SimStore
from tests.sim.violation import PhysicalLoss, Violation

from penstock.replication import election
from penstock.replication.election import RepairStep, Standing
from penstock.replication.messages import Data, Fetch, Reply
from penstock.replication.replica import Append, Halt, Replica, Restart, Role, Truncate
from penstock.replication.row import Change, PartitionRow, View

NODES = 4
IN_SYNC_MIN = 2
BATCHES_MAX = 3
WALL_STEPS_MAX = 2  # by which wall clocks are apart
MANAGER = -1


class Cluster:
    """``is_synced``: answers wait for disks. ``is_async``: they wait for the leader alone."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.random = random.Random(seed)
        # Of its own: schedules are what they were before records could be deleted.
        self.low_random = random.Random(~seed)
        self.is_synced = is_synced
        self.is_fifo = seed % 2 == 1
        self.is_moved = seed % 4 >= 2
        self.is_async = seed % 16 >= 14
        self.book = Book(self.is_fifo, self.is_async, 2 * WALL_STEPS_MAX * STEP_MS)
        self.ledger = Ledger(self.book, is_fifo=self.is_fifo)
        replicas = tuple(range(3 if self.is_moved else NODES))
        row = PartitionRow(replicas, frozenset(range(3)), in_sync_min=IN_SYNC_MIN)
        self.store = SimStore(row)
        self.target: tuple[int, ...] = replicas
        self.nodes = [SimNode(number) for number in range(NODES)]
        self.network: list[Sent] = []
        self.now = 0
        names = "commits elections recoveries crashes truncations changes drops checkpoints moves"
        names += " rebirths handovers answers trims restarts mendings reopenings deletions"
        self.counts = dict.fromkeys(names.split(), 0)
        self.story: list[str] | None = None  # what happened, for whoever wants to read it

    def tell(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:5d} {what}")

    # ── Lives ────────────────────────────────────────────────────────────────────────────────

    def start(self, node: SimNode) -> None:
        """In the order of R4: declare a loss, then register, then look."""
        lost = node.has_lost or (not self.is_synced and not node.was_stopped)
        if lost:
            self.declare_loss(node)
        node.is_up = True
        node.was_stopped = False
        node.has_lost = False
        node.is_doubtful = False
        node.clock_steps = self.random.randrange(1_000)
        node.wall_steps = self.random.randint(0, WALL_STEPS_MAX)
        node.incarnation = self.store.register(node.number)
        node.seen = None
        self.tell(f"node {node.number} starts: {node.log.start} to {node.log.end}, {lost=}")
        self.show(node, self.store.view)

    def declare_loss(self, node: SimNode) -> None:
        change = election.declare_loss(self.store.view, node.number)
        if change is not None:
            self.store.swap(change)

    def open(self, node: SimNode) -> None:
        """A row gives the partition to this node."""
        log = node.log
        node.low_watermark = min(node.low_watermark, log.end)
        is_whole = node.number in self.store.row.whole
        node.is_leaving = False
        node.replica = Replica(
            node.number,
            node.incarnation,
            history=node.history(),
            start_offset=log.start,
            end_offset=log.end,
            durable_offset=log.end,
            high_watermark=max(log.start, node.watermark_on_disk if is_whole else 0),
            low_watermark=node.low_watermark,
        )

    def crash(self, node: SimNode) -> None:
        self.counts["crashes"] += 1
        log, replica = node.log, node.replica
        durable = log.end if replica is None else replica.durable_offset
        if not self.is_synced:
            durable = self.random.randint(log.start, log.end)
        kept = self.random.randint(min(durable, log.end), log.end)
        if replica is not None and self.random.random() < 0.5:
            node.watermark_on_disk = replica.high_watermark
        fate = self.random.random()
        if fate < 0.1:
            node.has_lost = True
            self.wipe(node)
        elif fate < 0.37:  # a torn tail, found when the log is opened
            node.has_lost = True
            log.truncate(max(log.start, kept - self.random.randint(1, 6)))
        else:
            log.truncate(kept)
        node.watermark_on_disk = min(node.watermark_on_disk, log.end)
        self.tell(f"node {node.number} crashes, keeps up to {log.end}, lost={node.has_lost}")
        self.forget(node)
        node.is_up = False
        node.is_leaving = False
        if self.random.random() < 0.5:  # or its registration has not run out yet
            self.store.unregister(node.number)

    def stop(self, node: SimNode) -> None:
        """As it should be: with everything on disk, and the registration given back."""
        if node.replica is not None:
            node.watermark_on_disk = node.replica.high_watermark
        self.tell(f"node {node.number} stops")
        self.forget(node)
        node.is_up = False
        node.is_leaving = False
        node.was_stopped = True
        self.store.unregister(node.number)

    def wipe(self, node: SimNode) -> None:
        node.log.restart(0)
        node.checkpoint = None
        node.watermark_on_disk = 0
        node.low_watermark = 0

    def forget(self, node: SimNode) -> None:
        """The process, or the partition in it, ends: nobody hears what became of requests."""
        node.replica = None
        node.fold = None
        node.operations = []
        node.is_damaged = False
        node.forget_role()

    def lapse(self, node: SimNode) -> None:
        """No word from the store: the node doubts first, then others take it for dead (R20)."""
        if node.is_doubtful or self.random.random() < 0.5:
            self.store.unregister(node.number)
        node.is_doubtful = True

    def renew(self, node: SimNode) -> None:
        if self.store.incarnations.get(node.number) == node.incarnation:
            node.is_doubtful = False
        else:
            self.reincarnate(node)

    def reincarnate(self, node: SimNode) -> None:
        """It was taken for dead and lives: registered anew, with its log as it is."""
        self.counts["rebirths"] += 1
        node.incarnation = self.store.register(node.number)
        node.is_doubtful = False
        self.tell(f"node {node.number} registers again")
        before = node.replica
        if before is not None and not node.is_aside:
            node.forget_role()
            node.replica = Replica(
                node.number,
                node.incarnation,
                history=before.history,
                start_offset=before.start_offset,
                end_offset=before.end_offset,
                durable_offset=before.durable_offset,
                high_watermark=before.high_watermark,
                low_watermark=before.low_watermark,
            )
        self.show(node, self.store.view)

    # ── Views ────────────────────────────────────────────────────────────────────────────────

    def show(self, node: SimNode, view: View) -> None:
        is_mine = node.number in view.row.replicas
        if node.replica is None:
            known = node.incarnation if node.seen is None else node.seen.revision
            if view.revision < known:
                return
            node.seen = view
            if not is_mine:
                return
            self.open(node)
        replica = node.live
        before = replica.view
        is_news = view.revision >= node.incarnation and (
            before is None or view.revision > before.revision
        )
        if is_news and not is_mine:
            self.close(node, view)
            return
        if node.is_damaged:
            self.mend(node, view)
            return
        self.take_view(node, view)

    def take_view(self, node: SimNode, view: View) -> None:
        replica = node.live
        before = replica.epoch
        replica.see(view, now_ms=self.now)
        if replica.epoch > before:
            self.took_role(node)
        if replica.role is Role.HALTED:
            raise Violation(f"HALT node {node.number}: {replica.halt_reason}")
        self.settle(node)

    def took_role(self, node: SimNode) -> None:
        """What clients wait for waits on: this node may learn what became of it (ADR 24)."""
        replica = node.live
        self.tell(f"node {node.number} is {replica.role.value} of epoch {replica.epoch}")
        self.counts["handovers"] += bool(node.operations)
        node.forget_role()
        if replica.role is Role.LEADER:
            self.ledger.check_leader(node.number, node.log, replica.epoch)
            self.ledger.check_low_watermark(node.number, node.visible_from, replica.epoch)
            self.lead(node)

    def lead(self, node: SimNode) -> None:
        now_ms, wall_ms = node.now_ms(self.now), node.wall_ms(self.now)
        fold, node.fold = node.fold, None
        if fold is None:
            fold = self.new_fold(node)
        dedup = fold.finish(now_ms=now_ms, wall_ms=wall_ms, is_fifo=self.is_fifo)
        node.queue = Queue(fold, dedup, is_fifo=self.is_fifo)

    def new_fold(self, node: SimNode) -> Fold:
        return Fold(node.log, node.checkpoint, is_fifo=self.is_fifo, now_ms=node.now_ms(self.now))

    def close(self, node: SimNode, view: View) -> None:
        """Not wanted here any more. What is on disk stays until the leader agrees (R22)."""
        self.tell(f"node {node.number} is not wanted any more")
        node.watermark_on_disk = node.live.high_watermark
        self.forget(node)
        node.seen = view
        node.is_leaving = True
        # With the replica end its calls to the leader.
        self.network = [
            each
            for each in self.network
            if each.source != node.number or not isinstance(each.what, Fetch)
        ]

    def hear(self, node: SimNode) -> None:
        """Of any version that is newer than what it knows."""
        known = node.seen if node.replica is None else node.replica.view
        newer = [each for each in self.store.views if known is None or each.version > known.version]
        if newer:
            self.show(node, self.random.choice(newer))

    # ── Damage ───────────────────────────────────────────────────────────────────────────────

    def find_damage(self, node: SimNode) -> None:
        """Somewhere in what it has had on disk for long. That it is wrong is not simulated, only
        what is done about it: nothing may be missing anywhere when a copy is made anew."""
        if node.replica is not None and not node.is_damaged:
            node.is_damaged = True
            self.tell(f"node {node.number} finds its log damaged")
            self.mend(node, self.store.view)

    def mend(self, node: SimNode, view: View) -> None:
        row, number = view.row, node.number
        if not node.is_aside and election.is_spare(row, number):
            node.operations = []
            node.forget_role()
            node.live.halt("the log is damaged")
        if not node.is_aside:
            self.take_view(node, view)
            return
        step = election.next_step(
            row, number, fetched_in=node.live.epoch, incarnations=self.store.incarnations
        )
        if step is RepairStep.RESIGN:
            if self.carry_out(election.resign(view, number)):
                self.mend(node, self.store.view)  # it knows at once what it has changed
        elif step is RepairStep.EMPTY:
            self.counts["mendings"] += 1
            self.tell(f"node {number} empties its damaged copy")
            self.wipe(node)
        if step in (RepairStep.EMPTY, RepairStep.REOPEN):
            self.counts["reopenings"] += step is RepairStep.REOPEN
            self.forget(node)
            node.seen = None
            self.show(node, self.store.view)

    # ── Elections and moves ──────────────────────────────────────────────────────────────────

    def carry_out(self, change: Change, *, is_certain: bool = False) -> bool:
        """By a manager: at once, or some time later, or never, and it may not hear which."""
        if is_certain or self.random.random() < 0.85:
            return self.store.swap(change)
        self.network.append(Sent(MANAGER, MANAGER, change, 0))
        return False

    def elect(self, *, is_certain: bool = False) -> None:
        view = self.store.view
        if not is_certain and self.random.random() < 0.1:
            view = self.random.choice(self.store.views)
        candidates = list(view.row.replicas)
        self.random.shuffle(candidates)  # any choice must do, so the preferred one is not enough
        avoiding = frozenset(candidates[: self.random.randint(0, NODES)])
        change = election.elect(view, self.store.incarnations, avoiding=avoiding)
        if change is not None:
            self.counts["elections"] += self.carry_out(change, is_certain=is_certain)
            self.tell(f"node {change.row.leader} is elected, epoch {change.row.epoch}")
        else:
            self.recover(view, is_certain=is_certain)

    def recover(self, view: View, *, is_certain: bool) -> None:
        members = [self.nodes[number] for number in view.row.in_sync]
        if not all(
            each.replica is not None
            and not each.is_aside
            and self.store.incarnations.get(each.number) == each.live.incarnation
            for each in members
        ):
            return
        if not view.row.whole and not any(self.ledger.is_held(each.log) for each in members):
            raise PhysicalLoss
        standings = {
            each.number: Standing(each.live.history.last, each.log.end) for each in members
        }
        change = election.recover(view, self.store.incarnations, standings)
        if change is not None:
            self.counts["recoveries"] += self.carry_out(change, is_certain=is_certain)

    def move(self) -> None:
        """The next step on the way to other nodes (R23)."""
        view = self.store.view
        if view.row.replicas == self.target or self.random.random() < 0.1:
            self.target = tuple(self.random.sample(range(NODES), 3))
        change = election.place(view, self.target)
        if change is not None:
            self.counts["moves"] += self.carry_out(change)
            self.tell(f"replicas shall be {change.row.replicas}")
        elif view.row.leader not in self.target:
            away = frozenset(view.row.replicas) - set(self.target)
            change = election.elect(view, self.store.incarnations, avoiding=away)
            if change is not None:
                self.counts["elections"] += self.carry_out(change)

    # ── The network ──────────────────────────────────────────────────────────────────────────

    def fetch(self, node: SimNode) -> None:
        asked = node.live.next_fetch()
        if asked is not None and node.live.view is not None:
            self.send(node, node.live.view.row.leader, asked)

    def ask_to_drop(self, node: SimNode) -> None:
        assert node.seen is not None
        row = node.seen.row
        node.drop_number += 1
        self.send(node, row.leader, DropRequest(node.number, row.epoch, node.drop_number))

    def send(
        self,
        node: SimNode,
        target: int,
        what: What,
    ) -> None:
        start, low_watermark = node.log.start, node.low_watermark
        self.network.append(Sent(node.number, target, what, node.incarnation, start, low_watermark))

    def arrive(self, sent: Sent) -> None:
        what = sent.what
        if isinstance(what, Change):
            self.swap(sent, what)
            return
        node = self.nodes[sent.target]
        if isinstance(what, DropReply):
            if node.is_up and node.is_leaving and what.number == node.drop_number:
                self.drop(node)
        elif node.replica is None:
            return
        elif isinstance(what, DropRequest):
            led = node.leader
            is_right = led is not None and led.epoch == what.epoch
            if led is not None and is_right and what.node not in led.row.replicas:
                self.send(node, what.node, DropReply(what.number))
        elif isinstance(what, Fetch):
            self.serve(node, what)
        else:
            self.take(node, what, sent.leader_start, sent.leader_low_watermark)

    def drop(self, node: SimNode) -> None:
        self.counts["drops"] += 1
        self.tell(f"node {node.number} drops its copy")
        self.wipe(node)
        node.is_leaving = False

    def swap(self, sent: Sent, change: Change) -> None:
        is_done = self.store.swap(change)
        self.counts["changes"] += is_done
        if sent.source == MANAGER:
            return
        self.tell(f"in sync {sorted(change.row.in_sync)} by {sent.source}: {is_done}")
        node = self.nodes[sent.source]
        is_heard = self.random.random() < 0.8  # otherwise the answer is lost
        if is_done and is_heard and node.is_up and node.incarnation == sent.life:
            self.show(node, self.store.view)

    def serve(self, node: SimNode, fetch: Fetch) -> None:
        decision = node.live.fetched(fetch, now_ms=self.now)
        if decision is None:
            batches = tuple(node.log.between(fetch.offset, fetch.offset + BATCHES_MAX))
            self.send(node, fetch.node, Data(fetch, batches, node.live.high_watermark))
        else:
            self.send(node, fetch.node, decision)
        self.settle(node)

    def take(
        self, node: SimNode, answer: Reply[Entry], leader_start: int, leader_low_watermark: int
    ) -> None:
        replica = node.live
        step = replica.apply_reply(answer)
        if isinstance(step, Append):
            if leader_low_watermark > node.low_watermark:
                self.store_low_watermark(node, leader_low_watermark)
            for entry in step.batches:
                node.append(entry)
            if not self.is_synced:
                replica.synced(node.log.end)
            replica.followed(step.high_watermark)
            self.settle(node)
            self.digest(node, leader_start)
        elif isinstance(step, Truncate):
            self.truncate(node, step.to)
        elif isinstance(step, Restart):
            self.restart(node, step.at)
        elif isinstance(step, Halt):
            raise Violation(f"HALT node {node.number}: {step.reason}")

    def truncate(self, node: SimNode, to: int) -> None:
        self.counts["truncations"] += 1
        self.tell(f"node {node.number} cuts {node.log.end} to {to}")
        self.give_up_beyond(node, to)
        self.forget_checkpoint(node, to)
        node.log.truncate(to)
        node.low_watermark = min(node.low_watermark, to)
        node.live.truncated(to)

    def restart(self, node: SimNode, at: int) -> None:
        self.counts["restarts"] += 1
        self.tell(f"node {node.number} begins anew at {at}")
        self.give_up_beyond(node, -1)
        node.checkpoint = None
        node.fold = None
        node.log.restart(at)
        node.low_watermark = min(node.low_watermark, at)
        node.live.restarted(at)

    def give_up_beyond(self, node: SimNode, offset: int) -> None:
        """Cut off here; another that has it may lead one day: its client is told nothing."""
        node.operations = [each for each in node.operations if each.offset < offset]

    def forget_checkpoint(self, node: SimNode, to: int) -> None:
        if node.checkpoint is not None and node.checkpoint.offset > to:
            node.checkpoint = None

    # ── What a follower makes of it ──────────────────────────────────────────────────────────

    def digest(self, node: SimNode, leader_start: int) -> None:
        """Read along as far as is committed, then drop what the leader has dropped."""
        if self.random.random() < 0.8:  # or it is busy
            if node.fold is None:
                node.fold = self.new_fold(node)
            node.fold.advance(self.folded_to(node), now_ms=node.now_ms(self.now))
            before = min(leader_start, node.live.high_watermark, node.fold.offset)
            if before > node.log.start:
                self.drop_before(node, before)

    def folded_to(self, node: SimNode) -> int:
        return node.live.high_watermark

    def drop_before(self, node: SimNode, before: int) -> None:
        self.tell(f"node {node.number} drops what stands before {before}")
        self.counts["trims"] += 1
        self.ledger.check_drop(node.number, before)
        node.log.drop_before(before)
        node.live.trimmed(before)
        if node.fold is not None and not node.fold.is_counted:
            node.fold = None  # it has not seen yet how much it would have to count

    # ── Answers ──────────────────────────────────────────────────────────────────────────────

    def settle(self, node: SimNode) -> None:
        """Note what is committed by now, answer whoever waited for it, do what had to wait."""
        replica = node.replica
        if replica is None:
            return
        high_watermark = replica.high_watermark
        if replica.leader is not None:
            for offset in range(len(self.ledger), high_watermark):
                self.ledger.commit(node.log[offset], replica.epoch)
                self.counts["commits"] += 1
                self.tell(f"offset {offset} is committed by node {node.number}")
        if node.deletions:
            self.answer_deletions(node)
        if node.operations:
            self.answer_up_to(node, high_watermark)
        if node.queue is not None:
            if node.noted is not None and high_watermark >= node.noted.offset:
                self.write_checkpoint(node, node.noted)
                node.noted = None
            if node.trim is not None and high_watermark >= node.trim.settled_at:
                self.drop_before(node, node.trim.before)
                node.trim = None

    def store_low_watermark(self, node: SimNode, offset: int) -> None:
        self.tell(f"node {node.number} stores the low watermark {offset}")
        node.low_watermark = offset
        node.live.low_watermark = offset

    def answer_deletions(self, node: SimNode) -> None:
        held = node.live.low_watermark_held
        for offset in node.deletions:
            if offset <= held:
                self.counts["deletions"] += 1
                self.ledger.deleted(offset, node.live.epoch)
        node.deletions = [offset for offset in node.deletions if offset > held]

    def answer_up_to(self, node: SimNode, offset: int) -> None:
        alone = offset
        if self.is_async and node.leader is not None and not node.is_doubtful:
            alone = max(offset, node.live.durable_offset)
        waiting = []
        for each in node.operations:
            if each.offset < (alone if each.epoch == node.live.epoch else offset):
                self.answer(node, each)
            else:
                waiting.append(each)
        node.operations = waiting

    def answer(self, node: SimNode, done: Operation) -> None:
        self.counts["answers"] += 1
        if done.offset < node.live.high_watermark:
            self.check_answer(done)
        elif self.store.incarnations.get(node.number) != node.incarnation:
            raise Violation(f"R20 node {node.number} answers alone after it was taken for dead")
        self.book.answer(done, self.now)

    def check_answer(self, done: Operation) -> None:
        self.ledger.check_answer(done)

    def write_checkpoint(self, node: SimNode, noted: Checkpoint) -> None:
        self.counts["checkpoints"] += 1
        node.checkpoint = noted
