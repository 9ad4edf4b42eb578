"""Frontend.handle from the outside: which protocol, which action, how faults look."""

import json
import logging
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.unit.frontend.memory import Rig

from penstock import __version__
from penstock.frontend.aws import incoming
from penstock.frontend.aws.context import FrontendConfig
from penstock.model.errors import DiskFull, InFlightLimit
from penstock.net.http.exchange import HttpReply

ACCOUNT = "000000000000"


def signed(region: str, service: str = "sqs", key: str = "AKID") -> dict[str, str]:
    return {
        "authorization": f"AWS4-HMAC-SHA256 Credential={key}/20260101/{region}/{service}"
        "/aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, Signature=00",
        "x-amz-date": "20260101T000000Z",
    }


async def json_call(
    rig: Rig, action: str, *, path: str = "/", headers: dict[str, str] | None = None, **fields: Any
) -> HttpReply:
    target = {"x-amz-target": f"AmazonSQS.{action}", **(headers or {})}
    return await rig.ask(path=path, body=json.dumps(fields).encode(), headers=target)


async def query_call(
    rig: Rig,
    action: str,
    *,
    path: str = "/",
    headers: dict[str, str] | None = None,
    **fields: str,
) -> HttpReply:
    form = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
    body = urlencode({"Action": action, **fields}).encode()
    return await rig.ask(path=path, body=body, headers=form)


async def make_queue(rig: Rig, name: str = "q", **attributes: str) -> str:
    reply = await json_call(rig, "CreateQueue", QueueName=name, Attributes=attributes)
    assert reply.status == 200, reply.body
    url: str = json.loads(reply.body)["QueueUrl"]
    return url


def headers_of(reply: HttpReply) -> dict[str, str]:
    return dict(reply.headers)


# ── Which protocol ───────────────────────────────────────────────────────────────────────────
async def test_json_is_answered_with_json_and_the_request_id() -> None:
    rig = Rig()
    reply = await json_call(rig, "CreateQueue", QueueName="q")
    assert reply.status == 200
    assert reply.content_type == "application/x-amz-json-1.0"
    assert json.loads(reply.body) == {"QueueUrl": f"http://queues.test:9324/{ACCOUNT}/q"}
    assert headers_of(reply)["x-amzn-RequestId"] == "request-1"


async def test_a_form_is_answered_with_xml() -> None:
    rig = Rig()
    reply = await query_call(rig, "CreateQueue", QueueName="q")
    assert reply.status == 200
    assert reply.content_type == "text/xml"
    assert f"<QueueUrl>http://queues.test:9324/{ACCOUNT}/q</QueueUrl>" in reply.body.decode()
    assert "<RequestId>request-1</RequestId>" in reply.body.decode()


async def test_a_get_with_an_action_is_a_call() -> None:
    rig = Rig()
    await make_queue(rig)
    reply = await rig.ask("GET", query="Action=ListQueues&Version=2012-11-05")
    assert "<QueueUrl>" in reply.body.decode()


@pytest.mark.parametrize("call", [json_call, query_call])
async def test_either_protocol_may_go_to_the_queues_own_path(call: Any) -> None:
    rig = Rig()
    await make_queue(rig)
    reply = await call(rig, "SendMessage", path=f"/{ACCOUNT}/q", MessageBody="hello")
    assert reply.status == 200
    assert rig.meter.tallies["sent"] == 1


async def test_a_queue_url_in_the_request_wins_over_the_path() -> None:
    rig = Rig()
    url = await make_queue(rig, "other")
    reply = await json_call(
        rig, "SendMessage", path=f"/{ACCOUNT}/nothing", QueueUrl=url, MessageBody="x"
    )
    assert reply.status == 200


@pytest.mark.parametrize(
    ("headers", "fields"),
    [({}, {}), (signed("us-east-1", "sts"), {}), (signed("aws-global", "sts"), {"Version": "x"})],
)
async def test_sts_tells_the_caller_who_it_is(
    headers: dict[str, str], fields: dict[str, str]
) -> None:
    reply = await query_call(Rig(), "GetCallerIdentity", headers=headers, **fields)
    assert reply.status == 200
    assert f"<Account>{ACCOUNT}</Account>" in reply.body.decode()


async def test_sts_answers_in_json_too() -> None:
    target = {"x-amz-target": "AWSSecurityTokenServiceV20110615.GetCallerIdentity"}
    reply = await Rig().ask(body=b"{}", headers=target)
    assert json.loads(reply.body)["Account"] == ACCOUNT


async def test_an_action_of_another_service_is_refused_in_that_services_form() -> None:
    reply = await query_call(Rig(), "AssumeRole", headers=signed("us-east-1", "sts"))
    assert reply.status == 400
    assert "https://sts.amazonaws.com/doc/2011-06-15/" in reply.body.decode()
    assert "<Code>InvalidAction</Code>" in reply.body.decode()


