"""Message bodies and attributes: validation, size, MD5 and selection.

Clients recompute the MD5 sums and reject a message on a mismatch, so the layout of the hashed bytes
must not change. Texts are checked as UTF-8 bytes, because that needs only a few C calls."""

import re
from collections.abc import Iterable, Mapping
from hashlib import md5

from penstock.model.limits import ATTRIBUTES_PER_MESSAGE_MAX
from penstock.model.message import Attribute
from penstock.wire.aws.faults import Fault, fault, missing
from penstock.wire.aws.shapes import MessageAttributeValue

TRACE_HEADER = "AWSTraceHeader"

_NAME_CHARS_MAX = 256
_TRACE_CHARS_MAX = 1_024  # in the header; about a hundred are usual
_NUMBER_DIGITS_MAX = 38
_NUMBER_CHARS_MAX = 256  # leading zeros are not digits of the number, so they need their own limit
_NUMBER_EXPONENT_MAX = 126

# Letters of any script: AWS documents only ASCII, but SQS accepts others.
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*\Z")
_RESERVED = ("aws.", "amazon.")
_TYPE = re.compile(r"(String|Number|Binary)(?:\..+)?\Z", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,3}))?\Z")

# Only XML 1.0 characters are allowed. In UTF-8 that forbids these bytes, and U+FFFE and U+FFFF;
# surrogates cannot be encoded at all.
_FORBIDDEN_BYTES = bytes(code for code in range(0x20) if code not in (0x09, 0x0A, 0x0D))
_FORBIDDEN_TAILS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")


def body_bytes(text: str | None) -> bytes:
    if not text:
        raise missing("MessageBody")
    body = _checked_utf8(text)
    if body is None:
        raise fault("InvalidMessageContents")
    return body


def _checked_utf8(text: str) -> bytes | None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return None
    if len(raw.translate(None, _FORBIDDEN_BYTES)) != len(raw):
        return None
    if len(raw) != len(text) and any(tail in raw for tail in _FORBIDDEN_TAILS):
        return None
    return raw


def message_bytes(body: bytes, attributes: Mapping[str, Attribute] | None) -> int:
    """Return the size that counts for limits: body, and attribute names, types and values."""
    if not attributes:
        return len(body)
    return len(body) + sum(
        len(name.encode()) + len(one.data_type.encode()) + len(one.value)
        for name, one in attributes.items()
    )


