import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.frontend.aws.sqs.actions.queues import page
from penstock.model.topic import Kind, Topic
from penstock.wire.aws.faults import Fault


def topics(count: int) -> list[Topic]:
    return [
        Topic(
            topic_id=str(number),
            account="000000000000",
            region="us-east-1",
            name=f"q{number:05d}",
            kind=Kind.STANDARD,
            partition_count=1,
            created_at_ms=0,
            modified_at_ms=0,
            receipt_key=b"",
        )
        for number in range(count)
    ]


@given(st.integers(0, 60), st.integers(1, 20))
def test_pages_together_are_everything_once_and_in_order(count: int, size: int) -> None:
    everything = topics(count)
    seen: list[Topic] = []
    token: str | None = None
    while True:
        shown, token = page(everything, next_token=token, max_results=size)
        assert len(shown) <= size
        seen += shown
        if token is None:
            break
    assert seen == everything


def test_without_a_size_there_is_one_page_of_a_thousand() -> None:
    shown, token = page(topics(1_001), next_token=None, max_results=None)
    assert len(shown) == 1_000
    assert token is None


def test_a_queue_deleted_between_pages_shifts_nothing() -> None:
    everything = topics(4)
    _, token = page(everything, next_token=None, max_results=2)
    shown, _ = page([everything[0], *everything[2:]], next_token=token, max_results=2)
    assert shown == everything[2:]


@pytest.mark.parametrize("size", [0, -1, 1_001])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(Fault, match="MaxResults"):
        page([], next_token=None, max_results=size)


@pytest.mark.parametrize(
    "token", ["garbage", "ä", "====", base64.b64encode(b"q1").decode(), "MTo="]
)
def test_a_token_we_did_not_make_is_refused(token: str) -> None:
    with pytest.raises(Fault) as raised:
        page([], next_token=token, max_results=1)
    assert raised.value.code == "InvalidParameterValue"
