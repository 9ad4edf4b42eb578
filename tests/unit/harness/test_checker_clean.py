"""What clients may see when servers die, answers are lost and leases run out is not counted by the
checker: a checker that finds fault with everything would be switched off."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.unit.harness.script import MS, Script


def plain_life(s: Script) -> None:
    s.send(1, 2)
    s.delete(*s.receive(1, 2))


def unknown_send_that_was_stored(s: Script) -> None:
    s.invoke(1)
    s.info(1)
    s.delete(*s.receive(1))


def unknown_send_that_was_not_stored(s: Script) -> None:
    s.invoke(1)
    s.info(1)


def send_without_any_closing_line(s: Script) -> None:
    s.invoke(1)
    s.delete(*s.receive(1))


def refused_send_then_retried(s: Script) -> None:
    s.invoke(1)
    s.fail(1)
    s.send(1)
    s.delete(*s.receive(1))


def retry_answered_with_the_first_id(s: Script) -> None:
    s.invoke(1)
    s.info(1)
    s.send(1)
    s.delete(*s.receive(1))


def lease_ran_out(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=1_000)
    s.tick(1_000)
    s.delete(*s.receive(1, count=2))


def lease_that_began_late_in_a_long_poll(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=100, wait_ms=20_000)
    s.delete(*s.receive(1, count=2))


def released_and_leased_again(s: Script) -> None:
    s.send(1)
    (receipt,) = s.receive(1)
    s.extend(receipt, 0)
    s.delete(*s.receive(1, count=2))


def release_without_an_answer(s: Script) -> None:
    s.send(1)
    (receipt,) = s.receive(1)
    s.extend(receipt, 0, end="info")
    s.delete(*s.receive(1, count=2))


def shortened_by_an_extension(s: Script) -> None:
    s.send(1)
    (receipt,) = s.receive(1)
    s.extend(receipt, 50)
    s.tick(50)
    s.delete(*s.receive(1, count=2))


def delete_without_an_answer_came_again(s: Script) -> None:
    s.send(1)
    s.delete(*s.receive(1, lease_ms=10), end="info")
    s.tick(10)
    s.delete(*s.receive(1, count=2))


def receive_that_was_open_when_the_delete_was_answered(s: Script) -> None:
    s.send(1)
    receipts = s.receive(1, lease_ms=1)
    s.tick(5)
    s.receive(1, count=2, wait_ms=100)
    s.events.append(L.DelInvoke((s.at_ms - 60) * MS, receipts[0], ""))
    s.events.append(L.DelOk((s.at_ms - 50) * MS, receipts[0]))


def counts_lost_with_their_answers(s: Script) -> None:
    s.send(1)
    s.receive(1, lease_ms=5)
    s.lost_receive()
    s.lost_receive()
    s.tick(100)
    s.delete(*s.receive(1, count=4))


def counts_lost_with_their_client(s: Script) -> None:
    s.send(1)
    s.unclosed_receive()
    s.tick(100)
    s.delete(*s.receive(1, count=2))


def places_that_rise(s: Script) -> None:
    s.invoke(1)
    s.ok(1, place=7)
    s.invoke(2)
    s.info(2)
    s.invoke(2)
    s.ok(2, place=9)
    s.delete(*s.receive(1, stands_at=7))
    s.delete(*s.receive(2, stands_at=9))


def repeat_stored_twice_while_a_clock_was_wrong(s: Script) -> None:
    s.invoke(1)
    s.info(1)
    s.skew(100)
    s.send(1)
    s.delete(*s.receive(1))
    s.delete(*s.receive(1, message_id="other"))


def standard_leases_forgotten_by_a_power_cut(s: Script) -> None:
    s.send(1)
    s.receive(1)
    s.cut()
    s.delete(*s.receive(1, count=1))


def group_in_one_answer_then_the_next(s: Script) -> None:
    s.send(1, 2, 3)
    s.delete(*s.receive(1, 2))
    s.delete(*s.receive(3))


def group_goes_on_behind_an_unknown_delete(s: Script) -> None:
    s.send(1, 2)
    s.delete(*s.receive(1), end="info")
    s.delete(*s.receive(2))


def earlier_in_group_again_while_later_is_extended(s: Script) -> None:
    s.send(1, 2, 3)
    _, two, _ = s.receive(1, 2, 3, lease_ms=100)
    s.extend(two, 10_000)
    s.tick(100)
    s.delete(*s.receive(1, count=2))
    s.delete(two)
    s.delete(*s.receive(3, count=2))


CLEAN: list[tuple[bool, Callable[[Script], None]]] = [
    (False, plain_life),
    (True, plain_life),
    (False, unknown_send_that_was_stored),
    (False, unknown_send_that_was_not_stored),
    (False, send_without_any_closing_line),
    (True, refused_send_then_retried),
    (True, retry_answered_with_the_first_id),
    (False, lease_ran_out),
    (False, lease_that_began_late_in_a_long_poll),
    (True, released_and_leased_again),
    (False, release_without_an_answer),
    (True, shortened_by_an_extension),
    (False, delete_without_an_answer_came_again),
    (False, receive_that_was_open_when_the_delete_was_answered),
    (False, counts_lost_with_their_answers),
    (False, counts_lost_with_their_client),
    (True, places_that_rise),
    (True, repeat_stored_twice_while_a_clock_was_wrong),
    (False, standard_leases_forgotten_by_a_power_cut),
    (True, group_in_one_answer_then_the_next),
    (True, group_goes_on_behind_an_unknown_delete),
    (True, earlier_in_group_again_while_later_is_extended),
]


@pytest.mark.parametrize(("is_fifo", "write"), CLEAN, ids=[f.__name__ for _, f in CLEAN])
def test_a_history_without_a_fault_passes(is_fifo: bool, write: Callable[[Script], None]) -> None:
    script = Script(is_fifo=is_fifo)
    write(script)
    script.drained()
    script.verdict().assert_clean()