async def test_an_unknown_action_is_refused_in_each_protocol() -> None:
    rig = Rig()
    as_json = await json_call(rig, "MakeCoffee")
    assert as_json.status == 400
    assert json.loads(as_json.body)["__type"].endswith("#UnknownOperationException")
    as_query = await query_call(rig, "MakeCoffee")
    assert as_query.status == 400
    assert "<Code>InvalidAction</Code>" in as_query.body.decode()
    assert [row[0] for row in rig.meter.requests] == ["unknown", "unknown"]


async def test_a_post_without_an_action_is_told_so() -> None:
    reply = await rig_ask_form(b"QueueName=q")
    assert reply.status == 400
    assert "<Code>MissingAction</Code>" in reply.body.decode()


async def rig_ask_form(body: bytes) -> HttpReply:
    return await Rig().ask(body=body, headers={"content-type": "application/x-www-form-urlencoded"})


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"QueueName": 5}', b"[" * 100_000])
async def test_a_body_that_cannot_be_read_is_the_callers_fault(body: bytes) -> None:
    reply = await Rig().ask(body=body, headers={"x-amz-target": "AmazonSQS.CreateQueue"})
    assert reply.status == 400
    assert json.loads(reply.body)["__type"].endswith("#SerializationException")


# ── Faults ───────────────────────────────────────────────────────────────────────────────────
async def test_a_model_error_has_both_names_in_json() -> None:
    reply = await json_call(Rig(), "GetQueueUrl", QueueName="none")
    assert reply.status == 400
    assert json.loads(reply.body) == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    headers = headers_of(reply)
    assert headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert headers["x-amzn-RequestId"] == "request-1"


async def test_the_same_error_in_xml_keeps_its_older_sentence() -> None:
    reply = await query_call(Rig(), "GetQueueUrl", QueueName="none")
    text = reply.body.decode()
    assert reply.status == 400
    assert "<Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in text
    assert "for this wsdl version." in text
    assert headers_of(reply)["x-amzn-RequestId"] == "request-1"


@pytest.mark.parametrize("call", [json_call, query_call])
async def test_the_unexpected_is_logged_once_and_never_shown(
    call: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    url = await make_queue(rig)
    rig.backend.broken = RuntimeError("secret detail")
    with caplog.at_level(logging.ERROR):
        reply = await call(rig, "SendMessage", QueueUrl=url, MessageBody="x")
    assert reply.status == 500
    assert b"secret detail" not in reply.body
    assert b"request-1" in reply.body
    assert b"InternalFailure" in reply.body
    [record] = caplog.records
    assert record.exc_info is not None
    assert "secret detail" in str(record.exc_info[1])


async def test_a_full_disk_is_a_503_that_may_be_retried() -> None:
    rig = Rig()
    url = await make_queue(rig)
    rig.backend.broken = DiskFull("partition 0")
    reply = await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="x")
    assert reply.status == 503
    assert headers_of(reply)["retry-after"]


async def test_too_much_in_flight_is_over_limit() -> None:
    rig = Rig()
    url = await make_queue(rig)
    rig.backend.broken = InFlightLimit("Too many messages in flight.")
    reply = await json_call(rig, "ReceiveMessage", QueueUrl=url)
    assert reply.status == 403
    assert headers_of(reply)["x-amzn-query-error"] == "OverLimit;Sender"


# ── Who asks ─────────────────────────────────────────────────────────────────────────────────
async def test_the_signatures_region_is_a_namespace() -> None:
    rig = Rig()
    reply = await json_call(rig, "CreateQueue", QueueName="q", headers=signed("eu-west-1"))
    assert reply.status == 200
    assert rig.catalog.find(ACCOUNT, "eu-west-1", "q") is not None
    assert (await json_call(rig, "GetQueueUrl", QueueName="q")).status == 400
    elsewhere = f"http://sqs.eu-west-1.queues.test/{ACCOUNT}/q"
    reply = await json_call(rig, "ListQueueTags", QueueUrl=elsewhere)
    assert reply.status == 200, "an unsigned request takes the region from the URL"
    reply = await json_call(rig, "ListQueueTags", QueueUrl=elsewhere, headers=signed("ap-south-1"))
    assert reply.status == 400, "a signed one from its signature"


async def test_callers_who_sign_alike_are_told_apart() -> None:
    rig = Rig()
    url = await make_queue(rig)
    for key in ("one", "two", "one"):
        headers = signed("us-east-1", key=key)
        await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="x", headers=headers)
    reordered = (
        "AWS4-HMAC-SHA256 SignedHeaders=host, "
        "Credential={}/20260101/us-east-1/sqs/aws4_request, Signature=00"
    )
    for key in ("three", "four"):
        headers = {"authorization": reordered.format(key)}
        await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="x", headers=headers)
    [topic] = rig.catalog.all_topics()
    senders = [record.message.sender for record in rig.backend.records[topic.topic_id, 0]]
    assert senders == ["one", "two", "one", "three", "four"]


async def test_the_memory_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "SCOPES_MAX", 3)
    rig = Rig()
    for number in range(20):
        await json_call(rig, "ListQueues", headers=signed("us-east-1", key=f"key-{number}"))
        assert len(rig.frontend.scopes) <= 3


