"""What the stream load sends, and how it counts what comes back, however the bytes are cut."""

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.kafka.drivers import bare, frames, nats, redis
from benchmarks.kafka.job import RECORD_BYTES, Action, Driver, Job
from benchmarks.kafka.pump import Conversation, Fault, Pump
from benchmarks.kafka.systems import debian
from benchmarks.kafka.systems.bare import Bare
from hypothesis import given
from hypothesis import strategies as st

from penstock.record.batch import parse_header, placed
from penstock.wire.kafka.apis import (
    APIS,
    FETCH,
    PRODUCE,
    encode_response_frame,
    parse_request_header,
)
from penstock.wire.kafka.batches import check_batches
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
    decode_fetch_request,
    encode_fetch_response,
)
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
    decode_produce_request,
    encode_produce_response,
)

TOPIC = "bench"
BATCH, COUNT = frames.batch_of(8_192, now_ms=1_000)


def at_offset(offset: int) -> bytes:
    return bytes(placed(BATCH, parse_header(BATCH), base_offset=offset, leader_epoch=0)[0])


def produce_reply(code: int = 0) -> bytes:
    partition = ProducePartitionResponse(3, code, base_offset=7)
    body = encode_produce_response(
        ProduceResponse((ProduceTopicResponse(TOPIC, ZERO_UUID, (partition,)),)),
        frames.PRODUCE_VERSION,
    )
    return encode_response_frame(APIS[PRODUCE], frames.PRODUCE_VERSION, 1, body)


def fetch_reply(records: list[bytes | memoryview], *, high_watermark: int, code: int = 0) -> bytes:
    partition = FetchPartitionResponse(0, code, high_watermark, high_watermark, 0, records)
    body = encode_fetch_response(
        FetchResponse((FetchTopicResponse(TOPIC, ZERO_UUID, (partition,)),)), frames.FETCH_VERSION
    )
    return encode_response_frame(APIS[FETCH], frames.FETCH_VERSION, 1, body)


def fed(conversation: Conversation, data: bytes, cuts: list[int]) -> tuple[int, int, int]:
    """Hand in the bytes piece by piece as the pump does; returns what is left and both counts."""
    buffer = bytearray(len(data) + 16)
    end = requests = records = at = 0
    for stop in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        buffer[end : end + stop - at] = data[at:stop]
        end, at = end + stop - at, stop
        used, done, found = conversation.take(buffer, end)
        rest = bytes(buffer[used:end])
        buffer[: len(rest)] = rest
        end, requests, records = len(rest), requests + done, records + found
    return end, requests, records


CUTS = st.lists(st.integers(0, 100_000), max_size=8)


@pytest.mark.parametrize("size", [65_536, 1_048_576])
def test_a_batch_is_one_that_a_broker_takes_and_not_longer_than_asked(size: int) -> None:
    batch, count = frames.batch_of(size, now_ms=1_000)

    ((_, header),) = check_batches(batch, version=frames.PRODUCE_VERSION, bytes_max=size)

    assert header.count == count
    assert size - 2 * RECORD_BYTES < len(batch) <= size


def test_a_produce_frame_carries_the_batch_to_its_partition() -> None:
    frame = frames.produce_frame(TOPIC, 3, BATCH)
    header = parse_request_header(frame, 4)

    request = decode_produce_request(frame, header.body_at, header.api_version)

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert request.acks == frames.ACKS_ALL
    (topic,) = request.topics
    (partition,) = topic.partitions
    assert (topic.name, partition.index, bytes(partition.records or b"")) == (TOPIC, 3, BATCH)


def test_a_fetch_frame_asks_for_every_partition_at_its_offset() -> None:
    frame = frames.fetch_frame(TOPIC, {1: 10, 5: 0})
    header = parse_request_header(frame, 4)

    request = decode_fetch_request(frame, header.body_at, header.api_version)

    (topic,) = request.topics
    assert [(each.index, each.offset) for each in topic.partitions] == [(1, 10), (5, 0)]


@given(CUTS, st.integers(1, 4))
def test_produce_answers_are_counted_however_they_are_cut(cuts: list[int], answers: int) -> None:
    producer = frames.Producer(TOPIC, [3], BATCH, COUNT)

    assert fed(producer, produce_reply() * answers, cuts) == (0, answers, answers * COUNT)


def test_a_refused_produce_is_a_fault() -> None:
    producer = frames.Producer(TOPIC, [3], BATCH, COUNT)

    with pytest.raises(Fault, match="MESSAGE_TOO_LARGE"):
        fed(producer, produce_reply(ErrorCode.MESSAGE_TOO_LARGE), [])


def test_walking_batches_stops_at_one_that_is_cut_and_skips_what_was_read_before() -> None:
    records = at_offset(0) + at_offset(COUNT) + at_offset(2 * COUNT)[:-1]

    assert frames.walk_batches(memoryview(records), 2) == (2 * COUNT - 2, 2 * COUNT)


