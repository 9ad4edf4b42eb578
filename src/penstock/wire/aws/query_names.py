"""How the query protocol writes lists and maps: flattened, under singular names.

JSON has ``"AttributeNames": [a, b]``, a form has ``AttributeName.1=a&AttributeName.2=b``, and the
XML of a reply repeats the element. The singular names are defined by AWS and follow no rule, so
they are listed here once, for requests and replies."""

from collections.abc import Mapping

import msgspec

from penstock.wire.aws.shapes import BatchResultErrorEntry, MessageMoveTaskEntry, Shape

_SINGULARS: Mapping[str, str] = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "Attributes": "Attribute",
    "BinaryListValues": "BinaryListValue",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageAttributes": "MessageAttribute",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "MessageSystemAttributes": "MessageSystemAttribute",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "StringListValues": "StringListValue",
    "TagKeys": "TagKey",
    "Tags": "Tag",
    "queueUrls": "QueueUrl",
    "tags": "Tag",
}
_ENTRY_NAMES: Mapping[type[Shape], str] = {
    BatchResultErrorEntry: "BatchResultErrorEntry",
    MessageMoveTaskEntry: "ListMessageMoveTasksResultEntry",
}


def singular(wire_name: str, element: type | None = None) -> str:
    """Return the name of one element of the list or map ``wire_name``. A list of batch entries uses
    the name of its entries."""
    name = _SINGULARS.get(wire_name)
    if name is not None:
        return name
    assert element is not None, f"{wire_name} needs a singular name"
    return _ENTRY_NAMES.get(element, element.__name__)


def key_name(wire_name: str) -> str:
    """Return the name of the key of a map's entry; the value is always ``Value``."""
    return "Key" if wire_name in ("Tags", "tags") else "Name"


def without_none(type_info: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return ``X`` for ``X | None``: every field is optional, and only its type matters here."""
    if not isinstance(type_info, msgspec.inspect.UnionType):
        return type_info
    present = [one for one in type_info.types if not isinstance(one, msgspec.inspect.NoneType)]
    return present[0] if len(present) == 1 else msgspec.inspect.StrType()
