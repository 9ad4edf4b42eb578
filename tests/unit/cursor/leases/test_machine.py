"""Random lives of a queue against a model so simple that it can be checked by reading: one list of
messages, scanned from the front each time."""

from collections.abc import Iterable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.harness.full import FULL
from tests.unit.cursor.leases.harness import Shell, claim_of

from penstock.cursor.leases import standard as fair
from penstock.cursor.leases.events import LeaseOutcome
from penstock.cursor.leases.lease import RecordState
from penstock.cursor.leases.parts import HOLD_MS
from penstock.model.errors import ExpiredReceipt, NotLeased
from penstock.model.limits import OFFSET_MAX
from penstock.model.message import AckReason, Claim, Record
from penstock.model.topic import PeekState

SECOND = 1_000
GROUPS = ["a", "b", "c", None]


@dataclass
class Told:
    """What the model knows of one message."""

    offset: int
    group: object
    appended_ms: int
    delay_ms: int
    attempts: int = 0
    until_ms: int = 0
    seq: int = 0

    def is_leased(self, now_ms: int) -> bool:
        return self.until_ms > now_ms


class QueueMachine(RuleBasedStateMachine):
    is_fifo = False
    has_groups = True
    has_delays = True
    has_filter = False
    until = OFFSET_MAX

    def is_wanted(self, record: Record) -> bool:
        return not self.has_filter or record.offset % 3 != 1

    def delivers(self, record: Record) -> bool:
        """Whether the cursor is to deliver this record at all."""
        return record.offset < self.until and self.is_wanted(record)

    @initialize(
        attempts_max=st.sampled_from([None, 2]),
        retention_s=st.sampled_from([120, 100_000]),
        feed_max=st.integers(1, 9),
    )
    def start(self, attempts_max: int | None, retention_s: int, feed_max: int) -> None:
        self.shell = Shell(
            is_fifo=self.is_fifo,
            attempts_max=attempts_max,
            retention_ms=retention_s * SECOND,
            feed_max=feed_max,
            wants=self.is_wanted if self.has_filter else None,
            until=self.until,
        )
        self.alive: list[Told] = []
        self.gone: set[int] = set()
        self.claims: list[Claim] = []
        self.saved: tuple[bytes, int, int] | None = None

    # ── The model ────────────────────────────────────────────────────────────────────────────
    @property
    def now(self) -> int:
        return self.shell.now_ms

    def is_delayed(self, told: Told) -> bool:
        return told.attempts == 0 and told.appended_ms + told.delay_ms > self.now

    def find(self, offset: int) -> Told | None:
        return next((t for t in self.alive if t.offset == offset), None)

    def drop(self, told: Told) -> None:
        self.alive.remove(told)
        self.gone.add(told.offset)

    def expected(self, count: int) -> tuple[list[Told], list[Told]]:
        """Who is delivered, and who is held as a dead letter on the way."""
        picks: list[Told] = []
        dead: list[Told] = []
        for told in self.alive:
            if len(picks) == count:
                break
            if told.is_leased(self.now) or self.is_delayed(told):
                continue
            (dead if self.is_dead(told) else picks).append(told)
        return picks, dead

    def is_dead(self, told: Told) -> bool:
        return self.shell.attempts_max is not None and told.attempts >= self.shell.attempts_max

    def agree(
        self, outcome: LeaseOutcome, picks: list[Told], dead: list[Told]
    ) -> tuple[list[Told], list[Told]]:
        if not self.is_fifo and len(outcome.picks) < len(picks):
            # A receive may stop at the end of what was read, but not come back empty-handed.
            picks = picks[: max(1, len(outcome.picks))]
        assert [p.offset for p in outcome.picks] == [t.offset for t in picks]
        assert [p.offset for p in outcome.dead] == [t.offset for t in dead]
        return picks, dead

    # ── Rules ────────────────────────────────────────────────────────────────────────────────
    @rule(
        count=st.integers(1, 6),
        group=st.sampled_from(GROUPS),
        delay_s=st.sampled_from([0, 0, 0, 5, 40]),
    )
    def send(self, count: int, group: str | None, delay_s: int) -> None:
        if not self.has_groups:
            group = None
        if not self.has_delays:
            delay_s = 0
        delay_ms = None if self.is_fifo or not delay_s else delay_s * SECOND
        for offset in self.shell.send(count, group=group, delay_ms=delay_ms):
            if not self.delivers(self.shell.records[offset]):
                continue
            key = offset if group is None else group
            self.alive.append(Told(offset, key, self.now, delay_ms or 0))

    @rule(count=st.integers(1, 10), lease_s=st.sampled_from([0, 1, 10, 10, 60]))
    def lease(self, count: int, lease_s: int) -> None:
        picks, dead = self.expected(count)
        outcome = self.shell.lease(count, lease_s * SECOND)
        # GROUP order, OVERLAP and RESURRECT are all in here: the model knows who is free.
        picks, dead = self.agree(outcome, picks, dead)
        for told, pick in zip(picks, outcome.picks, strict=True):
            told.attempts += 1
            told.until_ms = self.now + lease_s * SECOND
            told.seq = pick.lease_seq
            assert pick.attempt == told.attempts
            assert pick.offset not in self.gone
            assert claim_of(pick) not in self.claims, "a new receipt for each lease"
            self.claims.append(claim_of(pick))
        for told, pick in zip(dead, outcome.dead, strict=True):
            told.until_ms = self.now + HOLD_MS
            told.seq = pick.lease_seq
            assert pick.attempt == told.attempts, "a hold is no attempt"

    @rule(data=st.data())
    def bury(self, data: st.DataObject) -> None:
        """The shell has copied a dead letter and acks the original."""
        held = [t for t in self.alive if self.is_dead(t) and t.is_leased(self.now)]
        if held:
            told = data.draw(st.sampled_from(held))
            claim = Claim(0, told.offset, told.seq)
            assert self.shell.ack(claim, reason=AckReason.DEAD) == [None]
            self.drop(told)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        claims = data.draw(st.lists(st.sampled_from(self.claims), min_size=1, max_size=4))
        results = self.shell.ack(*claims)
        finished = []
        for claim, result in zip(claims, results, strict=True):
            told = self.find(claim.offset)
            if told is not None and not self.may_use(claim, told):
                assert isinstance(result, ExpiredReceipt)
            else:
                assert result is None
                finished.append(told)
        for told in finished:
            if told is not None and told in self.alive:
                self.drop(told)

    def may_use(self, claim: Claim, told: Told) -> bool:
        if not self.is_fifo:
            return True
        return told.is_leased(self.now) and told.seq == claim.lease_seq

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), lease_s=st.sampled_from([0, 0, 5, 100]))
    def extend(self, data: st.DataObject, lease_s: int) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        told = self.find(claim.offset)
        result = self.shell.extend(claim, lease_s * SECOND)
        if told is None:
            assert isinstance(result, NotLeased)
        elif not self.may_use(claim, told):
            assert isinstance(result, ExpiredReceipt)
        else:
            assert result is None
            told.until_ms = self.now + lease_s * SECOND

    @rule(seconds=st.sampled_from([1, 5, 10, 30, 60]))
    def wait(self, seconds: int) -> None:
        self.shell.now_ms += seconds * SECOND
        old = [
            t for t in self.alive if t.appended_ms + self.shell.retention_ms <= self.shell.now_ms
        ]
        for told in old:
            self.drop(told)
        assert self.shell.expire() == len(old)

    @rule()
    def purge(self) -> None:
        self.shell.purge()
        for told in list(self.alive):
            self.drop(told)

    @rule()
    def restart_from_the_log(self) -> None:
        self.shell.restart()

    @rule()
    def save(self) -> None:
        self.saved = self.shell.snapshot()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restart_from_a_snapshot(self) -> None:
        assert self.saved is not None
        self.shell.restart_from(self.saved)

    @invariant()
    def counts_agree(self) -> None:
        in_flight = sum(t.is_leased(self.now) for t in self.alive)
        delayed = sum(self.is_delayed(t) and not t.is_leased(self.now) for t in self.alive)
        visible = len(self.alive) - in_flight - delayed
        assert self.shell.counts() == (visible, in_flight, delayed)

    @invariant()
    def nothing_that_is_needed_may_be_dropped(self) -> None:
        low = self.shell.cursor.low_offset()
        assert all(t.offset >= low for t in self.alive)
        for offset in self.gone:
            assert self.shell.see(offset) is None or offset >= low

    @rule()
    def explain(self) -> None:
        """The survey and a look at each message agree with the model."""
        found = self.shell.survey()
        leased = [t for t in self.alive if t.is_leased(self.now)]
        delayed = [t for t in self.alive if self.is_delayed(t) and t not in leased]
        free = [t for t in self.alive if t not in leased and t not in delayed]
        blockers = {t.offset: self.blocker(t) for t in free}
        blocked = [t for t in free if blockers[t.offset] is not None]
        dead = [t for t in free if self.is_dead(t) and t not in blocked]
        assert found.blocked == len(blocked)
        assert found.exhausted == len(dead)
        assert found.expired == 0, "the rule wait drops them"
        assert found.available == len(free) - len(blocked) - len(dead)
        assert found.lease_ends_ms == self.first_end(t.until_ms for t in leased)
        assert (found.delay_ends_ms is None) == (not delayed)
        assert found.locked_groups == len({t.group for t in blocked})
        for lock in found.locks:
            waiting = [t for t in blocked if t.group == lock.group]
            assert lock.blocked == len(waiting)
            assert {lock.offset} == {blockers[t.offset] for t in waiting}
            told = self.find(lock.offset)
            assert told is not None
            assert lock.until_ms == self.first_end([told.until_ms])
        for told in self.alive:
            seen = self.shell.see(told.offset)
            assert seen is not None
            if told in leased:
                assert seen == RecordState(PeekState.IN_FLIGHT, told.until_ms)
            elif told in delayed:
                assert seen.state is PeekState.DELAYED
            else:
                assert seen.state is PeekState.VISIBLE
                assert seen.blocked_by == blockers[told.offset]

    def blocker(self, told: Told) -> int | None:
        return None

    def first_end(self, ends_ms: Iterable[int]) -> int | None:
        """On the wall clock."""
        return min((each + self.shell.wall_ms - self.now for each in ends_ms), default=None)