@given(CUTS)
def test_a_consumer_goes_on_behind_what_it_got(cuts: list[int]) -> None:
    consumer = frames.Consumer(TOPIC, [0])

    answer = fetch_reply([at_offset(0), at_offset(COUNT)], high_watermark=5 * COUNT)
    assert fed(consumer, answer, cuts) == (0, 1, 2 * COUNT)

    assert consumer.next_request() == frames.fetch_frame(TOPIC, {0: 2 * COUNT})


def test_a_consumer_begins_again_at_the_end() -> None:
    consumer = frames.Consumer(TOPIC, [0])

    fed(consumer, fetch_reply([at_offset(0)], high_watermark=COUNT), [])

    assert consumer.next_request() == frames.fetch_frame(TOPIC, {0: 0})


def test_a_refused_fetch_is_a_fault() -> None:
    answer = fetch_reply([], high_watermark=0, code=ErrorCode.OFFSET_OUT_OF_RANGE)

    with pytest.raises(Fault, match="OFFSET_OUT_OF_RANGE"):
        fed(frames.Consumer(TOPIC, [0]), answer, [])


def test_partitions_are_shared_out_and_connections_share_them_when_there_are_too_few() -> None:
    assert frames.shares(16, 4)[1] == [1, 5, 9, 13]
    assert sorted(p for part in frames.shares(16, 4) for p in part) == list(range(16))
    assert frames.shares(1, 4) == [[0]] * 4


def test_redis_commands_are_arrays_of_counted_strings() -> None:
    assert redis.command(b"XADD", b"s", b"*") == b"*3\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n"


@given(CUTS, st.integers(1, 5))
def test_redis_answers_are_counted_however_they_are_cut(cuts: list[int], requests: int) -> None:
    adder = redis.Adder([b"s"], records=3)
    answers = b"".join(b"$15\r\n176317920000%d-0\r\n" % (n % 10) for n in range(3 * requests))

    assert fed(adder, answers, cuts) == (0, requests, 3 * requests)


def test_a_redis_error_is_a_fault() -> None:
    with pytest.raises(Fault, match="WRONGTYPE"):
        fed(redis.Adder([b"s"], records=1), b"-WRONGTYPE no stream\r\n", [])


def entries(count: int) -> bytes:
    one = b"*2\r\n$4\r\n12-%d\r\n*2\r\n$1\r\nv\r\n$%d\r\n%b\r\n"
    value = b"x" * RECORD_BYTES
    return b"*%d\r\n" % count + b"".join(one % (n, RECORD_BYTES, value) for n in range(count))


@given(CUTS)
def test_a_redis_range_is_counted_once_and_followed_by_the_next_stream(cuts: list[int]) -> None:
    ranger = redis.Ranger([b"s", b"t"])

    assert fed(ranger, entries(3), cuts) == (0, 1, 3)

    assert b"$1\r\nt\r\n" in ranger.next_request()


def test_a_full_redis_range_is_followed_from_its_last_entry() -> None:
    ranger = redis.Ranger([b"s"])

    fed(ranger, entries(redis.ENTRIES_PER_READ), [])

    assert b"(12-%d\r\n" % (redis.ENTRIES_PER_READ - 1) in ranger.next_request()


@given(CUTS)
def test_nats_acknowledgements_are_counted_and_pings_answered(cuts: list[int]) -> None:
    publisher = nats.Publisher(0, ["s"], records=2)
    ack = b'MSG _INBOX.benchmark.0 1 24\r\n{"stream":"s", "seq":17}\r\n'
    data = b'INFO {"server_id":"x"}\r\n' + ack + b"PING\r\n" + ack * 3

    assert fed(publisher, data, cuts) == (0, 2, 4)

    assert publisher.next_request().startswith(nats.PONG)


@given(CUTS)
def test_a_nats_stream_is_read_until_none_is_left(cuts: list[int]) -> None:
    puller = nats.Puller(0, ["s"])
    value = b"x" * RECORD_BYTES
    delivery = b"MSG s 1 $JS.ACK.s.reader-0.1.1.1.1763.%d %d\r\n%b\r\n"
    data = b"".join(delivery % (left, RECORD_BYTES, value) for left in (10, 1, 0))

    assert fed(puller, data, cuts) == (0, 1, 3)

    assert puller.next_request() is None


@pytest.mark.parametrize("action", [Action.PRODUCE, Action.CONSUME])
def test_the_bare_server_takes_and_gives_bytes(action: Action, tmp_path: Path) -> None:
    server = Bare("never").start(folder=tmp_path, cores={0})
    try:
        job = Job(
            driver=Driver.BYTES,
            action=action,
            host=server.host,
            port=server.port,
            connections=2,
            warm_up_s=0.01,
            window_s=20.0,  # it ends with bytes_max, long before
            bytes_max=64 * 1_048_576,
        )
        result = Pump(job, bare.conversations(job)).run()
    finally:
        server.stop()

    assert result.first_fault == ""
    assert 0 < result.records <= result.records_in_all


def test_a_program_that_is_not_there_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "CACHE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    find: Callable[[str], Path | None] = debian.find

    assert find("no-such-server") is None

    program = tmp_path / "usr" / "sbin" / "no-such-server"
    program.parent.mkdir(parents=True)
    program.touch()
    assert find("no-such-server") == program
