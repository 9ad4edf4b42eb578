"""The installed ``penstock topic`` and ``penstock group`` against a server with a Kafka listener,
with records and groups made by somebody else's client."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from tests.harness.server import Server, penstock_command

from penstock.cli.failure import ExitCode


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("data")
    with Server(folder, fsync="never", kafka_port=0) as running:
        yield running
        assert running.stop() == 0
        running.assert_no_traceback()


class Shell:
    def __init__(self, server: Server) -> None:
        self.url = server.url

    def __call__(self, *args: str) -> Done:
        done = subprocess.run(
            [penstock_command(), "--endpoint", self.url, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def shell(server: Server) -> Shell:
    return Shell(server)


def produce(server: Server, topic: str, count: int, *, partition: int = 0) -> None:
    made: Any = Producer({"bootstrap.servers": server.kafka})
    for number in range(count):
        made.produce(topic, b"%d" % number, partition=partition)
    assert made.flush(20) == 0


def consume(server: Server, group: str, topic: str, count: int, *, protocol: str) -> Any:
    """A living member that has read and committed ``count`` records."""
    made: Any = Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "client.id": "reader",
        }
    )
    made.subscribe([topic])
    for _ in range(count):
        message = made.poll(20)
        assert message is not None
        assert message.error() is None
        made.commit(message, asynchronous=False)
    return made


def test_the_life_of_a_topic(server: Server, shell: Shell) -> None:
    assert shell("topic", "create", "life", "--partitions", "2").json["partitions"] == 2
    assert shell("topic", "create", "life").code == ExitCode.CONFLICT
    produce(server, "life", 5, partition=1)
    (row,) = shell("topic", "list", "life").lines
    assert (row["partitions"], row["records"]) == (2, 5)
    assert row["log_bytes"] > 0
    assert shell("topic", "set", "life", "retention.ms=60000").code == 0
    assert shell("topic", "set", "life", "retention.ms=soon").code == ExitCode.FAILED
    shown = shell("topic", "show", "life").json
    assert shown["configs"]["retention.ms"] == "60000"
    assert [part["end"] for part in shown["partitions"]] == [0, 5]
    assert shell("topic", "set", "life", "--unset", "retention.ms").code == 0
    assert "retention.ms" not in shell("topic", "show", "life").json["configs"]
    assert shell("topic", "partitions", "life", "3").json["before"] == 2
    assert shell("topic", "partitions", "life", "1").code == ExitCode.CONFLICT
    assert shell("topic", "delete", "life").code == ExitCode.USAGE
    assert shell("topic", "delete", "life", "--yes").code == 0
    assert shell("topic", "show", "life").code == ExitCode.NOT_FOUND


def test_a_topic_opened_as_a_queue_is_received_from(server: Server, shell: Shell) -> None:
    shell("topic", "create", "jobs")
    produce(server, "jobs", 1)
    assert shell("message", "receive", "jobs").code == ExitCode.NOT_FOUND
    assert shell("topic", "open-as-queue", "jobs").code == 0
    (message,) = shell("message", "receive", "jobs").lines
    assert message["body"] == "0"
    assert shell("topic", "show", "jobs").json["is_queue"] is True


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_life_of_a_group(server: Server, shell: Shell, protocol: str) -> None:
    topic = group = f"group-{protocol}"
    shell("topic", "create", topic)
    produce(server, topic, 10)
    member = consume(server, group, topic, 4, protocol=protocol)
    (row,) = shell("group", "list", group).lines
    assert (row["type"], row["state"]) == (protocol, "Stable")
    shown = shell("group", "show", group).json
    assert shown["members"][0]["assigned"] == [f"{topic}:0"]
    assert shown["members"][0]["client_id"] == "reader"
    (lag,) = shell("group", "lag", group).lines
    assert (lag["committed"], lag["end"], lag["lag"]) == (4, 10, 6)
    assert 0.0 < lag["lag_s"] < 60.0
    refused = shell("group", "reset", group, "--to", "begin")
    assert refused.code == ExitCode.CONFLICT, refused.err
    assert shell("group", "delete", group, "--yes").code == ExitCode.CONFLICT
    member.close()

    assert shell("group", "reset", group, "--to", "begin", "--dry-run").lines[0]["after"] == 0
    assert shell("group", "lag", group).lines[0]["committed"] == 4
    assert shell("group", "reset", group, "--to", "end").lines[0]["after"] == 10
    (lag,) = shell("group", "lag", group).lines
    assert (lag["lag"], lag["lag_s"]) == (0, 0.0)
    assert shell("group", "reset", group, "--to", "-1h").lines[0]["after"] == 0
    table = shell("group", "lag", group, "--watch", "--samples", "2", "--interval", "0.1")
    assert [line["lag"] for line in table.lines] == [10, 10]
    assert shell("group", "delete", group, "--yes").code == 0
    assert shell("group", "show", group).code == ExitCode.NOT_FOUND


def test_a_wrong_address_says_what_to_do(server: Server, shell: Shell) -> None:
    nobody = shell("--kafka", "127.0.0.1:1", "topic", "list")
    assert nobody.code == ExitCode.UNREACHABLE
    assert "--kafka" in nobody.err
    other = server.url.removeprefix("http://")
    assert shell("--kafka", other, "topic", "list").code == ExitCode.UNREACHABLE
    assert shell("--kafka", "nonsense", "topic", "list").code == ExitCode.USAGE