class FifoMachine(QueueMachine):
    is_fifo = True

    def run_of(self, key: object) -> tuple[list[Told], list[Told]]:
        """What one group has to give: its oldest messages up to the first that is in flight,
        delayed or dead, and that dead one."""
        picks: list[Told] = []
        for told in [t for t in self.alive if t.group == key]:
            if told.is_leased(self.now) or self.is_delayed(told):
                break
            if self.is_dead(told):
                return picks, [told]
            picks.append(told)
        return picks, []

    def expected(self, count: int) -> tuple[list[Told], list[Told]]:
        """How many; which groups come first is tested by example."""
        free = [t for key in {t.group for t in self.alive} for t in self.run_of(key)[0]]
        return free[:count], []

    def agree(
        self, outcome: LeaseOutcome, picks: list[Told], dead: list[Told]
    ) -> tuple[list[Told], list[Told]]:
        assert len(outcome.picks) == len(picks)
        taken = [self.told(p.offset) for p in outcome.picks]
        keys = list(dict.fromkeys(t.group for t in taken))
        # Group after group, each from its oldest, and all of one before the next begins.
        runs = {key: self.run_of(key)[0] for key in keys}
        whole = [t for key in keys for t in runs[key]]
        assert taken == whole[: len(taken)]
        assert len(taken) > len(whole) - len(runs[keys[-1]]) if keys else not taken
        held = [self.told(p.offset) for p in outcome.dead]
        for told in held:
            run, ends = self.run_of(told.group)
            assert ends == [told]
            assert all(t in taken for t in run)
        return taken, held

    def blocker(self, told: Told) -> int | None:
        """The oldest message in flight of its group, if that is older."""
        older = (
            t.offset
            for t in self.alive
            if t.group == told.group and t.offset < told.offset and t.is_leased(self.now)
        )
        return min(older, default=None)

    def told(self, offset: int) -> Told:
        found = self.find(offset)
        assert found is not None
        return found

    @rule(seconds=st.sampled_from([0, 0, 5, 20]))
    def set_queue_delay(self, seconds: int) -> None:
        """Only lowered while something waits: what a rise does to records that were already
        looked at is a test of its own."""
        if seconds * SECOND <= self.shell.queue_delay_ms or not self.alive:
            self.shell.queue_delay_ms = seconds * SECOND

    def is_delayed(self, told: Told) -> bool:
        return told.attempts == 0 and told.appended_ms + self.shell.queue_delay_ms > self.now


