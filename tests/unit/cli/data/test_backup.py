"""``penstock backup`` where it meets people and servers: what is refused, in which words, and what
is asked again. Whole backups are made in ``tests/e2e/test_backup.py``."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.cli.conftest import Answer, Cli, Endpoint, Json

from penstock.cli.clients.contexts import Settings
from penstock.cli.clients.http import Admin
from penstock.cli.data import backup_source
from penstock.cli.data.backup_source import AdminSource
from penstock.cli.terminal.failure import ExitCode, Failure, Refused
from penstock.model.errors import TopicNotFound

BUSY: Answer = (503, {"error": {"code": "overloaded", "message": "A leader has just changed."}})


@pytest.fixture
def source(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminSource]:
    monkeypatch.setattr(backup_source, "RETRY_PAUSE_SECONDS", 0.0)
    admin = Admin(endpoint.url, Settings(timeout_s=5))
    made = AdminSource(admin)
    made._path = "backups/b1"
    yield made
    admin.close()


def test_pages_are_read_to_the_end_and_what_is_late_is_asked_again(
    source: AdminSource, endpoint: Endpoint
) -> None:
    refusals = iter([True, False, False, True, False])

    def answer(query: Json) -> Answer:
        if next(refusals):
            return BUSY
        after = int(query["after"])
        found = [{"key": f"/k{after}", "value": "djE="}] if after < 2 else []
        return 200, {"definitions": found, "next": after + 1 if found else None}

    endpoint.paths["/api/v1/backups/b1/definitions"] = answer
    found = [(one.key, one.value) for one in source.definitions()]
    assert found == [("/k0", b"v1"), ("/k1", b"v1")]


def test_a_server_that_stays_away_is_given_up(
    source: AdminSource, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count(0.0, 20.0)  # of the sixty seconds that are waited for
    clock = SimpleNamespace(monotonic=lambda: next(looks), sleep=lambda _: None)
    monkeypatch.setattr(backup_source, "time", clock)
    endpoint.paths["/api/v1/backups/b1/records"] = BUSY
    with pytest.raises(Refused) as refused:
        source.read("a" * 32, 0, 0)
    assert refused.value.exit_code is ExitCode.UNREACHABLE
    assert len(endpoint.asked) == 3


def test_a_refusal_is_not_asked_again_and_a_deleted_topic_is_told_apart(
    source: AdminSource, endpoint: Endpoint
) -> None:
    error = {"code": "damaged", "message": "The CRC does not match."}
    endpoint.paths["/api/v1/backups/b1/records"] = (500, {"error": error})
    with pytest.raises(Refused, match="cannot copy"):
        source.read("a" * 32, 0, 0)
    gone = {"code": "queue_not_found", "message": "a"}
    endpoint.paths["/api/v1/backups/b1/records"] = (404, {"error": gone})
    with pytest.raises(TopicNotFound):
        source.read("a" * 32, 0, 0)
    assert len(endpoint.asked) == 2


def test_an_answer_that_makes_no_sense_is_a_failure(
    source: AdminSource, endpoint: Endpoint
) -> None:
    endpoint.paths["/api/v1/backups/b1/records"] = (200, b"bytes of which nobody says where")
    with pytest.raises(Failure, match="without their offsets"):
        source.read("a" * 32, 0, 0)
    endpoint.paths["/api/v1/backups/b1/partitions"] = {"partitions": [{"a": 1}], "next": None}
    with pytest.raises(Failure, match="the server sent an invalid reply"):
        list(source.partitions())


def test_what_is_no_backup_is_refused_in_words(cli: Cli, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert cli("backup", "list", str(empty)).code == ExitCode.OK
    assert cli("backup", "verify", str(empty)).code == ExitCode.UNHEALTHY
    missing = cli("backup", "list", str(tmp_path / "none"))
    assert missing.code == ExitCode.FAILED
    assert "the folder does not exist" in missing.err
    data = tmp_path / "data"
    refused = cli("backup", "restore", str(empty), "--data", str(data))
    assert refused.code == ExitCode.FAILED
    assert "manifest" in refused.err
    assert not data.exists()


def test_what_was_never_finished_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / ".partial-20261115T030000Z-67e186").mkdir()
    listed = cli("backup", "list", str(tmp_path))
    assert listed.code == ExitCode.OK
    assert "is incomplete" in listed.err


def test_a_rate_has_a_unit_that_is_known(cli: Cli, tmp_path: Path) -> None:
    assert cli("backup", "create", "--to", str(tmp_path), "--rate", "5 acres").code == (
        ExitCode.USAGE
    )
