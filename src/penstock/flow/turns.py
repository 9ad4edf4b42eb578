"""A pool of slots that tenants share, and whose turn it is when a slot becomes free.

Tenants take turns, and so do the subscriptions of a tenant, with one slot each. A tenant that holds
half of the slots waits while another tenant waits that holds less. It never takes the last eighth,
so that other tenants find free slots at once, even if all requests of the first tenant hang. A pool
that has one tenant only gives it all slots."""

from collections import deque
from typing import Any, Final, Generic, Protocol, TypeVar

RESERVED: Final = 8  # one of so many slots is never taken by a tenant that holds half of them
_EMPTY: Final[deque[Any]] = deque()  # stays empty; idle pools share it, as it has 760 bytes


class Sized(Protocol):
    @property
    def request_bytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class Line(Generic[T]):
    """The slots that a tenant holds in a pool, and the subscriptions that wait for one."""

    __slots__ = ("bytes", "held", "members", "tenant", "waiting")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.members = 0  # subscriptions of the tenant, waiting or not
        self.held = 0
        self.bytes = 0
        self.waiting: deque[T] = _EMPTY


class Pool(Generic[T]):
    """``pop`` returns who is next but takes nothing: call ``take`` for a slot that is used."""

    __slots__ = ("bytes", "bytes_max", "half", "held", "lines", "slots_max", "turns")

    def __init__(self, slots_max: int, bytes_max: float = float("inf")) -> None:
        assert slots_max > 0
        self.slots_max = slots_max
        self.bytes_max = bytes_max
        self.half = (slots_max + 1) // 2
        self.held = 0
        self.bytes = 0
        self.lines: dict[str, Line[T]] = {}  # by tenant
        self.turns: deque[Line[T]] = _EMPTY  # the lines that are not empty

    def join(self, tenant: str) -> Line[T]:
        line = self.lines.get(tenant)
        if line is None:
            line = self.lines[tenant] = Line(tenant)
        line.members += 1
        return line

    def leave(self, line: Line[T]) -> None:
        line.members -= 1
        if not line.members and not line.held:
            del self.lines[line.tenant]

    def take(self, line: Line[T], size_bytes: int = 0) -> None:
        self.held += 1
        self.bytes += size_bytes
        line.held += 1
        line.bytes += size_bytes

    def give_back(self, line: Line[T], size_bytes: int = 0) -> None:
        assert line.held > 0, "a slot is given back once"
        self.held -= 1
        self.bytes -= size_bytes
        line.held -= 1
        line.bytes -= size_bytes
        if not line.members and not line.held:
            del self.lines[line.tenant]

    def resize(self, line: Line[T], added_bytes: int) -> None:
        self.bytes += added_bytes
        line.bytes += added_bytes

    def append(self, line: Line[T], waiting: T) -> None:
        if not line.waiting:
            if line.waiting is _EMPTY:
                line.waiting = deque()
            if self.turns is _EMPTY:
                self.turns = deque()
            self.turns.append(line)
        line.waiting.append(waiting)

    def discard(self, line: Line[T], waiting: T) -> None:
        line.waiting.remove(waiting)
        if not line.waiting:
            self.turns.remove(line)

    def pop(self) -> T | None:
        """Remove and return whose turn it is, or None if all lines are empty or no slot is free."""
        turns = self.turns
        if not turns or self.held >= self.slots_max:
            return None
        if len(self.lines) > 1 and self._is_large(turns[0]) and not self._pass_over():
            return None
        waiting = turns[0].waiting
        if self.bytes + waiting[0].request_bytes > self.bytes_max:
            return None  # smaller requests do not overtake: the large one would never start
        found = waiting.popleft()
        if waiting:
            turns.rotate(-1)
        else:
            turns.popleft()
        return found

    def _is_large(self, line: Line[T]) -> bool:
        """Return whether the tenant holds half of the pool, or would with one more request."""
        if line.held >= self.half:
            return True
        return line.bytes + line.waiting[0].request_bytes > self.bytes_max / 2

    def _pass_over(self) -> bool:
        """Bring a tenant that is not large to the front. If there is none, return whether the first
        one may take a slot. At most four tenants can be large, so this loop is short."""
        turns = self.turns
        for _ in range(len(turns)):
            if not self._is_large(turns[0]):
                return True
            turns.rotate(-1)
        if self.held >= self.slots_max - self.slots_max // RESERVED:
            return False
        bytes_max = self.bytes_max * (1 - 1 / RESERVED)
        return self.bytes + turns[0].waiting[0].request_bytes <= bytes_max
