"""Record batches as large as they may be: neither producing one nor receiving its messages keeps
the event loop busy for more than 20 ms, and what is larger is rejected."""

from __future__ import annotations

import gc
import json
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.attacks.frames import Wire
from tests.attacks.stalls import LoopServer
from tests.attacks.test_batches import GZIP, LZ4, MIB, SNAPPY, ZSTD, batch, produced
from tests.harness.client import RawClient

from penstock.model.limits import (
    OPENED_BATCH_BYTES_MAX,
    OPENED_BATCH_RECORDS_MAX,
    OPENED_RECORD_BYTES_MAX,
)
from penstock.record.compression import compress
from penstock.record.record import encode_record, encode_varint
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_topics import CreatableTopic
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
)

NONE = 0
TOPIC_RESOURCE = 2
STORED = 100_000  # records of one batch in a stream that becomes a queue, a share or a time index


@pytest.fixture(autouse=True)
def garbage_of_tests_is_not_collected_in_the_loop() -> None:
    """The tests' own objects are in the server's process here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("open")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: LoopServer) -> Iterator[RawClient]:
    connected = RawClient(server.port)
    yield connected
    connected.close()


@cache
def empty_records(count: int) -> bytes:
    fields = (b"\x00\x00" + encode_varint(n) + b"\x01\x01\x00" for n in range(count))
    return b"".join(encode_varint(len(one)) + one for one in fields)


def value_of(size: int, offset_delta: int = 0) -> bytes:
    return encode_record(offset_delta=offset_delta, timestamp_delta=0, key=None, value=bytes(size))


def records_of_size(size: int) -> bytes:
    """Sixteen records."""
    first = b"".join(value_of(MIB - 64, n) for n in range(15))
    head = len(value_of(MIB, 15)) - MIB
    return first + value_of(size - len(first) - head, 15)


def packed(codec: int, records: bytes, count: int) -> bytes:
    return batch(compress(codec, records), attributes=codec, count=count)


def queue_of(client: RawClient, name: str, **attributes: str) -> str:
    made = client.call("CreateQueue", {"QueueName": name, "Attributes": attributes})
    return str(made["QueueUrl"])


def new_name(start: str) -> str:
    """Return a name that an earlier try of the same test has not used."""
    return f"{start}-{uuid.uuid4().hex[:8]}"


def received(client: RawClient, url: str, **more: Any) -> list[dict[str, Any]]:
    asked = {"QueueUrl": url, "MaxNumberOfMessages": 10, **more}
    found: list[dict[str, Any]] = client.call("ReceiveMessage", asked).get("Messages", [])
    return found


# ── Produce ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_queue_takes_10_000_records_in_a_batch_and_no_more(
    server: LoopServer, client: RawClient, codec: int, is_sealed: bool
) -> None:
    name = new_name("many")
    url = queue_of(client, name, **({"SqsManagedSseEnabled": "true"} if is_sealed else {}))
    most = OPENED_BATCH_RECORDS_MAX
    served = packed(codec, empty_records(most), most)
    rejected = packed(codec, empty_records(most + 1), most + 1)
    with server.watch() as turns:
        assert produced(server, name, served) == 0
        assert produced(server, name, rejected) == ErrorCode.MESSAGE_TOO_LARGE
        assert len(received(client, url)) == 10
    turns.check()


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_a_queue_takes_16_mib_of_records_and_no_more(
    server: LoopServer, client: RawClient, codec: int
) -> None:
    name = new_name("large")
    url = queue_of(client, name)
    served = packed(codec, records_of_size(OPENED_BATCH_BYTES_MAX), 16)
    rejected = packed(codec, records_of_size(OPENED_BATCH_BYTES_MAX + 1), 16)
    bomb = packed(codec, bytes(64 * MIB), 1)
    with server.watch() as turns:
        assert produced(server, name, served) == 0
        assert produced(server, name, rejected) == ErrorCode.MESSAGE_TOO_LARGE
        assert produced(server, name, bomb) == ErrorCode.MESSAGE_TOO_LARGE
    turns.check()
    assert client.call("PurgeQueue", {"QueueUrl": url}) == {}


def test_a_queue_takes_records_of_1_mib_and_no_larger_ones(
    server: LoopServer, client: RawClient
) -> None:
    name = new_name("largest")
    url = queue_of(client, name)
    head = len(value_of(MIB)) - MIB
    size = OPENED_RECORD_BYTES_MAX + len(encode_varint(OPENED_RECORD_BYTES_MAX)) - head
    with server.watch() as turns:
        assert produced(server, name, packed(GZIP, value_of(size), 1)) == 0
        rejected = packed(GZIP, value_of(size + 1), 1)
        assert produced(server, name, rejected) == ErrorCode.MESSAGE_TOO_LARGE
        [found] = received(client, url)
    turns.check()
    assert len(found["Body"]) == size


def test_an_encrypted_stream_takes_10_000_records_in_a_batch_and_no_more(
    server: LoopServer,
) -> None:
    stream(server, "sealed-stream", **{"penstock.encryption": "true"})
    most = OPENED_BATCH_RECORDS_MAX
    with server.watch() as turns:
        assert produced(server, "sealed-stream", packed(ZSTD, empty_records(most), most)) == 0
        rejected = packed(ZSTD, empty_records(most + 1), most + 1)
        assert produced(server, "sealed-stream", rejected) == ErrorCode.MESSAGE_TOO_LARGE
    turns.check()


# ── Receive ──────────────────────────────────────────────────────────────────────────────────


def stream(server: LoopServer, name: str, **configs: str) -> None:
    with Wire(server) as wire:
        topic = CreatableTopic(name, num_partitions=1, replication_factor=1)
        wire.ask("DeleteTopics", 5, topic_names=[name], timeout_ms=30_000)  # of an earlier try
        assert wire.ask("CreateTopics", 2, topics=[topic]).topics[0].error_code == 0
    if configs:
        configure(server, name, **configs)


def configure(server: LoopServer, name: str, **configs: str) -> None:
    changes = [AlterableConfig(key, 0, value) for key, value in configs.items()]
    resource = AlterConfigsResource(TOPIC_RESOURCE, name, changes)
    with Wire(server) as wire:
        reply = wire.ask("IncrementalAlterConfigs", 1, resources=[resource])
    assert reply.responses[0].error_code == 0, reply


@pytest.mark.parametrize("codec", [NONE, ZSTD])
def test_a_stored_batch_of_100_000_records_is_received(
    server: LoopServer, client: RawClient, codec: int
) -> None:
    """From a stream, which takes batches of any count unopened, and becomes a queue later."""
    name = f"stored-{codec}"
    stream(server, name)
    assert produced(server, name, packed(codec, empty_records(STORED), STORED)) == 0
    configure(server, name, **{"penstock.queue": "true"})
    url = client.call("GetQueueUrl", {"QueueName": name})["QueueUrl"]
    with server.watch() as turns:
        first = received(client, url, VisibilityTimeout=0)
        again = received(client, url, VisibilityTimeout=0)
    turns.check()
    assert len(first) == len(again) == 10
    assert {one["MessageId"] for one in first} & {one["MessageId"] for one in again}


def test_records_at_the_end_of_a_large_batch_are_received_again(
    server: LoopServer, client: RawClient
) -> None:
    """Each lease of a record looks for it in its batch."""
    name, count = new_name("far"), OPENED_BATCH_RECORDS_MAX
    url = queue_of(client, name)
    assert produced(server, name, packed(ZSTD, empty_records(count), count)) == 0
    for _ in range(count // 10 - 1):
        gone = received(client, url)
        entries = [
            {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(gone)
        ]
        client.call("DeleteMessageBatch", {"QueueUrl": url, "Entries": entries})
    with server.watch() as turns:
        found = [received(client, url, VisibilityTimeout=0) for _ in range(20)]
    turns.check()
    assert all(len(one) == 10 for one in found)
    assert len({one["MessageId"] for each in found for one in each}) == 10


def test_a_bomb_of_64_mib_in_a_stream_is_received_as_a_share(
    server: LoopServer, client: RawClient
) -> None:
    stream(server, "bomb")
    record = value_of(MIB - 1_024)
    count = 60
    records = b"".join(value_of(MIB - 1_024, n) for n in range(count))
    assert len(record) * count > 32 * MIB
    url = queue_of(client, "bomb:readers")
    assert produced(server, "bomb", packed(ZSTD, records, count)) == 0
    with server.watch() as turns:
        found = received(client, url, VisibilityTimeout=0)
        again = received(client, url, VisibilityTimeout=0)
        peeked = client.call("GetQueueAttributes", {"QueueUrl": url, "AttributeNames": ["All"]})
    turns.check()
    assert found
    assert again
    assert peeked["Attributes"]["ApproximateNumberOfMessages"] != "0"


def test_an_unreadable_batch_of_100_000_records_is_passed_over(
    server: LoopServer, client: RawClient
) -> None:
    name = new_name("unreadable")
    stream(server, name)
    assert produced(server, name, packed(ZSTD, b"\xff" * STORED, STORED)) == 0
    configure(server, name, **{"penstock.queue": "true"})
    url = client.call("GetQueueUrl", {"QueueName": name})["QueueUrl"]
    client.call("SendMessage", {"QueueUrl": url, "MessageBody": "behind"})
    with server.watch() as turns:
        [found] = received(client, url, WaitTimeSeconds=5)
    turns.check()
    assert found["Body"] == "behind"


def test_20_000_delayed_messages_are_passed_over(server: LoopServer, client: RawClient) -> None:
    """By the one receive that is the first to come upon them."""
    url = queue_of(client, new_name("delayed"), DelaySeconds="900")
    entries = [{"Id": str(n), "MessageBody": "x"} for n in range(10)]
    for _ in range(2_000):
        client.call("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    client.call("SendMessage", {"QueueUrl": url, "MessageBody": "now", "DelaySeconds": 0})
    with server.watch() as turns:
        [found] = received(client, url)
    turns.check()
    assert found["Body"] == "now"


def test_the_offset_for_a_time_is_found_in_a_batch_of_100_000_records(server: LoopServer) -> None:
    from penstock.wire.kafka.generated.list_offsets import ListOffsetsPartition, ListOffsetsTopic

    stream(server, "times")
    assert produced(server, "times", packed(ZSTD, empty_records(STORED), STORED)) == 0
    with Wire(server) as wire, server.watch() as turns:
        asked = ListOffsetsTopic("times", [ListOffsetsPartition(0, timestamp=1)])
        reply = wire.ask("ListOffsets", 1, replica_id=-1, topics=[asked])
        newest = ListOffsetsTopic("times", [ListOffsetsPartition(0, timestamp=2**62)])
        wire.ask("ListOffsets", 1, replica_id=-1, topics=[newest])
    turns.check()
    assert reply.topics[0].partitions[0].offset == 0


def test_records_with_4_096_headers_are_received(server: LoopServer, client: RawClient) -> None:
    name = new_name("headers")
    url = queue_of(client, name)
    headers = [(b"h%d" % n, b"v") for n in range(4_096)]
    records = b"".join(
        encode_record(offset_delta=n, timestamp_delta=0, key=None, value=b"x", headers=headers)
        for n in range(10)
    )
    with server.watch() as turns:
        assert produced(server, name, packed(NONE, records, 10)) == 0
        found = received(client, url, MessageAttributeNames=["All"])
    turns.check()
    assert json.dumps(found).count("StringValue") >= 10 * 100
