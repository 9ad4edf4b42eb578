"""A standard queue, rule by rule."""

import pytest
from tests.unit.cursor.leases.harness import DAY_MS, Shell, claim_of

from penstock.cursor.leases.lease import RecordState
from penstock.cursor.leases.parts import HELD_PER_LEASE_MAX, HOLD_MS
from penstock.cursor.leases.standard import StandardCursor
from penstock.model.errors import InvalidRequest, NotLeased
from penstock.model.limits import DEFERRED_MAX, LEASE_MS_MAX
from penstock.model.message import AckReason, Claim
from penstock.model.topic import PeekState


@pytest.fixture
def shell() -> Shell:
    return Shell()


# Receive, delete and visibility as clients of a standard queue know them.


def test_records_come_in_log_order_and_only_once_while_leased(shell: Shell) -> None:
    shell.send(5)
    assert shell.take(2) == [0, 1]
    assert shell.take(10) == [2, 3, 4]
    assert shell.take(10) == []


def test_a_record_comes_back_when_its_lease_ends_and_goes_before_fresh_ones(shell: Shell) -> None:
    shell.send(3)
    assert shell.take(2, lease_ms=10_000) == [0, 1]
    shell.now_ms += 9_999
    assert shell.take(1) == [2]
    shell.now_ms += 1
    later = shell.send(1)
    assert shell.take(10) == [0, 1, *later]


def test_every_lease_has_its_own_number_and_counts_as_an_attempt(shell: Shell) -> None:
    shell.send()
    first = shell.lease(1, 1_000).picks[0]
    shell.now_ms += 1_000
    second = shell.lease(1, 1_000).picks[0]
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.lease_seq != second.lease_seq
    assert second.first_leased_at_ms == first.first_leased_at_ms == shell.wall_ms - 1_000
    assert first.record is not None
    assert second.record is None, "what was leased before is read from the log again"


def test_a_lease_of_zero_leaves_the_record_visible_and_counts_an_attempt(shell: Shell) -> None:
    shell.send(2)
    assert [p.attempt for p in shell.lease(2, 0).picks] == [1, 1]
    assert shell.counts() == (2, 0, 0)
    assert [(p.offset, p.attempt) for p in shell.lease(10, 0).picks] == [(0, 2), (1, 2)]


def test_any_receipt_acks_even_an_old_one_after_its_lease_ended(shell: Shell) -> None:
    shell.send()
    old = claim_of(shell.lease(1, 1_000).picks[0])
    shell.now_ms += 1_000
    shell.lease(1, 60_000)
    assert shell.ack(old) == [None]
    shell.now_ms += 60_000
    assert shell.take(10) == []
    assert shell.counts() == (0, 0, 0)


def test_acking_a_gone_record_is_a_success_without_an_event(shell: Shell) -> None:
    shell.send()
    claim = claim_of(shell.lease().picks[0])
    assert shell.ack(claim, claim) == [None, None]
    end = shell.end
    assert shell.ack(claim) == [None]
    assert shell.end == end


def test_an_ack_holds_although_a_crash_took_the_event_of_its_lease(shell: Shell) -> None:
    shell.send(3)
    kept = len(shell.log)
    claim = claim_of(shell.lease(2).picks[1])
    del shell.log[kept:]
    shell.end = 3
    shell.replay(type(shell.cursor)())
    assert shell.ack(claim) == [None]
    assert shell.counts() == (2, 0, 0)
    shell.restart()
    assert shell.see(1) is None
    assert shell.take(10) == [0, 2]
    assert shell.counts() == (0, 2, 0)


def test_extending_counts_from_now_and_zero_releases_at_once(shell: Shell) -> None:
    shell.send()
    claim = claim_of(shell.lease(1, 10_000).picks[0])
    shell.now_ms += 9_000
    assert shell.extend(claim, 10_000) is None
    shell.now_ms += 9_999
    assert shell.take() == []
    assert shell.extend(claim, 0) is None
    assert shell.counts() == (1, 0, 0)
    assert shell.take() == [0]


