"""A simulated node: what is on its disk, and while it is up, what is in its memory."""

from tests.sim.book import Operation
from tests.sim.disk import Checkpoint, Entry, SimLog
from tests.sim.fold import Fold
from tests.sim.queue import Queue, Trim

from penstock.replication.epochs import EpochHistory
from penstock.replication.leader import Leader
from penstock.replication.replica import Replica, Role
from penstock.replication.row import View

STEP_MS = 3_000  # a lease takes tens of steps, deduplication a hundred


class SimNode:
    def __init__(self, number: int) -> None:
        self.number = number
        # On disk:
        self.log = SimLog(0, [])
        self.checkpoint: Checkpoint | None = None
        self.watermark_on_disk = 0
        self.low_watermark = 0  # as stored
        self.has_lost = False  # its disk is not what it was, and the node can tell
        # The process:
        self.is_up = False
        self.was_stopped = True
        self.incarnation = 0
        self.is_doubtful = False  # it has not heard for so long that it may be taken for dead
        self.clock_steps = 0  # the monotonic clock is ahead by so much, in this life
        self.wall_steps = 0
        # The replica; None while no row gives the partition to this node:
        self.replica: Replica | None = None
        self.fold: Fold | None = None  # as a follower
        self.operations: list[Operation] = []  # of clients, in the order of the log
        self.is_damaged = False  # its log, as it has found; until it is opened again
        self.is_leaving = False  # the partition is not wanted here, and may go
        self.seen: View | None = None  # what said so
        self.drop_number = 0  # of the question whether it may go
        # As a leader:
        self.queue: Queue | None = None
        self.trim: Trim | None = None  # to be carried out
        self.noted: Checkpoint | None = None  # to be written
        self.deletions: list[int] = []  # low watermarks that clients wait for

    @property
    def live(self) -> Replica:
        assert self.replica is not None
        return self.replica

    @property
    def is_aside(self) -> bool:
        """Damaged, and so neither leading nor following; nothing else may halt a replica."""
        return self.replica is not None and self.replica.role is Role.HALTED

    @property
    def visible_from(self) -> int:
        return max(self.low_watermark, self.log.start)

    @property
    def leader(self) -> Leader | None:
        return self.replica.leader if self.replica is not None else None

    def now_ms(self, now: int) -> int:
        return (now + self.clock_steps) * STEP_MS

    def wall_ms(self, now: int) -> int:
        return (now + self.wall_steps) * STEP_MS

    def append(self, entry: Entry) -> int:
        offset = self.log.end
        self.log.entries.append(entry)
        self.live.appended(entry.epoch, offset + 1)
        return offset

    def history(self) -> EpochHistory:
        history = EpochHistory()
        for offset, entry in enumerate(self.log.entries, self.log.start):
            history.append(entry.epoch, offset)
        return history

    def forget_role(self) -> None:
        self.queue = None
        self.trim = None
        self.noted = None
        self.deletions = []
