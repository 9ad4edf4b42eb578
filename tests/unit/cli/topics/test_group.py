"""Group commands: members and offsets shown, lag in records and seconds, resets that stay within
the log."""

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.clients.test_kafka import LIST_OFFSETS
from tests.unit.cli.conftest import Cli
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.cli.topics.offsets import Target, target_of
from penstock.record.batch import encode_batch
from penstock.record.record import encode_record
from penstock.wire.kafka.consumer_records import ConsumerProtocolAssignment, encode_assignment
from penstock.wire.kafka.fetch import FetchPartitionResponse, FetchResponse, FetchTopicResponse
from penstock.wire.kafka.generated import consumer_group_describe as consumer_api
from penstock.wire.kafka.generated import consumer_protocol_assignment as assignment_api
from penstock.wire.kafka.generated import delete_groups as delete_api
from penstock.wire.kafka.generated import describe_groups as classic_api
from penstock.wire.kafka.generated import describe_share_group_offsets as starts_api
from penstock.wire.kafka.generated import list_offsets as offsets_api
from penstock.wire.kafka.generated import offset_commit as commit_api
from penstock.wire.kafka.generated import offset_fetch as fetch_api
from penstock.wire.kafka.generated import share_group_describe as share_api
from penstock.wire.kafka.generated import streams_group_describe as streams_api

START, END = 3, 20
FETCH, OFFSET_COMMIT, OFFSET_FETCH, DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE = 1, 8, 9, 15, 69
ATTR_CONTROL = 0x20


