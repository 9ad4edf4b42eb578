from dataclasses import dataclass

import pytest

from penstock.frontend.aws.context import check_entries, failed
from penstock.frontend.aws.sqs.actions.send import check_total
from penstock.wire.aws.faults import Fault, fault


@dataclass
class Entry:
    id: str | None


def check(*ids: str | None) -> None:
    check_entries([Entry(one) for one in ids], entry_name="AnEntry")


def test_one_to_ten_distinct_ids_pass() -> None:
    check("a")
    check(*"abcdefghij")
    check("A-z_09", "a" * 80)


@pytest.mark.parametrize(
    ("ids", "shape", "message"),
    [
        ((), "EmptyBatchRequest", "There should be at least one AnEntry in the request."),
        (
            tuple("abcdefghijk"),
            "TooManyEntriesInBatchRequest",
            "Maximum number of entries per request are 10. You have sent 11.",
        ),
        (("a", "b", "a"), "BatchEntryIdsNotDistinct", "Id a repeated."),
        (("",), "InvalidBatchEntryId", None),
        (("a b",), "InvalidBatchEntryId", None),
        (("ä",), "InvalidBatchEntryId", None),
        (("a\n",), "InvalidBatchEntryId", None),
        (("a" * 81,), "InvalidBatchEntryId", None),
        ((None,), "MissingRequiredParameterException", None),
    ],
)
def test_what_refuses_a_whole_call(
    ids: tuple[str | None, ...], shape: str, message: str | None
) -> None:
    with pytest.raises(Fault) as raised:
        check(*ids)
    assert raised.value.shape == shape
    assert message is None or raised.value.message == message


def test_the_total_may_reach_a_mebibyte_and_no_more() -> None:
    check_total(1_048_576)
    with pytest.raises(Fault) as raised:
        check_total(1_048_577)
    assert raised.value.shape == "BatchRequestTooLong"
    assert "1048577" in raised.value.message


def test_a_failed_entry_carries_the_query_code_and_who_is_to_blame() -> None:
    entry = failed(Entry("a"), fault("QueueDoesNotExist"))
    assert entry.code == "AWS.SimpleQueueService.NonExistentQueue"
    assert entry.sender_fault
    assert not failed(Entry("b"), fault("ServiceUnavailable")).sender_fault