class StandardMachine(QueueMachine):
    has_groups = False  # so that nobody is noisy and the order is that of the log


class ShareMachine(StandardMachine):
    """A cursor that is now and then told to begin again somewhere else. Without delays: what is
    delayed and unread counts as visible after that until it is read."""

    has_delays = False

    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.shell.end))
        self.shell.begin_again(start)
        self.shell.expire()
        self.claims.clear()  # what receipts from before are worth is tested by example
        left_ms = self.now - self.shell.retention_ms
        for told in list(self.alive):
            self.drop(told)
        for record in self.shell.records.values():
            sent_ms = record.appended_at_ms - self.shell.wall_skew_ms
            if record.offset >= start and sent_ms > left_ms and self.delivers(record):
                self.alive.append(Told(record.offset, record.offset, sent_ms, 0))
                self.gone.discard(record.offset)


class FairMachine(QueueMachine):
    """Groups so easily noisy that parking happens all the time. Who goes first is tested by
    example; here nobody is lost, doubled, or kept back while a consumer goes empty."""

    @initialize()
    def make_noise_easy(self) -> None:
        self.usual = fair.IN_FLIGHT_MIN, fair.PARKED_MAX
        fair.IN_FLIGHT_MIN, fair.PARKED_MAX = 2, 6

    def teardown(self) -> None:
        if hasattr(self, "usual"):
            fair.IN_FLIGHT_MIN, fair.PARKED_MAX = self.usual

    def agree(
        self, outcome: LeaseOutcome, picks: list[Told], dead: list[Told]
    ) -> tuple[list[Told], list[Told]]:
        free = {
            t.offset: t for t in self.alive if not t.is_leased(self.now) and not self.is_delayed(t)
        }
        assert bool(outcome.picks) >= bool(picks)
        taken = [free.pop(p.offset) for p in outcome.picks]
        held = [free.pop(p.offset) for p in outcome.dead]
        assert all(self.is_dead(t) for t in held)
        assert not any(self.is_dead(t) for t in taken)
        return taken, held


SETTINGS = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestStandardQueue = StandardMachine.TestCase
TestStandardQueue.settings = SETTINGS
TestFairQueue = FairMachine.TestCase
TestFairQueue.settings = SETTINGS
TestFifoQueue = FifoMachine.TestCase
TestFifoQueue.settings = SETTINGS
TestShare = ShareMachine.TestCase
TestShare.settings = SETTINGS


@pytest.mark.slow
@pytest.mark.full_set
@pytest.mark.parametrize("machine", [StandardMachine, FairMachine, FifoMachine, ShareMachine])
def test_a_long_random_life_agrees_with_the_model(machine: type[QueueMachine]) -> None:
    lives = 150 if FULL else 20
    run_state_machine_as_test(
        machine, settings=settings(max_examples=lives, stateful_step_count=80, deadline=None)
    )
