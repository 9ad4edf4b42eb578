"""``penstock usage report``: records of the topic added up, each once, filtered, as CSV or JSON."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.conftest import Cli
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.cli.terminal.failure import ExitCode
from penstock.frontend.facts.usage import Refusal, UsageTable
from penstock.model.limits import MINUTE_MS
from penstock.record.batch import encode_batch, parse_header
from penstock.record.record import encode_record
from penstock.wire.facts.usage import VERSION, UsageFacts, encode
from penstock.wire.kafka.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from penstock.wire.kafka.generated import list_offsets

FETCH, LIST_OFFSETS = 1, 2
TOPIC = "__usage"
NOON_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z
BATCHES_PER_FETCH = 2


class Usage:
    """What ``__usage`` holds: a batch with one record for each flush."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self._times: list[int] = []

    def write(self, value: bytes, at_ms: int) -> None:
        record = encode_record(offset_delta=0, timestamp_delta=0, key=b"n1", value=value)
        self._times.append(at_ms)
        self.batches.append(
            encode_batch(
                [record],
                base_offset=len(self.batches),
                leader_epoch=0,
                base_timestamp=at_ms,
                max_timestamp=at_ms,
            )
        )

    def flush(self, table: UsageTable, number: int, at_ms: int, node: str = "n1") -> None:
        minute_ms, columns = table.take(now_ms=at_ms)
        self.write(encode(UsageFacts(VERSION, node, "i", number, minute_ms, at_ms, columns)), at_ms)

    def offsets(self, request: Any) -> Any:
        (topic,) = request.topics
        (part,) = topic.partitions
        if part.timestamp == -1:
            found = len(self.batches)
        elif part.timestamp == -2:
            found = 0
        else:
            newer = [n for n, at_ms in enumerate(self._times) if at_ms >= part.timestamp]
            found = newer[0] if newer else -1
        answer = list_offsets.ListOffsetsPartitionResponse(0, offset=found)
        return list_offsets.ListOffsetsResponse(
            topics=[list_offsets.ListOffsetsTopicResponse(topic.name, [answer])]
        )

    def fetch(self, request: Any) -> Any:
        (topic,) = request.topics
        (wanted,) = topic.partitions
        found = [one for one in self.batches if parse_header(one).next_offset > wanted.offset]
        part = FetchPartitionResponse(0, records=found[:BATCHES_PER_FETCH])
        return FetchResponse([FetchTopicResponse(topic.name, topic.topic_id, [part])])


@pytest.fixture
def log() -> Usage:
    return Usage()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, log: Usage) -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    made.topics[TOPIC] = 1
    made.answers[FETCH] = log.fetch
    made.answers[LIST_OFFSETS] = log.offsets
    monkeypatch.setenv("PENSTOCK_KAFKA", made.address)
    yield made
    made.close()


def fill(log: Usage) -> None:
    """Two tenants, three minutes."""
    table = UsageTable(now_ms=NOON_MS)
    for minute in range(3):
        at_ms = NOON_MS + (minute + 1) * MINUTE_MS
        table.find(("111111111111", "us-east-1", "jobs", "sqs:SendMessage")).add(2, 100, 0)
        table.find(("222222222222", "us-east-1", "mail", "sqs:SendMessage")).add(1, 7, 0)
        table.reject(("111111111111", "us-east-1", "", "sqs:SendMessage"), Refusal.DENIED)
        table.store("111111111111", "us-east-1", "jobs", 6_000 * (minute + 1))
        log.flush(table, minute + 1, at_ms)


@pytest.mark.usefixtures("kafka")
def test_a_report_adds_up_all_flushes(cli: Cli, log: Usage) -> None:
    fill(log)
    done = cli("usage", "report")
    assert done.code == 0, done.err
    rows = {(row["tenant"], row["resource"], row["op"]): row for row in done.lines}
    jobs = rows["111111111111", "jobs", "sqs:SendMessage"]
    assert (jobs["requests"], jobs["messages"], jobs["bytes_in"]) == (3, 6, 300)
    assert rows["222222222222", "mail", "sqs:SendMessage"]["bytes_in"] == 21
    assert rows["111111111111", "-", "sqs:SendMessage"]["denied"] == 3
    stored = rows["111111111111", "jobs", "storage"]
    assert (stored["stored_bytes"], stored["byte_hours"]) == (18_000, 600)


@pytest.mark.usefixtures("kafka")
def test_what_is_stored_is_the_sum_of_what_nodes_tell_of_the_last_minute(
    cli: Cli, log: Usage
) -> None:
    for minute in range(3):
        for node, size_bytes in (("n1", 600), ("n2", 6_000 * (minute + 1))):
            table = UsageTable(now_ms=NOON_MS + minute * MINUTE_MS)
            table.store("111111111111", "us-east-1", "jobs", size_bytes)
            log.flush(table, minute + 1, NOON_MS + (minute + 1) * MINUTE_MS, node)
    [row] = cli("usage", "report").lines
    assert (row["stored_bytes"], row["byte_hours"]) == (18_600, (36_000 + 1_800) / 60)


@pytest.mark.usefixtures("kafka")
def test_a_record_that_is_there_twice_counts_once(cli: Cli, log: Usage) -> None:
    fill(log)
    fill(log)
    done = cli("usage", "report", "--tenant", "222222222222")
    [row] = done.lines
    assert row["requests"] == 3


@pytest.mark.usefixtures("kafka")
def test_minutes_and_tenants_can_be_chosen(cli: Cli, log: Usage) -> None:
    fill(log)
    done = cli(
        "usage",
        "report",
        "--tenant",
        "222222222222",
        "--from",
        "2026-01-01T12:01:00Z",
        "--to",
        "2026-01-01T12:02:00Z",
    )
    [row] = done.lines
    assert (row["tenant"], row["requests"]) == ("222222222222", 1)


@pytest.mark.usefixtures("kafka")
def test_csv_has_a_head_line_and_every_number(cli: Cli, log: Usage) -> None:
    fill(log)
    done = cli("usage", "report", "--csv", "--tenant", "111111111111")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["resource"], row["op"]) for row in rows] == [
        ("-", "sqs:SendMessage"),
        ("jobs", "sqs:SendMessage"),
        ("jobs", "storage"),
    ]
    assert rows[1]["units64k"] == "3"


@pytest.mark.usefixtures("kafka")
def test_records_of_another_version_are_passed_over_and_told_of(cli: Cli, log: Usage) -> None:
    fill(log)
    log.write(b"from the future", NOON_MS)
    done = cli("usage", "report")
    assert done.code == 0
    assert "1 records could not be read" in done.err


@pytest.mark.usefixtures("kafka")
@pytest.mark.parametrize("text", ["17", "-10", "yesterday"])
def test_a_place_that_is_no_time_is_refused(cli: Cli, text: str) -> None:
    done = cli("usage", "report", "--from", text)
    assert done.code == ExitCode.USAGE


def test_a_server_that_counts_nothing_is_told_apart(cli: Cli, kafka: KafkaEndpoint) -> None:
    del kafka.topics[TOPIC]
    done = cli("usage", "report")
    assert done.code == ExitCode.NOT_FOUND
    assert "usage.enabled" in done.err
