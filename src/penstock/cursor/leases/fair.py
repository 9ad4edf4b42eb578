"""Fairness on a standard queue: one message group's flood must not make the other groups wait.

A group is noisy while it has at least thirty records in flight and more than a tenth of all. Its
records are parked, and records of other groups are delivered first; when there are none, parked
records are delivered, first of the group with the fewest in flight. A record without a group is
never noisy. Nothing is throttled: a noisy group gets all idle consumers. The number of parked
groups is bounded, because each receive checks the front of each.
"""

from collections import deque
from collections.abc import Iterator

IN_FLIGHT_MIN = 30
SHARE = 10  # a group is noisy above 1/SHARE of all records in flight
GROUPS_MAX = 64
# Number of records that may be parked to find records of quiet groups after them.
PARKED_MAX = 4_096


class FairShare:
    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._large_groups: set[str] = set()  # groups with IN_FLIGHT_MIN or more in flight
        self._parked: dict[str, deque[int]] = {}
        self._parked_count = 0

    @property
    def is_needed(self) -> bool:
        """Whether a group is large or parked; costs two truth tests if there is none."""
        return bool(self._large_groups) or bool(self._parked)

    @property
    def may_park(self) -> bool:
        return self._parked_count < PARKED_MAX and len(self._parked) < GROUPS_MAX

    def leased(self, group: str) -> None:
        count = self._in_flight.get(group, 0) + 1
        self._in_flight[group] = count
        if count == IN_FLIGHT_MIN:
            self._large_groups.add(group)

    def lease_ended(self, group: str) -> None:
        count = self._in_flight[group] - 1
        if count == 0:
            del self._in_flight[group]
        else:
            self._in_flight[group] = count
        if count == IN_FLIGHT_MIN - 1:
            self._large_groups.discard(group)

    def is_noisy(self, group: str | None, total: int) -> bool:
        if group not in self._large_groups or group is None:
            return False
        return self._in_flight[group] * SHARE > total

    def noisy_groups(self, total: int) -> list[str]:
        return [group for group in self._large_groups if self.is_noisy(group, total)]

    def park(self, group: str, offset: int) -> None:
        self._parked.setdefault(group, deque()).append(offset)
        self._parked_count += 1

    def parked_fronts(self) -> Iterator[tuple[str, int]]:
        for group, offsets in self._parked.items():
            yield group, offsets[0]

    def quietest(self) -> str | None:
        """Return the parked group with the fewest in flight; ties go to the older record."""
        in_flight = self._in_flight
        best: tuple[int, int, str] | None = None
        for group, offset in self.parked_fronts():
            rank = (in_flight.get(group, 0), offset, group)
            if best is None or rank < best:
                best = rank
        return None if best is None else best[2]

    def unpark(self, group: str) -> int:
        """Remove and return the first parked offset of a group."""
        offsets = self._parked[group]
        offset = offsets.popleft()
        self._parked_count -= 1
        if not offsets:
            del self._parked[group]
        return offset

    def clear_parked(self) -> None:
        self._parked.clear()
        self._parked_count = 0
