"""The checker is itself checked: each invariant has a small history with exactly that fault, which
must be caught and named. A checker that accepts everything would make every fault test green.
Histories without a fault are in ``test_checker_clean``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.checker import INVARIANTS
from tests.harness.ledger import Key
from tests.unit.harness.script import LEASE_MS, MS, Script


# ── histories with exactly one fault ─────────────────────────────────────────────────────────
def answered_but_never_received(s: Script) -> None:
    s.send(1, 2)
    s.delete(*s.receive(1))


def received_and_then_gone_undeleted(s: Script) -> None:
    s.send(1)
    s.receive(1)


def gone_although_the_delete_was_refused(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1), end="fail")


def received_but_never_sent(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1, 2))


def received_although_refused(s: Script) -> None:
    s.invoke(1)
    s.fail(1)
    s.delete(*s.receive(1))


def one_send_received_under_two_ids(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1), *s.receive(1, message_id="other"))


def received_under_an_id_never_answered(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1, message_id="other"))


def received_after_an_answered_delete(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1, lease_ms=5))
    s.tick(100)
    s.receive(1, count=2)


def leased_twice_at_once(s: Script) -> None:
    s.send(1)
    s.receive(1)
    s.delete(*s.receive(1, count=2))


def leased_again_within_an_extension(s: Script) -> None:
    s.send(1)
    (receipt,) = s.receive(1, lease_ms=1_000)
    s.extend(receipt, 60_000)
    s.tick(2_000)
    s.delete(*s.receive(1, count=2))


def leased_again_after_a_refused_release(s: Script) -> None:
    s.send(1)
    (receipt,) = s.receive(1)
    s.extend(receipt, 0, end="fail")
    s.delete(*s.receive(1, count=2))


def later_in_group_while_earlier_is_leased(s: Script) -> None:
    s.send(1, 2)
    one, two = s.receive(1), s.receive(2)
    s.delete(*one, *two)


def group_out_of_order(s: Script) -> None:
    s.send(1, 2)
    s.delete(*s.receive(2))
    s.delete(*s.receive(1))


def group_out_of_order_within_one_answer(s: Script) -> None:
    s.send(1, 2)
    s.delete(*s.receive(2, 1))


def later_in_group_behind_a_gap(s: Script) -> None:
    s.send(1, 2, 3)
    one, two = s.receive(1, 2)
    s.delete(two)
    s.delete(*s.receive(3))
    s.delete(one)


def count_repeats(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=5)
    s.tick(100)
    s.delete(*s.receive(1, count=1))


def count_goes_back(s: Script) -> None:
    s.send(1)
    s.receive(1, count=2, lease_ms=5)
    s.tick(100)
    s.delete(*s.receive(1, count=1))


def count_jumps(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=5)
    s.tick(100)
    s.lost_receive()
    s.delete(*s.receive(1, count=4))


def count_jumps_though_every_receive_was_answered(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=5)
    s.tick(100)
    s.empty_receive()
    s.refused_receive()
    s.delete(*s.receive(1, count=3))


def count_jumps_before_the_answer_that_was_lost(s: Script) -> None:
    s.send(1)
    s.receive(1, count=2, lease_ms=5)
    s.tick(100)
    s.lost_receive()
    s.delete(*s.receive(1, count=3))


def more_unseen_than_lost_answers_had_room_for(s: Script) -> None:
    s.send(*range(1, 13))
    s.lost_receive()
    for seq in range(1, 13):
        s.delete(*s.receive(seq, count=2))


def leased_again_while_a_lease_that_began_late_runs(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=1_000)
    s.receive(1, count=2, lease_ms=1_000, wait_ms=1_000)
    s.tick(500)
    s.delete(*s.receive(1, count=3))


def leased_again_though_the_first_poll_began_before_the_send(s: Script) -> None:
    s.events.append(L.Recv(1_010 * MS, 0, "early", 0, "q", "m1", "early-1", 1, 500, Key("p", 1)))
    s.tick(1_000)
    s.send(1)
    s.tick(200)
    s.delete(*s.receive(1, count=2))


def a_place_is_given_out_twice(s: Script) -> None:
    s.invoke(1, group="g")
    s.ok(1, place=7)
    s.invoke(2, group="h")
    s.ok(2, place=7)
    s.delete(*s.receive(1))
    s.delete(*s.receive(2))


def a_message_is_found_at_another_place(s: Script) -> None:
    s.invoke(1)
    s.ok(1, place=7)
    s.delete(*s.receive(1, stands_at=8))


def a_place_behind_which_others_were_answered_for(s: Script) -> None:
    s.invoke(1)
    s.ok(1, place=7)
    s.invoke(2)
    s.ok(2, place=5)
    s.delete(*s.receive(1, 2))


def repeat_stored_twice_with_clocks_as_they_should_be(s: Script) -> None:
    s.skew(100)
    s.invoke(1)
    s.info(1)
    s.send(1)
    s.delete(*s.receive(1))
    s.delete(*s.receive(1, message_id="other"))


def retry_answered_with_another_id(s: Script) -> None:
    s.send(1)
    s.invoke(1)
    s.ok(1, "other")
    s.delete(*s.receive(1))


def distinct_send_swallowed_as_a_duplicate(s: Script) -> None:
    s.invoke(1)
    s.ok(1, "m1")
    s.invoke(2)
    s.ok(2, "m1")
    s.delete(*s.receive(1))
    s.delete(*s.receive(2, message_id="m1"))


def still_full_after_the_drain(s: Script) -> None:
    s.send(1)
    s.drained(visible=1)


def still_leased_after_the_drain(s: Script) -> None:
    s.send(1)
    s.receive(1)
    s.drained(in_flight=1)


def drain_gave_up(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1))
    s.drained(empty_polls=0)


def a_call_hung(s: Script) -> None:
    s.events.append(L.Hung(s.tick(), "SendMessage", 30.0))


def a_damaged_body(s: Script) -> None:
    s.events.append(L.Recv(s.tick(), s.at_ms, "c", 0, "q", "m", "r", 1, LEASE_MS))


def a_traceback_in_the_log(s: Script) -> None:
    s.log = "fine\nTraceback (most recent call last):\n  File x\nKeyError: 1\n"


def a_task_exception_in_the_log(s: Script) -> None:
    s.log = "Task exception was never retrieved\nfuture: <Task>\n"


FAULTS: list[tuple[str, bool, Callable[[Script], None]]] = [
    ("LOST", False, answered_but_never_received),
    ("LOST", False, received_and_then_gone_undeleted),
    ("LOST", True, gone_although_the_delete_was_refused),
    ("PHANTOM", False, received_but_never_sent),
    ("PHANTOM", False, received_although_refused),
    ("DUP", False, one_send_received_under_two_ids),
    ("DUP", True, received_under_an_id_never_answered),
    ("RESURRECT", False, received_after_an_answered_delete),
    ("OVERLAP", False, leased_twice_at_once),
    ("OVERLAP", True, leased_again_within_an_extension),
    ("OVERLAP", False, leased_again_after_a_refused_release),
    ("GROUP", True, later_in_group_while_earlier_is_leased),
    ("GROUP", True, group_out_of_order),
    ("GROUP", True, group_out_of_order_within_one_answer),
    ("GROUP", True, later_in_group_behind_a_gap),
    ("RCOUNT", False, count_repeats),
    ("RCOUNT", False, count_goes_back),
    ("RCOUNT", False, count_jumps),
    ("RCOUNT", False, count_jumps_before_the_answer_that_was_lost),
    ("RCOUNT", False, more_unseen_than_lost_answers_had_room_for),
    ("OVERLAP", False, leased_again_while_a_lease_that_began_late_runs),
    ("OVERLAP", False, leased_again_though_the_first_poll_began_before_the_send),
    ("CONFLICT", True, a_place_is_given_out_twice),
    ("CONFLICT", True, a_message_is_found_at_another_place),
    ("HWBACK", True, a_place_behind_which_others_were_answered_for),
    ("DUP", True, repeat_stored_twice_with_clocks_as_they_should_be),
    ("DEDUP", True, retry_answered_with_another_id),
    ("DEDUP", False, distinct_send_swallowed_as_a_duplicate),
    ("STUCK", False, still_full_after_the_drain),
    ("STUCK", False, still_leased_after_the_drain),
    ("STUCK", False, drain_gave_up),
    ("STUCK", False, a_call_hung),
    ("BADCRC", False, a_damaged_body),
    ("TRACE", False, a_traceback_in_the_log),
    ("TRACE", False, a_task_exception_in_the_log),
]


@pytest.mark.parametrize(
    ("invariant", "is_fifo", "write"), FAULTS, ids=[f"{name}-{f.__name__}" for name, _, f in FAULTS]
)
def test_a_history_with_one_fault_is_caught_and_named(
    invariant: str, is_fifo: bool, write: Callable[[Script], None]
) -> None:
    script = Script(is_fifo=is_fifo)
    write(script)
    if not any(isinstance(event, L.Drained) for event in script.events):
        script.drained()
    verdict = script.verdict()
    assert {name for name, count in verdict.counts.items() if count} == {invariant}, verdict.text()
    assert invariant in verdict.first
    with pytest.raises(AssertionError, match=f"{invariant}=1"):
        verdict.assert_clean()


def test_every_invariant_has_a_fault_that_shows_it_can_fail() -> None:
    assert {name for name, _, _ in FAULTS} == set(INVARIANTS)


def test_a_verdict_tells_the_whole_life_of_the_first_offender() -> None:
    script = Script()
    script.send(1, 2)
    script.receive(1)
    script.delete(*script.receive(1, count=2), *script.receive(2))
    script.drained()
    text = script.verdict().text()
    assert "first OVERLAP" in text
    for word in ("p/1 in q", "Invoke", "Ok", "c1-1", "c2-1", "DelOk"):
        assert word in text
    assert "m2" not in text


def test_an_answered_receive_explains_no_count_that_nobody_saw() -> None:
    """One message and its whole queue: both bounds are broken, and both are told."""
    script = Script()
    count_jumps_though_every_receive_was_answered(script)
    script.drained()
    assert {name: n for name, n in script.verdict().counts.items() if n} == {"RCOUNT": 2}


def test_a_fifo_lease_may_not_be_forgotten_by_a_power_cut() -> None:
    script = Script(is_fifo=True)
    script.send(1)
    script.receive(1)
    script.cut()
    script.delete(*script.receive(1, count=2))
    script.drained()
    assert script.verdict().counts["OVERLAP"] == 1
