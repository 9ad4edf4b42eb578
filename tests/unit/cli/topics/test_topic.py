"""Topic commands: flags become requests, refusals become exit codes, deletion is confirmed."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.cli.clients.test_kafka import LIST_OFFSETS, ends
from tests.unit.cli.conftest import Cli
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.cli.terminal.failure import ExitCode
from penstock.wire.kafka.generated import create_partitions as partitions_api
from penstock.wire.kafka.generated import create_topics as create_api
from penstock.wire.kafka.generated import delete_topics as delete_api
from penstock.wire.kafka.generated import describe_configs as configs_api
from penstock.wire.kafka.generated import describe_log_dirs as dirs_api
from penstock.wire.kafka.generated import incremental_alter_configs as alter_api


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaEndpoint]:
    made = KafkaEndpoint()
    made.answers[LIST_OFFSETS] = ends
    made.answers[19] = lambda request: create_api.CreateTopicsResponse(
        topics=[create_api.CreatableTopicResult(request.topics[0].name, num_partitions=3)]
    )
    made.answers[35] = lambda request: dirs_api.DescribeLogDirsResponse(
        results=[
            dirs_api.DescribeLogDirsResult(
                topics=[
                    dirs_api.DescribeLogDirsTopic(
                        each.topic,
                        [dirs_api.DescribeLogDirsPartition(n, 100) for n in each.partitions],
                    )
                    for each in request.topics
                ]
            )
        ]
    )
    made.answers[44] = lambda request: alter_api.IncrementalAlterConfigsResponse(
        responses=[alter_api.AlterConfigsResourceResponse(0, None, 2, "t")]
    )
    monkeypatch.setenv("PENSTOCK_KAFKA", made.address)
    yield made
    made.close()


def test_flags_of_create(cli: Cli, kafka: KafkaEndpoint) -> None:
    result = cli(
        *("topic", "create", "t", "--partitions", "3", "--queue"),
        *("--config", "retention.ms=5", "--config", "cleanup.policy="),
    )
    assert result.json == {"name": "t", "partitions": 3, "created": True}
    (request,) = kafka.requests("CreateTopics")
    (asked,) = request.topics
    assert (asked.name, asked.num_partitions, asked.replication_factor) == ("t", 3, -1)
    assert {each.name: each.value for each in asked.configs} == {
        "retention.ms": "5",
        "cleanup.policy": "",
        "penstock.queue": "true",
    }
    assert not request.validate_only


def test_a_dry_run_only_validates(cli: Cli, kafka: KafkaEndpoint) -> None:
    assert cli("topic", "create", "t", "--dry-run").json["created"] is False
    assert kafka.requests("CreateTopics")[0].validate_only


def test_a_refusal_is_told(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.answers[19] = lambda _: create_api.CreateTopicsResponse(
        topics=[create_api.CreatableTopicResult("t", error_code=36, error_message="Taken.")]
    )
    result = cli("topic", "create", "t")
    assert result.code == ExitCode.CONFLICT
    assert "Taken. (TOPIC_ALREADY_EXISTS)" in result.err
    assert cli("topic", "create", "t", "--config", "oops").code == ExitCode.USAGE


def test_list_counts_records_and_bytes(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics = {"b": 1, "a1": 2, "__own": 1}
    kafka.answers[LIST_OFFSETS] = _spread
    assert cli("topic", "list").lines == [
        {"name": "a1", "partitions": 2, "records": 14, "log_bytes": 200},
        {"name": "b", "partitions": 1, "records": 7, "log_bytes": 100},
    ]
    assert cli("topic", "list", "a", "-o", "name").out == "a1\n"
    assert cli("topic", "list", "--internal", "-o", "name").out == "__own\na1\nb\n"


def _spread(request: Any) -> Any:
    """Every partition from 3 to 10."""
    reply = ends(request)
    topics = []
    for asked, told in zip(request.topics, reply.topics, strict=True):
        parts = [
            type(part)(part.partition_index, 0, -1, 3 if want.timestamp == -2 else 10, 0)
            for want, part in zip(asked.partitions, told.partitions, strict=True)
        ]
        topics.append(type(told)(told.name, parts))
    return type(reply)(topics=topics)


def test_show_has_configs_and_partitions(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics["t"] = 2
    kafka.answers[LIST_OFFSETS] = _spread
    rows = [
        configs_api.DescribeConfigsResourceResult("retention.ms", "3600000", config_source=1),
        configs_api.DescribeConfigsResourceResult("segment.ms", "9", config_source=5),
    ]
    kafka.answers[32] = lambda _: configs_api.DescribeConfigsResponse(
        results=[configs_api.DescribeConfigsResult(0, None, 2, "t", rows)]
    )
    shown = cli("topic", "show", "t").json
    assert shown["configs"] == {"retention.ms": "3600000"}
    assert shown["records"] == 14
    assert shown["is_queue"] is False
    assert shown["partitions"][1] == {
        "partition": 1,
        "leader": 1,
        "start": 3,
        "end": 10,
        "log_bytes": 100,
    }
    assert cli("topic", "show", "t", "--all").json["configs"]["segment.ms"] == "9"
    table = cli("topic", "show", "t", "-o", "table").out
    assert "retention.ms=3600000  (1h)" in table
    assert cli("topic", "show", "other").code == ExitCode.NOT_FOUND


def test_set_sends_only_what_is_named(cli: Cli, kafka: KafkaEndpoint) -> None:
    assert cli("topic", "set", "t", "retention.ms=1", "--unset", "segment.ms").code == 0
    (request,) = kafka.requests("IncrementalAlterConfigs")
    (resource,) = request.resources
    assert (resource.resource_type, resource.resource_name) == (2, "t")
    assert [(each.name, each.config_operation, each.value) for each in resource.configs] == [
        ("retention.ms", 0, "1"),
        ("segment.ms", 1, None),
    ]
    assert cli("topic", "set", "t").code == ExitCode.USAGE
    assert cli("topic", "set", "t", "a=1", "--unset", "a").code == ExitCode.USAGE


def test_open_as_queue_sets_one_config(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics["t"] = 1
    assert cli("topic", "open-as-queue", "t").code == 0
    (request,) = kafka.requests("IncrementalAlterConfigs")
    (config,) = request.resources[0].configs
    assert (config.name, config.value) == ("penstock.queue", "true")
    assert cli("topic", "open-as-queue", "other").code == ExitCode.NOT_FOUND


def test_partitions_only_grow(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics["t"] = 2
    kafka.answers[37] = lambda _: partitions_api.CreatePartitionsResponse(
        results=[partitions_api.CreatePartitionsTopicResult("t")]
    )
    assert cli("topic", "partitions", "t", "4").json["before"] == 2
    assert kafka.requests("CreatePartitions")[0].topics[0].count == 4
    assert cli("topic", "partitions", "t", "2").code == 0
    assert cli("topic", "partitions", "t", "1").code == ExitCode.CONFLICT
    assert len(kafka.requests("CreatePartitions")) == 1


def test_deletion_is_confirmed(cli: Cli, kafka: KafkaEndpoint) -> None:
    kafka.topics["t"] = 1
    kafka.answers[20] = lambda _: delete_api.DeleteTopicsResponse(
        responses=[delete_api.DeletableTopicResult("t")]
    )
    assert cli("topic", "delete", "t").code == ExitCode.USAGE
    assert kafka.requests("DeleteTopics") == []
    assert cli("topic", "delete", "t", "--yes").code == 0
    assert list(kafka.requests("DeleteTopics")[0].topic_names) == ["t"]
    assert cli("topic", "delete", "other", "--yes").code == ExitCode.NOT_FOUND
