"""What happens in a simulated cluster, and how it ends.

Nothing happens by itself. Each step draws one thing that may happen next: a message is delivered,
dropped or doubled, a disk catches up, a node hears of an old or new view, a client sends, receives,
extends or deletes, finished records are dropped, a checkpoint is taken, replicas move, somebody is
elected for no reason, a node is taken for dead, crashes with any part of what was not on disk, or
comes back. After that come the invariants. At the end all is repaired and left to settle: then
commits must go on, and a client that takes what there is must find all that was answered for.

Half of all schedules are of a FIFO queue, half move the partition about, some do not wait for
followers (``Cluster``).
"""

from collections.abc import Sequence

from tests.sim.book import (
    GROUPS,
    Delete,
    Extend,
    Got,
    Operation,
    Receipt,
    Receive,
    Request,
    Send,
    number_of,
)
from tests.sim.cluster import NODES, Cluster
from tests.sim.disk import MESSAGE, Checkpoint, Entry
from tests.sim.node import STEP_MS, SimNode
from tests.sim.queue import Queue
from tests.sim.violation import PhysicalLoss, Violation

from penstock.cursor.leases.events import Event, encode
from penstock.model.message import Claim, Message
from penstock.replication.leader import Leader
from penstock.replication.replica import Role
from penstock.replication.row import Change, PartitionRow

LEASE_STEPS = 60
UNDER_WAY_MAX = 24
SETTLE_ROUNDS = 400
STEPS = 600  # of a schedule: enough for some ten elections


