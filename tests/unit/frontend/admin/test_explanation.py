"""Why a queue delivers nothing: every reason by example, and what holds for all of them."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.frontend.admin.queues import GATES, Reason, Situation, explain
from penstock.model.limits import LOCKS_SHOWN_MAX
from penstock.model.topic import (
    GroupLock,
    Obstacles,
    QueueStats,
    join_obstacles,
    worst_locks,
)

NOON_MS = 1_794_830_400_000  # 2026-11-16 12:00:00 UTC
MINUTE_MS = 60_000


def situation(obstacles: Obstacles | None = None, **counts: int) -> Situation:
    return Situation(stats=QueueStats(obstacles=obstacles or Obstacles(), **counts))


def reason(given: Situation, code: str) -> Reason:
    found = explain(given, now_ms=NOON_MS)
    return next(each for each in found.reasons if each.code is code)


def test_an_empty_queue() -> None:
    found = explain(situation(), now_ms=NOON_MS)
    assert [each.code for each in found.reasons] == ["empty"]
    assert found.summary == "the queue is empty"
    assert not found.is_delivering


def test_a_locked_group_is_named_with_the_message_that_locks_it() -> None:
    lock = GroupLock(partition=1, group="g1", offset=7, until_ms=NOON_MS + MINUTE_MS, blocked=2)
    obstacles = Obstacles(
        blocked=2, locked_groups=1, locks=[lock], lease_ends_ms=NOON_MS + MINUTE_MS
    )
    given = situation(obstacles, visible=2, in_flight=1)
    found = explain(given, now_ms=NOON_MS)
    assert not found.is_delivering
    assert found.summary.startswith("2 blocked in group g1 until 12:01:00 UTC, 0 delayed")
    text = reason(given, "blocked").text
    assert text == (
        "2 messages blocked in group g1: offset 7 of partition 1 is in flight until 12:01:00 UTC"
    )
    assert reason(given, "in_flight").until_ms == NOON_MS + MINUTE_MS


def test_only_the_worst_of_many_locked_groups_are_named() -> None:
    locks = [
        GroupLock(partition=0, group=f"g{n}", offset=n, until_ms=NOON_MS, blocked=n + 1)
        for n in range(30)
    ]
    blocked = sum(lock.blocked for lock in locks)
    obstacles = Obstacles(blocked=blocked, locked_groups=30, locks=worst_locks(locks))
    found = explain(situation(obstacles, visible=blocked, in_flight=30), now_ms=NOON_MS)
    named = [each for each in found.reasons if each.group is not None]
    assert [each.group for each in named] == [f"g{29 - n}" for n in range(LOCKS_SHOWN_MAX)]
    told = [each.count for each in found.reasons if each.code == "blocked"]
    assert sum(filter(None, told)) == blocked
    assert any("in 20 more groups" in each.text for each in found.reasons)
    assert "in 30 groups, most in g29" in found.summary


def test_a_delay_and_a_lease_say_when_they_end() -> None:
    obstacles = Obstacles(delay_ends_ms=NOON_MS + 1_000, lease_ends_ms=NOON_MS + 5_000)
    found = explain(situation(obstacles, delayed=3, in_flight=1), now_ms=NOON_MS)
    assert found.summary == "3 delayed until 12:00:01 UTC, 1 in flight until 12:00:05 UTC"


def test_visible_messages_are_counted_beside_blocked_ones() -> None:
    found = explain(situation(Obstacles(available=1), visible=1), now_ms=NOON_MS)
    assert found.summary == "0 delayed, 1 visible"
    lock = GroupLock(partition=0, group="g1", offset=0, until_ms=NOON_MS + 60_000, blocked=2)
    obstacles = Obstacles(available=1, blocked=2, locked_groups=1, locks=(lock,))
    found = explain(situation(obstacles, visible=3), now_ms=NOON_MS)
    assert found.summary.endswith("0 delayed, 1 more visible")


def test_messages_that_used_up_their_attempts_go_to_the_dead_letter_queue() -> None:
    given = msgspec.structs.replace(
        situation(Obstacles(exhausted=1), visible=1, dead_lettered=4),
        attempts_max=3,
        dead_letter_queue="dead",
    )
    assert not explain(given, now_ms=NOON_MS).is_delivering
    exhausted = reason(given, "exhausted")
    assert exhausted.text == (
        "1 message received 3 times, the maximum: will be moved to the dead-letter queue dead"
    )
    assert reason(given, "dead_lettered").queue == "dead"
    assert "4 messages moved to the dead-letter queue dead" in (reason(given, "dead_lettered").text)


def test_at_the_in_flight_limit_nothing_is_delivered_although_messages_are_available() -> None:
    given = situation(Obstacles(available=5, in_flight_max=10), visible=5, in_flight=10)
    found = explain(given, now_ms=NOON_MS)
    assert not found.is_delivering
    assert "10 of 10" in found.summary


def test_a_policy_and_a_limit_stand_before_everything_else() -> None:
    given = msgspec.structs.replace(
        situation(Obstacles(available=5), visible=5),
        denied="ann may not",
        throttled_by="tenant",
        throttled_ms=1_500,
    )
    found = explain(given, now_ms=NOON_MS)
    assert not found.is_delivering
    assert found.summary == "ann may not"
    assert [each.code for each in found.reasons[:2]] == ["denied", "throttled"]
    assert found.reasons[1].until_ms == NOON_MS + 1_500


def test_a_queue_that_cannot_be_reached_says_why() -> None:
    found = explain(Situation(unreachable="partition 2 has no leader"), now_ms=NOON_MS)
    assert found.summary == "partition 2 has no leader"
    assert not found.is_delivering


def test_messages_beyond_the_read_ahead_wait_when_it_is_full() -> None:
    full = Obstacles(blocked=10, is_read_ahead_full=True, locked_groups=1, locks=[LOCK])
    assert not explain(situation(full, visible=1_000, in_flight=1), now_ms=NOON_MS).is_delivering
    given = situation(full, visible=1_000, in_flight=1)
    assert reason(given, "read_ahead_full").count == 990
    open_ = msgspec.structs.replace(full, is_read_ahead_full=False)
    assert explain(situation(open_, visible=1_000, in_flight=1), now_ms=NOON_MS).is_delivering


def test_a_node_of_an_older_version_tells_counts_only() -> None:
    given = Situation(stats=QueueStats(visible=2))
    found = explain(given, now_ms=NOON_MS)
    assert "older_version" in {each.code for each in found.reasons}


LOCK = GroupLock(partition=0, group="g", offset=0, until_ms=NOON_MS, blocked=10)

counts = st.integers(0, 5)
times = st.none() | st.integers(NOON_MS, NOON_MS + 43_200_000)
lock = st.builds(
    GroupLock,
    partition=st.integers(0, 3),
    group=st.sampled_from(["a", "b", "ü"]),
    offset=st.integers(0, 99),
    until_ms=st.integers(NOON_MS, NOON_MS + 43_200_000),
    blocked=st.integers(1, 9),
)


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    locks = draw(st.lists(lock, max_size=15))
    blocked = sum(each.blocked for each in locks)
    obstacles = Obstacles(
        available=draw(counts),
        blocked=blocked,
        locked_groups=len(locks),
        locks=worst_locks(locks),
        exhausted=draw(counts),
        expired=draw(counts),
        lease_ends_ms=draw(times),
        delay_ends_ms=draw(times),
        is_read_ahead_full=draw(st.booleans()),
        uncommitted=draw(counts),
        in_flight_max=draw(st.sampled_from([3, 120_000])),
    )
    known = obstacles.available + blocked + obstacles.exhausted + obstacles.expired
    stats = QueueStats(
        visible=known + draw(counts),
        in_flight=draw(counts) + len(locks),
        delayed=draw(counts),
        dead_lettered=draw(counts),
        obstacles=obstacles,
    )
    return Situation(
        stats=stats,
        denied=draw(st.sampled_from(["", "ann may not"])),
        throttled_by=draw(st.sampled_from(["", "tenant"])),
        throttled_ms=draw(counts),
        attempts_max=draw(st.none() | st.integers(1, 9)),
        dead_letter_queue=draw(st.sampled_from([None, "dead"])),
    )


@given(given=situations())
def test_the_reasons_account_for_every_message(given: Situation) -> None:
    found = explain(given, now_ms=NOON_MS)
    stats = given.stats
    assert stats is not None
    assert found.reasons, "a queue always says something"
    count: Counter[str] = Counter()
    for each in found.reasons:
        count[each.code] += each.count or 0
        assert each.text == " ".join(each.text.split())
    visible = (
        "available",
        "blocked",
        "exhausted",
        "expired",
        "unexamined",
        "read_ahead_full",
    )
    assert sum(count[code] for code in visible) == stats.visible
    assert count["in_flight"] == stats.in_flight
    assert count["delayed"] == stats.delayed
    codes = {each.code for each in found.reasons}
    is_empty = not (stats.visible or stats.in_flight or stats.delayed)
    assert ("empty" in codes) == is_empty
    is_free = count["available"] > 0 or count["unexamined"] > 0
    assert found.is_delivering == (is_free and not codes & GATES)
    assert "\n" not in found.summary


@given(parts=st.lists(situations(), min_size=1, max_size=4))
def test_obstacles_of_several_nodes_add_up(parts: list[Situation]) -> None:
    obstacles = [each.stats.obstacles for each in parts if each.stats is not None]
    known = [each for each in obstacles if each is not None]
    joined = join_obstacles(known)
    for name in ("available", "blocked", "locked_groups", "exhausted", "expired", "uncommitted"):
        assert getattr(joined, name) == sum(getattr(each, name) for each in known)
    assert len(joined.locks) <= LOCKS_SHOWN_MAX
    ends = [each.lease_ends_ms for each in known if each.lease_ends_ms is not None]
    assert joined.lease_ends_ms == (min(ends) if ends else None)
