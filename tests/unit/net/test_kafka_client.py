"""The blocking client over real sockets: nodes that move, hang up, drip or talk nonsense."""

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.net.kafka_client.client import (
    EARLIEST,
    LATEST,
    KafkaClient,
    KafkaRefused,
    NotKafka,
    Place,
    TimedOut,
    Unreachable,
    parse_addresses,
)
from penstock.record.batch import encode_batch, parse_header
from penstock.record.record import encode_record
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from penstock.wire.kafka.generated import init_producer_id, list_offsets
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
)

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID = 0, 1, 2, 22
PLACE = Place("t", 0)


@pytest.fixture
def server() -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    made.topics["t"] = 2
    yield made
    made.close()


@pytest.fixture
def client(server: KafkaEndpoint) -> Iterator[KafkaClient]:
    with KafkaClient(server.address, timeout_s=5.0) as made:
        yield made


def batch(*values: bytes) -> bytes:
    encoded = [
        encode_record(offset_delta=number, timestamp_delta=0, key=None, value=value)
        for number, value in enumerate(values)
    ]
    return encode_batch(encoded, base_offset=0, leader_epoch=0, base_timestamp=0, max_timestamp=0)


def in_turn(*answers: Any) -> Callable[[Any], Any]:
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def fetched(*parts: FetchPartitionResponse) -> FetchResponse:
    return FetchResponse([FetchTopicResponse("t", ZERO_UUID, parts)])


def produced(*parts: ProducePartitionResponse) -> ProduceResponse:
    return ProduceResponse([ProduceTopicResponse("t", ZERO_UUID, parts)])


