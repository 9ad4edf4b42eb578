"""Requests of the query protocol, in which a form or a query string contains the request.

Field names are paths: ``MessageAttribute.1.Name=n&MessageAttribute.1.Value.DataType=String``. A
tree is built from the paths and then converted to the same typed request as in the JSON protocol,
by readers that are built once per type.

Clients write lists in many forms. Accepted are ``AttributeName.1``, the unnumbered
``AttributeName``, the plural ``AttributeNames.1``, ``….member.1`` and, for maps, ``….entry.1.key``.
A field of SNS has only its full name, such as ``TagKeys.member.1``.
The number and the depth of the fields are checked before the tree is built.

Names and values are decoded by the rules of ``urllib.parse``, but faster: the library needs a
microsecond for each percent sign outside of an escape, and a body can have four million of them."""

import base64
import binascii
import re
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from penstock.model.limits import FORM_BYTES_MAX, KIB
from penstock.wire.aws.faults import Fault, fault, invalid_value, missing
from penstock.wire.aws.query_replies import key_name, singular, without_none
from penstock.wire.aws.shapes import OPERATIONS, Operation, Request, Shape

# The largest valid request is a batch of ten messages with ten attributes each: about 400 fields.
FIELDS_MAX = 1_000
ACTION_CHARS_MAX = 64
STS_ACTION = "GetCallerIdentity"
_DEPTH_MAX = 12  # SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType is six

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z")
_INDEX = re.compile(r"[0-9]{1,9}\Z")

PIECE_BYTES: Final = 16 * KIB  # bytes of escapes decoded at a time, in at most about 3 ms
_PERCENT: Final = b"%"
_SPACES: Final = bytes.maketrans(b"+", b" ")
_DIGITS: Final = "0123456789ABCDEFabcdef"
_BYTES: Final = {(a + b).encode(): bytes((int(a + b, 16),)) for a in _DIGITS for b in _DIGITS}
_ASCII: Final = re.compile("([\x00-\x7f]+)")

Tree = dict[str, "str | Tree"]
Node = str | Tree
Reader = Callable[[Node, str], Any]  # arguments: a node, and its name for error texts
S = TypeVar("S", bound=msgspec.Struct)


def fields_of(query: str, body: bytes = b"") -> dict[str, str]:
    """Return the fields of a query string and a form body. If both have a field, the body wins."""
    steps = fields_in_steps(query, body)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            fields: dict[str, str] = end.value
            return fields


def fields_in_steps(query: str, body: bytes) -> Generator[None, None, dict[str, str]]:
    """Return the fields as ``fields_of`` does, from a generator that yields None every few
    milliseconds to let the event loop do other work."""
    if len(body) > FORM_BYTES_MAX:
        raise fault(
            "RequestEntityTooLarge",
            f"The form has {len(body)} bytes; at most {FORM_BYTES_MAX} are allowed. "
            "Send fewer messages in one request, or use AWS JSON.",
        )
    if query.count("&") + body.count(b"&") + 2 > FIELDS_MAX:
        raise fault("MalformedInput", f"A request must have at most {FIELDS_MAX} fields.")
    try:
        pairs = text_pairs(query, errors="strict")
        pairs += yield from body_pairs(body)
    except ValueError:  # includes bytes that are not UTF-8
        raise fault("MalformedInput", "The fields are not percent-encoded UTF-8.") from None
    return dict(pairs)


def action_in(query: str, body: bytes) -> str:
    """Return the action of a request without decoding its fields; empty if there is none."""
    for form in (body, query.encode("latin-1", "replace")):
        found = (b"&" + form).partition(b"&Action=")[2]
        if found:
            return found[:ACTION_CHARS_MAX].partition(b"&")[0].decode("latin-1")
    return ""


def operation_of(
    fields: Mapping[str, str], operations: Mapping[str, Operation] = OPERATIONS
) -> Operation:
    name = fields.get("Action")
    if not name:
        raise fault("MissingAction", "The request must contain the parameter Action.")
    operation = operations.get(name)
    if operation is None:
        raise not_here(name)
    return operation


def not_here(action: str) -> Fault:
    return fault("InvalidAction", f"The action {action[:80]} is not valid for this endpoint.")


def decode(operation: Operation, fields: Mapping[str, str]) -> Request:
    request = operation.request
    return _read_struct(request, _tree(fields, _ROOTS[request]), "")


