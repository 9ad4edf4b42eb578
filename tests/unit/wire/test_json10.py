import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.aws_oracle import JSON_MODEL, json_body, parse_reply, values

from penstock.wire.aws import json10
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.shapes import OPERATIONS, Operation, SendMessageReply, SendMessageRequest

TEXT = st.text(max_size=20)
NAMES = sorted(OPERATIONS)
SEND = OPERATIONS["SendMessage"]


def outcome(operation: Operation, body: bytes) -> str:
    """``request``, or the shape of the fault that refused the body."""
    try:
        json10.decode(operation, body)
    except Fault as refusal:
        json10.encode_fault(refusal)
        return refusal.shape
    return "request"


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_requests_of_the_sdk_are_read_as_they_were_meant(name: str, data: st.DataObject) -> None:
    parameters = data.draw(values(JSON_MODEL.operation_model(name).input_shape, TEXT))
    request = json10.decode(OPERATIONS[name], json_body(name, parameters))
    assert msgspec.to_builtins(request, builtin_types=(bytes,)) == parameters


@pytest.mark.parametrize("name", [name for name in NAMES if OPERATIONS[name].reply is not None])
@settings(max_examples=20)
@given(data=st.data())
def test_replies_are_read_by_the_sdk_as_they_were_meant(name: str, data: st.DataObject) -> None:
    reply: Any = OPERATIONS[name].reply
    members = data.draw(values(JSON_MODEL.operation_model(name).output_shape, TEXT))
    body = json10.encode_reply(msgspec.convert(members, reply, builtin_types=(bytes,)))
    parsed = parse_reply("json", name, body)
    del parsed["ResponseMetadata"]
    assert parsed == members


def test_absent_results_leave_no_key() -> None:
    assert json10.encode_reply(None) == b"{}"
    for operation in OPERATIONS.values():
        if operation.reply is not None:
            assert json10.encode_reply(operation.reply()) == b"{}"


def test_null_means_absent_and_unknown_members_are_ignored() -> None:
    body = b'{"DelaySeconds": null, "MessageBody": "null", "Color": {"deep": [1, 2]}}'
    request = json10.decode(SEND, body)
    assert request == SendMessageRequest(message_body="null")


def test_numbers_may_come_as_strings_but_text_never_as_a_number() -> None:
    request = json10.decode(SEND, b'{"DelaySeconds": "30"}')
    assert request == SendMessageRequest(delay_seconds=30)
    with pytest.raises(Fault, match="MessageBody"):
        json10.decode(SEND, b'{"MessageBody": 30}')


def test_an_empty_body_is_an_empty_request() -> None:
    assert json10.decode(SEND, b"") == SendMessageRequest()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "not valid JSON"),
        (b'{"MessageBody": "x"} x', "not valid JSON"),
        (b'{"MessageBody": "\xff"}', "not valid JSON"),
        (b'{"MessageBody": "\\ud800"}', "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b'{"DelaySeconds": true}', "$.DelaySeconds"),
        (b'{"DelaySeconds": "soon"}', "$.DelaySeconds"),
        (b'{"DelaySeconds": 1.5}', "$.DelaySeconds"),
        (b'{"DelaySeconds": ' + b"9" * 10_000 + b"}", "out of range"),
        (b'{"MessageAttributes": {"a": {"BinaryValue": "?"}}}', "base64"),
        (b'{"MessageAttributes": {"a": "b"}}', "$.MessageAttributes"),
        (b'{"x": ' + b"[" * 1_000_000, "nested too deeply"),
        (b'{"x": ' + b'{"x": ' * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_precisely(body: bytes, says: str) -> None:
    with pytest.raises(Fault) as caught:
        json10.decode(SEND, body)
    assert caught.value.shape == "SerializationException"
    assert caught.value.status == 400
    assert says in caught.value.message


@settings(max_examples=50)
@given(
    body=st.binary(max_size=200) | st.text(alphabet='{}[]",:eE0123456789\\untrlsf').map(str.encode)
)
def test_arbitrary_bytes_give_a_request_or_a_fault(body: bytes) -> None:
    for operation in OPERATIONS.values():
        assert outcome(operation, body) in ("request", "SerializationException")


@settings(max_examples=50)
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Attributes", "Entries", "tags", "MessageAttributes", "QueueUrl", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=10,
    )
)
def test_arbitrary_documents_give_a_request_or_a_fault(document: Any) -> None:
    body = json.dumps(document).encode()
    for operation in OPERATIONS.values():
        assert outcome(operation, body) in ("request", "SerializationException")


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("AmazonSQS.Nope", "The operation Nope is not known to this endpoint."),
        ("SendMessage", "The X-Amz-Target header does not name an SQS operation."),
        ("DynamoDB.SendMessage", "The X-Amz-Target header does not name an SQS operation."),
        ("", "The X-Amz-Target header does not name an SQS operation."),
    ],
)
def test_an_unknown_target_is_told_in_one_line(target: str, text: str) -> None:
    told = json10.unknown_operation(target)
    assert (told.shape, told.message) == ("UnknownOperationException", text)


def test_the_sdk_reads_the_code_and_the_blame_from_the_headers() -> None:
    refusal = fault("QueueDoesNotExist")
    body, headers = json10.encode_fault(refusal)
    assert json.loads(body)["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"
    parsed = parse_reply("json", "SendMessage", body, status=refusal.status, headers=dict(headers))
    assert parsed["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert parsed["Error"]["QueryErrorCode"] == "QueueDoesNotExist"
    assert parsed["Error"]["Type"] == "Sender"
    assert parsed["Error"]["Message"] == "The specified queue does not exist."


def test_a_failure_of_ours_blames_the_receiver_and_says_when_to_retry() -> None:
    _, headers = json10.encode_fault(fault("ServiceUnavailable", retry_after_s=5))
    assert dict(headers) == {
        "x-amzn-query-error": "ServiceUnavailable;Receiver",
        "retry-after": "5",
    }


def test_half_a_surrogate_pair_in_an_echoed_value_does_not_break_the_answer() -> None:
    body, _ = json10.encode_fault(fault("InvalidParameterValue", "value \ud800"))
    assert json.loads(body)["message"] == "value ?"


def test_members_stand_in_replies_under_their_wire_names() -> None:
    reply = SendMessageReply(md5_of_message_body="m", message_id="i", sequence_number="1")
    assert json.loads(json10.encode_reply(reply)) == {
        "MD5OfMessageBody": "m",
        "MessageId": "i",
        "SequenceNumber": "1",
    }
