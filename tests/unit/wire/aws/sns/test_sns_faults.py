import inspect

import pytest
from tests.unit.wire.aws.sns.sns_oracle import MODEL

from penstock.model import errors
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns import faults
from penstock.wire.aws.sns.faults import FAULTS, fault, fault_of

MODELLED = {
    shape.metadata["error"]["code"]: shape.metadata["error"]
    for shape in map(MODEL.shape_for, MODEL.shape_names)
    if "error" in shape.metadata
}


@pytest.mark.parametrize("code", sorted(MODELLED))
def test_every_modelled_error_has_its_code_and_status(code: str) -> None:
    model, refusal = MODELLED[code], fault(code)
    assert (refusal.code, refusal.status) == (code, model["httpStatusCode"])
    assert refusal.is_sender == bool(model.get("senderFault"))
    assert refusal.message


def test_the_errors_that_the_model_lacks_are_common_to_all_services() -> None:
    assert FAULTS.keys() - MODELLED.keys() == {
        "InvalidAction", "ServiceUnavailable", "ValidationError",
        "VerificationException",  # the model has it without a code: its name is the code
    }  # fmt: skip


@pytest.mark.parametrize(
    ("refusal", "code", "status", "message"),
    [
        (faults.invalid("TopicArn"), "InvalidParameter", 400, "Invalid parameter: TopicArn"),
        (
            faults.invalid("Attributes", "Unknown attribute X"),
            "InvalidParameter", 400,
            "Invalid parameter: Attributes Reason: Unknown attribute X",
        ),
        (
            faults.no_value("SubscriptionArn"),
            "InvalidParameter", 400,
            "Invalid parameter: SubscriptionArn Reason: no value for required parameter",
        ),
        (
            faults.null_value("attributes"),
            "ValidationError", 400,
            ("1 validation error detected: Value null at 'attributes' failed to satisfy "
             "constraint: Member must not be null"),
        ),
        (faults.topic_not_found(), "NotFound", 404, "Topic does not exist"),
        (faults.subscription_not_found(), "NotFound", 404, "Subscription does not exist"),
        (fault("ResourceNotFound"), "ResourceNotFound", 404, "Resource does not exist"),
        (
            fault("TagLimitExceeded"),
            "TagLimitExceeded", 400,
            "Could not complete request: tag quota of per resource exceeded",
        ),
        (
            faults.duplicate_tags(),
            "InvalidParameter", 400,
            "Invalid parameter: Duplicated keys are not allowed.",
        ),
        (fault("EndpointDisabled"), "EndpointDisabled", 400, "Endpoint is disabled"),
        (
            fault("TooManyEntriesInBatchRequest"),
            "TooManyEntriesInBatchRequest", 400,
            "The batch request contains more entries than permissible.",
        ),
        (
            fault("BatchEntryIdsNotDistinct"),
            "BatchEntryIdsNotDistinct", 400,
            "Two or more batch entries in the request have the same Id.",
        ),
        (
            fault("BatchRequestTooLong"),
            "BatchRequestTooLong", 400,
            "The length of all the messages put together is more than the limit.",
        ),
    ],
)  # fmt: skip
def test_shared_errors_have_the_texts_of_sns(
    refusal: Fault, code: str, status: int, message: str
) -> None:
    assert (refusal.code, refusal.status, refusal.message) == (code, status, message)
    assert refusal.blame == "Sender"


@pytest.mark.parametrize(
    ("error", "code", "status", "message"),
    [
        (errors.TopicNotFound("x"), "NotFound", 404, "Topic does not exist"),
        (errors.NotFound("no such key"), "NotFound", 404, "no such key"),
        (
            errors.MissingParameter("TopicArn"),
            "InvalidParameter", 400,
            "Invalid parameter: TopicArn Reason: no value for required parameter",
        ),
        (errors.InvalidRequest("odd"), "InvalidParameter", 400, "odd"),
        (errors.InvalidMessage("odd"), "InvalidParameter", 400, "odd"),
        (errors.TopicExists("differs"), "InvalidParameter", 400, "differs"),
        (errors.QuotaExceeded("full"), "TopicLimitExceeded", 403, "full"),
        (errors.AccessDenied("no"), "AuthorizationError", 403, "no"),
        (errors.Throttled("slow"), "Throttled", 429, "slow"),
        (errors.DiskFull("The disk is full."), "ServiceUnavailable", 503, "The disk is full."),
        (errors.Draining("/data/x"), "ServiceUnavailable", 503, "The server is stopping."),
        (errors.NotLeader("t-0"), "ServiceUnavailable", 503, "t-0 is not led by this node."),
        (
            errors.Damaged("/data/x", 7, "crc"),
            "ServiceUnavailable", 503,
            "The topic's storage is damaged.",
        ),
        (
            errors.VersionConflict("row 7"),
            "ServiceUnavailable", 503,
            "The resource is being changed by another request.",
        ),
        (
            errors.PenstockError("/data/x"),
            "InternalError", 500,
            "The request failed because of an unknown error or failure.",
        ),
    ],
)  # fmt: skip
def test_our_errors_become_faults(
    error: errors.PenstockError, code: str, status: int, message: str
) -> None:
    refusal = fault_of(error)
    assert (refusal.code, refusal.status, refusal.message) == (code, status, message)


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
        if isinstance(error, errors.MissingParameter):
            error.name = "X"
        refusal = fault_of(error)
        assert refusal.message


def test_throttling_says_when_to_retry_in_whole_seconds() -> None:
    refusal = fault_of(errors.Throttled("slow", retry_after_ms=1_001))
    assert refusal.headers == (("retry-after", "2"),)


def test_long_values_are_cut_in_error_texts() -> None:
    assert len(faults.invalid("x" * 100_000, "y" * 100_000).message) < 2_200
    assert len(faults.null_value("x" * 100_000).message) < 1_200
