"""A FIFO queue, rule by rule."""

import time

import pytest
from tests.unit.cursor.leases.harness import Shell, claim_of

from penstock.cursor.leases.obstacles import QueueTerms
from penstock.model.errors import ExpiredReceipt, NotLeased
from penstock.model.limits import ATTEMPT_IDS_MAX, ATTEMPT_WINDOW_MS, DEFERRED_MAX
from penstock.model.message import AckReason
from penstock.model.topic import Obstacles


@pytest.fixture
def shell() -> Shell:
    return Shell(is_fifo=True)


# Order and the lock of a group.


def test_a_receive_takes_all_it_can_from_the_first_group_before_the_next(shell: Shell) -> None:
    for group in ("g1", "g2", "g1", "g2", "g1"):
        shell.send(group=group)
    assert shell.take(4) == [0, 2, 4, 1]


def test_a_group_is_locked_while_one_of_its_records_is_in_flight(shell: Shell) -> None:
    shell.send(3, group="g1")
    shell.send(2, group="g2")
    first = shell.lease(1).picks[0]
    assert shell.take(10) == [3, 4]
    shell.send(1, group="g1")
    assert shell.take(10) == [], "a new message does not unlock its group"
    shell.ack(claim_of(first))
    assert shell.take(2) == [1, 2]


def test_acking_a_part_keeps_the_group_locked(shell: Shell) -> None:
    shell.send(4, group="g")
    picks = shell.lease(2).picks
    shell.ack(claim_of(picks[0]))
    assert shell.take(10) == []
    shell.ack(claim_of(picks[1]))
    assert shell.take(10) == [2, 3]


def test_when_all_are_visible_again_the_group_goes_on_from_its_oldest(shell: Shell) -> None:
    shell.send(4, group="g")
    shell.lease(2, 10_000)
    shell.now_ms += 10_000
    assert shell.take(3) == [0, 1, 2]


def test_only_records_before_an_extended_one_come_back(shell: Shell) -> None:
    shell.send(4, group="g")
    picks = shell.lease(3, 10_000).picks
    assert shell.extend(claim_of(picks[1]), 60_000) is None
    shell.now_ms += 10_000
    assert shell.take(10) == [0]


def test_records_without_a_group_do_not_wait_for_each_other(shell: Shell) -> None:
    shell.send(3)
    assert [shell.take(1) for _ in range(3)] == [[0], [1], [2]]


def test_locked_groups_are_read_past_to_find_others(shell: Shell) -> None:
    shell.feed_max = 400
    shell.send(1_500, group="busy")
    shell.send(1, group="other")
    assert shell.take(1) == [0]
    assert shell.take(1) == [1_500]
    shell.restart()
    assert shell.take(1) == []
    assert shell.counts() == (1_499, 2, 0)


def test_reading_past_locked_groups_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cursor.leases.fold.DEFERRED_MAX", 20)
    monkeypatch.setattr("penstock.cursor.leases.fold.WINDOW_RECORDS_MAX", 8)
    shell = Shell(is_fifo=True)
    shell.send(100, group="busy")
    shell.send(1, group="other")
    first = shell.lease(1).picks[0]
    assert shell.take(1) == []
    assert len(shell.cursor._table) <= 20 + 8
    shell.ack(claim_of(first))
    order = []
    for _ in range(100):
        (pick,) = shell.lease(1).picks
        order.append(pick.offset)
        shell.ack(claim_of(pick))
    assert [offset for offset in order if offset < 100] == list(range(1, 100))
    assert order.index(100) < 99, "its turn comes once it is in view, not when the others are done"


def test_a_group_that_was_handed_out_stands_behind_those_that_wait(shell: Shell) -> None:
    for group in ("g1", "g2", "g2", "g3", "g1"):
        shell.send(group=group)
    assert [p.offset for p in shell.lease(3, 0).picks] == [0, 4, 1]
    assert [p.offset for p in shell.lease(10).picks] == [3, 0, 4, 1, 2]


def test_a_released_group_stands_behind_those_that_wait(shell: Shell) -> None:
    for group in ("g1", "g1", "g2"):
        shell.send(group=group)
    first, _second = shell.lease(2, 60_000).picks
    shell.extend(claim_of(first), 0)
    assert [p.offset for p in shell.lease(3).picks] == [2, 0]


def test_a_group_that_fails_again_and_again_starves_nobody(shell: Shell) -> None:
    shell.send(group="poison")
    shell.send(3, group="healthy")
    taken = [shell.lease(1, 0).picks[0].offset for _ in range(6)]
    assert taken == [0, 1, 0, 1, 0, 1]


