"""Message bodies inside JSON documents, and timestamps, as all formats of webhooks write them."""

from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.model.limits import KIB

# 9999-12-31T23:59:59.999Z. Kafka producers choose the timestamps of their records.
_AT_MS_MAX: Final = 253_402_300_799_999

# Escaping takes up to 13 ms per MiB, and signing the sixfold text 4 ms.
TEXT_BYTES_MAX: Final = 512 * KIB

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain; charset=UTF-8"
BYTES_TYPE: Final = "application/octet-stream"

_skip = msgspec.json.Decoder(msgspec.Raw).decode


def json_of(body: bytes) -> msgspec.Raw | None:
    """Return the body as a part of a JSON document if it is JSON in UTF-8, else None."""
    try:
        if not body.isascii():
            body.decode()
        return _skip(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def text_of(body: bytes) -> str | None:
    """Return the body as a text if it is UTF-8 and short enough to be escaped, else None."""
    if len(body) > TEXT_BYTES_MAX:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def plain_type_of(body: bytes) -> str:
    """Return the content type of a body that is sent as it is."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError:
            return BYTES_TYPE
    return TEXT_TYPE


def timestamp(at_ms: int) -> str:
    """Return a time as RFC 3339 text in UTC with milliseconds: ``2026-01-31T12:00:00.123Z``."""
    seconds, ms = divmod(min(max(at_ms, 0), _AT_MS_MAX), 1_000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat()[:19]}.{ms:03d}Z"