def md5_of_body(body: bytes) -> str:
    return md5(body, usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Mapping[str, Attribute]) -> str:
    """Return the MD5 of the attributes in the order of their names. For each attribute, these bytes
    are hashed: the name, the type, one byte (1 for text, 2 for binary) and the value. Name, type
    and value are preceded by their lengths as big-endian 32-bit numbers."""
    digest = md5(usedforsecurity=False)
    for name in sorted(attributes, key=str.encode):
        attribute = attributes[name]
        for part in (name.encode(), attribute.data_type.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        digest.update(b"\x02" if attribute.is_binary else b"\x01")
        digest.update(len(attribute.value).to_bytes(4, "big") + attribute.value)
    return digest.hexdigest()


def read_attributes(
    values: Mapping[str, MessageAttributeValue] | None,
) -> dict[str, Attribute] | None:
    if not values:
        return None
    if len(values) > ATTRIBUTES_PER_MESSAGE_MAX:
        raise _invalid(
            f"Number of message attributes [{len(values)}] exceeds the allowed maximum "
            f"[{ATTRIBUTES_PER_MESSAGE_MAX}]."
        )
    return {name: _read_attribute(name, value) for name, value in values.items()}


def read_trace_header(values: Mapping[str, MessageAttributeValue] | None) -> Attribute | None:
    if not values:
        return None
    for name in values:
        if name != TRACE_HEADER:
            raise _invalid(f"Message system attribute name '{name[:_NAME_CHARS_MAX]}' is invalid.")
    attribute = _read_value(TRACE_HEADER, values[TRACE_HEADER])
    if attribute.data_type != "String":
        raise _invalid(f"The message system attribute '{TRACE_HEADER}' must be of type String.")
    return attribute


def trace_of_request(header: str | None) -> str | None:
    """Return the value of the ``X-Amzn-Trace-Id`` header, or None if it is missing or invalid."""
    if header is None or not 0 < len(header) <= _TRACE_CHARS_MAX:
        return None
    return header if header.isascii() and header.isprintable() else None


def _read_attribute(name: str, value: MessageAttributeValue) -> Attribute:
    if not 0 < len(name) <= _NAME_CHARS_MAX:
        raise _invalid(
            f"Message (user) attribute name must have 1 to {_NAME_CHARS_MAX} characters."
        )
    if _NAME.match(name) is None:
        raise _invalid(
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, "
            "0-9, underscore (_), hyphen (-), and period (.) characters."
        )
    if name.lower().startswith(_RESERVED):
        raise _invalid(
            f"The message attribute name '{name}' is invalid. Names beginning with AWS. or Amazon. "
            "are reserved."
        )
    return _read_value(name, value)


def _read_value(name: str, value: MessageAttributeValue) -> Attribute:
    data_type = value.data_type
    if not data_type:
        raise _invalid(
            f"The message attribute '{name}' must contain non-empty message attribute type."
        )
    match = _TYPE.match(data_type)
    if match is None or len(data_type) > _NAME_CHARS_MAX or _checked_utf8(data_type) is None:
        raise _invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    if value.string_list_values or value.binary_list_values:
        raise _invalid("Message attribute list values in SendMessage operation are not supported.")
    kind = match[1]
    field = "Binary" if kind == "Binary" else "String"
    found, other = value.string_value, value.binary_value
    content, stray = (other, found) if field == "Binary" else (found, other)
    if stray is not None:
        text = f"The message attribute '{name}' with type '{kind}' must use field '{field}'."
        raise _invalid(text)
    if not content:
        text = f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."
        raise _invalid(text)
    if isinstance(content, bytes):
        return Attribute(data_type, content)
    raw = _checked_utf8(content)
    if raw is None:
        raise _invalid(
            f"Invalid binary character found in the value of message attribute '{name}'."
        )
    if kind == "Number" and not is_number(content):
        raise _invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return Attribute(data_type, raw)


def is_number(text: str) -> bool:
    """Return whether a text is a number within the range and precision of SQS."""
    match = _NUMBER.match(text) if len(text) <= _NUMBER_CHARS_MAX else None
    if match is None:
        return False
    digits = match[1] + (match[2] or "")
    if not digits or len(digits.lstrip("0")) > _NUMBER_DIGITS_MAX:
        return False
    return match[3] is None or abs(int(match[3])) <= _NUMBER_EXPONENT_MAX


def _invalid(message: str) -> Fault:
    return fault("InvalidParameterValue", message)


def select(
    attributes: Mapping[str, Attribute] | None, names: Iterable[str]
) -> dict[str, Attribute]:
    """Return the attributes with these names. The names ``All``, ``.*`` and ``*`` select all
    attributes, and ``prefix.*`` selects those whose names begin with the prefix."""
    if not attributes:
        return {}
    selected: set[str] = set()
    for asked in names:
        if asked in ("All", ".*", "*"):
            return dict(attributes)
        if asked.endswith(".*"):
            prefix = asked[:-2]
            selected.update(name for name in attributes if name.startswith(prefix))
        elif asked in attributes:
            selected.add(asked)
    return {name: attribute for name, attribute in attributes.items() if name in selected}


def write_attributes(attributes: Mapping[str, Attribute]) -> dict[str, MessageAttributeValue]:
    return {name: _write_value(attribute) for name, attribute in attributes.items()}


def _write_value(attribute: Attribute) -> MessageAttributeValue:
    if attribute.is_binary:
        return MessageAttributeValue(binary_value=attribute.value, data_type=attribute.data_type)
    text = attribute.value.decode(errors="replace")  # Kafka producers may write any bytes
    return MessageAttributeValue(string_value=text, data_type=attribute.data_type)
