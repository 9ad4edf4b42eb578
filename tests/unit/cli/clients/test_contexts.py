"""Servers under a name: what the file holds, who may read it, and what wins over it."""

import json
import os
import stat
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Cli, Endpoint

from penstock.cli.clients import contexts
from penstock.cli.clients.contexts import Settings
from penstock.cli.clients.credentials import ca_file, found_credentials
from penstock.cli.terminal.failure import ExitCode, Failure
from penstock.wire.aws.signer import Credentials

VARIABLES = (
    "PENSTOCK_ENDPOINT",
    "PENSTOCK_CONTEXT",
    "PENSTOCK_CA_FILE",
    "AWS_CA_BUNDLE",
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "PENSTOCK_KEY_ID",
    "PENSTOCK_SECRET",
    "PENSTOCK_TOKEN",
    "PENSTOCK_ADMIN_TOKEN",
)
SECRET = "the-secret-of-this-context"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


def save(*, current: str = "prod", **fields: str) -> None:
    contexts.Contexts(current, {"prod": fields, "other": {}}).write()


FULL = {
    "endpoint": "https://queues.example.org",
    "kafka": "SASL_SSL://queues.example.org:9093",
    "region": "eu-central-1",
    "ca_file": "/etc/ca.pem",
    "key_id": "PSAKPROD",
    "secret": SECRET,
}


def applied(*explicit: str, **given: str) -> Settings:
    settings = Settings(**given)  # type: ignore[arg-type]
    settings.explicit.update(given.keys() - {"context"}, explicit)
    contexts.apply(settings)
    return settings


def test_the_context_in_use_fills_what_nothing_else_says() -> None:
    save(**FULL)
    settings = applied()
    assert settings.endpoint == FULL["endpoint"]
    assert settings.kafka == FULL["kafka"]
    assert settings.region == "eu-central-1"
    assert ca_file() == "/etc/ca.pem"
    assert found_credentials() == Credentials("PSAKPROD", SECRET)


def test_flags_and_the_environment_win_over_a_context(monkeypatch: pytest.MonkeyPatch) -> None:
    save(**FULL)
    settings = applied(context="prod", endpoint="http://127.0.0.1:1", region="us-east-1")
    assert (settings.endpoint, settings.region) == ("http://127.0.0.1:1", "us-east-1")
    assert settings.kafka == FULL["kafka"]
    monkeypatch.setenv("AWS_CA_BUNDLE", "/my/ca.pem")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "MINE")
    applied()
    assert ca_file() == "/my/ca.pem"
    found = found_credentials()
    assert found is not None
    assert found.key_id == "MINE"


@pytest.mark.parametrize("variable", ["AWS_PROFILE", "PENSTOCK_KEY_ID", "PENSTOCK_TOKEN"])
def test_a_key_is_of_the_environment_or_of_the_context_and_never_mixed(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    save(**FULL)
    monkeypatch.setenv(variable, "mine")
    applied()
    assert contexts.environment().get("PENSTOCK_SECRET") is None
    assert contexts.environment().get("PENSTOCK_KEY_ID") in (None, "mine")


def test_the_key_of_a_context_is_not_sent_to_another_server() -> None:
    """An address that is given by flag or environment belongs to somebody else."""
    save(**FULL)
    for given in ({"endpoint": "http://elsewhere"}, {"admin": "http://x"}, {"kafka": "x:1"}):
        settings = applied(**given)
        assert found_credentials() is None
        assert ca_file() is None
        assert settings.region == Settings().region


def test_a_context_that_was_applied_before_leaves_nothing() -> None:
    save(**FULL)
    applied()
    contexts.Contexts().write()
    assert applied().endpoint == Settings().endpoint
    assert found_credentials() is None


def test_an_unknown_context_is_named_with_the_nearest_one() -> None:
    save(**FULL)
    with pytest.raises(Failure) as caught:
        applied(context="pord")
    assert caught.value.exit_code is ExitCode.NOT_FOUND
    assert "did you mean 'prod'?" in caught.value.fix


def test_the_file_is_for_its_owner_only() -> None:
    save(**FULL)
    path = contexts.file_of_contexts()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(Failure, match="is readable by other users"):
        applied()
    path.chmod(0o600)
    before = os.umask(0)
    try:
        save(**FULL)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"current": "gone", "contexts": {}}',
        '{"current": "default", "contexts": 1}',
    ],
)
def test_a_file_that_is_broken_is_named(text: str) -> None:
    save()
    contexts.file_of_contexts().write_text(text)
    with pytest.raises(Failure, match=r"contexts\.json cannot be read"):
        applied()


def test_a_context_lives_from_add_to_remove(cli: Cli, endpoint: Endpoint) -> None:
    endpoint.actions["ListQueues"] = {"QueueUrls": [f"{endpoint.url}/0/jobs"]}
    added = cli(
        "context", "add", "here", "--key-id", "PSAK1", "--use", stdin=f"{SECRET}\n".encode()
    )
    assert added.code == 0, added.err
    assert SECRET not in added.out + added.err
    listed = cli("context", "list", "-o", "json")
    assert [(row["name"], row["current"]) for row in listed.json] == [
        ("default", False),
        ("here", True),
    ]
    assert listed.json[1]["endpoint"] == endpoint.url
    assert SECRET not in listed.out
    assert cli("context", "add", "here").code == ExitCode.CONFLICT
    assert cli("context", "add", "no/name").code == ExitCode.USAGE
    assert cli("context", "use", "hree").code == ExitCode.NOT_FOUND
    assert cli("queue", "list", "-o", "name", "--context", "here").out == "jobs\n"
    assert cli("context", "remove", "here").code == 0
    assert json.loads(contexts.file_of_contexts().read_text()) == {
        "current": "default",
        "contexts": {},
    }


def test_a_broken_choice_can_be_mended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CONTEXT", "gone")
    assert cli("queue", "list").code == ExitCode.NOT_FOUND
    assert cli("context", "list").code == 0
