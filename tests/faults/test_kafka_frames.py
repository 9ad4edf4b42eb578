"""What no Kafka client sends: impossible lengths, other protocols, frames cut short, bodies of
noise for every API, arrays said to have two billion elements. The connection may be closed or the
request answered with an error; the process lives, its log has no traceback, its memory stays
bounded, and another client's connection does not notice."""

from __future__ import annotations

import gzip
import io
import os
import struct
import time
from collections.abc import Iterator
from random import Random

import pytest
from tests.compat.conftest import sqs_client
from tests.harness.full import FULL, part
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection
from tests.harness.server import Server

from penstock.record.batch import encode_batch
from penstock.record.crc32c import crc32c
from penstock.record.record import encode_record
from penstock.wire.kafka.apis import APIS, Api, encode_request_frame
from penstock.wire.kafka.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    encode_fetch_request,
)
from penstock.wire.kafka.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    encode_produce_request,
)

MIB = 1_048_576
GROWTH_BYTES_MAX = 128 * MIB  # of resident memory over everything in this file
ROUNDS = int(os.environ.get("PENSTOCK_FAULTS_ROUNDS", "30" if FULL else "5"))
API_VERSIONS_0 = struct.pack(">ihhih", 10, 18, 0, 7, -1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("noise"), fsync="never", kafka_port=0) as running:
        with RawConnection(port_of(running)) as first:
            assert is_answered(first)
        before = running.rss_bytes()
        yield running
        grown = running.rss_bytes() - before
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert "request failed" not in running.stderr, running.stderr_tail()
        assert grown < GROWTH_BYTES_MAX, f"memory grew by {grown / MIB:.0f} MiB"


@pytest.fixture
def bystander(server: Server) -> Iterator[RawConnection]:
    """Another client: works before, and on the same connection after, whatever a test does."""
    with RawConnection(port_of(server)) as connection:
        assert is_answered(connection)
        yield connection
        assert is_answered(connection), "the bystander's connection was harmed"


def port_of(server: Server) -> int:
    assert server.kafka_port is not None
    return server.kafka_port


def read_frame(connection: RawConnection) -> bytes | None:
    """One reply without its length; None when the server hangs up."""
    data = b""
    wanted = 4
    while len(data) < wanted:
        try:
            chunk = connection.socket.recv(65_536)
        except ConnectionResetError:
            return None
        if not chunk:
            return None
        data += chunk
        if len(data) >= 4:
            wanted = 4 + int.from_bytes(data[:4], "big")
    return data[4:]


def is_answered(connection: RawConnection) -> bool:
    connection.send(API_VERSIONS_0)
    reply = read_frame(connection)
    return reply is not None and reply[:6] == b"\x00\x00\x00\x07\x00\x00"


# ── lengths and headers ──────────────────────────────────────────────────────────────────────
OPENINGS = {
    "two-gibibytes": struct.pack(">i", 2**31 - 1) + bytes(64),
    "one-over-the-limit": struct.pack(">i", 104_857_601) + bytes(64),
    "negative": struct.pack(">i", -1) + bytes(64),
    "most-negative": struct.pack(">i", -(2**31)) + bytes(64),
    "nothing": struct.pack(">i", 0) + bytes(64),
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no-such-api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "negative-api": struct.pack(">ihhih", 10, -1, 0, 1, -1),
    "no-such-version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "negative-version": struct.pack(">ihhih", 10, 3, -1, 1, -1),
    "client-id-too-long": struct.pack(">ihhih", 10, 3, 1, 1, 32_767),
    "client-id-negative": struct.pack(">ihhih", 10, 3, 1, 1, -2),
    "client-id-not-text": struct.pack(">ihhih", 12, 3, 1, 1, 2) + b"\xff\xfe",
    "telemetry": struct.pack(">ihhih", 11, 71, 0, 1, -1) + b"\x00",
}


