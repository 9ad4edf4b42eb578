"""A simulated cluster whose queue is read as a subscription reads a share: it wants two of three
messages, and a reader moves a bookmark in the same log. The draws for this are of their own, so the
faults are those of the schedules without it.

    WANTED  what is not wanted is never received, and everything else is, in the end
    MARK    a bookmark that was answered for is there for every later leader
"""

import random

from tests.sim.book import Got, Mark, number_of
from tests.sim.disk import Checkpoint
from tests.sim.node import SimNode
from tests.sim.queue import Queue
from tests.sim.violation import Violation
from tests.sim.world import World

from penstock.cursor.bookmark import Bookmarks
from penstock.model.message import Record

READER = "reader"


def is_wanted(record: Record) -> bool:
    return number_of(record.message) % 3 != 1


class PushWorld(World):
    def __init__(self, seed: int, *, is_synced: bool = True) -> None:
        self.push_random = random.Random(seed + (1 << 32))
        self._judged = 0  # messages below this number are known to be wanted or not
        super().__init__(seed, is_synced=is_synced)
        self.counts["bookmarks"] = self.counts["unwanted"] = 0

    def lead(self, node: SimNode) -> None:
        super().lead(node)
        assert node.queue is not None
        node.queue.cursor.wants = is_wanted

    def ask_leader(self, node: SimNode) -> None:
        queue = node.queue
        if queue is None or (self.is_async and node.is_doubtful):
            return
        if self.push_random.random() < 0.3:
            self.move_bookmark(node, queue)
        super().ask_leader(node)

    def send_message(self, node: SimNode, queue: Queue) -> None:
        super().send_message(node, queue)
        for number in range(self._judged, len(self.book.messages)):
            if number % 3 == 1:
                self.book.begins_delete(number, self.now)  # as good as deleted
                self.counts["unwanted"] += 1
        self._judged = len(self.book.messages)

    def receive(self, node: SimNode, queue: Queue, count: int) -> list[Got]:
        found = super().receive(node, queue, count)
        for got in found:
            if got.number % 3 == 1:
                raise Violation(f"WANTED message {got.number} was received and is not wanted")
        return found

    def marks_of(self, node: SimNode, queue: Queue) -> Bookmarks:
        """The leader's, with everything in them that was answered for."""
        marks = queue.fold.bookmarks
        found = max(marks.find(READER) or 0, node.log.start)
        if found < self.book.mark and not self.is_async:
            raise Violation(f"MARK leader {node.number} has {found} of {self.book.mark}")
        return marks

    def move_bookmark(self, node: SimNode, queue: Queue) -> None:
        offset = self.push_random.randint(0, node.live.high_watermark)
        event = self.marks_of(node, queue).move(READER, offset, may_move_back=False)
        if event is not None:
            at = self.append(node, *event)
            self.tell(f"node {node.number} moves a bookmark to {offset} at {at}")
            self.wait(node, at, Mark(offset))
            self.counts["bookmarks"] += 1

    def check_end(self, leader: SimNode) -> None:
        assert leader.queue is not None
        self.marks_of(leader, leader.queue)
        super().check_end(leader)


class ForgetsBookmarks(PushWorld):
    """Checkpoints are written without them."""

    def write_checkpoint(self, node: SimNode, noted: Checkpoint) -> None:
        super().write_checkpoint(node, noted._replace(bookmarks={}))


class PassesEverything(PushWorld):
    """What was read is passed with what was not wanted before it, wanted or not."""

    def receive(self, node: SimNode, queue: Queue, count: int) -> list[Got]:
        cursor = queue.cursor
        if cursor._unwanted and cursor._window:
            cursor._window.clear()
            cursor.unwanted_tail = cursor._unwanted
        return super().receive(node, queue, count)
