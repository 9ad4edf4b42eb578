"""The query protocol of older SDKs and of curl: forms in, XML out. Today's botocore speaks JSON, so
this is written by hand: every operation, by POST and by GET, to the root with ``QueueUrl`` and to
the queue's own path without it."""

from __future__ import annotations

import hashlib
import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from tests.harness.patience import eventually
from tests.harness.server import Server

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"
VERSION = "2012-11-05"


@dataclass
class Xml:
    """An answer: its status and its tree, asked for by plain names."""

    status: int
    root: Element
    headers: dict[str, str]

    def all(self, name: str) -> list[Element]:
        return list(self.root.iter(NAMESPACE + name))

    def texts(self, name: str) -> list[str]:
        return [found.text or "" for found in self.all(name)]

    def text(self, name: str) -> str:
        (only,) = self.texts(name)
        return only

    def pairs(self, name: str, key: str = "Name", value: str = "Value") -> dict[str, str]:
        return {
            _child(found, key): _child(found, value)
            for found in self.all(name)
            if found.find(NAMESPACE + key) is not None
        }


def _child(element: Element, name: str) -> str:
    found = element.find(NAMESPACE + name)
    assert found is not None, f"no {name} in {ElementTree.tostring(element)!r}"
    return found.text or ""


class Query:
    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def call(self, action: str, *, path: str = "/", method: str = "POST", **fields: str) -> Xml:
        """Fields are written with ``__`` for a dot: ``Attribute__1__Name="DelaySeconds"``."""
        form = {name.replace("__", "."): value for name, value in fields.items()}
        text = urlencode({"Action": action, "Version": VERSION, **form}, quote_via=quote)
        if method == "GET":
            self.connection.request("GET", f"{path}?{text}")
        else:
            headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
            self.connection.request("POST", path, text.encode(), headers)
        reply = self.connection.getresponse()
        body = reply.read()
        assert reply.headers["Content-Type"].startswith("text/xml"), body[:300]
        headers_out = {name.lower(): value for name, value in reply.headers.items()}
        return Xml(reply.status, ElementTree.fromstring(body), headers_out)

    def ok(self, action: str, *, path: str = "/", method: str = "POST", **fields: str) -> Xml:
        reply = self.call(action, path=path, method=method, **fields)
        assert reply.status == 200, ElementTree.tostring(reply.root)
        assert reply.root.tag == f"{NAMESPACE}{action}Response"
        assert reply.text("RequestId")
        return reply

    def refused(self, action: str, **fields: str) -> tuple[int, str, str]:
        """Status, code and message of an error; its form is checked here."""
        reply = self.call(action, **fields)
        assert reply.status >= 400
        assert reply.root.tag == f"{NAMESPACE}ErrorResponse"
        assert reply.text("Type") in ("Sender", "Receiver")
        assert reply.text("RequestId")
        return reply.status, reply.text("Code"), reply.text("Message")


@pytest.fixture
def query(server: Server) -> Iterator[Query]:
    made = Query(server.port)
    yield made
    made.connection.close()


Ask = Callable[..., Xml]


@pytest.fixture(params=["POST /", "GET /", "POST path", "GET path"])
def ask(request: pytest.FixtureRequest, query: Query) -> Callable[[str], Ask]:
    """``ask(url)`` gives a caller about that queue, in one of the four ways to name it."""
    method, _, where = str(request.param).partition(" ")

    def about(url: str) -> Ask:
        if where == "/":
            return lambda action, **fields: query.ok(action, method=method, QueueUrl=url, **fields)
        path = urlsplit(url).path
        return lambda action, **fields: query.ok(action, method=method, path=path, **fields)

    return about


@pytest.fixture
def url(query: Query, queue_name: Callable[..., str]) -> Iterator[str]:
    made = query.ok("CreateQueue", QueueName=queue_name()).text("QueueUrl")
    yield made
    query.call("DeleteQueue", QueueUrl=made)