@pytest.mark.parametrize("name", OPENINGS)
def test_what_is_no_request_ends_its_connection(
    server: Server, bystander: RawConnection, name: str
) -> None:
    with RawConnection(port_of(server)) as connection:
        connection.send(OPENINGS[name])
        reply = connection.read_until_closed()
        assert reply.is_closed, "the connection was left open"
        assert reply.data == b""


@pytest.mark.parametrize("length", range(1, 11))
def test_a_header_cut_short_ends_its_connection(
    server: Server, bystander: RawConnection, length: int
) -> None:
    head = struct.pack(">hhih", 3, 1, 1, -1)[:length]
    with RawConnection(port_of(server)) as connection:
        connection.send(struct.pack(">i", length) + head)
        assert connection.read_until_closed().is_closed


def test_api_versions_from_the_future_is_answered_in_version_0(server: Server) -> None:
    with RawConnection(port_of(server)) as connection:
        connection.send(struct.pack(">ihhih", 11, 18, 77, 7, -1) + b"\x00")
        reply = read_frame(connection)
        assert reply is not None
        assert reply[:6] == struct.pack(">ih", 7, 35)
        assert is_answered(connection), "the client cannot choose again"


def test_promised_bytes_cost_nothing_before_they_come(
    server: Server, bystander: RawConnection
) -> None:
    before = server.rss_bytes()
    connections = [RawConnection(port_of(server)) for _ in range(100)]
    for connection in connections:
        connection.send(struct.pack(">i", 100_000_000) + bytes(1_000))
    assert is_answered(bystander)
    grown = server.rss_bytes() - before
    for connection in connections:
        connection.socket.close()
    assert grown < 32 * MIB, f"{grown / MIB:.0f} MiB for promises"


# ── bodies ───────────────────────────────────────────────────────────────────────────────────
def versions_of(api: Api) -> list[int]:
    flexible = api.flexible_from if api.flexible_from is not None else api.version_max
    wanted = {api.version_min, flexible - 1, flexible, api.version_max}
    return sorted(version for version in wanted if api.serves(version))


def throw(server: Server, frames: list[bytes]) -> None:
    """Each on a connection of its own; an answer is not waited for, a fetch may be parked."""
    for frame in frames:
        with RawConnection(port_of(server)) as connection:
            connection.send(frame)


HUGE = (
    b"\x7f\xff\xff\xff" * 8,
    b"\x00\x7f\xff\xff\xff" * 8,
    b"\x00\x00\x7f\xff\xff\xff\x7f\xff" * 8,
    b"\xff\xff\xff\xff\x07" * 8,
    b"\x01\xff\xff\xff\xff\x07" * 8,
    b"\xff\xff\xff\xff\x0f" * 8,
    b"\xff" * 40,
    b"\x80" * 40,
    b"\x00" * 40,
    b"\x01" * 40,
    b"\x02" * 200,
    b"",
)


@pytest.mark.parametrize("key", APIS)
def test_noise_and_huge_counts_do_no_harm(
    server: Server, bystander: RawConnection, seed: str, key: int
) -> None:
    api = APIS[key]
    chance = Random(f"frames-{seed}-{key}")
    for version in versions_of(api):
        bodies = [*part(HUGE, 6), *(chance.randbytes(chance.randrange(120)) for _ in range(ROUNDS))]
        throw(
            server,
            [
                encode_request_frame(api, version, correlation_id=1, client_id="noise", body=body)
                for body in bodies
            ],
        )
        assert is_answered(bystander)