# Receipts end with their lease.


def test_a_receipt_is_good_only_while_its_lease_runs(shell: Shell) -> None:
    shell.send(group="g")
    old = claim_of(shell.lease(1, 10_000).picks[0])
    shell.now_ms += 10_000
    assert isinstance(shell.ack(old)[0], ExpiredReceipt)
    assert isinstance(shell.extend(old, 1_000), ExpiredReceipt)
    new = claim_of(shell.lease(1).picks[0])
    assert isinstance(shell.ack(old)[0], ExpiredReceipt)
    assert shell.ack(new) == [None]
    assert shell.ack(new) == [None], "acking twice is a success"
    assert shell.ack(old) == [None]
    assert isinstance(shell.extend(new, 1_000), NotLeased)


def test_an_extended_lease_keeps_its_receipt_good(shell: Shell) -> None:
    shell.send(group="g")
    claim = claim_of(shell.lease(1, 10_000).picks[0])
    shell.extend(claim, 60_000)
    shell.now_ms += 59_999
    assert shell.ack(claim) == [None]


# Delay, retention, limit.


def test_the_delay_of_the_queue_as_it_is_now_applies_to_all(shell: Shell) -> None:
    shell.queue_delay_ms = 10_000
    shell.send(2, group="g")
    assert shell.take(10) == []
    assert shell.counts() == (0, 0, 2)
    shell.now_ms += 4_000
    shell.queue_delay_ms = 5_000
    assert shell.lease().wake_at_ms == shell.now_ms + 1_000
    assert shell.counts() == (0, 0, 2)
    shell.now_ms += 1_000
    assert shell.counts() == (2, 0, 0)
    assert shell.take(10) == [0, 1]


def test_a_delay_that_is_raised_holds_back_what_nobody_has_looked_at(shell: Shell) -> None:
    shell.send(1, group="g")
    shell.queue_delay_ms = 10_000
    assert shell.take() == []
    shell.now_ms += 10_000
    assert shell.take() == [0]


def test_a_delayed_record_does_not_block_older_ones_of_its_group(shell: Shell) -> None:
    shell.queue_delay_ms = 10_000
    shell.send(1, group="g")
    shell.now_ms += 10_000
    shell.send(1, group="g")
    assert shell.take(10, lease_ms=1_000) == [0]
    shell.now_ms += 1_000
    assert shell.take(10, lease_ms=1_000) == [0]


def test_retention_counts_from_the_append_not_from_an_earlier_queue(shell: Shell) -> None:
    shell.retention_ms = 60_000
    shell.send(1, group="g", sent_at_ms=shell.wall_ms - 90_000)
    assert shell.take(1, lease_ms=1_000) == [0]
    shell.now_ms += 60_000
    fresh = shell.send(1, group="g")
    assert shell.take(10) == fresh, "an expired record unlocks its group"


def test_at_the_in_flight_limit_nothing_is_given(shell: Shell) -> None:
    shell.in_flight_max = 2
    shell.send(3)
    assert shell.take(10) == [0, 1]
    assert shell.lease().is_over_limit


# Dead letters.


def test_a_dead_letter_locks_its_group_until_it_has_moved(shell: Shell) -> None:
    shell.attempts_max = 1
    shell.send(3, group="g")
    assert shell.take(1, lease_ms=1_000) == [0]
    shell.now_ms += 1_000
    outcome = shell.lease(10)
    assert [p.offset for p in outcome.dead] == [0]
    assert outcome.picks == ()
    assert shell.take(10) == []
    shell.ack(claim_of(outcome.dead[0]), reason=AckReason.DEAD)
    assert shell.take(10) == [1, 2]


# The same receive again.


def test_the_same_attempt_id_gets_the_same_records_and_a_fresh_deadline(shell: Shell) -> None:
    shell.send(3, group="g")
    first = shell.lease(2, 10_000, attempt_id="try").picks
    shell.now_ms += 9_000
    again = shell.lease(2, 10_000, attempt_id="try").picks
    assert [claim_of(p) for p in again] == [claim_of(p) for p in first]
    assert [p.attempt for p in again] == [1, 1]
    shell.now_ms += 9_000
    assert shell.ack(*[claim_of(p) for p in first]) == [None, None]


def test_another_attempt_id_finds_the_group_locked(shell: Shell) -> None:
    shell.send(3, group="g")
    shell.lease(2, attempt_id="one")
    assert shell.lease(2, attempt_id="two").picks == ()


