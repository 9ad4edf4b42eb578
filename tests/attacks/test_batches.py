"""Record batches that no producer makes: bombs in every codec, headers that lie, and above all
batches that claim to be the log's own, for a forged one could delete what it likes. Frames that are
none at all, and noise for every API, are in tests/faults/test_kafka_frames.py."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cramjam
import pytest
from tests.attacks.frames import Wire
from tests.harness.client import RawClient
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.record.batch import ATTR_PRODUCED, ATTR_SEALED
from penstock.record.compression import XERIAL_HEAD, XERIAL_MAGIC
from penstock.record.crc32c import crc32c
from penstock.wire.kafka.apis import parse_response_header
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import CreatableTopic
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    decode_produce_response,
    encode_produce_request,
)

MIB = 1_048_576
RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"  # no key, the value "x", no headers
GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
FUTURE_MS = 10 * 365 * 24 * 3_600_000


def batch(
    body: bytes = RECORD,
    *,
    attributes: int = 0,
    count: int = 1,
    last_delta: int | None = None,
    magic: int = 2,
    ahead_ms: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    crc_change: int = 0,
    length_change: int = 0,
    base_offset: int = 0,
) -> bytes:
    """Right in everything that is not asked to be wrong."""
    now_ms = int(time.time() * 1_000) + ahead_ms
    delta = count - 1 if last_delta is None else last_delta
    checked = struct.pack(">hiqqqhii", attributes, delta, now_ms, now_ms, *producer, count) + body
    crc = crc32c(checked) ^ crc_change
    length = len(checked) + 9 + length_change
    return struct.pack(">qiibI", base_offset, length, 0, magic, crc) + checked


def produced(server: Server, topic: str, records: bytes, version: int = 9) -> int:
    """The error code of producing these records to partition 0."""
    asked = ProduceTopic(topic, bytes(16), [ProducePartition(0, records)])
    body = encode_produce_request(ProduceRequest(None, 1, 5_000, [asked]), version)
    with Wire(server) as wire:
        wire.send(wire.frame("Produce", version, body))
        reply = wire.read_frame()
    assert reply is not None, "a whole request was hung up on"
    _, at = parse_response_header(reply, 1)
    return decode_produce_response(reply, at, version).topics[0].partitions[0].error_code


@pytest.fixture
def queue(bystander: RawClient, name: Callable[..., str]) -> tuple[str, str]:
    """Name and URL of one with a message in it."""
    made = name()
    url = bystander.call("CreateQueue", {"QueueName": made})["QueueUrl"]
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "first"})
    return made, url


def bodies(client: RawClient, url: str) -> list[str]:
    """Those waiting, in order, and still waiting afterwards."""
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}
    return [message["Body"] for message in client.call("ReceiveMessage", asked).get("Messages", [])]


# ── S11: headers that lie ────────────────────────────────────────────────────────────────────
CORRUPT = {ErrorCode.CORRUPT_MESSAGE}
INVALID = {ErrorCode.INVALID_RECORD}
LYING: dict[str, tuple[Callable[[], bytes], set[ErrorCode]]] = {
    "control-batch": (lambda: batch(attributes=0x20), INVALID),
    "control-batch-transactional": (
        lambda: batch(attributes=0x30, producer=(1, 0, 0)),
        INVALID,
    ),
    "control-marker": (
        lambda: batch(b"\x1c\x00\x00\x00\x08\0\0\0\1\x0c\0\0\0\0\0\0\x00", attributes=0x20),
        INVALID,
    ),
    "delete-horizon": (lambda: batch(attributes=0x40), INVALID),
    "sealed-by-a-client": (lambda: batch(attributes=ATTR_SEALED), INVALID),
    "marked-by-a-client": (lambda: batch(attributes=ATTR_PRODUCED), INVALID),
    "append-time-of-its-own": (
        lambda: batch(attributes=0x08),
        {ErrorCode.INVALID_TIMESTAMP},
    ),
    "no-such-codec": (
        lambda: batch(attributes=5),
        {ErrorCode.UNSUPPORTED_COMPRESSION_TYPE},
    ),
    "bad-checksum": (lambda: batch(crc_change=1), CORRUPT),
    "longer-than-sent": (lambda: batch(length_change=1), CORRUPT),
    "shorter-than-sent": (lambda: batch(length_change=-1), CORRUPT),
    "no-length": (lambda: batch(length_change=-1_000), CORRUPT),
    "huge-length": (lambda: batch(length_change=2**31 - 1_000), CORRUPT),
    "count-of-none": (lambda: batch(count=0), INVALID),
    "negative-count": (lambda: batch(count=-1), INVALID),
    "count-beyond-its-offsets": (lambda: batch(count=5, last_delta=0), INVALID),
    "offsets-beyond-its-count": (lambda: batch(count=1, last_delta=1_000_000), INVALID),
    "negative-delta": (lambda: batch(count=1, last_delta=-1), INVALID),
    "most-negative-delta": (lambda: batch(count=1, last_delta=-(2**31)), INVALID),
    "negative-producer": (lambda: batch(producer=(-5, 0, 0)), INVALID),
    "producer-without-epoch": (lambda: batch(producer=(1, -1, 0)), INVALID),
    "transaction-of-nobody": (lambda: batch(attributes=0x10), INVALID),
    "old-format": (
        lambda: batch(magic=1),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT},
    ),
    "future-format": (
        lambda: batch(magic=3),
        {ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT},
    ),
    "nothing": (lambda: b"", INVALID | CORRUPT),
    "one-byte": (lambda: b"\0", CORRUPT),
    "header-alone": (lambda: batch()[:61], CORRUPT),
    "good-then-control": (lambda: batch() + batch(attributes=0x20), INVALID),
    "good-then-torn": (lambda: batch() + batch()[:-3], CORRUPT),
}


@pytest.mark.parametrize("attack", LYING)
def test_a_batch_that_lies_is_refused_and_nothing_of_it_is_kept(
    open_server: Server, bystander: RawClient, queue: tuple[str, str], attack: str
) -> None:
    make, codes = LYING[attack]
    topic, url = queue
    assert produced(open_server, topic, make()) in codes
    assert bodies(bystander, url) == ["first"], "something was taken or deleted"


def test_a_batch_cannot_choose_its_place(
    open_server: Server, bystander: RawClient, queue: tuple[str, str]
) -> None:
    """Offsets are the log's to write: nothing is put in another's place."""
    topic, url = queue
    for base in (0, 2**62, -1):
        assert produced(open_server, topic, batch(base_offset=base)) == 0
    assert bodies(bystander, url) == ["first", "x", "x", "x"]


def test_a_time_in_the_future_is_refused_by_a_stream_and_ignored_by_a_queue(
    open_server: Server, bystander: RawClient, queue: tuple[str, str], name: Callable[..., str]
) -> None:
    """Otherwise it would keep a log from ever being cleaned."""
    topic, url = queue
    stream = name()
    with Wire(open_server) as wire:
        made = wire.ask(
            "CreateTopics",
            7,
            topics=[CreatableTopic(name=stream, num_partitions=1, replication_factor=1)],
            timeout_ms=5_000,
        )
    assert made.topics[0].error_code == 0
    ahead = batch(ahead_ms=FUTURE_MS)
    assert produced(open_server, stream, ahead) == ErrorCode.INVALID_TIMESTAMP
    assert produced(open_server, topic, ahead) == 0
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["SentTimestamp"]}
    got = bystander.call("ReceiveMessage", asked)["Messages"]
    times = [message["Attributes"]["SentTimestamp"] for message in got]
    assert len(times) == 2
    assert max(map(int, times)) < time.time() * 1_000 + 60_000


# ── S10: bombs ───────────────────────────────────────────────────────────────────────────────
NOTHING = bytes(256 * MIB)


def _nested() -> bytes:
    """Each layer is small, and its inside is again of the same kind."""
    inner = bytes(cramjam.gzip.compress(NOTHING, level=1))
    for _ in range(3):
        inner = bytes(cramjam.gzip.compress(inner, level=6))
    return inner


def _xerial(*blocks: tuple[int, bytes]) -> bytes:
    head = XERIAL_HEAD.pack(XERIAL_MAGIC, 1, 1)
    return head + b"".join(struct.pack(">I", size) + block for size, block in blocks)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: batch(bytes(cramjam.gzip.compress(NOTHING, level=9)), attributes=GZIP),
    "gzip-in-gzip": lambda: batch(_nested(), attributes=GZIP),
    "lz4": lambda: batch(bytes(cramjam.lz4.compress(NOTHING, level=0)), attributes=LZ4),
    "zstd": lambda: batch(bytes(cramjam.zstd.compress(NOTHING, level=3)), attributes=ZSTD),
    # 2 GiB by its own word, a few bytes in truth.
    "snappy-that-boasts": lambda: batch(b"\xff\xff\xff\xff\x07" + bytes(20), attributes=SNAPPY),
    "snappy-chunk-of-2-gib": lambda: batch(_xerial((2**31 - 1, b"x")), attributes=SNAPPY),
    "snappy-chunk-negative": lambda: batch(_xerial((2**32 - 1, b"x")), attributes=SNAPPY),
    "snappy-chunk-of-nothing": lambda: batch(_xerial((0, b"")) + bytes(400), attributes=SNAPPY),
    "snappy-chunks-that-boast": lambda: batch(
        _xerial(*[(25, b"\xff\xff\xff\x07" + bytes(21))] * 500), attributes=SNAPPY
    ),
    "record-of-2-gib": lambda: batch(b"\xfe\xff\xff\xff\x0f" + bytes(30)),
    "headers-of-2-billion": lambda: batch(b"\x16\x00\x00\x00\x01\x02x\xfe\xff\xff\xff\x0f"),
    "a-billion-records": lambda: batch(count=10**9),
}


@pytest.mark.parametrize("attack", BOMBS)
def test_a_bomb_costs_little_and_stands_in_nobodys_way(
    open_server: Server, bystander: RawClient, queue: tuple[str, str], attack: str
) -> None:
    topic, url = queue
    records = BOMBS[attack]()
    before = open_server.rss_bytes()
    Path(f"/proc/{open_server.pid}/clear_refs").write_text("5")  # the highest level begins anew
    produced(open_server, topic, records)
    bystander.call("SendMessage", {"QueueUrl": url, "MessageBody": "behind it"})
    asked: dict[str, Any] = {"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0}

    def arrived() -> bool:
        got = bystander.call("ReceiveMessage", asked).get("Messages", [])
        return "behind it" in {message["Body"] for message in got}

    eventually(arrived, seconds=20, what="the message behind the bomb")
    grown = highest_rss_bytes(open_server) - before
    assert grown < 160 * MIB, f"it cost {grown / MIB:.0f} MiB"


def highest_rss_bytes(server: Server) -> int:
    text = Path(f"/proc/{server.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1_024
