"""Replies of the query protocol: encodes typed replies and faults as XML, or as JSON for clients
that send a form and accept ``application/json``, such as HTTP libraries in browsers.

Lists are flattened (the element is repeated, without a wrapper), maps are ``<Attribute><Name/>
<Value/></Attribute>``, and absent values have no element. Writers are built once per type, from the
same structs that the JSON protocol encodes, so the two protocols always have the same fields.

SNS does not flatten: a list is ``<Topics><member/></Topics>``, a map is ``<Attributes><entry><key/>
<value/></entry></Attributes>``, and empty ones are present.

Elements of lists and maps have singular names, listed here because AWS follows no rule.

The JSON format is not AWS JSON 1.0 but has the structure of the XML: a response contains a result,
absent values are null, and maps are lists of ``Name`` and ``Value`` (of SNS: objects). Only clients
without an SDK and SDKs that are no longer maintained use this format, so it need not be fast."""

import base64
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from penstock.wire.aws.faults import QUEUE_DOES_NOT_EXIST, Fault, Headers
from penstock.wire.aws.shapes import (
    OPERATIONS,
    BatchResultErrorEntry,
    CallerIdentity,
    MessageMoveTaskEntry,
    Operation,
    Shape,
)

XML, JSON = "text/xml", "application/json"
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
STS_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"
_DECLARATION = '<?xml version="1.0"?>'

Writer = Callable[[Any], str]  # value → markup

# An XML parser turns a bare carriage return into a line feed, so it is escaped. Characters that XML
# 1.0 forbids, which a rejected value in an error text may have, become the replacement character.
_ESCAPED = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"}  # & first
_SPECIAL = re.compile('[&<>"\x00-\x08\x0b-\x1f\ud800-\udfff\ufffe\uffff]')
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_FORBIDDEN_CHARS = [chr(n) for n in (*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF)]
_SURROGATE = re.compile("[\ud800-\udfff]")


def escape(text: str) -> str:
    """Escape a text for XML, with ``str.replace``, which is much faster than ``re.sub``."""
    if _SPECIAL.search(text) is None:
        return text
    if _FORBIDDEN.search(text) is not None:
        for char in _FORBIDDEN_CHARS:
            text = text.replace(char, "\ufffd")
        text = _SURROGATE.sub("\ufffd", text)
    for char, reference in _ESCAPED.items():
        text = text.replace(char, reference)
    return text