def test_a_message_lives_its_whole_life(url: str, ask: Callable[[str], Ask]) -> None:
    call = ask(url)
    sent = call(
        "SendMessage",
        MessageBody="hello",
        MessageAttribute__1__Name="colour",
        MessageAttribute__1__Value__DataType="String",
        MessageAttribute__1__Value__StringValue="blue",
        MessageAttribute__2__Name="raw",
        MessageAttribute__2__Value__DataType="Binary",
        MessageAttribute__2__Value__BinaryValue="AAEC",
    )
    assert sent.text("MD5OfMessageBody") == hashlib.md5(b"hello").hexdigest()
    got = call(
        "ReceiveMessage",
        AttributeName__1="All",
        MessageAttributeName__1="All",
        VisibilityTimeout="60",
        MaxNumberOfMessages="10",
    )
    (message,) = got.all("Message")
    assert _child(message, "MessageId") == sent.text("MessageId")
    assert _child(message, "Body") == "hello"
    assert _child(message, "MD5OfBody") == sent.text("MD5OfMessageBody")
    assert _child(message, "MD5OfMessageAttributes") == sent.text("MD5OfMessageAttributes")
    assert got.pairs("Attribute")["ApproximateReceiveCount"] == "1"
    assert set(got.texts("StringValue")) == {"blue"}
    assert set(got.texts("BinaryValue")) == {"AAEC"}
    receipt = _child(message, "ReceiptHandle")
    call("ChangeMessageVisibility", ReceiptHandle=receipt, VisibilityTimeout="0")
    (message,) = call("ReceiveMessage").all("Message")
    call("DeleteMessage", ReceiptHandle=_child(message, "ReceiptHandle"))
    assert call("ReceiveMessage").all("Message") == []


def test_batches(url: str, ask: Callable[[str], Ask]) -> None:
    call = ask(url)
    entries = {
        f"SendMessageBatchRequestEntry__{n}__{name}": value
        for n in (1, 2, 3)
        for name, value in (("Id", f"id{n}"), ("MessageBody", f"body{n}"))
    }
    entries["SendMessageBatchRequestEntry__3__DelaySeconds"] = "9999"
    sent = call("SendMessageBatch", **entries)
    assert [_child(entry, "Id") for entry in sent.all("SendMessageBatchResultEntry")] == [
        "id1",
        "id2",
    ]
    (failed,) = sent.all("BatchResultErrorEntry")
    assert _child(failed, "Id") == "id3"
    assert _child(failed, "SenderFault") == "true"
    messages = call("ReceiveMessage", MaxNumberOfMessages="10").all("Message")
    assert sorted(_child(message, "Body") for message in messages) == ["body1", "body2"]
    receipts = [_child(message, "ReceiptHandle") for message in messages]
    change = {
        f"ChangeMessageVisibilityBatchRequestEntry__{n}__{name}": value
        for n, receipt in enumerate(receipts, 1)
        for name, value in (("Id", str(n)), ("ReceiptHandle", receipt), ("VisibilityTimeout", "90"))
    }
    changed = call("ChangeMessageVisibilityBatch", **change)
    assert len(changed.all("ChangeMessageVisibilityBatchResultEntry")) == 2
    delete = {
        f"DeleteMessageBatchRequestEntry__{n}__{name}": value
        for n, receipt in enumerate(receipts, 1)
        for name, value in (("Id", str(n)), ("ReceiptHandle", receipt))
    }
    assert len(call("DeleteMessageBatch", **delete).all("DeleteMessageBatchResultEntry")) == 2
    counts = call("GetQueueAttributes", AttributeName__1="All").pairs("Attribute")
    assert counts["ApproximateNumberOfMessages"] == "0"
    assert counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def test_attributes_tags_permissions_and_purge(url: str, ask: Callable[[str], Ask]) -> None:
    call = ask(url)
    call("SetQueueAttributes", Attribute__1__Name="DelaySeconds", Attribute__1__Value="7")
    shown = call("GetQueueAttributes", AttributeName__1="DelaySeconds", AttributeName__2="QueueArn")
    assert shown.pairs("Attribute")["DelaySeconds"] == "7"
    call("TagQueue", Tag__1__Key="a", Tag__1__Value="1", Tag__2__Key="b", Tag__2__Value="2")
    assert call("ListQueueTags").pairs("Tag", "Key") == {"a": "1", "b": "2"}
    call("UntagQueue", TagKey__1="a")
    assert call("ListQueueTags").pairs("Tag", "Key") == {"b": "2"}
    call(
        "AddPermission",
        Label="friend",
        AWSAccountId__1="111122223333",
        ActionName__1="SendMessage",
        ActionName__2="ReceiveMessage",
    )
    policy = call("GetQueueAttributes", AttributeName__1="Policy").pairs("Attribute")["Policy"]
    assert json.loads(policy)["Statement"][0]["Sid"] == "friend"
    call("RemovePermission", Label="friend")
    assert call("GetQueueAttributes", AttributeName__1="Policy").all("Attribute") == []
    call("SendMessage", MessageBody="x")
    call("PurgeQueue")
    counts = call("GetQueueAttributes", AttributeName__1="All").pairs("Attribute")
    assert counts["ApproximateNumberOfMessagesDelayed"] == "0"
    assert call("ListDeadLetterSourceQueues").all("QueueUrl") == []


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_queues_are_made_found_listed_and_deleted(
    query: Query, queue_name: Callable[..., str], method: str
) -> None:
    name = queue_name(f"-{method.lower()}")
    made = query.ok(
        "CreateQueue",
        method=method,
        QueueName=name,
        Attribute__1__Name="VisibilityTimeout",
        Attribute__1__Value="45",
        Tag__1__Key="team",
        Tag__1__Value="blue",
    ).text("QueueUrl")
    assert query.ok("GetQueueUrl", method=method, QueueName=name).text("QueueUrl") == made
    assert query.ok("ListQueues", method=method, QueueNamePrefix=name).texts("QueueUrl") == [made]
    assert query.ok("ListQueueTags", QueueUrl=made).pairs("Tag", "Key") == {"team": "blue"}
    query.ok("DeleteQueue", method=method, QueueUrl=made)
    assert query.ok("ListQueues", method=method, QueueNamePrefix=name).texts("QueueUrl") == []


