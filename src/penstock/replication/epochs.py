"""Which offsets of a log were written in which leader's epoch. Every batch carries its epoch, so
this can be rebuilt from the log at any time; two logs that hold the same epoch up to the same
offset are the same up to there, and so the place where two histories part is found by comparing
numbers instead of records (R15, R17)."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

NO_EPOCH = -1  # of an empty log


class EpochHistory:
    """Epochs in the log's order with the offset each begins at; both only ever grow."""

    __slots__ = ("_epochs", "_starts")

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
        """A batch of this epoch begins at this offset, the log's end so far."""
        if self._epochs and epoch == self._epochs[-1]:
            return
        assert epoch > self.last, "epochs never go back along a log"
        assert not self._starts or start > self._starts[-1], "an epoch holds something"
        self._epochs.append(epoch)
        self._starts.append(start)

    def end_of(self, epoch: int, *, end_offset: int) -> tuple[int, int]:
        """The largest epoch up to this one that the log has, and the offset where the next one
        begins: the end of the log for the last. For none, where the first one begins."""
        at = bisect_right(self._epochs, epoch)
        end = self._starts[at] if at < len(self._starts) else end_offset
        return (self._epochs[at - 1] if at else NO_EPOCH), end

    def truncate(self, end_offset: int) -> None:
        """The log ends here now."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()

    def trim(self, start_offset: int) -> None:
        """The log begins here now; the epoch that this offset is in begins with it."""
        at = bisect_right(self._starts, start_offset) - 1
        if at > 0:
            del self._epochs[:at]
            del self._starts[:at]
        if at >= 0:
            self._starts[0] = start_offset
