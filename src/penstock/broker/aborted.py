"""Which aborted transactions have left no record in a log, so that nobody needs to know of them.

A reader of committed records is told of an aborted transaction as long as there are records of it.
Where retention removes them, it is enough to know where the log begins. Compaction takes them out
one by one: after a round the batches below tell, by their headers, which transactions still have
some. Only segments that such a transaction touches are read, through ``read_segment``: in a thread,
verified, a little at a time.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence

from penstock.log.compaction import Aborted, Progress, read_segment
from penstock.log.log import Log
from penstock.record.batch import ATTR_TRANSACTIONAL, BatchHeader


class Leftovers:
    def __init__(self, log: Log, aborted: Sequence[Aborted], *, up_to: int) -> None:
        """Of those whose marker stands below ``up_to``, which nobody appends to any more."""
        assert up_to <= log.sealed_offset, "what is read does not grow"
        self.gone: frozenset[Aborted] = frozenset()  # known when a step has said DONE
        self._folder = log.folder
        self._disk = log.disk
        self._segments = [each for each in log.segments() if each.base_offset < up_to]
        self._aborted = aborted
        self._up_to = up_to
        self._by_producer: dict[int, list[Aborted]] = {}
        self._work = self._run()

    def step(self) -> Progress:
        """Look at a little more."""
        try:
            return next(self._work, Progress.DONE)
        except FileNotFoundError:
            return Progress.DONE  # retention was faster, and its own bookkeeping is enough

    def close(self) -> None:
        """Needed if the last step was not DONE; safe to repeat."""
        self._work.close()

    def _run(self) -> Generator[Progress, None, None]:
        asked = sorted((a for a in self._aborted if a[2] < self._up_to), key=lambda a: a[1])
        for each in asked:
            self._by_producer.setdefault(each[0], []).append(each)
        gone = set(asked)
        stretches = _joined(asked)
        for segment in self._segments:
            if not _touches(stretches, segment.base_offset, segment.end_offset):
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
        """The aborted transaction that a batch with records belongs to."""
        if not header.count or header.is_control or not header.attributes & ATTR_TRANSACTIONAL:
            return None
        own = self._by_producer.get(header.producer_id)
        if own is None:
            return None
        # A producer has one transaction after the other.
        at = bisect_right(own, header.base_offset, key=lambda each: each[1]) - 1
        return own[at] if at >= 0 and header.base_offset < own[at][2] else None


def _joined(aborted: Sequence[Aborted]) -> list[tuple[int, int]]:
    """First offset and marker of the stretches they cover, given by first offset."""
    stretches: list[tuple[int, int]] = []
    for _, first, marker in aborted:
        if stretches and first <= stretches[-1][1]:
            stretches[-1] = (stretches[-1][0], max(marker, stretches[-1][1]))
        else:
            stretches.append((first, marker))
    return stretches


def _touches(stretches: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_left(stretches, start, key=lambda each: each[1])
    return at < len(stretches) and stretches[at][0] < end