def test_queues_are_listed_page_by_page(query: Query, queue_name: Callable[..., str]) -> None:
    prefix = queue_name("-xml")
    urls = [query.ok("CreateQueue", QueueName=f"{prefix}-{n}").text("QueueUrl") for n in range(5)]
    seen: list[str] = []
    page = query.ok("ListQueues", QueueNamePrefix=prefix, MaxResults="2")
    seen += page.texts("QueueUrl")
    while token := page.texts("NextToken"):
        page = query.ok("ListQueues", QueueNamePrefix=prefix, MaxResults="2", NextToken=token[0])
        seen += page.texts("QueueUrl")
    assert seen == urls
    for made in urls:
        query.ok("DeleteQueue", QueueUrl=made)


def test_fifo_dead_letters_and_their_way_back(query: Query, queue_name: Callable[..., str]) -> None:
    fifo = {"Attribute__1__Name": "FifoQueue", "Attribute__1__Value": "true"}
    dead = query.ok("CreateQueue", QueueName=queue_name("-dead.fifo"), **fifo).text("QueueUrl")
    shown = query.ok("GetQueueAttributes", QueueUrl=dead, AttributeName__1="QueueArn")
    dead_arn = shown.pairs("Attribute")["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": "1"})
    source = query.ok(
        "CreateQueue",
        QueueName=queue_name("-source.fifo"),
        **fifo,
        Attribute__2__Name="RedrivePolicy",
        Attribute__2__Value=policy,
        Attribute__3__Name="VisibilityTimeout",
        Attribute__3__Value="0",
    ).text("QueueUrl")
    send = {"QueueUrl": source, "MessageBody": "x", "MessageGroupId": "g"}
    first = query.ok("SendMessage", MessageDeduplicationId="d", **send)
    again = query.ok("SendMessage", MessageDeduplicationId="d", **send)
    assert first.text("MessageId") == again.text("MessageId")
    assert first.text("SequenceNumber") == again.text("SequenceNumber")
    assert len(query.ok("ReceiveMessage", QueueUrl=source).all("Message")) == 1
    assert query.ok("ReceiveMessage", QueueUrl=source).all("Message") == []
    found = query.ok("ListDeadLetterSourceQueues", QueueUrl=dead)
    assert found.texts("QueueUrl") == [source]

    eventually(
        lambda: query.ok(
            "GetQueueAttributes", QueueUrl=dead, AttributeName__1="All"
        ).pairs("Attribute")["ApproximateNumberOfMessages"] == "1",
        seconds=10,
        what="the message among the dead letters",
    )  # fmt: skip
    task = query.ok("StartMessageMoveTask", SourceArn=dead_arn)
    assert task.text("TaskHandle")
    eventually(
        lambda: (
            query.ok("ListMessageMoveTasks", SourceArn=dead_arn).texts("Status") == ["COMPLETED"]
        ),
        seconds=10,
        what="the move task completed",
    )
    status, code, _ = query.refused("CancelMessageMoveTask", TaskHandle=task.text("TaskHandle"))
    assert (status, code) == (404, "ResourceNotFoundException"), "it has ended"
    messages = query.ok("ReceiveMessage", QueueUrl=source, WaitTimeSeconds="5").all("Message")
    assert [_child(message, "Body") for message in messages] == ["x"]
    query.ok("DeleteQueue", QueueUrl=source)
    query.ok("DeleteQueue", QueueUrl=dead)


