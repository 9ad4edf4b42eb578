import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.message import Attribute
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.sns.publish_checks import (
    TopicRules,
    check_batch,
    check_publish,
    target_of,
    texts_of,
)
from penstock.wire.aws.sns.shapes import (
    MessageAttributeValue,
    PublishBatchRequestEntry,
    PublishRequest,
)

STANDARD = TopicRules()
FIFO = TopicRules(is_fifo=True)
CONTENT = TopicRules(is_fifo=True, deduplicates_content=True)
LIMIT = 262_144


def value(
    data_type: str | None, text: str | None = None, raw: bytes | None = None
) -> MessageAttributeValue:
    return MessageAttributeValue(data_type=data_type, string_value=text, binary_value=raw)


STRING = value("String", "v")


def publish(rules: TopicRules = STANDARD, **fields: Any) -> Any:
    return check_publish(PublishRequest(**({"message": "m"} | fields)), rules)


def batch(*entries: dict[str, Any], rules: TopicRules = STANDARD) -> Any:
    defaults = ({"id": str(number), "message": "m"} for number, _ in enumerate(entries))
    made = [
        PublishBatchRequestEntry(**(default | entry))
        for default, entry in zip(defaults, entries, strict=True)
    ]
    return check_batch(made, rules)


def refusal_of(call: Any, *args: Any, **kwargs: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        call(*args, **kwargs)
    return caught.value


# ── Targets ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({"topic_arn": "a"}, "a"),
        ({"target_arn": "b"}, "b"),
        ({"topic_arn": "", "target_arn": "b"}, "b"),
        ({"topic_arn": "a", "target_arn": "b"}, "a"),
        ({"phone_number": "+15551234567"}, "+15551234567"),
        ({"phone_number": "15551234567"}, "15551234567"),
    ],
)
def test_a_message_has_one_target(fields: dict[str, Any], target: str) -> None:
    assert target_of(PublishRequest(**fields)) == target


@pytest.mark.parametrize(
    "number", ["NAA+15551234567", "+1a234", "+", "+0123", "+1" + "2" * 15, "1"]
)
def test_other_phone_numbers_are_refused(number: str) -> None:
    refusal = refusal_of(target_of, PublishRequest(phone_number=number))
    text = f"Invalid parameter: PhoneNumber Reason: {number} is not valid to publish to"
    assert (refusal.code, refusal.message) == ("InvalidParameter", text)


def test_a_message_without_target_is_refused() -> None:
    refusal = refusal_of(target_of, PublishRequest(message="m"))
    assert (refusal.code, refusal.status) == ("InvalidParameter", 400)
    assert refusal.message == (
        "Invalid parameter: TopicArn or TargetArn Reason: no value for required parameter"
    )


# ── Subject, message, size ───────────────────────────────────────────────────────────────────

NULL = (
    "1 validation error detected: Value null at '{}' failed to satisfy constraint: "
    "Member must not be null"
)
NO_GROUP = "Invalid parameter: The MessageGroupId parameter is required for FIFO topics"
NO_DEDUP = (
    "Invalid parameter: The topic should either have ContentBasedDeduplication enabled or "
    "MessageDeduplicationId provided explicitly"
)
NOT_FIFO = (
    "Invalid parameter: MessageDeduplicationId Reason: The request includes "
    "MessageDeduplicationId parameter that is not valid for this topic type"
)
NO_DEFAULT = "Invalid parameter: Message Structure - No default entry in JSON message body"
NO_JSON = "Invalid parameter: Message Structure - JSON message body failed to parse"
BAD_ID = (
    "Invalid parameter: {0} Reason: {0} can only include alphanumeric and punctuation "
    "characters. 1 to 128 in length."
)


