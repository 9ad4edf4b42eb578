"""What the probes say about this node: how far it has come, and what is wrong with it.

Three states, one direction. Reasons come from whoever finds them (a damaged partition, a full
disk, a catalog that is behind) and go when it is over. A blocking one takes the node out of the
load balancer; any other is only shown, since a node with one bad partition still serves the rest.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

REASONS_MAX = 100  # beyond it another reason tells an operator nothing new


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


TRANSITIONS: Mapping[State, frozenset[State]] = {
    State.STARTING: frozenset({State.READY, State.DRAINING}),
    State.READY: frozenset({State.DRAINING}),
    State.DRAINING: frozenset(),
}


class Reason(msgspec.Struct, frozen=True):
    name: str  # what it is about, such as "partition 3f…/0"; a new text replaces the old
    text: str
    is_blocking: bool


class Health:
    def __init__(self) -> None:
        self._state = State.STARTING
        self._reasons: dict[str, Reason] = {}
        self._done = 0
        self._total = 0

    @property
    def state(self) -> State:
        return self._state

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(self._reasons.values())

    @property
    def is_ready(self) -> bool:
        if self._state is not State.READY:
            return False
        return not any(reason.is_blocking for reason in self._reasons.values())

    @property
    def percent_started(self) -> int:
        if self._state is not State.STARTING:
            return 100
        return 100 * self._done // self._total if self._total else 0

    def progress(self, *, done: int, total: int) -> None:
        """How much of the recovery is done, in any unit."""
        assert 0 <= done <= total
        self._done, self._total = done, total

    def ready(self) -> None:
        self._go(State.READY)

    def drain(self) -> None:
        """May be asked for more than once: the second signal changes nothing here."""
        if self._state is not State.DRAINING:
            self._go(State.DRAINING)

    def report(self, name: str, text: str, *, is_blocking: bool) -> None:
        if name not in self._reasons and len(self._reasons) == REASONS_MAX:
            # One that blocks is never left out for others that are only shown.
            shown = next((r.name for r in self._reasons.values() if not r.is_blocking), None)
            if not is_blocking or shown is None:
                return
            del self._reasons[shown]
        self._reasons[name] = Reason(name, text, is_blocking)

    def resolve(self, name: str) -> None:
        self._reasons.pop(name, None)

    def _go(self, state: State) -> None:
        assert state in TRANSITIONS[self._state], f"{self._state} does not lead to {state}"
        self._state = state
