"""CloudEvents: the judge is the package ``cloudevents``."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http as judge
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.wire.webhooks.records import (
    ARN,
    AT_MS,
    ATTRIBUTES,
    GROUPS,
    JSON,
    MESSAGE_ID,
    MESSAGE_ID_TEXT,
    TIME,
    record,
)

from penstock.model.message import Attribute, Message, Record
from penstock.model.subscription import WebhookPermission
from penstock.wire.webhooks.cloudevents import (
    HEADERS_BYTES_MAX,
    STRUCTURED_TYPE,
    VALUE_BYTES_MAX,
    HeadersTooLong,
    attributes_of,
    binary,
    escaped,
    handshake_headers,
    judge_handshake,
    structured,
    type_of,
)


def attributes(found: Record, subject: str | None = None) -> dict[str, str]:
    return attributes_of(found, source=ARN, partition=3, subject=subject)


def structured_event(found: Record) -> Any:
    message = judge.HTTPMessage(
        {"content-type": STRUCTURED_TYPE}, structured(attributes(found), found.message.body)
    )
    return judge.from_http_event(message)


def binary_event(found: Record) -> Any:
    body = found.message.body
    return judge.from_http_event(judge.HTTPMessage(dict(binary(attributes(found), body)), body))


# ── Attributes ───────────────────────────────────────────────────────────────────────────────────


def test_a_record_without_attributes_is_an_event() -> None:
    assert attributes(record()) == {
        "id": MESSAGE_ID_TEXT,
        "source": ARN,
        "type": "penstock.message",
        "time": TIME,
        "sequence": "00000000000000000007",
        "penstockpartition": "3",
    }


def test_the_subject_is_the_subject_or_the_group() -> None:
    group = attributes(record(group="g"))
    assert (group["subject"], group["partitionkey"]) == ("g", "g")
    both = attributes(record(group="g"), subject="s")
    assert (both["subject"], both["partitionkey"]) == ("s", "g")
    odd = attributes(record(group="a\nb"), subject="\x7f")
    assert not {"subject", "partitionkey"} & set(odd)


def test_attributes_with_the_prefix_win() -> None:
    found = attributes(
        record(
            group="g",
            ce_id="1",
            ce_source="/s",
            ce_type="t",
            ce_time="2018-04-05T17:31:00.123456789+02:00",
            ce_subject="s",
            ce_dataschema="http://schema",
            ce_partitionkey="k",
            ce_traceparent="00-1",
            content_type="image/png",
            other="ignored",
        )
    )
    assert found == {
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2018-04-05T17:31:00.123456789+02:00",
        "subject": "s",
        "partitionkey": "k",
        "sequence": "00000000000000000007",
        "penstockpartition": "3",
        "dataschema": "http://schema",
        "traceparent": "00-1",
        "datacontenttype": "image/png",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_id", b""),
        ("ce_id", b"\xff"),
        ("ce_type", b"a\r\nb: c"),
        ("ce_source", "a\x85b".encode()),
        ("ce_subject", b"x" * (VALUE_BYTES_MAX + 1)),
        ("ce_time", b"yesterday"),
        ("ce_time", b"2020-02-30T00:00:00Z"),
        ("ce_time", b"2020-02-03 00:00:00Z"),
        ("ce_time", b"2020-02-03T00:00:00"),
        ("ce_time", "2020-02-03T00:00:0٣Z".encode()),
        ("ce_specversion", b"0.3"),
        ("ce_data", b"x"),
        ("ce_data_base64", b"x"),
        ("ce_Upper", b"x"),
        ("ce_", b"x"),
        ("ce_" + "x" * 65, b"x"),
        ("content-type", b"text"),
        ("content-type", b"text/plain; "),
        ("content-type", b"text/plain\r\nx: y"),
        ("content-type", b"text/plain; " + b"x" * 200),
        ("ce_datacontenttype", "text/é".encode()),
    ],
)
def test_a_value_that_cloudevents_does_not_allow_is_ignored(name: str, value: bytes) -> None:
    found = Record(7, AT_MS, Message(MESSAGE_ID, b"{}", {name: Attribute("String", value)}))
    assert attributes(found) == attributes(record())


def test_the_type_is_known_without_the_other_attributes() -> None:
    assert type_of(record()) == "penstock.message"
    assert type_of(record(ce_type="order.paid")) == "order.paid"
    assert type_of(record(ce_type="a\nb")) == "penstock.message"


# ── Modes ────────────────────────────────────────────────────────────────────────────────────────


@given(st.binary(), ATTRIBUTES, GROUPS, st.integers(0, 2**62), st.integers(-(2**63), 2**63 - 1))
def test_the_judge_reads_any_record_in_both_modes(
    body: bytes, given_attributes: dict[str, Attribute], group: str | None, offset: int, at_ms: int
) -> None:
    found = Record(offset, at_ms, Message(MESSAGE_ID, body, given_attributes or None, group))
    expected: dict[str, Any] = {**attributes(found), "specversion": "1.0"}
    expected["time"] = datetime.fromisoformat(expected["time"])
    for event in (structured_event(found), binary_event(found)):
        read = dict(event.get_attributes())
        if "datacontenttype" not in expected:
            read.pop("datacontenttype", None)
        assert read == expected


@given(JSON)
def test_json_is_data_in_both_modes(value: Any) -> None:
    for body in (json.dumps(value).encode(), json.dumps(value, indent=1).encode()):
        for found in (record(body), record(body, content_type="application/vnd.x+json; a=b")):
            document = json.loads(structured(attributes(found), body))
            assert document["data"] == value
            assert "data_base64" not in document
            assert binary_event(found).get_data() == value
        assert json.loads(structured(attributes(record(body)), body))["datacontenttype"] == (
            "application/json"
        )
        assert binary_event(record(body)).get_datacontenttype() == "application/json"


@given(st.binary(min_size=1))
def test_any_bytes_come_back(body: bytes) -> None:
    for found in (record(body), record(body, content_type="image/png")):
        document = json.loads(structured(attributes(found), body))
        assert ("data" in document) != ("data_base64" in document)
        if "data_base64" in document:
            assert b64decode(document["data_base64"]) == body
            assert document.get("datacontenttype") == attributes(found).get("datacontenttype")
        elif re.match("application/json", document["datacontenttype"]):
            assert document["data"] == json.loads(body)
        else:
            assert document["data"].encode() == body


@pytest.mark.parametrize(
    ("content_type", "body", "member"),
    [
        ("application/json", b"no json", "data_base64"),
        ("application/json", b'"\\u00e9"', "data"),
        ("APPLICATION/JSON ; charset=utf-8", b"[1]", "data"),
        ("application/jsonp", b"[1]", "data"),
        ("text/plain", b"[1]", "data"),
        ("text/plain; charset=utf-8", "é".encode(), "data"),
        ('text/plain; charset="UTF-8"', b"a", "data"),
        ("text/plain;charset=utf8;x=y", b"a", "data"),
        ("text/plain; charset=utf-80", b"a", "data_base64"),
        ("text/plain; charset=utf-16", "é".encode("utf-16"), "data_base64"),
        ("text/plain; charset=iso-8859-1", b"a", "data_base64"),
        ("text/plain", b"\xff", "data_base64"),
        ("image/png", b"\x89PNG\xff", "data_base64"),
    ],
)
def test_the_content_type_decides_how_data_is_written(
    content_type: str, body: bytes, member: str
) -> None:
    found = record(body, content_type=content_type)
    document = json.loads(structured(attributes(found), body))
    assert document["datacontenttype"] == content_type
    assert member in document
    if "json" in content_type.lower() and "jsonp" not in content_type and member == "data":
        assert document["data"] == json.loads(body)
    elif member == "data":
        assert document["data"] == body.decode()
    else:
        assert b64decode(document["data_base64"]) == body
    assert dict(binary(attributes(found), body))["content-type"] == content_type


def test_an_empty_body_is_an_event_without_data() -> None:
    document = json.loads(structured(attributes(record(b"")), b""))
    assert not {"data", "data_base64", "datacontenttype"} & set(document)
    assert structured_event(record(b"")).get_data() is None
    assert binary_event(record(b"")).get_data() is None


@given(st.text())
def test_values_of_headers_are_escaped_as_the_judge_does(value: str) -> None:
    assert escaped(value) == judge._encode_header_value(value)
    assert re.fullmatch("[!-~]*", escaped(value))


def test_the_example_of_the_binding_is_escaped_as_the_binding_has_it() -> None:
    assert escaped("Euro € 😀") == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    assert escaped('a"b%') == "a%22b%25"


def test_headers_that_servers_would_reject_are_an_error() -> None:
    room = HEADERS_BYTES_MAX - sum(len(a) + len(b) for a, b in attributes(record()).items())
    fits = binary(attributes(record(ce_x="x" * (room - 1))), b"")
    assert sum(len(a) + len(b) - 3 for a, b in fits if a.startswith("ce-") and "spec" not in a) == (
        HEADERS_BYTES_MAX
    )
    for value in ("x" * room, "é" * 1_500):
        with pytest.raises(HeadersTooLong, match="8192 bytes"):
            binary(attributes(record(ce_x=value)), b"")


# ── The handshake ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("rate_per_s", "rate"), [(None, None), (2.0, "120"), (0.01, "1"), (100_000.0, "6000000")]
)
def test_the_handshake_asks_for_a_rate_per_minute(
    rate_per_s: float | None, rate: str | None
) -> None:
    headers = dict(handshake_headers("events.example.com", rate_per_s=rate_per_s))
    assert headers["webhook-request-origin"] == "events.example.com"
    assert headers.get("webhook-request-rate") == rate


ORIGIN, RATE = "webhook-allowed-origin", "webhook-allowed-rate"


@pytest.mark.parametrize(
    ("status", "headers", "rate"),
    [
        (200, {ORIGIN: "*"}, None),
        (204, {ORIGIN: "Events.Example.com", RATE: "*"}, None),
        (200, {ORIGIN: " events.example.com ", RATE: " 120 "}, 120),
        (200, {ORIGIN: "*", RATE: "007"}, 7),
        (200, {ORIGIN: "*", RATE: "9" * 5_000}, 10**9),
    ],
)
def test_an_endpoint_gives_permission(
    status: int, headers: dict[str, str], rate: int | None
) -> None:
    found = judge_handshake(status, headers, origin="events.example.com")
    assert found == WebhookPermission(True, rate, origin="events.example.com")


@pytest.mark.parametrize(
    ("status", "headers", "reason"),
    [
        (405, {ORIGIN: "*"}, "the endpoint replied to OPTIONS with status 405"),
        (302, {ORIGIN: "*"}, "the endpoint replied to OPTIONS with status 302"),
        (200, {}, "the reply has no header WebHook-Allowed-Origin"),
        (200, {ORIGIN: " ", RATE: "*"}, "the reply has no header WebHook-Allowed-Origin"),
        (
            200,
            {ORIGIN: "other.example.com\u2028"},
            "WebHook-Allowed-Origin is neither e.org nor *: 'other.example.com'",
        ),
        *(
            (
                200,
                {ORIGIN: "*", RATE: rate},
                f"WebHook-Allowed-Rate is neither a positive number nor *: '{rate}'",
            )
            for rate in ("", "0", "000", "-1", "1.5", "many")
        ),
    ],
)
def test_any_other_reply_is_not_a_permission(
    status: int, headers: dict[str, str], reason: str
) -> None:
    assert judge_handshake(status, headers, origin="e.org") == WebhookPermission(
        False, reason=reason
    )
