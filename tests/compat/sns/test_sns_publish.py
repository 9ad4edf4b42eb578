"""Publish and PublishBatch: what is refused, and what arrives in queues."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.compat.sns.stage import BAD, NULL, Given, Row, Stage, expected, identified

LIMIT = 262_144
MIB = 1_048_576
SUBJECT = "Invalid parameter: Subject"
EMPTY = "Invalid parameter: Empty message"
TOO_LONG = "Invalid parameter: Message too long"
NO_DEFAULT = "Invalid parameter: Message Structure - No default entry in JSON message body"
NO_JSON = "Invalid parameter: Message Structure - JSON message body failed to parse"
NO_GROUP = "Invalid parameter: The MessageGroupId parameter is required for FIFO topics"
NO_DEDUP = (
    "Invalid parameter: The topic should either have ContentBasedDeduplication enabled or "
    "MessageDeduplicationId provided explicitly"
)
NOT_FIFO = (
    "Invalid parameter: MessageDeduplicationId Reason: The request includes "
    "MessageDeduplicationId parameter that is not valid for this topic type"
)

# What is wrong with one message, to any topic or to <fifo>.
MESSAGES: list[tuple[Given, str]] = [
    ({"Subject": ""}, SUBJECT),
    ({"Subject": "a\nb"}, SUBJECT),
    ({"Subject": "a\x7f"}, SUBJECT),
    ({"Subject": "x" * 101}, "Subject must be less than 100 characters"),
    ({"Message": ""}, EMPTY),
    ({"MessageStructure": "json", "Message": "{}"}, NO_DEFAULT),
    ({"MessageStructure": "json", "Message": '{"sqs":"x"}'}, NO_DEFAULT),
    ({"MessageStructure": "json", "Message": '{"default":1}'}, NO_DEFAULT),
    ({"MessageStructure": "json", "Message": '{"default":"x","default":1}'}, NO_DEFAULT),
    ({"MessageStructure": "json", "Message": "m"}, NO_JSON),
    ({"MessageStructure": "json", "Message": '["default"]'}, NO_JSON),
    ({"MessageDeduplicationId": "d"}, NOT_FIFO),
    ({"MessageDeduplicationId": "d", "MessageGroupId": "g"}, NOT_FIFO),
    ({"TopicArn": "<fifo>"}, NO_GROUP),
    ({"TopicArn": "<fifo>", "MessageGroupId": "g"}, NO_DEDUP),
    ({"TopicArn": "<content>"}, NO_GROUP),
    (
        {"MessageGroupId": "a b"},
        (
            "Invalid parameter: MessageGroupId Reason: MessageGroupId can only include alphanumeric"
            " and punctuation characters. 1 to 128 in length."
        ),
    ),
]


def text(value: str | None, kind: str = "String") -> Given:
    return {"DataType": kind} if value is None else {"DataType": kind, "StringValue": value}


def raw(value: bytes, kind: str = "Binary") -> Given:
    return {"DataType": kind, "BinaryValue": value}


NON_EMPTY = (
    "The message attribute 'a' must contain non-empty message attribute value for message "
    "attribute type '{}'."
)
FIELD = "The message attribute 'a' with type '{}' must use field '{}'."
TYPE = (
    "The message attribute 'a' has an invalid message attribute type, the set of supported type "
    "prefixes is Binary, Number, and String."
)
CHARACTER = (
    "Invalid non-alphanumeric character '{}' was found in the message attribute name. Can only "
    "include alphanumeric characters, hyphens, underscores, or dots."
)
ATTRIBUTES: list[tuple[str, Given, str]] = [
    ("a", text(None), NON_EMPTY.format("String")),
    ("a", text(""), NON_EMPTY.format("String")),
    ("a", text("", "Number"), NON_EMPTY.format("Number")),
    ("a", raw(b""), NON_EMPTY.format("Binary")),
    ("a", raw(b"x", "String"), FIELD.format("String", "String")),
    ("a", raw(b"x", "Number"), FIELD.format("Number", "String")),
    ("a", text("x", "Binary"), FIELD.format("Binary", "Binary")),
    ("a", text("x", "Binary.gif"), FIELD.format("Binary.gif", "Binary")),
    ("a", text("x", "Boolean"), TYPE),
    ("a", text("x", "String."), TYPE),
    ("a", text("x", "Stringx"), TYPE),
    ("a", text("x", "string"), TYPE),
    ("a" * 257, text("x"), "Length of message attribute name must be less than 256 bytes."),
    ("a^b", text("x"), CHARACTER.format("#x5E")),
    ("a b^", text("x"), CHARACTER.format("#x20")),
    ("é", text("x"), CHARACTER.format("#xE9")),
    (".a", text("x"), "Invalid message attribute name starting with character '.' was found."),
    ("a.", text("x"), "Invalid message attribute name ending with character '.' was found."),
    ("a..b", text("x"), "Message attribute name can not have successive '.' character."),
    ("a", text("x", "Number"), "Could not cast message attribute 'a' value to number."),
    ("a", text("1,5", "Number"), "Could not cast message attribute 'a' value to number."),
]


def publish(**given: Any) -> Given:
    return {"TopicArn": "<topic>", "Message": "m"} | given


def batch(*entries: Given, **given: Any) -> Given:
    made = [{"Id": f"e{number}", "Message": "m"} | each for number, each in enumerate(entries)]
    return {"TopicArn": "<topic>", "PublishBatchRequestEntries": made} | given


def in_batch(given: Given) -> Given:
    """Return a batch whose second message is wrong; the first one is fine."""
    entry = {key: value for key, value in given.items() if key != "TopicArn"}
    topic = given.get("TopicArn", "<topic>")
    fine = {} if topic == "<topic>" else {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    return batch(fine, entry, TopicArn=topic)


ROWS: list[Row] = [("Publish", publish(**given), BAD, text) for given, text in MESSAGES]
ROWS += [("PublishBatch", in_batch(given), BAD, text) for given, text in MESSAGES]
INVALID = "ParameterValueInvalid"
ROWS += [
    ("Publish", publish(MessageAttributes={"ok": text("x"), name: value}), INVALID, message)
    for name, value, message in ATTRIBUTES
]
ROWS += [
    ("PublishBatch", in_batch({"MessageAttributes": {name: value}}), INVALID, message)
    for name, value, message in ATTRIBUTES
]
ARN = "arn:aws:sns:us-east-1:000000000000:endpoint/GCM/app/uuid"
ROWS += [
    (
        "Publish",
        publish(MessageAttributes={"n": {"StringValue": "x"}}),
        "ValidationError",
        NULL.format("messageAttributes.n.member.dataType"),
    ),
    (
        "PublishBatch",
        batch({}, {"MessageAttributes": {"n": {"StringValue": "x"}}}),
        "ValidationError",
        NULL.format("publishBatchRequestEntries.2.member.messageAttributes.n.member.dataType"),
    ),
    ("Publish", publish(Message="x" * (LIMIT + 1)), BAD, TOO_LONG),
    (
        "Publish",
        publish(Message="x" * (LIMIT - 12), MessageAttributes={"attr1": text("12", "Number")}),
        BAD,
        TOO_LONG,
    ),
    (
        "Publish",
        {"Message": "m", "TargetArn": ARN},
        BAD,
        "Invalid parameter: TargetArn Reason: No endpoint found for the target arn specified",
    ),
    (
        "Publish",
        {"Message": "m", "PhoneNumber": "NAA+15551234567"},
        BAD,
        "Invalid parameter: PhoneNumber Reason: NAA+15551234567 is not valid to publish to",
    ),
    # The order of the checks.
    ("Publish", publish(Subject="", Message=""), BAD, SUBJECT),
    ("Publish", publish(Message="", MessageAttributes={".a": text("x")}), BAD, EMPTY),
    (
        "Publish",
        publish(Message="x" * (LIMIT + 1), MessageAttributes={".a": text("x")}),
        INVALID,
        "Invalid message attribute name starting with character '.' was found.",
    ),
    (
        "Publish",
        publish(TopicArn="<fifo>", Message="x" * (LIMIT + 1)),
        BAD,
        TOO_LONG,
    ),
    ("Publish", publish(TopicArn="<fifo>", MessageStructure="json"), BAD, NO_GROUP),
    # Batches.
    (
        "PublishBatch",
        batch(*[{"Id": "same"}] * 11),
        "TooManyEntriesInBatchRequest",
        "The batch request contains more entries than permissible.",
    ),
    (
        "PublishBatch",
        batch(),
        "EmptyBatchRequest",
        "The batch request doesn't contain any entries.",
    ),
    (
        "PublishBatch",
        batch({"Id": "x" * 81}, {"Id": "x" * 81}),
        "BatchEntryIdsNotDistinct",
        "Two or more batch entries in the request have the same Id.",
    ),
    (
        "PublishBatch",
        batch({"Id": "@" * 81, "Message": ""}),
        "InvalidBatchEntryId",
        "The Id of a batch entry in the batch request is too long: " + "@" * 81,
    ),
    (
        "PublishBatch",
        batch({"Id": "a.b", "Message": ""}),
        "InvalidBatchEntryId",
        "The Id of a batch entry in the batch request contains an impermissible character: a.b",
    ),
    (
        "PublishBatch",
        batch({"Message": "x" * (LIMIT // 2)}, {"Message": "x" * (LIMIT // 2 + 1)}),
        "BatchRequestTooLong",
        "The length of all the messages put together is more than the limit.",
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=identified)
def test_refused(stage: Stage, row: Row) -> None:
    assert stage.refusal(row[0], row[1]) == expected(row, stage)


@pytest.mark.parametrize(
    "given",
    [
        {"Subject": "x" * 100},
        {"Subject": "Grüße, 世界"},
        {"Message": "x" * LIMIT},
        {"Message": "x" * (LIMIT - 12), "MessageAttributes": {"attr1": text("1", "Number")}},
        {"MessageGroupId": "g"},
        {"MessageStructure": "string"},
        {"MessageStructure": "json", "Message": '{"default":1,"default":"last"}'},
        {"MessageAttributes": {"a" * 256: text("x")}},
        {"MessageAttributes": {"a.b-c_9": text("x", "String.y")}},
        {"MessageAttributes": {f"a{number}": text("x") for number in range(100)}},
        {"TopicArn": "<content>", "MessageGroupId": "g"},
        {"TopicArn": "<fifo>", "MessageGroupId": "g", "MessageDeduplicationId": "d"},
    ],
)
def test_accepted(stage: Stage, given: Given) -> None:
    reply = stage.ask("Publish", **publish(**given))
    assert len(reply["MessageId"]) == 36
    is_fifo = "TopicArn" in given
    assert ("SequenceNumber" in reply) == is_fifo


def test_a_message_that_alone_is_too_long_fails_alone(stage: Stage) -> None:
    given = batch({"Message": "x" * (LIMIT + 1)}, {}, {"Message": "y" * (LIMIT - 1)})
    reply = stage.ask("PublishBatch", **given)
    assert [one["Id"] for one in reply["Successful"]] == ["e1", "e2"]
    assert reply["Failed"] == [
        {"Id": "e0", "Code": "InvalidParameter", "Message": TOO_LONG, "SenderFault": True}
    ]
    reply = stage.ask("PublishBatch", **batch({}))
    assert reply["Failed"] == []
    reply = stage.ask("PublishBatch", **batch({"Message": "x" * (LIMIT + 1)}))
    assert reply["Successful"] == []


@pytest.mark.parametrize(("size", "is_fine"), [(1_024, True), (1_025, False)])
def test_a_topic_may_have_a_smaller_limit(stage: Stage, size: int, is_fine: bool) -> None:
    topic = stage.topic(MaximumMessageSize="1024")
    given = {"TopicArn": topic, "Message": "x" * size}
    if is_fine:
        stage.ask("Publish", **given)
    else:
        assert stage.refusal("Publish", given) == (400, BAD, TOO_LONG)


def test_a_topic_may_have_a_larger_limit(stage: Stage) -> None:
    queue, url = stage.queue()
    topic = stage.topic(MaximumMessageSize=str(MIB))
    stage.subscribe(topic, queue, RawMessageDelivery="true")
    stage.ask("Publish", TopicArn=topic, Message="x" * MIB)
    [found] = stage.received(url)
    assert len(found["Body"]) == MIB
    refusal = stage.refusal("Publish", {"TopicArn": topic, "Message": "x" * (MIB + 1)})
    assert refusal == (400, BAD, TOO_LONG)


def test_what_arrives_in_queues(stage: Stage) -> None:
    topic = stage.topic()
    (plain, plain_url), (bare, bare_url) = stage.queue(), stage.queue()
    arn = stage.subscribe(topic, plain)
    stage.subscribe(topic, bare, RawMessageDelivery="true")
    attributes = {"color": text("red"), "bytes": raw(b"\x00\xff"), "n": text("1.50", "Number")}
    given = {"Message": "grüße", "Subject": "s", "MessageAttributes": attributes}
    message_id = stage.ask("Publish", TargetArn=topic, **given)["MessageId"]
    [found] = stage.received(plain_url)
    document = json.loads(found["Body"])
    assert list(document)[:5] == ["Type", "MessageId", "TopicArn", "Subject", "Message"]
    assert document["Type"] == "Notification"
    assert document["MessageId"] == message_id != found["MessageId"]
    assert (document["TopicArn"], document["Subject"]) == (topic, "s")
    assert document["Message"] == "grüße"
    assert document["MessageAttributes"] == {
        "color": {"Type": "String", "Value": "red"},
        "bytes": {"Type": "Binary", "Value": "AP8="},
        "n": {"Type": "Number", "Value": "1.50"},
    }
    assert document["SignatureVersion"] == "1"
    assert document["UnsubscribeURL"] == (f"{stage.url}/?Action=Unsubscribe&SubscriptionArn={arn}")
    [found] = stage.received(bare_url)
    assert found["Body"] == "grüße"
    assert found["MessageAttributes"]["n"] == {"DataType": "Number", "StringValue": "1.50"}
    assert found["MessageAttributes"].keys() == attributes.keys()


def test_a_text_for_each_protocol(stage: Stage) -> None:
    queue, url = stage.queue()
    topic = stage.topic()
    stage.subscribe(topic, queue, RawMessageDelivery="true")
    for document, delivered in (
        ({"default": "d", "sqs": "for queues", "http": "h"}, "for queues"),
        ({"default": "d", "http": "h"}, "d"),
        ({"default": "d", "sqs": 5}, "d"),
    ):
        given = {"MessageStructure": "json", "Message": json.dumps(document)}
        stage.ask("Publish", TopicArn=topic, **given)
        [found] = stage.received(url)
        assert found["Body"] == delivered


def test_messages_of_an_encrypted_topic_arrive(stage: Stage) -> None:
    queue, url = stage.queue()
    topic = stage.topic(KmsMasterKeyId="alias/mine")
    stage.subscribe(topic, queue)
    stage.ask("Publish", TopicArn=topic, Message="secret")
    [found] = stage.received(url)
    assert json.loads(found["Body"])["Message"] == "secret"


# ── FIFO topics ──────────────────────────────────────────────────────────────────────────────


def fifo(stage: Stage, **attributes: str) -> tuple[str, str]:
    """Return a FIFO topic and the URL of the FIFO queue that is subscribed to it."""
    queue, url = stage.queue(".fifo")
    topic = stage.topic(".fifo", FifoTopic="true", **attributes)
    stage.subscribe(topic, queue, RawMessageDelivery="true")
    return topic, url


def test_a_duplicate_gets_the_first_reply_and_is_sent_to_nobody(stage: Stage) -> None:
    topic, url = fifo(stage)
    given = {"TopicArn": topic, "MessageDeduplicationId": "d"}
    first = stage.ask("Publish", Message="one", MessageGroupId="g", **given)
    second = stage.ask("Publish", Message="two", MessageGroupId="other", **given)
    keys = ("MessageId", "SequenceNumber")
    assert [second[key] for key in keys] == [first[key] for key in keys]
    assert len(first["SequenceNumber"]) == 20
    third = stage.ask("Publish", TopicArn=topic, Message="three", MessageGroupId="g",
                      MessageDeduplicationId="e")  # fmt: skip
    assert third["SequenceNumber"] > first["SequenceNumber"]
    found = stage.received(url) + stage.received(url, wait_s=1)
    assert [one["Body"] for one in found] == ["one", "three"]
    assert found[0]["Attributes"]["MessageGroupId"] == "g"
    assert found[0]["Attributes"]["MessageDeduplicationId"] == "d"


def test_the_content_is_the_deduplication_id(stage: Stage) -> None:
    topic, url = fifo(stage, ContentBasedDeduplication="true")
    entries = [{"Id": f"e{n}", "Message": "same", "MessageGroupId": "g"} for n in range(2)]
    reply = stage.ask("PublishBatch", TopicArn=topic, PublishBatchRequestEntries=entries)
    first, second = reply["Successful"]
    assert first["MessageId"] == second["MessageId"]
    assert first["SequenceNumber"] == second["SequenceNumber"]
    [found] = stage.received(url)
    digest = "0967115f2813a3541eaef77de9d9d5773f1c0c04314b0bbfe4ff3b3b1c55b5d5"
    assert found["Attributes"]["MessageDeduplicationId"] == digest


@pytest.mark.parametrize(("scope", "count"), [("Topic", 1), ("MessageGroup", 2)])
def test_duplicates_are_found_over_all_groups_or_in_each(
    stage: Stage, scope: str, count: int
) -> None:
    topic = stage.topic(".fifo", FifoTopic="true", FifoThroughputScope=scope)
    made = set()
    for group in ("a", "b", "a"):
        given = {"MessageGroupId": group, "MessageDeduplicationId": "d"}
        made.add(stage.ask("Publish", TopicArn=topic, Message="m", **given)["MessageId"])
    assert len(made) == count


def test_the_scope_of_deduplication_can_be_changed(stage: Stage) -> None:
    topic = stage.topic(".fifo", FifoTopic="true")
    stage.set(topic, "FifoThroughputScope", "MessageGroup")
    assert stage.attributes(topic)["FifoThroughputScope"] == "MessageGroup"
    sent = [
        stage.ask("Publish", TopicArn=topic, Message="m", MessageGroupId=group,
                  MessageDeduplicationId="d")["MessageId"]
        for group in "ab"
    ]  # fmt: skip
    assert sent[0] != sent[1]


def test_notifications_of_fifo_topics_have_a_number_and_no_signature(stage: Stage) -> None:
    queue, url = stage.queue()
    topic = stage.topic(".fifo", FifoTopic="true")
    stage.subscribe(topic, queue)
    given = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sent = stage.ask("Publish", TopicArn=topic, Message="m", **given)
    [found] = stage.received(url)
    document = json.loads(found["Body"])
    assert document["SequenceNumber"] == sent["SequenceNumber"]
    assert not {"Signature", "SignatureVersion", "SigningCertURL"} & document.keys()
    assert "MessageDeduplicationId" not in found["Attributes"]
