"""Standard Webhooks: the judge is the package ``standardwebhooks``."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError
from tests.unit.wire.webhooks.records import JSON

from penstock.wire.webhooks.standard import (
    SECRET_BYTES,
    document,
    key_of,
    secret_text,
    signed_headers,
    signer,
)

OLD, NEW = secret_text(bytes(SECRET_BYTES)), secret_text(bytes(range(SECRET_BYTES)))
KEYS = st.binary(min_size=24, max_size=64)


def now_s() -> int:
    return int(datetime.now(UTC).timestamp())


@given(KEYS, st.text(min_size=1, max_size=50), st.text())
def test_the_judge_accepts_a_signature_and_no_other_body(key: bytes, id_: str, body: str) -> None:
    secret, at_s = secret_text(key), now_s()
    raw = body.encode()
    headers = dict(signed_headers([signer(secret)], request_id=id_, at_s=at_s, body=raw))
    Webhook(secret).verify(raw, headers, json_parse=False)
    for other in ({**headers, "webhook-id": id_ + "x"}, {**headers, "webhook-timestamp": "1"}):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(raw, other, json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(raw + b" ", headers, json_parse=False)


def test_the_signature_covers_bytes_that_are_not_text() -> None:
    headers = dict(signed_headers([signer(NEW)], request_id="a", at_s=5, body=b"\xff\x00"))
    assert headers == {
        "webhook-id": "a",
        "webhook-timestamp": "5",
        # printf 'a.5.\xff\x00' | openssl dgst -sha256 -mac hmac -macopt hexkey:000102… -binary
        "webhook-signature": "v1,qGsGgrSHGzb3LTG0eMvIS+Dcq1YQX9YiAIURXMnBgGg=",
    }


def test_during_a_rotation_holders_of_either_secret_accept_the_request() -> None:
    body = b'{"a": 1}'
    headers = dict(
        signed_headers([signer(NEW), signer(OLD)], request_id="m", at_s=now_s(), body=body)
    )
    assert headers["webhook-signature"].count(" ") == 1
    assert Webhook(OLD).verify(body, headers) == Webhook(NEW).verify(body, headers) == {"a": 1}
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(b"x" * 32)).verify(body, headers)


@given(KEYS)
def test_a_secret_keeps_its_bytes(key: bytes) -> None:
    assert key_of(secret_text(key)) == key


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        b64encode(bytes(32)).decode(),
        secret_text(bytes(23)),
        secret_text(bytes(65)),
        secret_text(bytes(32))[:-1],
        "whsec_" + "é" * 40,
        "whsec_" + "!" * 44,
        " " + secret_text(bytes(32)),
    ],
)
def test_another_text_is_not_a_secret(text: str) -> None:
    assert key_of(text) is None


@given(st.text(), st.text(), JSON)
def test_a_json_body_becomes_a_json_value(type_: str, timestamp: str, value: object) -> None:
    for body in (json.dumps(value), json.dumps(value, indent=2, ensure_ascii=False)):
        found = json.loads(document(type_, timestamp=timestamp, body=body.encode()))
        assert found == {"type": type_, "timestamp": timestamp, "data": value}
        assert list(found) == ["type", "timestamp", "data"]


@given(st.binary())
def test_any_other_body_becomes_a_text_or_base64(body: bytes) -> None:
    found = json.loads(document("t", timestamp="now", body=body, id_="1"))
    assert found.pop("id") == "1"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        assert b64decode(found["data_base64"]) == body
        return
    try:
        value = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    except (ValueError, pytest.fail.Exception):
        value = text
    assert found == {"type": "t", "timestamp": "now", "data": value}