class Log:
    """One topic with two partitions from START to END, and the offsets of a group."""

    def __init__(self) -> None:
        self.committed = {0: 12, 1: END}
        self.at_time = 15
        self.record_ms = 0
        self.commit_code = 0
        self.start = START
        self.is_all_control = False  # a queue whose lease events never end

    def offsets(self, request: Any) -> Any:
        by_time = {-2: self.start, -1: END}
        return offsets_api.ListOffsetsResponse(
            topics=[
                offsets_api.ListOffsetsTopicResponse(
                    topic.name,
                    [
                        offsets_api.ListOffsetsPartitionResponse(
                            part.partition_index,
                            offset=by_time.get(part.timestamp, self.at_time),
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def offset_fetch(self, _: Any) -> Any:
        rows = [
            fetch_api.OffsetFetchResponsePartition(number, offset)
            for number, offset in self.committed.items()
        ]
        topics = [fetch_api.OffsetFetchResponseTopic("t", rows)] if rows else []
        return fetch_api.OffsetFetchResponse(topics=topics)

    def commit(self, request: Any) -> Any:
        return commit_api.OffsetCommitResponse(
            topics=[
                commit_api.OffsetCommitResponseTopic(
                    topic.name,
                    partitions=[
                        commit_api.OffsetCommitResponsePartition(
                            part.partition_index, self.commit_code
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def fetch(self, request: Any) -> Any:
        """A batch without records for readers, then one that begins below what is wanted."""
        (topic,) = request.topics
        (wanted,) = topic.partitions
        control = batch(10, [self.record_ms - 900_000] * 3, attributes=ATTR_CONTROL)
        if self.is_all_control:
            part = FetchPartitionResponse(wanted.index, records=[control])
            return FetchResponse([FetchTopicResponse(topic.name, topic.topic_id, [part])])
        records = batch(13, [self.record_ms - 5_000, self.record_ms])
        part = FetchPartitionResponse(wanted.index, records=[control, records])
        return FetchResponse([FetchTopicResponse(topic.name, topic.topic_id, [part])])


def batch(base: int, times: list[int], *, attributes: int = 0) -> bytes:
    records = [
        encode_record(offset_delta=n, timestamp_delta=at - times[0], key=None, value=b"x")
        for n, at in enumerate(times)
    ]
    return encode_batch(
        records,
        base_offset=base,
        leader_epoch=0,
        base_timestamp=times[0],
        max_timestamp=max(times),
        attributes=attributes,
    )


def classic_group(*members: classic_api.DescribedGroupMember) -> Any:
    group = classic_api.DescribedGroup(0, None, "g", "Stable", "consumer", "range", members)
    return classic_api.DescribeGroupsResponse(groups=[group])


def consumer_group(*members: consumer_api.Member) -> Any:
    group = consumer_api.DescribedGroup(0, None, "n", "Stable", 5, 5, "uniform", members)
    return consumer_api.ConsumerGroupDescribeResponse(groups=[group])


def reads(*numbers: int) -> bytes:
    return encode_assignment(
        ConsumerProtocolAssignment([assignment_api.TopicPartition("t", numbers)]), 1
    )


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, log: Log) -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    made.topics["t"] = 2
    made.groups = {"g": "Classic", "n": "Consumer"}
    made.answers[LIST_OFFSETS] = log.offsets
    made.answers[OFFSET_FETCH] = log.offset_fetch
    made.answers[OFFSET_COMMIT] = log.commit
    made.answers[FETCH] = log.fetch
    made.answers[DESCRIBE_GROUPS] = lambda _: classic_group()
    made.answers[CONSUMER_GROUP_DESCRIBE] = lambda _: consumer_group()
    monkeypatch.setenv("PENSTOCK_KAFKA", made.address)
    yield made
    made.close()


def test_groups_are_listed(cli: Cli, kafka: KafkaEndpoint) -> None:
    assert cli("group", "list").lines == [
        {"name": "g", "type": "classic", "state": "Empty", "protocol": "consumer"},
        {"name": "n", "type": "consumer", "state": "Empty", "protocol": "consumer"},
    ]
    assert cli("group", "list", "n", "-o", "name").out == "n\n"


def test_bookkeeping_groups_of_the_pipeline_are_left_out_of_lists_and_lags(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    sink = "spark-sink-0b7d5f63-6a0a-4d53-9a55-2f4f6b6f0c11"
    kafka.groups |= {sink: "Classic", "penstock-replay.orders.0": "Classic", "spark-sink-own": "x"}
    assert cli("group", "list", "-o", "name").out.split() == ["g", "n", "spark-sink-own"]
    shown = cli("group", "list", "--all", "-o", "name").out.split()
    assert shown == ["g", "n", "penstock-replay.orders.0", sink, "spark-sink-own"]
    assert {row["group"] for row in cli("group", "lag").lines} == {"g", "n", "spark-sink-own"}
    assert {row["group"] for row in cli("group", "lag", sink).lines} == {sink}


def test_a_classic_group_is_shown_with_assignments_and_lag(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    member = classic_api.DescribedGroupMember("m", "i", "c", "/127.0.0.1", b"", reads(1, 0))
    strange = classic_api.DescribedGroupMember("s", None, "c", "", b"", b"\x00")
    kafka.answers[DESCRIBE_GROUPS] = lambda _: classic_group(member, strange)
    log.record_ms = int(time.time() * 1_000) - 60_000
    shown = cli("group", "show", "g").json
    assert (shown["state"], shown["assignor"]) == ("Stable", "range")
    assert shown["members"][0]["assigned"] == ["t:0", "t:1"]
    assert shown["members"][0]["host"] == "127.0.0.1"
    assert shown["members"][1]["assigned"] == []
    behind, level = shown["offsets"]
    assert (behind["topic"], behind["partition"], behind["committed"]) == ("t", 0, 12)
    assert (behind["lag"], level["lag"], shown["lag"]) == (8, 0, 8)
    assert 65.0 <= behind["lag_s"] == shown["lag_s"] < 80.0
    table = cli("group", "show", "g", "-o", "table").out
    assert "t:0 t:1" in table
    assert re.search(r"\b1m (?:[5-9]|1\d)s\b", table)


def test_a_group_of_the_newer_protocol_is_shown(cli: Cli, kafka: KafkaEndpoint) -> None:
    owned = consumer_api.Assignment([consumer_api.TopicPartitions(bytes(16), "t", [1])])
    member = consumer_api.Member("m", member_epoch=4, client_id="c", assignment=owned)
    kafka.answers[CONSUMER_GROUP_DESCRIBE] = lambda _: consumer_group(member)
    shown = cli("group", "show", "n").json
    assert (shown["type"], shown["epoch"], shown["assignor"]) == ("consumer", 5, "uniform")
    assert shown["members"][0]["assigned"] == ["t:1"]


def test_a_share_group_stands_where_it_is_not_finished(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    owned = share_api.Assignment([share_api.TopicPartitions(bytes(16), "t", [0, 1])])
    member = share_api.Member("m", client_id="c", member_epoch=2, assignment=owned)
    group = share_api.DescribedGroup(0, None, "s", "Stable", 2, 2, "simple", [member])
    kafka.groups["s"] = "Share"
    kafka.answers[77] = lambda _: share_api.ShareGroupDescribeResponse(groups=[group])
    rows = [starts_api.DescribeShareGroupOffsetsResponsePartition(0, start_offset=12)]
    topic = starts_api.DescribeShareGroupOffsetsResponseTopic("t", partitions=rows)
    kafka.answers[90] = lambda _: starts_api.DescribeShareGroupOffsetsResponse(
        groups=[starts_api.DescribeShareGroupOffsetsResponseGroup("s", [topic])]
    )
    log.record_ms = int(time.time() * 1_000) - 60_000
    shown = cli("group", "show", "s").json
    assert (shown["type"], shown["members"][0]["assigned"]) == ("share", ["t:0", "t:1"])
    assert [row["lag"] for row in shown["offsets"]] == [8, None]
    assert 65.0 <= shown["lag_s"] < 80.0
    assert [row["group"] for row in cli("group", "lag").lines] == ["g", "g", "n", "n", "s", "s"]


def test_a_streams_group_is_shown_with_its_tasks(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    owned = streams_api.Assignment(
        [streams_api.TaskIds("0", [1, 0]), streams_api.TaskIds("1", [2])]
    )
    member = streams_api.Member("m", client_id="c", member_epoch=3, assignment=owned)
    group = streams_api.DescribedGroup(0, None, "w", "Stable", 3, 3, None, [member])
    kafka.groups["w"] = "Streams"
    kafka.answers[89] = lambda _: streams_api.StreamsGroupDescribeResponse(groups=[group])
    shown = cli("group", "show", "w").json
    assert (shown["type"], shown["epoch"], shown["assignor"]) == ("streams", 3, "sticky")
    assert shown["members"][0]["assigned"] == ["0_0", "0_1", "1_2"]
    assert [(row["partition"], row["lag"]) for row in shown["offsets"]] == [(0, 8), (1, 0)]


def test_lag_is_told_in_records_and_seconds(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    log.record_ms = int(time.time() * 1_000) - 60_000
    behind, level = cli("group", "lag", "g").lines
    assert (behind["committed"], behind["end"], behind["lag"]) == (12, END, 8)
    assert 65.0 <= behind["lag_s"] < 80.0, "the record at 13, not the control batch before it"
    assert (level["lag"], level["lag_s"]) == (0, 0.0)
    log.committed = {0: 14}
    log.record_ms = int(time.time() * 1_000) - 60_000
    row, _ = cli("group", "lag", "g").lines
    assert 60.0 <= row["lag_s"] < 65.0, "the second record of the batch"


def test_lag_begins_where_the_log_does(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    log.committed = {0: 0}
    row, _ = cli("group", "lag", "g").lines
    assert row["lag"] == END - START


def test_a_partition_never_committed_for_has_no_known_lag(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    log.committed = {0: END}
    _, row = cli("group", "lag", "g").lines
    assert (row["committed"], row["end"], row["lag"], row["lag_s"]) == (None, END, None, None)
    assert cli("group", "lag", "g", "-o", "table").out.splitlines()[2].split()[-2:] == ["-", "-"]


def test_a_group_that_reads_and_never_committed_is_shown(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    log.committed = {}
    assert cli("group", "lag", "g").lines == []
    member = classic_api.DescribedGroupMember("m", None, "c", "", b"", reads(0))
    kafka.answers[DESCRIBE_GROUPS] = lambda _: classic_group(member)
    assert [row["lag"] for row in cli("group", "lag", "g").lines] == [None, None]


def test_an_empty_partition_has_no_lag_whoever_reads_it(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    log.committed, log.start = {0: END}, END
    assert [row["lag"] for row in cli("group", "lag", "g").lines] == [0, 0]


def test_a_search_that_finds_no_record_in_time_says_that_it_does_not_know(
    cli: Cli, kafka: KafkaEndpoint, log: Log
) -> None:
    log.is_all_control = True
    row, _ = cli("group", "lag", "g").lines
    assert (row["lag"], row["lag_s"]) == (8, None)
    assert len(kafka.requests("Fetch")) == 16


def test_offsets_of_a_deleted_topic_are_no_lag(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics = {}
    assert cli("group", "lag", "g").out == ""


def test_watch_repeats(cli: Cli, kafka: KafkaEndpoint) -> None:
    lines = cli("group", "lag", "g", "--watch", "--interval", "0.1", "--samples", "2").lines
    assert len(lines) == 4
    assert all("at_ms" in line for line in lines)


def test_an_unknown_group_is_not_found(cli: Cli, kafka: KafkaEndpoint) -> None:
    for verb in (("show", "x"), ("lag", "x"), ("delete", "x", "--yes")):
        assert cli("group", *verb).code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("to", "after"),
    [
        ("begin", [START, START]),
        ("end", [END, END]),
        ("7", [7, 7]),
        ("0", [START, START]),
        ("999", [END, END]),
        ("-90m", [15, 15]),
        ("2026-01-31T12:00:00Z", [15, 15]),
    ],
)
def test_reset_goes_where_it_is_told(
    cli: Cli, kafka: KafkaEndpoint, to: str, after: list[int]
) -> None:
    rows = cli("group", "reset", "g", "--to", to).lines
    assert [row["after"] for row in rows] == after
    assert [row["before"] for row in rows] == [12, END]
    (request,) = kafka.requests("OffsetCommit")
    assert (request.group_id, request.member_id) == ("g", "")
    assert request.generation_id_or_member_epoch == -1
    (topic,) = request.topics
    assert [part.committed_offset for part in topic.partitions] == after


def test_a_time_behind_the_last_record_is_the_end(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    log.at_time = -1
    rows = cli("group", "reset", "g", "--to", "2026-01-31").lines
    assert [row["after"] for row in rows] == [END, END]


def test_a_dry_run_commits_nothing(cli: Cli, kafka: KafkaEndpoint) -> None:
    assert cli("group", "reset", "g", "--to", "begin", "--dry-run").lines[0]["after"] == START
    assert kafka.requests("OffsetCommit") == []


def test_a_topic_can_be_named_that_was_never_read(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    log.committed = {}
    assert cli("group", "reset", "g", "--to", "end").code == ExitCode.NOT_FOUND
    rows = cli("group", "reset", "g", "--to", "end", "--topic", "t").lines
    assert [(row["partition"], row["before"]) for row in rows] == [(0, None), (1, None)]


def test_a_group_with_members_cannot_be_reset(cli: Cli, kafka: KafkaEndpoint, log: Log) -> None:
    log.commit_code = 25
    result = cli("group", "reset", "g", "--to", "end")
    assert result.code == ExitCode.CONFLICT
    assert "UNKNOWN_MEMBER_ID" in result.err


def test_deletion_is_confirmed(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.answers[42] = lambda _: delete_api.DeleteGroupsResponse(
        results=[delete_api.DeletableGroupResult("g")]
    )
    assert cli("group", "delete", "g").code == ExitCode.USAGE
    assert kafka.requests("DeleteGroups") == []
    assert cli("group", "delete", "g", "--yes").code == 0
    assert list(kafka.requests("DeleteGroups")[0].groups_names) == ["g"]


def _target(text: str, now_ms: int) -> Target:
    return target_of(text, what="cannot reset to", option="--to", now_ms=now_ms)


def test_where_a_reset_can_go() -> None:
    assert _target("begin", 0) == Target(time=-2)
    assert _target("end", 0) == Target(time=-1)
    assert _target("latest", 0) == Target(time=-1)
    assert _target("17", 0) == Target(offset=17)
    assert _target("-10", 0) == Target(last=10)
    assert _target("-2h", 10_000_000) == Target(time=2_800_000)
    assert _target("2026-01-31T12:00:00+02:00", 0) == Target(time=1_769_853_600_000)
    assert _target("2026-01-31T12:00:00", 0) == Target(time=1_769_860_800_000)
    for wrong in ("", "x", "-", "-5w", "1" * 30):
        with pytest.raises(Failure):
            _target(wrong, 0)
