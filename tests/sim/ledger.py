"""What was ever committed, for ever, and the invariants of replication over it:

I1    a leader has everything that was committed before its epoch
I2    one record is committed at an offset
I3    two logs that share an epoch at an offset are the same up to there
I5    commits belong to ever newer epochs
I6    whoever is in sync has everything that is committed
LOW   a leader, and whoever is in sync, has stored every low watermark that was answered for
TRIM  only what is finished with is dropped, by events that are committed
SPLIT whoever reads the committed log gets the same queue from it
"""

from tests.cursor_state import state_hash
from tests.sim.book import Book, Operation
from tests.sim.disk import Entry, SimLog
from tests.sim.fold import Fold
from tests.sim.violation import Violation

from penstock.cursor.leases.lease import LeaseCursor


class Ledger:
    def __init__(self, book: Book, *, is_fifo: bool) -> None:
        self.log = SimLog(0, [])
        self.epochs: list[int] = []  # of the leader that committed
        self.fold = Fold(self.log, None, is_fifo=is_fifo, now_ms=0)
        self._book = book
        self._deleted: dict[int, int] = {}  # low watermarks answered for, by epoch

    def __len__(self) -> int:
        return len(self.epochs)

    def commit(self, entry: Entry, epoch: int) -> None:
        if self.epochs and epoch < self.epochs[-1]:
            raise Violation(f"I5 {len(self)} is committed in {epoch} after {self.epochs[-1]}")
        offset = len(self)
        self.log.entries.append(entry)
        self.epochs.append(epoch)
        self.fold.advance(offset + 1, now_ms=0)
        self._book.committed(offset, entry)

    def check_answer(self, done: Operation) -> None:
        if done.entry is None:
            return
        if done.offset >= len(self) or self.log.entries[done.offset] != done.entry:
            raise Violation(f"I2 {done.offset} was answered for, and another record is there")

    def check_leader(self, number: int, log: SimLog, epoch: int) -> None:
        count = sum(each < epoch for each in self.epochs)
        if not self._is_in(log, count):
            raise Violation(f"I1 leader {number} of epoch {epoch} lacks something committed")

    def deleted(self, low_watermark: int, epoch: int) -> None:
        self._deleted[epoch] = max(low_watermark, self._deleted.get(epoch, 0))

    def check_low_watermark(self, number: int, found: int, epoch: int | None = None) -> None:
        """``epoch``: of a leader, who has what was answered for in earlier ones."""
        promised = [low for at, low in self._deleted.items() if epoch is None or at < epoch]
        if found < max(promised, default=0):
            raise Violation(f"LOW {number} has {found} of {max(promised)}: deleted records return")

    def check_drop(self, number: int, before: int) -> None:
        low = self.fold.cursor.low_offset()
        if before > min(low, len(self)):
            raise Violation(f"TRIM node {number} drops up to {before}, finished is {low}")

    def is_held(self, log: SimLog) -> bool:
        return self._is_in(log, len(self))

    def _is_in(self, log: SimLog, count: int) -> bool:
        held = max(0, count - log.start)
        if log.start > max(count, self.fold.cursor.low_offset()):
            return False
        return log.entries[:held] == self.log.entries[log.start : count]

    def check_prefix(self, one: SimLog, other: SimLog) -> None:
        """The same epoch at the same offset: then all before it is the same too."""
        start = max(one.start, other.start)
        for offset in range(min(one.end, other.end) - 1, start - 1, -1):
            if one[offset].epoch == other[offset].epoch:
                if one.between(start, offset + 1) != other.between(start, offset + 1):
                    raise Violation(f"I3 two logs share an epoch at {offset} and not what precedes")
                return

    def check_fold(self, number: int, fold: Fold) -> None:
        """The same state as by reading everything; one that began in the middle counts less."""
        if fold.offset != len(self) or not fold.is_counted:
            return
        if fold.begun_at == 0:
            is_same = state_hash(fold.cursor) == state_hash(self.fold.cursor)
        else:
            is_same = _extent(fold.cursor) == _extent(self.fold.cursor)
        start, own = fold.begun_at, self.fold.bookmarks.offsets()
        for reader, offset in own.items():
            is_same &= max(fold.bookmarks.find(reader) or 0, start) == max(offset, start)
        if not is_same:
            raise Violation(f"SPLIT node {number} makes something else of the same log")


def _extent(cursor: LeaseCursor) -> tuple[int, int]:
    """Where it begins, and how much there is."""
    stats = cursor.stats(now_ms=0)
    count = stats.visible + stats.in_flight + stats.delayed
    return cursor.low_offset(), count + cursor._unwanted  # read by a leader, not passed yet
