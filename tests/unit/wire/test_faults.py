import inspect

import pytest

from penstock.frontend.kafka.errors import api_error
from penstock.metadata.etcd.links import AnswerTooLarge
from penstock.metadata.store import StoreOutcomeUnknown, StoreUnreachable
from penstock.model import errors
from penstock.wire.aws.faults import FAULTS, Fault, fault, fault_of, invalid_value, missing
from penstock.wire.internal.faults import DeadlineExceeded, OutcomeUnknown, Unreachable


@pytest.mark.parametrize(
    ("name", "code", "status"),
    [
        ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", 400),
        ("QueueNameExists", "QueueAlreadyExists", 400),
        ("PurgeQueueInProgress", "AWS.SimpleQueueService.PurgeQueueInProgress", 403),
        ("EmptyBatchRequest", "AWS.SimpleQueueService.EmptyBatchRequest", 400),
        ("OverLimit", "OverLimit", 403),
        ("RequestThrottled", "RequestThrottled", 403),
        ("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404),
        ("ResourceNotFoundException", "ResourceNotFoundException", 404),
        ("KmsOptInRequired", "KMS.OptInRequired", 403),
        ("KmsNotFound", "KMS.NotFoundException", 400),
        ("InvalidParameterValue", "InvalidParameterValue", 400),
        ("SignatureDoesNotMatch", "SignatureDoesNotMatch", 403),
        ("IncompleteSignature", "IncompleteSignature", 400),
        ("InternalFailure", "InternalFailure", 500),
        ("ServiceUnavailable", "ServiceUnavailable", 503),
    ],
)
def test_a_fault_has_the_code_and_status_clients_expect(name: str, code: str, status: int) -> None:
    refusal = fault(name, "because")
    assert (refusal.code, refusal.status, refusal.message) == (code, status, "because")
    assert refusal.is_sender == (status < 500)


def test_unmodelled_faults_go_by_their_code_and_carry_the_longer_shape() -> None:
    assert fault("InvalidParameterValue").shape == "InvalidParameterValueException"
    assert fault("MissingParameter").shape == "MissingRequiredParameterException"


def test_every_fault_has_a_text_of_its_own() -> None:
    assert all(spec.message for spec in FAULTS.values())


@pytest.mark.parametrize(
    ("error", "shape", "status", "message"),
    [
        (
            errors.TopicNotFound("x"),
            "QueueDoesNotExist",
            400,
            "The specified queue does not exist.",
        ),
        (
            errors.MissingParameter("Label"),
            "MissingRequiredParameterException",
            400,
            "The request must contain the parameter Label.",
        ),
        (errors.InvalidRequest("no"), "InvalidParameterValueException", 400, "no"),
        (errors.InvalidMessage("odd"), "InvalidMessageContents", 400, "odd"),
        (errors.TopicExists("differs"), "QueueNameExists", 400, "differs"),
        (errors.PurgeInProgress("soon"), "PurgeQueueInProgress", 403, "soon"),
        (errors.InFlightLimit("full"), "OverLimit", 403, "full"),
        (
            errors.InvalidReceipt(),
            "ReceiptHandleIsInvalid",
            404,
            "The input receipt handle is invalid.",
        ),
    ],
)
def test_our_errors_become_faults(
    error: errors.PenstockError, shape: str, status: int, message: str
) -> None:
    refusal = fault_of(error)
    assert (refusal.shape, refusal.status, refusal.message) == (shape, status, message)


def test_a_new_leaf_is_answered_as_its_parent_is() -> None:
    class LabelTaken(errors.TopicExists):
        pass

    assert fault_of(LabelTaken("again")).shape == "QueueNameExists"


def test_every_error_of_the_tree_has_a_fault() -> None:
    classes = [
        one
        for _, one in inspect.getmembers(errors, inspect.isclass)
        if issubclass(one, errors.PenstockError)
    ]
    assert len(classes) > 15
    for one in classes:
        error = one.__new__(one)
        if isinstance(error, errors.Throttled):
            error.retry_after_ms = 1
        assert isinstance(fault_of(error), Fault)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (errors.ExpiredReceipt("ours"), "The receipt handle has expired."),
        (
            errors.NotLeased("ours"),
            "Message does not exist or is not available for visibility timeout change.",
        ),
    ],
)
def test_a_refused_receipt_is_named_in_the_answer(error: errors.PenstockError, reason: str) -> None:
    refusal = fault_of(error, receipt="AQEB")
    assert refusal.code == "InvalidParameterValue"
    assert refusal.message == (
        f"Value AQEB for parameter ReceiptHandle is invalid. Reason: {reason}"
    )


def test_a_receipt_that_is_none_is_named_in_the_answer() -> None:
    refusal = fault_of(errors.InvalidReceipt("ours"), receipt="AQEB")
    assert (refusal.code, refusal.status) == ("ReceiptHandleIsInvalid", 404)
    assert refusal.message == 'The input receipt handle "AQEB" is not a valid receipt handle.'


def test_a_fault_shows_what_it_is() -> None:
    assert repr(fault("OverLimit", "full")) == "Fault('OverLimit', 403, 'full')"


def test_throttling_says_when_to_come_back_in_whole_seconds() -> None:
    assert fault_of(errors.Throttled("slow", retry_after_ms=1_001)).retry_after_s == 2
    assert fault_of(errors.Throttled("slow", retry_after_ms=1)).retry_after_s == 1


@pytest.mark.parametrize(
    "error",
    [
        errors.Draining("/data/secret"),
        errors.Damaged("/data/secret", 7, "crc"),
    ],
)
def test_trouble_of_ours_is_a_503_that_shows_no_path(error: errors.PenstockError) -> None:
    refusal = fault_of(error)
    assert (refusal.status, refusal.is_sender) == (503, False)
    assert "/data" not in refusal.message


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Unreachable("n2 at 10.0.0.5:9400: refused"), "Another node is not reachable; retry."),
        (OutcomeUnknown("n2 at 10.0.0.5:9400: lost"), "Outcome unknown: "),
        (DeadlineExceeded("n2 at 10.0.0.5:9400: late"), "Outcome unknown: "),
        (
            StoreUnreachable("etcd at 10.0.0.5:2379: refused"),
            "The metadata store is not reachable; retry.",
        ),
        (StoreOutcomeUnknown("etcd at 10.0.0.5:2379: lost"), "The metadata store is not reachable"),
        (
            AnswerTooLarge("etcd at 10.0.0.5:2379: large"),
            "The metadata store is not reachable",
        ),
    ],
)
def test_no_client_is_told_an_address_of_ours(error: errors.PenstockError, told: str) -> None:
    for refusal in (fault_of(error), api_error(error)):
        assert refusal.message.startswith(told)
        assert "10.0.0.5" not in refusal.message
    assert "10.0.0.5" in str(error), "the log has it"


def test_a_full_disk_is_told_in_its_own_words() -> None:
    refusal = fault_of(errors.DiskFull("The disk is full: 7 B free."))
    assert (refusal.status, refusal.message) == (503, "The disk is full: 7 B free.")
    assert refusal.retry_after_s == 5


def test_long_values_are_cut_before_they_are_echoed() -> None:
    assert len(invalid_value("x" * 100_000, "Label", "too long").message) < 2_000
    assert missing("Label").code == "MissingParameter"
