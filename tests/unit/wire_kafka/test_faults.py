"""Our errors as Kafka codes."""

import pytest

from penstock.model import errors
from penstock.wire.kafka.faults import CODES, ErrorCode, code_of


def every(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(leaf for child in kind.__subclasses__() for leaf in every(child))]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.TopicNotFound("t"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (errors.TopicExists("t"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (errors.DiskFull("full"), ErrorCode.KAFKA_STORAGE_ERROR),
        (errors.Damaged("f", 1, "r"), ErrorCode.KAFKA_STORAGE_ERROR),
        (errors.Throttled("later"), ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        (errors.InFlightLimit("many"), ErrorCode.THROTTLING_QUOTA_EXCEEDED),
        (errors.Draining("bye"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (errors.MissingParameter("x"), ErrorCode.INVALID_REQUEST),
        (errors.NotLeased("gone"), ErrorCode.INVALID_RECORD_STATE),
        (errors.PenstockError("?"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=lambda each: type(each).__name__,
)
def test_each_error_has_the_code_that_clients_act_on(
    error: errors.PenstockError, code: ErrorCode
) -> None:
    assert code_of(error) is code


def test_a_new_leaf_of_the_tree_takes_its_parents_code() -> None:
    class Busy(errors.DiskFull):
        pass

    assert code_of(Busy("x")) is ErrorCode.KAFKA_STORAGE_ERROR


def test_errors_that_pass_by_themselves_are_retriable_and_the_callers_faults_are_not() -> None:
    for kind in every(errors.Overloaded):
        if kind in CODES:
            assert CODES[kind].is_retriable, kind
    for kind in every(errors.InvalidRequest):
        if kind in CODES:
            assert not CODES[kind].is_retriable, kind


def test_codes_are_numbers_with_a_text() -> None:
    assert ErrorCode(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert int(ErrorCode.NONE) == 0
    assert all(each.message for each in ErrorCode if each)
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.is_retriable
    assert not ErrorCode.PRODUCER_FENCED.is_retriable
