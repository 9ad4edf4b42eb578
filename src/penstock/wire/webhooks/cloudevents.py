"""CloudEvents 1.0: a record as an event in binary, structured and batch mode, and the handshake by
which an endpoint permits requests.

The attributes of an event come from the record. A message attribute ``ce_NAME`` replaces the
attribute NAME or adds an extension, as headers of Kafka records do in the Kafka binding; so does
``content-type`` for ``datacontenttype``. A value that CloudEvents does not allow is ignored.

    id              message id               type            ``penstock.message``
    source          ARN of the topic         time            time of the first append
    subject         Subject, or the group    partitionkey    the group
    sequence        offset, 20 digits        penstockpartition

A body is written as a JSON value if the content type is JSON, as a string if it is other text, and
as ``data_base64`` if neither represents its bytes. Without a content type, one is derived from the
body; for bytes that are not text, the JSON format requires that the content type stays absent."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from penstock.model.message import Attribute, Record
from penstock.model.names import uuid_text
from penstock.model.subscription import WebhookPermission
from penstock.wire.webhooks.content import (
    JSON_TYPE,
    TEXT_TYPE,
    json_of,
    plain_type_of,
    text_of,
    timestamp,
)

STRUCTURED_TYPE: Final = "application/cloudevents+json; charset=UTF-8"
BATCH_TYPE: Final = "application/cloudevents-batch+json; charset=UTF-8"
TYPE_DEFAULT: Final = "penstock.message"

_PREFIX: Final = "ce_"
_TYPE_OF_DATA: Final = "datacontenttype"
# Headers of an event in binary mode. Many servers reject a head of more than 16 KiB, which also has
# to hold the URL and the headers of the subscription.
HEADERS_BYTES_MAX: Final = 8_192
VALUE_BYTES_MAX: Final = 8_192  # longer values are ignored; a Kafka record may have 4 MiB of them

_is_name = re.compile(r"[a-z0-9]{1,64}").fullmatch
_forbidden = re.compile(r"[\x00-\x1f\x7f-\x9f]").search
_is_media_type = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,100}/[A-Za-z0-9!#$&^_.+-]{1,100}(?: *;[ -~]{0,100}[!-~])?"
).fullmatch
_is_json_type = re.compile(r"[^/]+/(?:[^;]+\+)?json *(?:;.*)?", re.IGNORECASE).fullmatch
_has_other_charset = re.compile(r'charset=(?!"?(?:utf-?8|us-ascii)\b)', re.IGNORECASE).search
_is_time = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII
).fullmatch
# Printable ASCII except the quotation mark and the percent sign.
_is_plain = re.compile(r"[!#$&-~]*").fullmatch
_ESCAPED: Final = tuple(
    chr(byte) if _is_plain(chr(byte)) else f"%{byte:02X}" for byte in range(256)
)
_encode = msgspec.json.Encoder().encode


class HeadersTooLong(Exception):
    """The attributes of an event do not fit into the headers of a request in binary mode."""


def attributes_of(
    record: Record, *, source: str, partition: int, subject: str | None = None
) -> dict[str, str]:
    """Return the context attributes of the record's event, except ``specversion``."""
    message = record.message
    found = {
        "id": uuid_text(message.message_id),
        "source": source,
        "type": TYPE_DEFAULT,
        "time": timestamp(record.sent_at_ms),
    }
    group = _allowed(message.group)
    if about := _allowed(subject) or group:
        found["subject"] = about
    if group:
        found["partitionkey"] = group
    found["sequence"] = f"{record.offset:020d}"  # of one length, so that texts sort as numbers do
    found["penstockpartition"] = str(partition)
    for name, attribute in (message.attributes or {}).items():
        if name == "content-type":
            name = _TYPE_OF_DATA
        elif name.startswith(_PREFIX):
            name = name[len(_PREFIX) :]
        else:
            continue
        value = _value_of(attribute)
        if value and _is_valid(name, value):
            found[name] = value
    return found


def type_of(record: Record) -> str:
    """Return the type of the record's event, without its other attributes."""
    attribute = (record.message.attributes or {}).get("ce_type")
    return (attribute and _value_of(attribute)) or TYPE_DEFAULT


def _value_of(attribute: Attribute) -> str:
    """Return the value, or an empty text if CloudEvents does not allow it."""
    raw = attribute.value
    return _allowed(text_of(raw)) if len(raw) <= VALUE_BYTES_MAX else ""


