"""Requests of webhooks in each format, alone and in batches, read by the packages of the judges."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import http as judge
from cloudevents.core.formats.json import JSONFormat
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError
from tests.unit.wire.webhooks.records import (
    ARN,
    ATTRIBUTES,
    GROUPS,
    MESSAGE_ID_TEXT,
    TIME,
    record,
)

from penstock.model.message import Attribute, Message, Record
from penstock.wire.webhooks.cloudevents import HeadersTooLong
from penstock.wire.webhooks.delivery_requests import (
    DeliveryRequest,
    Outgoing,
    RequestMaker,
    failed_items,
)
from penstock.wire.webhooks.settings import Secrets, create
from penstock.wire.webhooks.standard import secret_text

SUBSCRIPTION = f"{ARN}:0f8fad5b"
SECRET = secret_text(b"s" * 32)
FORMATS = ["raw", "sns", "cloudevents-binary", "cloudevents-structured", "standard"]
BATCHES = [name for name in FORMATS if name != "cloudevents-binary"]


def now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1_000)


def maker(secrets: Secrets | None = None, **members: Any) -> RequestMaker:
    document = json.dumps({"secret": SECRET, **members}).encode()
    settings, made = create(document, random=bytes(32))
    return RequestMaker(
        settings,
        secrets or made,
        topic_arn=ARN,
        subscription_arn=SUBSCRIPTION,
        origin="events.example.com",
    )


def outgoing(found: Record, partition: int = 3) -> Outgoing:
    notification = json.dumps({"MessageId": found.message.message_id.hex()}).encode()
    return Outgoing(found, partition, "about", notification)


def numbered(bodies: list[bytes]) -> list[Outgoing]:
    return [
        outgoing(record(body, offset=number, message_id=number.to_bytes(16, "big")))
        for number, body in enumerate(bodies)
    ]


def headers_of(request: DeliveryRequest) -> dict[str, str]:
    headers = dict(request.headers)
    assert len(headers) == len(request.headers), "no header is there twice"
    return headers


def unsigned(request: DeliveryRequest) -> dict[str, str]:
    found = headers_of(request)
    return {name: found[name] for name in found if not name.startswith("webhook-")}


# ── One record ───────────────────────────────────────────────────────────────────────────────────


def test_a_raw_request_is_the_body_and_a_signature() -> None:
    request = maker().make([outgoing(record(b"hello", other="x"))], now_ms=1_769_860_800_999)
    assert (request.method, request.body, request.count) == ("POST", b"hello", 1)
    assert headers_of(request) == {
        "user-agent": "Penstock",
        "content-type": "text/plain; charset=UTF-8",
        "webhook-id": MESSAGE_ID_TEXT,
        "webhook-timestamp": "1769860800",
        # printf %s "$id.1769860800.hello" | openssl dgst -sha256 -hmac "$(printf 's%.0s' {1..32})"
        "webhook-signature": "v1,zKa3erHwRCw9Dls9vCUOpgWxU8to1JlUAeEH9blXoQk=",
    }
    bytes_ = maker().make([outgoing(record(b"\xff"))], now_ms=0)
    assert unsigned(bytes_)["content-type"] == "application/octet-stream"


def test_a_standard_request_has_type_timestamp_and_data() -> None:
    found = record(b'{"a": 1}', ce_type="order.paid")
    request = maker(format="standard").make([outgoing(found)], now_ms=now_ms())
    assert unsigned(request) == {"user-agent": "Penstock", "content-type": "application/json"}
    assert Webhook(SECRET).verify(request.body, headers_of(request)) == {
        "type": "order.paid",
        "timestamp": TIME,
        "data": {"a": 1},
    }
    assert json.loads(maker(format="standard").make([outgoing(record())], now_ms=0).body)[
        "type"
    ] == ("penstock.message")


def test_an_sns_request_is_the_notification_with_its_headers() -> None:
    one = outgoing(record())
    request = maker(format="sns").make([one], now_ms=0)
    assert request.body == one.notification
    assert unsigned(request) == {
        "user-agent": "Penstock",
        "content-type": "text/plain; charset=UTF-8",
        "x-amz-sns-message-type": "Notification",
        "x-amz-sns-message-id": MESSAGE_ID_TEXT,
        "x-amz-sns-topic-arn": ARN,
        "x-amz-sns-subscription-arn": SUBSCRIPTION,
    }


@pytest.mark.parametrize("format_", ["cloudevents-binary", "cloudevents-structured"])
def test_the_judge_reads_an_event_of_either_format(format_: str) -> None:
    found = record(b'{"a": 1}', group="g", ce_colour="naïve red")
    request = maker(format=format_).make([outgoing(found)], now_ms=now_ms())
    event = judge.from_http_event(judge.HTTPMessage(headers_of(request), request.body))
    assert event.get_data() == {"a": 1}
    attributes = event.get_attributes()
    assert attributes.pop("time").isoformat() == "2026-01-31T12:00:00.123000+00:00"
    assert attributes == {
        "specversion": "1.0",
        "id": MESSAGE_ID_TEXT,
        "source": ARN,
        "type": "penstock.message",
        "subject": "about",
        "partitionkey": "g",
        "sequence": "00000000000000000007",
        "penstockpartition": "3",
        "colour": "naïve red",
        "datacontenttype": "application/json",
    }


def test_settings_add_headers() -> None:
    request = maker(
        method="PUT",
        headers={"Content-Type": "application/xml", "User-Agent": "mine", "X-Team": "a"},
        auth={"type": "bearer", "token": "t"},
        verify="cloudevents",
    ).make([outgoing(record())], now_ms=0, is_test=True)
    assert request.method == "PUT"
    found = headers_of(request)
    assert found["webhook-id"] == f"test_{MESSAGE_ID_TEXT}"
    assert found.pop("webhook-request-origin") == "events.example.com"
    assert {name: found[name] for name in found if not name.startswith("webhook-")} == {
        "user-agent": "mine",
        "x-team": "a",
        "authorization": "Bearer t",
        "content-type": "application/xml",
        "x-penstock-test": "1",
    }


@given(st.sampled_from(FORMATS), st.binary(), ATTRIBUTES, GROUPS, st.none() | st.text(max_size=9))
def test_no_record_adds_a_line_to_the_head(
    format_: str,
    body: bytes,
    attributes: dict[str, Attribute],
    group: str | None,
    subject: str | None,
) -> None:
    message = Message(bytes(16), body, attributes or None, group)
    one = Outgoing(Record(0, 0, message), 0, subject, b"{}")
    request = maker(format=format_).make([one], now_ms=0)
    for name, value in headers_of(request).items():
        assert re.fullmatch("[a-z0-9-]+", name)
        assert re.fullmatch("[!-~](?:[ -~]*[!-~])?", value)


def test_the_largest_head_stays_below_the_limit_of_servers() -> None:
    request = maker(
        format="cloudevents-binary",
        headers={"x": "x" * 2_000},
        auth={"type": "bearer", "token": "y" * 2_067},
        verify="cloudevents",
    ).make([outgoing(record(ce_a="a" * 8_000))], now_ms=0, is_test=True)
    url_and_host = 2_048 + 300
    assert sum(len(a) + len(b) + 4 for a, b in request.headers) + url_and_host < 16_384
    with pytest.raises(HeadersTooLong):
        maker(format="cloudevents-binary").make([outgoing(record(ce_a="é" * 1_400))], now_ms=0)


# ── Signatures ───────────────────────────────────────────────────────────────────────────────────


@given(st.sampled_from(FORMATS), st.text(), st.booleans())
def test_the_judge_accepts_every_signature(format_: str, body: str, is_batch: bool) -> None:
    is_batch = is_batch and format_ in BATCHES
    make = maker(format=format_, batch_max=5 if is_batch else 1).make
    request = make(numbered([body.encode()] * 3), now_ms=now_ms())
    Webhook(SECRET).verify(request.body, headers_of(request), json_parse=False)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret_text(b"x" * 32)).verify(request.body, headers_of(request), json_parse=False)


def test_a_rotation_ends_while_the_maker_is_in_use() -> None:
    _, secrets = create(json.dumps({"secret": SECRET}).encode(), random=b"")
    end_ms = now_ms()
    rotated = secrets.rotated(random=b"n" * 32, now_ms=end_ms - 86_400_000)
    found = maker(rotated)
    one = [outgoing(record())]
    before, after = found.make(one, now_ms=end_ms - 1), found.make(one, now_ms=end_ms)
    for secret in (SECRET, secret_text(b"n" * 32)):
        Webhook(secret).verify(before.body, headers_of(before))
    Webhook(secret_text(b"n" * 32)).verify(after.body, headers_of(after))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(after.body, headers_of(after))


# ── Batches ──────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.binary() | st.sampled_from([b'{"a":\r\n[1,\n2]}', b"a\nb", b"7"]), min_size=1))
def test_each_raw_body_is_one_line(bodies: list[bytes]) -> None:
    request = maker(batch_max=1_000).make(numbered(bodies), now_ms=0)
    assert unsigned(request)["content-type"] == "application/x-ndjson"
    assert request.body.endswith(b"\n")
    lines = request.body.removesuffix(b"\n").split(b"\n")
    assert (len(lines), request.count) == (len(bodies), len(bodies))
    for line, body in zip(lines, bodies, strict=True):
        value = json.loads(line)
        try:
            text = body.decode()
        except UnicodeDecodeError:
            assert b64decode(value["data_base64"]) == body
            continue
        try:
            assert value == json.loads(text)
        except ValueError:
            assert value == text


def test_a_batch_of_events_is_what_the_judge_reads() -> None:
    records = numbered([b'{"a": 1}', b"text", b"\xff"])
    request = maker(format="cloudevents-structured", batch_max=10).make(records, now_ms=0)
    assert unsigned(request)["content-type"] == "application/cloudevents-batch+json; charset=UTF-8"
    events = [JSONFormat().read(None, json.dumps(event)) for event in json.loads(request.body)]
    assert [event.get_data() for event in events] == [{"a": 1}, "text", b"\xff"]
    assert [event.get_id() for event in events] == list(request.identifiers)


def test_a_batch_of_documents_is_a_json_array_with_ids() -> None:
    records = numbered([b"1", b"2"])
    request = maker(format="standard", batch_max=10).make(records, now_ms=now_ms())
    assert Webhook(SECRET).verify(request.body, headers_of(request)) == [
        {"id": name, "type": "penstock.message", "timestamp": TIME, "data": data}
        for name, data in zip(request.identifiers, (1, 2), strict=True)
    ]
    sns = maker(format="sns", batch_max=10).make(records, now_ms=0)
    assert json.loads(sns.body) == [json.loads(one.notification) for one in records]
    assert "x-amz-sns-message-id" not in headers_of(sns)
    assert sns.identifiers == request.identifiers


def test_a_single_record_is_a_batch_where_batches_are_set() -> None:
    request = maker(format="standard", batch_max=2).make(numbered([b"1"]), now_ms=0)
    assert len(json.loads(request.body)) == request.count == 1


@given(st.sampled_from(BATCHES), st.lists(st.integers(0, 3_000), min_size=1, max_size=12))
def test_a_batch_has_as_many_records_as_fit(format_: str, sizes: list[int]) -> None:
    make = maker(format=format_, batch_max=5, batch_bytes_max=4_096).make
    records = numbered([b"x" * size for size in sizes])
    if format_ == "sns":
        for place, size in enumerate(sizes):
            one = records[place]
            records[place] = Outgoing(one.record, 0, None, b'"%b"' % (b"x" * size))
    left, ids = records, []
    while left:
        request = make(left, now_ms=0)
        assert 1 <= request.count <= 5
        assert request.count == len(request.identifiers)
        assert request.count == 1 or len(request.body) <= 4_096
        if request.count < min(5, len(left)):
            # One more would not have fit.
            more = maker(format=format_, batch_max=5, batch_bytes_max=1_048_576).make
            assert len(more(left[: request.count + 1], now_ms=0).body) > 4_096
        ids += [one.record.offset for one in left[: request.count]]
        left = left[request.count :]
    assert ids == list(range(len(sizes)))


@pytest.mark.parametrize("format_", BATCHES)
def test_a_batch_may_have_exactly_the_bytes_that_are_allowed(format_: str) -> None:
    records = numbered([b"x" * 600, b"y" * 600])
    if format_ == "sns":
        records = [Outgoing(one.record, 0, None, one.record.message.body) for one in records]
    size = len(maker(format=format_, batch_max=2).make(records, now_ms=0).body)
    for bytes_max, count in ((size, 2), (size - 1, 1)):
        make = maker(format=format_, batch_max=2, batch_bytes_max=bytes_max).make
        assert make(records, now_ms=0).count == count


def test_the_id_of_a_batch_depends_on_all_its_messages() -> None:
    make = maker(batch_max=10).make
    records = numbered([b"a", b"b", b"c"])

    def id_of(some: list[Outgoing], at_ms: int = 0) -> str:
        return headers_of(make(some, now_ms=at_ms))["webhook-id"]

    assert id_of(records) == id_of(records, 60_000)
    assert len({id_of(some) for some in (records, records[:2], records[1:], records[:1])}) == 4


# ── Replies ──────────────────────────────────────────────────────────────────────────────────────


def batch(format_: str = "standard", count: int = 3) -> DeliveryRequest:
    make = maker(format=format_, batch_max=10).make
    return make(numbered([b"1"] * count), now_ms=0)


def reply(*identifiers: object) -> bytes:
    items = [{"itemIdentifier": name} for name in identifiers]
    return json.dumps({"batchItemFailures": items}).encode()


@given(st.sampled_from(BATCHES), st.integers(1, 10), st.data())
def test_the_named_records_have_failed(format_: str, count: int, data: st.DataObject) -> None:
    request = batch(format_, count)
    failed = data.draw(st.lists(st.integers(0, count - 1), max_size=12))
    found = failed_items(request, reply(*(request.identifiers[place] for place in failed)))
    assert found == tuple(sorted(set(failed)))


ALL = (0, 1, 2)


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        (b"", ()),
        (b"OK", ()),
        (b"\xff", ()),
        (b"{}", ()),
        (b"[" * 100_000, ()),
        (b'{"batchItemFailures": []}', ()),
        (b'{"batchItemFailures": null}', ()),
        (b'{"other": {"batchItemFailures": 1}}', ()),
        (reply("unknown"), ALL),
        (reply(""), ALL),
        (reply("00000000-0000-0000-0000-000000000001", "unknown"), ALL),
        (reply("00000000-0000-0000-0000-000000000001"), (1,)),
        (reply(None), ALL),
        (b'{"batchItemFailures": [{}]}', ALL),
        (b'{"batchItemFailures": "all"}', ALL),
        (b'{"batchItemFailures": [{"itemIdentifier": "0000', ALL),
        (b'{"batchItemFailures": ' + b"[" * 60_000, ALL),
        (b'{"batchItemFailures": [{"itemIdentifier": "\xff"}]}', ALL),
        (b'["batchItemFailures"]', ALL),
        (b'{"batchItemFailures": [{"itemIdentifier": %b}]}' % (b"9" * 5_000), ALL),
    ],
)
def test_a_reply_that_names_failures_and_is_not_understood_fails_all(
    body: bytes, failed: tuple[int, ...]
) -> None:
    assert failed_items(batch(), body) == failed


def test_lines_are_named_by_their_number() -> None:
    request = batch("raw")
    assert failed_items(request, reply(0, "2")) == (0, 2)
    assert failed_items(request, reply(3)) == ALL
    assert failed_items(request, reply("01")) == ALL


def test_events_of_one_id_fail_together() -> None:
    make = maker(format="cloudevents-structured", batch_max=10).make
    names = ("a", "b", "a")
    records = [outgoing(record(offset=place, ce_id=name)) for place, name in enumerate(names)]
    request = make(records, now_ms=0)
    assert request.identifiers == names
    assert failed_items(request, reply("a")) == (0, 2)


def test_a_single_request_has_no_parts_that_fail() -> None:
    request = maker().make([outgoing(record())], now_ms=0)
    assert failed_items(request, reply("x")) == ()