def test_an_extension_is_forgotten_by_the_next_lease(shell: Shell) -> None:
    shell.send()
    claim = claim_of(shell.lease(1, 10_000).picks[0])
    shell.extend(claim, 100_000)
    shell.extend(claim, 0)
    shell.lease(1, 10_000)
    shell.now_ms += 10_000
    assert shell.take() == [0]


def test_a_lease_may_be_extended_to_twelve_hours_in_all_and_no_further(shell: Shell) -> None:
    shell.send()
    claim = claim_of(shell.lease(1, 10_000).picks[0])
    shell.now_ms += 5_000
    assert type(shell.extend(claim, LEASE_MS_MAX - 4_999)) is InvalidRequest
    assert shell.extend(claim, LEASE_MS_MAX - 5_000) is None


def test_extending_a_record_that_is_visible_again_takes_it_back_without_an_attempt(
    shell: Shell,
) -> None:
    shell.send()
    claim = claim_of(shell.lease(1, 1_000).picks[0])
    shell.now_ms += 2_000
    assert shell.extend(claim, 10_000) is None
    assert shell.counts() == (0, 1, 0)
    assert shell.take() == []
    assert shell.cursor.attempts_of(0) == 1
    shell.now_ms += 10_000
    assert shell.lease().picks[0].attempt == 2


def test_extending_a_gone_record_says_that_it_is_not_leased(shell: Shell) -> None:
    shell.send()
    claim = claim_of(shell.lease().picks[0])
    shell.ack(claim)
    assert isinstance(shell.extend(claim, 10_000), NotLeased)


def test_at_the_in_flight_limit_nothing_is_given_and_the_outcome_says_so(shell: Shell) -> None:
    shell.in_flight_max = 3
    shell.send(5)
    assert shell.take(10) == [0, 1, 2]
    outcome = shell.lease()
    assert outcome.is_over_limit
    assert not outcome.picks
    shell.now_ms += 30_000
    assert shell.take(1) == [0]


def test_a_receive_learns_when_to_look_again(shell: Shell) -> None:
    assert shell.lease().wake_at_ms is None
    shell.send(1, delay_ms=5_000)
    shell.send(1)
    assert shell.take(1, lease_ms=2_000) == [1]
    assert shell.lease().wake_at_ms == shell.now_ms + 2_000
    shell.ack(Claim(0, 1, 1))
    assert shell.lease().wake_at_ms == shell.now_ms + 5_000
    assert shell.cursor.next_wake_ms() == shell.now_ms + 5_000


# Delay and retention.


def test_a_delayed_record_waits_for_its_own_time_and_lets_others_pass(shell: Shell) -> None:
    shell.send(1, delay_ms=5_000)
    shell.send(1)
    assert shell.counts() == (1, 0, 1)
    assert shell.take(10) == [1]
    assert shell.counts() == (0, 1, 1)
    assert shell.see(0) == RecordState(PeekState.DELAYED, until_ms=shell.now_ms + 5_000)
    shell.now_ms += 4_999
    assert shell.take(10) == []
    shell.now_ms += 1
    assert shell.counts() == (1, 1, 0)
    assert [p.attempt for p in shell.lease(10).picks] == [1]


def test_delayed_records_nobody_has_read_are_counted_without_reading_them(shell: Shell) -> None:
    shell.send(3, delay_ms=5_000)
    shell.send(2, delay_ms=20_000)
    assert shell.counts() == (0, 0, 5)
    shell.now_ms += 5_000
    assert shell.counts() == (3, 0, 2)
    assert shell.take(10) == [0, 1, 2]
    assert shell.counts() == (0, 3, 2)


def test_a_wall_clock_that_jumps_changes_no_delay_once_it_is_running(shell: Shell) -> None:
    shell.send(1, delay_ms=5_000)
    assert shell.take() == []
    shell.wall_skew_ms += 3_600_000
    assert shell.take() == []
    shell.wall_skew_ms -= 7_200_000
    shell.now_ms += 5_000
    assert shell.take() == [0]


def test_a_wall_clock_that_jumped_back_before_the_read_cannot_stretch_a_delay(
    shell: Shell,
) -> None:
    shell.send(1, delay_ms=5_000)
    shell.wall_skew_ms -= 3_600_000
    assert shell.take() == []
    shell.now_ms += 5_000
    assert shell.take() == [0]


