"""Messages from text and NDJSON, and how they are grouped into calls."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.messages.message import as_item
from penstock.cli.messages.sending import (
    BATCH_BYTES_MAX,
    BATCH_COUNT_MAX,
    Defaults,
    Outgoing,
    batches,
    from_json,
    from_text,
    line_chunks,
)
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.terminal.options import attribute_from_flag

sizes = st.integers(0, 600_000) | st.integers(1_000_000, 1_100_000)


@given(st.lists(sizes, max_size=60))
def test_batches_keep_order_and_respect_both_limits(sizes: list[int]) -> None:
    messages = [Outgoing(place, {}, size) for place, size in enumerate(sizes)]
    made = list(batches(messages))
    assert [message for batch in made for message in batch] == messages
    for batch in made:
        assert 1 <= len(batch) <= BATCH_COUNT_MAX
        assert len(batch) == 1 or sum(m.size_bytes for m in batch) <= BATCH_BYTES_MAX


def test_an_object_says_more_than_the_flags() -> None:
    line = '{"body": "b", "group": "own", "delay": 3, "attributes": {"n": 1, "s": "x"}}'
    defaults = Defaults(group="flag", dedup_id="d", attributes={"old": {"DataType": "String"}})
    assert from_json(1, line, defaults).entry == {
        "MessageBody": "b",
        "MessageGroupId": "own",
        "MessageDeduplicationId": "d",
        "DelaySeconds": 3,
        "MessageAttributes": {
            "old": {"DataType": "String"},
            "n": {"DataType": "Number", "StringValue": "1"},
            "s": {"DataType": "String", "StringValue": "x"},
        },
    }


def test_a_received_message_can_be_sent_again() -> None:
    received = {
        "MessageId": "m",
        "ReceiptHandle": "r",
        "Body": "hello",
        "Attributes": {
            "SentTimestamp": "1",
            "ApproximateReceiveCount": "2",
            "MessageGroupId": "g",
            "MessageDeduplicationId": "d",
            "SequenceNumber": "1",
        },
        "MessageAttributes": {
            "a": {"DataType": "Binary.png", "BinaryValue": "AAE="},
            "b": {"DataType": "Number", "StringValue": "1"},
        },
    }
    assert from_json(1, json.dumps(as_item(received)), Defaults()).entry == {
        "MessageBody": "hello",
        "MessageGroupId": "g",
        "MessageDeduplicationId": "d",
        "MessageAttributes": received["MessageAttributes"],
    }


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        "{}",
        '{"body": 1}',
        '{"body": "b", "groop": "g"}',
        '{"body": "b", "group": 7}',
        '{"body": "b", "delay": "3"}',
        '{"body": "b", "delay": true}',
        '{"body": "b", "attributes": [1]}',
        '{"body": "b", "attributes": {"a": null}}',
    ],
)
def test_an_object_that_is_no_message_is_refused_with_its_line(line: str) -> None:
    with pytest.raises(Failure, match="line 7") as caught:
        from_json(7, line, Defaults())
    assert caught.value.exit_code == ExitCode.USAGE


def test_an_attribute_flag_may_name_a_type() -> None:
    assert attribute_from_flag("a=b=c") == ("a", {"DataType": "String", "StringValue": "b=c"})
    assert attribute_from_flag("n:Number=1") == ("n", {"DataType": "Number", "StringValue": "1"})
    assert attribute_from_flag("x:Binary=AA==")[1] == {"DataType": "Binary", "BinaryValue": "AA=="}
    with pytest.raises(Failure):
        attribute_from_flag("nothing")


def test_the_size_counts_body_and_attributes_in_bytes() -> None:
    attributes = {"ä": {"DataType": "String", "StringValue": "ü"}}
    assert from_text(1, "ö", Defaults(attributes=attributes)).size_bytes == 2 + 2 + 6 + 2


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8")), max_size=20))
def test_lines_come_out_as_they_went_in_with_their_numbers(lines: list[str]) -> None:
    stream = io.BytesIO("".join(line + "\n" for line in lines).encode())
    found = [item for chunk in line_chunks(stream) for item in chunk]
    assert found == [(place, line) for place, line in enumerate(lines, 1) if line]


def test_a_last_line_without_newline_counts_and_crlf_is_one_line_end() -> None:
    chunks = list(line_chunks(io.BytesIO(b"a\r\n\nb")))
    assert [item for chunk in chunks for item in chunk] == [(1, "a"), (3, "b")]


def test_what_has_arrived_is_handed_on_before_more_is_read() -> None:
    class Slow(io.BytesIO):
        pieces = iter([b"one\ntw", b"o\n", b""])

        def read1(self, size: int | None = -1, /) -> bytes:
            return next(self.pieces)

    source = line_chunks(Slow())
    assert next(source) == [(1, "one")]
    assert next(source) == [(2, "two")]
    assert list(source) == []


def test_bytes_that_are_no_text_are_refused_with_their_line() -> None:
    with pytest.raises(Failure, match="line 2"):
        list(line_chunks(io.BytesIO(b"ok\n\xff\n")))
