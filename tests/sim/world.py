"""A simulated cluster of one partition: the real replication rules over a store, a network, disks
and a clock that a seed decides about, and a checker that knows everything.

Nothing happens by itself. Each step draws one thing that may happen next: a message is delivered,
dropped or doubled, a disk catches up, a node hears of an old or new view, a client sends, receives
or deletes, somebody is elected for no reason, a node crashes with any part of what was not on disk,
or comes back. After that come the invariants. At the end all is repaired and left to settle: then
everything that was answered for must be there, and commits must go on.

Messages of clients stand for the queue's own events: S a message, L a lease of it, D its deletion.
"""

import random
from typing import NamedTuple

from tests.sim.store import SimStore

from penstock.replication import election
from penstock.replication.election import Standing
from penstock.replication.epochs import EpochHistory
from penstock.replication.follower import Append, Halt, Restart, Truncate
from penstock.replication.leader import Leader, Serve
from penstock.replication.messages import Answer, Data, Fetch
from penstock.replication.replica import Replica, Role
from penstock.replication.row import Change, PartitionRow, View

NODES = 4
IN_SYNC_MIN = 2
LEASE_STEPS = 60
UNDER_WAY_MAX = 24
BATCHES_MAX = 3
SETTLE_ROUNDS = 400
STEPS = 1_000  # of a schedule: enough for some ten elections


class Violation(Exception):
    """Something happened that may never happen; its first word names the invariant."""


class PhysicalLoss(Exception):
    """Every copy was destroyed: no protocol helps. The run ends, and it was not silent."""


class Entry(NamedTuple):
    epoch: int
    kind: str  # S, L or D
    message: int


class Operation(NamedTuple):
    """What a client waits for."""

    offset: int
    kind: str
    message: int
    begun_at: int


class SimNode:
    """A node: what is on its disk, and while it is up, what is in its memory."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_up = False
        self.log: list[Entry] = []
        self.applied_at: list[int] = []  # when each entry came here: leases run from then on
        self.watermark_on_disk = 0
        self.has_lost = False  # its disk is not what it was, and the node can tell
        self.was_stopped = True
        self.replica: Replica | None = None
        self.operations: list[Operation] = []

    @property
    def live(self) -> Replica:
        assert self.replica is not None
        return self.replica

    @property
    def leader(self) -> Leader | None:
        return self.replica.leader if self.replica is not None else None

    def append(self, entry: Entry, now: int) -> int:
        self.log.append(entry)
        self.applied_at.append(now)
        self.live.appended(entry.epoch, len(self.log))
        return len(self.log) - 1

    def cut(self, to: int) -> None:
        del self.log[to:]
        del self.applied_at[to:]


class Sent(NamedTuple):
    """On its way; a node's life ends what it was waiting for."""

    source: int
    target: int
    what: Fetch | Answer[Entry] | Change
    life: int


