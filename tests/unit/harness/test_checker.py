"""The checker is itself checked: each invariant has a small history with exactly that fault, which
must be caught and named, and histories without a fault must pass. A checker that accepts
everything would make every fault test green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.checker import INVARIANTS, Verdict, check
from tests.harness.ledger import Key

MS = 1_000_000
LEASE_MS = 30_000


@dataclass
class Script:
    """Writes a history down as a sentence: every step takes a millisecond unless it says more."""

    is_fifo: bool = False
    at_ms: int = 0
    events: list[L.AnyEvent] = field(default_factory=list)
    queue: str = "q"
    calls: int = 0
    log: str = ""

    def tick(self, ms: int = 1) -> int:
        self.at_ms += ms
        return self.at_ms * MS

    def invoke(self, seq: int, *, group: str = "g") -> None:
        grouping = (group, seq, f"dedup-{seq}") if self.is_fifo else ("", 0, "")
        self.events.append(L.Invoke(self.tick(), Key("p", seq), self.queue, *grouping))

    def ok(self, seq: int, message_id: str | None = None) -> None:
        self.events.append(L.Ok(self.tick(), Key("p", seq), message_id or f"m{seq}"))

    def fail(self, seq: int) -> None:
        self.events.append(L.Fail(self.tick(), Key("p", seq), "refused"))

    def info(self, seq: int) -> None:
        self.events.append(L.Info(self.tick(), Key("p", seq), "reset"))

    def send(self, *seqs: int) -> None:
        for seq in seqs:
            self.invoke(seq)
            self.ok(seq)

    def receive(
        self,
        *seqs: int,
        count: int = 1,
        message_id: str | None = None,
        lease_ms: int = LEASE_MS,
        wait_ms: int = 1,
    ) -> list[str]:
        """One answer with these messages; gives their receipts."""
        invoked_at, at = self.tick(), self.tick(wait_ms)
        self.calls += 1
        call = f"c{self.calls}"
        receipts = []
        for place, seq in enumerate(seqs):
            receipt = f"{call}-{seq}"
            self.events.append(
                L.Recv(
                    at,
                    invoked_at,
                    call,
                    place,
                    self.queue,
                    message_id or f"m{seq}",
                    receipt,
                    count,
                    lease_ms,
                    Key("p", seq),
                    "g" if self.is_fifo else "",
                    seq if self.is_fifo else 0,
                )
            )
            receipts.append(receipt)
        return receipts

    def lost_receive(self) -> None:
        invoked_at = self.tick()
        self.events.append(L.RecvInfo(self.tick(), invoked_at, self.queue, 10))

    def delete(self, *receipts: str, end: str = "ok") -> None:
        ends: dict[str, Callable[[int, str], L.AnyEvent]] = {
            "ok": L.DelOk,
            "fail": lambda at, receipt: L.DelFail(at, receipt, "expired"),
            "info": lambda at, receipt: L.DelInfo(at, receipt, "reset"),
        }
        for receipt in receipts:
            self.events.append(L.DelInvoke(self.tick(), receipt, ""))
            self.events.append(ends[end](self.tick(), receipt))

    def extend(self, receipt: str, lease_ms: int, *, end: str = "ok") -> None:
        ends: dict[str, Callable[[int, str], L.AnyEvent]] = {
            "ok": L.ExtOk,
            "fail": lambda at, receipt: L.ExtFail(at, receipt, "expired"),
            "info": lambda at, receipt: L.ExtInfo(at, receipt, "reset"),
        }
        self.events.append(L.ExtInvoke(self.tick(), receipt, "", lease_ms))
        self.events.append(ends[end](self.tick(), receipt))

    def cut(self) -> None:
        self.events.append(L.Fault(self.tick(), "cut", 1))

    def drained(self, *, visible: int = 0, in_flight: int = 0, empty_polls: int = 3) -> None:
        self.events.append(L.Drained(self.tick(), self.queue, visible, in_flight, 0, empty_polls))

    def verdict(self) -> Verdict:
        return check(self.events, log=self.log)


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


# ── histories without a fault ────────────────────────────────────────────────────────────────
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


def test_a_fifo_lease_may_not_be_forgotten_by_a_power_cut() -> None:
    script = Script(is_fifo=True)
    script.send(1)
    script.receive(1)
    script.cut()
    script.delete(*script.receive(1, count=2))
    script.drained()
    assert script.verdict().counts["OVERLAP"] == 1
