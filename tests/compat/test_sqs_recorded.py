"""What the original was seen to answer, where a reader of its documentation would have guessed
otherwise: whole sentences of refusals, names of codes, and corners of both request styles that
clients' own test suites compare word by word."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
import pytest
from botocore.exceptions import ClientError
from tests.compat.answers import arn_of, attributes_of, code_of, message_of, receive, status_of
from tests.compat.conftest import CREDENTIALS, MakeQueue, sqs_client
from tests.harness.server import Server

INVALID = "InvalidParameterValue"


def refusal(call: Callable[..., Any], **fields: Any) -> tuple[str, str, int]:
    """Code, text and HTTP status of a call that must fail, and fail as the caller's mistake."""
    with pytest.raises(ClientError) as raised:
        call(**fields)
    assert raised.value.response["Error"]["Type"] == "Sender"
    return code_of(raised), message_of(raised), status_of(raised)


@dataclass
class Page:
    status: int
    content_type: str
    text: str


def http_get(
    server: Server, path: str, headers: dict[str, str] | None = None, **fields: str
) -> Page:
    """A plain GET, unsigned: what a browser, curl or a gateway sends."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        target = f"{path}?{urlencode(fields)}" if fields else path
        connection.request("GET", target, headers=headers or {})
        reply = connection.getresponse()
        return Page(reply.status, reply.headers["Content-Type"], reply.read().decode())
    finally:
        connection.close()


# ── Sending ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("text", ["", "a" * 129, "two words"])
def test_a_bad_group_or_deduplication_id_is_quoted_in_the_refusal(
    sqs: Any, make_queue: MakeQueue, text: str
) -> None:
    def sentence(parameter: str) -> str:
        return (
            f"Value {text} for parameter {parameter} is invalid. Reason: {parameter} can only "
            "include alphanumeric and punctuation characters. 1 to 128 in length."
        )

    url = make_queue()
    told = refusal(sqs.send_message, QueueUrl=url, MessageBody="m", MessageGroupId=text)
    assert told == (INVALID, sentence("MessageGroupId"), 400)
    told = refusal(
        sqs.send_message,
        QueueUrl=make_queue(FifoQueue=True),
        MessageBody="m",
        MessageGroupId="g",
        MessageDeduplicationId=text,
    )
    assert told == (INVALID, sentence("MessageDeduplicationId"), 400)


def test_one_message_too_long_is_told_differently_alone_and_in_a_batch(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue(MaximumMessageSize=1_024)
    reason = "Reason: Message must be shorter than 1024 bytes."
    told = refusal(sqs.send_message, QueueUrl=url, MessageBody="a" * 1_025)
    assert told == (INVALID, f"One or more parameters are invalid. {reason}", 400)
    reply = sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "fits", "MessageBody": "a" * 1_024},
            {"Id": "long", "MessageBody": "a" * 1_025},
        ],
    )
    assert [entry["Id"] for entry in reply["Successful"]] == ["fits"]
    assert reply["Failed"] == [
        {
            "Id": "long",
            "SenderFault": True,
            "Code": INVALID,
            "Message": f"One or more parameters cannot be validated. {reason}",
        }
    ]


def test_an_empty_attribute_value_is_refused_by_name_and_type(
    sqs: Any, make_queue: MakeQueue
) -> None:
    told = refusal(
        sqs.send_message,
        QueueUrl=make_queue(),
        MessageBody="m",
        MessageAttributes={"Detail": {"DataType": "String", "StringValue": ""}},
    )
    sentence = "Message (user) attribute 'Detail' must contain a non-empty value of type 'String'."
    assert told == (INVALID, sentence, 400)


def test_attribute_names_may_have_letters_beyond_ascii_but_no_other_signs(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    given = {"attr.1øßä": {"DataType": "String", "StringValue": "x"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", MessageAttributes=given)
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"] == given
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    for name in ("a!b", 'a"b', "a§b", "a(b", "a?b"):
        bad = {name: {"DataType": "String", "StringValue": "x"}}
        told = refusal(sqs.send_message, QueueUrl=url, MessageBody="m", MessageAttributes=bad)
        assert told[0] == INVALID, name


def test_a_control_character_is_another_fault_in_an_attribute_than_in_a_body(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    bad = {"a": {"DataType": "String", "StringValue": "x\x08y"}}
    told = refusal(sqs.send_message, QueueUrl=url, MessageBody="m", MessageAttributes=bad)
    assert told[0] == INVALID
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x\x08y")[0] == (
        "InvalidMessageContents"
    )


# ── Queue attributes ─────────────────────────────────────────────────────────────────────────
def test_fifo_attributes_of_a_standard_queue_are_refused_each_in_its_own_words(
    sqs: Any, queue_name: Callable[..., str]
) -> None:
    for given, sentence in (
        ({"FifoQueue": "false"}, "Unknown Attribute FifoQueue."),
        (
            {"ContentBasedDeduplication": "false"},
            "Unknown Attribute ContentBasedDeduplication.",
        ),
        (
            {"DeduplicationScope": "queue"},
            "You can specify the DeduplicationScope only when FifoQueue is set to true.",
        ),
        (
            {"FifoThroughputLimit": "perQueue"},
            "You can specify the FifoThroughputLimit only when FifoQueue is set to true.",
        ),
    ):
        told = refusal(sqs.create_queue, QueueName=queue_name(), Attributes=given)
        assert told == ("InvalidAttributeName", sentence, 400)


def test_a_fifo_queue_may_be_told_again_that_it_is_one(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(FifoQueue=True)
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"FifoQueue": "true"})
    told = refusal(sqs.set_queue_attributes, QueueUrl=url, Attributes={"FifoQueue": "false"})
    reason = "Reason: Modifying queue type is not supported."
    assert told == (
        "InvalidAttributeValue",
        f"Invalid value for the parameter FifoQueue. {reason}",
        400,
    )


def test_a_permission_that_was_never_given_cannot_be_removed(
    sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    sentence = "Value nobody for parameter Label is invalid. Reason: can't find label"
    told = refusal(sqs.remove_permission, QueueUrl=url, Label="nobody")
    assert told == (INVALID, f"{sentence}.", 400)
    sqs.add_permission(
        QueueUrl=url, Label="somebody", AWSAccountIds=["111111111111"], Actions=["SendMessage"]
    )
    told = refusal(sqs.remove_permission, QueueUrl=url, Label="nobody")
    assert told == (INVALID, f"{sentence} on existing policy.", 400)


def test_a_standard_queue_can_be_its_own_dead_letter_queue(sqs: Any, make_queue: MakeQueue) -> None:
    url = make_queue(VisibilityTimeout=0)
    policy = {"deadLetterTargetArn": arn_of(sqs, url), "maxReceiveCount": "2"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": json.dumps(policy)})
    sent = sqs.send_message(QueueUrl=url, MessageBody="round")
    seen = [
        (message["MessageId"], message["Attributes"]["ApproximateReceiveCount"])
        for _ in range(9)  # every third call finds a dead letter, and puts it back instead
        for message in receive(sqs, url, wait=0, AttributeNames=["All"])
    ]
    assert seen == [(sent["MessageId"], str(count)) for count in range(1, 7)]
    assert attributes_of(sqs, url)["ApproximateNumberOfMessages"] == "1"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert "RedrivePolicy" not in attributes_of(sqs, url)


# ── Forms, and who answers them ──────────────────────────────────────────────────────────────
def test_an_empty_result_is_written_in_its_short_form(
    server: Server, make_queue: MakeQueue
) -> None:
    page = http_get(server, urlsplit(make_queue()).path, Action="ReceiveMessage")
    assert (page.status, page.content_type) == (200, "text/xml")
    assert "<ReceiveMessageResult/>" in page.text


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_actions_about_all_queues_are_not_valid_at_the_address_of_one(
    server: Server, make_queue: MakeQueue, action: str
) -> None:
    path = urlsplit(make_queue()).path
    page = http_get(server, path, Action=action, QueueName="another")
    assert page.status == 400
    assert "<Code>InvalidAction</Code>" in page.text
    assert f"<Message>The action {action} is not valid for this endpoint.</Message>" in page.text


def test_the_url_of_another_queue_may_be_asked_for_at_the_address_of_one(
    server: Server, make_queue: MakeQueue
) -> None:
    one, other = make_queue(), make_queue()
    name = other.rpartition("/")[2]
    page = http_get(server, urlsplit(one).path, Action="GetQueueUrl", QueueName=name)
    assert page.status == 200
    assert f"<QueueUrl>{other}</QueueUrl>" in page.text


@pytest.mark.parametrize("accept", ["*/*", "application/json"])
def test_a_queue_url_opened_without_an_action_is_an_unknown_operation(
    server: Server, make_queue: MakeQueue, accept: str
) -> None:
    page = http_get(server, urlsplit(make_queue()).path, {"Accept": accept})
    assert page.status == 404
    assert page.text.startswith("<UnknownOperationException")


def test_a_form_is_answered_in_json_when_the_client_accepts_json(
    server: Server, sqs: Any, make_queue: MakeQueue
) -> None:
    url = make_queue()
    path = urlsplit(url).path
    body = '{"foo": "ba\rr", "quoted": "&quot;"}'
    sqs.send_message(QueueUrl=url, MessageBody=body)
    accept = {"Accept": "application/json, text/plain, */*"}
    page = http_get(server, path, accept, Action="ReceiveMessage")
    assert (page.status, page.content_type) == (200, "application/json")
    response = json.loads(page.text)["ReceiveMessageResponse"]
    (message,) = response["ReceiveMessageResult"]["messages"]
    assert message["Body"] == body
    assert response["ResponseMetadata"]["RequestId"]

    page = http_get(server, "/", accept, Action="ListQueues", QueueNamePrefix=url[-12:])
    result = json.loads(page.text)["ListQueuesResponse"]["ListQueuesResult"]
    assert set(result) == {"queueUrls", "NextToken"}

    page = http_get(server, path, accept, Action="GetQueueAttributes", **{"AttributeName.1": "All"})
    result = json.loads(page.text)["GetQueueAttributesResponse"]["GetQueueAttributesResult"]
    assert {"Name": "VisibilityTimeout", "Value": "30"} in result["Attributes"]

    page = http_get(server, path, accept, Action="ListQueues")
    assert page.status == 400
    error = json.loads(page.text)["Error"]
    assert (error["Code"], error["Type"]) == ("InvalidAction", "Sender")
    assert error["Message"] == "The action ListQueues is not valid for this endpoint."


def test_a_form_is_answered_in_xml_when_the_client_accepts_anything(server: Server) -> None:
    page = http_get(server, "/", {"Accept": "*/*"}, Action="ListQueues")
    assert "<ListQueuesResponse" in page.text


# ── Whose queue ──────────────────────────────────────────────────────────────────────────────
def _client(server: Server, *, region: str = "us-east-1", key: str = "testing") -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name=region,
        **(CREDENTIALS | {"aws_access_key_id": key}),
    )


def test_an_access_key_of_twelve_digits_is_the_account(
    server: Server, queue_name: Callable[..., str]
) -> None:
    first, second = _client(server, key="111111111111"), _client(server, key="222222222222")
    name = queue_name()
    url = first.create_queue(QueueName=name)["QueueUrl"]
    assert urlsplit(url).path == f"/111111111111/{name}"
    assert f":111111111111:{name}" in arn_of(first, url)
    assert "QueueUrls" not in second.list_queues(QueueNamePrefix=name)
    found = second.get_queue_url(QueueName=name, QueueOwnerAWSAccountId="111111111111")
    assert found["QueueUrl"] == url
    second.send_message(QueueUrl=url, MessageBody="across")
    assert second.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "across"
    first.delete_queue(QueueUrl=url)


def test_without_a_signature_the_host_or_the_path_names_the_region(
    server: Server, queue_name: Callable[..., str]
) -> None:
    west = _client(server, region="us-west-1")
    url = west.create_queue(QueueName=queue_name())["QueueUrl"]
    path = urlsplit(url).path
    ask = {"Action": "GetQueueAttributes", "AttributeName.1": "QueueArn"}
    assert http_get(server, path, {}, **ask).status == 400, "not there in the default region"
    for host in ("sqs.us-west-1.localhost:4566", "us-west-1.queue.localhost:4566"):
        page = http_get(server, path, {"Host": host}, **ask)
        assert ":us-west-1:" in page.text, host
    assert ":us-west-1:" in http_get(server, f"/queue/us-west-1{path}", {}, **ask).text
    west.delete_queue(QueueUrl=url)


def test_json_sent_to_the_queue_s_own_address_is_understood(
    server: Server, make_queue: MakeQueue
) -> None:
    url = make_queue()
    there = sqs_client(url)
    there.send_message(QueueUrl=url, MessageBody="m")
    assert there.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "m"
    there.close()