class World(Cluster):
    """The rates of faults are drawn with everything else."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        super().__init__(seed, is_synced=is_synced)
        self.cut_links: set[tuple[int, int]] = set()
        self.deaf: set[int] = set()  # they hardly ever hear from the store
        # How often all goes well for a while: without it hardly anything is committed.
        self.calm_rate = self.random.choice((0.0, 0.015, 0.03))
        self.fault_rate = self.random.choice((0.01, 0.02, 0.03, 0.06))
        for node in self.nodes:
            self.start(node)
        self.elect(is_certain=True)

    # ── Clients ──────────────────────────────────────────────────────────────────────────────

    def ask_leader(self, node: SimNode) -> None:
        queue = node.queue
        if queue is None or (self.is_async and node.is_doubtful):
            return
        if self.low_random.random() < 0.15:
            self.delete_records(node)
        drawn = self.random.random()
        if drawn < 0.45:
            self.send_message(node, queue)
        elif drawn < 0.72:
            self.receive(node, queue, self.random.randint(1, 3))
        elif self.book.open_receipts:
            receipt = self.choose(self.book.open_receipts)
            if drawn < 0.92:
                self.delete(node, queue, receipt)
            elif self.is_async and receipt.epoch != node.live.epoch:
                pass  # its lease may be lost, and another's would be extended
            elif not receipt.is_busy and self.now < receipt.until:
                self.extend(node, queue, receipt)

    def choose(self, receipts: list[Receipt]) -> Receipt:
        """Any of the last ones, but the oldest record rather than another: only a beginning that
        is finished with can be dropped."""
        last = receipts[-12:]
        if self.random.random() < 0.5:
            left = [each for each in last if each.number not in self.book.deleting]
            return min(left or last, key=lambda each: each.claim.offset)
        return self.random.choice(last)

    def send_message(self, node: SimNode, queue: Queue) -> None:
        """On a FIFO queue an earlier one may be sent again, as clients do that heard nothing."""
        wall_ms = node.wall_ms(self.now)
        if not self.is_fifo:
            number = self.book.new_message(None, None)
        elif self.book.messages and self.random.random() < 0.3:
            earlier = self.random.choice(self.book.messages[-6:])
            number = self.book.new_message(earlier.group, earlier.dedup_id)
        else:
            dedup_id = f"d{len(self.book.messages)}"
            number = self.book.new_message(self.random.choice(GROUPS), dedup_id)
        message = self.book.messages[number]
        first = queue.first_of(message, wall_ms=wall_ms)
        if first is None:
            offset = self.append(node, MESSAGE, message)
            queue.sent(message, offset, now_ms=node.now_ms(self.now), wall_ms=wall_ms)
        else:
            offset, number = first[0], int.from_bytes(first[1], "big")
        self.tell(f"node {node.number} is sent {number} at {offset}")
        self.wait(node, offset, Send(number, message.dedup_id))

    def receive(self, node: SimNode, queue: Queue, count: int) -> list[Got]:
        events, picks = queue.receive(
            count,
            LEASE_STEPS * STEP_MS,
            high_watermark=node.live.high_watermark,
            now_ms=node.now_ms(self.now),
            wall_ms=node.wall_ms(self.now),
        )
        got = []
        for pick in picks:
            record = pick.record or queue.log[pick.offset].record(pick.offset)
            number = number_of(record.message)
            self.book.leases[number] += 1
            got.append(Got(number, pick))
        offset = self.append_events(node, events)
        if got:
            self.tell(f"node {node.number} leases {[each.number for each in got]} at {offset}")
            self.wait(node, offset, Receive(tuple(got), LEASE_STEPS))
        return got

    def delete(self, node: SimNode, queue: Queue, receipt: Receipt) -> None:
        events, error = queue.delete(receipt.claim, now_ms=node.now_ms(self.now))
        if error is None:
            offset = self.append_events(node, events)
            self.book.begins_delete(receipt.number, self.now)
            self.tell(f"node {node.number} deletes {receipt.number} at {offset}")
            self.wait(node, offset, Delete(receipt))

    def extend(self, node: SimNode, queue: Queue, receipt: Receipt) -> None:
        steps = self.random.choice((0, 20, LEASE_STEPS))
        now_ms = node.now_ms(self.now)
        events, error = queue.extend(receipt.claim, steps * STEP_MS, now_ms=now_ms)
        if error is None:
            offset = self.append_events(node, events)
            receipt.is_busy = True
            receipt.until = min(receipt.until, self.now + steps)  # whatever becomes of it
            self.tell(f"node {node.number} extends {receipt.number} by {steps} at {offset}")
            self.wait(node, offset, Extend(receipt, self.now + steps))

    def delete_records(self, node: SimNode) -> None:
        """As a client of a stream would: the queue over the same log is not touched by it. Answered
        when every member of the in-sync set has stored it (R25)."""
        low, end = node.visible_from, node.live.high_watermark
        if low < end:
            self.store_low_watermark(node, self.low_random.randint(low + 1, end))
            node.deletions.append(node.low_watermark)
            self.settle(node)

    def append_events(self, node: SimNode, events: Sequence[Event]) -> int:
        """Where the last one stands; without any, where the log ends: what was found done already
        may have been done by an event that is not committed yet."""
        for event in events:
            self.append(node, *encode(event))
        return node.log.end - 1

    def append(self, node: SimNode, kind: int, value: Message | bytes) -> int:
        return node.append(Entry(node.live.epoch, kind, value, node.wall_ms(self.now)))

    def wait(self, node: SimNode, offset: int, request: Request) -> None:
        is_done = offset < node.live.high_watermark
        entry = None if is_done else node.log[offset]
        operation = Operation(offset, entry, node.live.epoch, self.now, request)
        if is_done:
            self.answer(node, operation)
        else:
            node.operations.append(operation)

    # ── The leader's own work ────────────────────────────────────────────────────────────────

    def clean(self, node: SimNode) -> None:
        """Once what says so is committed (``settle``), whatever is finished with may go."""
        queue = node.queue
        assert queue is not None
        if node.trim is not None:
            return
        log, wall_ms = node.log, node.wall_ms(self.now)
        trim = queue.finished(wall_ms=wall_ms)
        if trim.before <= log.start and self.random.random() < 0.5:
            before = self.random.randint(log.start, node.live.high_watermark)
            kept_before = before - (before - log.start) // 2
            events, trim = queue.expire_before(kept_before, wall_ms=wall_ms)
            for record in log.messages(log.start, trim.before):
                self.book.begins_delete(number_of(record.message), self.now)
            self.append_events(node, events)
        if trim.before > log.start:
            node.trim = trim
            self.settle(node)

    def take_checkpoint(self, node: SimNode) -> None:
        """Of what is committed: a leader waits until all it has decided is."""
        now_ms = node.now_ms(self.now)
        queue, fold = node.queue, node.fold
        if queue is not None:
            if queue.fold.is_counted:
                snapshot = queue.cursor.snapshot(now_ms=now_ms)
                begun_at, marks = queue.fold.begun_at, queue.fold.bookmarks.offsets()
                node.noted = Checkpoint(node.log.end, snapshot, begun_at, marks)
                self.settle(node)
        elif fold is not None and fold.is_counted:
            self.write_checkpoint(node, fold.checkpoint(now_ms=now_ms))

    # ── What happens next ────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        self.now += 1
        if self.now % 150 == 1:
            self.weather()
        if len(self.network) > UNDER_WAY_MAX:
            del self.network[self.random.randrange(len(self.network))]
        self.happen(self.random.random(), self.random.choice(self.nodes))
        if self.now % 9 == 0:
            self.check_in_sync()

    def weather(self) -> None:
        drawn = self.random.random
        self.deaf = {number for number in range(NODES) if drawn() < 0.3}
        links = [(a, b) for a in range(NODES) for b in range(NODES)]
        self.cut_links = {link for link in links if drawn() < 0.12}

    def happen(self, drawn: float, node: SimNode) -> None:
        rate = self.fault_rate
        if drawn < rate:
            self.fail(drawn / rate, node)
        elif drawn < rate + self.calm_rate:
            self.breathe()
        elif drawn < rate + self.calm_rate + 0.02:
            if node.leader is not None:
                self.change_in_sync(node, node.leader)
        elif drawn < 0.15:
            if node.is_up and (node.number not in self.deaf or self.random.random() < 0.03):
                self.hear(node)
        elif drawn < 0.20:
            self.care(node)
        elif drawn < 0.38:
            leaders = [each for each in self.nodes if each.queue is not None]
            if leaders:
                self.ask_leader(self.random.choice(leaders))
        elif drawn < 0.48:
            if node.replica is not None:
                self.sync(node)
        elif drawn < 0.62:
            self.ask()
        elif self.network:
            self.deliver()

    def fail(self, drawn: float, node: SimNode) -> None:
        if drawn < 0.22:
            self.elect()
        elif drawn < 0.28:
            self.find_damage(node)
        elif drawn < 0.50:
            if node.is_up and sum(each.is_up for each in self.nodes) > 1:
                if self.random.random() < 0.15:
                    self.stop(node)
                else:
                    self.crash(node)
        elif drawn < 0.88:
            down = [each for each in self.nodes if not each.is_up]
            if down:
                self.start(self.random.choice(down))
        elif node.is_up:
            self.lapse(node)

    def care(self, node: SimNode) -> None:
        """What nodes and managers do now and then."""
        drawn = self.random.random()
        if node.is_doubtful and node.is_up and drawn < 0.4:
            self.renew(node)
        elif drawn < 0.35:
            if self.is_moved:
                self.move()
        elif drawn < 0.55:
            if node.replica is not None:
                self.take_checkpoint(node)
        elif drawn < 0.97:
            leaders = [each for each in self.nodes if each.queue is not None]
            if leaders:
                self.clean(self.random.choice(leaders))
        elif node.operations:
            node.operations = []  # they have waited for too long: nobody knows

    def breathe(self) -> None:
        """For a moment all goes well for those who can be reached: a manager sees to it that there
        is a leader, the leader to who is in sync, and the others ask and are answered."""
        for node in self.nodes:
            if node.is_up and node.number not in self.deaf:
                self.show(node, self.store.view)
        if not self.is_led():
            self.elect(is_certain=True)
        node = self.nodes[max(0, self.store.row.leader)]
        if node.is_up:
            self.show(node, self.store.view)
        leader = node.leader
        if leader is None:
            return
        gone = leader.row.in_sync - self.store.incarnations.keys()
        change = leader.propose(now_ms=self.now, gone=gone)
        if change is not None:
            self.counts["changes"] += self.store.swap(change)
            self.show(node, self.store.view)
        under_way, self.network = self.network, []
        self.exchange()
        self.exchange()
        self.network = under_way

    def exchange(self) -> None:
        """Everybody asks, and is answered."""
        for node in self.nodes:
            if node.replica is not None:
                self.sync(node)
                self.fetch(node)
        for _ in range(3):
            under_way, self.network = self.network, []
            for sent in under_way:
                if (sent.source, sent.target) not in self.cut_links:
                    self.arrive(sent)

    def ask(self) -> None:
        """One that follows asks for more; one that is not wanted, whether it may go."""
        asking = [
            n for n in self.nodes if n.is_leaving or (n.replica and n.live.role is Role.FOLLOWER)
        ]
        if asking:
            node = self.random.choice(asking)
            if node.is_leaving:
                self.ask_to_drop(node)
            else:
                self.fetch(node)

    def deliver(self) -> None:
        at = self.random.randrange(len(self.network))
        sent = self.network[at]
        if self.random.random() < 0.9:
            del self.network[at]
        if self.random.random() < 0.1 or (sent.source, sent.target) in self.cut_links:
            return
        self.arrive(sent)

    def sync(self, node: SimNode) -> None:
        node.live.synced(node.log.end)
        self.settle(node)

    def change_in_sync(self, node: SimNode, leader: Leader) -> None:
        """Not when it is due, but at any time: who is late is a matter of opinion."""
        row = leader.row
        if self.random.random() < 0.4:
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

    def check_in_sync(self) -> None:
        for number in self.store.row.whole:
            node = self.nodes[number]
            if node.has_lost or (not self.is_synced and not node.is_up):
                continue  # it will say so before it can be elected
            if not self.ledger.is_held(node.log):
                raise Violation(f"I6 {number} is in sync and lacks something committed")
            self.ledger.check_low_watermark(number, node.visible_from)
        a, b = self.random.sample(self.nodes, 2)
        self.ledger.check_prefix(a.log, b.log)

    # ── The end ──────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """Everything is up and connected again: commits must reach the end of the log."""
        self.network.clear()
        self.cut_links.clear()
        for node in self.nodes:
            if not node.is_up:
                self.start(node)
            elif node.is_doubtful:
                self.renew(node)
        is_elected = self.random.random() < 0.8
        for number in range(SETTLE_ROUNDS):
            self.now += 1
            if not self.is_led() or (number == 0 and is_elected):
                self.elect(is_certain=True)
            if not self.is_led():
                if any(node.is_aside for node in self.nodes):
                    self.show_all()  # it may have to count again
                    continue
                return  # everybody in sync has lost something, and somebody has gone for good
            self.round()
            if not self.is_led():
                continue  # one that is damaged has resigned
            leader = self.nodes[self.store.row.leader]
            if number > 3 and leader.live.high_watermark == leader.log.end:
                self.check_end(leader)
                return
        raise Violation("L1 commits do not go on although everything is well")

    def round(self) -> None:
        """One in which everybody hears, asks and is answered."""
        self.show_all()
        self.exchange()
        for node in self.nodes:
            self.settle(node)

    def show_all(self) -> None:
        for node in self.nodes:
            self.show(node, self.store.view)

    def is_led(self) -> bool:
        row = self.store.row
        return self.store.incarnations.get(row.leader) == row.leader_incarnation

    def check_end(self, leader: SimNode) -> None:
        self.check_in_sync()
        for node in self.nodes:
            self.ledger.check_prefix(node.log, leader.log)
            if node.replica is not None and node.live.role is Role.FOLLOWER:
                fold = node.fold or self.new_fold(node)
                fold.advance(node.live.high_watermark, now_ms=node.now_ms(self.now))
                self.ledger.check_fold(node.number, fold)
        queue = leader.queue
        assert queue is not None
        self.ledger.check_fold(leader.number, queue.fold)
        self.now += 3 * LEASE_STEPS  # whatever anybody has, nobody has any more
        received: set[int] = set()
        while found := self.receive(leader, queue, 3):
            received.update(got.number for got in found)
            self.finish(leader, queue, found)
        committed = {
            number_of(record.message) for record in self.ledger.log.messages(0, len(self.ledger))
        }
        self.book.check_end(received, leader.live.epoch, committed)

    def finish(self, leader: SimNode, queue: Queue, found: Sequence[Got]) -> None:
        """A FIFO group goes on when what was taken of it is gone."""
        for got in found if self.is_fifo else ():
            claim = Claim(0, got.pick.offset, got.pick.lease_seq)
            events, _ = queue.delete(claim, now_ms=leader.now_ms(self.now))
            self.append_events(leader, events)

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
