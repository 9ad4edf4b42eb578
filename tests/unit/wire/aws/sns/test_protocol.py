import json
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.wire.aws.sns.sns_oracle import MODEL, form_body, parse_reply
from tests.unit.wire.aws_oracle import values, without_empties

from penstock.wire.aws import query
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import OPERATIONS as SQS_OPERATIONS
from penstock.wire.aws.sns import protocol
from penstock.wire.aws.sns.faults import fault
from penstock.wire.aws.sns.shapes import (
    OPERATIONS,
    BatchResultErrorEntry,
    GetTopicAttributesReply,
    ListSubscriptionsReply,
    ListTagsForResourceReply,
    ListTopicsReply,
    MessageAttributeValue,
    PublishBatchReply,
    PublishBatchResultEntry,
    PublishReply,
    SnsReply,
    Tag,
    TagResourceReply,
    Topic,
    UntagResourceReply,
)

NAMES = sorted(OPERATIONS)
WITH_REPLY = [name for name in NAMES if OPERATIONS[name].reply is not None]
TEXT = st.text(max_size=20)
XMLNS = f'xmlns="{protocol.NAMESPACE}"'
METADATA = "<ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>"


def decode(name: str, fields: dict[str, str]) -> Any:
    return protocol.decode(OPERATIONS[name], fields)


# ── Requests ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(data=st.data())
def test_forms_of_the_sdk_are_read_as_they_were_meant(name: str, data: st.DataObject) -> None:
    parameters = data.draw(values(MODEL.operation_model(name).input_shape, TEXT))
    fields = query.fields_of("", form_body(name, parameters))
    assert protocol.operation_of(fields) is OPERATIONS[name]
    assert protocol.is_for_sns(fields)
    read = msgspec.to_builtins(decode(name, fields), builtin_types=(bytes,))
    assert without_empties(read) == without_empties(parameters)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(
    fields=st.dictionaries(st.text("ATM.1enmrkvy", max_size=12), TEXT, max_size=6), data=st.data()
)
def test_any_form_is_read_or_refused(
    name: str, fields: dict[str, str], data: st.DataObject
) -> None:
    root = data.draw(st.sampled_from(sorted(MODEL.operation_model(name).input_shape.members)
                                     or ["X"]))  # fmt: skip
    fields |= {f"{root}.{key}": value for key, value in fields.items()}
    assert status_of(name, fields) in (200, 400)


def status_of(name: str, fields: dict[str, str]) -> int:
    try:
        decode(name, fields)
    except Fault as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("CreateTopic", {"Name": "t"}, {"name": "t"}),
        (
            "CreateTopic",
            {"Attributes.entry.1.key": "DisplayName", "Attributes.entry.1.value": "x"},
            {"attributes": {"DisplayName": "x"}},
        ),
        (
            "CreateTopic",
            {"Attributes.entry.2.key": "b", "Attributes.entry.2.value": "2",
             "Attributes.entry.1.key": "a", "Attributes.entry.1.value": ""},
            {"attributes": {"a": "", "b": "2"}},
        ),
        (
            "CreateTopic",
            {"Tags.member.1.Key": "k", "Tags.member.1.Value": "v"},
            {"tags": [Tag(key="k", value="v")]},
        ),
        ("TagResource", {"Tags.member.1.Key": "k"}, {"tags": [Tag(key="k")]}),
        (
            "UntagResource",
            {"TagKeys.member.2": "b", "TagKeys.member.1": "a"},
            {"tag_keys": ["a", "b"]},
        ),
        (
            "AddPermission",
            {"AWSAccountId.member.1": "1", "ActionName.member.1": "Publish", "Label": "l"},
            {"aws_account_id": ["1"], "action_name": ["Publish"], "label": "l"},
        ),
        ("Subscribe", {"ReturnSubscriptionArn": "true"}, {"return_subscription_arn": True}),
        ("Subscribe", {"ReturnSubscriptionArn": "False"}, {"return_subscription_arn": False}),
        (
            "ConfirmSubscription",
            {"TopicArn": "a", "Token": "t", "AuthenticateOnUnsubscribe": "true"},
            {"topic_arn": "a", "token": "t", "authenticate_on_unsubscribe": "true"},
        ),
        (
            "Publish",
            {"MessageAttributes.entry.1.Name": "n",
             "MessageAttributes.entry.1.Value.DataType": "Binary",
             "MessageAttributes.entry.1.Value.BinaryValue": "AAE="},
            {"message_attributes": {
                "n": MessageAttributeValue(data_type="Binary", binary_value=b"\x00\x01")}},
        ),
        ("Publish", {"Message": "", "Subject": ""}, {"message": "", "subject": ""}),
    ],
)  # fmt: skip
def test_forms_are_read(name: str, fields: dict[str, str], expected: dict[str, Any]) -> None:
    assert decode(name, fields) == OPERATIONS[name].request(**expected)


