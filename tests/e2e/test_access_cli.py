"""Access from the shell, against a server that asks everybody who they are: an operator sets up a
tenant, its users work with what they were given, and what is taken away ends within seconds."""

import base64
import json
import os
import pty
import stat
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.harness import forks
from tests.harness.command import Done
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command

from penstock.cli.terminal.failure import ExitCode
from penstock.node.keys.keyring import MASTER_NAME

PENSTOCK = penstock_command()
ROOT_KEY_ID = "ROOTROOTROOTROOTROOT"
ROOT_SECRET = "root-secret-of-this-test-and-of-no-other"
REVOKED_WITHIN_SECONDS = 5.0
SEND_ONLY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Sid": "SendToJobs",
            "Effect": "Allow",
            "Action": ["sqs:SendMessage", "sqs:GetQueueUrl"],
            "Resource": "arn:aws:sqs:*:*:jobs",
        }
    ],
}


class Person:
    """Somebody at a shell, with the key they were given in the environment."""

    def __init__(self, server: Server, key_id: str = "", secret: str = "") -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PENSTOCK_", "AWS_"))
        }
        self.env = {**kept, "PENSTOCK_ENDPOINT": server.url, "PENSTOCK_ADMIN": server.admin_url}
        if key_id:
            self.env |= {"PENSTOCK_KEY_ID": key_id, "PENSTOCK_SECRET": secret}

    def __call__(self, *args: str, stdin: str = "") -> Done:
        done = forks.run([PENSTOCK, *args], stdin=stdin, env=self.env)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def typing(self, *args: str, answers: list[tuple[bytes, bytes]]) -> tuple[int, str]:
        """The same with all three streams on a terminal; each answer is typed when its question
        has appeared, and not before: what is typed ahead of a password is thrown away."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(PENSTOCK, [PENSTOCK, *args], {**self.env, "TERM": "xterm"})
        shown, seen = b"", 0
        while True:
            try:
                data = os.read(terminal, 65_536)
            except OSError:  # how Linux says that the other side is gone
                break
            if not data:
                break
            shown += data
            if answers and answers[0][0] in shown[seen:]:
                seen = len(shown)
                os.write(terminal, answers.pop(0)[1])
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status), shown.decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("data")
    secret = folder / "root-secret"
    secret.write_text(ROOT_SECRET)
    env = {
        "PENSTOCK_ROOT_KEY_ID": ROOT_KEY_ID,
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    with Server(folder / "node", fsync="never", arguments=("--auth", "on"), env=env) as running:
        yield running
        assert running.stop() == 0
        running.assert_no_traceback()
        assert ROOT_SECRET not in running.stderr


@pytest.fixture(scope="module")
def root(server: Server) -> Person:
    return Person(server, ROOT_KEY_ID, ROOT_SECRET)


def make_person(root: Person, server: Server, name: str, *args: str) -> Person:
    assert root("user", "create", name, "--tenant", "acme", *args).code == 0
    made = root("key", "create", name, "--tenant", "acme", "-o", "json").json
    return Person(server, made["key_id"], made["secret"])


@pytest.fixture(scope="module")
def admin(root: Person, server: Server) -> Person:
    """The administrator of a tenant with one queue."""
    assert root("tenant", "create", "acme", "111111111111").code == 0
    admin = make_person(root, server, "ann", "--administrator")
    assert admin("queue", "create", "jobs").code == 0
    return admin


def test_nobody_gets_in_without_a_key(server: Server) -> None:
    stranger = Person(server)
    for command in (
        ("queue", "create", "x"),
        ("message", "send", "jobs", "hello"),
        ("tenant", "list"),
        ("user", "list"),
    ):
        result = stranger(*command)
        assert result.code == ExitCode.DENIED, (command, result.err)
        assert len(result.err.splitlines()) <= 3


def test_a_wrong_secret_is_denied_and_not_repeated(server: Server) -> None:
    result = Person(server, ROOT_KEY_ID, "wrong-secret-that-nobody-should-see")("tenant", "list")
    assert result.code == ExitCode.DENIED
    assert "wrong-secret" not in result.out + result.err


def test_a_tenant_has_names_of_its_own(admin: Person, root: Person, server: Server) -> None:
    url = admin("queue", "show", "jobs").json["url"]
    assert "/111111111111/" in url
    assert [line["name"] for line in admin("queue", "list").lines] == ["jobs"]
    assert root("queue", "show", "jobs").code == ExitCode.NOT_FOUND
    assert [line["name"] for line in admin("tenant", "list").lines] == ["acme"]


def test_a_user_may_do_what_the_policy_says_and_the_test_agrees(
    admin: Person, root: Person, server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "send-only.json"
    file.write_text(json.dumps(SEND_ONLY))
    bob = make_person(root, server, "bob", "--policy", str(file))
    assert bob("message", "send", "jobs", "hello").code == 0
    assert bob("message", "receive", "jobs").code == ExitCode.DENIED
    assert bob("queue", "delete", "jobs", "--yes").code == ExitCode.DENIED
    assert bob("user", "list").code == ExitCode.DENIED

    def ask(action: str) -> Done:
        return admin("policy", "test", "--as", "bob", "--action", action, "--on", "jobs")

    allowed = ask("sqs:SendMessage")
    assert (allowed.code, allowed.json["statement"]) == (0, "SendToJobs")
    assert ask("sqs:ReceiveMessage").code == ExitCode.DENIED
    assert admin("message", "receive", "jobs", "--delete").lines[0]["body"] == "hello"


@pytest.mark.parametrize("how", ["disable key", "delete user", "remove policy", "suspend tenant"])
def test_what_is_taken_away_ends_within_five_seconds(
    admin: Person, root: Person, server: Server, tmp_path: Path, how: str
) -> None:
    name = how.replace(" ", "-")
    file = tmp_path / "send.json"
    file.write_text(json.dumps(SEND_ONLY))
    person = make_person(root, server, name, "--policy", str(file))
    assert person("message", "send", "jobs", "before").code == 0
    of_acme = ("--tenant", "acme")
    undo: tuple[str, ...] = ()
    if how == "disable key":
        assert root("key", "disable", person.env["PENSTOCK_KEY_ID"]).code == 0
    elif how == "delete user":
        assert root("user", "delete", name, *of_acme, "--yes").code == 0
    elif how == "remove policy":
        assert root("policy", "remove", name, "send", *of_acme, "--yes").code == 0
    else:
        assert root("tenant", "suspend", "acme", "--yes").code == 0
        undo = ("tenant", "resume", "acme")
    deadline = time.monotonic() + REVOKED_WITHIN_SECONDS
    while (result := person("message", "send", "jobs", "after")).code == 0:
        assert time.monotonic() < deadline, "still allowed"
    assert result.code == ExitCode.DENIED, result.err
    if undo:
        assert root(*undo).code == 0
        assert person("message", "send", "jobs", "again").code == 0


def test_a_key_is_rotated_without_a_gap(admin: Person, root: Person, server: Server) -> None:
    kim = make_person(root, server, "kim", "--administrator")
    old = kim.env["PENSTOCK_KEY_ID"]
    new = kim("key", "rotate", old, "-o", "json").json
    successor = Person(server, new["key_id"], new["secret"])
    assert kim("message", "send", "jobs", "with the old one").code == 0
    assert successor("message", "send", "jobs", "with the new one").code == 0
    assert successor("key", "disable", old).code == 0
    assert successor("key", "delete", old, "--yes").code == 0
    assert kim("tenant", "list").code == ExitCode.DENIED
    assert [line["key_id"] for line in successor("key", "list", "kim").lines] == [new["key_id"]]


def test_a_key_works_for_aws_tools_as_it_was_printed(
    admin: Person, root: Person, server: Server, tmp_path: Path
) -> None:
    boto3 = pytest.importorskip("boto3")
    printed = root("key", "create", "ann", "--tenant", "acme", "--profile", "acme").out
    file = tmp_path / "credentials"
    file.write_text(printed)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        session = boto3.Session(profile_name="acme", region_name="us-east-1")
        client = session.client("sqs", endpoint_url=server.url)
        assert client.get_queue_url(QueueName="jobs")["QueueUrl"].endswith("/111111111111/jobs")
        client.close()


def test_a_password_is_asked_for_twice_and_not_shown(admin: Person) -> None:
    password = b"correct horse battery\n"
    code, shown = admin.typing(
        "user", "set-password", "ann", answers=[(b"Password: ", password), (b"Again: ", password)]
    )
    assert code == 0, shown
    assert "can now log in with Kafka clients" in shown
    assert "horse" not in shown
    assert admin("user", "show", "ann").json["mechanisms"] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def test_quotas_are_the_operators_to_set(admin: Person, root: Person) -> None:
    assert admin("quota", "set", "acme", "--queues-max", "9").code == ExitCode.DENIED
    assert root("quota", "set", "acme", "--queues-max", "9").json["quotas"]["queues_max"] == 9
    assert admin("quota", "show", "acme").json["quotas"]["queues_max"] == 9
    assert root("quota", "set", "acme", "--queues-max", "0").code == 0


def test_a_tenant_goes_only_when_nothing_is_left_of_it(root: Person, server: Server) -> None:
    assert root("tenant", "create", "short", "222222222222").code == 0
    assert root("user", "create", "sam", "--tenant", "short", "--administrator").code == 0
    made = root("key", "create", "sam", "--tenant", "short", "-o", "json").json
    sam = Person(server, made["key_id"], made["secret"])
    assert sam("queue", "create", "last").code == 0
    assert root("tenant", "delete", "short", "--yes").code == ExitCode.CONFLICT
    assert sam("queue", "delete", "last", "--yes").code == 0
    assert root("tenant", "delete", "short", "--yes").code == ExitCode.CONFLICT  # sam is left
    assert root("user", "delete", "sam", "--tenant", "short", "--yes").code == 0
    assert root("tenant", "delete", "short", "--yes").code == 0


def test_everything_is_still_there_after_a_restart(
    admin: Person, root: Person, server: Server
) -> None:
    server.restart()
    root.env |= {"PENSTOCK_ENDPOINT": server.url, "PENSTOCK_ADMIN": server.admin_url}
    admin.env |= {"PENSTOCK_ENDPOINT": server.url, "PENSTOCK_ADMIN": server.admin_url}
    assert {line["name"] for line in root("tenant", "list").lines} == {"default", "acme"}
    assert admin("queue", "show", "jobs").code == 0


def test_the_audit_trail_answers_who_did_what(root: Person, admin: Person, tmp_path: Path) -> None:
    assert admin("queue", "create", "short-lived").code == 0
    assert admin("queue", "delete", "short-lived", "--yes").code == 0

    def deletions() -> list[dict[str, str]]:
        done = root("audit", "tail", "--action", "DeleteQueue", "--since", "1d", "--user", "ann")
        assert done.code == 0, done.err
        return done.lines

    eventually(lambda: bool(deletions()), seconds=120, what="the deletion is noted")
    (entry,) = [each for each in deletions() if each["resource"].endswith(":short-lived")]
    assert entry["action"] == "sqs:DeleteQueue"
    assert entry["principal"].endswith(":user/ann")
    assert entry["outcome"] == "ok"
    assert root("audit", "tail", "--action", "sqs:DeleteQueue", "--user", "nobody").lines == []
    code, shown = root.typing("audit", "tail", "--action", "DeleteQueue", answers=[])
    assert code == 0
    assert "ann  sqs:DeleteQueue  arn:aws:sqs:us-east-1:111111111111:short-lived  ok" in shown
    _, shown = root.typing("audit", "tail", "--action", "NoSuchAction", answers=[])
    assert "no matching entries in this period" in shown


def test_prometheus_scrapes_with_a_key_that_may_do_nothing_else(
    root: Person, server: Server, tmp_path: Path
) -> None:
    """The commands of docs/metrics.md, and the request that Prometheus makes."""
    statement = {"Effect": "Allow", "Action": "admin:Metrics", "Resource": "*"}
    (tmp_path / "metrics.json").write_text(json.dumps({"Statement": [statement]}))
    policy = str(tmp_path / "metrics.json")
    assert root("user", "create", "prometheus", "--policy", policy).code == 0
    made = root("key", "create", "prometheus", "-o", "json").json
    both = base64.b64encode(f"{made['key_id']}:{made['secret']}".encode()).decode()

    def status_of(path: str, headers: dict[str, str]) -> int:
        try:
            with urlopen(Request(server.admin_url + path, headers=headers)) as reply:
                assert b"penstock_" in reply.read()
                return int(reply.status)
        except HTTPError as error:
            return error.code

    assert root("queue", "create", "scraped").code == 0
    for path in ("/metrics", "/metrics/objects"):
        assert status_of(path, {"authorization": f"Basic {both}"}) == 200
        assert status_of(path, {}) == 401
    for path in ("config", "queues", "users", "keys", "cluster", "tenants"):
        assert status_of(f"/api/v1/{path}", {"authorization": f"Basic {both}"}) == 403, path
    prometheus = Person(server, made["key_id"], made["secret"])
    for command in ("queue list", "user list", "message send scraped x", "cluster status"):
        assert prometheus(*command.split()).code == ExitCode.DENIED, command
    assert root("key", "disable", made["key_id"]).code == 0
    assert status_of("/metrics", {"authorization": f"Basic {both}"}) == 401


def token_of(server: Server) -> str:
    """A log-in of root."""
    body = json.dumps({"key_id": ROOT_KEY_ID, "secret": ROOT_SECRET}).encode()
    headers = {"content-type": "application/json"}
    url = f"{server.admin_url}/api/v1/login"
    with urlopen(Request(url, data=body, headers=headers)) as reply:
        return str(json.load(reply)["token"])


def master_keys(folder: Path) -> list[str]:
    """The server's master key in the forms that a key is written in."""
    raw = (folder / MASTER_NAME).read_bytes()
    key = raw if len(raw) == 32 else base64.b64decode(raw)
    assert len(key) == 32
    forms = [base64.b64encode(key), base64.urlsafe_b64encode(key), key.hex().encode()]
    return [form.decode() for form in forms]