def _tree(fields: Mapping[str, str], roots: frozenset[str]) -> Tree:
    tree: Tree = {}
    for name, value in fields.items():
        path = name.split(".", _DEPTH_MAX)
        if path[0] not in roots:
            continue
        if len(path) > _DEPTH_MAX:
            raise fault("MalformedInput", "A field name is nested too deeply.")
        node = tree
        for step in path[:-1]:
            below = node.setdefault(step, {})
            if isinstance(below, str):
                raise fault("MalformedInput", "A field name has both a value and a structure.")
            node = below
        if path[-1] in node:
            raise fault("MalformedInput", "A field name has both a value and a structure.")
        node[path[-1]] = value
    return tree


# ── Readers of one value ─────────────────────────────────────────────────────────────────────


def _read_text(node: Node, name: str) -> str:
    if isinstance(node, str):
        return node
    raise fault("MalformedInput", f"The parameter {name} must have a single value.")


def _read_integer(node: Node, name: str) -> int:
    text = _read_text(node, name)
    if _INTEGER.match(text) is None:
        raise invalid_value(text, name, "Must be an integer.")
    return int(text)


def _read_boolean(node: Node, name: str) -> bool:
    text = _read_text(node, name).lower()
    if text not in ("true", "false"):
        raise fault("MalformedInput", f"The parameter {name} must be true or false.")
    return text == "true"


def _read_binary(node: Node, name: str) -> bytes:
    text = _read_text(node, name)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise fault("InvalidParameterValue", f"The value of {name} is not valid base64.") from None


_READERS: Mapping[type[inspect.Type], Reader] = {
    inspect.StrType: _read_text,
    inspect.IntType: _read_integer,
    inspect.BoolType: _read_boolean,
    inspect.BytesType: _read_binary,
}

# ── Readers of lists and maps ────────────────────────────────────────────────────────────────


def _elements(node: Node, name: str, *, wrapper: str, single: frozenset[str]) -> list[Node]:
    """Return the elements of a list, ordered by number. ``wrapper`` is the name of an extra level
    that some clients add. If ``node`` has a key in ``single``, it is itself the only element."""
    if isinstance(node, str):
        return [node] if node else []  # SDKs write an empty list as "AttributeName="
    wrapped = node.get(wrapper)
    if wrapped is not None and len(node) == 1:
        return _elements(wrapped, name, wrapper="", single=single)
    if not single.isdisjoint(node):
        return [node]
    for index in node:
        if _INDEX.match(index) is None:
            raise fault("MalformedInput", f"The elements of {name} must be numbered.")
    return [node[index] for index in sorted(node, key=int)]


_NO_KEYS: frozenset[str] = frozenset()


def _list_reader(read: Reader, keys: frozenset[str]) -> Reader:
    def read_list(node: Node, name: str) -> list[Any]:
        elements = _elements(node, name, wrapper="member", single=keys)
        return [read(element, f"{name}.{i}") for i, element in enumerate(elements, 1)]

    return read_list


def _map_reader(read: Reader, key: str) -> Reader:
    keys = (key, "key")
    values = ("Value", "value")
    single = frozenset(keys + values)

    def read_map(node: Node, name: str) -> dict[str, Any]:
        result: dict[str, Any] = {}
        elements = _elements(node, name, wrapper="entry", single=single)
        for i, element in enumerate(elements, 1):
            if isinstance(element, str):
                raise fault("MalformedInput", f"The parameter {name}.{i} must be a structure.")
            entry_key = _read_text(_first(element, keys, f"{name}.{i}"), f"{name}.{i}.{key}")
            if entry_key in result:
                raise fault("InvalidParameterValue", f"{name} {entry_key[:256]} occurs twice.")
            entry_value = _first(element, values, f"{name}.{i}")
            result[entry_key] = read(entry_value, f"{name}.{i}.Value")
        return result

    return read_map


def _first(element: Tree, names: tuple[str, ...], parent: str) -> Node:
    for name in names:
        if name in element:
            return element[name]
    raise missing(f"{parent}.{names[0]}")


# ── Readers of structures, built once per type ───────────────────────────────────────────────


class _FieldReader(msgspec.Struct, frozen=True):
    field: str
    names: tuple[str, ...]  # the preferred name, then its variants
    read: Reader


_FIELD_READERS: dict[type[msgspec.Struct], tuple[_FieldReader, ...]] = {}


def _read_struct(struct: type[S], node: Node, name: str) -> S:
    if isinstance(node, str):
        raise fault("MalformedInput", f"The parameter {name} must be a structure.")
    prefix = f"{name}." if name else ""
    values: dict[str, Any] = {}
    for reader in _FIELD_READERS[struct]:
        for spelling in reader.names:
            if spelling in node:
                values[reader.field] = reader.read(node[spelling], prefix + reader.names[0])
                break
    return struct(**values)