def element(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"


_PLURALS = (
    "AWSAccountIds AttributeNames Attributes BinaryListValues MessageAttributeNames"
    " MessageAttributes MessageSystemAttributeNames MessageSystemAttributes Messages QueueUrls"
    " StringListValues TagKeys Tags queueUrls tags"
)
_SINGULARS = {name: name[0].upper() + name[1:-1] for name in _PLURALS.split()}
_SINGULARS["Actions"] = "ActionName"
_ENTRY_NAMES: Mapping[type[Shape], str] = {
    BatchResultErrorEntry: "BatchResultErrorEntry",
    MessageMoveTaskEntry: "ListMessageMoveTasksResultEntry",
}


def singular(wire_name: str, element: type | None = None) -> str:
    """Return the name of an XML element that represents one item of a list or map."""
    name = _SINGULARS.get(wire_name)
    if name is not None:
        return name
    assert element is not None, f"{wire_name} needs a singular name"
    return _ENTRY_NAMES.get(element, element.__name__)


def key_name(wire_name: str) -> str:
    return "Key" if wire_name in ("Tags", "tags") else "Name"


def without_none(type_info: inspect.Type) -> inspect.Type:
    if not isinstance(type_info, inspect.UnionType):
        return type_info
    present = [one for one in type_info.types if not isinstance(one, inspect.NoneType)]
    return present[0] if len(present) == 1 else inspect.StrType()


def encode_reply(
    name: str, reply: Shape | None, *, request_id: str, namespace: str = NAMESPACE
) -> bytes:
    result = ""
    if reply is not None:
        result = _wrapped(f"{name}Result", _write_struct(reply))
    return (
        f'{_DECLARATION}<{name}Response xmlns="{namespace}">{result}'
        f"<ResponseMetadata>{element('RequestId', request_id)}</ResponseMetadata></{name}Response>"
    ).encode()


def _wrapped(name: str, content: str) -> str:
    # Clients that search the text for a pattern expect the short form of an empty element.
    return f"<{name}>{content}</{name}>" if content else f"<{name}/>"


def fault_message(refusal: Fault) -> str:
    """Return the message of a fault. One message differs from that of the JSON protocol."""
    if refusal.message == QUEUE_DOES_NOT_EXIST:
        return "The specified queue does not exist for this wsdl version."
    return refusal.message


def encode_fault(
    refusal: Fault, *, request_id: str, namespace: str = NAMESPACE, detail: str = "<Detail/>"
) -> tuple[bytes, Headers]:
    message = fault_message(refusal)
    document = (
        f'{_DECLARATION}<ErrorResponse xmlns="{namespace}"><Error><Type>{refusal.blame}</Type>'
        f"{element('Code', refusal.code)}{element('Message', message)}{detail}</Error>"
        f"{element('RequestId', request_id)}</ErrorResponse>"
    )
    return document.encode(), refusal.headers


class _FieldWriter(msgspec.Struct, frozen=True):
    field: str
    write: Writer


_FIELD_WRITERS: dict[type[msgspec.Struct], tuple[_FieldWriter, ...]] = {}


def _write_struct(struct: msgspec.Struct) -> str:
    parts: list[str] = []
    for writer in _FIELD_WRITERS[type(struct)]:
        value = getattr(struct, writer.field)
        if value is not None:
            parts.append(writer.write(value))
    return "".join(parts)


_CONTENTS: Mapping[type[inspect.Type], Writer] = {
    inspect.StrType: escape,
    inspect.BoolType: lambda value: "true" if value else "false",
    inspect.IntType: str,
    inspect.BytesType: lambda value: base64.b64encode(value).decode(),
}


def _content(type_info: inspect.Type) -> Writer:
    if type(type_info) in _CONTENTS:
        return _CONTENTS[type(type_info)]
    assert isinstance(type_info, inspect.StructType), f"no XML spelling for {type_info}"
    _prepare(type_info.cls)
    return _write_struct


def _field_writer(field: inspect.Field, *, is_flattened: bool) -> Writer:
    name = field.encode_name
    type_info = without_none(field.type)
    if isinstance(type_info, inspect.DictType):
        content = _content(without_none(type_info.value_type))
        if not is_flattened:
            return lambda entries: _wrapped(
                name,
                "".join(
                    f"<entry>{element('key', one)}<value>{content(value)}</value></entry>"
                    for one, value in entries.items()
                ),
            )
        name, key = singular(name), key_name(name)
        return lambda entries: "".join(
            f"<{name}>{element(key, one)}<Value>{content(value)}</Value></{name}>"
            for one, value in entries.items()
        )
    if isinstance(type_info, inspect.ListType):
        item = without_none(type_info.item_type)
        content = _content(item)
        if not is_flattened:
            return lambda values: _wrapped(
                name, "".join(f"<member>{content(value)}</member>" for value in values)
            )
        name = singular(name, item.cls if isinstance(item, inspect.StructType) else None)
        return lambda values: "".join(f"<{name}>{content(value)}</{name}>" for value in values)
    content = _content(type_info)
    return lambda value: f"<{name}>{content(value)}</{name}>"


def _prepare(struct: type[msgspec.Struct]) -> None:
    if struct in _FIELD_WRITERS:
        return
    assert issubclass(struct, Shape)
    type_info = inspect.type_info(struct)
    assert isinstance(type_info, inspect.StructType)
    _FIELD_WRITERS[struct] = tuple(
        _FieldWriter(field.name, _field_writer(field, is_flattened=struct.is_flattened))
        for field in type_info.fields
    )


def prepare(operations: Mapping[str, Operation]) -> None:
    """Build the writers of a service's replies. Call this once, when the service is imported."""
    for each in operations.values():
        if each.reply is not None:
            _prepare(each.reply)


_prepare(CallerIdentity)
prepare(OPERATIONS)


# ── As JSON ──────────────────────────────────────────────────────────────────────────────────

# Lists that have another name in this format.
_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def encode_json_reply(name: str, reply: Shape | None, *, request_id: str) -> bytes:
    response: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if reply is not None:
        response[f"{name}Result"] = _members(reply)
    return msgspec.json.encode({f"{name}Response": response})


def encode_json_fault(refusal: Fault, *, request_id: str) -> tuple[bytes, Headers]:
    message = fault_message(refusal).encode(errors="replace").decode()
    error = {"Code": refusal.code, "Message": message, "Type": refusal.blame}
    return msgspec.json.encode({"Error": error, "RequestId": request_id}), refusal.headers


def _members(struct: Shape) -> dict[str, Any]:
    names = _NAMES if struct.is_flattened else {}
    return {
        names.get(name, name): _plain(getattr(struct, field), name, struct.is_flattened)
        for field, name in _fields(type(struct))
    }


def _plain(value: Any, name: str, is_flattened: bool) -> Any:
    if isinstance(value, Shape):
        return _members(value)
    if isinstance(value, dict) and is_flattened:
        key = key_name(name)
        return [{key: one, "Value": _plain(inner, name, True)} for one, inner in value.items()]
    if isinstance(value, list):
        return [_plain(one, name, is_flattened) for one in value]
    return value


@lru_cache(maxsize=128)  # the number of structs in replies
def _fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(struct))