def test_records_past_their_retention_are_never_given_out(shell: Shell) -> None:
    shell.retention_ms = 60_000
    shell.send(2)
    assert shell.take(1, lease_ms=1_000) == [0]
    shell.now_ms += 60_000
    fresh = shell.send(1)
    outcome = shell.lease(10)
    assert [p.offset for p in outcome.picks] == fresh
    assert outcome.expired == 2
    assert shell.counts() == (0, 1, 0)
    shell.restart()
    assert shell.counts() == (0, 1, 0)


def test_retention_counts_from_the_first_sending_of_a_dead_letter(shell: Shell) -> None:
    shell.retention_ms = 60_000
    shell.send(1, sent_at_ms=shell.wall_ms - 60_000)
    shell.send(1, sent_at_ms=shell.wall_ms - 59_999)
    assert shell.take(10) == [1]


def test_expire_drops_in_flight_and_unread_records_alike(shell: Shell) -> None:
    shell.retention_ms = 60_000
    shell.send(20)
    claim = claim_of(shell.lease(1, 120_000).picks[0])
    shell.now_ms += 60_000
    assert shell.expire() == 20
    assert shell.counts() == (0, 0, 0)
    assert shell.ack(claim) == [None]
    assert shell.cursor.low_offset() == shell.cursor.head


@pytest.mark.parametrize("what", ["expire", "next_offset"])
def test_a_record_that_could_not_be_read_before_is_leased(shell: Shell, what: str) -> None:
    """The record was written but not committed when the broker last read the log."""
    sent, times = shell.send(1), {"now_ms": shell.now_ms, "wall_ms": shell.wall_ms}
    shell.cursor.feed((), shell.cursor.scan_from, **times)
    if what == "expire":
        assert shell.cursor.expire(retention_ms=shell.retention_ms, **times).reply == 0
    else:
        assert isinstance(shell.cursor, StandardCursor)
        assert shell.cursor.next_offset(now_ms=shell.now_ms) is None
    assert shell.take(1) == sent


# Dead letters.


def test_a_record_leased_too_often_is_held_instead_of_delivered(shell: Shell) -> None:
    shell.attempts_max = 2
    shell.send(2)
    for _ in range(2):
        assert shell.take(1, lease_ms=1_000) == [0]
        shell.now_ms += 1_000
    outcome = shell.lease(1)
    assert [p.offset for p in outcome.picks] == [1]
    assert [(p.offset, p.attempt) for p in outcome.dead] == [(0, 2)]
    assert shell.take(10) == []
    assert shell.ack(claim_of(outcome.dead[0]), reason=AckReason.DEAD) == [None]
    assert shell.counts() == (0, 1, 0)


def test_a_hold_that_nobody_finished_ends_and_is_offered_for_copying_again(shell: Shell) -> None:
    shell.attempts_max = 1
    shell.send()
    shell.take(1, lease_ms=0)
    assert len(shell.lease().dead) == 1
    shell.now_ms += HOLD_MS - 1
    assert len(shell.lease().dead) == 0
    shell.now_ms += 1
    again = shell.lease().dead
    assert [(p.offset, p.attempt) for p in again] == [(0, 1)]


def test_without_a_redrive_rule_a_record_may_be_leased_for_ever(shell: Shell) -> None:
    shell.send()
    for attempt in range(1, 50):
        assert shell.lease(1, 0).picks[0].attempt == attempt


# Purge, trim and what may be forgotten.


def test_a_purge_removes_visible_delayed_and_in_flight_records(shell: Shell) -> None:
    shell.send(4)
    shell.send(2, delay_ms=60_000)
    claim = claim_of(shell.lease(1).picks[0])
    shell.purge()
    assert shell.counts() == (0, 0, 0)
    assert shell.take(10) == []
    assert shell.ack(claim) == [None]
    after = shell.send(1)
    shell.restart()
    assert shell.take(10) == after


def test_trimming_drops_what_lay_below_and_keeps_the_counts(shell: Shell) -> None:
    shell.send(10)
    shell.lease(2)
    outcome = shell.cursor.trim(5, passed=3)
    assert outcome.reply == 5
    shell.write(outcome.events)
    assert shell.counts() == (5, 0, 0)
    assert shell.cursor.low_offset() == 5
    assert shell.cursor.trim(5).events == ()
    shell.restart()
    assert shell.take(10) == [5, 6, 7, 8, 9]