def test_a_bundle_has_what_a_report_needs_and_no_secret(
    root: Person, admin: Person, server: Server, tmp_path: Path
) -> None:
    """Secrets of every kind stand where a bundle looks: in the settings and the log of the server,
    in the environment, in contexts."""
    token = token_of(server)
    context_secret, password = "secret-of-a-context", "a password of somebody"
    config = tmp_path / "config"
    with_context = Person(server, ROOT_KEY_ID, ROOT_SECRET)
    with_context.env |= {
        "XDG_CONFIG_HOME": str(config),
        "PENSTOCK_ROOT_SECRET_FILE": str(server.data.parent / "root-secret"),
        "AWS_SESSION_TOKEN": "token of a session",
        "DB_PASSWORD": password,
    }
    added = with_context("context", "add", "x", "--key-id", "K", stdin=f"{context_secret}\n")
    assert added.code == 0, added.err
    pem = "MC4CAQAwBQYDK2VwBCIEIPrivateKeyOfThisTestAndOfNoOther"
    master = master_keys(server.data)
    made = root("key", "create", "ann", "--tenant", "acme", "-o", "json").json
    log = tmp_path / "server.log"
    log.write_text(
        f'{{"event": "ready"}}\n{{"event": "log-in", "token": "{token}"}}\n'
        f"authorization: Bearer {token}\nsecret={ROOT_SECRET}\n{made['secret']}\n"
        f"-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----\n"
        + "".join(f"{key}\n" for key in master)
        + f"{context_secret} {password} token of a session\n"
    )
    file = tmp_path / "bundle.tar.gz"
    done = with_context("debug", "bundle", str(file), "--log", str(log))
    assert done.code == 0, done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with tarfile.open(file) as archive:
        pieces = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert {"versions.json", "settings.json", "metrics.txt", "ready.json", "doctor.json"} <= set(
        pieces
    )
    assert b"penstock_ready 1" in pieces["metrics.txt"]
    assert b'"event": "ready"' in pieces["log-1-server.log"]
    assert json.loads(pieces["versions.json"])["penstock"]
    secrets = [
        ROOT_SECRET,
        made["secret"],
        token,
        context_secret,
        password,
        "token of a session",
        pem,
        *master,
    ]
    for name, data in pieces.items():
        for secret in secrets:
            assert secret.encode() not in data, name
    again = with_context("debug", "bundle", str(file))
    assert again.code == ExitCode.CONFLICT