def test_the_entries_of_a_batch_have_attributes_of_their_own() -> None:
    entry = "PublishBatchRequestEntries.member.1"
    attribute = f"{entry}.MessageAttributes.entry.1"
    request = decode(
        "PublishBatch",
        {
            "TopicArn": "a",
            f"{entry}.Id": "i",
            f"{entry}.Message": "m",
            f"{attribute}.Name": "n",
            f"{attribute}.Value.DataType": "String",
            f"{attribute}.Value.StringValue": "s",
        },
    )
    (read,) = request.publish_batch_request_entries
    assert (read.id, read.message) == ("i", "m")
    value = MessageAttributeValue(data_type="String", string_value="s")
    assert read.message_attributes == {"n": value}


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("Subscribe", {"ReturnSubscriptionArn": "yes"}, "MalformedInput"),
        ("Subscribe", {"ReturnSubscriptionArn.x": "true"}, "MalformedInput"),
        ("UntagResource", {"TagKeys.member.x": "a"}, "MalformedInput"),
        ("CreateTopic", {"Attributes.entry.1.value": "a"}, "MissingParameter"),
        ("CreateTopic", {"Tags": "a"}, "MalformedInput"),
        (
            "Publish",
            {"MessageAttributes.entry.1.Name": "n",
             "MessageAttributes.entry.1.Value.BinaryValue": "*"},
            "InvalidParameterValue",
        ),
        ("Publish", {"Message": "a", "Message.b": "c"}, "MalformedInput"),
        ("Publish", {"Message" + ".a" * 20: "c"}, "MalformedInput"),
    ],
)  # fmt: skip
def test_malformed_forms_are_refused(name: str, fields: dict[str, str], code: str) -> None:
    with pytest.raises(Fault) as caught:
        decode(name, fields)
    assert (caught.value.code, caught.value.status) == (code, 400)


@pytest.mark.parametrize(
    ("fields", "service", "is_sns"),
    [
        ({"Action": "Publish"}, "sns", True),
        ({"Action": "ListQueues"}, "sns", True),
        ({"Action": "Publish"}, "sqs", False),
        ({"Action": "Publish", "Version": "2010-03-31"}, "sqs", False),
        ({"Action": "Publish"}, "sts", False),
        ({"Action": "Nothing", "Version": "2010-03-31"}, "", True),
        ({"Action": "Publish", "Version": "2012-11-05"}, "", False),
        ({"Action": "Publish"}, "", True),
        ({"Action": "Publish"}, "anything", True),
        ({"Action": "ConfirmSubscription", "Token": "t"}, "", True),
        ({"Action": "Unsubscribe"}, "", True),
        ({"Action": "SetSMSAttributes"}, "", True),
        ({"Action": "SendMessage"}, "", False),
        ({"Action": "AddPermission", "TopicArn": "a"}, "", True),
        ({"Action": "AddPermission", "QueueUrl": "u"}, "", False),
        ({"Action": "RemovePermission", "TopicArn": "a"}, "", True),
        ({"Action": "RemovePermission"}, "", False),
        ({"Action": "SendMessage", "TopicArn": "a"}, "", False),
        ({"Action": "GetCallerIdentity"}, "", False),
        ({}, "", False),
    ],
)
def test_the_service_is_chosen_by_signature_version_and_action(
    fields: dict[str, str], service: str, is_sns: bool
) -> None:
    assert protocol.is_for_sns(fields, service=service) is is_sns


@pytest.mark.parametrize(
    ("fields", "code"),
    [({}, "MissingAction"), ({"Action": "SendMessage"}, "InvalidAction"),
     ({"Action": "x" * 1_000}, "InvalidAction")],
)  # fmt: skip
def test_other_actions_are_refused(fields: dict[str, str], code: str) -> None:
    with pytest.raises(Fault) as caught:
        protocol.operation_of(fields)
    assert caught.value.code == code
    assert len(caught.value.message) < 200


