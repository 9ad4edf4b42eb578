"""Every struct is held against the service model of the vendor's SDK, member by member."""

from typing import Any

import msgspec
import pytest
from botocore.model import Shape as ModelShape
from tests.unit.wire.aws_oracle import JSON_MODEL

from penstock.wire.aws import shapes
from penstock.wire.aws.faults import FAULTS

KINDS: dict[type, tuple[str, ...]] = {
    msgspec.inspect.StrType: ("string",),
    msgspec.inspect.IntType: ("integer", "long"),
    msgspec.inspect.BoolType: ("boolean",),
    msgspec.inspect.BytesType: ("blob",),
    msgspec.inspect.ListType: ("list",),
    msgspec.inspect.DictType: ("map",),
    msgspec.inspect.StructType: ("structure",),
}


def present(info: Any) -> Any:
    if not isinstance(info, msgspec.inspect.UnionType):
        return info
    rest = [one for one in info.types if not isinstance(one, msgspec.inspect.NoneType)]
    return rest[0] if len(rest) == 1 else msgspec.inspect.StrType()


def compare(info: Any, model: ModelShape, path: str) -> None:
    info = present(info)
    assert model.type_name in KINDS[type(info)], path
    if model.type_name == "list":
        compare(info.item_type, model.member, path + "[]")
    elif model.type_name == "map":
        compare(info.value_type, model.value, path + "{}")
    elif model.type_name == "structure":
        ours = {field.encode_name: field.type for field in info.fields}
        assert set(ours) == set(model.members), path
        for name, member in model.members.items():
            compare(ours[name], member, f"{path}.{name}")


def test_the_operations_are_those_of_the_service_model() -> None:
    assert sorted(shapes.OPERATIONS) == sorted(JSON_MODEL.operation_names)


@pytest.mark.parametrize("name", sorted(shapes.OPERATIONS))
def test_requests_and_replies_have_the_members_of_the_service_model(name: str) -> None:
    operation = shapes.OPERATIONS[name]
    model = JSON_MODEL.operation_model(name)
    compare(msgspec.inspect.type_info(operation.request), model.input_shape, name)
    assert issubclass(operation.request, shapes.QueueRequest) == (
        "QueueUrl" in model.input_shape.members
    )
    if model.output_shape is None:
        assert operation.reply is None
    else:
        compare(msgspec.inspect.type_info(operation.reply), model.output_shape, name)


@pytest.mark.parametrize("name", sorted(shapes.OPERATIONS))
def test_every_request_field_may_be_absent(name: str) -> None:
    request = shapes.OPERATIONS[name].request()
    assert all(getattr(request, field) is None for field in request.__struct_fields__)


def test_every_modelled_error_has_a_fault() -> None:
    modelled = {
        name
        for name in JSON_MODEL.shape_names
        if JSON_MODEL.shape_for(name).metadata.get("exception")
    }
    assert len(modelled) == 28
    assert modelled <= set(FAULTS)


def test_numbers_and_booleans_among_queue_attributes_become_text() -> None:
    body = b'{"Attributes": {"a": 30, "b": true, "c": "x", "d": false, "e": 1.0, "f": 1.5}}'
    request = msgspec.json.decode(body, type=shapes.CreateQueueRequest)
    assert request.attributes == {
        "a": "30", "b": "true", "c": "x", "d": "false", "e": "1", "f": "1.5"
    }  # fmt: skip
