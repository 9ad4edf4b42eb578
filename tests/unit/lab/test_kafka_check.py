"""Each thing a Kafka client must never see is counted, and what it may see is not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab import kafka_ledger as K  # noqa: N812  (every event class is used)
from tests.lab.kafka_check import KafkaHistory, check_kafka

T = "topic"


def good(count: int = 5) -> list[K.AnyEvent]:
    numbers = range(count)
    return [
        K.Sent(1, T, [(0, n) for n in numbers]),
        K.Acked(2, T, [(0, n, n, 1) for n in numbers]),
        K.Marks(3, T, [(0, count)], 2),
        K.Read(4, T, "m", 1, [(0, n, n) for n in numbers]),
        K.Committed(5, T, [(0, count)]),
        K.Stands(6, T, [(0, n, n) for n in numbers]),
        K.Ended(7, T, [(0, count)], []),
    ]


def counted(events: list[K.AnyEvent]) -> dict[str, int]:
    counts, first = check_kafka(KafkaHistory(events))
    assert set(first) == {name for name, count in counts.items() if count}
    return {name: count for name, count in counts.items() if count}


def test_a_run_without_faults_is_clean() -> None:
    assert counted(good()) == {}


def test_a_record_without_an_answer_may_be_there_or_not() -> None:
    events = good()
    events.append(K.Sent(1, T, [(0, 5), (0, 6)]))
    events.append(K.Unknown(2, T, [(0, 5), (0, 6)], "gone"))
    events.append(K.Stands(6, T, [(0, 5, 6)]))
    events.append(K.Read(6, T, "m", 1, [(0, 5, 6)]))
    assert counted(events) == {}


def test_of_a_queue_only_its_watermarks_are_known_and_they_may_not_go_back() -> None:
    marks: list[K.AnyEvent] = [K.Marks(3, "q", [(0, 7)], 2), K.Marks(5, "q", [(0, 9)], 4)]
    assert counted([*good(), *marks]) == {}
    assert KafkaHistory(marks).highest_marks() == {("q", 0): 9}
    assert counted([*good(), *marks, K.Marks(7, "q", [(0, 8)], 6)]) == {"HWBACK": 1}


def test_what_could_not_be_read_at_the_end_is_stuck_and_not_lost() -> None:
    events = [each for each in good() if not isinstance(each, K.Stands | K.Ended)]
    assert counted([*events, K.Ended(7, T, [(0, 5)], [], [0])]) == {"LOST": 5}
    assert counted([*events, K.Ended(7, T, [(0, 5)], ["no watermark"], [])]) == {"STUCK": 1}


def test_reading_again_after_a_rebalance_is_no_fault() -> None:
    assert counted([*good(), K.Read(8, T, "m", 2, [(0, 3, 3), (0, 4, 4)])]) == {}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (K.Acked(2, T, [(0, 9, 9, 1)]), {"LOST"}),
        (K.Stands(6, T, [(0, 5, 77)]), {"PHANTOM"}),
        (K.Read(6, T, "n", 1, [(0, 0, 3)]), {"CONFLICT"}),
        (K.Stands(6, T, [(0, 5, 4)]), {"DUP"}),
        (K.Read(6, T, "n", 1, [(0, 0, 0), (0, 2, 2)]), {"SKIP"}),
        (K.Read(6, T, "n", 1, [(0, 2, 2), (0, 1, 1)]), {"BACK"}),
        (K.Committed(5, T, [(0, 99)]), {"BACK"}),
        (K.Marks(9, T, [(0, 3)], 8), {"HWBACK"}),
        (K.Ended(9, T, [], ["no end"]), {"STUCK"}),
    ],
)
def test_what_must_not_happen_is_counted(extra: K.AnyEvent, expected: set[str]) -> None:
    assert set(counted([*good(), extra])) == expected


def test_a_later_record_in_front_of_an_earlier_one_is_counted() -> None:
    events: list[K.AnyEvent] = [
        K.Sent(1, T, [(0, 0), (0, 1)]),
        K.Stands(6, T, [(0, 0, 1), (0, 1, 0)]),
        K.Read(6, T, "m", 1, [(0, 0, 1), (0, 1, 0)]),
        K.Ended(7, T, [], []),
    ]
    assert set(counted(events)) == {"REORDER"}


def test_a_record_the_group_has_read_past_is_lost_and_one_it_has_not_reached_is_not() -> None:
    events = [*good()[:3], *good()[4:]]
    assert counted([*events, K.Read(4, T, "m", 1, [(0, 0, 0), (0, 1, 1)])]) == {}
    past = [(0, 0, 0), (0, 1, 1), (0, 4, 4)]
    assert set(counted([*events, K.Read(4, T, "m", 1, past)])) == {"LOST", "SKIP"}


def test_a_process_that_did_not_end_is_counted() -> None:
    assert set(counted(good()[:-1])) == {"STUCK"}


def test_a_watermark_asked_for_before_a_higher_one_was_told_may_be_lower() -> None:
    events = [*good(), K.Marks(10, T, [(0, 9)], 8), K.Marks(11, T, [(0, 7)], 9)]
    assert counted(events) == {}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), max_size=5)))
def test_what_is_written_is_read_in_order_of_time(bursts: list[list[tuple[int, int]]]) -> None:
    events: list[K.AnyEvent] = [K.Sent(at, T, burst) for at, burst in enumerate(bursts)]
    lines = [msgspec.json.encode(event) + b"\n" for event in events]
    assert K.merged([b"".join(lines[1::2]), b"".join(lines[::2])]) == events