def test_sqs_does_not_have_the_actions_of_sns() -> None:
    with pytest.raises(Fault):
        query.operation_of({"Action": "Publish"})
    fields = {"Action": "AddPermission", "Label": "l", "AWSAccountId.1": "1"}
    operation = query.operation_of(fields)
    assert operation is SQS_OPERATIONS["AddPermission"]
    read: Any = query.decode(operation, fields)
    assert read.aws_account_ids == ["1"]


@pytest.mark.parametrize(
    ("form", "body", "accept", "is_wanted"),
    [
        ("", b"Action=Publish&ContentType=JSON", "", True),
        ("", b"ContentType=JSON&Action=Publish", "", True),
        ("ContentType=JSON", b"", "*/*", True),
        ("Action=Publish&ContentType=JSON&Message=x", b"", "", True),
        ("", b"", "application/json, */*", True),
        ("", b"Action=Publish&ContentType=XML", "", False),
        ("", b"Message=ContentType=JSON", "", False),
        ("", b"ContentType=JSONP", "", False),
        ("", b"", "text/xml", False),
        ("", b"", "", False),
    ],
)
def test_old_clients_ask_for_json(form: str, body: bytes, accept: str, is_wanted: bool) -> None:
    assert protocol.wants_json(form, body, accept) is is_wanted


# ── Replies ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "reply", "result"),
    [
        ("DeleteTopic", None, ""),
        ("SetTopicAttributes", None, ""),
        ("Unsubscribe", None, ""),
        ("TagResource", TagResourceReply(), "<TagResourceResult/>"),
        ("UntagResource", UntagResourceReply(), "<UntagResourceResult/>"),
        ("ListTopics", ListTopicsReply(topics=[]),
         "<ListTopicsResult><Topics/></ListTopicsResult>"),
        (
            "ListTopics",
            ListTopicsReply(topics=[Topic(topic_arn="a"), Topic(topic_arn="b")], next_token="100"),
            ("<ListTopicsResult><Topics><member><TopicArn>a</TopicArn></member><member>"
            "<TopicArn>b</TopicArn></member></Topics><NextToken>100</NextToken></ListTopicsResult>"),
        ),
        ("ListSubscriptions", ListSubscriptionsReply(subscriptions=[]),
         "<ListSubscriptionsResult><Subscriptions/></ListSubscriptionsResult>"),
        ("ListTagsForResource", ListTagsForResourceReply(tags=[]),
         "<ListTagsForResourceResult><Tags/></ListTagsForResourceResult>"),
        (
            "ListTagsForResource",
            ListTagsForResourceReply(tags=[Tag(key="k", value="v")]),
            ("<ListTagsForResourceResult><Tags><member><Key>k</Key><Value>v</Value></member></Tags>"
            "</ListTagsForResourceResult>"),
        ),
        (
            "GetTopicAttributes",
            GetTopicAttributesReply(attributes={"Owner": "1", "DisplayName": ""}),
            ("<GetTopicAttributesResult><Attributes><entry><key>Owner</key><value>1</value></entry>"
            "<entry><key>DisplayName</key><value></value></entry></Attributes>"
            "</GetTopicAttributesResult>"),
        ),
        ("Publish", PublishReply(message_id="m"),
         "<PublishResult><MessageId>m</MessageId></PublishResult>"),
        (
            "Publish",
            PublishReply(message_id="m", sequence_number="7"),
            ("<PublishResult><MessageId>m</MessageId><SequenceNumber>7</SequenceNumber>"
            "</PublishResult>"),
        ),
        ("PublishBatch", PublishBatchReply(successful=[], failed=[]),
         "<PublishBatchResult><Successful/><Failed/></PublishBatchResult>"),
    ],
)  # fmt: skip
def test_replies_have_the_layout_of_sns(name: str, reply: SnsReply | None, result: str) -> None:
    text = protocol.encode_reply(name, reply, request_id="r").decode()
    assert (
        text == f'<?xml version="1.0"?><{name}Response {XMLNS}>{result}{METADATA}</{name}Response>'
    )


@pytest.mark.parametrize("name", WITH_REPLY)
@settings(max_examples=20)
@given(data=st.data())
def test_the_sdk_reads_replies_as_they_were_meant(name: str, data: st.DataObject) -> None:
    text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20).filter(
        lambda text: "\ufffe" not in text and "\uffff" not in text
    )
    operation = OPERATIONS[name]
    assert operation.reply is not None
    shape = MODEL.operation_model(name).output_shape
    meant = data.draw(values(shape, text).map(completed(operation.reply)))
    reply = msgspec.convert(meant, operation.reply)
    parsed = parse_reply(name, protocol.encode_reply(name, reply, request_id="r"))
    assert parsed.pop("ResponseMetadata")["RequestId"] == "r"
    assert parsed == meant


