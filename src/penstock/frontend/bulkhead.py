"""A bulkhead: one callee may hold so many calls of ours and no more, so that a slow one fills its
own compartment and not the ship. Who finds it full is refused at once: a queue in front of a callee
that is too slow only makes everybody late.

Parked calls (long polls) are counted apart: they hold no worker of the callee, and there may be
thousands of them.

This is on the path of every message, so a call that goes well costs some additions and one entry
in a table: no timer and no look at a clock. One sweep for all calls of a callee looks for those
that are late and cuts them off; it runs while there are any.

A call may say which partition it is for. Failures then count for that partition first: after five
in a row, calls for that partition alone are refused at once, while the rest of the node is called
as usual. The whole node is cut off only by late calls of two tenants at least, with no answer in
between, or by lost connections.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.frontend.breaker import OPEN_MS_MAX, Breaker, BreakerState
from penstock.model.errors import Overloaded, PenstockError, Throttled
from penstock.model.limits import FAILING_PARTITIONS_MAX, TENANT_CALLS_PERCENT
from penstock.model.ports import Clock
from penstock.model.quotas import Shares
from penstock.model.topic import Topic

log = logging.getLogger(__name__)

T = TypeVar("T")

CALLS_MAX: Final = 2_000
PARKED_MAX: Final = 100_000
RETRY_AFTER_MS: Final = 200
SWEEP_SECONDS_MAX: Final = 0.25
PARKED_SWEEP_SECONDS: Final = 1.0  # they are many, and late ones are rare and hurt nobody else
PARKED_MARGIN_MS: Final = 10_000  # what a parked call may take beyond the time it waits
LATE: Final = "it did not answer in time"
# A partition that nobody has called for this long after its last failure is forgotten.
FAILING_MS_MAX: Final = 2 * OPEN_MS_MAX
ALL_PARTITIONS: Final = -1  # of a topic: for a call that is about several
_NO_DEADLINE: Final = float("inf")

# The task that makes the call, if there is one, and when it began (of a parked one: when it is
# late); which partition it is for, if it is for one.
_Call = tuple["asyncio.Task[Any] | None", float, Topic | None, int]


class CalleeUnavailable(Overloaded):
    """The callee answers too late or not at all; asking later may help."""

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost  # the way there broke: the next try may find another


class Bulkhead:
    """Calls to one callee: bounded, timed, cut off while it fails.

    ``call`` does it all. Where every fraction of a microsecond counts, a caller enters and leaves
    by itself:

        place = bulkhead.enter(topic, partition)
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
        "_failing",
        "_has_failed",
        "_is_counting",
        "_late",
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
        "shares",
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
        late: tuple[type[PenstockError], ...] = (),
        own_account: str | None = None,
    ) -> None:
        """``lost``: errors of the connection to a callee that is elsewhere, and not of the callee.
        ``late``: errors that say that the callee did not answer in time. ``own_account``: of the
        node's own tenant; the calls of others are bounded by their share. None: by all."""
        self.shares = Shares(calls_max, TENANT_CALLS_PERCENT, own_account=own_account)
        self._is_counting = False  # calls by tenant, in these shares
        self.name = name
        self._lost = lost
        self._late = late
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
        self._has_failed = False  # the callee since its last answer, or one of these partitions:
        self._failing: dict[tuple[str, int], Breaker] = {}  # by topic id and partition
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

    def is_suspect(self, topic: Topic | None = None, partition: int = ALL_PARTITIONS) -> bool:
        """The last call failed. Whoever would park there had better ask without waiting: the next
        call may be the probe that everybody waits for."""
        return self._has_failed and (
            self.breaker.has_failed
            or (topic is not None and (topic.topic_id, partition) in self._failing)
        )

    def answers_again(self) -> None:
        """Somebody knows that the callee is back: call it at once, without a probe."""
        self.breaker.succeeded()
        self._failing.clear()

    # ── A call that is made by itself ────────────────────────────────────────────────────────

    async def call(
        self,
        work: Callable[[], Awaitable[T]],
        topic: Topic | None = None,
        partition: int = ALL_PARTITIONS,
    ) -> T:
        """``work`` makes the awaitable, so that nothing begins when it is refused."""
        place = self.enter(topic, partition)
        try:
            answer = await work()
        except BaseException as error:
            self.failed(place, error)
            raise
        self.left(place)
        return answer

    async def read(
        self,
        work: Callable[[], Awaitable[T]],
        topic: Topic | None = None,
        partition: int = ALL_PARTITIONS,
    ) -> T:
        """The same for what changes nothing: made once more when the way to the callee broke."""
        try:
            return await self.call(work, topic, partition)
        except CalleeUnavailable as error:
            if not error.is_lost:
                raise
        return await self.call(work, topic, partition)

    # ── Its steps ────────────────────────────────────────────────────────────────────────────

    def enter(self, topic: Topic | None = None, partition: int = ALL_PARTITIONS) -> int:
        """Raises when the call is not to be made at all."""
        if self.in_use >= self._room:
            self._admit(topic, partition)
        self.in_use += 1
        place = self._serial = self._serial + 1
        self._calls[place] = (asyncio.current_task(self._loop), self._now, topic, partition)
        return place

    def park(
        self, wait_ms: int, topic: Topic | None = None, partition: int = ALL_PARTITIONS
    ) -> int:
        """``enter`` for a call that waits at the callee for so long; ``left`` and ``failed`` are
        the same."""
        if len(self._parked) >= self.parked_max:
            self._refuse_full()
        if not self._room:
            self._look_closer(topic, partition)
        self._serial += 1
        place = -self._serial
        late_at = self._now + self._sweep_s + (wait_ms + PARKED_MARGIN_MS) / 1_000
        self._parked[place] = (asyncio.current_task(self._loop), late_at, topic, partition)
        return place

    def left(self, place: int) -> None:
        """The callee has answered."""
        if place > 0:
            self.in_use -= 1
            task, _, topic, partition = self._calls.pop(place)
            if self._is_counting and topic is not None:
                self.shares.add(topic.account, -1)
        else:
            task, _, topic, partition = self._parked.pop(place)
        if self._has_failed:
            self._note_answer(topic, partition)
        if self._cut and task is not None and self._cut.pop(task, None) is not None:
            task.uncancel()  # it was to be cut off and has answered all the same

    def failed(self, place: int, error: BaseException) -> None:
        """To be called in the handler of what the call raised. What the callee says itself, a
        refusal included, is an answer and no failure; being late or broken is one, and raised
        from here as CalleeUnavailable."""
        if place > 0:
            self.in_use -= 1
            task, _, topic, partition = self._calls.pop(place)
            if self._is_counting and topic is not None:
                self.shares.add(topic.account, -1)
        else:
            task, _, topic, partition = self._parked.pop(place)
        # Cut off by the sweep, and by nobody else at the same time.
        is_cut = bool(
            self._cut
            and task is not None
            and self._cut.pop(task, None) is not None
            and task.uncancel() == 0
        )
        if self._lost and isinstance(error, self._lost):
            self._note_failure(str(error), None, partition)
        elif self._late and isinstance(error, self._late):
            self._note_failure(str(error), topic, partition)
        elif isinstance(error, PenstockError):
            if self._has_failed:
                self._note_answer(topic, partition)
        elif isinstance(error, OSError):
            # Other errors than of a connection are those of one file.
            whose = None if isinstance(error, ConnectionError) else topic
            self._note_failure(str(error), whose, partition)
            raise CalleeUnavailable(f"{self.name} cannot be reached.", is_lost=True) from error
        elif is_cut and isinstance(error, asyncio.CancelledError):
            self._note_failure(LATE, topic, partition)
            raise CalleeUnavailable(f"{self.name} did not answer in time.") from None
        elif self._has_failed:
            # Whoever asked has gone, or it is a fault of ours. Neither says anything about the
            # callee, but a probe that ended so must not leave a breaker waiting for it.
            now_ms = self._clock.mono_ms()
            _end_probe(self._failing_one(topic, partition), now_ms)
            _end_probe(self.breaker, now_ms)

    # ── The closer look ──────────────────────────────────────────────────────────────────────

    def _admit(self, topic: Topic | None, partition: int) -> None:
        if self.in_use >= self.calls_max:
            self._refuse_full()
        self._look_closer(topic, partition)
        if self._is_counting or self.in_use >= self.shares.most:
            self._take_share(topic)

    def _take_share(self, topic: Topic | None) -> None:
        """Refuse a tenant that has its share of the calls. A tenant can have it only while as many
        calls are under way, so calls are counted by tenant from then on, until there are fewer."""
        shares = self.shares
        if not self._is_counting:
            self._is_counting = True
            self._room = 0  # so that every call comes here
            shares.clear()
            for _, _, each, _ in self._calls.values():
                if each is not None:
                    shares.add(each.account)
        if topic is None:
            return
        if shares.is_used_up(topic.account):
            self.refused_count += 1
            raise Throttled(
                f"This tenant has {shares.of(topic.account):,} of {shares.most:,} calls to"
                f" {self.name} under way.",
                retry_after_ms=RETRY_AFTER_MS,
            )
        shares.add(topic.account)

    def _look_closer(self, topic: Topic | None, partition: int) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._now = self._loop.time()
            self._loop.call_later(self._sweep_s, self._sweep)
        if not self._has_failed:
            self._room = 0 if self._is_counting else self.shares.most
            return
        now_ms = self._clock.mono_ms()
        failing = self._failing_one(topic, partition)
        # The partition first: a call that is refused for its sake is no probe of the callee.
        if failing is not None and not failing.admits(now_ms=now_ms):
            self.refused_count += 1
            raise CalleeUnavailable(
                f"The partition does not answer at {self.name}; it is tried again shortly."
            )
        if not self.breaker.admits(now_ms=now_ms):
            _end_probe(failing, now_ms)
            self.refused_count += 1
            raise CalleeUnavailable(f"{self.name} does not answer; it is tried again shortly.")

    def _refuse_full(self) -> None:
        self.refused_count += 1
        raise Throttled(f"{self.name} has too much to do.", retry_after_ms=RETRY_AFTER_MS)

    # ── Failures and answers ─────────────────────────────────────────────────────────────────

    def _failing_one(self, topic: Topic | None, partition: int) -> Breaker | None:
        return None if topic is None else self._failing.get((topic.topic_id, partition))

    def _note_failure(self, reason: str, topic: Topic | None, partition: int) -> None:
        """``topic``: None for a failure of the callee itself."""
        now_ms = self._clock.mono_ms()
        self._has_failed = True
        self._room = 0
        if topic is not None:
            self._note_partition(reason, topic, partition, now_ms)
        breaker = self.breaker
        opened_count = breaker.opened_count
        breaker.failed(now_ms=now_ms, tenant=None if topic is None else topic.account)
        if breaker.opened_count != opened_count:
            log.warning("circuit breaker opened", extra={"callee": self.name, "reason": reason})

    def _note_partition(self, reason: str, topic: Topic, partition: int, now_ms: int) -> None:
        key = topic.topic_id, partition
        failing = self._failing.get(key)
        if failing is None:
            if len(self._failing) >= FAILING_PARTITIONS_MAX:
                return  # its callers wait until their deadline, as the first ones did
            failing = self._failing[key] = Breaker()
        opened_count = failing.opened_count
        failing.failed(now_ms=now_ms)
        if failing.opened_count != opened_count:
            named = {"callee": self.name, "topic": topic.name, "partition": partition}
            log.warning("circuit breaker of a partition opened", extra={**named, "reason": reason})

    def _note_answer(self, topic: Topic | None, partition: int) -> None:
        """It shows that the callee is there, and that this partition is; not that others are."""
        if self.state() is not BreakerState.CLOSED:
            log.info("callee answers again", extra={"callee": self.name})
        self.breaker.succeeded()
        if topic is not None:
            self._failing.pop((topic.topic_id, partition), None)
        self._has_failed = bool(self._failing)

    def _forget_failing(self) -> None:
        """Nobody calls a topic that was deleted: without this, its entry would stay."""
        since_ms = self._clock.mono_ms() - FAILING_MS_MAX
        self._failing = {k: one for k, one in self._failing.items() if one.failed_at_ms > since_ms}

    # ── The sweep ────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        assert self._loop is not None, "it was set for the sweep"
        if self._failing:
            self._forget_failing()
        if not self._calls and not self._parked:
            self._loop = None
            self._room = 0  # so that the next call starts another
            self._is_counting = False
            return
        self._now = now = self._loop.time()
        if self._is_counting and self.in_use < self.shares.most // 2:
            self._is_counting = False
            self._room = 0  # until the next call looks closer
        late = []
        for place, (task, since, _, _) in self._calls.items():
            # Its beginning was read from a clock that may have been an interval behind.
            if now - since <= self._deadline_s + self._sweep_s:
                break
            late.append((place, task))
        if now - self._parked_swept_at >= PARKED_SWEEP_SECONDS:
            self._parked_swept_at = now
            late += [(p, call[0]) for p, call in self._parked.items() if now > call[1]]
        for place, task in late:
            self._cut_off(place, task)
        self._loop.call_later(self._sweep_s, self._sweep)

    def _cut_off(self, place: int, task: "asyncio.Task[Any] | None") -> None:
        if task is None:
            # Begun outside of any task, as a listener may: nothing can be thrown into it. It keeps
            # its place until it ends, and is counted as late each time that it should have.
            _, _, topic, partition = self._calls[place] if place > 0 else self._parked[place]
            if place > 0:
                del self._calls[place]
                self._calls[place] = (None, self._now, topic, partition)
            self._note_failure(LATE, topic, partition)
        elif task not in self._cut:  # else one call of it at a time; the next sweep takes another
            self._cut[task] = place
            task.cancel()


def _end_probe(breaker: Breaker | None, now_ms: int) -> None:
    if breaker is not None and breaker.state(now_ms=now_ms) is BreakerState.HALF_OPEN:
        breaker.failed(now_ms=now_ms)
