"""Signatures of dead-letter messages."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.quality.failure_signature import (
    DROP,
    FIX,
    REDRIVE,
    content_of,
    masked,
    shape_of,
    signature_of,
    suggestion_for,
)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("order 17 failed", "order <id> failed"),
        ("order 1f0e3dad-9990-8345-f743-9ffabdffc49e gone", "order <id> gone"),
        ("at 2026-03-01T12:00:00.123Z and 12:00:01", "at <time> and <time>"),
        ("dial 10.1.2.3:443: refused", "dial <ip>: refused"),
        ("HTTP 404 for 77", "http 404 for <id>"),
        ("Status: 503", "status: 503"),
        ("no user ann@example.org", "no user <mail>"),
        ("key ord_9f3kq2 and CUST-000017", "key <id> and <id>"),
        ("  two\tspaces\nsecond line 5", "two spaces"),
        ("", ""),
    ],
)
def test_what_differs_from_message_to_message_is_masked(text: str, want: str) -> None:
    assert masked(text) == want


@settings(max_examples=80, deadline=None)
@given(st.uuids(), st.uuids(), st.integers(0, 10**15), st.integers(0, 10**15), st.datetimes())
def test_ids_numbers_and_times_never_split_a_cause(
    one: uuid.UUID, other: uuid.UUID, m: int, n: int, at: datetime
) -> None:
    def of(key: uuid.UUID, number: int, when: datetime) -> str:
        text = f"order {key} of {number} failed at {when.isoformat()}"
        body = json.dumps({"id": str(key), "n": number, str(key): {"x": 1}})
        return signature_of("q", {"error": text.encode()}, body.encode()).digest

    assert of(one, m, at) == of(other, n, datetime.fromtimestamp(0.1, UTC))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.dictionaries(st.text(max_size=8), st.binary(max_size=50)))
def test_any_bytes_have_a_signature(body: bytes, attributes: dict[str, bytes]) -> None:
    assert len(signature_of("q", attributes, body).digest) == 16
    assert content_of(None, attributes, body) == content_of(b"", attributes, body)


def test_deep_and_huge_bodies_are_cut_and_not_followed() -> None:
    assert shape_of(b"[" * 100_000) == "broken json"
    assert shape_of(b"{" + b" " * 300_000) == "large"
    assert shape_of(b'{"a":' * 50 + b"1" + b"}" * 50).count("{") == 7
    wide = json.dumps({f"key{n}": n for n in range(5_000)}).encode()
    assert shape_of(wide).count(":") <= 200


def test_shapes_know_keys_and_types_and_no_values() -> None:
    assert shape_of(b'{"b":1,"a":"x"}') == shape_of(b'{"a":"yyy","b":2.5}') == "{a:text,b:number}"
    assert shape_of(b'{"a":null}') != shape_of(b'{"a":"x"}')
    assert shape_of(b"<order id='1'/>") == "xml order"
    assert (shape_of(b"plain"), shape_of(b" "), shape_of(b"\x00\x01x")) == (
        "text",
        "empty",
        "binary 0001",
    )


def test_suggestions_follow_what_is_known() -> None:
    def of(error: str = "", *, poison: int = 0, span_ms: int = 0, quiet_ms: int = 0) -> str:
        return suggestion_for(
            error, shape="text", poison=poison, span_ms=span_ms, quiet_ms=quiet_ms
        )

    assert of("read timed out") == REDRIVE
    assert of("read timed out", poison=1) == FIX
    assert of("order already processed") == DROP
    assert of("KeyError: amount") == FIX
    assert of(span_ms=1_000, quiet_ms=5_000) == REDRIVE
    assert of(span_ms=5_000, quiet_ms=1_000) == FIX
