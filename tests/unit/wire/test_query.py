from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.aws_oracle import (
    QUERY_MODEL,
    form_body,
    parse_reply,
    values,
    without_empties,
)

from penstock.wire.aws import query, query_replies
from penstock.wire.aws.faults import Fault, fault
from penstock.wire.aws.shapes import (
    OPERATIONS,
    BatchResultErrorEntry,
    GetQueueAttributesReply,
    ListQueueTagsReply,
    MessageAttributeValue,
    Operation,
    ReceivedMessage,
    ReceiveMessageReply,
    Request,
    SendMessageBatchReply,
    SendMessageReply,
)

NAMES = sorted(OPERATIONS)
TEXT = st.text(max_size=20)
XML_TEXT = st.text(
    st.characters(
        exclude_categories=["Cs"],
        exclude_characters=[chr(c) for c in range(32) if c not in (9, 10, 13)]
        + ["\ufffe", "\uffff"],
    ),
    max_size=20,
)


def decode(name: str, fields: dict[str, str]) -> Request:
    return query.decode(OPERATIONS[name], fields)


def refusal_of(name: str, fields: dict[str, str]) -> Fault:
    with pytest.raises(Fault) as caught:
        decode(name, fields)
    return caught.value


def status_of(operation: Operation, fields: dict[str, str]) -> int:
    try:
        query.decode(operation, fields)
    except Fault as refusal:
        return refusal.status
    return 200


# ── Requests ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_forms_of_the_sdk_are_read_as_they_were_meant(name: str, data: st.DataObject) -> None:
    parameters = data.draw(values(QUERY_MODEL.operation_model(name).input_shape, TEXT))
    fields = query.fields_of("", form_body(name, parameters))
    assert query.operation_of(fields) is OPERATIONS[name]
    request = query.decode(OPERATIONS[name], fields)
    read = msgspec.to_builtins(request, builtin_types=(bytes,))
    assert without_empties(read) == without_empties(parameters)


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({"Attribute.1.Name": "a", "Attribute.1.Value": "1"}, {"a": "1"}),
        ({"Attribute.Name": "a", "Attribute.Value": "1"}, {"a": "1"}),
        ({"Attributes.entry.1.key": "a", "Attributes.entry.1.value": "1"}, {"a": "1"}),
        ({"Attributes.1.Name": "a", "Attributes.1.Value": ""}, {"a": ""}),
        (
            {
                "Attribute.10.Name": "b",
                "Attribute.10.Value": "2",
                "Attribute.9.Name": "a",
                "Attribute.9.Value": "1",
            },
            {"a": "1", "b": "2"},
        ),
        ({}, None),
    ],
)
def test_queue_attributes_are_read_in_every_spelling(
    fields: dict[str, str], attributes: dict[str, str] | None
) -> None:
    request: Any = decode("SetQueueAttributes", fields)
    assert request.attributes == attributes
    assert attributes is None or list(request.attributes) == list(attributes)


@pytest.mark.parametrize(
    "fields",
    [
        {"AttributeName.1": "All", "AttributeName.2": "x"},
        {"AttributeNames.1": "All", "AttributeNames.2": "x"},
        {"AttributeName.member.1": "All", "AttributeName.member.2": "x"},
        {"AttributeNames.member.2": "x", "AttributeNames.member.1": "All"},
    ],
)
def test_lists_are_read_in_every_spelling(fields: dict[str, str]) -> None:
    request: Any = decode("GetQueueAttributes", fields)
    assert request.attribute_names == ["All", "x"]


def test_an_unnumbered_list_has_one_element_and_an_empty_one_none() -> None:
    one: Any = decode("GetQueueAttributes", {"AttributeName": "All"})
    none: Any = decode("GetQueueAttributes", {"AttributeName": ""})
    assert (one.attribute_names, none.attribute_names) == (["All"], [])