@pytest.mark.parametrize(
    "body",
    [
        "a\r\nb\rc\nd\te",
        "<&>\"'",
        "]]>",
        "ünï ☃ \U0001f600",
        "  spaces around  ",
        "+%2B%25&=;",
        "\ud7ff\ue000\ufffd\U00010000\U0010ffff",
        "\x85\u2028",
    ],
)
def test_every_allowed_character_survives_the_xml(query: Query, url: str, body: str) -> None:
    query.ok("SendMessage", QueueUrl=url, MessageBody=body)
    got = query.ok("ReceiveMessage", QueueUrl=url)
    assert got.text("Body") == body
    assert got.text("MD5OfBody") == hashlib.md5(body.encode()).hexdigest()


def test_errors_in_xml(query: Query, url: str, queue_name: Callable[..., str]) -> None:
    missing = url + "-none"
    status, code, message = query.refused("SendMessage", QueueUrl=missing, MessageBody="x")
    assert (status, code) == (400, "AWS.SimpleQueueService.NonExistentQueue")
    assert message == "The specified queue does not exist for this wsdl version."
    cases: list[tuple[str, dict[str, str], int, str]] = [
        ("SendMessage", {"QueueUrl": url}, 400, "MissingParameter"),
        ("SendMessage", {"QueueUrl": url, "MessageBody": "\x01"}, 400, "InvalidMessageContents"),
        ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": "x"}, 404, "ReceiptHandleIsInvalid"),
        (
            "ReceiveMessage",
            {"QueueUrl": url, "MaxNumberOfMessages": "11"},
            400,
            "InvalidParameterValue",
        ),
        (
            "GetQueueAttributes",
            {"QueueUrl": url, "AttributeName__1": "Nonsense"},
            400,
            "InvalidAttributeName",
        ),
        ("SendMessageBatch", {"QueueUrl": url}, 400, "AWS.SimpleQueueService.EmptyBatchRequest"),
        (
            "CreateQueue",
            {
                "QueueName": url.rsplit("/", 1)[1],
                "Attribute__1__Name": "DelaySeconds",
                "Attribute__1__Value": "5",
            },
            400,
            "QueueAlreadyExists",
        ),
        ("NoSuchAction", {}, 400, "InvalidAction"),
    ]
    for action, fields, status_expected, code_expected in cases:
        status, code, message = query.refused(action, **fields)
        assert (status, code) == (status_expected, code_expected), (action, message)
        assert message
    query.ok("PurgeQueue", QueueUrl=url)
    status, code, _ = query.refused("PurgeQueue", QueueUrl=url)
    assert (status, code) == (403, "AWS.SimpleQueueService.PurgeQueueInProgress")
