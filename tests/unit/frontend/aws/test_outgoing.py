"""The rules for one message, one by one."""

from typing import Any

import pytest

from penstock.frontend.aws.sqs.actions.send import Prepared, check_ordered, prepare, size_of
from penstock.model.topic import Kind, QueueSettings, Topic
from penstock.wire.aws.faults import Fault
from penstock.wire.aws.shapes import MessageAttributeValue, SendMessageRequest

TEXT = MessageAttributeValue(data_type="String", string_value="value")


def topic(kind: Kind = Kind.STANDARD, **settings: Any) -> Topic:
    return Topic(
        topic_id="0" * 32,
        account="000000000000",
        region="us-east-1",
        name="q",
        kind=kind,
        partition_count=1,
        created_at_ms=0,
        modified_at_ms=0,
        receipt_key=b"",
        settings=QueueSettings(**settings),
    )


def make(to: Topic, **fields: Any) -> Prepared:
    fields.setdefault("message_body", "x")
    asked = SendMessageRequest(**fields)
    return prepare(asked, to, sender="me", entropy=lambda count: b"\x07" * count)


def refused(to: Topic, **fields: Any) -> Fault:
    with pytest.raises(Fault) as raised:
        make(to, **fields)
    return raised.value


def test_a_message_has_an_id_its_sender_and_its_digests() -> None:
    out = make(topic(), message_attributes={"n": TEXT}, message_group_id="tenant")
    assert out.message.message_id == b"\x07" * 16
    assert out.message.sender == "me"
    assert out.message.group == "tenant"
    assert out.message.dedup_id is None
    assert out.size_bytes == len("x" + "n" + "String" + "value")
    assert out.md5_of_body == "9dd4e461268c8034f5c8564e155c67a6"
    assert out.md5_of_attributes is not None
    assert out.md5_of_system_attributes is None


def test_the_trace_header_has_its_own_digest_and_no_size() -> None:
    out = make(topic(), message_system_attributes={"AWSTraceHeader": TEXT})
    assert out.message.trace_header == "value"
    assert out.size_bytes == 1
    assert out.md5_of_attributes is None
    assert out.md5_of_system_attributes is not None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message_body": None}, "MissingParameter"),
        ({"message_body": ""}, "MissingParameter"),
        ({"message_body": "\x00"}, "InvalidMessageContents"),
        ({"delay_seconds": -1}, "InvalidParameterValue"),
        ({"delay_seconds": 901}, "InvalidParameterValue"),
        ({"message_deduplication_id": "1"}, "InvalidParameterValue"),
        ({"message_group_id": "a b"}, "InvalidParameterValue"),
        ({"message_group_id": ""}, "InvalidParameterValue"),
        ({"message_group_id": "a" * 129}, "InvalidParameterValue"),
        ({"message_group_id": "a\n"}, "InvalidParameterValue"),
        ({"message_system_attributes": {"Other": TEXT}}, "InvalidParameterValue"),
    ],
)
def test_what_a_standard_queue_refuses(fields: dict[str, Any], code: str) -> None:
    assert refused(topic(), **fields).code == code


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "MissingParameter"),
        ({"message_group_id": "g"}, "InvalidParameterValue"),
        ({"message_group_id": "g", "message_deduplication_id": ""}, "InvalidParameterValue"),
        (
            {"message_group_id": "g", "message_deduplication_id": "1", "delay_seconds": 1},
            "InvalidParameterValue",
        ),
    ],
)
def test_what_a_fifo_queue_refuses(fields: dict[str, Any], code: str) -> None:
    assert refused(topic(Kind.FIFO), **fields).code == code


def test_the_size_limit_is_the_queues_own_and_says_so() -> None:
    to = topic(message_bytes_max=1_024)
    make(to, message_body="é" * 512)
    assert refused(to, message_body="é" * 512 + "x").message.endswith(
        "Message must be shorter than 1024 bytes."
    )


@pytest.mark.parametrize("identifier", ["a", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "Z" * 128])
def test_ids_of_letters_digits_and_punctuation_pass(identifier: str) -> None:
    out = make(topic(Kind.FIFO), message_group_id=identifier, message_deduplication_id=identifier)
    assert out.message.group == out.message.dedup_id == identifier


def test_a_batch_counts_entries_before_they_are_checked() -> None:
    binary = MessageAttributeValue(data_type="Binary", binary_value=b"123")
    asked = SendMessageRequest(message_body="éx", message_attributes={"t": TEXT, "b": binary})
    assert size_of(asked) == 3 + len("t" + "String" + "value") + len("b" + "Binary" + "123")
    assert size_of(SendMessageRequest()) == 0


def test_a_fifo_batch_needs_its_ids_before_any_entry_is_taken() -> None:
    to = topic(Kind.FIFO)
    check_ordered(SendMessageRequest(message_group_id="g", message_deduplication_id="1"), to)
    check_ordered(SendMessageRequest(message_group_id="g"), topic(Kind.FIFO, is_content_dedup=True))
    for lacking in (
        SendMessageRequest(message_group_id="g"),
        SendMessageRequest(message_deduplication_id="1"),
    ):
        with pytest.raises(Fault) as raised:
            check_ordered(lacking, to)
        assert raised.value.code == "InvalidParameterValue"
