"""The epochs of a log: which offsets were written in which leader's epoch. Every batch contains its
epoch, so the history can be rebuilt from the log. Two logs with the same epoch at the same offset
are equal up to there, so comparing epochs shows where two logs diverge (rules R15, R17)."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

NO_EPOCH = -1  # last epoch of an empty log


class EpochHistory:
    """The epochs of a log in order, each with the offset at which it begins."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.append(epoch, start)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._epochs, self._starts, strict=True)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def last(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def append(self, epoch: int, start: int) -> None:
        """Note that a batch of this epoch begins at offset ``start``, the end of the log."""
        if self._epochs and epoch == self._epochs[-1]:
            return
        assert epoch > self.last, "epochs never decrease along a log"
        assert not self._starts or start > self._starts[-1], "an epoch has at least one record"
        self._epochs.append(epoch)
        self._starts.append(start)

    def end_of(self, epoch: int, *, end_offset: int) -> tuple[int, int]:
        """Return the last epoch not after ``epoch`` (NO_EPOCH if none), and its end offset."""
        at = bisect_right(self._epochs, epoch)
        end = self._starts[at] if at < len(self._starts) else end_offset
        return (self._epochs[at - 1] if at else NO_EPOCH), end

    def truncate(self, end_offset: int) -> None:
        """Drop epochs that begin at or after ``end_offset``, the log's new end."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def trim(self, start_offset: int) -> None:
        """Drop epochs that end at or before ``start_offset``, the log's new start."""
        at = bisect_right(self._starts, start_offset) - 1
        if at > 0:
            del self._epochs[:at]
            del self._starts[:at]
        if at >= 0:
            self._starts[0] = start_offset
