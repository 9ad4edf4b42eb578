"""A bulkhead: one callee may hold so many calls of ours and no more, so that a slow one fills its
own compartment and not the ship. Who finds it full is refused at once: a queue in front of a callee
that is too slow only makes everybody late.

Parked calls (long polls) are counted apart: they hold no worker of the callee, and there may be
thousands of them.

This is on the path of every message, so a call that goes well costs some additions and one entry
in a table: no timer and no look at a clock. One sweep for all calls of a callee looks for those
that are late and cuts them off; it runs while there are any.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.frontend.breaker import Breaker, BreakerState
from penstock.model.errors import Overloaded, PenstockError, Throttled
from penstock.model.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

CALLS_MAX: Final = 2_000
PARKED_MAX: Final = 100_000
RETRY_AFTER_MS: Final = 200
SWEEP_SECONDS_MAX: Final = 0.25
PARKED_SWEEP_SECONDS: Final = 1.0  # they are many, and late ones are rare and hurt nobody else
PARKED_MARGIN_MS: Final = 10_000  # what a parked call may take beyond the time it waits
LATE: Final = "it did not answer in time"
_NO_DEADLINE: Final = float("inf")

# The task that makes the call, if there is one, and when it began; of a parked one when it is late.
_Call = tuple["asyncio.Task[Any] | None", float]


class CalleeUnavailable(Overloaded):
    """The callee answers too late or not at all; asking later may help."""

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost  # the way there broke: the next try may find another


class Bulkhead:
    """Calls to one callee: bounded, timed, cut off while it fails.

    ``call`` does it all. Where every fraction of a microsecond counts, a caller enters and leaves
    by itself:

        place = bulkhead.enter()
        try:
            answer = await callee.do()
        except BaseException as error:
            bulkhead.failed(place, error)
            raise
        bulkhead.left(place)
    """

    __slots__ = (
        "_calls",
        "_clock",
        "_cut",
        "_deadline_s",
        "_has_failed",
        "_loop",
        "_lost",
        "_now",
        "_parked",
        "_parked_swept_at",
        "_room",
        "_serial",
        "_sweep_s",
        "breaker",
        "calls_max",
        "in_use",
        "name",
        "parked_max",
        "refused_count",
    )

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        calls_max: int = CALLS_MAX,
        parked_max: int = PARKED_MAX,
        deadline_ms: int | None = None,
        lost: tuple[type[PenstockError], ...] = (),
    ) -> None:
        """``lost``: errors of the way to a callee that is elsewhere, and not of the callee."""
        self.name = name
        self._lost = lost
        self.calls_max = calls_max
        self.parked_max = parked_max
        self.breaker = Breaker()
        self.in_use = 0  # parked ones not among them
        self.refused_count = 0
        self._clock = clock
        self._deadline_s = _NO_DEADLINE if deadline_ms is None else deadline_ms / 1_000
        self._sweep_s = min(SWEEP_SECONDS_MAX, self._deadline_s / 4)
        # How many may be in without a closer look. None while a look is due at each: the callee
        # has failed lately, or nobody sweeps.
        self._room = 0
        self._has_failed = False
        self._serial = 0
        self._calls: dict[int, _Call] = {}  # by their place, oldest first
        self._parked: dict[int, _Call] = {}
        self._cut: dict[asyncio.Task[Any], int] = {}  # being cut off, and which of their calls
        self._now = 0.0  # moved by the sweep only, so up to one of its intervals behind
        self._parked_swept_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # while a sweep is due

    def state(self) -> BreakerState:
        return self.breaker.state(now_ms=self._clock.mono_ms())

    @property
    def parked(self) -> int:
        return len(self._parked)

    @property
    def is_suspect(self) -> bool:
        """Its last call failed. Whoever would park there had better ask without waiting: the next
        call may be the probe that everybody waits for."""
        return self._has_failed

    # ── A call that is made by itself ────────────────────────────────────────────────────────

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """``work`` makes the awaitable, so that nothing begins when it is refused."""
        place = self.enter()
        try:
            answer = await work()
        except BaseException as error:
            self.failed(place, error)
            raise
        self.left(place)
        return answer

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """The same for what changes nothing: made once more when the way to the callee broke."""
        try:
            return await self.call(work)
        except CalleeUnavailable as error:
            if not error.is_lost:
                raise
        return await self.call(work)

    # ── Its steps ────────────────────────────────────────────────────────────────────────────

    def enter(self) -> int:
        """Raises when the call is not to be made at all."""
        if self.in_use >= self._room:
            self._admit()
        self.in_use += 1
        place = self._serial = self._serial + 1
        self._calls[place] = (asyncio.current_task(self._loop), self._now)
        return place

    def park(self, wait_ms: int) -> int:
        """``enter`` for a call that waits at the callee for so long; ``left`` and ``failed`` are
        the same."""
        if len(self._parked) >= self.parked_max:
            self._refuse_full()
        if not self._room:
            self._look_closer()
        self._serial += 1
        place = -self._serial
        late_at = self._now + self._sweep_s + (wait_ms + PARKED_MARGIN_MS) / 1_000
        self._parked[place] = (asyncio.current_task(self._loop), late_at)
        return place

    def left(self, place: int) -> None:
        """The callee has answered."""
        if place > 0:
            self.in_use -= 1
            task, _ = self._calls.pop(place)
        else:
            task, _ = self._parked.pop(place)
        if self._has_failed:
            self._note_answer()
        if self._cut and task is not None and self._cut.pop(task, None) is not None:
            task.uncancel()  # it was to be cut off and has answered all the same

    def failed(self, place: int, error: BaseException) -> None:
        """To be called in the handler of what the call raised. What the callee says itself, a
        refusal included, is an answer and no failure; being late or broken is one, and raised
        from here as CalleeUnavailable."""
        if place > 0:
            self.in_use -= 1
            task, _ = self._calls.pop(place)
        else:
            task, _ = self._parked.pop(place)
        # Cut off by the sweep, and by nobody else at the same time.
        is_cut = bool(
            self._cut
            and task is not None
            and self._cut.pop(task, None) is not None
            and task.uncancel() == 0
        )
        if self._lost and isinstance(error, self._lost):
            self._note_failure(str(error))
        elif isinstance(error, PenstockError):
            if self._has_failed:
                self._note_answer()
        elif isinstance(error, OSError):
            self._note_failure(str(error))
            raise CalleeUnavailable(f"{self.name} cannot be reached.", is_lost=True) from error
        elif is_cut and isinstance(error, asyncio.CancelledError):
            self._note_failure(LATE)
            raise CalleeUnavailable(f"{self.name} did not answer in time.") from None
        elif self._has_failed and self.state() is BreakerState.HALF_OPEN:
            # Whoever asked has gone, or it is a fault of ours. Neither says anything about the
            # callee, but a probe that ended so must not leave the breaker waiting for it.
            self._note_failure("the probe was broken off")

    # ── The closer look ──────────────────────────────────────────────────────────────────────

    def _admit(self) -> None:
        if self.in_use >= self.calls_max:
            self._refuse_full()
        self._look_closer()

    def _look_closer(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._now = self._loop.time()
            self._loop.call_later(self._sweep_s, self._sweep)
        if not self.breaker.admits(now_ms=self._clock.mono_ms()):
            self.refused_count += 1
            raise CalleeUnavailable(f"{self.name} does not answer; it is tried again shortly.")
        if not self._has_failed:
            self._room = self.calls_max

    def _refuse_full(self) -> None:
        self.refused_count += 1
        raise Throttled(f"{self.name} has too much to do.", retry_after_ms=RETRY_AFTER_MS)

    def _note_failure(self, reason: str) -> None:
        breaker = self.breaker
        opened_count = breaker.opened_count
        breaker.failed(now_ms=self._clock.mono_ms())
        self._has_failed = True
        self._room = 0
        if breaker.opened_count != opened_count:
            log.warning("callee cut off", extra={"callee": self.name, "reason": reason})

    def _note_answer(self) -> None:
        was_open = self.state() is not BreakerState.CLOSED
        self._has_failed = False
        self.breaker.succeeded()
        if was_open:
            log.info("callee answers again", extra={"callee": self.name})

    # ── The sweep ────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        assert self._loop is not None, "it was set for the sweep"
        if not self._calls and not self._parked:
            self._loop = None
            self._room = 0  # so that the next call starts another
            return
        self._now = now = self._loop.time()
        late = []
        for place, (task, since) in self._calls.items():
            # Its beginning was read from a clock that may have been an interval behind.
            if now - since <= self._deadline_s + self._sweep_s:
                break
            late.append((place, task))
        if now - self._parked_swept_at >= PARKED_SWEEP_SECONDS:
            self._parked_swept_at = now
            late += [(p, task) for p, (task, late_at) in self._parked.items() if now > late_at]
        for place, task in late:
            self._cut_off(place, task)
        self._loop.call_later(self._sweep_s, self._sweep)

    def _cut_off(self, place: int, task: "asyncio.Task[Any] | None") -> None:
        if task is None:
            # Begun outside of any task, as a listener may: nothing can be thrown into it. It keeps
            # its place until it ends, and is counted as late each time that it should have.
            if place > 0:
                del self._calls[place]
                self._calls[place] = (None, self._now)
            self._note_failure(LATE)
        elif task not in self._cut:  # else one call of it at a time; the next sweep takes another
            self._cut[task] = place
            task.cancel()