@pytest.mark.parametrize("root", ["DeleteMessageBatchRequestEntry", "Entry", "Entries.member"])
def test_batch_entries_are_read_in_every_spelling(root: str) -> None:
    fields = {f"{root}.2.Id": "b", f"{root}.1.Id": "a", f"{root}.1.ReceiptHandle": "r"}
    request: Any = decode("DeleteMessageBatch", fields)
    assert [(one.id, one.receipt_handle) for one in request.entries] == [("a", "r"), ("b", None)]


def test_message_attributes_carry_text_and_base64() -> None:
    fields = {
        "MessageAttribute.1.Name": "text",
        "MessageAttribute.1.Value.DataType": "String",
        "MessageAttribute.1.Value.StringValue": "v",
        "MessageAttribute.2.Name": "raw",
        "MessageAttribute.2.Value.DataType": "Binary",
        "MessageAttribute.2.Value.BinaryValue": "AAH/",
    }
    request: Any = decode("SendMessage", fields)
    assert request.message_attributes == {
        "text": MessageAttributeValue(data_type="String", string_value="v"),
        "raw": MessageAttributeValue(data_type="Binary", binary_value=b"\x00\x01\xff"),
    }


def test_tags_have_keys_in_both_operations() -> None:
    fields = {"Tag.1.Key": "k", "Tag.1.Value": "v"}
    created: Any = decode("CreateQueue", fields)
    tagged: Any = decode("TagQueue", fields)
    assert created.tags == tagged.tags == {"k": "v"}


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("SendMessage", {"DelaySeconds": "soon"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "1_0"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "٣"}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds": "9" * 5_000}, "InvalidParameterValue"),
        ("SendMessage", {"DelaySeconds.1": "1"}, "MalformedInput"),
        ("SendMessage", {"MessageBody": "a", "MessageBody.1": "b"}, "MalformedInput"),
        ("SendMessage", {"MessageBody.1": "b", "MessageBody": "a"}, "MalformedInput"),
        ("SendMessage", {"MessageAttribute.1": "x"}, "MalformedInput"),
        ("SendMessage", {"MessageAttribute.1.Name": "x"}, "MissingParameter"),
        (
            "SendMessage",
            {"MessageAttribute.1.Name": "x", "MessageAttribute.1.Value": "flat"},
            "MalformedInput",
        ),
        (
            "SendMessage",
            {
                "MessageAttribute.1.Name": "x",
                "MessageAttribute.1.Value.BinaryValue": "no base64!",
            },
            "InvalidParameterValue",
        ),
        ("SetQueueAttributes", {"Attribute.1.Value": "x"}, "MissingParameter"),
        (
            "SetQueueAttributes",
            {
                "Attribute.1.Name": "x",
                "Attribute.1.Value": "1",
                "Attribute.2.Name": "x",
                "Attribute.2.Value": "2",
            },
            "InvalidParameterValue",
        ),
        ("GetQueueAttributes", {"AttributeName.x": "All"}, "MalformedInput"),
        ("GetQueueAttributes", {"AttributeName" + ".1" * 50: "All"}, "MalformedInput"),
    ],
)
def test_a_form_that_makes_no_sense_is_refused(
    name: str, fields: dict[str, str], code: str
) -> None:
    refusal = refusal_of(name, fields)
    assert (refusal.code, refusal.status) == (code, 400)


def test_fields_of_other_operations_are_ignored_whatever_they_look_like() -> None:
    fields = {"Action": "PurgeQueue", "X-Amz-Date": "x", "X.1": "a", "X": "b", "a" + ".a" * 99: ""}
    assert decode("PurgeQueue", fields) == OPERATIONS["PurgeQueue"].request()


def test_a_query_string_and_a_form_are_read_together() -> None:
    fields = query.fields_of("Action=SendMessage&a=1&b=", b"MessageBody=a+b%20c%26%F0%9F%98%80&a=2")
    assert fields == {"Action": "SendMessage", "a": "2", "b": "", "MessageBody": "a b c&😀"}


