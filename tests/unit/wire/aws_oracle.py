"""The vendor's own SDK as the judge of our wire formats, offline: its model, serializers, parsers.

The model it ships describes only JSON today, so the names that the query protocol gives to lists
and maps are put back in here, as older releases of the same model had them."""

import copy
from typing import Any
from urllib.parse import urlencode

from botocore.awsrequest import HeadersDict
from botocore.loaders import Loader
from botocore.model import ServiceModel, Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import strategies as st

_RAW: dict[str, Any] = Loader().load_service_model("sqs", "service-2")

LIST_ELEMENTS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "BinaryList": "BinaryListValue",
    "ChangeMessageVisibilityBatchRequestEntryList": "ChangeMessageVisibilityBatchRequestEntry",
    "ChangeMessageVisibilityBatchResultEntryList": "ChangeMessageVisibilityBatchResultEntry",
    "DeleteMessageBatchRequestEntryList": "DeleteMessageBatchRequestEntry",
    "DeleteMessageBatchResultEntryList": "DeleteMessageBatchResultEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageList": "Message",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "SendMessageBatchRequestEntryList": "SendMessageBatchRequestEntry",
    "SendMessageBatchResultEntryList": "SendMessageBatchResultEntry",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
MAP_ELEMENTS = {
    "Attributes": "Attribute",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Tags": "Tag",
    "tags": "Tag",
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
}


def _query_model() -> dict[str, Any]:
    raw = copy.deepcopy(_RAW)
    raw["metadata"]["protocol"] = "query"
    raw["metadata"]["protocols"] = ["query"]
    del raw["metadata"]["awsQueryCompatible"]
    for operation in raw["operations"].values():
        if "output" in operation:
            operation["output"]["resultWrapper"] = operation["name"] + "Result"
    for name, shape in raw["shapes"].items():
        if shape["type"] == "list":
            shape["member"]["locationName"] = LIST_ELEMENTS[name]
        elif shape["type"] == "map":
            shape["key"]["locationName"] = "Key" if name == "TagMap" else "Name"
            shape["value"]["locationName"] = "Value"
        for member, reference in shape.get("members", {}).items():
            if member in MAP_ELEMENTS:
                reference["locationName"] = MAP_ELEMENTS[member]
    return raw


JSON_MODEL = ServiceModel(_RAW, "sqs")
QUERY_MODEL = ServiceModel(_query_model(), "sqs")
_SERIALIZERS = {one: create_serializer(one, include_validation=False) for one in ("json", "query")}


def json_body(name: str, parameters: dict[str, Any]) -> bytes:
    operation = JSON_MODEL.operation_model(name)
    body = _SERIALIZERS["json"].serialize_to_request(parameters, operation)["body"]
    return body if isinstance(body, bytes) else body.encode()


def form_body(name: str, parameters: dict[str, Any]) -> bytes:
    operation = QUERY_MODEL.operation_model(name)
    body = _SERIALIZERS["query"].serialize_to_request(parameters, operation)["body"]
    return urlencode(body).encode()


def parse_reply(
    protocol: str,
    name: str,
    body: bytes,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> dict[str, Any]:
    model = JSON_MODEL if protocol == "json" else QUERY_MODEL
    response = {"status_code": status, "headers": HeadersDict(headers or {}), "body": body}
    output = model.operation_model(name).output_shape
    parsed: dict[str, Any] = create_parser(protocol).parse(response, output)
    return parsed


def values(shape: Shape, text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """Anything the model allows for ``shape``, required members always present."""
    kind = shape.type_name
    if kind == "structure":
        members = {name: values(member, text) for name, member in shape.members.items()}
        required = {name: members.pop(name) for name in shape.required_members}
        if "MD5OfBody" in members:  # of a received message SQS leaves nothing essential out
            for name in ("MessageId", "ReceiptHandle", "MD5OfBody", "Body"):
                required[name] = members.pop(name)
        return st.fixed_dictionaries(required, optional=members)
    if kind == "list":
        return st.lists(values(shape.member, text), max_size=3)
    if kind == "map":
        return st.dictionaries(text, values(shape.value, text), max_size=3)
    if kind == "blob":
        return st.binary(max_size=20)
    if kind == "boolean":
        return st.booleans()
    if kind in ("integer", "long"):
        return st.integers(-(10**9), 10**15)
    assert kind == "string", kind
    return text


def without_empties(value: Any) -> Any:
    """Empty lists and maps have no spelling in the query protocol: they are absent."""
    if isinstance(value, dict):
        kept = {name: without_empties(one) for name, one in value.items()}
        return {name: one for name, one in kept.items() if one not in ([], {})}
    if isinstance(value, list):
        return [without_empties(one) for one in value]
    return value
