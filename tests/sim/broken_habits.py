"""Habits of the shell around the rules, each of them broken: when clients are answered, what a
queue is folded from, what is taken down and what may go."""

from tests.sim.book import Delete, Extend, Operation, Receive, Request, Send
from tests.sim.fold import Fold
from tests.sim.node import STEP_MS, SimNode
from tests.sim.world import LEASE_STEPS, World

from penstock.cursor.leases.dedup import DedupTable
from penstock.cursor.leases.events import Event, clipped

# ── Answers ──────────────────────────────────────────────────────────────────────────────────


class AnswersBeforeDisk(World):
    """Everybody says that what is written is on disk. What really is, a crash will show."""

    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.on_disk: dict[int, int] = {}
        super().__init__(seed, is_synced=is_synced)

    def sync(self, node: SimNode) -> None:
        if self.random.random() < 0.3:
            self.on_disk[node.number] = node.log.end
        super().sync(node)

    def open(self, node: SimNode) -> None:
        super().open(node)
        self.on_disk[node.number] = node.log.end

    def truncate(self, node: SimNode, to: int) -> None:
        super().truncate(node, to)
        self.on_disk[node.number] = min(self.on_disk[node.number], to)

    def crash(self, node: SimNode) -> None:
        if node.replica is not None:
            on_disk = max(node.log.start, self.on_disk[node.number])
            node.replica.durable_offset = min(node.replica.durable_offset, on_disk)
        super().crash(node)


class AnswersEarly(World):
    kind: type[Send | Receive | Delete | Extend]

    def wait(self, node: SimNode, offset: int, request: Request) -> None:
        super().wait(node, offset, request)
        waiting = node.operations
        if isinstance(request, self.kind) and waiting and waiting[-1].request is request:
            self.book.answer(waiting.pop(), self.now)


class AnswersDeletesEarly(AnswersEarly):
    kind = Delete


class AnswersReceivesEarly(AnswersEarly):
    kind = Receive


class ExtendsOften(World):
    """Whatever is about to be visible again is extended, and asked for again."""

    def ask_leader(self, node: SimNode) -> None:
        left = self.book.open_receipts
        held = [each for each in left if not each.is_busy and 0 < each.until - self.now < 25]
        queue = node.queue
        if queue is None or self.is_async or self.random.random() < 0.3:
            super().ask_leader(node)
        elif held:
            self.extend(node, queue, self.random.choice(held))
        else:
            self.receive(node, queue, 3)


class AnswersExtensionsEarly(AnswersEarly, ExtendsOften):
    kind = Extend


class WaitsForItselfAlone(World):
    """As for an asynchronous topic, of one that is not."""

    def answer_up_to(self, node: SimNode, offset: int) -> None:
        if node.leader is not None:
            offset = max(offset, node.live.durable_offset)
        super().answer_up_to(node, offset)

    def answer(self, node: SimNode, done: Operation) -> None:
        if done.offset < node.live.high_watermark:
            super().answer(node, done)
        else:
            self.book.answer(done, self.now)


class NeverDoubts(World):
    def lapse(self, node: SimNode) -> None:
        self.store.unregister(node.number)


class SaysYesAtHandover(World):
    def took_role(self, node: SimNode) -> None:
        for each in node.operations:
            self.book.answer(each, self.now)
        node.operations = []
        super().took_role(node)


class SaysYesToWhatItCut(World):
    def give_up_beyond(self, node: SimNode, offset: int) -> None:
        pass

    def check_answer(self, done: Operation) -> None:
        pass  # clients would not know


# ── The queue ────────────────────────────────────────────────────────────────────────────────


class LeasesByTheWallClock(World):
    """A lease ends so long after it was written, by a clock that is ahead."""

    def lead(self, node: SimNode) -> None:
        fold = node.fold = node.fold or self.new_fold(node)
        elapsed_ms = (LEASE_STEPS - 20) * STEP_MS
        fold.advance(node.log.end, now_ms=node.now_ms(self.now), elapsed_ms=elapsed_ms)
        super().lead(node)


class LeadsWithoutTheRest(World):
    """What is not committed when it is elected, a new leader does not look at."""

    def lead(self, node: SimNode) -> None:
        fold = node.fold = node.fold or self.new_fold(node)
        high_watermark = node.live.high_watermark
        if fold.offset < high_watermark:
            fold.advance(high_watermark, now_ms=node.now_ms(self.now))
        fold.offset = node.log.end
        super().lead(node)


class ForgetsAttempts(World):
    def lead(self, node: SimNode) -> None:
        super().lead(node)
        assert node.queue is not None
        for entry in node.queue.cursor._table.values():
            entry.attempts = 0


class ForgetsIds(World):
    def lead(self, node: SimNode) -> None:
        super().lead(node)
        assert node.queue is not None
        node.queue.dedup = DedupTable()


def clips_and_does_not_count(self: Fold, event: Event) -> Event:
    self.is_counted = True
    return clipped(event, self.begun_at)


class DropsBeforeCommit(World):
    def clean(self, node: SimNode) -> None:
        super().clean(node)
        trim, node.trim = node.trim, None
        if trim is not None:
            self.drop_before(node, trim.before)


class ReadsBeyondTheWatermark(World):
    def folded_to(self, node: SimNode) -> int:
        return node.log.end


class NotesWhatIsNotCommitted(World):
    def take_checkpoint(self, node: SimNode) -> None:
        super().take_checkpoint(node)
        if node.noted is not None:
            self.write_checkpoint(node, node.noted)
            node.noted = None


class KeepsCheckpointsOverACut(NotesWhatIsNotCommitted):
    def forget_checkpoint(self, node: SimNode, to: int) -> None:
        pass