@pytest.mark.parametrize(
    ("fields", "rules", "message"),
    [
        ({"subject": ""}, STANDARD, "Invalid parameter: Subject"),
        ({"subject": "a\nb"}, STANDARD, "Invalid parameter: Subject"),
        ({"subject": "\x00"}, STANDARD, "Invalid parameter: Subject"),
        ({"subject": "a\x7f"}, STANDARD, "Invalid parameter: Subject"),
        ({"subject": "a\x85"}, STANDARD, "Invalid parameter: Subject"),
        ({"subject": "a" * 101}, STANDARD, "Subject must be less than 100 characters"),
        ({"message": ""}, STANDARD, "Invalid parameter: Empty message"),
        ({"message": "a" * (LIMIT + 1)}, STANDARD, "Invalid parameter: Message too long"),
        ({"message": "é" * (LIMIT // 2 + 1)}, STANDARD, "Invalid parameter: Message too long"),
        (
            {"message": "a" * (LIMIT - 12), "message_attributes": {"attr1": value("Number", "12")}},
            STANDARD,
            "Invalid parameter: Message too long",
        ),
        ({"message": "ab"}, TopicRules(message_bytes_max=1), "Invalid parameter: Message too long"),
        ({}, FIFO, NO_GROUP),
        ({"message_group_id": ""}, FIFO, NO_GROUP),
        ({"message_group_id": "g"}, FIFO, NO_DEDUP),
        ({"message_group_id": "g", "message_deduplication_id": ""}, FIFO, NO_DEDUP),
        ({"message_deduplication_id": "d"}, STANDARD, NOT_FIFO),
        ({"message_group_id": "g", "message_deduplication_id": "d"}, STANDARD, NOT_FIFO),
        ({"message_group_id": "a b"}, STANDARD, BAD_ID.format("MessageGroupId")),
        ({"message_group_id": "a" * 129}, CONTENT, BAD_ID.format("MessageGroupId")),
        (
            {"message_group_id": "g", "message_deduplication_id": "é"},
            FIFO,
            BAD_ID.format("MessageDeduplicationId"),
        ),
        ({"message_structure": "json", "message": "{}"}, STANDARD, NO_DEFAULT),
        ({"message_structure": "json", "message": '{"http":"x"}'}, STANDARD, NO_DEFAULT),
        ({"message_structure": "json", "message": '{"default":1}'}, STANDARD, NO_DEFAULT),
        ({"message_structure": "json", "message": '{"default":null}'}, STANDARD, NO_DEFAULT),
        ({"message_structure": "json", "message": '{"default":{"a":"b"}}'}, STANDARD, NO_DEFAULT),
        (
            {"message_structure": "json", "message": '{"default":"x","default":1}'},
            STANDARD,
            NO_DEFAULT,
        ),
        ({"message_structure": "json", "message": "m"}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": "{default:1}"}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": '["default"]'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": '"default"'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": '{"default":"x"'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": '{"default":"x"} y'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": r'{"default":"\q"}'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": r'{"default":"","sqs":"\q"}'}, STANDARD, NO_JSON),
        ({"message_structure": "json", "message": '{"a":' + "[" * 100_000}, STANDARD, NO_JSON),
    ],
)  # fmt: skip
def test_publish_refuses(fields: dict[str, Any], rules: TopicRules, message: str) -> None:
    refusal = refusal_of(publish, rules, **fields)
    assert (refusal.code, refusal.status, refusal.message) == ("InvalidParameter", 400, message)


def test_a_message_is_required() -> None:
    refusal = refusal_of(publish, message=None)
    assert (refusal.code, refusal.message) == ("ValidationError", NULL.format("message"))


@pytest.mark.parametrize(
    ("fields", "rules"),
    [
        ({"subject": "a" * 100}, STANDARD),
        ({"subject": "Grüße, 世界"}, STANDARD),
        ({"message": "a" * LIMIT}, STANDARD),
        (
            {"message": "a" * (LIMIT - 12), "message_attributes": {"attr1": value("Number", "1")}},
            STANDARD,
        ),
        ({"message": "a" * (LIMIT + 1)}, TopicRules(message_bytes_max=1_048_576)),
        ({"message_group_id": "g"}, STANDARD),
        ({"message_group_id": "", "message_deduplication_id": ""}, STANDARD),
        ({"message_group_id": "g"}, CONTENT),
        ({"message_group_id": "g", "message_deduplication_id": "d"}, CONTENT),
        ({"message_group_id": "!~" * 64, "message_deduplication_id": "d" * 128}, FIFO),
        ({"message_structure": "string"}, STANDARD),
        ({"message_structure": ""}, STANDARD),
        ({"message": "\x00 😀"}, STANDARD),
    ],
)  # fmt: skip
def test_publish_accepts(fields: dict[str, Any], rules: TopicRules) -> None:
    assert publish(rules, **fields).size >= 1


def test_a_checked_message_has_what_is_stored() -> None:
    attributes = {"n": value("Number", "1.5"), "b": value("Binary.gif", raw=b"\x00")}
    checked = publish(
        CONTENT,
        message='{"default":"é"}',
        message_structure="json",
        subject="s",
        message_attributes=attributes,
        message_group_id="g",
        message_deduplication_id="d",
    )
    assert checked.body == '{"default":"é"}'.encode()
    assert checked.attributes == {
        "n": Attribute("Number", b"1.5"),
        "b": Attribute("Binary.gif", b"\0"),
    }
    assert checked.size == len(checked.body) + len("nNumber1.5") + len("bBinary.gif") + 1
    assert (checked.subject, checked.group, checked.dedup_id) == ("s", "g", "d")
    assert checked.is_structured
    assert not publish().is_structured


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"subject": "", "message": ""}, "Invalid parameter: Subject"),
        ({"subject": "\n" * 200}, "Invalid parameter: Subject"),
        ({"message": "", "message_attributes": {".a": STRING}}, "Invalid parameter: Empty message"),
        (
            {"message": "a" * (LIMIT + 1), "message_attributes": {".a": STRING}},
            "Invalid message attribute name starting with character '.' was found.",
        ),
        ({"message": "a" * (LIMIT + 1)}, "Invalid parameter: Message too long"),
        ({"message_structure": "json"}, NO_GROUP),
        (
            {"message_structure": "json", "message_group_id": "g", "message_deduplication_id": "d"},
            NO_JSON,
        ),
    ],
)  # fmt: skip
def test_the_first_check_that_fails_is_reported(fields: dict[str, Any], message: str) -> None:
    assert refusal_of(publish, FIFO, **fields).message == message


