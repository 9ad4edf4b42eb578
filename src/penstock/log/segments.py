"""The segments of a log in order: which one holds an offset, and which of them are open.

The last segment is active: it is appended to and stays open. Of the closed segments, only the most
recently read have open files, and unsynced ones, because a sync needs their descriptors.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence

from penstock.log.storage.segment import Segment

OPEN_SEGMENTS_MAX = 4  # closed segments whose files stay open for readers; four descriptors each


class Segments:
    """A list of segments, never empty; the last one is active."""

    __slots__ = ("_all", "_bases", "_open")

    def __init__(self, segments: list[Segment]) -> None:
        self._all = segments
        self._bases = [segment.base_offset for segment in segments]
        # Least recently used first; never the active or an unsynced one.
        self._open: OrderedDict[int, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._all)

    @property
    def last(self) -> Segment:
        return self._all[-1]

    @property
    def start_offset(self) -> int:
        return self._bases[0]

    @property
    def size_bytes(self) -> int:
        return sum(segment.bytes for segment in self._all)

    @property
    def max_timestamp(self) -> int:
        return max(segment.max_timestamp for segment in self._all)

    def holding(self, offset: int) -> Segment:
        """Return the segment that holds an offset; the active one for the log's end."""
        return self._all[bisect_right(self._bases, offset) - 1]

    def since(self, offset: int) -> Sequence[Segment]:
        return self._all[max(0, bisect_right(self._bases, offset) - 1) :]

    def add(self, segment: Segment) -> None:
        self._all.append(segment)
        self._bases.append(segment.base_offset)

    def touch(self, segment: Segment, dirty: Container[int]) -> None:
        """Note that a segment was read, and limit the number of closed segments with open files."""
        if segment is self._all[-1]:
            return
        self._open[segment.base_offset] = segment
        self._open.move_to_end(segment.base_offset)
        if len(self._open) <= OPEN_SEGMENTS_MAX:
            return
        for base_offset, candidate in list(self._open.items()):
            if len(self._open) <= OPEN_SEGMENTS_MAX:
                break
            if base_offset not in dirty:
                del self._open[base_offset]
                candidate.close()

    def take_before(self, offset: int) -> list[Segment]:
        """Remove, close and return the segments that end at or before ``offset``."""
        count = 0
        while count < len(self._all) - 1 and self._all[count].end_offset <= offset:
            count += 1
        return self._take(0, count)

    def take_after(self, segment: Segment) -> list[Segment]:
        """Remove, close and return the segments after ``segment``, which becomes active."""
        first = bisect_right(self._bases, segment.base_offset)
        taken = self._take(first, len(self._all))
        self._open.pop(segment.base_offset, None)
        return taken

    def take_all(self, successor: Segment) -> list[Segment]:
        """Remove, close and return all segments; ``successor`` replaces them."""
        taken = self._take(0, len(self._all))
        self.add(successor)
        return taken

    def between(self, base_offset: int, end_offset: int) -> list[Segment]:
        """Return the segments that cover exactly this range of offsets, or none."""
        first = bisect_left(self._bases, base_offset)
        after = bisect_left(self._bases, end_offset)
        found = self._all[first:after]
        if not found or found[0].base_offset != base_offset or found[-1].end_offset != end_offset:
            return []
        return found

    def close_files(self, segment: Segment) -> None:
        """Close a segment's files; the segment stays in the list."""
        self._open.pop(segment.base_offset, None)
        segment.close()

    def replace(self, old: Sequence[Segment], made: Segment) -> None:
        """Replace neighbouring segments, none of which is active, by one."""
        first = bisect_left(self._bases, made.base_offset)
        after = first + len(old)
        assert list(old) == self._all[first:after], "the segments must be neighbours"
        assert after < len(self._all), "the active segment cannot be replaced"
        self._all[first:after] = [made]
        self._bases[first:after] = [made.base_offset]

    def _take(self, first: int, after: int) -> list[Segment]:
        taken = self._all[first:after]
        del self._all[first:after]
        del self._bases[first:after]
        for segment in taken:
            self.close_files(segment)
        return taken
