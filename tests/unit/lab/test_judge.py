"""What only the whole of a run shows, and when a run proves nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
from tests.harness import ledger as L  # noqa: N812  (every event class is used)
from tests.harness.ledger import Key
from tests.lab.judge import INVARIANTS, FaultDone, Judgement, Minima, Seen, judge, longest_gap
from tests.lab.kafka_ledger import Ended, Sent
from tests.lab.plan import PROFILES
from tests.lab.replicas import Compared
from tests.lab.states import ComparedStates

S = 1_000_000_000
KILL = FaultDone("F1 kill leader", ("n1",), (1,), 20 * S, 26 * S, True, "1 partition led by others")


def sent(*seconds: float) -> list[L.AnyEvent]:
    """Messages that were taken at these times, received and deleted at once, and a drained end."""
    events: list[L.AnyEvent] = []
    for number, second in enumerate(seconds):
        at, key = int(second * S), Key("p", number)
        name = f"m{number}"
        events += [
            L.Invoke(at - 2, key, "q"),
            L.Ok(at, key, name),
            L.Recv(at + 2, at + 1, f"c{number}", 0, "q", name, f"r{number}", 1, 30_000, key),
            L.DelInvoke(at + 3, f"r{number}", name),
            L.DelOk(at + 4, f"r{number}"),
        ]
    events.append(L.Drained(1_000 * S, "q", 0, 0, 0, 3))
    return events


def seen(**changes: Any) -> Seen:
    whole = Seen(
        events=sent(*range(1, 100)),
        kafka=(),
        faults=(KILL,),
        logs={1: "all is well"},
        compared=Compared(),
        states=ComparedStates(),
        ghosts=(),
        failovers=40,
        in_sync_changes=40,
        failover_waves=1,
        in_sync_waves=1,
        truncations=0,
        lease_ms=6_000,
        node_at={"a:1": 1, "b:2": 2}.get,
        load_ended_at=100 * S,
    )
    return dataclasses.replace(whole, **changes)


def broken(judgement: Judgement) -> set[str]:
    assert set(judgement.counts) == set(INVARIANTS)
    return {name for name, count in judgement.counts.items() if count}


def test_a_run_in_which_everything_held_is_good() -> None:
    judgement = judge(seen(), Minima(sends=99, failovers=1, in_sync_changes=1))
    assert judgement.is_good, judgement.text()
    assert judgement.outages_ms == {"1. F1 kill leader": 1_000}


def test_an_outage_longer_than_a_lease_and_four_seconds_is_dark() -> None:
    events = sent(*range(1, 21), *range(31, 100))
    assert broken(judge(seen(events=events), Minima())) == {"DARK"}
    not_single = FaultDone("F19", ("n1", "n2"), (1, 2), 20 * S, 26 * S, False, "both ended")
    assert broken(judge(seen(events=events, faults=(not_single,)), Minima())) == set()


def test_a_queue_that_takes_nothing_after_all_was_healed_is_stuck() -> None:
    events = sent(*range(1, 21), *range(50, 100))
    assert "STUCK" in broken(judge(seen(events=events), Minima()))


@pytest.mark.parametrize(("where", "expected"), [("a:1", set()), ("b:2", {"STUCK"})])
def test_a_call_may_hang_only_at_a_node_that_could_not_answer(
    where: str, expected: set[str]
) -> None:
    hung = L.Hung(45 * S, "SendMessage", 20.0, 25 * S, where)
    assert broken(judge(seen(events=[*sent(*range(1, 100)), hung]), Minima())) == expected


def test_a_call_that_hangs_long_after_its_node_was_back_is_stuck() -> None:
    hung = L.Hung(90 * S, "SendMessage", 20.0, 70 * S, "a:1")
    assert broken(judge(seen(events=[*sent(*range(1, 100)), hung]), Minima())) == {"STUCK"}


def test_what_copies_logs_and_deleted_queues_show_is_counted() -> None:
    judgement = judge(
        seen(
            compared=Compared(split=["t/0: differs"], ghost=["t/1: no copy on n2"]),
            states=ComparedStates(differences=["t/0 at 7: n1 comes to a, n2 to b"]),
            ghosts=("passing-1 was deleted and is there",),
            logs={3: "Traceback (most recent call last):\n  boom"},
        ),
        Minima(),
    )
    assert {name: n for name, n in judgement.counts.items() if n} == {
        "SPLIT": 1,
        "STATE": 1,
        "GHOST": 2,
        "TRACE": 1,
    }


def test_what_kafka_clients_saw_is_counted_with_the_rest() -> None:
    kafka = (Sent(1, "t", [(0, 0)]), Ended(2, "t", [], ["the group did not end"]))
    assert broken(judge(seen(kafka=kafka), Minima())) == {"STUCK"}


def _received_again(at: float) -> list[L.AnyEvent]:
    """The second of two leases of one message; of the one between them nobody knows."""
    key = Key("again", 0)
    one, two = int(10 * S), int(at * S)
    return [
        L.Invoke(9 * S, key, "q"),
        L.Ok(9 * S + 1, key, "again"),
        L.Recv(one + 1, one, "a1", 0, "q", "again", "ra1", 1, 1_000, key),
        L.Recv(two + 1, two, "a2", 0, "q", "again", "ra2", 3, 1_000, key),
        L.DelInvoke(two + 2, "ra2", "again"),
        L.DelOk(two + 3, "ra2"),
    ]


def test_a_lease_nobody_got_is_excused_only_by_a_receive_without_an_answer() -> None:
    """Not by a fault: whoever was answered knows what was leased to him."""
    during = [*sent(*range(1, 100)), *_received_again(28.0)]
    assert broken(judge(seen(events=during), Minima())) == {"RCOUNT"}
    missed = L.RecvInfo(24 * S, 22 * S, "q", 10, "lost")
    assert broken(judge(seen(events=[*during, missed]), Minima())) == set()


def test_a_repeat_is_stored_twice_only_while_a_clock_is_wrong() -> None:
    key = Key("twice", 0)
    events = [
        *sent(*range(1, 100)),
        L.Invoke(19 * S, key, "q", "g", 1, "d"),
        L.Info(21 * S, key, "reset"),
        L.Invoke(22 * S, key, "q", "g", 1, "d"),
        L.Ok(23 * S, key, "second"),
        L.Recv(24 * S, 24 * S - 1, "t1", 0, "q", "first", "rt1", 1, 1_000, key, "g", 1),
        L.Recv(24 * S, 24 * S - 1, "t1", 1, "q", "second", "rt2", 1, 1_000, key, "g", 1),
        L.DelInvoke(24 * S + 1, "rt1", "first"),
        L.DelOk(24 * S + 2, "rt1"),
        L.DelInvoke(24 * S + 3, "rt2", "second"),
        L.DelOk(24 * S + 4, "rt2"),
    ]
    events.sort(key=lambda event: event.at)
    assert broken(judge(seen(events=events), Minima())) == {"DUP"}
    skewed = FaultDone("F14", ("n1",), (), 20 * S, 26 * S, False, "an hour", True)
    assert broken(judge(seen(events=events, faults=(skewed,)), Minima())) == set()


@pytest.mark.parametrize(
    "minima",
    [Minima(sends=100), Minima(failovers=2), Minima(in_sync_changes=2), Minima(truncations=1)],
)
def test_a_run_that_went_through_too_little_is_invalid(minima: Minima) -> None:
    judgement = judge(seen(), minima)
    assert broken(judgement) == set()
    assert not judgement.is_good
    assert judgement.word == "INVALID"
    assert "INVALID" in judgement.text()


def test_chaos_is_invalid_with_one_failover_truncation_or_change_of_sets_too_few() -> None:
    enough = {"failover_waves": 20, "in_sync_waves": 10, "truncations": 5}
    minima = msgspec.structs.replace(PROFILES["chaos"].minima, sends=1)
    assert judge(seen(**enough), minima).word == "good"
    for name, count in enough.items():
        assert judge(seen(**{**enough, name: count - 1}), minima).word == "INVALID"


def test_a_fault_without_effect_makes_a_run_worthless() -> None:
    idle = FaultDone("F4 pause leader", ("n1",), (1,), 20 * S, 26 * S, False, None)
    assert not judge(seen(faults=(idle,)), Minima()).is_good
    assert not judge(seen(faults=()), Minima()).is_good


def test_what_a_fault_has_seen_broken_itself_is_counted() -> None:
    slow = FaultDone(
        "F19", ("n1",), (1,), 20 * S, 26 * S, False, "n2 manages", False, (("DARK", "9 s"),)
    )
    assert broken(judge(seen(faults=(slow,)), Minima())) == {"DARK"}


def test_the_longest_gap_reaches_to_both_ends() -> None:
    assert longest_gap([5, 6, 7], 0, 10) == 5
    assert longest_gap([], 0, 10) == 10
    assert longest_gap([1, 2], 0, 10) == 8