@contextlib.contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Takes one connection and does with it what it is told."""
    with socket.create_server(("127.0.0.1", 0)) as made:

        def serve() -> None:
            connection, _ = made.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{made.getsockname()[1]}"
        thread.join()


# ── Fetching and producing ───────────────────────────────────────────────────────────────────


def test_records_are_slices_of_the_answer(server: KafkaEndpoint, client: KafkaClient) -> None:
    data = batch(b"a", b"b") + batch(b"c")
    server.answers[FETCH] = lambda _: fetched(
        FetchPartitionResponse(0, 0, 7, 6, 1, [data]), FetchPartitionResponse(1, 0, 9, 9, 9)
    )
    found = client.fetch({PLACE: 1, Place("t", 1): 9})
    one, other = found[PLACE], found[Place("t", 1)]
    assert one.records == data
    assert isinstance(one.records.obj, bytearray)  # what the socket was read into
    assert parse_header(one.records).next_offset == 2
    assert (one.high_watermark, one.last_stable_offset, one.log_start_offset) == (7, 6, 1)
    assert len(other.records) == 0
    (asked,) = server.requests("Fetch")
    assert [part.offset for part in asked.topics[0].partitions] == [1, 9]


def test_an_offset_that_is_gone_is_the_readers_affair(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    gone = FetchPartitionResponse(0, ErrorCode.OFFSET_OUT_OF_RANGE)
    server.answers[FETCH] = lambda _: fetched(gone)
    assert client.fetch({PLACE: 1})[PLACE].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_leader_that_has_moved_is_looked_for_again(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    moved = FetchPartitionResponse(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    server.answers[FETCH] = in_turn(fetched(moved), fetched(FetchPartitionResponse(0, 0, 5)))
    assert client.fetch({PLACE: 0})[PLACE].high_watermark == 5
    assert [name for name, _, _ in server.asked] == [
        "ApiVersions",
        "Metadata",
        "Fetch",
        "Metadata",
        "Fetch",
    ]


def test_places_in_trouble_do_not_hold_up_the_others(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    moved = FetchPartitionResponse(0, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    server.answers[FETCH] = lambda _: fetched(moved, FetchPartitionResponse(1, 0, 5))
    assert list(client.fetch({PLACE: 0, Place("t", 1): 0})) == [Place("t", 1)]


def test_a_batch_is_sent_again_until_it_is_taken(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    data = batch(b"x")
    server.answers[PRODUCE] = in_turn(
        produced(
            ProducePartitionResponse(0, ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ProducePartitionResponse(1, 0, 70),
        ),
        produced(ProducePartitionResponse(0, 0, 41)),
    )
    placed = client.produce({PLACE: data, Place("t", 1): data}, is_repeatable=False)
    assert placed == {PLACE: 41, Place("t", 1): 70}
    first, second = server.requests("Produce")
    assert len(first.topics[0].partitions) == 2
    (again,) = second.topics[0].partitions
    assert (again.index, bytes(again.records)) == (0, data)


def test_a_batch_that_is_refused_says_why(server: KafkaEndpoint, client: KafkaClient) -> None:
    server.answers[PRODUCE] = lambda _: produced(
        ProducePartitionResponse(0, ErrorCode.INVALID_RECORD, error_message="no key")
    )
    with pytest.raises(KafkaRefused, match=r"t, 0: no key \(INVALID_RECORD\)"):
        client.produce({PLACE: batch(b"x")}, is_repeatable=True)


def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    def lose(_: Any) -> Any:
        server.answers[PRODUCE] = lambda _: produced(
            ProducePartitionResponse(0, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        )
        raise ConnectionAbortedError

    server.answers[PRODUCE] = lose
    assert client.produce({PLACE: batch(b"x")}, is_repeatable=True) == {PLACE: -1}
    server.answers[PRODUCE] = lose
    with pytest.raises(Unreachable):
        client.produce({PLACE: batch(b"x")}, is_repeatable=False)


def test_producer_ids_are_asked_for_until_there_is_one(
    server: KafkaEndpoint, client: KafkaClient
) -> None:
    server.answers[INIT_PRODUCER_ID] = in_turn(
        init_producer_id.InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        init_producer_id.InitProducerIdResponse(producer_id=77, producer_epoch=3),
    )
    assert client.producer_id() == (77, 3)


def test_offsets_wait_for_a_leader(server: KafkaEndpoint, client: KafkaClient) -> None:
    def answer(code: int) -> Any:
        part = list_offsets.ListOffsetsPartitionResponse(0, code, -1, 12, 0)
        topic = list_offsets.ListOffsetsTopicResponse("t", [part])
        return list_offsets.ListOffsetsResponse(topics=[topic])

    server.answers[LIST_OFFSETS] = in_turn(answer(ErrorCode.LEADER_NOT_AVAILABLE), answer(0))
    assert client.offsets({PLACE: LATEST}) == {PLACE: 12}


def test_a_topic_that_is_not_there_is_said_at_once(server: KafkaEndpoint) -> None:
    began = time.monotonic()
    with KafkaClient(server.address, timeout_s=60.0) as client:
        with pytest.raises(KafkaRefused) as refused:
            client.offsets({Place("nope", 0): EARLIEST})
        assert refused.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused.value.subject == "nope"
        with pytest.raises(KafkaRefused):
            client.offsets({Place("t", 9): EARLIEST})
    assert time.monotonic() - began < 15.0


# ── Connections ──────────────────────────────────────────────────────────────────────────────


def test_the_first_address_that_answers_serves(server: KafkaEndpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with KafkaClient(f"127.0.0.1:{port},{server.address}", timeout_s=5.0) as client:
        assert client.places("t") == [Place("t", 0), Place("t", 1)]


def test_nobody_there_is_said_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(Unreachable, match="nothing listens there"):
        KafkaClient(address, timeout_s=30.0).coordinator("g")
    assert time.monotonic() - began < 5.0


def test_a_connection_that_was_closed_while_idle_is_opened_again(server: KafkaEndpoint) -> None:
    with KafkaClient(server.address, timeout_s=5.0) as client:
        client.nodes()
        server.hang_up()
        assert client.nodes() == [1]
    assert [name for name, _, _ in server.asked].count("ApiVersions") == 2


def test_a_deadline_holds_against_a_server_that_drips() -> None:
    def drip(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        connection.recv(1_000)
        with contextlib.suppress(OSError):
            for byte in b"\0\0\x10\0" + bytes(2_000):  # a hundred seconds of it
                connection.sendall(bytes([byte]))
                time.sleep(0.05)

    with listener(drip) as address, KafkaClient(address, timeout_s=0.4) as client:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            client.nodes()
        assert time.monotonic() - began < 15.0


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x08\0\0\0\x63\0\0\0\0", b"\0\0\0\0"]
)
def test_somebody_else_who_answers_is_not_taken_for_kafka(said: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.settimeout(5.0)
        connection.recv(1_000)
        connection.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            connection.recv(1_000)  # until the client hangs up

    with (
        listener(answer) as address,
        KafkaClient(address, timeout_s=5.0) as client,
        pytest.raises(NotKafka, match="does not reply like a Kafka listener"),
    ):
        client.nodes()


def test_a_server_that_hangs_up_at_once_may_want_tls() -> None:
    with (
        listener(lambda connection: None) as address,
        KafkaClient(address, timeout_s=5.0) as client,
        pytest.raises(Unreachable) as failed,
    ):
        client.nodes()
    assert "TLS" in failed.value.reason


def test_trouble_travels() -> None:
    for trouble in (
        KafkaRefused(3, "m", "s"),
        Unreachable("a:1", "r"),
        NotKafka("a:1", "r"),
        TimedOut("a:1", 2.0),
    ):
        again = pickle.loads(pickle.dumps(trouble))
        assert type(again) is type(trouble)
        assert str(again) == str(trouble)


def test_addresses() -> None:
    assert parse_addresses("a:1, [::1]:2") == [("a", 1), ("::1", 2)]
    for wrong in ("", "a", "a:1,", "a:x", "a:0", "a:65536"):
        with pytest.raises(ValueError, match="not have the form HOST:PORT"):
            parse_addresses(wrong)
