"""Noisy neighbours: one group's flood must not make the others wait."""

import pytest
from tests.unit.cursor.leases.harness import Shell, claim_of

from penstock.cursor.leases import standard as fair
from penstock.cursor.leases.standard import FairShare


@pytest.fixture
def shell() -> Shell:
    return Shell(feed_max=50)


def test_records_of_quiet_groups_go_before_those_of_a_noisy_one(shell: Shell) -> None:
    shell.send(60, group="noisy")
    quiet = shell.send(2, group="quiet") + shell.send(2)
    assert shell.take(30) == list(range(30))
    assert shell.take(4) == quiet
    assert shell.take(3) == [30, 31, 32], "with nobody else waiting, a noisy group gets it all"


def test_below_thirty_in_flight_a_group_is_never_noisy(shell: Shell) -> None:
    shell.send(60, group="big")
    shell.send(1, group="small")
    shell.take(29)
    assert shell.take(1) == [29]
    assert shell.take(1) == [60]


def test_up_to_a_tenth_of_all_in_flight_a_group_is_not_noisy(shell: Shell) -> None:
    shell.send(270)
    shell.send(40, group="big")
    shell.send(1, group="small")
    assert len(shell.take(300)) == 300
    assert shell.take(1) == [300], "thirty of three hundred is no more than a tenth"
    assert shell.take(1) == [310], "thirty-one of 301 is"


def test_a_group_that_calmed_down_stands_in_line_by_offset_again(shell: Shell) -> None:
    shell.send(40, group="noisy")
    later = shell.send(3, group="quiet")
    picks = shell.lease(30).picks
    assert shell.take(1) == later[:1]
    shell.ack(*[claim_of(p) for p in picks])
    assert shell.take(12) == [*range(30, 40), *later[1:]]


def test_among_noisy_groups_the_one_with_fewest_in_flight_goes_first(shell: Shell) -> None:
    shell.send(50, group="a")
    shell.send(32, group="b")
    assert shell.take(30) == list(range(30))
    assert shell.take(30) == list(range(50, 80)), "b is quiet until it has thirty, too"
    assert shell.take(1) == [30], "thirty each: the older record"
    assert shell.take(1) == [80], "thirty of b against thirty-one of a"
    assert shell.take(1) == [31]
    assert shell.take(1) == [81]
    assert shell.take(2) == [32, 33], "b has no more"


def test_quiet_records_far_behind_a_flood_are_found(shell: Shell) -> None:
    shell.send(400, group="noisy")
    quiet = shell.send(1, group="quiet")
    shell.take(30)
    assert shell.take(1) == quiet
    shell.restart()
    assert shell.counts() == (370, 31, 0)
    assert shell.take(3) == [30, 31, 32]


def test_looking_behind_a_flood_is_bounded(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair, "PARKED_MAX", 20)
    shell.send(400, group="noisy")
    shell.send(1, group="quiet")
    shell.take(30)
    assert shell.take(1) == [30]
    assert len(shell.cursor._table) <= 30 + 20 + 1


def test_everything_is_delivered_exactly_once_whatever_is_parked(shell: Shell) -> None:
    for _ in range(20):
        shell.send(20, group="noisy")
        shell.send(3, group="quiet")
        shell.send(2)
    taken: list[int] = []
    while picks := shell.lease(7).picks:
        taken += [p.offset for p in picks]
        shell.ack(*[claim_of(p) for p in picks if p.offset % 3 == 0])
    assert sorted(taken) == sorted(shell.records)


def test_a_queue_without_groups_keeps_no_books(shell: Shell) -> None:
    shell.send(100)
    shell.take(100)
    share: FairShare = shell.cursor._fair  # type: ignore[attr-defined]
    assert not share.is_needed
    assert not share._in_flight
