"""``message send`` and ``message tail`` with a topic, against a listener that misbehaves: retries
keep their sequence numbers, refusals are told, a tail goes on where the log still is."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.conftest import Cli
from tests.unit.cli.kafka_endpoint import KafkaEndpoint
from tests.unit.cli.topics.test_group import batch

from penstock.cli.messages import producing
from penstock.cli.terminal.failure import ExitCode
from penstock.model.ports import Marker
from penstock.net.kafka_client import client
from penstock.record.batch import parse_header
from penstock.record.control import encode_marker_batch
from penstock.record.record import iter_records
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import (
    AbortedTransaction,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from penstock.wire.kafka.generated import init_producer_id, list_offsets
from penstock.wire.kafka.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
)

PRODUCE, FETCH, LIST_OFFSETS, INIT_PRODUCER_ID = 0, 1, 2, 22
PRODUCER_ID = 77
TRANSACTIONAL = 0x10


class Topic:
    """Two partitions. ``codes`` are the answers to the next produces, before they succeed."""

    def __init__(self) -> None:
        self.codes: list[ErrorCode] = []
        self.fetch_codes: list[ErrorCode] = []
        self.produced: list[tuple[int, bytes]] = []
        self.batches: dict[int, list[bytes]] = {0: [], 1: []}
        self.aborted: list[AbortedTransaction] = []
        self.start = 0
        self.end = 0

    def produce(self, request: Any) -> Any:
        code = self.codes.pop(0) if self.codes else ErrorCode.NONE
        (topic,) = request.topics
        parts = []
        for part in topic.partitions:
            self.produced.append((part.index, bytes(part.records)))
            parts.append(ProducePartitionResponse(part.index, code, 0 if not code else -1))
        return ProduceResponse([ProduceTopicResponse(topic.name, topic.topic_id, parts)])

    def offsets(self, request: Any) -> Any:
        by_time = {-2: self.start, -1: self.end}
        return list_offsets.ListOffsetsResponse(
            topics=[
                list_offsets.ListOffsetsTopicResponse(
                    topic.name,
                    [
                        list_offsets.ListOffsetsPartitionResponse(
                            part.partition_index, offset=by_time[part.timestamp]
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def fetch(self, request: Any) -> Any:
        (topic,) = request.topics
        code = self.fetch_codes.pop(0) if self.fetch_codes else ErrorCode.NONE
        parts = []
        for wanted in topic.partitions:
            if code or not self.start <= wanted.offset <= self.end:
                parts.append(
                    FetchPartitionResponse(wanted.index, code or ErrorCode.OFFSET_OUT_OF_RANGE)
                )
                continue
            found = [
                one
                for one in self.batches[wanted.index]
                if parse_header(one).next_offset > wanted.offset
            ]
            parts.append(FetchPartitionResponse(wanted.index, records=found, aborted=self.aborted))
        return FetchResponse([FetchTopicResponse(topic.name, topic.topic_id, parts)])


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, topic: Topic) -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    made.topics["t"] = 2
    made.answers[PRODUCE] = topic.produce
    made.answers[FETCH] = topic.fetch
    made.answers[LIST_OFFSETS] = topic.offsets
    made.answers[INIT_PRODUCER_ID] = lambda _: init_producer_id.InitProducerIdResponse(
        producer_id=PRODUCER_ID, producer_epoch=3
    )
    monkeypatch.setenv("PENSTOCK_KAFKA", made.address)
    monkeypatch.setattr(client, "_PAUSE_S", 0.01)
    yield made
    made.close()


def test_a_batch_is_sent_again_with_the_number_it_had(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT]
    stdin = b"a\nb\nc\n"
    result = cli("message", "send", "--topic", "t", "--partition", "1", "-", stdin=stdin)
    assert result.json == {"topic": "t", "sent": 3, "failed": 0}
    assert len({data for _, data in topic.produced}) == 1
    assert len(topic.produced) == 3
    header = parse_header(topic.produced[0][1])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER_ID, 3, 0)
    assert header.count == 3


def test_sequences_go_on_and_a_duplicate_is_a_success(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "_BATCH_RECORDS_MAX", 2)
    topic.codes = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    stdin = b"a\nb\nc\nd\ne\n"
    result = cli("message", "send", "--topic", "t", "--key", "k", "-", stdin=stdin)
    assert result.json["sent"] == 5
    assert [parse_header(data).base_sequence for _, data in topic.produced] == [0, 2, 4]
    assert len({partition for partition, _ in topic.produced}) == 1


def test_a_server_without_producer_ids_gets_plain_batches(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    del kafka.answers[INIT_PRODUCER_ID]
    assert cli("message", "send", "--topic", "t", "x").code == 0
    header = parse_header(topic.produced[0][1])
    assert (header.producer_id, header.base_sequence) == (-1, -1)


def test_a_final_refusal_is_told_and_the_exit_code_says_so(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.codes = [ErrorCode.MESSAGE_TOO_LARGE]
    result = cli("message", "send", "--topic", "t", "x")
    assert result.code == ExitCode.FAILED
    assert "record 1 rejected: " in result.err
    assert "MESSAGE_TOO_LARGE" in result.err
    stdin = b'{"value": "a", "partition": 1}\n{"value": "b", "partition": 2}\n'
    result = cli("message", "send", "--topic", "t", "--ndjson", "-", stdin=stdin)
    assert (result.code, result.json["sent"]) == (ExitCode.PARTIAL, 1)
    assert "record 2 rejected: partition 2 does not exist" in result.err


def test_what_stays_refused_ends_within_the_timeout(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1_000
    result = cli("--timeout", "3", "message", "send", "--topic", "t", "x")
    assert result.code == ExitCode.UNREACHABLE
    assert "NOT_LEADER_OR_FOLLOWER" in result.err


def test_a_bad_line_ends_the_input_and_what_came_before_is_sent(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    stdin = b'{"value": "a"}\nnonsense\n{"value": "b"}\n'
    result = cli("message", "send", "--topic", "t", "--ndjson", "-", stdin=stdin)
    assert result.code == ExitCode.PARTIAL
    assert "line 2 is not a record" in result.err
    assert "had accepted 1 records" in result.err
    ((_, data),) = topic.produced
    assert [record.value for record in iter_records(data)] == [b"a"]


# ── Tail ─────────────────────────────────────────────────────────────────────────────────────


def shown(cli: Cli, *options: str) -> list[tuple[int, int]]:
    result = cli("message", "tail", "--topic", "t", "--no-follow", *options)
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    return [(row["partition"], row["offset"]) for row in rows]


def test_a_tail_begins_within_a_batch_and_ends_where_the_log_did(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.batches[0] = [batch(0, [1_000] * 3), batch(3, [2_000] * 4)]
    topic.end = 5  # the rest came later
    assert shown(cli, "--from", "2") == [(0, 2), (0, 3), (0, 4)]
    assert shown(cli, "--from", "-1") == [(0, 4)]
    assert shown(cli, "--from", "latest") == []
    assert shown(cli, "--from", "earliest", "--count", "2") == [(0, 0), (0, 1)]
    assert shown(cli, "--from", "earliest", "--partition", "1") == []
    request = kafka.requests("Fetch")[0]
    assert (request.isolation_level, request.wait_ms_max) == (1, 0)


def test_a_tail_leaves_out_what_was_aborted(cli: Cli, kafka: KafkaEndpoint, topic: Topic) -> None:
    def transactional(base: int) -> bytes:
        data = bytearray(batch(base, [1_000], attributes=TRANSACTIONAL))
        data[43:51] = PRODUCER_ID.to_bytes(8, "big")
        return bytes(data)

    def marker(base: int, *, is_commit: bool) -> bytes:
        data = encode_marker_batch(Marker(PRODUCER_ID, 0, is_commit), timestamp=1_000)
        return base.to_bytes(8, "big") + data[8:]

    topic.batches[0] = [
        transactional(0),
        marker(1, is_commit=False),
        transactional(2),
        marker(3, is_commit=True),
        transactional(4),
        marker(5, is_commit=False),
        batch(6, [1_000]),
    ]
    topic.aborted = [AbortedTransaction(PRODUCER_ID, 0), AbortedTransaction(PRODUCER_ID, 4)]
    topic.end = 7
    assert shown(cli, "--from", "earliest", "--partition", "0") == [(0, 2), (0, 6)]


def test_a_tail_goes_on_where_the_log_still_is(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.batches[0] = [batch(4, [1_000] * 2)]
    topic.end = 6

    def retention_is_faster(request: Any) -> Any:
        topic.start = 4
        return topic.fetch(request)

    kafka.answers[FETCH] = retention_is_faster
    result = cli("message", "tail", "--topic", "t", "--no-follow", "--from", "0")
    assert len(result.lines) == 2
    assert "continuing at 4" in result.err


def test_a_tail_continues_at_the_end_of_a_log_that_became_shorter(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    topic.batches[0] = [batch(0, [1_000] * 4)]
    topic.end = 6

    def truncated(request: Any) -> Any:
        topic.end = 4
        if request.topics[0].partitions[0].offset <= topic.end:
            topic.batches[0].append(batch(4, [2_000]))
            topic.end = 5
        return topic.fetch(request)

    kafka.answers[FETCH] = truncated
    result = cli("message", "tail", "--topic", "t", "--partition", "0", "--count", "1")
    assert [line["offset"] for line in result.lines] == [4]
    assert "offset 6 is after the end of the log, continuing at 4" in result.err


def test_a_tail_asks_again_when_somebody_else_leads_and_not_for_ever(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli.messages import topic_tail

    monkeypatch.setattr(topic_tail, "_RETRY_S", 0.0)
    topic.batches[0] = [batch(0, [1_000])]
    topic.end = 1
    topic.fetch_codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
    assert shown(cli, "--from", "0") == [(0, 0)]
    topic.fetch_codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 100
    result = cli("message", "tail", "--topic", "t", "--no-follow", "--from", "0")
    assert result.code == ExitCode.UNREACHABLE


def test_a_batch_that_cannot_be_read_is_an_error_and_no_gap(
    cli: Cli, kafka: KafkaEndpoint, topic: Topic
) -> None:
    data = bytearray(batch(0, [1_000] * 2))
    data[61] = 0x7F  # the first record's length
    topic.batches[0], topic.end = [bytes(data)], 2
    result = cli("message", "tail", "--topic", "t", "--no-follow", "--from", "0")
    assert result.code == ExitCode.UNHEALTHY
    assert "cannot be read" in result.err
