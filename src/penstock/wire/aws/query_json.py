"""JSON replies of the query protocol, for clients that send a form and accept ``application/json``,
such as HTTP libraries of browsers.

This is the XML document in another notation, not AWS JSON 1.0: response and result are wrapped by
name, absent values are null, and maps are lists of ``Name`` and ``Value``. Only clients without an
SDK use it, so it need not be fast."""

from functools import lru_cache
from typing import Any

import msgspec

from penstock.wire.aws.faults import Fault, Headers
from penstock.wire.aws.query_xml import fault_message, key_name
from penstock.wire.aws.shapes import Operation, Reply

CONTENT_TYPE = "application/json"

# Lists that have another name in this format.
_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}


def wants_json(accept: str) -> bool:
    return "application/json" in accept


def encode_reply(operation: Operation, reply: Reply | None, *, request_id: str) -> bytes:
    name = operation.name
    response: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if reply is not None:
        response[f"{name}Result"] = _members(reply)
    return msgspec.json.encode({f"{name}Response": response})


def encode_fault(refusal: Fault, *, request_id: str) -> tuple[bytes, Headers]:
    message = fault_message(refusal).encode(errors="replace").decode()
    error = {"Code": refusal.code, "Message": message, "Type": refusal.blame}
    return msgspec.json.encode({"Error": error, "RequestId": request_id}), refusal.headers


def _members(struct: msgspec.Struct) -> dict[str, Any]:
    return {
        _NAMES.get(name, name): _plain(getattr(struct, field), name)
        for field, name in _fields(type(struct))
    }


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, msgspec.Struct):
        return _members(value)
    if isinstance(value, dict):
        key = key_name(name)
        return [{key: one, "Value": _plain(inner, name)} for one, inner in value.items()]
    if isinstance(value, list):
        return [_plain(one, name) for one in value]
    return value


@lru_cache(maxsize=64)  # the number of structs in replies
def _fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    return tuple((field.name, field.encode_name) for field in msgspec.structs.fields(struct))
