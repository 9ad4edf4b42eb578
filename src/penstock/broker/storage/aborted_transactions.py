"""Finds aborted transactions that have no record left in a log, so that they can be forgotten.

Readers of committed records need to know of an aborted transaction as long as it has records. Where
retention removes them, the start of the log is enough. Compaction removes them one by one: after a
round, the batch headers below show which transactions still have records. Only segments that such a
transaction overlaps are read, with ``read_segment``: in a thread, verified, a little at a time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence

from penstock.log.compaction import Aborted, Progress, read_segment
from penstock.log.log import Log
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader


class AbortedScan:
    def __init__(self, log: Log, aborted: Sequence[Aborted], *, up_to: int) -> None:
        """Look at transactions whose marker is below ``up_to``, in sealed segments."""
        assert up_to <= log.sealed_offset, "a segment that is read does not grow"
        self.gone: frozenset[Aborted] = frozenset()  # valid after a step has returned DONE
        self._folder = log.folder
        self._disk = log.disk
        self._segments = [each for each in log.segments() if each.base_offset < up_to]
        self._aborted = aborted
        self._up_to = up_to
        self._by_producer: dict[int, list[Aborted]] = {}
        self._work = self._run()

    def step(self) -> Progress:
        """Read a little more."""
        try:
            return next(self._work, Progress.DONE)
        except FileNotFoundError:
            return Progress.DONE  # retention removed a segment, and notes that itself

    def close(self) -> None:
        """Needed if the last step was not DONE; safe to repeat."""
        self._work.close()

    def _run(self) -> Generator[Progress, None, None]:
        aborted = sorted((a for a in self._aborted if a[2] < self._up_to), key=lambda a: a[1])
        for each in aborted:
            self._by_producer.setdefault(each[0], []).append(each)
        gone = set(aborted)
        ranges = _joined(aborted)
        for segment in self._segments:
            if not _overlaps(ranges, segment.base_offset, segment.end_offset):
                continue
            for batches in read_segment(self._folder, segment, self._disk):
                for header, _ in batches:
                    found = self._transaction_of(header)
                    if found is not None:
                        gone.discard(found)
                yield Progress.MORE
                if not gone:
                    return
        self.gone = frozenset(gone)

    def _transaction_of(self, header: BatchHeader) -> Aborted | None:
        """Return the aborted transaction that a batch with records belongs to."""
        if not header.count or header.is_control or not header.attributes & ATTR_TRANSACTIONAL:
            return None
        own = self._by_producer.get(header.producer_id)
        if own is None:
            return None
        # The transactions of a producer do not overlap.
        at = bisect_right(own, header.base_offset, key=lambda each: each[1]) - 1
        return own[at] if at >= 0 and header.base_offset < own[at][2] else None


def _joined(aborted: Sequence[Aborted]) -> list[tuple[int, int]]:
    """Return the ranges that the transactions cover, as first offset and marker, in order."""
    ranges: list[tuple[int, int]] = []
    for _, first, marker in aborted:
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(marker, ranges[-1][1]))
        else:
            ranges.append((first, marker))
    return ranges


def _overlaps(ranges: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_left(ranges, start, key=lambda each: each[1])
    return at < len(ranges) and ranges[at][0] < end
