"""What users and operators get wrong most often, and what they are told: each error fits on a
screen, has a headline, a reason and what to do, and the exit code that scripts rely on."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.harness import forks
from tests.harness.server import Server, penstock_command

PENSTOCK = penstock_command()
ROOT = {"PENSTOCK_KEY_ID": "ROOTROOTROOTROOT", "PENSTOCK_SECRET": "s" * 40}
LINES_MAX, LINE_MAX = 12, 240


class World(NamedTuple):
    folder: Path
    plain: Server  # on loopback, without authentication
    locked: Server  # with authentication
    tls: Server  # with a certificate of a private authority
    taken: int  # a port that this process listens on

    def text(self, template: str) -> str:
        """With the addresses of the servers filled in: ``{plain}``, ``{locked}``, ``{tls}``."""
        return template.format(
            plain=self.plain.url,
            plain_host=self.plain.url.removeprefix("http://"),
            data=self.plain.data,
            kafka=self.plain.kafka,
            locked=self.locked.url,
            tls=self.tls.url,
            tls_host=self.tls.url.removeprefix("https://"),
            tls_port=self.tls.port,
            taken=self.taken,
            pid=os.getpid(),
            folder=self.folder,
        )


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name in ("a", "b"):
        made = run(folder, {}, "generate", "certs", "--out", name, "--name", name)
        assert made.returncode == 0, made.stderr
    other = ("generate", "certs", "--out", "a", "--name", "other", "--no-localhost")
    assert run(folder, {}, *other, "--host", "queues.example.org").returncode == 0
    (folder / "file").write_text("")
    (folder / "broken.toml").write_text("[http\nlisten = 1")
    (folder / "secret").write_text(ROOT["PENSTOCK_SECRET"])
    (folder / "workers").mkdir()
    (folder / "workers" / "workers.json").write_text('{"workers":3}')
    root = {
        "PENSTOCK_ROOT_KEY_ID": ROOT["PENSTOCK_KEY_ID"],
        "PENSTOCK_ROOT_SECRET_FILE": str(folder / "secret"),
    }
    certificate = ("--tls-cert", f"{folder}/a/other.pem", "--tls-key", f"{folder}/a/other-key.pem")
    with (
        Server(folder / "plain", kafka_port=0, env={"PENSTOCK_NODE__NAME": "n1"}) as plain,
        Server(folder / "locked", arguments=("--auth", "on"), env=root) as locked,
        Server(folder / "tls", arguments=certificate) as tls,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        at = World(folder, plain, locked, tls, taken.getsockname()[1])
        env = {"PENSTOCK_ENDPOINT": plain.url}
        for name, *more in (("jobs",), ("orders.fifo",), ("plain.fifo", "--content-dedup")):
            assert run(folder, env, "queue", "create", name, *more).returncode == 0
        as_root = {"PENSTOCK_ENDPOINT": locked.url, **ROOT}
        assert run(folder, as_root, "user", "create", "ann").returncode == 0
        yield at


def run(
    folder: Path, env: Mapping[str, str], *args: str, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "AWS_"))}
    settings = {**kept, "COLUMNS": "100", **env}
    return forks.run([PENSTOCK, *args], stdin=stdin, env=settings, cwd=folder)


class Mistake(NamedTuple):
    name: str
    command: str  # words; what stands in braces is filled in
    code: int
    error: str  # part of the headline
    why: str  # part of the reason; empty: the headline says it
    do: str  # part of what to do
    env: Mapping[str, str] = {}
    stdin: str = ""


SERVE = "serve --data new --http 127.0.0.1:0"
START = [
    Mistake(
        "port in use",
        "serve --data new --http 127.0.0.1:{taken}",
        6,
        "port {taken} (SQS) is in use",
        "process {pid} (",
        "choose another port: --http 127.0.0.1:0",
    ),
    Mistake(
        "Kafka port in use",
        f"{SERVE} --kafka 127.0.0.1:{{taken}}",
        6,
        "port {taken} (Kafka) is in use",
        "listens there",
        "--kafka 127.0.0.1:0",
    ),
    Mistake(
        "admin port in use",
        f"{SERVE} --admin 127.0.0.1:{{taken}}",
        6,
        "port {taken} (admin API) is in use",
        "listens there",
        "--admin 127.0.0.1:0",
    ),
    Mistake(
        "port of workers in use",
        "serve --data fresh --workers 2 --http 127.0.0.1:{taken}",
        6,
        "port {taken} (SQS) is in use",
        "process {pid} (",
        "choose another port: --http 127.0.0.1:0",
    ),
    Mistake(
        "certificate without a key",
        f"{SERVE} --tls-cert a/a.pem",
        2,
        "--tls-key is missing",
        "a/a.pem holds a certificate and no private key",
        "give the private key of a/a.pem: --tls-key FILE",
    ),
    Mistake(
        "key of another certificate",
        f"{SERVE} --tls-cert a/a.pem --tls-key b/b-key.pem",
        2,
        "b/b-key.pem is not the private key of a/a.pem",
        "for another key",
        "penstock generate certs",
    ),
    Mistake(
        "certificate that is not there",
        f"{SERVE} --tls-cert a/no.pem --tls-key b/b-key.pem",
        2,
        "a/no.pem cannot be read",
        "No such file",
        "penstock generate certs",
    ),
    Mistake(
        "something else than a certificate",
        f"{SERVE} --tls-cert file --tls-key b/b-key.pem",
        2,
        "file",
        "",
        "penstock generate certs",
    ),
    Mistake(
        "data folder is a file",
        "serve --data file --http 127.0.0.1:0",
        2,
        "file is a file, not a folder",
        "Not a directory",
        "choose another: --data DIR",
    ),
    Mistake(
        "data folder below a file",
        "serve --data file/below --http 127.0.0.1:0",
        2,
        "file is a file, not a folder",
        "Not a directory",
        "choose another: --data DIR",
    ),
    Mistake(
        "data folder in use",
        "serve --data {data} --http 127.0.0.1:0",
        6,
        "the data folder {data} is in use",
        "another penstock process",
        "--data DIR",
    ),
    Mistake(
        "address of another machine",
        "serve --data new --http 10.9.8.7:9324 --insecure",
        2,
        "this machine has no address 10.9.8.7 (--http 10.9.8.7:9324)",
        "Cannot assign requested address",
        "--http 127.0.0.1:9324",
    ),
    Mistake(
        "name without an address",
        "serve --data new --http nosuchhost.invalid:9324 --insecure",
        2,
        "the name nosuchhost.invalid does not resolve",
        "",
        "--http 127.0.0.1:9324",
    ),
    Mistake(
        "other machines without TLS",
        "serve --data new --http 0.0.0.0:0",
        2,
        "unprotected",
        "there is no TLS",
        "penstock generate certs",
    ),
    Mistake(
        "other machines without authentication",
        "serve --data new --http 0.0.0.0:0 --auth off --tls-cert a/a.pem --tls-key a/a-key.pem",
        2,
        "unprotected",
        "--auth is off",
        "--auth on",
    ),
    Mistake(
        "misspelt setting",
        SERVE,
        2,
        "the configuration is not valid",
        "log.fsnyc: no such setting; did you mean log.fsync?",
        "penstock generate config",
        {"PENSTOCK_LOG__FSNYC": "always"},
    ),
    Mistake(
        "wrong value of a setting",
        SERVE,
        2,
        "the configuration is not valid",
        "log.fsync: expected one of always, interval, never, got 'sometimes'",
        "penstock generate config",
        {"PENSTOCK_LOG__FSYNC": "sometimes"},
    ),
    Mistake(
        "wrong unit of a setting",
        SERVE,
        2,
        "the configuration is not valid",
        "log.segment_bytes_max: expected a size such as 64MiB, got '64 days'",
        "penstock generate config",
        {"PENSTOCK_LOG__SEGMENT_BYTES_MAX": "64 days"},
    ),
    Mistake(
        "configuration file that is not there",
        f"{SERVE} --config no.toml",
        2,
        "the configuration is not valid",
        "no.toml cannot be read: No such file",
        "penstock generate config",
    ),
    Mistake(
        "configuration file that is not TOML",
        f"{SERVE} --config broken.toml",
        2,
        "the configuration is not valid",
        "broken.toml: Expected",
        "penstock generate config",
    ),
    Mistake(
        "half of the first key",
        "serve --data half --http 127.0.0.1:0 --auth on",
        2,
        "the first access key cannot be created",
        "PENSTOCK_ROOT_KEY_ID is set, but PENSTOCK_ROOT_SECRET_FILE is not",
        "set both",
        {"PENSTOCK_ROOT_KEY_ID": "R" * 16},
    ),
    Mistake(
        "master key of another form",
        SERVE,
        1,
        "the master key cannot be used",
        "is not 32 bytes in base64",
        "keys.master_file",
        {"PENSTOCK_MASTER_KEY": "short"},
    ),
    Mistake(
        "folder of workers without workers",
        "serve --data workers --http 127.0.0.1:0",
        1,
        "the server did not start",
        "belongs to 3 workers",
        "start it with --workers 3",
    ),
    Mistake(
        "fewer workers than before",
        "serve --data workers --http 127.0.0.1:0 --workers 2",
        1,
        "the server did not start",
        "has messages of 3 workers",
        "start it with --workers 3, or more",
    ),
]
PLAIN = {"PENSTOCK_ENDPOINT": "{plain}"}
LOCKED = {"PENSTOCK_ENDPOINT": "{locked}"}
REACH = [
    Mistake(
        "no server",
        "queue list --endpoint http://127.0.0.1:1",
        5,
        "cannot reach http://127.0.0.1:1",
        "no process listens on this port",
        "is `penstock serve` running?",
    ),
    Mistake(
        "private authority that is not named",
        "queue list --endpoint {tls}",
        5,
        "cannot reach {tls}",
        "the CA is not trusted",
        "set PENSTOCK_CA_FILE",
    ),
    Mistake(
        "authority of another server",
        "queue list --endpoint {tls}",
        5,
        "cannot reach {tls}",
        "the CA is not trusted",
        "set PENSTOCK_CA_FILE",
        {"PENSTOCK_CA_FILE": "b/ca.pem"},
    ),
    Mistake(
        "certificate for another host",
        "queue list --endpoint {tls}",
        5,
        "cannot reach {tls}",
        "the certificate is for queues.example.org, not for 127.0.0.1",
        "use that name, or create a certificate with `penstock generate certs --host 127.0.0.1`",
        {"PENSTOCK_CA_FILE": "a/ca.pem"},
    ),
    Mistake(
        "authority that is not there",
        "queue list --endpoint {tls}",
        2,
        "CA file 'a/no.pem' cannot be loaded",
        "No such file",
        "PENSTOCK_CA_FILE",
        {"PENSTOCK_CA_FILE": "a/no.pem"},
    ),
    Mistake(
        "http where the server speaks TLS",
        "queue list --endpoint http://{tls_host}",
        5,
        "cannot reach http://{tls_host}",
        "it expects TLS",
        "use https://{tls_host}",
    ),
    Mistake(
        "https where the server speaks http",
        "queue list --endpoint https://{plain_host}",
        5,
        "cannot reach https://{plain_host}",
        "does not use TLS",
        "use http://{plain_host}",
    ),
    Mistake(
        "SQS at the Kafka port",
        "queue list --endpoint http://{kafka}",
        5,
        "cannot reach http://{kafka}",
        "{kafka} is a Kafka listener",
        "to the SQS address, by default port 9324",
    ),
    Mistake(
        "name of a server that does not resolve",
        "queue list --endpoint http://nosuchhost.invalid:9324",
        5,
        "cannot reach http://nosuchhost.invalid:9324",
        "the name nosuchhost.invalid does not resolve",
        "--endpoint URL",
    ),
    Mistake(
        "no address",
        "queue list --endpoint ftp://127.0.0.1",
        2,
        "'ftp://127.0.0.1' is not a valid URL",
        "its scheme is not http or https",
        "write a URL like http://127.0.0.1:9324",
    ),
]
USE = [
    Mistake(
        "wrong secret",
        "queue show jobs",
        4,
        "access key ROOTROOTROOTROOT was rejected",
        "the secret does not match",
        "AWS_SECRET_ACCESS_KEY",
        {**LOCKED, "AWS_ACCESS_KEY_ID": "ROOTROOTROOTROOT", "AWS_SECRET_ACCESS_KEY": "x" * 40},
    ),
    Mistake(
        "unknown key",
        "queue list",
        4,
        "cannot list queues",
        "",
        "AWS_ACCESS_KEY_ID",
        {**LOCKED, "AWS_ACCESS_KEY_ID": "N" * 16, "AWS_SECRET_ACCESS_KEY": "x" * 40},
    ),
    Mistake(
        "no log-in at the admin API",
        "user list",
        4,
        "cannot list users",
        "",
        "PENSTOCK_KEY_ID",
        LOCKED,
    ),
    Mistake(
        "misspelt queue",
        "message send job hello",
        3,
        "queue 'job' does not exist",
        "does not exist",
        "did you mean 'jobs'?",
        PLAIN,
    ),
    Mistake(
        "unknown queue",
        "queue show warehouse",
        3,
        "queue 'warehouse' does not exist",
        "does not exist",
        "penstock queue list",
        PLAIN,
    ),
    Mistake(
        "message that is too large",
        "message send jobs -f large --whole",
        1,
        "message is too large: 1,100,000 bytes; at most 1,048,576 (1 MiB)",
        "body and attributes",
        "send less",
        PLAIN,
    ),
    Mistake(
        "FIFO message without a group",
        "message send orders.fifo hello",
        1,
        "cannot send to 'orders.fifo'",
        "the parameter MessageGroupId",
        "add --group NAME",
        PLAIN,
    ),
    Mistake(
        "FIFO message without a deduplication id",
        "message send orders.fifo hello --group g",
        1,
        "cannot send to 'orders.fifo'",
        "ContentBasedDeduplication",
        "add --dedup-id ID, or `penstock queue set NAME --content-dedup`",
        PLAIN,
    ),
    Mistake(
        "FIFO messages without a group",
        "message send plain.fifo a b",
        1,
        "cannot send to 'plain.fifo'",
        "the parameter MessageGroupId",
        "add --group NAME",
        PLAIN,
    ),
    Mistake(
        "queue that is there with other settings",
        "queue create jobs --visibility 5m",
        6,
        "cannot create queue 'jobs'",
        "",
        "penstock queue set",
        PLAIN,
    ),
    Mistake(
        "deletion that nobody confirms",
        "queue delete jobs",
        2,
        "did not delete 'jobs'",
        "stdin is not a terminal",
        "add --yes",
        PLAIN,
    ),
    Mistake(
        "attribute without a value",
        "message send jobs hello -a colour",
        2,
        "'colour' is not a valid attribute",
        "",
        "--attribute NAME=VALUE",
        PLAIN,
    ),
    Mistake(
        "line that is not JSON",
        "message send jobs - --ndjson",
        2,
        "line 1",
        "not JSON",
        "each line is an object",
        PLAIN,
        "hello\n",
    ),
    Mistake(
        "cluster command at a single node",
        "cluster status",
        3,
        "cannot read the cluster status",
        "not part of a cluster",
        "",
        PLAIN,
    ),
]
USAGE = [
    Mistake(
        "lease that is too long",
        "queue create q --visibility 13h",
        2,
        "13h is too long: at most 12h",
        "",
        "",
    ),
    Mistake(
        "retention that is too short",
        "queue create q --retention 10s",
        2,
        "10s is too short: at least 1m",
        "",
        "",
    ),
    Mistake(
        "duration without a number",
        "queue create q --visibility soon",
        2,
        "'soon' is not a duration",
        "",
        "",
    ),
    Mistake("misspelt command", "queue lits", 2, "list", "", ""),
    Mistake("misspelt option", "queue create q --visibilty 5m", 2, "--visibility", "", ""),
    Mistake("missing argument", "queue create", 2, "Missing argument", "", ""),
]


def told(world: World, mistake: Mistake) -> "subprocess.CompletedProcess[str]":
    (world.folder / "large").write_text("x" * 1_100_000)
    shutil.rmtree(world.folder / "fresh", ignore_errors=True)
    env = {key: world.text(value) for key, value in mistake.env.items()}
    done = run(world.folder, env, *world.text(mistake.command).split(), stdin=mistake.stdin)
    assert done.returncode == mistake.code, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert 0 < len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= LINE_MAX
    return done


@pytest.mark.parametrize("mistake", START + REACH + USE, ids=lambda one: one.name)
def test_a_mistake_is_told_with_its_reason_and_what_to_do(world: World, mistake: Mistake) -> None:
    err = told(world, mistake).stderr
    lines = {line.strip().partition(": ")[0]: line for line in err.splitlines()}
    assert world.text(mistake.error) in lines["error"]
    if mistake.why:
        assert world.text(mistake.why) in lines["why"]
    if mistake.do:
        assert world.text(mistake.do) in lines["do"]
    if mistake.error not in ("cannot read the cluster status",):
        assert "do" in lines, "every mistake has a way out"


def test_a_key_that_a_failed_start_has_made_is_shown_all_the_same(world: World) -> None:
    """The next start finds it in the store and makes no other."""
    words = f"serve --data keyed --http 127.0.0.1:{world.taken} --auth on".split()
    done = run(world.folder, {}, *words)
    assert done.returncode == 6
    assert "aws_secret_access_key = " in done.stdout


@pytest.mark.parametrize("mistake", USAGE, ids=lambda one: one.name)
def test_a_command_line_that_is_wrong_names_the_help(world: World, mistake: Mistake) -> None:
    err = told(world, mistake).stderr
    assert mistake.error in err
    assert "-h" in err


def test_there_are_many_mistakes_and_each_has_a_name() -> None:
    every = [*START, *REACH, *USE, *USAGE]
    assert len({one.name for one in every}) == len(every) >= 45
