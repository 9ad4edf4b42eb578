"""The state of this node for health checks: starting, ready or draining, and its problems.

Once a second the node reports its problems (``model/troubles.py``). A blocking problem takes the
node out of the load balancer; other problems are only shown. One log line is written when a problem
begins and one when it ends."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from penstock.model.troubles import WARNINGS, Kind, Trouble
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample

REASONS_MAX = 100  # more reasons do not help an operator

log_ = logging.getLogger(__name__)


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Reason(msgspec.Struct, frozen=True):
    kind: str
    name: str
    text: str
    do: str
    is_blocking: bool


class Health:
    def __init__(self) -> None:
        self.state = State.STARTING
        self._troubles: dict[tuple[Kind, str], Trouble] = {}
        self._counts: Counter[Kind] = Counter()
        self._done = 0
        self._total = 0

    @property
    def reasons(self) -> tuple[Reason, ...]:
        found = self._troubles.values()
        return tuple(Reason(one.kind, one.name, one.text, one.do, one.is_blocking) for one in found)

    @property
    def is_ready(self) -> bool:
        is_blocked = any(one.is_blocking for one in self._troubles.values())
        return self.state is State.READY and not is_blocked

    @property
    def percent_started(self) -> int:
        if self.state is not State.STARTING:
            return 100
        return 100 * self._done // self._total if self._total else 0

    def progress(self, *, done: int, total: int) -> None:
        assert 0 <= done <= total
        self._done, self._total = done, total

    def ready(self) -> None:
        assert self.state is State.STARTING, f"{self.state} does not lead to ready"
        self.state = State.READY

    def drain(self) -> None:
        self.state = State.DRAINING

    def show(self, troubles: Sequence[Trouble]) -> None:
        before = self._troubles
        # Blocking problems come first, so that they are never left out.
        kept = sorted(troubles, key=lambda one: not one.is_blocking)[:REASONS_MAX]
        self._troubles = {(one.kind, one.name): one for one in kept}
        self._counts = Counter(one.kind for one in troubles)
        for key, one in self._troubles.items():
            if key not in before:
                facts = {"trouble": one.kind, "do": one.do, **one.facts()}
                level = logging.WARNING if one.kind in WARNINGS else logging.ERROR
                log_.log(level, one.text, extra=facts)
        for key, one in before.items():
            if key not in self._troubles and one.over:
                log_.info(one.over, extra={"trouble": one.kind, **one.facts()})

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        for kind in Kind:
            yield families.TROUBLE, ((kind.value,), self._counts[kind])
