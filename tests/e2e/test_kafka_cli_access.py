"""Topics, groups and records from the shell, against servers that ask everybody who they are, over
TLS and in the clear: with a key in the environment, in a profile, and with none."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.compat.kafka.locked import (
    ROOT_KEY,
    ROOT_SECRET,
    Operator,
    allow,
    locked_server,
    running_site,
)
from tests.compat.test_tls import arguments, make_certificates
from tests.harness import forks
from tests.harness.command import Done
from tests.harness.server import Server, penstock_command, stable_port

from penstock.cli.terminal.failure import ExitCode


class Shell:
    def __init__(self, server: Server, ca: Path | None, env: dict[str, str]) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "AWS_"))
        }
        self.env = {**kept, "PENSTOCK_ENDPOINT": server.url, **env}
        if ca is not None:
            self.env["PENSTOCK_CA_FILE"] = str(ca)

    def __call__(self, *args: str, stdin: str = "") -> Done:
        done = forks.run([penstock_command(), *args], stdin=stdin, env=self.env)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)


class Site(NamedTuple):
    server: Server
    ca: Path | None

    def shell(self, **env: str) -> Shell:
        return Shell(self.server, self.ca, env)

    @property
    def root(self) -> Shell:
        return self.shell(PENSTOCK_KEY_ID=ROOT_KEY, PENSTOCK_SECRET=ROOT_SECRET)

    @property
    def operator(self) -> Operator:
        return Operator(self.server, self.ca)


@pytest.fixture(scope="module", params=["clear", "tls"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with running_site(folder, is_tls=request.param == "tls") as (server, ca):
        yield Site(server, ca)


def test_topics_records_and_groups_with_a_key(site: Site) -> None:
    root = site.root
    assert root("topic", "create", "orders", "--partitions", "2").code == 0
    assert [topic["name"] for topic in root("topic", "list").lines] == ["orders"]
    sent = root("message", "send", "--topic", "orders", "-", stdin="one\ntwo\n")
    assert (sent.code, sent.json["sent"]) == (0, 2), sent.err
    read = ("message", "tail", "--topic", "orders", "--from", "earliest", "-n", "2")
    tail = root(*read, "--group", "readers")
    assert sorted(line["value"] for line in tail.lines) == ["one", "two"], tail.err
    groups = root("group", "list")
    assert "readers" in groups.out, groups.err
    lag = root("group", "lag", "readers")
    assert lag.code == 0, lag.err
    assert root("topic", "delete", "orders", "--yes").code == 0


def test_the_same_key_under_the_names_that_aws_tools_use(site: Site, tmp_path: Path) -> None:
    aws = site.shell(AWS_ACCESS_KEY_ID=ROOT_KEY, AWS_SECRET_ACCESS_KEY=ROOT_SECRET)
    assert aws("topic", "list").code == 0
    profiles = tmp_path / "credentials"
    profiles.write_text(
        f"[mine]\naws_access_key_id = {ROOT_KEY}\naws_secret_access_key = {ROOT_SECRET}\n"
    )
    named = {"AWS_PROFILE": "mine", "AWS_SHARED_CREDENTIALS_FILE": str(profiles)}
    assert site.shell(**named)("topic", "list").code == 0
    other = site.shell(**{**named, "AWS_PROFILE": "other"})("topic", "list")
    assert other.code == ExitCode.USAGE
    assert "cannot read the AWS profile 'other'" in other.err


def test_an_address_of_ones_own_choice(site: Site) -> None:
    """Without a protocol it is found out; with one, it is taken at its word."""
    protocol = "SASL_PLAINTEXT" if site.ca is None else "SASL_SSL"
    for address in (site.server.kafka, f"{protocol}://{site.server.kafka}"):
        root = site.root
        root.env["PENSTOCK_KAFKA"] = address
        listed = root("topic", "list")
        assert listed.code == 0, listed.err
    wrong = site.root
    wrong.env["PENSTOCK_KAFKA"] = f"TLS://{site.server.kafka}"
    assert wrong("topic", "list").code == ExitCode.USAGE


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("group", "list"),
        ("message", "send", "--topic", "t", "x"),
        ("message", "tail", "--topic", "t"),
    ],
)
def test_nobody_gets_in_without_a_key_or_with_a_wrong_one(
    site: Site, command: tuple[str, ...]
) -> None:
    for env in ({}, {"PENSTOCK_KEY_ID": ROOT_KEY, "PENSTOCK_SECRET": "a-wrong-secret"}):
        result = site.shell(**env)(*command)
        assert result.code == ExitCode.DENIED, result.err
        assert len(result.err.splitlines()) <= 3
        assert "a-wrong-secret" not in result.out + result.err


def test_what_a_user_may_not_do_is_denied(site: Site) -> None:
    user = site.operator.user(allow("kafka:Describe"))
    key_id, secret = site.operator.key(user)
    ann = site.shell(PENSTOCK_KEY_ID=key_id, PENSTOCK_SECRET=secret)
    assert site.root("topic", "create", "secret-plans").code == 0
    assert site.root("message", "send", "--topic", "secret-plans", "x").code == 0
    sent = ann("message", "send", "--topic", "secret-plans", "x")
    assert sent.code == ExitCode.DENIED, sent.err
    assert "TOPIC_AUTHORIZATION_FAILED" in sent.err
    assert len(sent.err.splitlines()) <= 3
    read = ann("message", "tail", "--topic", "secret-plans", "--from", "earliest", "--no-follow")
    assert read.code == ExitCode.DENIED, (read.out, read.err)
    assert len(read.err.splitlines()) <= 3


@pytest.mark.parametrize("site", ["tls"], indirect=True)
def test_a_certificate_that_nobody_vouches_for_stops_a_command(site: Site) -> None:
    root = site.root
    root.env["PENSTOCK_KAFKA"] = f"SASL_SSL://{site.server.kafka}"
    del root.env["PENSTOCK_CA_FILE"]
    result = root("topic", "list")
    assert result.code == ExitCode.UNREACHABLE
    assert "not trusted" in result.err


@pytest.mark.parametrize("site", ["tls"], indirect=True)
def test_bench_trusts_the_private_authority_too(site: Site) -> None:
    done = site.root("bench", "send", "--duration", "0.2", "--connections", "1")
    assert done.code == 0, done.err


def test_a_key_does_not_matter_where_nobody_asks(tmp_path: Path) -> None:
    with Server(tmp_path, fsync="never", kafka_port=0) as open_server:
        shell = Shell(open_server, None, {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"})
        assert shell("topic", "create", "t").code == 0
        shell.env["PENSTOCK_KAFKA"] = open_server.kafka
        assert [topic["name"] for topic in shell("topic", "list").lines] == ["t"]


def test_a_server_on_every_interface_is_found_from_here(tmp_path: Path) -> None:
    """What it tells of itself can be dialled: the admin API and the Kafka listener alike."""
    make_certificates(tmp_path / "tls")
    http, kafka = stable_port(), stable_port()
    everywhere = ["--http", f"0.0.0.0:{http}", "--kafka", f"0.0.0.0:{kafka}"]
    server = locked_server(
        tmp_path, *arguments(tmp_path / "tls"), "--admin", "0.0.0.0:0", *everywhere
    )
    with server as running:
        root = Shell(
            running,
            tmp_path / "tls" / "ca.pem",
            {
                "PENSTOCK_ENDPOINT": f"https://127.0.0.1:{http}",
                "PENSTOCK_KEY_ID": ROOT_KEY,
                "PENSTOCK_SECRET": ROOT_SECRET,
            },
        )
        created = root("topic", "create", "t")
        assert created.code == 0, created.err
        assert [user["name"] for user in root("user", "list").lines] == ["root"]
        sent = root("message", "send", "--topic", "t", "hello")
        assert sent.code == 0, sent.err
        report = root("doctor", "-o", "json").json
        assert "0.0.0.0" not in json.dumps(report["checks"]), report
        certificates = [c for c in report["checks"] if c["check"].startswith("certificate ")]
        # Of three listeners, of the node's chain and of the authority that this shell trusts.
        assert len(certificates) == 6, certificates
        assert {check["status"] for check in certificates} == {"ok"}
        assert {check["status"] for check in report["checks"] if check["check"] == "clock"} == {
            "ok"
        }
