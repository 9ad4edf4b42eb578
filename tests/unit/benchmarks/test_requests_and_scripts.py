"""The prebuilt requests are what an SDK sends, and the scripts tell the intended story."""

import json

import httptools
import pytest
from benchmarks.histogram import Histogram
from benchmarks.requests import QueueRequests, RequestMaker
from benchmarks.scripts import SCRIPTS, Script, Tally, serial_numbers

QUEUE_URL = "http://127.0.0.1:9324/000000000000/q"


class Parsed:
    def __init__(self, data: bytes) -> None:
        self.headers: dict[str, str] = {}
        self.body = b""
        self.is_complete = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_complete = True

    @property
    def action(self) -> str:
        return self.headers["x-amz-target"].removeprefix("AmazonSQS.")

    @property
    def fields(self) -> dict[str, object]:
        fields: dict[str, object] = json.loads(self.body)
        return fields


def requests_of(body_bytes: int = 256) -> QueueRequests:
    maker = RequestMaker("127.0.0.1", 9324, stamp="20261115T030000Z")
    return QueueRequests(maker, QUEUE_URL, body_bytes=body_bytes)


def test_a_send_is_a_complete_signed_request_with_a_body_of_the_wanted_size() -> None:
    parsed = Parsed(requests_of().send())
    assert parsed.is_complete
    assert (parsed.method, parsed.action) == (b"POST", "SendMessage")
    assert parsed.fields == {"QueueUrl": QUEUE_URL, "MessageBody": "x" * 256}
    authorization = parsed.headers["authorization"]
    assert "/20261115/us-east-1/sqs/aws4_request" in authorization
    assert len(authorization.rpartition("Signature=")[2]) == 64


def test_receipts_are_copied_into_deletes_unchanged() -> None:
    queue = requests_of()
    assert Parsed(queue.delete(b"a\\/b+c==")).fields["ReceiptHandle"] == "a/b+c=="
    entries = Parsed(queue.delete_batch([b"r1", b"r2"])).fields["Entries"]
    assert entries == [{"Id": "0", "ReceiptHandle": "r1"}, {"Id": "1", "ReceiptHandle": "r2"}]


def test_fifo_batches_carry_a_group_and_a_deduplication_id_each() -> None:
    entries = Parsed(requests_of(1).send_fifo_batch([(7, b"d1"), (8, b"d2")])).fields["Entries"]
    assert entries == [
        {"Id": "0", "MessageBody": "x", "MessageGroupId": "g7", "MessageDeduplicationId": "d1"},
        {"Id": "1", "MessageBody": "x", "MessageGroupId": "g8", "MessageDeduplicationId": "d2"},
    ]


def started(name: str) -> tuple[Tally, Script, Parsed]:
    tally = Tally()
    tally.is_measuring = True
    script = SCRIPTS[name](tally, requests_of(), serial_numbers(0))
    _, request = next(script)
    return tally, script, Parsed(request)


def ask(script: Script, reply: bytes | None) -> Parsed:
    histogram, request = script.send(reply)
    assert isinstance(histogram, Histogram)
    return Parsed(request)


@pytest.mark.parametrize("space", [b"", b" "])
def test_a_cycle_deletes_what_it_received_and_counts_once(space: bytes) -> None:
    tally, script, first = started("receive_delete")
    assert (first.action, first.fields["MaxNumberOfMessages"]) == ("ReceiveMessage", 1)
    delete = ask(script, b'{"Messages":[{"ReceiptHandle":%b"abc","Body":"x"}]}' % space)
    assert (delete.action, delete.fields["ReceiptHandle"]) == ("DeleteMessage", "abc")
    assert tally.message_count == 0
    assert ask(script, b"{}").action == "ReceiveMessage"
    assert tally.message_count == 1


def test_empty_receives_are_counted_until_one_brings_something() -> None:
    tally, script, _ = started("receive_delete_batch")
    for _ in range(3):
        assert ask(script, b"{}").action == "ReceiveMessage"
    assert tally.empty_count == 3
    reply = b'{"Messages":[{"ReceiptHandle":"a"},{"ReceiptHandle":"b"}]}'
    assert len(ask(script, reply).fields["Entries"]) == 2  # type: ignore[arg-type]
    ask(script, b'{"Successful":[{"Id":"0"},{"Id":"1"}],"Failed":[]}')
    assert (tally.empty_count, tally.message_count, tally.fault_count) == (0, 2, 0)


def test_an_error_counts_no_message_and_a_failed_entry_is_a_fault() -> None:
    tally, script, _ = started("send")
    ask(script, None)
    assert tally.message_count == 0
    tally, script, _ = started("send_batch")
    ask(script, b'{"Failed":[{"Id":"0","Code":"InternalError"}]}')
    assert tally.fault_count == 1
    assert "InternalError" in tally.first_fault


def test_no_two_clients_send_the_same_deduplication_id() -> None:
    tally, serials, queue = Tally(), serial_numbers(0), requests_of(1)
    scripts = [SCRIPTS["fifo_send"](tally, queue, serials) for _ in range(2)]
    requests = [next(script)[1] for script in scripts]
    requests += [script.send(b"{}")[1] for script in scripts]
    assert len({str(Parsed(r).fields["MessageDeduplicationId"]) for r in requests}) == 4
