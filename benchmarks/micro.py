"""What the steps of a message's path cost by themselves: ``python -m benchmarks.micro [name…]``.

For finding out where a change went, not for the README: a step alone finds everything in cache.
Each is timed in several turns and the fastest counts, since a disturbance only ever adds.
"""

import sys
import tempfile
import timeit
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from penstock.cursor.leases.fifo import open_cursor
from penstock.cursor.leases.receipt import open_receipt, seal
from penstock.log.log import Log, LogConfig
from penstock.model.limits import IN_FLIGHT_MAX
from penstock.model.message import Claim, Message, Record
from penstock.record.batch import ATTR_APPEND_TIME, encode_batch
from penstock.record.message import decode_batch, encode_message
from penstock.wire.aws import json10
from penstock.wire.aws.shapes import (
    OPERATIONS,
    ReceivedMessage,
    ReceiveMessageReply,
    SendMessageReply,
)

TURNS = 5
TURN_S = 0.1
BODY = b"x" * 256
NOW_MS = 1_800_000_000_000
TOPIC_ID = "0" * 32
KEY = b"k" * 32
RETENTION_MS = 345_600_000
BATCH_RECORDS = 10
CYCLES_PER_CALL = 200

Call = Callable[[], object]


def message(number: int = 0) -> Message:
    return Message(message_id=number.to_bytes(16), body=BODY, sender="AIDAEXAMPLE")


def batch_of(count: int, base_offset: int = 0) -> bytes:
    records = [encode_message(message(i), offset_delta=i, timestamp_delta=0) for i in range(count)]
    return encode_batch(
        records,
        base_offset=base_offset,
        leader_epoch=0,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        attributes=ATTR_APPEND_TIME,
    )


def encode_one() -> tuple[Call, int]:
    return (lambda: batch_of(1)), 1


def encode_ten() -> tuple[Call, int]:
    return (lambda: batch_of(BATCH_RECORDS)), BATCH_RECORDS


def decode_ten() -> tuple[Call, int]:
    batch = batch_of(BATCH_RECORDS)
    return (lambda: decode_batch(batch, origin=b"origin")), BATCH_RECORDS


def lease_ack() -> tuple[Call, int]:
    """A standard cursor: append, feed, lease and ack, one record at a time."""

    def cycles() -> None:
        cursor = open_cursor(is_fifo=False)
        for offset in range(CYCLES_PER_CALL):
            cursor.appended(offset, 1, next_offset=offset + 1, now_ms=NOW_MS)
            cursor.feed([Record(offset, NOW_MS, shared)], offset + 1, now_ms=NOW_MS, wall_ms=NOW_MS)
            outcome = cursor.lease(
                count=1,
                lease_ms=30_000,
                attempts_max=None,
                retention_ms=RETENTION_MS,
                queue_delay_ms=0,
                in_flight_max=IN_FLIGHT_MAX,
                now_ms=NOW_MS,
                wall_ms=NOW_MS,
            )
            pick = outcome.picks[0]
            cursor.ack([Claim(0, pick.offset, pick.lease_seq)], now_ms=NOW_MS)

    shared = message()
    return cycles, CYCLES_PER_CALL


def receipt() -> tuple[Call, int]:
    claim = Claim(0, 123_456, 789)
    return (lambda: open_receipt(seal(TOPIC_ID, KEY, claim), TOPIC_ID, KEY)), 1


def log_append(folder: Path) -> tuple[Call, int]:
    """Into the page cache, without sync: what ``fsync never`` pays per batch of one."""
    log = Log.open(folder, LogConfig(), now_ms=NOW_MS)
    record = [encode_message(message(), offset_delta=0, timestamp_delta=0)]

    def append() -> None:
        batch = encode_batch(
            record,
            base_offset=log.end_offset,
            leader_epoch=0,
            base_timestamp=NOW_MS,
            max_timestamp=NOW_MS,
            attributes=ATTR_APPEND_TIME,
        )
        log.append(batch, now_ms=NOW_MS)

    return append, 1


def json_decode() -> tuple[Call, int]:
    body = b'{"QueueUrl":"http://127.0.0.1:9324/000000000000/q","MessageBody":"%b"}' % BODY
    operation = OPERATIONS["SendMessage"]
    return (lambda: json10.decode(operation, body)), 1


def json_encode_send() -> tuple[Call, int]:
    digest, name = "0" * 32, "00000000-0000-0000-0000-000000000000"
    return (
        lambda: json10.encode_reply(SendMessageReply(md5_of_message_body=digest, message_id=name))
    ), 1


def json_encode_receive() -> tuple[Call, int]:
    got = ReceivedMessage(
        message_id="00000000-0000-0000-0000-000000000000",
        receipt_handle="A" * 48,
        md5_of_body="0" * 32,
        body=BODY.decode(),
    )
    return (lambda: json10.encode_reply(ReceiveMessageReply(messages=[got]))), 1


Step = Callable[[], tuple[Call, int]]  # sets up; gives what to time and how many it handles

STEPS: Mapping[str, Step] = {
    "JSON decode, SendMessage": json_decode,
    "JSON encode, SendMessage reply": json_encode_send,
    "JSON encode, ReceiveMessage reply": json_encode_receive,
    "record + batch encode, one message": encode_one,
    "record + batch encode, of ten, per message": encode_ten,
    "batch decode, of ten, per message": decode_ten,
    "cursor append + feed + lease + ack": lease_ack,
    "receipt seal + open": receipt,
}


def fastest_us(call: Call, per_call: int) -> float:
    timer = timeit.Timer(call)
    once_s = max(timer.timeit(1), 1e-7)
    number = max(1, min(int(TURN_S / once_s), 100_000))
    return min(timer.repeat(TURNS, number)) / number / per_call * 1e6


def main() -> None:
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        append: Step = partial(log_append, Path(folder))
        steps: dict[str, Step] = {**STEPS, "log append, one message": append}
        for name, make in steps.items():
            if not wanted or any(word in name for word in wanted):
                print(f"{fastest_us(*make()):8.2f} µs  {name}", flush=True)


if __name__ == "__main__":
    main()
