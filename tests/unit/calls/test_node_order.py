"""Whom a receive asks first: this node as a rule, others often enough, and the more often the more
what they have has waited."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.stage import message

from penstock.calls.routing.leasing import (
    EVERY_MAX,
    EVERY_MIN,
    LONGER_MS,
    SECONDS_MAX,
    NodeOrder,
)
from penstock.model.message import Delivery, Record

OWN = 1
NODES = (1, 2, 3)


def delivery(waited_ms: int) -> list[Delivery]:
    appended_at_ms = 1_700_000_000_000
    record = Record(0, appended_at_ms, message())
    return [Delivery(0, record, 1, 1, appended_at_ms + waited_ms)]


def receive(asked: NodeOrder, *, here_ms: int | None, there_ms: int | None) -> int:
    """Whom it has asked first. For how long what it finds has waited; None: there is nothing."""
    first = asked.order("q", NODES, now_s=0.0)[0]
    waited_ms = here_ms if first == OWN else there_ms
    found = asked.found_here if first == OWN else asked.found_elsewhere
    found("q", [] if waited_ms is None else delivery(waited_ms))
    return first


def gaps(firsts: list[int]) -> list[int]:
    """Between one time that another came first and the next."""
    at = [-1, *(n for n, first in enumerate(firsts) if first != OWN)]
    return [after - before for before, after in pairwise(at)]


def test_others_come_first_every_fourth_time_while_what_they_have_waits_longer() -> None:
    asked = NodeOrder(OWN)
    firsts = [receive(asked, here_ms=1_000, there_ms=5_000) for _ in range(40)]
    assert set(gaps(firsts)) == {EVERY_MIN}
    assert {2, 3} <= set(firsts)


@pytest.mark.parametrize(
    ("here_ms", "there_ms"),
    [(5_000, 1_000), (5_000, 6_000), (1, LONGER_MS), (5_000, None), (None, None)],
)
def test_others_come_first_less_and_less_while_what_they_have_waits_no_longer(
    here_ms: int | None, there_ms: int | None
) -> None:
    asked = NodeOrder(OWN)
    firsts = [receive(asked, here_ms=here_ms, there_ms=there_ms) for _ in range(200)]
    assert gaps(firsts)[:5] == [4, 8, 16, EVERY_MAX, EVERY_MAX]


def test_what_is_found_to_wait_elsewhere_is_fetched_more_often_at_once() -> None:
    asked = NodeOrder(OWN)
    for _ in range(200):
        receive(asked, here_ms=1_000, there_ms=1_000)
    firsts = [receive(asked, here_ms=1_000, there_ms=5_000) for _ in range(100)]
    assert gaps(firsts)[0] <= EVERY_MAX
    assert set(gaps(firsts)[1:]) == {EVERY_MIN}


def test_others_come_first_at_least_once_a_second() -> None:
    asked = NodeOrder(OWN)
    now_s = 0.0
    for _ in range(20):
        assert asked.order("q", NODES, now_s=now_s)[0] == OWN
        now_s += SECONDS_MAX
        assert asked.order("q", NODES, now_s=now_s)[0] != OWN
        asked.found_elsewhere("q", [])


def test_who_leads_nothing_asks_the_others_in_turn() -> None:
    asked = NodeOrder(9)
    assert [asked.order("q", NODES, now_s=0.0)[0] for _ in range(6)] == [1, 2, 3, 1, 2, 3]


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(range(1, 6)), min_size=0, max_size=5, unique=True),
            st.none() | st.integers(0, 2_000),
        ),
        max_size=80,
    )
)
@settings(max_examples=60)
def test_everybody_is_asked_once_and_nobody_is_forgotten(
    steps: list[tuple[list[int], int | None]],
) -> None:
    asked = NodeOrder(OWN)
    stayed = 0
    for nodes, at_ms in steps:
        order = asked.order("q", sorted(nodes), now_s=0.0)
        assert sorted(order) == sorted(nodes)
        found = [] if at_ms is None else delivery(at_ms)
        if len(order) > 1 and OWN in order:
            stayed = stayed + 1 if order[0] == OWN else 0
            assert stayed < EVERY_MAX
            if order[0] == OWN:
                asked.found_here("q", found)
            else:
                asked.found_elsewhere("q", found)


def test_the_remembered_queues_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.calls.routing.leasing.QUEUES_MAX", 10)
    asked = NodeOrder(OWN)
    for number in range(100):
        asked.order(str(number), NODES, now_s=0.0)
        asked.found_here(str(number), [])
        assert len(asked._queues) <= 10
