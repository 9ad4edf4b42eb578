import json

import pytest

from penstock.frontend.aws.protocols import QUERY_JSON, codec_of
from penstock.net.http.exchange import HttpRequest
from penstock.wire.aws import query_replies
from penstock.wire.aws.faults import fault
from penstock.wire.aws.shapes import (
    ListQueuesReply,
    ListQueueTagsReply,
    MessageAttributeValue,
    ReceivedMessage,
    ReceiveMessageReply,
    Reply,
    SendMessageReply,
)


def answer(api: str, reply: Reply | None) -> dict[str, object]:
    document = json.loads(query_replies.encode_json_reply(api, reply, request_id="r"))
    response: dict[str, object] = document.pop(f"{api}Response")
    assert document == {}
    assert response.pop("ResponseMetadata") == {"RequestId": "r"}
    return response


def test_absent_values_are_null() -> None:
    response = answer("SendMessage", SendMessageReply(message_id="m", md5_of_message_body="5"))
    assert response == {
        "SendMessageResult": {
            "MD5OfMessageBody": "5",
            "MD5OfMessageAttributes": None,
            "MD5OfMessageSystemAttributes": None,
            "MessageId": "m",
            "SequenceNumber": None,
        }
    }


def test_an_operation_without_an_answer_has_no_result() -> None:
    assert answer("DeleteMessage", None) == {}


def test_lists_go_by_their_old_names_and_maps_are_lists() -> None:
    attribute = MessageAttributeValue(data_type="Binary", binary_value=b"\x00\x01")
    message = ReceivedMessage(
        message_id="m",
        receipt_handle="h",
        md5_of_body="5",
        body="b\r",
        attributes={"SenderId": "s"},
        message_attributes={"a": attribute},
    )
    result = answer("ReceiveMessage", ReceiveMessageReply(messages=[message]))
    (shown,) = result["ReceiveMessageResult"]["messages"]  # type: ignore[index]
    assert shown["Body"] == "b\r"
    assert shown["Attributes"] == [{"Name": "SenderId", "Value": "s"}]
    (named,) = shown["MessageAttributes"]
    assert (named["Name"], named["Value"]["BinaryValue"]) == ("a", "AAE=")
    assert answer("ReceiveMessage", ReceiveMessageReply()) == {
        "ReceiveMessageResult": {"messages": None}
    }
    assert answer("ListQueues", ListQueuesReply(queue_urls=["u"])) == {
        "ListQueuesResult": {"queueUrls": ["u"], "NextToken": None}
    }
    assert answer("ListQueueTags", ListQueueTagsReply(tags={"k": "v"})) == {
        "ListQueueTagsResult": {"Tags": [{"Key": "k", "Value": "v"}]}
    }


def test_a_fault_has_the_code_and_text_of_the_query_protocol() -> None:
    body, headers = query_replies.encode_json_fault(fault("QueueDoesNotExist"), request_id="r")
    assert json.loads(body) == {
        "Error": {
            "Code": "AWS.SimpleQueueService.NonExistentQueue",
            "Message": "The specified queue does not exist for this wsdl version.",
            "Type": "Sender",
        },
        "RequestId": "r",
    }
    assert headers == ()
    later = fault("ServiceUnavailable", "half a pair: \ud800", retry_after_s=3)
    body, headers = query_replies.encode_json_fault(later, request_id="r")
    assert json.loads(body)["Error"]["Type"] == "Receiver"
    assert headers == (("retry-after", "3"),)


@pytest.mark.parametrize(
    ("accept", "is_wanted"),
    [
        ("application/json", True),
        ("application/json, text/plain, */*", True),
        ("*/*", False),
        ("text/xml", False),
        ("", False),
    ],
)
def test_json_is_written_only_when_it_is_named(accept: str, is_wanted: bool) -> None:
    request = HttpRequest("POST", "/", "", {"accept": accept}, b"", "", "r")
    assert (codec_of(request) is QUERY_JSON) is is_wanted
