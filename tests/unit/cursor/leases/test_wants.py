"""Shares that want some of the records, and shares of a range: the random lives of test_machine.py
with a filter, an end, or both, and examples."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.harness.full import FULL
from tests.unit.cursor.leases.harness import Shell, claim_of
from tests.unit.cursor.leases.test_machine import (
    FairMachine,
    FifoMachine,
    QueueMachine,
    ShareMachine,
    StandardMachine,
)

from penstock.cursor.leases.events import LeaseEvent, decode
from penstock.model.limits import JUDGED_BYTES_MAX, JUDGED_RECORDS_MAX
from penstock.model.message import Message, Record


class Selective(QueueMachine):
    """A machine whose cursor leaves records out, and whose log is trimmed."""

    @rule()
    def pass_unwanted(self) -> None:
        self.shell.pass_unwanted()

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, self.shell.end))
        self.shell.trim(start)
        for told in [each for each in self.alive if each.offset < start]:
            self.drop(told)

    def explain(self) -> None:
        """Not a rule here: delays are counted before records are judged."""

    @invariant()
    def counts_agree(self) -> None:
        """Exact but for what was not judged yet."""
        cursor, in_flight = self.shell.cursor, sum(t.is_leased(self.now) for t in self.alive)
        unread = sum(
            cursor.scan_from <= offset < self.until and not self.delivers(record)
            for offset, record in self.shell.records.items()
        )
        visible, leased, delayed = self.shell.counts()
        assert leased == in_flight
        assert visible + leased + delayed == len(self.alive) + unread

    def finish(self) -> None:
        """When all is acked and read, nothing is left to count."""
        while picks := self.shell.lease(10, 60_000).picks:
            self.shell.ack(*map(claim_of, picks))

    def teardown(self) -> None:
        if hasattr(self, "shell"):
            self.shell.now_ms += 3_600_000
            self.shell.queue_delay_ms = 0
            self.shell.attempts_max = None
            self.finish()
            assert self.shell.counts() == (0, 0, 0)
        super().teardown()


class FilteredStandard(Selective, StandardMachine):
    has_filter = True


class FilteredFair(Selective, FairMachine):
    has_filter = True


class FilteredFifo(Selective, FifoMachine):
    has_filter = True


class FilteredShare(Selective, ShareMachine):
    has_filter = True


class RangeStandard(Selective, StandardMachine):
    until = 25


class RangeFifo(Selective, FifoMachine):
    until = 25


class FilteredRange(Selective, ShareMachine):
    has_filter = True
    until = 25


MACHINES: list[type[QueueMachine]] = [
    FilteredStandard,
    FilteredFair,
    FilteredFifo,
    FilteredShare,
    RangeStandard,
    RangeFifo,
    FilteredRange,
]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_random_life_agrees_with_the_model(machine: type[RuleBasedStateMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None)
    )


@pytest.mark.slow
@pytest.mark.full_set
@pytest.mark.parametrize("machine", MACHINES)
def test_a_long_random_life_agrees_with_the_model(machine: type[RuleBasedStateMachine]) -> None:
    lives = 150 if FULL else 20
    run_state_machine_as_test(
        machine, settings=settings(max_examples=lives, stateful_step_count=80, deadline=None)
    )


class Wanted:
    """A filter that can be changed."""

    def __init__(self, *offsets: int) -> None:
        self.offsets = set(offsets)
        self.judged: list[int] = []

    def __call__(self, record: Record) -> bool:
        self.judged.append(record.offset)
        return record.offset in self.offsets


def lease_events(shell: Shell) -> list[LeaseEvent]:
    found = [decode(item[1], item[2]) for item in shell.log if isinstance(item, tuple)]
    return [each for each in found if isinstance(each, LeaseEvent)]


@pytest.mark.parametrize("is_fifo", [False, True])
def test_unwanted_records_cost_no_event_of_their_own(*, is_fifo: bool) -> None:
    wanted = Wanted(50, 90)
    shell = Shell(is_fifo=is_fifo, wants=wanted)
    shell.send(100)
    assert shell.take(1) == [50]
    assert shell.take(1) == [90]
    assert shell.take(1) == []
    assert shell.take(1) == []
    events = lease_events(shell)
    assert [event.offsets for event in events] == [(50,), (90,)]
    assert sum(event.passed for event in events) >= 91
    assert all(event.detail is None for event in events), "they are not named"
    assert wanted.judged == list(range(100)), "each is judged once"
    assert shell.counts() == (0, 2, 0)


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_new_filter_counts_from_the_next_record_read(*, is_fifo: bool) -> None:
    wanted = Wanted(0)
    shell = Shell(is_fifo=is_fifo, wants=wanted, feed_max=5)
    shell.send(5)
    assert shell.take(1) == [0]
    assert shell.take(1) == []
    wanted.offsets.update(range(20))
    shell.send(3)
    assert shell.take(10) == [6, 7, 8], "what was judged before stays unwanted"
    wanted.offsets.clear()
    shell.now_ms += 60_000
    assert shell.take(10) == [0, 6, 7, 8], "what was delivered is delivered again"


def test_a_new_leader_judges_again_what_no_event_has_passed() -> None:
    wanted = Wanted(0)
    shell = Shell(wants=wanted, feed_max=1)
    shell.send(5)
    assert shell.take(1) == [0]
    assert shell.take(1) == []
    wanted.offsets.add(3)
    shell.restart()
    assert shell.counts() == (4, 1, 0)
    assert shell.take(1) == [3]
    shell.restart()
    assert shell.take(1) == []
    shell.pass_unwanted()
    wanted.offsets.add(4)
    shell.restart()
    assert shell.take(1) == [], "the head has passed it"


def test_an_encrypted_record_is_always_wanted() -> None:
    shell = Shell(wants=Wanted())
    sealed = Record(0, shell.wall_ms, Message(b"m" * 16, b"?", is_sealed=True))
    shell.send(1)
    shell.records[0] = sealed
    assert shell.take(1) == [0]


@pytest.mark.parametrize("is_heavy", [False, True])
def test_one_read_judges_a_bounded_number_of_records(*, is_heavy: bool) -> None:
    wanted = Wanted()
    shell = Shell(wants=wanted, feed_max=1_000)
    shell.send(300)
    if is_heavy:
        body = b"x" * (JUDGED_BYTES_MAX // 4)
        for offset, record in shell.records.items():
            message = Message(b"m" * 16, body)
            shell.records[offset] = Record(offset, record.appended_at_ms, message)
    shell.feed()
    assert len(wanted.judged) == (4 if is_heavy else JUDGED_RECORDS_MAX)
    assert shell.take(1) == []
    assert wanted.judged == list(range(300)), "and none is judged twice or left out"


@pytest.mark.parametrize("is_fifo", [False, True])
def test_a_range_ends_below_its_end_and_its_count_falls_to_zero(*, is_fifo: bool) -> None:
    shell = Shell(is_fifo=is_fifo, until=4)
    shell.send(3)
    shell.send(3)
    assert shell.counts() == (4, 0, 0)
    picks = shell.lease(10).picks
    assert [pick.offset for pick in picks] == [0, 1, 2, 3]
    shell.send(5)
    assert shell.take(10) == []
    shell.ack(*map(claim_of, picks))
    assert shell.counts() == (0, 0, 0)
    shell.restart()
    assert shell.counts() == (0, 0, 0)
    shell.begin_again(2)
    assert shell.counts() == (2, 0, 0)
    assert shell.take(10) == [2, 3]