def _allowed(text: str | None) -> str:
    return text if text and len(text) <= VALUE_BYTES_MAX and not _forbidden(text) else ""


def _is_valid(name: str, value: str) -> bool:
    if name == "time":
        return _is_time(value) is not None and _exists(value)
    if name == _TYPE_OF_DATA:
        return _is_media_type(value) is not None
    return _is_name(name) is not None and name not in ("data", "specversion")


def _exists(time: str) -> bool:
    try:
        datetime.fromisoformat(time)
    except ValueError:  # the 30th of February
        return False
    return True


def structured(attributes: dict[str, str], body: bytes) -> bytes:
    """Return the event as JSON, for a request with one event or as a part of a batch."""
    event: dict[str, object] = {"specversion": "1.0", **attributes}
    if not body:
        return _encode(event)
    declared = attributes.get(_TYPE_OF_DATA)
    data: object = None
    if declared is None:
        if (data := json_of(body)) is not None:
            event[_TYPE_OF_DATA] = JSON_TYPE
        elif (data := text_of(body)) is not None:
            event[_TYPE_OF_DATA] = TEXT_TYPE
    elif _is_json_type(declared):
        data = json_of(body)
    elif not _has_other_charset(declared):
        data = text_of(body)
    if data is None:
        event["data_base64"] = body  # msgspec writes bytes as base64
    else:
        event["data"] = data
    return _encode(event)


def binary(attributes: dict[str, str], body: bytes) -> tuple[tuple[str, str], ...]:
    """Return the headers of a request whose body is the body of the message."""
    declared = attributes.get(_TYPE_OF_DATA)
    if declared is None:
        declared = plain_type_of(body) if json_of(body) is None else JSON_TYPE
    headers = [("content-type", declared), ("ce-specversion", "1.0")]
    room = HEADERS_BYTES_MAX
    for name, value in attributes.items():
        if name == _TYPE_OF_DATA:
            continue
        value = escaped(value)
        room -= len(name) + len(value)
        if room < 0:
            raise HeadersTooLong(
                f"the CloudEvents attributes need more than {HEADERS_BYTES_MAX} bytes of HTTP"
                " headers; use format cloudevents-structured"
            )
        headers.append(("ce-" + name, value))
    return tuple(headers)


def escaped(value: str) -> str:
    """Return the value percent-encoded as the HTTP binding has it."""
    if _is_plain(value):
        return value
    return "".join([_ESCAPED[byte] for byte in value.encode()])


# ── The handshake ────────────────────────────────────────────────────────────────────────────────


RATE_MAX: Final = 10**9  # of permissions with more digits than can matter


def handshake_headers(origin: str, *, rate_per_s: float | None) -> tuple[tuple[str, str], ...]:
    """Return the headers of the OPTIONS request that asks an endpoint for permission. ``origin`` is
    the DNS name of this cluster. After the handshake, each request has the first of them."""
    headers = (("webhook-request-origin", origin),)
    if rate_per_s is None:
        return headers
    return (*headers, ("webhook-request-rate", str(max(1, round(rate_per_s * 60)))))


def judge_handshake(status: int, headers: Mapping[str, str], *, origin: str) -> WebhookPermission:
    """Judge the reply to the handshake; names of headers are in lower case. A status alone is not a
    permission, because many servers reply to OPTIONS."""
    if not 200 <= status < 300:
        return WebhookPermission(
            False, reason=f"the endpoint replied to OPTIONS with status {status}"
        )
    allowed = headers.get("webhook-allowed-origin", "").strip()
    if not allowed:
        return WebhookPermission(False, reason="the reply has no header WebHook-Allowed-Origin")
    if allowed != "*" and allowed.lower() != origin.lower():
        return WebhookPermission(
            False, reason=f"WebHook-Allowed-Origin is neither {origin} nor *: {allowed[:100]!a}"
        )
    rate = headers.get("webhook-allowed-rate", "*").strip()
    if rate == "*":
        return WebhookPermission(True, origin=origin)
    if re.fullmatch("0*[1-9][0-9]*", rate) is None:
        return WebhookPermission(
            False,
            reason=f"WebHook-Allowed-Rate is neither a positive number nor *: {rate[:100]!a}",
        )
    return WebhookPermission(True, int(rate) if len(rate) < 10 else RATE_MAX, origin=origin)