def completed(struct: type[msgspec.Struct]) -> Any:
    """Add the members that our replies always have."""

    def complete(value: dict[str, Any], info: Any = None) -> Any:
        info = info or msgspec.inspect.type_info(struct)
        for field in info.fields:
            kind = field.type
            if field.required and field.encode_name not in value:
                empty: dict[Any, Any] = {msgspec.inspect.ListType: [], msgspec.inspect.DictType: {}}
                value[field.encode_name] = empty.get(type(kind), "")
            if isinstance(kind, msgspec.inspect.ListType):
                for item in value[field.encode_name]:
                    complete(item, kind.item_type)
        return value

    return complete


@given(text=st.text(max_size=50))
def test_any_text_gives_well_formed_xml(text: str) -> None:
    reply = GetTopicAttributesReply(attributes={text: text})
    ElementTree.fromstring(protocol.encode_reply("GetTopicAttributes", reply, request_id="r"))
    refusal = fault("InvalidParameter", text)
    ElementTree.fromstring(protocol.encode_fault(refusal, request_id="r")[0])
    json.loads(protocol.encode_json_fault(refusal, request_id="r")[0])


@given(text=st.text(min_size=1, max_size=50))
def test_the_sdk_reads_the_text_of_an_error(text: str) -> None:
    refusal = fault("InvalidParameter", text)
    body, headers = protocol.encode_fault(refusal, request_id="r")
    error = parse_reply("Publish", body, status=400)["Error"]
    assert (error["Code"], error["Type"], headers) == ("InvalidParameter", "Sender", ())
    assert len(error["Message"]) == len(text)


def test_an_error_has_no_detail() -> None:
    body, headers = protocol.encode_fault(
        fault("Throttled", "slow", retry_after_s=2), request_id="r"
    )
    assert body.decode() == (
        f'<?xml version="1.0"?><ErrorResponse {XMLNS}><Error><Type>Sender</Type>'
        "<Code>Throttled</Code><Message>slow</Message></Error><RequestId>r</RequestId>"
        "</ErrorResponse>"
    )
    assert headers == (("retry-after", "2"),)


def test_an_error_of_the_server_is_the_receivers() -> None:
    body, _ = protocol.encode_fault(fault("InternalError"), request_id="r")
    assert b"<Type>Receiver</Type><Code>InternalError</Code>" in body


# ── As JSON ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "reply", "expected"),
    [
        ("DeleteTopic", None, {}),
        ("TagResource", TagResourceReply(), {"TagResourceResult": {}}),
        ("Publish", PublishReply(message_id="m"),
         {"PublishResult": {"MessageId": "m", "SequenceNumber": None}}),
        (
            "ListTopics",
            ListTopicsReply(topics=[Topic(topic_arn="a")]),
            {"ListTopicsResult": {"Topics": [{"TopicArn": "a"}], "NextToken": None}},
        ),
        (
            "GetTopicAttributes",
            GetTopicAttributesReply(attributes={"Owner": "1"}),
            {"GetTopicAttributesResult": {"Attributes": {"Owner": "1"}}},
        ),
        (
            "PublishBatch",
            PublishBatchReply(
                successful=[PublishBatchResultEntry(id="1", message_id="m")],
                failed=[BatchResultErrorEntry(id="2", code="c", sender_fault=True)],
            ),
            {"PublishBatchResult": {
                "Successful": [{"Id": "1", "MessageId": "m", "SequenceNumber": None}],
                "Failed": [{"Id": "2", "Code": "c", "SenderFault": True, "Message": None}]}},
        ),
    ],
)  # fmt: skip
def test_json_replies_have_the_structure_of_the_xml(
    name: str, reply: SnsReply | None, expected: dict[str, Any]
) -> None:
    document = json.loads(protocol.encode_json_reply(name, reply, request_id="r"))
    assert document == {
        f"{name}Response": {**expected, "ResponseMetadata": {"RequestId": "r"}},
    }


def test_json_errors_have_code_message_and_type() -> None:
    body, _ = protocol.encode_json_fault(fault("NotFound", "Topic does not exist"), request_id="r")
    error = {"Code": "NotFound", "Message": "Topic does not exist", "Type": "Sender"}
    assert json.loads(body) == {"Error": error, "RequestId": "r"}