# ── Attributes ───────────────────────────────────────────────────────────────────────────────

EMPTY = (
    "The message attribute 'a' must contain non-empty message attribute value for message "
    "attribute type '{}'."
)
TYPE = (
    "The message attribute 'a' has an invalid message attribute type, the set of supported type "
    "prefixes is Binary, Number, and String."
)
FIELD = "The message attribute 'a' with type '{}' must use field '{}'."
CHAR = (
    "Invalid non-alphanumeric character '{}' was found in the message attribute name. Can only "
    "include alphanumeric characters, hyphens, underscores, or dots."
)
BAD_ATTRIBUTES: list[tuple[str, MessageAttributeValue, str]] = [
    ("a", value("String"), EMPTY.format("String")),
    ("a", value("String", ""), EMPTY.format("String")),
    ("a", value("String.x", ""), EMPTY.format("String.x")),
    ("a", value("Number", ""), EMPTY.format("Number")),
    ("a", value("Binary"), EMPTY.format("Binary")),
    ("a", value("Binary", raw=b""), EMPTY.format("Binary")),
    ("a", value("String", raw=b"x"), FIELD.format("String", "String")),
    ("a", value("Number", raw=b"x"), FIELD.format("Number", "String")),
    ("a", value("Binary", "x"), FIELD.format("Binary", "Binary")),
    ("a", value("Binary.gif", "x"), FIELD.format("Binary.gif", "Binary")),
    ("a", value("", "x"), TYPE),
    ("a", value("string", "x"), TYPE),
    ("a", value("String.", "x"), TYPE),
    ("a", value("Stringx", "x"), TYPE),
    ("a", value("Boolean", "x"), TYPE),
    ("a", value("Strings.x", "x"), TYPE),
    ("a" * 257, STRING, "Length of message attribute name must be less than 256 bytes."),
    ("", STRING, "Length of message attribute name must be greater than 0 bytes."),
    ("a^b", STRING, CHAR.format("#x5E")),
    ("a b^", STRING, CHAR.format("#x20")),
    ("é", STRING, CHAR.format("#xE9")),
    ("a\n", STRING, CHAR.format("#xA")),
    ("😀", STRING, CHAR.format("#x1F600")),
    (".a", STRING, "Invalid message attribute name starting with character '.' was found."),
    (".", STRING, "Invalid message attribute name starting with character '.' was found."),
    ("a.", STRING, "Invalid message attribute name ending with character '.' was found."),
    ("a..b", STRING, "Message attribute name can not have successive '.' character."),
    ("a..b^", STRING, "Message attribute name can not have successive '.' character."),
    ("a^..b", STRING, CHAR.format("#x5E")),
    ("a", value("Number", "x"), "Could not cast message attribute 'a' value to number."),
    ("a", value("Number.f", "NaN"), "Could not cast message attribute 'a' value to number."),
    ("a", value("Number", "1" * 10_000), "Could not cast message attribute 'a' value to number."),
]


