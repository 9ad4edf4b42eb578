"""Commands about tenants, users, keys, policies and quotas against a real admin API."""

import configparser
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.cli.conftest import Cli
from tests.unit.cli.office import ACCOUNT, ACME, Office

from penstock.cli.access import password
from penstock.cli.clients.credentials import credentials_from_environment
from penstock.cli.terminal.failure import ExitCode, Failure

scramp: Any = pytest.importorskip("scramp")

SEND = {
    "Version": "2012-10-17",
    "Statement": [{"Sid": "Send", "Effect": "Allow", "Action": "sqs:SendMessage", "Resource": "*"}],
}


@pytest.fixture(scope="module")
def building(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Office]:
    office = Office(tmp_path_factory.mktemp("office"))
    yield office
    office.close()


@pytest.fixture
def office(building: Office, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Office:
    """Commands are root's, unless a test says otherwise."""
    monkeypatch.setenv("PENSTOCK_ADMIN", building.url)
    for name in ("PENSTOCK_TOKEN", "PENSTOCK_ADMIN_TOKEN", "PENSTOCK_ACCOUNT"):
        monkeypatch.delenv(name, raising=False)
    work_as(building, "root", monkeypatch)
    return building


def work_as(office: Office, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key_id, secret = office.secrets[who]
    monkeypatch.setenv("PENSTOCK_KEY_ID", key_id)
    monkeypatch.setenv("PENSTOCK_SECRET", secret)


# ── Who asks ─────────────────────────────────────────────────────────────────────────────────


def test_a_key_from_the_environment_logs_in_and_names_the_tenant(
    cli: Cli, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {line["name"] for line in cli("tenant", "list").lines} >= {"default", "acme"}
    assert [line["name"] for line in cli("user", "list").lines] == ["root"]
    work_as(office, "ann", monkeypatch)
    assert [line["name"] for line in cli("tenant", "list").lines] == ["acme"]
    assert "ann" in [line["name"] for line in cli("user", "list").lines]
    assert cli("queue", "list").code == 0  # asks for the account of the log-in


def test_nobody_and_the_wrong_secret_are_denied_in_words(
    cli: Cli, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SECRET", "wrong" * 8)
    result = cli("user", "list")
    assert result.code == ExitCode.DENIED
    assert "cannot log in" in result.err
    assert "wrong" * 8 not in result.err
    monkeypatch.delenv("PENSTOCK_KEY_ID")
    result = cli("user", "list")
    assert result.code == ExitCode.DENIED
    assert "PENSTOCK_KEY_ID" in result.err


def test_a_token_from_the_environment_is_used_as_it_is(
    cli: Cli, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.frontend.admin.login import Credentials, Gate

    gate = Gate(token="", identities=office.identities, account=ACCOUNT, is_required=True)
    session = gate.log_in(Credentials(*office.secrets["ann"]), now_ms=4_000_000_000_000)
    monkeypatch.setenv("PENSTOCK_TOKEN", session.token)
    assert [line["name"] for line in cli("tenant", "list").lines] == ["acme"]
    monkeypatch.setenv("PENSTOCK_TOKEN", "nonsense")
    assert cli("tenant", "list").code == ExitCode.DENIED


def test_what_is_not_allowed_is_exit_4_and_what_is_not_there_exit_3(
    cli: Cli, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("user", "show", "nobody").code == ExitCode.NOT_FOUND
    assert cli("tenant", "show", "nobody").code == ExitCode.NOT_FOUND
    assert cli("key", "disable", "PSAKNOBODY").code == ExitCode.NOT_FOUND
    assert cli("policy", "show", "root", "nothing").code == ExitCode.NOT_FOUND
    work_as(office, "ann", monkeypatch)
    for command in (
        ("tenant", "create", "mine"),
        ("user", "list", "--tenant", "default"),
        ("user", "create", "boss", "--operator"),
        ("quota", "set", "acme", "--queues-max", "5"),
    ):
        result = cli(*command)
        assert result.code == ExitCode.DENIED, command
        assert "access_denied" in result.err


def test_the_data_calls_sign_with_aws_names_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert credentials_from_environment().key_id == "penstock"
    monkeypatch.setenv("PENSTOCK_KEY_ID", "ours")
    monkeypatch.setenv("PENSTOCK_SECRET", "secret")
    assert credentials_from_environment()[:2] == ("ours", "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "aws")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret")
    assert credentials_from_environment()[:2] == ("aws", "aws-secret")


# ── Tenants ──────────────────────────────────────────────────────────────────────────────────


def test_the_life_of_a_tenant(cli: Cli, office: Office) -> None:
    made = cli("tenant", "create", "beta", "333333333333").json
    assert (made["account"], made["name"]) == ("333333333333", "beta")
    assert cli("tenant", "create", "beta").code == ExitCode.CONFLICT
    assert cli("tenant", "create", "x", "33").code == ExitCode.FAILED
    assert cli("tenant", "suspend", "beta").code == ExitCode.USAGE
    assert cli("tenant", "show", "beta").json["is_suspended"] is False
    assert cli("tenant", "suspend", "beta", "--yes").code == 0
    assert cli("tenant", "show", "333333333333").json["is_suspended"] is True
    assert cli("tenant", "resume", "beta").code == 0
    assert cli("tenant", "show", "beta").json["is_suspended"] is False
    assert cli("user", "create", "u", "--tenant", "beta").code == 0
    result = cli("tenant", "delete", "beta", "--yes")
    assert result.code == ExitCode.CONFLICT
    assert "still has 1 users" in result.err
    assert cli("user", "delete", "u", "--tenant", "beta", "--yes").code == 0
    assert cli("tenant", "delete", "beta", "--yes").code == 0
    assert cli("tenant", "delete", "beta", "--yes").code == ExitCode.NOT_FOUND
    table = cli("tenant", "list", "-o", "table").out
    assert table.startswith("ACCOUNT")
    assert "1970-01-01" in table


# ── Users and keys ───────────────────────────────────────────────────────────────────────────


def test_the_life_of_a_user(cli: Cli, office: Office, tmp_path: Path) -> None:
    file = tmp_path / "send.json"
    file.write_text(json.dumps(SEND))
    made = cli(
        "user", "create", "bob", "--tenant", "acme", "--administrator", "--policy", str(file)
    ).json
    assert made["arn"] == f"arn:aws:iam::{ACME}:user/bob"
    assert made["policies"] == ["admin", "send"]
    assert made["is_operator"] is False
    shown = cli("--account", ACME, "user", "show", "bob").json
    assert json.loads(shown["policies"]["send"]) == SEND
    assert cli("key", "create", "bob", "--tenant", "acme", "-q").code == 0
    table = cli("user", "show", "bob", "--tenant", "acme", "-o", "table").out
    assert "active" in table
    assert "admin, send" in table
    assert "bob" in cli("user", "list", "--tenant", "acme", "-o", "name").out.split()
    assert cli("user", "delete", "bob", "--tenant", "acme").code == ExitCode.USAGE
    assert cli("user", "delete", "bob", "--tenant", "acme", "--yes").code == 0
    assert cli("user", "show", "bob", "--tenant", "acme").code == ExitCode.NOT_FOUND


def test_a_policy_file_that_is_none_is_a_usage_error_or_the_servers_word(
    cli: Cli, office: Office, tmp_path: Path
) -> None:
    assert cli("user", "create", "x", "--policy", str(tmp_path / "no")).code == ExitCode.USAGE
    (tmp_path / "bad.json").write_bytes(b"\xff")
    assert cli("user", "create", "x", "--policy", str(tmp_path / "bad.json")).code == ExitCode.USAGE
    (tmp_path / "bad.json").write_text("{}")
    result = cli("user", "create", "x", "--policy", str(tmp_path / "bad.json"))
    assert result.code == ExitCode.FAILED
    assert "Statement" in result.err
    twice = ("--policy", str(tmp_path / "a" / "p"), "--policy", str(tmp_path / "p.json"))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "p").write_text("{}")
    assert cli("user", "create", "x", *twice).code == ExitCode.USAGE


def test_a_new_key_is_an_aws_profile_and_works_once_pasted(
    cli: Cli, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("user", "create", "kim", "--tenant", "acme", "--administrator")
    result = cli("key", "create", "kim", "--tenant", "acme")
    parsed = configparser.ConfigParser()
    parsed.read_string(result.out)
    profile = parsed["kim"]
    assert set(profile) == {"aws_access_key_id", "aws_secret_access_key"}
    assert "not shown again" in result.err
    assert profile["aws_secret_access_key"] not in result.err
    assert cli("key", "create", "kim", "--tenant", "acme", "--profile", "dev").out.startswith(
        "[dev]\n"
    )
    as_json = cli("key", "create", "kim", "--tenant", "acme", "-o", "json").json
    assert set(as_json) >= {"key_id", "secret", "user", "account", "status"}
    monkeypatch.setenv("PENSTOCK_KEY_ID", profile["aws_access_key_id"])
    monkeypatch.setenv("PENSTOCK_SECRET", profile["aws_secret_access_key"])
    listed = cli("key", "list", "kim")
    assert listed.lines[0]["key_id"] == profile["aws_access_key_id"]
    assert "secret" not in listed.out
    rotated = cli("key", "rotate", profile["aws_access_key_id"], "-o", "json").json
    assert rotated["user"] == "kim"
    assert cli("key", "create", "kim").code == ExitCode.CONFLICT  # four are enough
    assert cli("key", "disable", rotated["key_id"]).code == 0
    states = {line["key_id"]: line["status"] for line in cli("key", "list", "kim").lines}
    assert states[rotated["key_id"]] == "disabled"
    assert cli("key", "enable", rotated["key_id"]).code == 0
    assert cli("key", "delete", rotated["key_id"]).code == ExitCode.USAGE
    assert cli("key", "delete", rotated["key_id"], "--yes").code == 0
    assert cli("key", "disable", profile["aws_access_key_id"]).code == 0
    assert cli("key", "list", "kim").code == ExitCode.DENIED  # that was the one in use


# ── Policies ─────────────────────────────────────────────────────────────────────────────────


def test_a_policy_is_put_shown_tested_and_removed(cli: Cli, office: Office, tmp_path: Path) -> None:
    cli("user", "create", "pol", "--tenant", "acme")
    on_acme = ("--tenant", "acme")
    question = ("policy", "test", "--as", "pol", "--action", "sqs:SendMessage", "--on", "q")
    denied = cli(*question, *on_acme)
    assert denied.code == ExitCode.DENIED
    assert denied.json["decision"] == "deny"
    assert "no statement" in denied.json["because"]
    file = tmp_path / "p.json"
    file.write_text(json.dumps(SEND, indent=2) + "\n")
    assert cli("policy", "put", "pol", "send", str(file), *on_acme).code == 0
    assert cli("policy", "show", "pol", "send", *on_acme).out == file.read_text()
    assert [line["name"] for line in cli("policy", "show", "pol", *on_acme).lines] == ["send"]
    allowed = cli(*question, *on_acme)
    assert allowed.code == 0
    assert allowed.json["decision"] == "allow"
    assert allowed.json["because"] == "Send in policy 'send' of the user"
    assert allowed.json["resource"] == f"arn:aws:sqs:us-east-1:{ACME}:q"
    deny = {
        "Version": "2012-10-17",
        "Statement": {
            "Sid": "OnlyTls",
            "Effect": "Deny",
            "Action": "*",
            "Resource": "*",
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        },
    }
    assert (
        cli("policy", "put", "pol", "tls", "-", *on_acme, stdin=json.dumps(deny).encode()).code == 0
    )
    result = cli(*question, *on_acme, "-o", "table")
    assert result.code == ExitCode.DENIED
    assert "OnlyTls in policy 'tls' of the user" in result.out
    assert cli(*question, *on_acme, "--tls", "--source-ip", "10.0.0.1").code == 0
    assert cli("policy", "remove", "pol", "tls", *on_acme).code == ExitCode.USAGE
    assert cli("policy", "remove", "pol", "tls", *on_acme, "--yes").code == 0
    assert cli(*question, *on_acme).code == 0
    assert cli("policy", "put", "pol", "bad", "-", *on_acme, stdin=b"{}").code == ExitCode.FAILED


# ── Quotas ───────────────────────────────────────────────────────────────────────────────────


def test_quotas_are_shown_and_set_one_by_one(cli: Cli, office: Office) -> None:
    cli("tenant", "create", "q", "444444444444")
    assert cli("quota", "show", "q").json["quotas"]["queues_max"] == 500
    flags = ("--requests-per-second", "100", "--burst", "200", "--queues-max", "5")
    cli("quota", "set", "q", *flags, "--operation", "sqs:PurgeQueue=1:5")
    after = cli("quota", "set", "q", "--stored-bytes-max", "10MiB", "--burst", "300").json
    assert after["limits"]["tenant_requests"] == {"per_s": 100.0, "burst": 300.0}
    assert after["limits"]["operations"] == {"sqs:PurgeQueue": {"per_s": 1.0, "burst": 5.0}}
    assert after["quotas"]["queues_max"] == 5
    assert after["quotas"]["stored_bytes_max"] == 10 * 1_048_576
    assert after["quotas"]["waits_max"] == 2_000
    assert set(after["quotas"]) - set(after["defaults"]) == {"queues_max", "stored_bytes_max"}
    assert cli("quota", "set", "q", "--waits-max", "0").json["quotas"]["waits_max"] == 0
    table = cli("quota", "show", "q", "-o", "table").out
    assert "100, 300 at once" in table
    assert "10.0 MiB" in table
    assert "no limit" in table
    assert not cli("quota", "set", "q", "--operation", "sqs:PurgeQueue=0").json["limits"][
        "operations"
    ]
    assert cli("quota", "set", "q", "--requests-per-second", "0").code == 0
    again = ("--requests-per-second", "default", "--queues-max", "default")
    after = cli("quota", "set", "q", *again).json
    assert after["limits"]["tenant_requests"] == {"per_s": 2_000.0, "burst": 4_000.0}
    assert after["quotas"]["queues_max"] == 500
    assert "2,000, 4,000 at once (default)" in cli("quota", "show", "q", "-o", "table").out
    for bad in (
        (),
        ("--user-burst", "5"),
        ("--operation", "nonsense"),
        ("--operation", "sqs:X=fast"),
        ("--queues-max", "-1"),
    ):
        assert cli("quota", "set", "q", *bad).code == ExitCode.USAGE, bad
    assert cli("quota", "set", "q", "--operation", "SQS=1").code == ExitCode.FAILED


# ── Passwords ────────────────────────────────────────────────────────────────────────────────


def test_a_password_is_derived_here_and_checks_out_there(cli: Cli, office: Office) -> None:
    cli("user", "create", "kaf", "--tenant", "acme")
    on_acme = ("--tenant", "acme")
    result = cli("user", "set-password", "kaf", *on_acme, stdin=b"correct horse\nrest")
    assert result.code == 0
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        kept = office.identities.scram(ACME, "kaf", mechanism)
        assert kept is not None
        assert kept.iterations == 8_192
        salt, stored_key, server_key, _ = scramp.ScramMechanism(mechanism).make_auth_info(
            "correct horse", iteration_count=8_192, salt=kept.salt
        )
        assert (kept.salt, kept.stored_key, kept.server_key) == (salt, stored_key, server_key)
    assert cli("user", "show", "kaf", *on_acme).json["mechanisms"] == [
        "SCRAM-SHA-256",
        "SCRAM-SHA-512",
    ]
    for bad in (b"short\n", b"", b"with\x07bell-in-it\n"):
        assert cli("user", "set-password", "kaf", *on_acme, stdin=bad).code == ExitCode.USAGE
    assert cli("user", "set-password", "no", *on_acme, stdin=b"x" * 9).code == ExitCode.NOT_FOUND
    assert cli("user", "remove-password", "kaf", *on_acme, "--yes").code == 0
    assert office.identities.scram(ACME, "kaf", "SCRAM-SHA-256") is None


@settings(max_examples=200)
@given(st.text(min_size=1, max_size=20))
def test_a_password_is_prepared_as_the_server_prepares_it(text: str) -> None:
    from importlib import import_module

    utils: Any = import_module("scramp.utils")
    try:
        expected = utils.saslprep(text).encode()
    except utils.ScramException:
        expected = b""
    try:
        found = password._prepared(text)
    except Failure:
        found = b""
    assert found == expected
