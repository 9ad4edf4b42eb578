"""Queue commands: flags become attributes, numbers become rows, destruction is confirmed."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.conftest import Cli, Endpoint

from penstock.cli.queues import queue
from penstock.cli.queues.queue import with_rates
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import ExitCode


def queue_row(name: str, **stats: Any) -> dict[str, Any]:
    """A queue as the admin API shows it."""
    counts = {"visible": 0, "in_flight": 0, "delayed": 0, "sent": 0, "received": 0, "acked": 0}
    return {
        "name": name,
        "kind": "standard",
        "partition_count": 1,
        "dead_letter_target": None,
        "sources": [],
        "stats": {**counts, "oldest_age_ms": None, "oldest_sent_at_ms": None, **stats},
    }


@pytest.fixture
def three_queues(endpoint: Endpoint) -> None:
    endpoint.paths["/api/v1/queues"] = {
        "queues": [
            queue_row("a", visible=1, oldest_age_ms=9_000),
            queue_row("b", visible=2, in_flight=5),
            queue_row("c", delayed=3, oldest_age_ms=60_000),
        ],
        "next": None,
    }


def test_every_setting_has_a_flag(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["CreateQueue"] = {"QueueUrl": "http://h/0/jobs.fifo"}
    endpoint.actions["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:aws:sqs:r:0:dead"}}
    flags = {
        "--partitions": "4",
        "--delay": "90s",
        "--visibility": "2m",
        "--wait": "20",
        "--retention": "4d",
        "--max-bytes": "256KiB",
        "--dedup-scope": "group",
        "--throughput": "group",
        "--kms-reuse": "5m",
        "--fsync": "never",
        "--dead-letter": "dead",
        "--max-receives": "3",
        "--policy": '{"Version": "1"}',
    }
    arguments = [part for pair in flags.items() for part in pair]
    arguments += ["--fifo", "--content-dedup", "--no-sse", "--tag", "team=a", "--tag", "x="]
    result = cli("queue", "create", "jobs", *arguments)
    assert result.json == {"name": "jobs.fifo", "url": "http://h/0/jobs.fifo"}
    (request,) = endpoint.requests("CreateQueue")
    redrive = json.loads(request["Attributes"].pop("RedrivePolicy"))
    assert redrive == {"deadLetterTargetArn": "arn:aws:sqs:r:0:dead", "maxReceiveCount": 3}
    assert request == {
        "QueueName": "jobs.fifo",
        "tags": {"team": "a", "x": ""},
        "Attributes": {
            "FifoQueue": "true",
            "PenstockPartitions": "4",
            "DelaySeconds": "90",
            "VisibilityTimeout": "120",
            "ReceiveMessageWaitTimeSeconds": "20",
            "MessageRetentionPeriod": "345600",
            "MaximumMessageSize": "262144",
            "ContentBasedDeduplication": "true",
            "DeduplicationScope": "messageGroup",
            "FifoThroughputLimit": "perMessageGroupId",
            "KmsDataKeyReusePeriodSeconds": "300",
            "SqsManagedSseEnabled": "false",
            "PenstockFsync": "never",
            "Policy": '{"Version": "1"}',
        },
    }


def test_a_setting_that_is_not_named_is_not_sent(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["CreateQueue"] = {"QueueUrl": "http://h/0/jobs"}
    cli("queue", "create", "jobs")
    assert endpoint.requests("CreateQueue") == [{"QueueName": "jobs", "Attributes": {}}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "jobs", "--delay", "16m"),
        ("create", "jobs", "--tag", "novalue"),
        ("create", "jobs", "--max-receives", "3"),
        ("create", "jobs", "--policy", "{"),
        ("create", "jobs", "--policy", "@/no/such/file"),
        ("set", "jobs"),
        ("set", "jobs", "--dead-letter", "d", "--no-dead-letter"),
    ],
)
def test_a_mistake_on_the_command_line_is_exit_2_and_changes_nothing(
    cli: Cli, endpoint: Endpoint, arguments: tuple[str, ...]
) -> None:
    endpoint.actions["GetQueueAttributes"] = {"Attributes": {"QueueArn": "arn:aws:sqs:r:0:d"}}
    assert cli("queue", *arguments).code == ExitCode.USAGE
    assert not endpoint.requests("CreateQueue")
    assert not endpoint.requests("SetQueueAttributes")


def test_set_changes_settings_and_tags(cli: Cli, endpoint: Endpoint) -> None:
    for action in ("SetQueueAttributes", "TagQueue", "UntagQueue"):
        endpoint.actions[action] = {}
    result = cli(
        "queue", "set", "jobs", "--wait", "5", "--no-dead-letter", "--tag", "a=b", "--untag", "c"
    )
    assert result.code == 0
    (request,) = endpoint.requests("SetQueueAttributes")
    assert request["Attributes"] == {"ReceiveMessageWaitTimeSeconds": "5", "RedrivePolicy": ""}
    assert endpoint.requests("TagQueue")[0]["Tags"] == {"a": "b"}
    assert endpoint.requests("UntagQueue")[0]["TagKeys"] == ["c"]


@pytest.mark.usefixtures("three_queues")
@pytest.mark.parametrize(("order", "names"), [("name", "abc"), ("backlog", "bca"), ("age", "cab")])
def test_a_list_can_show_the_worst_first(cli: Cli, order: str, names: str) -> None:
    lines = cli("queue", "list", "--sort", order).lines
    assert "".join(line["name"] for line in lines) == names


def test_a_list_follows_pages_and_passes_the_prefix(cli: Cli, endpoint: Endpoint) -> None:
    pages = {
        None: {"queues": [queue_row("a")], "next": "0/r/a"},
        "0/r/a": {"queues": [queue_row("b")], "next": None},
    }
    endpoint.paths["/api/v1/queues"] = lambda query: (200, pages[query.get("after")])
    assert [line["name"] for line in cli("queue", "list", "pre").lines] == ["a", "b"]
    assert {query["prefix"] for query in endpoint.requests("/api/v1/queues")} == {"pre"}


def test_names_alone_need_no_admin_api(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListQueues"] = {"QueueUrls": ["http://h/0/a", "http://h/0/b"]}
    assert cli("queue", "list", "-o", "name").out == "a\nb\n"
    assert [key for key, _ in endpoint.asked] == ["ListQueues"]


def test_show_uses_our_words(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["GetQueueAttributes"] = {
        "Attributes": {
            "QueueArn": "arn:aws:sqs:r:0:jobs",
            "ApproximateNumberOfMessages": "7",
            "VisibilityTimeout": "30",
            "SqsManagedSseEnabled": "true",
            "PenstockPartitions": "2",
            "CreatedTimestamp": "1700000000",
            "RedrivePolicy": '{"deadLetterTargetArn":"arn:aws:sqs:r:0:dead","maxReceiveCount":3}',
        }
    }
    endpoint.actions["ListQueueTags"] = {"Tags": {"team": "a"}}
    shown = cli("queue", "show", "jobs").json
    assert (
        shown.items()
        >= {
            "name": "jobs",
            "kind": "standard",
            "visible": 7,
            "visibility_s": 30,
            "sse": True,
            "partitions": 2,
            "dead_letter": "dead",
            "max_receives": 3,
            "tags": {"team": "a"},
        }.items()
    )
    table = cli("queue", "show", "jobs", "-o", "table").out
    assert "created       2023-11-14 22:13:20 UTC" in table
    assert "visibility    30s" in table


@pytest.mark.parametrize(("verb", "action"), [("delete", "DeleteQueue"), ("purge", "PurgeQueue")])
def test_destruction_without_a_terminal_needs_yes(
    cli: Cli, endpoint: Endpoint, verb: str, action: str
) -> None:
    endpoint.actions[action] = {}
    refused = cli("queue", verb, "jobs")
    assert refused.code == ExitCode.USAGE
    assert "--yes" in refused.err
    assert not endpoint.requests(action)
    assert cli("queue", verb, "jobs", "--yes").code == 0
    assert len(endpoint.requests(action)) == 1


def test_a_dry_purge_counts_and_removes_nothing(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["GetQueueAttributes"] = {
        "Attributes": {
            "ApproximateNumberOfMessages": "7",
            "ApproximateNumberOfMessagesNotVisible": "2",
            "ApproximateNumberOfMessagesDelayed": "1",
        }
    }
    assert cli("queue", "purge", "jobs", "--dry-run").json["would_remove"] == 10
    assert not endpoint.requests("PurgeQueue")


@pytest.mark.usefixtures("three_queues")
def test_numbers_of_a_queue_that_does_not_exist_are_exit_3(cli: Cli) -> None:
    assert cli("queue", "stats", "nope").code == ExitCode.NOT_FOUND
    assert [line["name"] for line in cli("queue", "stats", "c", "a").lines] == ["c", "a"]


def test_watching_gives_a_line_an_interval_and_rates_from_the_second_on(
    cli: Cli, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    clock = SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(queue, "time", clock)
    monkeypatch.setattr(output, "time", clock)
    sent = iter(range(0, 10_000, 100))

    def answer(_: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"queues": [queue_row("jobs", sent=next(sent))], "next": None}

    endpoint.paths["/api/v1/queues"] = answer
    lines = cli("queue", "stats", "jobs", "--watch", "--interval", "0.1", "--samples", "3").lines
    assert [line["sent"] for line in lines] == [0, 100, 200]
    assert lines[0]["sent_per_s"] is None
    assert lines[1]["sent_per_s"] == 1_000.0, "a hundred in a tenth of a second"
    assert [line["at_ms"] for line in lines] == [0, 100, 200]


def test_a_counter_that_went_backwards_has_no_rate() -> None:
    assert with_rates({"sent": 1}, {"sent": 5}, 1.0)["sent_per_s"] is None
    assert with_rates({"sent": 6}, {"sent": 5}, 0.5)["sent_per_s"] == 2.0
