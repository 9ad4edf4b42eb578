"""Names that the server knows: completed after Tab, and suggested when one is misspelt."""

from collections.abc import Iterator

import pytest
from click.shell_completion import ShellComplete
from tests.unit.cli.conftest import Cli, Endpoint, refusal
from tests.unit.cli.kafka_endpoint import KafkaEndpoint

from penstock.cli.main import root
from penstock.cli.terminal.failure import ExitCode


@pytest.fixture
def kafka(endpoint: Endpoint) -> Iterator[KafkaEndpoint]:
    server = KafkaEndpoint()
    endpoint.paths["/_penstock/info"] = {
        "admin": endpoint.url,
        "kafka": f"PLAINTEXT://{server.address}",
    }
    yield server
    server.close()


@pytest.fixture
def names(cli: Cli, endpoint: Endpoint, kafka: KafkaEndpoint) -> Endpoint:
    urls = [f"{endpoint.url}/000000000000/{name}" for name in ("jobs", "jobs-dead", "mail")]
    endpoint.actions["ListQueues"] = lambda asked: (
        200,
        {
            "QueueUrls": [
                u for u in urls if u.split("/")[-1].startswith(asked.get("QueueNamePrefix", ""))
            ]
        },
    )
    endpoint.actions["GetQueueUrl"] = refusal("QueueDoesNotExist")
    endpoint.paths["/api/v1/users"] = {"users": [{"name": "ann"}, {"name": "bob"}]}
    endpoint.paths["/api/v1/tenants"] = {"tenants": [{"name": "acme"}]}
    kafka.topics.update({"clicks": 1, "orders": 1})
    kafka.groups["billing"] = "consumer"
    return endpoint


def completed(*words: str) -> list[str]:
    *args, incomplete = words
    completion = ShellComplete(root, {}, "penstock", "_PENSTOCK_COMPLETE")
    return [item.value for item in completion.get_completions(list(args), incomplete)]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("queue", "show", "jo"), ["jobs", "jobs-dead"]),
        (("queue", "explain", "m"), ["mail"]),
        (("message", "receive", ""), ["jobs", "jobs-dead", "mail"]),
        (("message", "send", "ma"), ["mail"]),
        (("message", "tail", "--topic", "cl"), ["clicks"]),
        (("dlq", "redrive", "jobs-"), ["jobs-dead"]),
        (("topic", "show", "o"), ["orders"]),
        (("group", "show", "b"), ["billing"]),
        (("user", "show", "a"), ["ann"]),
        (("policy", "show", "b"), ["bob"]),
        (("tenant", "show", ""), ["acme"]),
        (("key", "list", "--tenant", "a"), ["acme"]),
        (("queue", "create", "jo"), []),
        (("message", "send", "jobs", "x", "--group", ""), []),
        (("queue", "show", "--context", ""), ["default"]),
    ],
)
def test_tab_completes_what_the_server_knows(
    names: Endpoint, words: tuple[str, ...], found: list[str]
) -> None:
    assert completed(*words) == found


def test_tab_is_silent_where_no_server_answers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_ENDPOINT", "http://127.0.0.1:1")
    assert completed("queue", "show", "jo") == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("queue", "show", "job"), "jobs"),
        (("message", "receive", "jbos"), "jobs"),
        (("message", "send", "mial", "body"), "mail"),
        (("topic", "show", "click"), "clicks"),
        (("group", "show", "biling"), "billing"),
        (("queue", "stats", "job"), "jobs"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    cli: Cli, names: Endpoint, words: tuple[str, ...], near: str
) -> None:
    names.paths["/api/v1/queues"] = {"queues": [], "next": None}
    result = cli(*words)
    assert result.code == ExitCode.NOT_FOUND
    assert f"did you mean '{near}'?" in result.err


def test_a_name_like_no_other_gets_no_suggestion(cli: Cli, names: Endpoint) -> None:
    result = cli("queue", "show", "zzzzzz")
    assert result.code == ExitCode.NOT_FOUND
    assert "did you mean" not in result.err
    assert "queue 'zzzzzz' does not exist" in result.err


def test_a_refused_key_is_not_called_a_missing_queue(cli: Cli, names: Endpoint) -> None:
    names.actions["GetQueueUrl"] = refusal("SignatureDoesNotMatch", 403)
    result = cli("queue", "show", "jobs")
    assert result.code == ExitCode.DENIED
    assert "access key penstock was rejected" in result.err
    assert "no queue" not in result.err