@pytest.mark.parametrize(
    ("text", "body"), [("a=%FF", b""), ("", b"a=%FF"), ("", b"a=\xff"), ("a&" * 1_000_000, b"")]
)
def test_fields_that_are_not_utf8_or_too_many_are_refused(text: str, body: bytes) -> None:
    with pytest.raises(Fault) as caught:
        query.fields_of(text, body)
    assert caught.value.code == "MalformedInput"


def test_a_million_fields_are_refused_before_they_are_split() -> None:
    with pytest.raises(Fault, match="at most"):
        query.fields_of("", b"&".join([b"a=b"] * 1_000_000))


@pytest.mark.parametrize(
    ("fields", "code"), [({}, "MissingAction"), ({"Action": "Nope"}, "InvalidAction")]
)
def test_an_action_must_be_named_and_known(fields: dict[str, str], code: str) -> None:
    with pytest.raises(Fault) as caught:
        query.operation_of(fields)
    assert caught.value.code == code


STEPS = st.sampled_from(
    ["1", "2", "member", "entry", "Name", "Value", "Key", "key", "value", "DataType", "Id",
     "StringListValue", "MessageAttribute", "BinaryValue", "", "x"]
)  # fmt: skip
ROOTS = st.sampled_from(
    ["Attribute", "Attributes", "Tag", "Entry", "MessageAttribute", "DelaySeconds", "QueueUrl",
     "AttributeName", "SendMessageBatchRequestEntry", "MessageBody", "TagKey"]
)  # fmt: skip
FIELD_NAMES = st.builds(
    lambda root, steps: ".".join([root, *steps]), ROOTS, st.lists(STEPS, max_size=6)
)


@settings(max_examples=100)
@given(fields=st.dictionaries(FIELD_NAMES, st.sampled_from(["", "1", "x", "AA=="]), max_size=6))
def test_arbitrary_paths_give_a_request_or_a_fault(fields: dict[str, str]) -> None:
    for operation in OPERATIONS.values():
        assert status_of(operation, fields) in (200, 400)


@settings(max_examples=50)
@given(text=st.text(st.characters(max_codepoint=255), max_size=60), body=st.binary(max_size=60))
def test_arbitrary_bytes_give_a_request_or_a_fault(text: str, body: bytes) -> None:
    try:
        fields = query.fields_of(text, body)
    except Fault:
        fields = {}
    for operation in OPERATIONS.values():
        assert status_of(operation, fields) in (200, 400)


# ── Replies ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_replies_are_read_by_the_sdk_as_they_were_meant(name: str, data: st.DataObject) -> None:
    operation = OPERATIONS[name]
    reply, members = None, {}
    if operation.reply is not None:
        shape = QUERY_MODEL.operation_model(name).output_shape
        members = data.draw(values(shape, XML_TEXT))
        reply = msgspec.convert(members, operation.reply, builtin_types=(bytes,))
    document = query_replies.encode_reply(name, reply, request_id="r-1")
    parsed = parse_reply("query", name, document)
    assert parsed.pop("ResponseMetadata")["RequestId"] == "r-1"
    assert without_empties(parsed) == without_empties(members)


def body_of(name: str, reply: Any) -> str:
    text = query_replies.encode_reply(name, reply, request_id="r").decode()
    return text.partition(f"<{name}Result>")[2].partition(f"</{name}Result>")[0]


def test_the_document_is_laid_out_as_sqs_lays_it_out() -> None:
    reply = SendMessageReply(md5_of_message_body="m", message_id="i")
    assert query_replies.encode_reply("SendMessage", reply, request_id="r") == (
        b'<?xml version="1.0"?>'
        b'<SendMessageResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">'
        b"<SendMessageResult><MD5OfMessageBody>m</MD5OfMessageBody><MessageId>i</MessageId>"
        b"</SendMessageResult><ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>"
        b"</SendMessageResponse>"
    )


