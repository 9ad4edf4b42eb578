"""The installed ``penstock topic`` and ``penstock group`` against a server with a Kafka listener,
with records and groups made by somebody else's client."""

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer
from tests.harness import forks
from tests.harness.server import READY_SECONDS_MAX, Server, penstock_command, stable_port

from penstock.cli.terminal.failure import ExitCode


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

    def start(self, *args: str) -> subprocess.Popen[str]:
        return forks.Forked(
            [penstock_command(), "--endpoint", self.url, *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *args: str, stdin: str = "") -> Done:
        done = forks.run([penstock_command(), "--endpoint", self.url, *args], stdin=stdin)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def shell(server: Server) -> Shell:
    return Shell(server)


def produce(server: Server, topic: str, count: int, *, partition: int = 0) -> None:
    made: Any = Producer({"bootstrap.servers": server.kafka})
    for number in range(count):
        made.produce(topic, b"%d" % number, partition=partition)
    assert made.flush(120) == 0


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


def test_what_is_sent_to_a_topic_is_what_its_tail_shows(server: Server, shell: Shell) -> None:
    shell("topic", "create", "words", "--partitions", "4")
    flags = ("--key", "ann", "--header", "lang=en", "--header", "n=1")
    first = shell("message", "send", "--topic", "words", *flags, "hello").json
    assert first["offset"] == 0
    again = shell("message", "send", "--topic", "words", "--key", "ann", "again").json
    assert (again["partition"], again["offset"]) == (first["partition"], 1)
    lines = shell("message", "send", "--topic", "words", "-", stdin="a\n\nb\n").json
    assert (lines["sent"], lines["failed"]) == (2, 0)
    line = (
        '{"value": "there", "partition": 3, "headers": {"h": "1"}}\n{"value": null, "key": "k"}\n'
    )
    assert shell("message", "send", "--topic", "words", "--ndjson", stdin=line).json["sent"] == 2

    shown = shell("message", "tail", "--topic", "words", "--from", "earliest", "--no-follow").lines
    assert len(shown) == 6
    (hello,) = (row for row in shown if row["value"] == "hello")
    assert hello["key"] == "ann"
    assert hello["headers"] == [{"name": "lang", "value": "en"}, {"name": "n", "value": "1"}]
    (there,) = (row for row in shown if row["value"] == "there")
    assert there["partition"] == 3
    assert [row["key"] for row in shown if row["value"] is None] == ["k"]
    table = shell(
        "message", "tail", "--topic", "words", "--from", "-1h", "--exit-at-end", "-otable"
    )
    assert "ann  lang=en n=1  hello" in table.out

    # What tail prints, send reads.
    shell("topic", "create", "copy", "--partitions", "4")
    text = "".join(json.dumps(row) + "\n" for row in shown)
    assert (
        shell("message", "send", "--topic", "copy", "--ndjson", "-", stdin=text).json["sent"] == 6
    )
    copied = shell("message", "tail", "--topic", "copy", "--from", "earliest", "--no-follow").lines
    fields = ("partition", "key", "headers", "value")
    assert [[row[f] for f in fields] for row in copied] == [
        [row[f] for f in fields] for row in shown
    ]


def test_keys_from_the_command_line_meet_those_of_a_kafka_client(
    server: Server, shell: Shell
) -> None:
    shell("topic", "create", "keys", "--partitions", "7")
    made: Any = Producer({"bootstrap.servers": server.kafka, "partitioner": "murmur2_random"})
    for key in ("ann", "bob", "cyd", "dan"):
        made.produce("keys", b"theirs", key=key)
        shell("message", "send", "--topic", "keys", "--key", key, "ours")
    assert made.flush(120) == 0
    rows = shell("message", "tail", "--topic", "keys", "--from", "earliest", "--no-follow").lines
    places = {(row["key"], row["partition"]) for row in rows}
    assert len(rows) == 8
    assert len(places) == 4, "each key has one partition, whoever sent it"


def test_a_tail_follows_by_long_poll_and_ends_with_130(server: Server, shell: Shell) -> None:
    shell("topic", "create", "live", "--partitions", "3")
    shell("message", "send", "--topic", "live", "--partition", "1", "old")
    tail = shell.start("message", "tail", "--topic", "live", "--from", "-1")
    assert tail.stdout is not None
    assert json.loads(tail.stdout.readline())["value"] == "old"  # it is watching from here on
    for number in range(3):
        produce(server, "live", 1, partition=number)
        assert json.loads(tail.stdout.readline())["partition"] == number
    tail.send_signal(signal.SIGINT)
    _, err = tail.communicate(timeout=120)
    assert tail.returncode == ExitCode.INTERRUPTED
    assert "Traceback" not in err


def test_a_tail_with_a_group_goes_on_where_it_ended(server: Server, shell: Shell) -> None:
    shell("topic", "create", "steps")
    produce(server, "steps", 10)
    read = ("message", "tail", "--topic", "steps", "--group", "by-hand", "-o", "name")
    assert shell(*read, "--count", "3").out.split() == ["0", "1", "2"]
    (lag,) = shell("group", "lag", "by-hand").lines
    assert (lag["committed"], lag["lag"]) == (3, 7)
    assert shell(*read, "--no-follow").out.split() == [str(n) for n in range(3, 10)]
    assert shell(*read, "--no-follow").out == ""
    assert shell("group", "lag", "by-hand").lines[0]["lag"] == 0
    member = consume(server, "taken", "steps", 1, protocol="classic")
    taken = shell("message", "tail", "--topic", "steps", "--group", "taken", "--no-follow")
    assert (taken.code, taken.out) == (ExitCode.CONFLICT, "")
    member.close()


def test_aborted_records_are_not_shown_and_open_ones_not_waited_for(
    server: Server, shell: Shell
) -> None:
    shell("topic", "create", "money")
    made: Any = Producer({"bootstrap.servers": server.kafka, "transactional.id": "till"})
    made.init_transactions(20)
    for value, end in (("kept", "commit"), ("gone", "abort"), ("kept too", "commit")):
        made.begin_transaction()
        made.produce("money", value.encode())
        made.flush(120)
        getattr(made, f"{end}_transaction")(20)
    made.begin_transaction()
    made.produce("money", b"not yet")
    made.flush(120)
    rows = shell("message", "tail", "--topic", "money", "--from", "earliest", "--no-follow").lines
    assert [row["value"] for row in rows] == ["kept", "kept too"]
    made.abort_transaction(20)


def test_an_interrupted_send_has_sent_what_it_had_read(server: Server, shell: Shell) -> None:
    shell("topic", "create", "cut")
    tail = shell.start("message", "tail", "--topic", "cut", "--from", "earliest")
    send = shell.start("message", "send", "--topic", "cut", "-")
    assert send.stdin is not None
    assert tail.stdout is not None
    send.stdin.write("one\ntwo\nha")
    send.stdin.flush()
    assert [json.loads(tail.stdout.readline())["value"] for _ in range(2)] == ["one", "two"]
    send.send_signal(signal.SIGINT)
    _, err = send.communicate(timeout=120)
    assert send.returncode == ExitCode.INTERRUPTED
    assert "'cut' had accepted 2 records" in err
    tail.send_signal(signal.SIGINT)
    tail.communicate(timeout=120)


def test_a_restart_under_a_send_loses_and_doubles_nothing(
    shell: Shell, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("restarted")
    with Server(folder, port=stable_port(), kafka_port=stable_port()) as own:
        mine = Shell(own)
        mine("topic", "create", "safe", "--partitions", "2")
        # The send retries for as long as --timeout allows: longer than any restart may take.
        patient = ("--timeout", str(2 * READY_SECONDS_MAX))
        send = mine.start(*patient, "message", "send", "--topic", "safe", "-")
        go_on = threading.Event()

        def write() -> None:
            assert send.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # the exit code says what went wrong
                for number in range(20_000):
                    send.stdin.write(f"{number}\n")
                    if number == 5_000:
                        send.stdin.flush()
                        go_on.wait()
                send.stdin.close()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            consume(own, "watch", "safe", 1, protocol="classic").close()
        finally:
            go_on.set()  # the rest comes while the server goes
        own.kill()
        own.start()
        assert send.stdout is not None
        assert send.stderr is not None
        assert send.wait(2 * READY_SECONDS_MAX) == 0, send.stderr.read()
        writer.join()
        assert json.loads(send.stdout.read())["sent"] == 20_000
        send.stdout.close()
        send.stderr.close()
        rows = mine("message", "tail", "--topic", "safe", "--from", "earliest", "--no-follow").lines
        assert sorted(int(row["value"]) for row in rows) == list(range(20_000))
        assert own.stop() == 0
        own.assert_no_traceback()


def test_refused_records_are_told_and_the_others_sent(shell: Shell) -> None:
    shell("topic", "create", "strict", "--config", "max.message.bytes=1000")
    lines = "fine\n" + "x" * 300_000 + "\nfine too\n"
    done = shell("message", "send", "--topic", "strict", "-", stdin=lines)
    assert done.code == ExitCode.PARTIAL
    assert (done.json["sent"], done.json["failed"]) == (2, 1)
    assert "record 2 rejected" in done.err
    nowhere = shell("message", "send", "--topic", "strict", "--partition", "9", "x")
    assert nowhere.code == ExitCode.FAILED
    assert "partition 9 does not exist" in nowhere.err
    assert shell("message", "send", "--topic", "nothing", "x").code == ExitCode.NOT_FOUND
    shell("queue", "create", "order", "--fifo")
    assert shell("message", "send", "--topic", "order.fifo", "x").code == ExitCode.FAILED


def test_a_stream_is_no_queue_and_says_what_to_do(shell: Shell) -> None:
    shell("topic", "create", "stream")
    for verb in (
        ("receive", "stream"),
        ("peek", "stream"),
        ("tail", "stream"),
        ("send", "stream", "x"),
    ):
        done = shell("message", *verb)
        assert done.code == ExitCode.NOT_FOUND
        assert len(done.err.splitlines()) == 1
        assert "penstock topic open-as-queue stream" in done.err
        assert "--topic stream" in done.err
    assert "open-as-queue" not in shell("message", "receive", "nothing").err
    assert shell("message", "send", "stream", "--key", "k", "x").code == ExitCode.USAGE
    assert shell("message", "send", "--topic", "stream", "--delay", "5", "x").code == ExitCode.USAGE
    assert shell("message", "tail", "stream", "--group", "g").code == ExitCode.USAGE
    assert shell("message", "tail").code == ExitCode.USAGE
    assert shell("message", "tail", "--topic", "stream", "--from", "soon").code == ExitCode.USAGE
    assert shell("message", "tail", "--topic", "stream", "--partition", "5").code == 3


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_lag_of_idle_and_never_committed_partitions(
    server: Server, shell: Shell, protocol: str
) -> None:
    topic = group = f"idle-{protocol}"
    shell("topic", "create", topic, "--partitions", "3")
    produce(server, topic, 4, partition=0)
    member = consume(server, group, topic, 2, protocol=protocol)
    produce(server, topic, 5, partition=2)  # after what was committed, and never committed for
    rows = shell("group", "lag", group).lines
    assert [row["lag"] for row in rows] == [2, 0, None]
    assert [row["committed"] for row in rows] == [2, None, None]
    assert 0.0 < rows[0]["lag_s"] < 60.0
    assert (rows[1]["lag_s"], rows[2]["lag_s"]) == (0.0, None)
    shown = shell("group", "show", group).json
    assert shown["lag"] == 2
    assert [row["lag"] for row in shown["offsets"]] == [2, 0, None]
    member.close()


def test_a_wrong_address_says_what_to_do(server: Server, shell: Shell) -> None:
    nobody = shell("--kafka", "127.0.0.1:1", "topic", "list")
    assert nobody.code == ExitCode.UNREACHABLE
    assert "--kafka" in nobody.err
    other = server.url.removeprefix("http://")
    assert shell("--kafka", other, "topic", "list").code == ExitCode.UNREACHABLE
    assert shell("--kafka", "nonsense", "topic", "list").code == ExitCode.USAGE
