"""A bulkhead: a limit on the calls in progress to one callee, so that a slow callee does not block
the calls to others. A call beyond the limit is rejected at once. Parked calls (long polls) have a
limit of their own: they use no worker of the callee, and there may be thousands.

Every message passes here, so a successful call costs a few additions and one dict entry, and needs
no timer and no clock. One periodic sweep per callee finds and cancels the calls that are late.

After five failed calls to a partition in a row, calls to this partition are rejected at once, while
calls to other partitions go on. The circuit breaker of the whole callee opens after five failures
in a row, if they are lost connections or late calls of at least two tenants, because the partitions
of one tenant may hang while others work. An open breaker lets single calls through as probes, to
find out whether the callee replies again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from penstock.flow.breaker import OPEN_MS_MAX, Breaker, BreakerState
from penstock.model.call_times import PARKED_MARGIN_MS
from penstock.model.calls import ALL_PARTITIONS
from penstock.model.errors import Overloaded, PenstockError, Throttled
from penstock.model.limits import FAILING_PARTITIONS_MAX, TENANT_CALLS_PERCENT
from penstock.model.ports import Clock
from penstock.model.quotas import SharedLimit
from penstock.model.topic import Topic

log = logging.getLogger(__name__)

T = TypeVar("T")

CALLS_MAX: Final = 2_000
PARKED_MAX: Final = 100_000
RETRY_AFTER_MS: Final = 200
SWEEP_SECONDS_MAX: Final = 0.25
PARKED_SWEEP_SECONDS: Final = 1.0  # there are many parked calls, and late ones are rare
LATE: Final = "no reply in time"
FAILING_MS_MAX: Final = 2 * OPEN_MS_MAX  # after its last failure a partition is forgotten

# The task that makes the call, if any; when the call began (a parked one: when it is late); its
# topic and partition.
_Call = tuple["asyncio.Task[Any] | None", float, Topic | None, int]


class CalleeUnavailable(Overloaded):
    """The callee replied late or not at all; a later retry may succeed."""

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost  # the connection was lost: a retry may find another


class CalleeRefused(CalleeUnavailable): ...


class Bulkhead:
    """Limits the calls to one callee. ``call`` makes a whole call. Without it, use ``enter`` or
    ``park`` before the call, and ``left`` or ``failed`` after it."""

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
        """Create a bulkhead. ``lost`` are the error types that mean a lost connection, ``late``
        those that mean no reply in time. A tenant other than ``own_account`` may use only a part of
        the limit."""
        self.shares = SharedLimit(calls_max, TENANT_CALLS_PERCENT, own_account=own_account)
        self._is_counting = False  # whether ``shares`` counts the calls of each tenant
        self.name = name
        self._lost = lost
        self._late = late
        self.calls_max = calls_max
        self.parked_max = parked_max
        self.breaker = Breaker()
        self.in_use = 0  # without parked calls
        self.refused_count = 0
        self._clock = clock
        self._deadline_s = float("inf") if deadline_ms is None else deadline_ms / 1_000
        self._sweep_s = min(SWEEP_SECONDS_MAX, self._deadline_s / 4)
        # The number of calls admitted without further checks. 0 after a failure, and while no
        # sweep is scheduled: then every call is checked.
        self._room = 0
        self._has_failed = False  # whether the callee failed since its last reply, or a partition
        self._failing: dict[tuple[str, int], Breaker] = {}  # by topic id and partition
        self._serial = 0
        self._calls: dict[int, _Call] = {}  # by call number, oldest first
        self._parked: dict[int, _Call] = {}  # by negative call number
        self._cut: dict[asyncio.Task[Any], int] = {}  # cancelled by the sweep, with the call number
        self._now = 0.0  # set by the sweep, so up to one interval old
        self._parked_swept_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None  # set while a sweep is scheduled

    def state(self) -> BreakerState:
        return self.breaker.state(now_ms=self._clock.mono_ms())

    @property
    def parked(self) -> int:
        return len(self._parked)

    def is_suspect(self, topic: Topic | None = None, partition: int = ALL_PARTITIONS) -> bool:
        """Return whether calls to the callee, or to this partition, have failed recently."""
        return self._has_failed and (
            self.breaker.has_failed
            or (topic is not None and (topic.topic_id, partition) in self._failing)
        )

    def mark_available(self) -> None:
        self.breaker.succeeded()
        self._failing.clear()

    # ── A whole call ─────────────────────────────────────────────────────────────────────────

    async def call(
        self,
        work: Callable[[], Awaitable[T]],
        topic: Topic | None = None,
        partition: int = ALL_PARTITIONS,
    ) -> T:
        """Make a call by awaiting ``work()``, unless the bulkhead rejects the call."""
        number = self.enter(topic, partition)
        try:
            reply = await work()
        except BaseException as error:
            self.failed(number, error)
            raise
        self.left(number)
        return reply

    async def read(
        self,
        work: Callable[[], Awaitable[T]],
        topic: Topic | None = None,
        partition: int = ALL_PARTITIONS,
    ) -> T:
        """Make a read-only call, and retry it once if the connection was lost."""
        try:
            return await self.call(work, topic, partition)
        except CalleeUnavailable as error:
            if not error.is_lost:
                raise
        return await self.call(work, topic, partition)

    # ── The steps of a call ──────────────────────────────────────────────────────────────────

    def enter(self, topic: Topic | None = None, partition: int = ALL_PARTITIONS) -> int:
        if self.in_use >= self._room:
            self._admit(topic, partition)
        self.in_use += 1
        number = self._serial = self._serial + 1
        self._calls[number] = (asyncio.current_task(self._loop), self._now, topic, partition)
        return number

    def park(
        self, wait_ms: int, topic: Topic | None = None, partition: int = ALL_PARTITIONS
    ) -> int:
        if len(self._parked) >= self.parked_max:
            self._refuse_full()
        if not self._room:
            self._look_closer(topic, partition)
        self._serial += 1
        number = -self._serial
        late_at = self._now + self._sweep_s + (wait_ms + PARKED_MARGIN_MS) / 1_000
        self._parked[number] = (asyncio.current_task(self._loop), late_at, topic, partition)
        return number

    def left(self, number: int) -> None:
        if number > 0:
            self.in_use -= 1
            task, _, topic, partition = self._calls.pop(number)
            if self._is_counting and topic is not None:
                self.shares.add(topic.account, -1)
        else:
            task, _, topic, partition = self._parked.pop(number)
        if self._has_failed:
            self._note_reply(topic, partition)
        if self._cut and task is not None and self._cut.pop(task, None) is not None:
            task.uncancel()  # the reply came although the sweep had cancelled the call

    def failed(self, number: int, error: BaseException) -> None:
        """End a call that raised ``error``. An error sent by the callee counts as a reply. Raises
        CalleeUnavailable if the call was late or its connection was lost."""
        if number > 0:
            self.in_use -= 1
            task, _, topic, partition = self._calls.pop(number)
            if self._is_counting and topic is not None:
                self.shares.add(topic.account, -1)
        else:
            task, _, topic, partition = self._parked.pop(number)
        # Cancelled by the sweep, and by nothing else at the same time.
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
                self._note_reply(topic, partition)
        elif isinstance(error, OSError):
            # A ConnectionError concerns the callee, other errors one file.
            failed_topic = None if isinstance(error, ConnectionError) else topic
            self._note_failure(str(error), failed_topic, partition)
            raise CalleeUnavailable(f"{self.name} is not reachable.", is_lost=True) from error
        elif is_cut and isinstance(error, asyncio.CancelledError):
            self._note_failure(LATE, topic, partition)
            raise CalleeUnavailable(f"{self.name} did not reply in time.") from None
        elif self._has_failed:
            # The caller was cancelled, or this is a bug; neither concerns the callee. But a probe
            # that ends like this must not leave a circuit breaker waiting for its result.
            now_ms = self._clock.mono_ms()
            _end_probe(self._failing_one(topic, partition), now_ms)
            _end_probe(self.breaker, now_ms)

    # ── Checks ───────────────────────────────────────────────────────────────────────────────

    def _admit(self, topic: Topic | None, partition: int) -> None:
        if self.in_use >= self.calls_max:
            self._refuse_full()
        self._look_closer(topic, partition)
        if self._is_counting or self.in_use >= self.shares.most:
            self._take_share(topic)

    def _take_share(self, topic: Topic | None) -> None:
        """Count the call for its tenant. Raises Throttled if the tenant has too many calls."""
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
                f"This tenant has {shares.of(topic.account):,} of at most {shares.most:,} calls to"
                f" {self.name} in progress.",
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
        # Check the partition first: a call that it rejects must not count as a probe of the callee.
        if failing is not None and not failing.admits(now_ms=now_ms):
            self.refused_count += 1
            raise CalleeRefused(f"{self.name} does not reply for this partition; retry shortly.")
        if not self.breaker.admits(now_ms=now_ms):
            _end_probe(failing, now_ms)
            self.refused_count += 1
            raise CalleeRefused(f"{self.name} does not reply; retry shortly.")

    def _refuse_full(self) -> None:
        self.refused_count += 1
        raise Throttled(
            f"{self.name} has too many calls in progress.", retry_after_ms=RETRY_AFTER_MS
        )

    # ── Failures and replies ─────────────────────────────────────────────────────────────────

    def _failing_one(self, topic: Topic | None, partition: int) -> Breaker | None:
        return None if topic is None else self._failing.get((topic.topic_id, partition))

    def _note_failure(self, reason: str, topic: Topic | None, partition: int) -> None:
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
                return  # calls to this partition wait until their deadline
            failing = self._failing[key] = Breaker()
        opened_count = failing.opened_count
        failing.failed(now_ms=now_ms)
        if failing.opened_count != opened_count:
            named = {"callee": self.name, "topic": topic.name, "partition": partition}
            log.warning("circuit breaker of a partition opened", extra={**named, "reason": reason})

    def _note_reply(self, topic: Topic | None, partition: int) -> None:
        if self.state() is not BreakerState.CLOSED:
            log.info("circuit breaker closed", extra={"callee": self.name})
        self.breaker.succeeded()
        if topic is not None:
            self._failing.pop((topic.topic_id, partition), None)
        self._has_failed = bool(self._failing)

    # ── The sweep ────────────────────────────────────────────────────────────────────────────

    def _sweep(self) -> None:
        assert self._loop is not None, "set when the sweep was scheduled"
        if self._failing:  # drop old entries: a deleted topic is never called again
            since_ms = self._clock.mono_ms() - FAILING_MS_MAX
            failing = self._failing.items()
            self._failing = {key: one for key, one in failing if one.failed_at_ms > since_ms}
        if not self._calls and not self._parked:
            self._loop = None
            self._room = 0  # so that the next call schedules a sweep
            self._is_counting = False
            return
        self._now = now = self._loop.time()
        if self._is_counting and self.in_use < self.shares.most // 2:
            self._is_counting = False
            self._room = 0  # until the next call is checked
        late = []
        for number, (task, since, _, _) in self._calls.items():
            # ``since`` may be up to one sweep interval too early.
            if now - since <= self._deadline_s + self._sweep_s:
                break
            late.append((number, task))
        if now - self._parked_swept_at >= PARKED_SWEEP_SECONDS:
            self._parked_swept_at = now
            late += [(n, call[0]) for n, call in self._parked.items() if now > call[1]]
        for number, task in late:
            self._cut_off(number, task)
        self._loop.call_later(self._sweep_s, self._sweep)

    def _cut_off(self, number: int, task: "asyncio.Task[Any] | None") -> None:
        if task is None:
            # The call was made outside of any task, so it cannot be cancelled. It counts until it
            # ends, and as late again each time its deadline passes.
            _, _, topic, partition = self._calls[number] if number > 0 else self._parked[number]
            if number > 0:
                del self._calls[number]
                self._calls[number] = (None, self._now, topic, partition)
            self._note_failure(LATE, topic, partition)
        elif task not in self._cut:  # cancel one call of a task at a time
            self._cut[task] = number
            task.cancel()


def _end_probe(breaker: Breaker | None, now_ms: int) -> None:
    if breaker is not None and breaker.state(now_ms=now_ms) is BreakerState.HALF_OPEN:
        breaker.failed(now_ms=now_ms)
