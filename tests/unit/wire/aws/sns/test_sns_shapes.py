"""Every struct is compared with the service model of the vendor's SDK, member by member."""

import msgspec
import pytest
from tests.unit.wire.aws.sns.sns_oracle import MODEL
from tests.unit.wire.test_shapes import compare

from penstock.wire.aws import shapes as sqs_shapes
from penstock.wire.aws.sns import book_shapes
from penstock.wire.aws.sns import shapes as topic_shapes
from penstock.wire.aws.sns.protocol import OPERATIONS
from penstock.wire.aws.sns.shapes import SnsReply, SnsRequest

NAMES = sorted(OPERATIONS)


def test_the_operations_are_those_of_the_service_model() -> None:
    assert len(topic_shapes.OPERATIONS) == len(book_shapes.OPERATIONS) == 21
    assert sorted(OPERATIONS) == sorted(MODEL.operation_names)


@pytest.mark.parametrize("name", NAMES)
def test_requests_and_replies_have_the_members_of_the_service_model(name: str) -> None:
    operation, model = OPERATIONS[name], MODEL.operation_model(name)
    compare(msgspec.inspect.type_info(operation.request), model.input_shape, name)
    if model.output_shape is None:
        assert operation.reply is None
    elif name == "ListOriginationNumbers":  # the list is always empty: its elements have no struct
        fields = msgspec.inspect.type_info(operation.reply).fields  # type: ignore[attr-defined]
        assert {field.encode_name for field in fields} == set(model.output_shape.members)
    else:
        compare(msgspec.inspect.type_info(operation.reply), model.output_shape, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_request_field_may_be_absent(name: str) -> None:
    request = OPERATIONS[name].request()
    assert all(getattr(request, field) is None for field in request.__struct_fields__)


def test_operations_of_the_same_name_are_different_in_sqs() -> None:
    both = OPERATIONS.keys() & sqs_shapes.OPERATIONS.keys()
    assert both == {"AddPermission", "RemovePermission"}
    for name in both:
        assert OPERATIONS[name].request is not sqs_shapes.OPERATIONS[name].request
        assert not issubclass(sqs_shapes.OPERATIONS[name].request, SnsRequest)


def test_operations_without_a_result_are_those_of_the_design() -> None:
    without = {name for name, operation in OPERATIONS.items() if operation.reply is None}
    assert without == {
        "DeleteTopic", "SetTopicAttributes", "Unsubscribe", "SetSubscriptionAttributes",
        "AddPermission", "RemovePermission", "PutDataProtectionPolicy", "DeleteEndpoint",
        "DeletePlatformApplication", "SetEndpointAttributes", "SetPlatformApplicationAttributes",
    }  # fmt: skip
    empty = {
        name
        for name, operation in OPERATIONS.items()
        if operation.reply is not None and not operation.reply.__struct_fields__
    }
    assert empty == {
        "TagResource", "UntagResource", "OptInPhoneNumber", "SetSMSAttributes",
        "CreateSMSSandboxPhoneNumber", "DeleteSMSSandboxPhoneNumber", "VerifySMSSandboxPhoneNumber",
    }  # fmt: skip
    assert all(
        each.reply is None or issubclass(each.reply, SnsReply) for each in OPERATIONS.values()
    )