@pytest.mark.parametrize(("name", "bad", "message"), BAD_ATTRIBUTES)
def test_bad_attributes_are_refused(name: str, bad: MessageAttributeValue, message: str) -> None:
    attributes = {"good": STRING, name: bad}
    for refusal in (
        refusal_of(publish, message_attributes=attributes),
        refusal_of(batch, {}, {"message_attributes": attributes}),
    ):
        found = (refusal.code, refusal.status, refusal.message)
        assert found == ("ParameterValueInvalid", 400, message)


def test_a_data_type_is_required() -> None:
    attributes = {"attr1": value(None, "x")}
    refusal = refusal_of(publish, message_attributes=attributes)
    path = "messageAttributes.attr1.member.dataType"
    assert (refusal.code, refusal.message) == ("ValidationError", NULL.format(path))
    refusal = refusal_of(batch, {}, {"message_attributes": attributes})
    path = f"publishBatchRequestEntries.2.member.{path}"
    assert (refusal.code, refusal.message) == ("ValidationError", NULL.format(path))


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("a" * 256, STRING), ("A-z_0.9", STRING), ("AWS.x", STRING), ("a", value("String.x", "y")),
        ("a", value("String.Array", '["x"]')), ("a", value("Number", "-1.5e10")),
        ("a", value("Number.int", "007")),
        ("a", value("Binary.png", raw=b"\xff")), ("a", value("String", "\x00\n")),
    ],
)  # fmt: skip
def test_good_attributes_are_accepted(name: str, good: MessageAttributeValue) -> None:
    checked = publish(message_attributes={name: good})
    assert checked.attributes is not None
    content = good.binary_value or (good.string_value or "").encode()
    assert checked.attributes == {name: Attribute(str(good.data_type), content)}


def test_a_message_may_have_many_attributes() -> None:
    attributes = {f"a{number}": STRING for number in range(300)}
    assert len(publish(message_attributes=attributes).attributes) == 300
    assert publish(message_attributes={}).attributes is None


@given(
    name=st.text(max_size=10),
    data_type=st.none()
    | st.sampled_from(["String", "Number", "Binary", "String."])
    | st.text(max_size=9),
    text=st.none() | st.text(max_size=9),
    raw=st.none() | st.binary(max_size=3),
)
def test_any_attribute_is_accepted_or_refused(
    name: str, data_type: str | None, text: str | None, raw: bytes | None
) -> None:
    attributes = {name: value(data_type, text, raw)}
    try:
        publish(message_attributes=attributes)
    except Fault as refusal:
        problem = refusal.code
    else:
        problem = ""
    assert problem in ("", "ParameterValueInvalid", "ValidationError")


