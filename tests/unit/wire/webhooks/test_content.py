"""Bodies in JSON documents, and times, at their edges."""

from __future__ import annotations

import json

import pytest

from penstock.wire.webhooks.content import (
    TEXT_BYTES_MAX,
    json_of,
    plain_type_of,
    text_of,
    timestamp,
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"NaN",
        b"01",
        b"{'a': 1}",
        b'{"a": 1',
        b'{"a": 1} x',
        b'"\xff"',
        b'{"\xff": 1}',
        b'"\x01"',
        b'"\\ud800"',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    ],
)
def test_a_body_that_parsers_reject_is_not_json(body: bytes) -> None:
    assert json_of(body) is None


@pytest.mark.parametrize(
    "body", [b"null", b' {"a": 1}\r\n', b'"\xc3\xa9"', b"-1.50e3", b'{"a":1,"a":2}', b"9" * 4_000]
)
def test_json_keeps_its_bytes(body: bytes) -> None:
    found = json_of(body)
    assert found is not None
    assert bytes(found) == body.strip()
    json.loads(bytes(found))


def test_a_text_that_takes_long_to_escape_is_not_written_as_a_text() -> None:
    assert text_of(b"\x01" * TEXT_BYTES_MAX) == "\x01" * TEXT_BYTES_MAX
    assert text_of(b"\x01" * (TEXT_BYTES_MAX + 1)) is None
    assert plain_type_of(b"\x01" * (TEXT_BYTES_MAX + 1)) == "text/plain; charset=UTF-8"
    assert plain_type_of(b"\xff") == "application/octet-stream"


@pytest.mark.parametrize(
    ("at_ms", "text"),
    [
        (1_769_860_800_123, "2026-01-31T12:00:00.123Z"),
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1970-01-01T00:00:00.000Z"),
        (-(2**63), "1970-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (2**63 - 1, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_every_time_of_a_record_has_a_text(at_ms: int, text: str) -> None:
    assert timestamp(at_ms) == text