class World:
    """``is_synced``: answers wait for disks. The rates of faults are drawn with everything else."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.random = random.Random(seed)
        self.is_synced = is_synced
        members = frozenset(range(3))
        row = PartitionRow(tuple(range(NODES)), members, in_sync_min=IN_SYNC_MIN)
        self.store = SimStore(row)
        self.nodes = [SimNode(number) for number in range(NODES)]
        self.network: list[Sent] = []
        self.cut_links: set[tuple[int, int]] = set()
        self.deaf: set[int] = set()  # they hardly ever hear from the store
        self.now = 0
        self.fault_rate = self.random.choice((0.01, 0.02, 0.04, 0.07))
        self.next_message = 1
        # What the checker knows:
        self.ledger: list[Entry] = []  # committed, for ever
        self.committed_in: list[int] = []  # by the leader of which epoch
        self.sent: set[int] = set()
        self.deleted_at: dict[int, int] = {}
        self.received: list[tuple[int, int]] = []  # message, when
        self.counts = dict.fromkeys(
            ("commits", "elections", "recoveries", "crashes", "truncations", "changes"), 0
        )
        self.story: list[str] | None = None  # what happened, for whoever wants to read it
        for node in self.nodes:
            self.start(node)
        self.elect()

    def tell(self, what: str) -> None:
        if self.story is not None:
            self.story.append(f"{self.now:5d} {what}")

    # ── Lives ────────────────────────────────────────────────────────────────────────────────

    def start(self, node: SimNode) -> None:
        """In the order of R4: declare a loss, then register, then look."""
        lost = node.has_lost or (not self.is_synced and not node.was_stopped)
        if lost:
            self.declare_loss(node)
        incarnation = self.store.register(node.number)
        history = EpochHistory()
        for offset, entry in enumerate(node.log):
            history.append(entry.epoch, offset)
        end = len(node.log)
        is_whole = node.number in self.store.row.whole
        node.replica = Replica(
            node.number,
            incarnation,
            registered_at=incarnation,
            history=history,
            start_offset=0,
            end_offset=end,
            durable_offset=end,
            high_watermark=node.watermark_on_disk if is_whole else 0,
        )
        node.applied_at = [self.now] * end
        node.operations = []
        node.is_up = True
        node.was_stopped = False
        node.has_lost = False
        self.tell(f"node {node.number} starts with {end} records, {lost=}")
        self.show(node, self.store.view)

    def declare_loss(self, node: SimNode) -> None:
        change = election.declare_loss(self.store.view, node.number)
        if change is not None:
            self.store.swap(change)

    def crash(self, node: SimNode) -> None:
        replica = node.live
        self.counts["crashes"] += 1
        durable = (
            replica.durable_offset if self.is_synced else self.random.randint(0, len(node.log))
        )
        kept = self.random.randint(min(durable, len(node.log)), len(node.log))
        if self.random.random() < 0.5:
            node.watermark_on_disk = replica.high_watermark
        fate = self.random.random()
        if fate < 0.1:
            kept, node.has_lost = 0, True
        elif fate < 0.37:  # a torn tail, found when the log is opened
            kept, node.has_lost = max(0, kept - self.random.randint(1, 6)), True
        node.cut(kept)
        node.watermark_on_disk = min(node.watermark_on_disk, kept)
        self.tell(f"node {node.number} crashes and keeps {kept} records, lost={node.has_lost}")
        node.replica = None
        node.is_up = False
        if self.random.random() < 0.5:  # or its registration has not run out yet
            self.store.unregister(node.number)

    # ── Views and elections ──────────────────────────────────────────────────────────────────

    def show(self, node: SimNode, view: View) -> None:
        replica = node.live
        if replica.see(view, now_ms=self.now).is_new_epoch:
            self.tell(f"node {node.number} is {replica.role.value} of epoch {replica.epoch}")
            node.operations = []  # their clients are told that the end is unknown
            if replica.role is Role.LEADER:
                self.check_leader(node)
        if replica.role is Role.HALTED:
            raise Violation(f"HALT node {node.number}: {replica.halt_reason}")
        self.settle(node)

    def hear(self, node: SimNode) -> None:
        """Of any version that is newer than what it knows."""
        known = node.live.view
        newer = [each for each in self.store.views if known is None or each.version > known.version]
        if newer:
            self.show(node, self.random.choice(newer))

    def elect(self) -> None:
        view = self.store.view
        candidates = list(view.row.replicas)
        self.random.shuffle(candidates)  # any choice must do, so the preferred one is not enough
        avoiding = frozenset(candidates[: self.random.randint(0, NODES)])
        change = election.elect(view, self.store.incarnations, avoiding=avoiding)
        if change is not None:
            self.counts["elections"] += self.store.swap(change)
            self.tell(f"node {change.row.leader} is elected, epoch {change.row.epoch}")
        else:
            self.recover(view)

    def recover(self, view: View) -> None:
        members = [self.nodes[number] for number in view.row.in_sync]
        if not all(
            each.is_up and self.store.incarnations.get(each.number) == each.live.incarnation
            for each in members
        ):
            return
        if not view.row.whole and not any(self.holds_ledger(each) for each in members):
            raise PhysicalLoss
        standings = {
            each.number: Standing(each.live.history.last, len(each.log)) for each in members
        }
        change = self.recovery(view, standings)
        if change is not None:
            self.counts["recoveries"] += self.store.swap(change)

    def recovery(self, view: View, standings: dict[int, Standing]) -> Change | None:
        return election.recover(view, self.store.incarnations, standings)

    # ── Clients ──────────────────────────────────────────────────────────────────────────────

    def ask_leader(self, node: SimNode) -> None:
        drawn = self.random.random()
        if drawn < 0.5:
            message = self.next_message
            self.next_message += 1
            self.begin(node, "S", message)
        elif drawn < 0.8:
            visible = self.visible(node)
            if visible:
                self.begin(node, "L", self.random.choice(visible))
        elif self.received:
            message = self.random.choice(self.received)[0]
            if not any(each.kind == "D" and each.message == message for each in node.log):
                self.begin(node, "D", message)

    def begin(self, node: SimNode, kind: str, message: int) -> None:
        offset = node.append(Entry(node.live.epoch, kind, message), self.now)
        self.tell(f"node {node.number} is asked for {kind}{message}: offset {offset}")
        node.operations.append(Operation(offset, kind, message, self.now))

    def visible(self, node: SimNode) -> list[int]:
        """Committed, and neither deleted nor leased as far as the log goes, committed or not."""
        gone = {each.message for each in node.log if each.kind == "D"}
        until = {
            each.message: self.lease_end(node, offset)
            for offset, each in enumerate(node.log)
            if each.kind == "L"
        }
        return [
            each.message
            for each in node.log[: node.live.high_watermark]
            if each.kind == "S"
            and each.message not in gone
            and until.get(each.message, -1) <= self.now
        ]

    def lease_end(self, node: SimNode, offset: int) -> int:
        return node.applied_at[offset] + LEASE_STEPS

    def settle(self, node: SimNode) -> None:
        """Note what is committed by now, and answer whoever waited for it."""
        replica = node.replica
        if replica is None or replica.leader is None:
            return
        for offset in range(len(self.ledger), replica.high_watermark):
            self.ledger.append(node.log[offset])
            self.committed_in.append(replica.epoch)
            self.counts["commits"] += 1
            self.tell(f"offset {offset} is committed by node {node.number}")
        waiting = []
        for each in node.operations:
            if each.offset < replica.high_watermark:
                self.check_commit(node, each.offset)
                self.answer(each)
            else:
                waiting.append(each)
        node.operations = waiting

    def answer(self, done: Operation) -> None:
        if done.kind == "S":
            self.sent.add(done.message)
        elif done.kind == "D":
            self.deleted_at[done.message] = self.now
        else:
            if self.deleted_at.get(done.message, done.begun_at) < done.begun_at:
                raise Violation(f"Q1 message {done.message} was delivered after it was deleted")
            for message, at in self.received[-60:]:
                if message == done.message and at <= done.begun_at < at + LEASE_STEPS:
                    raise Violation(f"Q3 message {message} was leased at {at} and {done.begun_at}")
            self.received.append((done.message, done.begun_at))

    # ── The network ──────────────────────────────────────────────────────────────────────────

    def fetch(self, node: SimNode) -> None:
        asked = node.live.ask()
        if asked is not None and node.live.follower is not None:
            self.send(node, node.live.follower.leader, asked)

    def send(self, node: SimNode, target: int, what: Fetch | Answer[Entry] | Change) -> None:
        self.network.append(Sent(node.number, target, what, node.live.incarnation))

    def deliver(self) -> None:
        at = self.random.randrange(len(self.network))
        sent = self.network[at]
        if self.random.random() < 0.9:
            del self.network[at]
        if self.random.random() < 0.1 or (sent.source, sent.target) in self.cut_links:
            return
        self.arrive(sent)

    def arrive(self, sent: Sent) -> None:
        if isinstance(sent.what, Change):
            self.swap(sent, sent.what)
            return
        node = self.nodes[sent.target]
        if not node.is_up:
            return
        if isinstance(sent.what, Fetch):
            self.serve(node, sent.what)
        else:
            self.take(node, sent.what)

    def swap(self, sent: Sent, change: Change) -> None:
        is_done = self.store.swap(change)
        self.counts["changes"] += is_done
        self.tell(f"in sync {sorted(change.row.in_sync)} by {sent.source}: {is_done}")
        node = self.nodes[sent.source]
        is_heard = self.random.random() < 0.8  # otherwise the answer is lost
        if is_done and is_heard and node.is_up and node.live.incarnation == sent.life:
            self.show(node, self.store.view)

    def serve(self, node: SimNode, fetch: Fetch) -> None:
        decision = node.live.fetched(fetch, now_ms=self.now)
        if isinstance(decision, Serve):
            batches = tuple(node.log[fetch.offset : fetch.offset + BATCHES_MAX])
            self.send(node, fetch.node, Data(fetch, batches, node.live.high_watermark))
        else:
            self.send(node, fetch.node, decision)
        self.settle(node)

    def take(self, node: SimNode, answer: Answer[Entry]) -> None:
        replica = node.live
        step = replica.answered(answer)
        if isinstance(step, Append):
            for entry in step.batches:
                node.append(entry, self.now)
            if not self.is_synced:
                replica.synced(len(node.log))
            replica.followed(step.high_watermark)
        elif isinstance(step, Truncate):
            self.truncate(node, step.to)
        elif isinstance(step, Halt):
            raise Violation(f"HALT node {node.number}: {step.reason}")
        else:
            assert not isinstance(step, Restart), "nothing is trimmed here"

    def truncate(self, node: SimNode, to: int) -> None:
        self.counts["truncations"] += 1
        self.tell(f"node {node.number} cuts {len(node.log)} records to {to}")
        node.cut(to)
        node.live.truncated(to)

    # ── What happens next ────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        self.now += 1
        if self.now % 150 == 1:
            self.weather()
        if len(self.network) > UNDER_WAY_MAX:
            del self.network[self.random.randrange(len(self.network))]
        self.happen(self.random.random(), self.random.choice(self.nodes))
        if self.now % 7 == 0:
            self.check_in_sync()

    def weather(self) -> None:
        drawn = self.random.random
        self.deaf = {number for number in range(NODES) if drawn() < 0.3}
        links = [(a, b) for a in range(NODES) for b in range(NODES)]
        self.cut_links = {link for link in links if drawn() < 0.12}

    def happen(self, drawn: float, node: SimNode) -> None:
        rate = self.fault_rate
        if drawn < rate * 0.3:
            self.elect()
        elif drawn < rate * 0.55:
            if node.is_up and sum(each.is_up for each in self.nodes) > 1:
                self.crash(node)
        elif drawn < rate:
            down = [each for each in self.nodes if not each.is_up]
            if down:
                self.start(self.random.choice(down))
        elif drawn < rate + 0.02:
            if node.is_up and node.leader is not None:
                self.change_in_sync(node, node.leader)
        elif drawn < 0.14:
            if node.is_up and (node.number not in self.deaf or self.random.random() < 0.03):
                self.hear(node)
        elif drawn < 0.30:
            leaders = [each for each in self.nodes if each.leader is not None]
            if leaders:
                self.ask_leader(self.random.choice(leaders))
        elif drawn < 0.42:
            if node.is_up:
                self.sync(node)
        elif drawn < 0.60:
            followers = [each for each in self.nodes if each.is_up and each.live.follower]
            if followers:
                self.fetch(self.random.choice(followers))
        elif self.network:
            self.deliver()

    def sync(self, node: SimNode) -> None:
        node.live.synced(len(node.log))
        self.settle(node)

    def change_in_sync(self, node: SimNode, leader: Leader) -> None:
        """Not when it is due, but at any time: who is late is a matter of opinion."""
        row = leader.row
        if self.random.random() < 0.5:
            others = sorted(row.in_sync - {node.number})
            if len(row.in_sync) <= self.least_in_sync(row) or not others:
                return
            change: Change | None = leader.without(self.random.choice(others))
        else:
            outside = [n for n in row.replicas if n != node.number and n not in row.whole]
            change = leader.adding(self.random.choice(outside)) if outside else None
        if change is not None and len(leader._pending) < 8:
            leader._proposed(change)
            self.send(node, node.number, change)

    def least_in_sync(self, row: PartitionRow) -> int:
        return row.in_sync_min

    # ── The checker ──────────────────────────────────────────────────────────────────────────

    def holds_ledger(self, node: SimNode) -> bool:
        return node.log[: len(self.ledger)] == self.ledger

    def check_leader(self, node: SimNode) -> None:
        epoch = node.live.epoch
        for offset, entry in enumerate(self.ledger):
            if self.committed_in[offset] < epoch and (
                offset >= len(node.log) or node.log[offset] != entry
            ):
                raise Violation(f"I1 leader {node.number} of epoch {epoch} lacks {offset}")

    def check_commit(self, node: SimNode, offset: int) -> None:
        if self.ledger[offset] != node.log[offset]:
            raise Violation(f"I2 two records are committed at {offset}")

    def check_in_sync(self) -> None:
        for number in self.store.row.whole:
            node = self.nodes[number]
            if node.has_lost or (not self.is_synced and not node.is_up):
                continue  # it will say so before it can be elected
            if not self.holds_ledger(node):
                raise Violation(f"I6 {number} is in sync and lacks something committed")
        for a in self.nodes:
            for b in self.nodes[: a.number]:
                self.check_prefix(a.log, b.log)

    def check_prefix(self, one: list[Entry], other: list[Entry]) -> None:
        """The same epoch at the same offset: then all before it is the same too."""
        for offset in range(min(len(one), len(other)) - 1, -1, -1):
            if one[offset].epoch == other[offset].epoch:
                if one[: offset + 1] != other[: offset + 1]:
                    raise Violation(f"I3 two logs share an epoch at {offset} and not what precedes")
                return

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Everything is up and connected again: commits must reach the end of the log."""
        self.network.clear()
        self.cut_links.clear()
        for node in self.nodes:
            if not node.is_up:
                self.start(node)
        for number in range(SETTLE_ROUNDS):
            self.now += 1
            if not self.is_led() or number == 0:
                self.elect()
            if not self.is_led():
                return  # everybody in sync has lost something, and somebody has gone for good
            for node in self.nodes:
                self.show(node, self.store.view)
            for node in self.nodes:
                self.sync(node)
                self.fetch(node)
            for _ in range(3):
                under_way, self.network = self.network, []
                for sent in under_way:
                    self.arrive(sent)
            leader = self.nodes[self.store.row.leader]
            self.settle(leader)
            if number > 3 and leader.live.high_watermark == len(leader.log):
                self.check_end(leader)
                return
        raise Violation("L1 commits do not go on although everything is well")

    def is_led(self) -> bool:
        row = self.store.row
        return self.store.incarnations.get(row.leader) == row.leader_incarnation

    def check_end(self, leader: SimNode) -> None:
        there = {kind: {e.message for e in leader.log if e.kind == kind} for kind in "SLD"}
        for message in self.sent - there["S"]:
            raise Violation(f"A1 message {message} was answered for and is lost")
        for message in set(self.deleted_at) - there["D"]:
            raise Violation(f"Q2 the deletion of {message} was answered for and is lost")
        for message in there["D"] - there["S"]:
            raise Violation(f"Q4 {message} was deleted and never sent")

    def run(self, steps: int) -> str:
        """The violation, or nothing."""
        try:
            for _ in range(steps):
                self.step()
            self.drain()
        except PhysicalLoss:
            return ""
        except Violation as violation:
            return f"{violation} (step {self.now})"
        return ""