# ── Batches ──────────────────────────────────────────────────────────────────────────────────

TOO_LONG_ID = "The Id of a batch entry in the batch request is too long: {}"
ODD_ID = "The Id of a batch entry in the batch request contains an impermissible character: {}"


@pytest.mark.parametrize(
    ("entries", "rules", "code", "message"),
    [
        ([{}] * 11, STANDARD, "TooManyEntriesInBatchRequest",
         "The batch request contains more entries than permissible."),
        ([{"id": "1"}] * 11, STANDARD, "TooManyEntriesInBatchRequest",
         "The batch request contains more entries than permissible."),
        ([], STANDARD, "EmptyBatchRequest", "The batch request doesn't contain any entries."),
        ([{"id": "1"}, {"id": "1"}], STANDARD, "BatchEntryIdsNotDistinct",
         "Two or more batch entries in the request have the same Id."),
        ([{"id": "a" * 81}, {"id": "a" * 81}], STANDARD, "BatchEntryIdsNotDistinct",
         "Two or more batch entries in the request have the same Id."),
        ([{"id": "a" * 81}], STANDARD, "InvalidBatchEntryId", TOO_LONG_ID.format("a" * 81)),
        ([{"id": "@" * 81}], STANDARD, "InvalidBatchEntryId", TOO_LONG_ID.format("@" * 81)),
        ([{"id": "msg@123#test"}], STANDARD, "InvalidBatchEntryId", ODD_ID.format("msg@123#test")),
        ([{"id": "message.id"}], STANDARD, "InvalidBatchEntryId", ODD_ID.format("message.id")),
        ([{"id": ""}], STANDARD, "InvalidBatchEntryId", ODD_ID.format("")),
        ([{"id": "a\n"}], STANDARD, "InvalidBatchEntryId", ODD_ID.format("a\n")),
        ([{}, {"id": None}], STANDARD, "ValidationError",
         NULL.format("publishBatchRequestEntries.2.member.id")),
        ([{}, {"message": None}], STANDARD, "ValidationError",
         NULL.format("publishBatchRequestEntries.2.member.message")),
        ([{}, {"message": ""}], STANDARD, "InvalidParameter", "Invalid parameter: Empty message"),
        ([{}, {"subject": ""}], STANDARD, "InvalidParameter", "Invalid parameter: Subject"),
        ([{}, {"subject": "a" * 101}], STANDARD, "InvalidParameter",
         "Subject must be less than 100 characters"),
        ([{}, {"message_structure": "json"}], STANDARD, "InvalidParameter", NO_JSON),
        ([{"message": "{}", "message_structure": "json"}], STANDARD, "InvalidParameter",
         NO_DEFAULT),
        ([{"message_group_id": "g"}, {}], CONTENT, "InvalidParameter", NO_GROUP),
        ([{"message_group_id": "g"}], FIFO, "InvalidParameter", NO_DEDUP),
        ([{"message_deduplication_id": "d"}], STANDARD, "InvalidParameter", NOT_FIFO),
        ([{"message_structure": "json"}], FIFO, "InvalidParameter", NO_JSON),
        ([{"message_attributes": {"a": value("x", "y")}, "message_structure": "json"}], FIFO,
         "ParameterValueInvalid", TYPE),
        ([{"message": "a" * (LIMIT // 2)}, {"message": "b" * (LIMIT // 2 + 1)}], STANDARD,
         "BatchRequestTooLong",
         "The length of all the messages put together is more than the limit."),
        ([{"message": "a" * (LIMIT - 12), "message_attributes": {"attr1": value("Number", "1")}},
          {"message": "b"}], STANDARD, "BatchRequestTooLong",
         "The length of all the messages put together is more than the limit."),
    ],
)  # fmt: skip
def test_batches_are_refused_as_a_whole(
    entries: list[dict[str, Any]], rules: TopicRules, code: str, message: str
) -> None:
    refusal = refusal_of(batch, *entries, rules=rules)
    assert (refusal.code, refusal.status, refusal.message) == (code, 400, message)


def test_a_batch_without_entries_is_refused() -> None:
    assert refusal_of(check_batch, None).code == "EmptyBatchRequest"


def test_only_a_message_that_is_too_long_fails_alone() -> None:
    long = {"message": "a" * (LIMIT + 1), "message_structure": "json"}
    checked = batch(long, {"message": "b" * LIMIT})
    assert list(checked.messages) == ["1"]
    (failed,) = checked.failed
    assert (failed.id, failed.code, failed.sender_fault) == ("0", "InvalidParameter", True)
    assert failed.message == "Invalid parameter: Message too long"


def test_a_small_maximum_does_not_bound_the_batch() -> None:
    rules = TopicRules(message_bytes_max=1_024)
    checked = batch(*[{"message": "a" * 1_000}] * 10, rules=rules)
    assert (len(checked.messages), checked.failed) == (10, [])


def test_a_large_maximum_bounds_the_batch() -> None:
    rules = TopicRules(message_bytes_max=1_048_576)
    halves = [{"message": "a" * 524_288}, {"message": "b" * 524_288}]
    assert len(batch(*halves, rules=rules).messages) == 2
    assert refusal_of(batch, *halves, {}, rules=rules).code == "BatchRequestTooLong"


def test_messages_keep_their_order_and_ids() -> None:
    checked = batch({"id": "b", "message": "1"}, {"id": "a", "message": "2"}, {"id": "x" * 80})
    assert list(checked.messages) == ["b", "a", "x" * 80]
    assert [message.body for message in checked.messages.values()] == [b"1", b"2", b"m"]


# ── Texts by protocol ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("document", "texts"),
    [
        ('{"default":"d"}', {"default": "d"}),
        ('{"default":"d","http":"h","https":"s"}', {"default": "d", "http": "h", "https": "s"}),
        ('{"default":"d","email-json":"e"}', {"default": "d", "email-json": "e"}),
        ('{"default":"d","lambda":"l","GCM":"g"}', {"default": "d", "lambda": "l", "GCM": "g"}),
        ('{"default":"d","email_json":"e"}', {"default": "d"}),
        ('{"default":"d","sqs":7,"http":{"a":"b"},"sms":null}', {"default": "d"}),
        ('{"default":"d","other":"o"}', {"default": "d"}),
        ('{"default":1,"default":"d"}', {"default": "d"}),
        ('{"default":"a","default":"b"}', {"default": "b"}),
        (' { "default" : "d" , "sqs" : "s" } ', {"default": "d", "sqs": "s"}),
        (r'{"default":"\u00e9\n\"","sqs":""}', {"default": 'é\n"', "sqs": ""}),
    ],
)
def test_a_document_has_texts_by_protocol(document: str, texts: dict[str, str]) -> None:
    assert texts_of(document.encode()) == texts
    assert publish(message=document, message_structure="json").body == document.encode()


@given(
    st.dictionaries(
        st.sampled_from(["default", "sqs", "http", "x"]),
        st.none() | st.integers() | st.text(max_size=9) | st.lists(st.text(max_size=3), max_size=2),
    )
)
def test_texts_are_those_of_a_json_parser(members: dict[str, Any]) -> None:
    document = json.dumps(members).encode()
    expected = {
        name: text for name, text in members.items() if isinstance(text, str) and name != "x"
    }
    if "default" in expected:
        assert texts_of(document) == expected
    else:
        assert refusal_of(texts_of, document).message == NO_DEFAULT


@given(st.binary(max_size=30) | st.text('{"default:,}\\u1 ', max_size=30).map(str.encode))
def test_any_bytes_are_read_or_refused(document: bytes) -> None:
    try:
        texts = texts_of(document)
    except Fault as refusal:
        texts = {"default": refusal.message}
    assert "default" in texts