@pytest.mark.parametrize("key", [key for key in APIS if key > 1])
def test_spoilt_requests_do_no_harm(
    server: Server, bystander: RawConnection, seed: str, key: int
) -> None:
    """A well-formed request with some bytes changed gets deeper than noise does."""
    from importlib import import_module

    api = APIS[key]
    chance = Random(f"spoilt-{seed}-{key}")
    module = import_module(f"penstock.wire.kafka.generated.{api.snake}")
    request = getattr(module, f"{api.name}Request")()
    for version in versions_of(api):
        whole = api.codec().encode_request(request, version)
        frames = []
        for _ in range(ROUNDS):
            body = bytearray(whole)
            for _ in range(chance.randrange(1, 4)):
                at = chance.randrange(len(body) + 1)
                if chance.random() < 0.5 and at < len(body):
                    body[at] = chance.randrange(256)
                else:
                    body[at:at] = chance.randbytes(chance.randrange(1, 12))
            frames.append(
                encode_request_frame(
                    api, version, correlation_id=1, client_id=None, body=bytes(body)
                )
            )
        throw(server, frames)
        assert is_answered(bystander)


def test_a_client_that_never_reads_does_not_fill_the_memory(
    server: Server, bystander: RawConnection
) -> None:
    before = server.rss_bytes()
    with RawConnection(port_of(server), seconds=2.0) as connection:
        try:
            for _ in range(20_000):
                connection.socket.sendall(API_VERSIONS_0 * 10)
        except (TimeoutError, ConnectionError):
            pass  # pushed back or thrown out: both are right
        assert is_answered(bystander)
        grown = server.rss_bytes() - before
    assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB of answers that nobody reads"


def test_a_client_that_never_reads_its_fetches_does_not_fill_the_memory(
    server: Server, bystander: RawConnection
) -> None:
    """A small request may have a large answer: what was not read must hold back the next one."""
    client = sqs_client(server.url)
    client.create_queue(QueueName="large")
    for _ in range(16):
        assert produced(server, "large", readable(os.urandom(1_000_000))) == 0
    client.close()
    wanted = FetchPartition(0, 0, 100 * MIB)
    body = encode_fetch_request(
        FetchRequest(0, 0, [FetchTopic("large", bytes(16), [wanted])], bytes_max=100 * MIB), 12
    )
    frame = encode_request_frame(APIS[1], 12, correlation_id=1, client_id=None, body=body)
    before = server.rss_bytes()
    highest = 0
    with RawConnection(port_of(server)) as connection:
        connection.send(frame * 100)
        for _ in range(50):
            assert is_answered(bystander)
            highest = max(highest, server.rss_bytes())
    grown = highest - before
    assert grown < 128 * MIB, f"{grown / MIB:.0f} MiB of records that nobody reads"


