"""``penstock definitions``: queues and topics of one server are made on another."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_kafka_cli import Shell
from tests.harness.server import Server

from penstock.cli.terminal.failure import ExitCode

OTHER = "111122223333"
MADE = [
    "queue create jobs-dead",
    "queue create jobs --dead-letter jobs-dead --max-receives 3 --visibility 5m --tag team=red",
    "queue create orders.fifo --content-dedup --partitions 2 --dedup-scope group",
    "queue create jobs:audit",
    "topic create clicks --partitions 4 --config retention.ms=86400000",
]


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Shell]]:
    folder = tmp_path_factory.mktemp("data")
    other = {"PENSTOCK_NODE__ACCOUNT": OTHER}
    with (
        Server(folder / "one", fsync="never", kafka_port=0) as one,
        Server(folder / "two", fsync="never", kafka_port=0, env=other) as two,
    ):
        yield [Shell(one), Shell(two)]


def results(shell: Shell, file: Path, *more: str) -> dict[str, str]:
    done = shell("definitions", "import", str(file), *more)
    assert done.code == ExitCode.OK, done.err
    return {row["name"]: row["result"] for row in done.lines}


def test_definitions_are_exported_and_imported(shells: list[Shell], tmp_path: Path) -> None:
    one, two = shells
    for line in MADE:
        done = one(*line.split())
        assert done.code == ExitCode.OK, done.err
    file = tmp_path / "definitions.json"
    exported = one("definitions", "export", str(file))
    assert exported.code == ExitCode.OK, exported.err
    assert "000000000000" not in file.read_text()

    names = {"jobs-dead", "jobs", "orders.fifo", "jobs:audit", "clicks"}
    assert results(two, file, "--dry-run") == dict.fromkeys(names, "would be created")
    assert two("queue", "list", "-o", "name").out == ""
    assert results(two, file) == dict.fromkeys(names, "created")
    assert results(two, file) == dict.fromkeys(names, "unchanged")

    assert two("definitions", "export").json == json.loads(file.read_text())
    jobs = two("queue", "show", "jobs", "-o", "json").json
    assert (jobs["visibility_s"], jobs["tags"]) == (300, {"team": "red"})
    assert (jobs["dead_letter"], jobs["max_receives"]) == ("jobs-dead", 3)
    clicks = two("topic", "show", "clicks", "-o", "json").json
    assert clicks["configs"] == {"retention.ms": "86400000"}
    assert len(clicks["partitions"]) == 4

    # What differs is set; what the file does not name stays.
    assert two("queue", "set", "jobs", "--visibility", "1m").code == ExitCode.OK
    assert two("topic", "set", "clicks", "retention.ms=1000000").code == ExitCode.OK
    assert two("queue", "create", "more").code == ExitCode.OK
    changed = results(two, file)
    assert {name for name, result in changed.items() if result == "changed"} == {"jobs", "clicks"}
    assert two("queue", "show", "jobs", "-o", "json").json["visibility_s"] == 300
    assert two("queue", "show", "more").code == ExitCode.OK


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ('{"version": 9, "queues": [], "topics": []}', "version 9 is not supported"),
        ('{"version": 1, "queues": []}', "field 'topics' is missing"),
        ('{"version": 1, "queues": [{"name": 7}], "topics": []}', "'name' of 7 is not of type str"),
    ],
)
def test_a_file_that_is_no_definitions_is_refused(
    shells: list[Shell], tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "wrong.json"
    file.write_text(text)
    done = shells[0]("definitions", "import", str(file))
    assert done.code == ExitCode.USAGE
    assert "error: wrong.json is not a definitions file" in done.err
    assert why in done.err
    assert "do: create such a file with `penstock definitions export`" in done.err