def _reader(type_info: inspect.Type) -> Reader:
    type_info = without_none(type_info)
    if type(type_info) in _READERS:
        return _READERS[type(type_info)]
    assert isinstance(type_info, inspect.StructType), f"no form spelling for {type_info}"
    _prepare(type_info.cls)
    return partial(_read_struct, type_info.cls)


def _spellings(name: str, element: type | None, *, is_flattened: bool) -> tuple[str, ...]:
    if not is_flattened:
        return (name,)
    names = (singular(name, element), name)
    return names if element is None else (*names, "Entry")


def _field_reader(field: inspect.Field, *, is_flattened: bool) -> _FieldReader:
    name = field.encode_name
    type_info = without_none(field.type)
    element: type | None = None
    if isinstance(type_info, inspect.DictType):
        read = _map_reader(_reader(type_info.value_type), key_name(name))
    elif isinstance(type_info, inspect.ListType):
        item = without_none(type_info.item_type)
        keys = _NO_KEYS
        if isinstance(item, inspect.StructType):
            element = item.cls
            keys = frozenset(one.encode_name for one in item.fields)
        read = _list_reader(_reader(item), keys)
    else:
        return _FieldReader(field.name, (name,), _reader(type_info))
    names = _spellings(name, element, is_flattened=is_flattened)
    return _FieldReader(field.name, names, read)


def _prepare(struct: type[msgspec.Struct]) -> None:
    if struct in _FIELD_READERS:
        return
    assert issubclass(struct, Shape)
    type_info = inspect.type_info(struct)
    assert isinstance(type_info, inspect.StructType)
    _FIELD_READERS[struct] = tuple(
        _field_reader(field, is_flattened=struct.is_flattened) for field in type_info.fields
    )


def prepare(operations: Mapping[str, Operation]) -> None:
    """Build the readers of a service's requests. Call this once, when the service is imported."""
    for each in operations.values():
        _prepare(each.request)
        readers = _FIELD_READERS[each.request]
        _ROOTS[each.request] = frozenset(name for one in readers for name in one.names)


_ROOTS: dict[type[Request], frozenset[str]] = {}
prepare(OPERATIONS)


# ── Names and values of query strings and form bodies ────────────────────────────────────────


def text_pairs(text: str, *, errors: str = "replace") -> list[tuple[str, str]]:
    """Return the names and values of a query string. ``errors`` is passed to ``bytes.decode``."""
    pairs = []
    for pair in text.split("&"):
        if pair:
            name, _, value = pair.replace("+", " ").partition("=")
            pairs.append((_unquoted(name, errors), _unquoted(value, errors)))
    return pairs


def body_pairs(body: bytes) -> Generator[None, None, list[tuple[str, str]]]:
    if not body.isascii():
        body.decode()  # before its escapes, which must be UTF-8 by themselves
    pairs = []
    for pair in body.split(b"&"):
        if pair:
            name, _, value = pair.partition(b"=")
            key = yield from _unescaped(name)
            pairs.append((key, (yield from _unescaped(value))))
            yield None
    return pairs


def _unescaped(raw: bytes) -> Generator[None, None, str]:
    raw = raw.translate(_SPACES)
    if len(raw) > PIECE_BYTES:
        yield None
    if _PERCENT not in raw:
        return raw.decode()
    if len(raw) <= PIECE_BYTES:
        return _unquoted_bytes(raw).decode()
    pieces: list[bytes] = []
    start = 0
    while start < len(raw):
        stop = start + PIECE_BYTES
        escape = raw.rfind(_PERCENT, stop - 2, stop)  # an escape that the cut would split
        if escape >= 0:
            stop = escape
        pieces.append(_unquoted_bytes(raw[start:stop]))
        start = stop
        yield None
    joined = b"".join(pieces)
    yield None
    return joined.decode()


def _unquoted(text: str, errors: str) -> str:
    if "%" not in text:
        return text
    if text.isascii():
        return _unquoted_bytes(text.encode()).decode("utf-8", errors)
    bits = _ASCII.split(text)
    for index in range(1, len(bits), 2):
        bits[index] = _unquoted_bytes(bits[index].encode()).decode("utf-8", errors)
    return "".join(bits)


def _unquoted_bytes(raw: bytes) -> bytes:
    first, *bits = raw.split(_PERCENT)
    parts = [first]
    add, byte_of = parts.append, _BYTES.get
    for bit in bits:
        byte = byte_of(bit[:2])
        if byte is None:
            add(_PERCENT)
            add(bit)
        else:
            add(byte)
            add(bit[2:])
    return b"".join(parts)
