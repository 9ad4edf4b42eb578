"""Dead letters: the list, the move, and what happens when it does not end well."""

from typing import Any

import pytest
from tests.unit.cli.conftest import Answer, Cli, Endpoint, Json

from penstock.cli.queues import dlq
from penstock.cli.terminal.failure import ExitCode


@pytest.fixture(autouse=True)
def dead_letter_queue(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dlq, "_POLL_S", 0.001)
    endpoint.actions["GetQueueAttributes"] = {
        "Attributes": {
            "QueueArn": "arn:aws:sqs:r:0:dead",
            "ApproximateNumberOfMessages": "5",
            "ApproximateNumberOfMessagesNotVisible": "1",
        }
    }
    endpoint.actions["StartMessageMoveTask"] = {"TaskHandle": "handle"}


def task(status: str, moved: int, **more: Any) -> Json:
    result = {
        "Status": status,
        "SourceArn": "arn:aws:sqs:r:0:dead",
        "ApproximateNumberOfMessagesMoved": moved,
        "ApproximateNumberOfMessagesToMove": 5,
        **more,
    }
    return {"Results": [result]}


def in_turn(*answers: Json) -> Any:
    left = list(answers)

    def answer(_: Json) -> Answer:
        return 200, left.pop(0) if len(left) > 1 else left[0]

    return answer


def test_a_redrive_waits_until_the_move_has_ended(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListMessageMoveTasks"] = in_turn(
        task("RUNNING", 0, TaskHandle="handle"),
        task("RUNNING", 3, TaskHandle="handle"),
        task("COMPLETED", 5),
    )
    result = cli("dlq", "redrive", "dead", "--to", "other", "--rate", "50")
    assert result.code == 0
    assert result.json["status"] == "COMPLETED"
    assert result.json["moved"] == 5
    assert endpoint.requests("StartMessageMoveTask") == [
        {
            "SourceArn": "arn:aws:sqs:r:0:dead",
            "DestinationArn": "arn:aws:sqs:r:0:dead",
            "MaxNumberOfMessagesPerSecond": 50,
        }
    ]
    assert len(endpoint.requests("ListMessageMoveTasks")) == 3


@pytest.mark.parametrize(("moved", "code"), [(0, ExitCode.FAILED), (2, ExitCode.PARTIAL)])
def test_a_move_that_fails_says_why(
    cli: Cli, endpoint: Endpoint, moved: int, code: ExitCode
) -> None:
    endpoint.actions["ListMessageMoveTasks"] = task("FAILED", moved, FailureReason="Gone.")
    result = cli("dlq", "redrive", "dead")
    assert result.code == code
    assert "Gone." in result.err


def test_an_interrupt_leaves_the_move_running_and_says_how_to_watch_it(
    cli: Cli, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.actions["ListMessageMoveTasks"] = task("RUNNING", 1, TaskHandle="handle")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("penstock.cli.queues.dlq.time.sleep", interrupt)
    result = cli("dlq", "redrive", "dead")
    assert result.code == ExitCode.INTERRUPTED
    assert "penstock dlq status dead" in result.err
    assert not endpoint.requests("CancelMessageMoveTask")


def test_a_dry_run_moves_nothing(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListDeadLetterSourceQueues"] = {"queueUrls": ["http://h/0/jobs"]}
    plan = cli("dlq", "redrive", "dead", "--dry-run").json
    assert plan == {"queue": "dead", "would_move": 5, "in_flight": 1, "to": ["jobs"]}
    assert not endpoint.requests("StartMessageMoveTask")


def test_a_queue_nobody_dead_letters_to_cannot_be_planned(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListDeadLetterSourceQueues"] = {}
    assert cli("dlq", "redrive", "dead", "--dry-run").code == ExitCode.FAILED


def test_cancel_stops_the_running_move(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListMessageMoveTasks"] = task("RUNNING", 1, TaskHandle="handle")
    endpoint.actions["CancelMessageMoveTask"] = {"ApproximateNumberOfMessagesMoved": 2}
    assert cli("dlq", "cancel", "dead").json == {"queue": "dead", "moved": 2}
    assert endpoint.requests("CancelMessageMoveTask") == [{"TaskHandle": "handle"}]


def test_cancelling_nothing_is_exit_3(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListMessageMoveTasks"] = task("COMPLETED", 5)
    assert cli("dlq", "cancel", "dead").code == ExitCode.NOT_FOUND


def test_status_shows_past_moves_and_can_wait(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListMessageMoveTasks"] = in_turn(
        task("RUNNING", 1, TaskHandle="h"), task("RUNNING", 1, TaskHandle="h"), task("COMPLETED", 5)
    )
    (line,) = cli("dlq", "status", "dead", "--wait").lines
    assert line["status"] == "COMPLETED"


def test_the_list_has_targets_with_their_sources(cli: Cli, endpoint: Endpoint) -> None:
    def row(name: str, target: str | None, sources: list[str]) -> Json:
        return {
            "name": name,
            "kind": "standard",
            "partition_count": 1,
            "dead_letter_target": target,
            "sources": sources,
            "stats": {"visible": 3, "in_flight": 0, "delayed": 0, "oldest_age_ms": 1_000},
        }

    arn = "arn:aws:sqs:r:0:"
    endpoint.paths["/api/v1/queues"] = {
        "queues": [
            row("dead", None, [arn + "jobs", arn + "mail"]),
            row("jobs", arn + "dead", []),
            row("mail", arn + "dead", []),
        ],
        "next": None,
    }
    (line,) = cli("dlq", "list").lines
    assert line["name"] == "dead"
    assert line["sources"] == ["jobs", "mail"]
    assert line["visible"] == 3