@pytest.mark.parametrize("change", ["ack", "extend", "release", "end"])
def test_an_attempt_whose_records_changed_is_a_new_receive(shell: Shell, change: str) -> None:
    shell.send(2, group="g")
    first = shell.lease(2, 10_000, attempt_id="try").picks
    claim = claim_of(first[1])
    if change == "ack":
        shell.ack(claim)
    elif change == "extend":
        shell.extend(claim, 60_000)
    elif change == "release":
        shell.extend(claim, 0)
    else:
        shell.now_ms += 10_000
    again = shell.lease(2, 10_000, attempt_id="try").picks
    assert not {claim_of(p) for p in again} & {claim_of(p) for p in first}


def test_an_attempt_id_is_forgotten_after_its_window(shell: Shell) -> None:
    shell.send(1, group="g")
    shell.lease(1, ATTEMPT_WINDOW_MS * 2, attempt_id="try")
    shell.now_ms += ATTEMPT_WINDOW_MS
    assert shell.lease(1, attempt_id="try").picks == ()


def test_an_attempt_survives_a_restart(shell: Shell) -> None:
    shell.send(2, group="g")
    first = shell.lease(2, 60_000, attempt_id="try").picks
    shell.restart()
    again = shell.lease(2, 60_000, attempt_id="try").picks
    assert [claim_of(p) for p in again] == [claim_of(p) for p in first]
    shell.restart_from(shell.snapshot())
    once_more = shell.lease(2, 60_000, attempt_id="try").picks
    assert [claim_of(p) for p in once_more] == [claim_of(p) for p in first]


def test_attempt_ids_are_bounded(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ATTEMPT_IDS_MAX == 10_000
    monkeypatch.setattr("penstock.cursor.leases.fold.ATTEMPT_IDS_MAX", 2)
    shell.send(3)
    first = shell.lease(1, attempt_id="0").picks
    shell.lease(1, attempt_id="1")
    shell.lease(1, attempt_id="2")
    assert len(shell.cursor._attempts) == 2
    assert shell.lease(1, attempt_id="0").picks != first


@pytest.mark.slow
def test_explaining_a_million_messages_gives_the_loop_back(shell: Shell) -> None:
    """120,000 passed over in 20,000 groups that are in flight, and a million unread."""
    groups = [f"g{number}" for number in range(20_000)]
    shell.feed_max = 512
    for group in groups:
        shell.send(1, group=group)
    while shell.take(500):
        pass
    for group in groups:
        shell.send(DEFERRED_MAX // len(groups) + 1, group=group)
    assert shell.take(1) == [], "all of them wait for one of those in flight"
    shell.cursor.appended(
        shell.end, 1_000_000, next_offset=shell.end + 1_000_000, now_ms=shell.now_ms
    )
    terms = QueueTerms(0, None, shell.retention_ms, 0, shell.now_ms, shell.wall_ms)
    # A step that is too long is so every time; a busy machine or the garbage collector is not.
    rounds = [_surveyed(shell, terms) for _ in range(3)]
    found, _ = rounds[0]
    assert found.blocked >= DEFERRED_MAX
    assert found.locked_groups > 10_000
    assert found.is_read_ahead_full
    assert min(longest_s for _, longest_s in rounds) < 0.02


def _surveyed(shell: Shell, terms: QueueTerms) -> tuple[Obstacles, float]:
    """Return what a survey found, and its longest step."""
    steps, longest_s = shell.cursor.find_obstacles(terms), 0.0
    while True:
        begun_s = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return end.value, max(longest_s, time.thread_time() - begun_s)
        longest_s = max(longest_s, time.thread_time() - begun_s)


def test_peek_looks_through_a_bounded_part_of_a_group(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cursor.leases.fifo.LOCK_STEPS_MAX", 3)
    shell.send(5, group="g")
    picks = shell.lease(4).picks
    for pick in picks[:3]:
        shell.extend(claim_of(pick), 0)
    seen = shell.see(4)
    assert seen is not None
    assert seen.blocked_by is None, "the message in flight is the fourth"


def test_a_raised_delay_makes_no_group_wait_for_ever() -> None:
    shell = Shell(is_fifo=True)
    shell.send(group="a")
    shell.send(group="b")
    for pick in shell.lease(2).picks:
        shell.extend(claim_of(pick), 0)
    [late] = shell.send(group="c")
    assert shell.take(1) == [0]
    shell.queue_delay_ms = 60_000
    assert shell.take(10) == [1], "another group is delivered by the same receive"
    shell.now_ms += 60_000
    assert late in shell.take(10)