@pytest.mark.parametrize(
    ("name", "reply", "markup"),
    [
        (
            "GetQueueAttributes",
            GetQueueAttributesReply(attributes={"a": "1", "b": "2"}),
            (
                "<Attribute><Name>a</Name><Value>1</Value></Attribute>"
                "<Attribute><Name>b</Name><Value>2</Value></Attribute>"
            ),
        ),
        (
            "ListQueueTags",
            ListQueueTagsReply(tags={"k": "v"}),
            "<Tag><Key>k</Key><Value>v</Value></Tag>",
        ),
        (
            "SendMessageBatch",
            SendMessageBatchReply(
                failed=[BatchResultErrorEntry(id="a", sender_fault=True, code="c")]
            ),
            (
                "<BatchResultErrorEntry><Id>a</Id><SenderFault>true</SenderFault><Code>c</Code>"
                "</BatchResultErrorEntry>"
            ),
        ),
        (
            "ReceiveMessage",
            ReceiveMessageReply(
                messages=[
                    ReceivedMessage(
                        message_id="i",
                        receipt_handle="h",
                        md5_of_body="m",
                        body='<&>"\r\n\t😀',
                        message_attributes={
                            "n": MessageAttributeValue(data_type="Binary", binary_value=b"\x00")
                        },
                    )
                ]
            ),
            (
                "<Message><MessageId>i</MessageId><ReceiptHandle>h</ReceiptHandle>"
                "<MD5OfBody>m</MD5OfBody><Body>&lt;&amp;&gt;&quot;&#xD;\n\t😀</Body>"
                "<MessageAttribute><Name>n</Name><Value><BinaryValue>AA==</BinaryValue>"
                "<DataType>Binary</DataType></Value></MessageAttribute></Message>"
            ),
        ),
        ("ReceiveMessage", ReceiveMessageReply(), ""),
    ],
)
def test_lists_and_maps_are_flattened(name: str, reply: Any, markup: str) -> None:
    assert body_of(name, reply) == markup


@settings(max_examples=50)
@given(message=st.text(st.characters(exclude_categories=())))
def test_a_fault_is_a_well_formed_document_whatever_it_echoes(message: str) -> None:
    document, _ = query_replies.encode_fault(
        fault("InvalidParameterValue", message), request_id="r"
    )
    parsed = parse_reply("query", "SendMessage", document, status=400)
    assert parsed["Error"]["Code"] == "InvalidParameterValue"
    assert parsed["Error"]["Type"] == "Sender"
    assert parsed["ResponseMetadata"]["RequestId"] == "r"
    assert len(parsed["Error"]["Message"] or "") == len(message)


def test_a_missing_queue_is_reported_in_the_words_of_this_protocol() -> None:
    document, headers = query_replies.encode_fault(fault("QueueDoesNotExist"), request_id="r")
    parsed = parse_reply("query", "SendMessage", document, status=400)
    assert parsed["Error"]["Code"] == "AWS.SimpleQueueService.NonExistentQueue"
    assert parsed["Error"]["Message"] == "The specified queue does not exist for this wsdl version."
    assert headers == ()


def test_a_throttled_client_is_told_when_to_come_back() -> None:
    _, headers = query_replies.encode_fault(
        fault("RequestThrottled", retry_after_s=3), request_id="r"
    )
    assert headers == (("retry-after", "3"),)


@settings(max_examples=50)
@given(text=XML_TEXT)
def test_any_body_round_trips_through_form_and_document(text: str) -> None:
    form = urlencode({"Action": "SendMessage", "MessageBody": text}).encode()
    request: Any = query.decode(OPERATIONS["SendMessage"], query.fields_of("", form))
    received = ReceivedMessage(
        message_id="i", receipt_handle="h", md5_of_body="m", body=request.message_body
    )
    document = query_replies.encode_reply(
        "ReceiveMessage", ReceiveMessageReply(messages=[received]), request_id="r"
    )
    assert parse_reply("query", "ReceiveMessage", document)["Messages"][0]["Body"] == text