@pytest.mark.parametrize(
    "authorization", ["", "Basic eDp5", "AWS4-HMAC-SHA256 nonsense", "AWS4-HMAC-SHA256"]
)
async def test_with_authentication_off_any_credentials_are_good(authorization: str) -> None:
    reply = await json_call(
        Rig(), "CreateQueue", QueueName="q", headers={"authorization": authorization}
    )
    assert reply.status == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 403, "MissingAuthenticationToken"),
        (signed("us-east-1"), 403, "InvalidClientTokenId"),
        ({"authorization": "AWS4-HMAC-SHA256 nonsense"}, 400, "IncompleteSignature"),
    ],
)
async def test_with_authentication_on_nobody_is_believed_without_a_key(
    headers: dict[str, str], status: int, code: str
) -> None:
    rig = Rig(FrontendConfig(is_auth_on=True))
    rig.clock.now_ms = 1_767_225_600_000  # the day of these signatures
    reply = await json_call(rig, "ListQueues", headers=headers)
    assert reply.status == status
    assert headers_of(reply)["x-amzn-query-error"].startswith(code)


async def test_the_sender_is_the_access_key_or_the_account() -> None:
    rig = Rig()
    url = await make_queue(rig)
    for headers in ({}, signed("us-east-1", key="AKIDEXAMPLE")):
        await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="x", headers=headers)
    reply = await json_call(
        rig, "ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["SenderId"]
    )
    messages = json.loads(reply.body)["Messages"]
    assert [m["Attributes"]["SenderId"] for m in messages] == [ACCOUNT, "AKIDEXAMPLE"]


# ── URLs handed out ──────────────────────────────────────────────────────────────────────────
async def test_an_external_url_replaces_the_host_header() -> None:
    rig = Rig(FrontendConfig(external_url="https://queues.example.com/"))
    assert await make_queue(rig) == f"https://queues.example.com/{ACCOUNT}/q"


# ── Paths of our own ─────────────────────────────────────────────────────────────────────────
async def test_health_and_info() -> None:
    rig = Rig(FrontendConfig(admin_url=lambda: "http://127.0.0.1:9325"))
    health = await rig.ask("GET", "/_penstock/health")
    assert (health.status, json.loads(health.body)) == (200, {"status": "ok"})
    assert headers_of(health)["x-amzn-RequestId"] == "request-1"
    info = json.loads((await rig.ask("GET", "/_penstock/info")).body)
    assert info == {
        "version": __version__,
        "admin": "http://127.0.0.1:9325",
        "kafka": None,
        "account": ACCOUNT,
        "region": "us-east-1",
    }
    assert (await rig.ask("GET", "/_penstock/else")).status == 404


async def test_a_browser_gets_a_hint() -> None:
    rig = Rig()
    assert b"SQS endpoint" in (await rig.ask("GET", "/")).body
    assert (await rig.ask("GET", "/favicon.ico")).status == 404


@pytest.mark.parametrize("path", ["/_penstock/reset", "/moto-api/reset"])
async def test_reset_deletes_every_queue_and_frees_their_names(path: str) -> None:
    rig = Rig(FrontendConfig(recreate_guard_ms=60_000))
    await make_queue(rig, "one")
    url = await make_queue(rig, "two")
    await json_call(rig, "DeleteQueue", QueueUrl=url)
    assert (await json_call(rig, "CreateQueue", QueueName="two")).status == 400
    reply = await rig.ask("POST", path)
    assert json.loads(reply.body) == {"status": "ok", "deleted_queues": 1}
    assert rig.catalog.all_topics() == []
    await make_queue(rig, "one")
    await make_queue(rig, "two")
    assert (await rig.ask("GET", path)).status == 405


async def test_our_own_pages_hide_what_went_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    await make_queue(rig)

    async def delete(*_: str, now_ms: int) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(rig.catalog, "delete", delete)
    reply = await rig.ask("POST", "/_penstock/reset")
    assert reply.status == 500
    assert b"secret detail" not in reply.body
    assert len(caplog.records) == 1


@pytest.mark.parametrize("config", [FrontendConfig(is_dev=False), FrontendConfig(is_auth_on=True)])
async def test_reset_is_only_there_in_development_mode_with_authentication_off(
    config: FrontendConfig,
) -> None:
    rig = Rig(config)
    assert (await rig.ask("POST", "/_penstock/reset")).status == 403


# ── Counting ─────────────────────────────────────────────────────────────────────────────────
async def test_each_request_is_counted_once_with_its_duration() -> None:
    rig = Rig()
    url = await make_queue(rig)
    await json_call(rig, "SendMessage", QueueUrl=url, MessageBody="four")
    await query_call(rig, "SendMessage", QueueUrl=url + "-not", MessageBody="x")
    await json_call(rig, "ReceiveMessage", QueueUrl=url)
    assert rig.meter.requests == [
        ("CreateQueue", "json", "OK", 0.5),
        ("SendMessage", "json", "OK", 0.5),
        ("SendMessage", "query", "AWS.SimpleQueueService.NonExistentQueue", 0.5),
        ("ReceiveMessage", "json", "OK", 0.5),
    ]
    assert rig.meter.tallies == {"sent": 1, "sent_bytes": 4, "received": 1, "received_bytes": 4}