# ── records ──────────────────────────────────────────────────────────────────────────────────
def bomb(bytes_inside: int) -> bytes:
    """A batch of one record, valid to its checksum, that is gzip of very much nothing."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as stream:
        size = varint(bytes_inside)
        stream.write(varint(5 + len(size) + bytes_inside))
        stream.write(b"\x00\x00\x00\x01" + size)  # no key
        for _ in range(bytes_inside // MIB):
            stream.write(bytes(MIB))
        stream.write(b"\x00")  # no headers
    now_ms = int(time.time() * 1_000)
    checked = struct.pack(">hiqqqhii", 1, 0, now_ms, now_ms, -1, -1, -1, 1) + packed.getvalue()
    head = struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked))
    return head + checked


def varint(value: int) -> bytes:
    zigzag = value << 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append((zigzag & 0x7F) | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def produced(server: Server, topic: str, records: bytes) -> int:
    """The error code of producing these records to partition 0."""
    request = ProduceRequest(
        None, 1, 5_000, [ProduceTopic(topic, bytes(16), [ProducePartition(0, records)])]
    )
    body = encode_produce_request(request, 9)
    with RawConnection(port_of(server)) as connection:
        connection.send(
            encode_request_frame(APIS[0], 9, correlation_id=1, client_id="bomb", body=body)
        )
        reply = read_frame(connection)
    assert reply is not None, "a whole request was hung up on"
    from penstock.wire.kafka.apis import parse_response_header
    from penstock.wire.kafka.produce import decode_produce_response

    _, at = parse_response_header(reply, 1)
    return decode_produce_response(reply, at, 9).topics[0].partitions[0].error_code


def test_a_compression_bomb_in_a_queue_costs_bounded_memory(
    server: Server, bystander: RawConnection
) -> None:
    client = sqs_client(server.url)
    url = client.create_queue(QueueName="bombed")["QueueUrl"]
    before = server.rss_bytes()
    produced(server, "bombed", bomb(192 * MIB))
    sent = client.send_message(QueueUrl=url, MessageBody="after the bomb")

    def arrived() -> bool:
        got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return sent["MessageId"] in {message["MessageId"] for message in got}

    eventually(arrived, seconds=20, what="the message behind the bomb")
    grown = server.rss_bytes() - before
    client.close()
    assert grown < 64 * MIB, f"a bomb cost {grown / MIB:.0f} MiB"


def readable(value: bytes) -> bytes:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=None, value=value)
    return encode_batch([record], base_offset=0, leader_epoch=-1, base_timestamp=1, max_timestamp=1)


def unreadable(body: bytes, *, count: int = 1, codec: int = 0) -> bytes:
    """A batch that is valid to its checksum, around anything."""
    now_ms = int(time.time() * 1_000)
    checked = struct.pack(">hiqqqhii", codec, count - 1, now_ms, now_ms, -1, -1, -1, count) + body
    return struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, crc32c(checked)) + checked


RECORD = b"\x0e\x00\x00\x00\x01\x02x\x00"
UNREADABLE = {
    "noise": unreadable(b"\xff" * 30),
    "nothing": unreadable(b""),
    "fewer-than-said": unreadable(RECORD, count=5),
    "more-than-said": unreadable(RECORD + b"more"),
    "no-gzip": unreadable(b"\x1f\x8bnoise", codec=1),
    "no-snappy": unreadable(b"noise", codec=2),
    "no-lz4": unreadable(b"noise", codec=3),
    "no-zstd": unreadable(b"noise", codec=4),
    "length-too-long": unreadable(b"\x7e" + RECORD[1:]),
    "headers-too-many": unreadable(b"\x16\x00\x00\x00\x01\x02x\xfe\xff\xff\xff\x0f"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_batch_that_nobody_can_read_does_not_block_a_queue(
    server: Server, bystander: RawConnection, name: str
) -> None:
    """It may be refused or taken; in neither case may it stand in the way of other messages."""
    client = sqs_client(server.url)
    url = client.create_queue(QueueName=f"unreadable-{name}")["QueueUrl"]
    produced(server, f"unreadable-{name}", UNREADABLE[name])
    sent = client.send_message(QueueUrl=url, MessageBody="behind it")

    def arrived() -> bool:
        got = client.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])
        return sent["MessageId"] in {message["MessageId"] for message in got}

    eventually(arrived, seconds=20, what="the message behind the batch")
    client.close()


CORRUPT = 2
UNSUPPORTED_FORMAT = 43
INVALID_RECORD = 87


def test_spoilt_batches_are_refused(server: Server, bystander: RawConnection, seed: str) -> None:
    chance = Random(f"batches-{seed}")
    client = sqs_client(server.url)
    url = client.create_queue(QueueName="spoilt")["QueueUrl"]
    whole = bomb(0)
    for _ in range(ROUNDS):
        spoilt = bytearray(whole)
        at = chance.randrange(17, len(whole))  # what stands before is the log's to write
        spoilt[at] ^= 1 << chance.randrange(8)
        assert produced(server, "spoilt", bytes(spoilt)) != 0
    for cut in (1, 11, 16, 60, len(whole) - 1):
        assert produced(server, "spoilt", whole[:cut]) in (CORRUPT, UNSUPPORTED_FORMAT)
    control = bytearray(whole)
    control[22] |= 0x20
    control[17:21] = struct.pack(">I", crc32c(bytes(control[21:])))
    assert produced(server, "spoilt", bytes(control)) == INVALID_RECORD, "a forged event"
    assert client.receive_message(QueueUrl=url).get("Messages") is None
    client.close()
