from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.frontend.aws import context
from penstock.frontend.aws.context import Rotation, sequence_number
from penstock.model.topic import Kind, Topic, partition_of_group


def topic(topic_id: str, partition_count: int) -> Topic:
    return Topic(
        topic_id=topic_id,
        account="000000000000",
        region="us-east-1",
        name="q",
        kind=Kind.STANDARD,
        partition_count=partition_count,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"k",
    )


@pytest.mark.parametrize(
    ("group", "partition_count", "partition"),
    [
        ("123456789", 64, 0xCBF43926 % 64),  # the published check value of CRC-32
        ("g1", 4, 1),
        ("g2", 4, 3),
        ("customer-42", 64, 21),
        ("✓", 64, 52),
        ("anything", 1, 0),
    ],
)
def test_a_groups_partition_is_a_contract_with_the_disk(
    group: str, partition_count: int, partition: int
) -> None:
    assert partition_of_group(group, partition_count) == partition


@given(st.text(min_size=1, max_size=128), st.integers(1, 64))
def test_a_group_always_meets_an_existing_partition(group: str, partition_count: int) -> None:
    assert 0 <= partition_of_group(group, partition_count) < partition_count


def test_groups_spread_over_the_partitions() -> None:
    counts = Counter(partition_of_group(f"group-{number}", 8) for number in range(8_000))
    assert len(counts) == 8
    assert min(counts.values()) > 800


def test_standard_sends_take_turns_whatever_other_queues_do() -> None:
    rotation = Rotation()
    one, two = topic("one", 3), topic("two", 2)
    turns = [(rotation.next(one), rotation.next(two)) for _ in range(6)]
    assert [turn[0] for turn in turns] == [0, 1, 2, 0, 1, 2]
    assert [turn[1] for turn in turns] == [0, 1, 0, 1, 0, 1]


def test_the_memory_of_turns_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "ROTATIONS_MAX", 10)
    spread = Rotation()
    for number in range(100):
        assert spread.next(topic(str(number), 2)) == 0
        assert len(spread._next) <= 10


@given(st.integers(0, 2**53), st.integers(0, 63))
def test_a_sequence_number_has_twenty_digits_and_rises_with_the_offset(
    offset: int, partition: int
) -> None:
    number = sequence_number(partition, offset)
    assert len(number) == 20
    assert number.isdigit()
    assert number < sequence_number(partition, offset + 1)
