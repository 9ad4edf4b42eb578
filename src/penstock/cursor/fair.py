"""Noisy neighbours on a standard queue: one group's flood must not make the others wait.

A group is noisy while it has at least thirty records in flight and more than a tenth of all. A
noisy group's records are parked, and everyone else's go first; when nobody else has any, they are
given out again, the group with the fewest in flight before the others. Records without a group
count as a group each, so they are never noisy. Nothing is throttled: with idle consumers a noisy
group gets them all.

Parked records stay in the cursor's table; here are only their offsets, in order. The number of
groups parked at once is bounded, because each receive looks at the front of each. (Nine can be
noisy at a time; the rest are ones that calmed down and still have records waiting.)
"""

from collections import deque
from collections.abc import Iterator

IN_FLIGHT_MIN = 30
SHARE = 10  # noisy above one in this many
GROUPS_MAX = 64
# How many records may be parked to find quiet ones behind them.
PARKED_MAX = 4_096


class FairShare:
    def __init__(self) -> None:
        self._in_flight: dict[str, int] = {}
        self._crowds: set[str] = set()  # groups with IN_FLIGHT_MIN or more in flight
        self._parked: dict[str, deque[int]] = {}
        self._parked_count = 0

    @property
    def is_needed(self) -> bool:
        """False, at the price of two truth tests, on a queue whose groups are all small."""
        return bool(self._crowds) or bool(self._parked)

    @property
    def may_park(self) -> bool:
        return self._parked_count < PARKED_MAX and len(self._parked) < GROUPS_MAX

    def leased(self, group: str) -> None:
        count = self._in_flight.get(group, 0) + 1
        self._in_flight[group] = count
        if count == IN_FLIGHT_MIN:
            self._crowds.add(group)

    def landed(self, group: str) -> None:
        count = self._in_flight[group] - 1
        if count == 0:
            del self._in_flight[group]
        else:
            self._in_flight[group] = count
        if count == IN_FLIGHT_MIN - 1:
            self._crowds.discard(group)

    def is_noisy(self, group: str | None, total: int) -> bool:
        if group not in self._crowds or group is None:
            return False
        return self._in_flight[group] * SHARE > total

    def noisy_groups(self, total: int) -> list[str]:
        return [group for group in self._crowds if self.is_noisy(group, total)]

    def park(self, group: str, offset: int) -> None:
        self._parked.setdefault(group, deque()).append(offset)
        self._parked_count += 1

    def parked_fronts(self) -> Iterator[tuple[str, int]]:
        for group, offsets in self._parked.items():
            yield group, offsets[0]

    def quietest(self) -> str | None:
        """Of the parked groups, the one with the fewest in flight; ties go to the older record."""
        in_flight = self._in_flight
        best: tuple[int, int, str] | None = None
        for group, offset in self.parked_fronts():
            rank = (in_flight.get(group, 0), offset, group)
            if best is None or rank < best:
                best = rank
        return None if best is None else best[2]

    def unpark(self, group: str) -> int:
        """Take the first parked record of a group."""
        offsets = self._parked[group]
        offset = offsets.popleft()
        self._parked_count -= 1
        if not offsets:
            del self._parked[group]
        return offset

    def clear_parked(self) -> None:
        self._parked.clear()
        self._parked_count = 0
