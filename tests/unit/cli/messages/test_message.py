"""Message commands against a server that keeps what it was asked."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import Answer, Cli, Endpoint, Json, refusal

from penstock.cli.messages import sending
from penstock.cli.terminal.failure import ExitCode


def accept(request: Json) -> Answer:
    """Accepts each entry but those whose body is ``bad``."""
    entries = request["Entries"]
    good = [entry for entry in entries if entry["MessageBody"] != "bad"]
    bad = [entry for entry in entries if entry["MessageBody"] == "bad"]
    reply: Json = {"Successful": [{"Id": e["Id"], "MessageId": f"id-{e['Id']}"} for e in good]}
    if bad:
        reply["Failed"] = [
            {"Id": e["Id"], "Code": "InvalidMessageContents", "Message": "Bad."} for e in bad
        ]
    return 200, reply


@pytest.fixture
def sent(endpoint: Endpoint) -> list[Json]:
    """Entries that were sent, over all batches, without their ids."""
    entries: list[Json] = []

    def keep(request: Json) -> Answer:
        entries.extend({k: v for k, v in e.items() if k != "Id"} for e in request["Entries"])
        return accept(request)

    endpoint.actions["SendMessageBatch"] = keep
    return entries


def test_one_body_answers_with_its_id(cli: Cli, sent: list[Json]) -> None:
    result = cli("message", "send", "jobs", "hello", "--delay", "1m", "-a", "n:Number=1")
    assert result.json == {"message_id": "id-0"}
    assert sent == [
        {
            "MessageBody": "hello",
            "DelaySeconds": 60,
            "MessageAttributes": {"n": {"DataType": "Number", "StringValue": "1"}},
        }
    ]


def test_lines_of_stdin_go_out_in_batches_of_ten(
    cli: Cli, endpoint: Endpoint, sent: list[Json]
) -> None:
    result = cli("message", "send", "jobs", "-", stdin=b"".join(b"%d\n" % n for n in range(25)))
    assert result.json == {"queue": "jobs", "sent": 25, "failed": 0}
    assert [entry["MessageBody"] for entry in sent] == [str(n) for n in range(25)]
    sizes = [len(request["Entries"]) for request in endpoint.requests("SendMessageBatch")]
    assert sizes == [10, 10, 5]


def test_a_file_is_sent_line_by_line_or_whole(cli: Cli, sent: list[Json], tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("a\nb\n")
    assert cli("message", "send", "jobs", "-f", str(path)).json["sent"] == 2
    assert cli("message", "send", "jobs", "-f", str(path), "--whole").json["sent"] == 1
    assert [entry["MessageBody"] for entry in sent] == ["a", "b", "a\nb\n"]


def test_refused_messages_are_listed_and_the_exit_code_is_7(cli: Cli, sent: list[Json]) -> None:
    result = cli("message", "send", "jobs", "-", "--quiet", stdin=b"ok\nbad\nok\n")
    assert result.code == ExitCode.PARTIAL
    assert result.json == {"queue": "jobs", "sent": 2, "failed": 1}
    assert "message 2 rejected: Bad. (InvalidMessageContents)" in result.err


def test_when_all_are_refused_it_is_a_plain_failure(cli: Cli, sent: list[Json]) -> None:
    assert cli("message", "send", "jobs", "bad").code == ExitCode.FAILED


def test_a_line_that_is_no_message_stops_with_what_was_accepted(cli: Cli, sent: list[Json]) -> None:
    good = b'{"body": "x"}\n' * 13
    result = cli("message", "send", "jobs", "--ndjson", "-", stdin=good + b"oops\n")
    assert result.code == ExitCode.PARTIAL
    assert "line 14 is not a message" in result.err
    assert "had accepted 13 messages" in result.err
    first = cli("message", "send", "jobs", "--ndjson", "-", stdin=b"oops\n")
    assert first.code == ExitCode.USAGE


def test_a_server_that_fails_midway_leaves_a_count(cli: Cli, endpoint: Endpoint) -> None:
    answers: list[Any] = [accept, lambda _: refusal("ServiceUnavailable", 503)]
    endpoint.actions["SendMessageBatch"] = lambda request: answers.pop(0)(request)
    result = cli("message", "send", "jobs", "-", stdin=b"x\n" * 15)
    assert result.code == ExitCode.PARTIAL
    assert "'jobs' had accepted 10 messages" in result.err


def test_an_interrupted_send_says_how_many_were_accepted(
    cli: Cli, sent: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(*args: object, **kwargs: object) -> Any:
        yield [(1, "x")]
        raise KeyboardInterrupt

    monkeypatch.setattr(sending, "line_chunks", lines)
    result = cli("message", "send", "jobs", "-")
    assert result.code == ExitCode.INTERRUPTED
    assert "interrupted: 'jobs' had accepted 1 messages" in result.err


def test_unique_gives_each_message_its_own_deduplication_id(cli: Cli, sent: list[Json]) -> None:
    cli("message", "send", "j.fifo", "-", "--group", "g", "--unique", stdin=b"a\na\na\n")
    assert len({entry["MessageDeduplicationId"] for entry in sent}) == 3
    assert {entry["MessageGroupId"] for entry in sent} == {"g"}


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("a", "-f", "x"),
        ("a", "--whole"),
        ("a", "--unique", "--dedup-id", "d"),
        ("a", "-a", "x"),
    ],
)
def test_a_send_that_makes_no_sense_is_a_usage_error(
    cli: Cli, sent: list[Json], arguments: tuple[str, ...]
) -> None:
    assert cli("message", "send", "jobs", *arguments).code == ExitCode.USAGE
    assert sent == []


def message(number: int) -> Json:
    return {
        "MessageId": f"id-{number}",
        "ReceiptHandle": f"receipt-{number}",
        "Body": f"body {number}",
        "Attributes": {"ApproximateReceiveCount": "1", "SentTimestamp": "1700000000000"},
    }


@pytest.fixture
def waiting(endpoint: Endpoint) -> list[Json]:
    """Twelve messages that a receive takes away, and deletions that succeed."""
    left = [message(number) for number in range(12)]

    def receive(request: Json) -> Answer:
        taken = [left.pop(0) for _ in range(min(request["MaxNumberOfMessages"], len(left)))]
        return 200, {"Messages": taken} if taken else {}

    endpoint.actions["ReceiveMessage"] = receive
    endpoint.actions["DeleteMessageBatch"] = lambda request: (
        200,
        {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]},
    )
    return left


def test_receive_takes_as_many_as_asked_and_deletes_none(
    cli: Cli, endpoint: Endpoint, waiting: list[Json]
) -> None:
    lines = cli("message", "receive", "jobs", "-n", "11").lines
    assert [line["body"] for line in lines] == [f"body {n}" for n in range(11)]
    assert lines[0]["receipt"] == "receipt-0"
    assert len(waiting) == 1
    assert not endpoint.requests("DeleteMessageBatch")


def test_receive_stops_where_the_queue_is_empty_and_deletes_what_it_printed(
    cli: Cli, endpoint: Endpoint, waiting: list[Json]
) -> None:
    result = cli("message", "receive", "jobs", "-n", "100", "--delete", "--visibility", "1m")
    assert len(result.lines) == 12
    deleted = [
        entry["ReceiptHandle"]
        for request in endpoint.requests("DeleteMessageBatch")
        for entry in request["Entries"]
    ]
    assert deleted == [f"receipt-{n}" for n in range(12)]
    assert endpoint.requests("ReceiveMessage")[0]["VisibilityTimeout"] == 60


def test_receive_as_json_is_one_array(cli: Cli, waiting: list[Json]) -> None:
    result = cli("message", "receive", "jobs", "-n", "12", "-o", "json", "--delete")
    assert len(result.json) == 12


def test_a_message_that_cannot_be_deleted_is_exit_7(
    cli: Cli, endpoint: Endpoint, waiting: list[Json]
) -> None:
    endpoint.actions["DeleteMessageBatch"] = {
        "Failed": [{"Id": "0", "Code": "InternalFailure", "Message": "Disk."}]
    }
    result = cli("message", "receive", "jobs", "--delete")
    assert result.code == ExitCode.PARTIAL
    assert len(result.lines) == 1


def test_delete_reads_what_receive_printed(
    cli: Cli, endpoint: Endpoint, waiting: list[Json]
) -> None:
    printed = cli("message", "receive", "jobs", "-n", "2").out.encode()
    result = cli("message", "delete", "jobs", "-", stdin=printed + b"plain-receipt\n")
    assert result.json == {"queue": "jobs", "deleted": 3, "failed": 0}
    (request,) = endpoint.requests("DeleteMessageBatch")
    assert [entry["ReceiptHandle"] for entry in request["Entries"]] == [
        "receipt-0",
        "receipt-1",
        "plain-receipt",
    ]


def test_visibility_counts_from_now(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ChangeMessageVisibility"] = {}
    assert cli("message", "visibility", "jobs", "r", "2m").code == 0
    assert endpoint.requests("ChangeMessageVisibility")[0]["VisibilityTimeout"] == 120


class Log:
    """The messages resource over two partitions. Offsets that are no messages stand for what the
    log keeps of leases and deletions."""

    def __init__(self, endpoint: Endpoint, partitions: dict[int, dict[int, str]], end: int) -> None:
        self.partitions = partitions
        self.end = end
        endpoint.paths["/api/v1/queues/jobs/messages"] = self.answer

    def answer(self, query: Json) -> Answer:
        wanted = [int(query["partition"])] if "partition" in query else list(self.partitions)
        start = str(query["start"])
        starts = dict.fromkeys(wanted, start)
        if ":" in start:
            pairs = (pair.partition(":") for pair in start.split(","))
            starts = {int(partition): offset for partition, _, offset in pairs}
        count = int(query["count"])
        rows: list[Json] = []
        nexts = {}
        for partition, text in starts.items():
            at = self.end if text == "end" else 0 if text == "begin" else int(text)
            while at < self.end and len(rows) < count:
                if at in self.partitions[partition]:
                    rows.append(self.row(partition, at))
                at += 1
            nexts[str(partition)] = at
        return 200, {"messages": rows, "next": nexts}

    def row(self, partition: int, offset: int) -> Json:
        return {
            "partition": partition,
            "offset": offset,
            "message_id": f"{partition}-{offset}",
            "state": "visible",
            "attempts": 0,
            "sent_at_ms": offset,
            "appended_at_ms": offset,
            "size_bytes": 1,
            "body": self.partitions[partition][offset],
            "attributes": {"a": {"data_type": "String", "value": "v"}},
        }


@pytest.fixture
def log(endpoint: Endpoint) -> Log:
    even = {offset: f"even {offset}" for offset in range(0, 400, 4)}
    odd = {offset: f"odd {offset}" for offset in range(1, 400, 4)}
    return Log(endpoint, {0: even, 1: odd}, end=2_000)


def test_peek_shows_state_and_takes_nothing(cli: Cli, endpoint: Endpoint, log: Log) -> None:
    lines = cli("message", "peek", "jobs", "-n", "150").lines
    assert len(lines) == 150
    assert lines[0]["state"] == "visible"
    assert lines[0]["attributes"] == {"a": {"type": "String", "value": "v"}}
    assert not endpoint.requests("ReceiveMessage")
    one = cli("message", "peek", "jobs", "-n", "2", "--partition", "1", "--start", "6").lines
    assert [line["offset"] for line in one] == [9, 13]
    assert "even 0" in cli("message", "peek", "jobs", "-o", "table").out


def test_peek_of_bytes_that_are_no_text_is_base64(cli: Cli, log: Log, endpoint: Endpoint) -> None:
    row = {**log.row(0, 0), "body_base64": base64.b64encode(b"\xff").decode()}
    del row["body"]
    answers = [{"messages": [], "next": {"0": 1}}, {"messages": [row], "next": {"0": 1}}]
    endpoint.paths["/api/v1/queues/jobs/messages"] = lambda _: (200, answers.pop(0))
    assert "base64:/w==" in cli("message", "peek", "jobs", "-o", "table").out


def test_tail_to_the_end_shows_everything_once(cli: Cli, log: Log) -> None:
    lines = cli("message", "tail", "jobs", "--from", "begin", "--exit-at-end").lines
    assert len(lines) == 200
    assert len({line["message_id"] for line in lines}) == 200


def test_tail_from_an_offset_begins_there_in_each_partition(cli: Cli, log: Log) -> None:
    lines = cli("message", "tail", "jobs", "--from", "390", "--exit-at-end").lines
    assert sorted(line["offset"] for line in lines) == [392, 393, 396, 397]


def test_the_last_ten_are_ten_however_much_else_is_in_the_log(cli: Cli, log: Log) -> None:
    lines = cli("message", "tail", "jobs", "--from", "-10", "--exit-at-end").lines
    assert [line["offset"] for line in lines] == [380, 381, 384, 385, 388, 389, 392, 393, 396, 397]


def test_the_last_of_a_short_log_are_all_of_it(cli: Cli, endpoint: Endpoint) -> None:
    Log(endpoint, {0: {3: "only"}}, end=10)
    lines = cli("message", "tail", "jobs", "--from", "-10", "--exit-at-end").lines
    assert [line["body"] for line in lines] == ["only"]


def test_grep_keeps_bodies_that_match(cli: Cli, log: Log) -> None:
    result = cli("message", "tail", "jobs", "--from", "begin", "--exit-at-end", "--grep", "odd 1.$")
    assert [line["body"] for line in result.lines] == ["odd 13", "odd 17"]


@pytest.mark.parametrize("arguments", [("--from", "soon"), ("--grep", "("), ("--from", "--5")])
def test_a_tail_that_makes_no_sense_is_a_usage_error(
    cli: Cli, log: Log, arguments: tuple[str, ...]
) -> None:
    assert cli("message", "tail", "jobs", *arguments).code == ExitCode.USAGE


def test_tail_follows_from_where_the_answer_before_ended(cli: Cli, endpoint: Endpoint) -> None:
    log = Log(endpoint, {0: {0: "old"}}, end=1)

    def grow(query: Json) -> Answer:
        if query.get("wait_ms"):
            if log.end == 3:
                return 404, {"error": {"code": "queue_not_found", "message": "Gone."}}
            log.partitions[0][log.end] = f"new {log.end}"
            log.end += 1
            if query["start"] == "end":
                query = {**query, "start": f"0:{log.end - 1}"}
        return log.answer(query)

    endpoint.paths["/api/v1/queues/jobs/messages"] = grow
    result = cli("message", "tail", "jobs")
    assert [line["body"] for line in result.lines] == ["new 1", "new 2"]
    assert result.code == ExitCode.NOT_FOUND
    assert [q["start"] for q in endpoint.requests("/api/v1/queues/jobs/messages")] == [
        "end",
        "0:2",
        "0:3",
    ]


def test_what_peek_prints_can_be_sent(cli: Cli, log: Log, sent: list[Json]) -> None:
    printed = cli("message", "peek", "jobs", "-n", "3").out.encode()
    assert cli("message", "send", "jobs", "--ndjson", "-", stdin=printed).json["sent"] == 3
    assert json.loads(printed.splitlines()[0])["body"] == sent[0]["MessageBody"]