def test_the_low_offset_is_the_oldest_record_that_is_not_gone(shell: Shell) -> None:
    shell.send(4)
    picks = shell.lease(3).picks
    shell.ack(claim_of(picks[1]))
    assert shell.cursor.low_offset() == 0
    shell.ack(claim_of(picks[0]))
    assert shell.cursor.low_offset() == 2
    shell.ack(claim_of(picks[2]))
    assert shell.cursor.low_offset() == 3


def test_a_state_can_be_asked_for_every_offset(shell: Shell) -> None:
    shell.send(2)
    shell.send(1, delay_ms=5_000)
    claim = claim_of(shell.lease(1).picks[0])
    now_ms = shell.now_ms
    assert shell.see(0) == RecordState(PeekState.IN_FLIGHT, until_ms=now_ms + 30_000)
    assert shell.see(1) == RecordState(PeekState.VISIBLE)
    assert shell.see(2) == RecordState(PeekState.DELAYED, until_ms=now_ms + 5_000)
    shell.ack(claim)
    assert shell.see(0) is None


def test_a_restart_knows_again_who_is_delayed_and_who_is_leased(shell: Shell) -> None:
    shell.send(2, delay_ms=20_000)
    shell.send(2)
    assert shell.take(3, lease_ms=5_000) == [2, 3]
    shell.now_ms += 1_000
    shell.restart()
    assert shell.counts() == (0, 2, 2)
    shell.now_ms += 4_000
    shell.restart_from(shell.snapshot())
    assert shell.counts() == (2, 0, 2)
    shell.now_ms += 15_000
    assert shell.take(10) == [0, 1, 2, 3]


def test_one_receive_clears_away_a_bounded_number_of_dead_and_expired_records(
    shell: Shell,
) -> None:
    shell.feed_max = 500
    shell.attempts_max = 1
    shell.send(2 * HELD_PER_LEASE_MAX + 10)
    shell.take(1_000, lease_ms=0)
    outcome = shell.lease(10)
    assert len(outcome.dead) == HELD_PER_LEASE_MAX
    assert outcome.wake_at_ms == shell.now_ms, "there is more to do at once"
    assert len(shell.lease(10).dead) == HELD_PER_LEASE_MAX
    assert len(shell.lease(10).dead) == 10
    shell.now_ms += shell.retention_ms
    late = shell.send(1)
    outcome = shell.lease(10)
    assert outcome.expired == 2 * HELD_PER_LEASE_MAX + 10
    assert [p.offset for p in outcome.picks] == late


# Memory.


def test_a_million_waiting_messages_cost_a_position_and_two_counts(shell: Shell) -> None:
    cursor = shell.cursor
    for batch in range(1_000):
        base = batch * 1_001
        cursor.appended(base, 1_000, next_offset=base + 1_000, now_ms=0)
    assert cursor.stats(now_ms=0).visible == 1_000_000
    assert len(cursor.snapshot(now_ms=0)) < 64
    assert not cursor._table
    assert not cursor._window
    assert not cursor._deadlines


def test_old_deadlines_are_swept_so_that_acks_leave_nothing_behind(shell: Shell) -> None:
    claims = []
    for _ in range(3_000):
        shell.send()
        claims = [claim_of(p) for p in shell.lease(1, LEASE_MS_MAX).picks]
        for _ in range(3):
            shell.extend(claims[0], LEASE_MS_MAX)
        shell.ack(*claims)
    assert len(shell.cursor._deadlines) <= 1_100


def test_passing_over_delayed_records_stops_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cursor.leases.fold.DEFERRED_MAX", 10)
    assert DEFERRED_MAX > 10
    shell = Shell(retention_ms=DAY_MS)
    shell.send(30, delay_ms=60_000)
    shell.send(5)
    assert shell.take(10) == []
    assert len(shell.cursor._table) == 10
    shell.now_ms += 60_000
    taken = shell.take(10) + shell.take(10) + shell.take(10) + shell.take(10)
    assert taken == list(range(35)), "later records wait, none is lost"
