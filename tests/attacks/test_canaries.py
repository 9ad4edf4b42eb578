"""Secrets planted everywhere a secret can come in, and a busy quarter of a minute around them:
requests that work, requests that fail in as many ways as can be thought of, at the loudest log
level. Afterwards none is found in the log, in an error, in metrics, in the admin API, in the node's
own topics, or, for those that must not be stored in the clear, anywhere in the data folder."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from botocore.credentials import Credentials
from tests.attacks.frames import Wire, framed
from tests.attacks.kit import EVERYTHING, Operator, send, signed, sqs_as
from tests.compat.kafka.confluent import Sent, producer, read_all
from tests.compat.kafka.confluent import send as produce
from tests.harness.raw_http import RawConnection
from tests.harness.server import Server, penstock_command

JSON = {"content-type": "application/json"}


class Planted:
    """By what they are. Bodies may be on the disk where nobody asked for encryption; secrets and
    sealed bodies may not."""

    def __init__(self) -> None:
        self.secrets = {
            "root secret": f"canary-root-{os.urandom(9).hex()}",
            "admin token": f"canary-token-{os.urandom(9).hex()}",
            "password": f"canary-password-{os.urandom(9).hex()}",
            "password typed as a name": f"canary-typed-{os.urandom(9).hex()}",
            "wrong password": f"canary-wrong-{os.urandom(9).hex()}",
            "sealed body": f"canary-sealed-{os.urandom(9).hex()}",
            "sealed record": f"canary-record-{os.urandom(9).hex()}",
            "session token": f"canary-session-{os.urandom(9).hex()}",
        }
        self.bodies = {
            "body": f"canary-body-{os.urandom(9).hex()}",
            "attribute": f"canary-attribute-{os.urandom(9).hex()}",
            "record": f"canary-value-{os.urandom(9).hex()}",
            "half a body": f"canary-half-{os.urandom(9).hex()}",
            "policy": f"canary-policy-{os.urandom(9).hex()}",
        }
        self.master = os.urandom(32)
        self.hmacs: dict[str, bytes] = {}  # secrets of delegation tokens

    @property
    def all(self) -> dict[str, str]:
        return {**self.secrets, **self.bodies}


def spellings(secret: str | bytes) -> set[bytes]:
    raw = secret if isinstance(secret, bytes) else secret.encode()
    found = {raw, raw.hex().encode(), raw.hex().upper().encode(), quote(raw).encode()}
    for offset in range(3):  # in base64 it looks different at each place it may stand
        text = base64.b64encode(b"\0" * offset + raw)[4 if offset else 0 :]
        found.add(text.rstrip(b"=")[:-2])
        found.add(text.replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=")[:-2])
    return {spelling for spelling in found if len(spelling) >= 16}


def leaks(planted: Mapping[str, str] | Mapping[str, bytes], text: bytes) -> list[str]:
    return [name for name, value in planted.items() if any(s in text for s in spellings(value))]


@pytest.fixture(scope="module")
def planted() -> Planted:
    return Planted()


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory, planted: Planted) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("loud")
    for name, text in (
        ("root", planted.secrets["root secret"]),
        ("token", planted.secrets["admin token"]),
        ("master", base64.b64encode(planted.master).decode()),
    ):
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    server = Server(
        folder / "data",
        fsync="never",
        kafka_port=0,
        arguments=["--auth", "on", "--log-level", "debug", "--log-format", "json"],
        env={
            "PENSTOCK_ROOT_KEY_ID": "PENSTOCKCANARYROOT01",
            "PENSTOCK_ROOT_SECRET_FILE": str(folder / "root"),
            "PENSTOCK_ADMIN__TOKEN": planted.secrets["admin token"],
            "PENSTOCK_KEYS__MASTER_FILE": str(folder / "master"),
        },
    )
    with server as running:
        yield running


class Told:
    """Everything that was said to anybody."""

    def __init__(self) -> None:
        self.errors: list[bytes] = []
        self.shown: dict[str, bytes] = {}


@pytest.fixture(scope="module")
def told(loud: Server, planted: Planted) -> Told:
    told = Told()
    root = Credentials("PENSTOCKCANARYROOT01", planted.secrets["root secret"])
    operator = Operator(loud, root)
    work(loud, planted, operator, root)
    fail_over_http(loud, planted, told, root)
    fail_over_kafka(loud, planted)
    fail_as_operator(planted, operator, told)
    look_around(loud, planted, told)
    return told


def work(server: Server, planted: Planted, operator: Operator, root: Credentials) -> None:
    name, credentials = operator.user(EVERYTHING)
    rotated = operator.ask("POST", f"keys/{credentials.access_key}/rotate", {})
    planted.secrets["secret of a key"] = str(credentials.secret_key)
    planted.secrets["secret of a rotated key"] = rotated["secret"]
    planted.secrets["token of a log-in"] = operator.token
    set_password(operator, name, planted.secrets["password"])
    use_tokens(server, planted, root)
    sqs = sqs_as(server, root)
    attribute = {"a": {"DataType": "String", "StringValue": planted.bodies["attribute"]}}
    for queue, sse, body in (("plain", "false", "body"), ("sealed", "true", "sealed body")):
        given = {"SqsManagedSseEnabled": sse}
        url = sqs.create_queue(QueueName=queue, Attributes=given)["QueueUrl"]
        more = {"MessageAttributes": attribute} if queue == "plain" else {}
        sqs.send_message(QueueUrl=url, MessageBody=planted.all[body], **more)
        (message,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
        assert message["Body"] == planted.all[body]
        planted.bodies[f"receipt of {queue}"] = message["ReceiptHandle"]
    sqs.close()
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": name,
        "sasl_password": planted.secrets["password"],
    }
    produce(producer(server.kafka, **login), "plain", [planted.bodies["record"].encode()])
    produce(producer(server.kafka, **login), "sealed", [planted.secrets["sealed record"].encode()])


def set_password(operator: Operator, name: str, password: str) -> None:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    salt = os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 4_096)
    stored = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    credential = {
        "mechanism": "SCRAM-SHA-256",
        "salt": text(salt),
        "iterations": 4_096,
        "stored_key": text(stored),
        "server_key": text(server_key),
    }
    operator.ask("PUT", f"users/{name}/password", {"credentials": [credential]})


def fail_over_http(server: Server, planted: Planted, told: Told, root: Credentials) -> None:
    host = urlsplit(server.url).netloc
    body, half = planted.bodies["body"], planted.bodies["half a body"]
    good = json.dumps({"QueueUrl": "/000000000000/no-such", "MessageBody": body}).encode()
    spoilt = good.replace(b"no-such", b"plain").replace(b"canary-body", b"canary-body\\u0000")
    wrong = Credentials("PENSTOCKCANARYROOT01", planted.secrets["wrong password"])
    session = {"X-Amz-Security-Token": planted.secrets["session token"]}
    for credentials, data, headers in (
        (root, good, {}),
        (root, f'{{"MessageBody": "{half}'.encode(), {}),
        (root, f'{{"MessageBody": ["{half}"]}}'.encode(), {}),
        (root, good, session),
        (wrong, good, {}),
        (root, spoilt, {}),
        (root, json.dumps({"QueueUrl": half, "MessageBody": half}).encode(), {}),
    ):
        lines = dict(signed(server, "SendMessage", data, credentials=credentials, headers=headers))
        status, answer, _ = send(host, "POST", "/", data, lines)
        assert status >= 400
        signature = lines["Authorization"].rpartition("=")[2]
        assert signature.encode() not in answer
        told.errors.append(answer)
    for path in (
        f"/?Action=SendMessage&MessageBody={half}&X-Amz-Signature={half}",
        f"/{half}?Action=Nothing&Secret={planted.secrets['wrong password']}",
    ):
        told.errors.append(send(host, "GET", path, None, {"authorization": f"Bearer {half}"})[1])
    # Somebody leaves in the middle of a body, and in the middle of an answer.
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\nAuthorization: {half}\r\nContent-Length: 99\r\n\r\n"
    for data in (head.encode() + half.encode(), head.encode() + half.ljust(99).encode()):
        with RawConnection(server.port) as connection:
            connection.send(data)


def use_tokens(server: Server, planted: Planted, root: Credentials) -> None:
    with Wire(server) as wire:
        wire.log_in(str(root.access_key), str(root.secret_key))
        for name in ("kept", "ended"):
            made = wire.ask("CreateDelegationToken", 3, owner_principal_name=None, renewers=())
            planted.hmacs[name] = made.hmac
            assert wire.ask("RenewDelegationToken", 2, hmac=made.hmac).error_code == 0
        assert len(wire.ask("DescribeDelegationToken", 3, owners=None).tokens) == 2
        ended = wire.ask(
            "ExpireDelegationToken", 2, hmac=planted.hmacs["ended"], expiry_time_period_ms=-1
        )
        assert ended.error_code == 0
    for name in planted.hmacs:  # an HMAC where a name belongs
        with Wire(server) as wire:
            assert wire.ask("SaslHandshake", 1, mechanism="SCRAM-SHA-512").error_code == 0
            typed = base64.b64encode(planted.hmacs[name]).decode().rstrip("=")
            first = f"n,,n={typed},r={'r' * 20},tokenauth=true"
            wire.ask("SaslAuthenticate", 2, auth_bytes=first.encode())


def fail_over_kafka(server: Server, planted: Planted) -> None:
    typed, wrong = planted.secrets["password typed as a name"], planted.secrets["wrong password"]
    for mechanism, token in (
        ("PLAIN", f"\0{typed}\0{wrong}"),
        ("PLAIN", f"{typed}\0PENSTOCKCANARYROOT01\0{wrong}"),
        ("PLAIN", wrong),
        ("SCRAM-SHA-256", f"n,,n={typed},r={wrong}"),
        ("SCRAM-SHA-512", f"{wrong}"),
    ):
        with Wire(server, client_id=typed) as wire:
            assert wire.ask("SaslHandshake", 1, mechanism=mechanism).error_code == 0
            wire.ask("SaslAuthenticate", 2, auth_bytes=token.encode())
    with Wire(server) as wire:
        wire.ask("SaslHandshake", 1, mechanism=typed)
        wire.send(framed(wrong.encode()))
        wire.read_frame()
    record = planted.bodies["record"].encode()
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "PENSTOCKCANARYROOT01",
        "sasl_password": planted.secrets["root secret"],
    }
    with pytest.raises(Sent):
        produce(producer(server.kafka, message_max_bytes=3_000_000, **login), "plain",
                [record * 50_000])  # fmt: skip


def fail_as_operator(planted: Planted, operator: Operator, told: Told) -> None:
    secret, policy = planted.secrets["wrong password"], planted.bodies["policy"]
    for method, path, body in (
        ("POST", "login", {"key_id": "PENSTOCKCANARYROOT01", "secret": secret}),
        ("POST", "login", {"key_id": secret, "secret": [secret]}),
        ("POST", "users", {"name": f"{secret} with blanks", "password": secret}),
        ("PUT", "users/no-such/password", {"credentials": [{"mechanism": secret}]}),
        ("PUT", "policies/root/p", {"Statement": [{"Effect": policy, "Sid": policy}]}),
        ("PATCH", "keys/no-such", {"status": secret}),
        ("GET", f"queues?limit={secret}", None),
    ):
        status, answer = operator.try_(method, path, body)
        assert status >= 400, path
        told.errors.append(answer)


def look_around(server: Server, planted: Planted, told: Told) -> None:
    """All that an operator can be shown, apart from messages, which are shown to be seen."""
    host = urlsplit(server.admin_url).netloc
    headers = {"authorization": f"Bearer {planted.secrets['admin token']}"}
    for path in (
        *("/metrics", "/metrics/objects", "/healthz", "/readyz", "/startupz"),
        *(f"/api/v1/{name}" for name in ("info", "config", "queues", "tenants", "users", "keys")),
        *("/api/v1/queues/plain", "/api/v1/queues/sealed", "/api/v1/users/root"),
        *("/api/v1/keys/PENSTOCKCANARYROOT01", "/api/v1/policies/root", "/api/v1/callees"),
    ):
        status, answer, _ = send(host, "GET", path, None, headers)
        assert status == 200, f"{path}: {status}"
        told.shown[path] = answer
    path = "/_penstock/info"
    told.shown[path] = send(urlsplit(server.url).netloc, "GET", path, None, {})[1]
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": "PENSTOCKCANARYROOT01",
        "sasl_password": planted.secrets["root secret"],
    }
    for topic in ("__audit", "__usage"):
        records = read_all(server.kafka, topic, **login)  # type: ignore[arg-type]
        told.shown[topic] = b"\n".join(
            (record.key() or b"") + b" " + (record.value() or b"") for record in records
        )


def test_no_error_repeats_a_secret(told: Told, planted: Planted) -> None:
    """Nor a body: what was wrong is said, not what was sent."""
    assert len(told.errors) > 15
    shown = b"\n".join(told.errors)
    assert not leaks(planted.all, shown)


def test_no_metric_or_admin_answer_or_topic_of_the_node_shows_a_secret(
    told: Told, planted: Planted
) -> None:
    assert b"penstock_" in told.shown["/metrics"]
    assert b"CreateQueue" in told.shown["__audit"]
    assert b"RenewDelegationToken" in told.shown["__audit"]
    for path, text in told.shown.items():
        assert not leaks(planted.all, text), path
        assert not leaks(planted.hmacs, text), path


def test_no_log_line_shows_a_secret(loud: Server, told: Told, planted: Planted) -> None:
    assert loud.stop() == 0, loud.stderr_tail()
    text = loud.stderr.encode()
    assert b"login rejected" in text, "the log was too quiet to mean anything"
    assert not leaks(planted.all, text)
    assert not leaks(planted.hmacs, text)
    master = {"master key": base64.b64encode(planted.master).decode(), "raw": planted.master.hex()}
    assert not leaks(master, text)
    for line in loud.stderr.splitlines():
        json.loads(line)


def test_no_file_holds_a_secret_in_the_clear(loud: Server, told: Told, planted: Planted) -> None:
    files = [path for path in loud.data.rglob("*") if path.is_file()]
    everything = {path: path.read_bytes() for path in files}
    assert any(planted.bodies["body"].encode() in data for data in everything.values()), (
        "an unsealed body is there: the search works"
    )
    for path, data in everything.items():
        assert not leaks(planted.secrets, data), path
        assert not leaks(planted.hmacs, data), path
        for spelling in spellings(planted.master):
            assert spelling not in data, path


def test_a_master_key_that_was_made_here_is_for_its_owner_only(tmp_path: Path) -> None:
    with Server(tmp_path / "data", fsync="never") as server:
        keys = [path for path in server.data.rglob("*") if path.name == "master.key"]
        assert keys
        assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
        assert server.data.stat().st_mode & 0o007 == 0 or keys[0].stat().st_mode & 0o077 == 0


def test_the_settings_are_printed_without_secrets(planted: Planted, tmp_path: Path) -> None:
    token = planted.secrets["admin token"]
    env = {**os.environ, "PENSTOCK_ADMIN__TOKEN": token}
    command = [penstock_command(), "serve", "--print-config", "--data", str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, timeout=60, check=True)
    assert b"admin.token" in done.stdout
    assert token.encode() not in done.stdout + done.stderr


def test_the_search_finds_what_it_looks_for(planted: Planted) -> None:
    for name, value in planted.all.items():
        for text in (
            f"x{value}y".encode(),
            base64.b64encode(f"\0a\0{value}".encode()),
            base64.b64encode(f"{value} and more".encode()),
            value.encode().hex().encode(),
        ):
            assert name in leaks({name: value}, text)


def test_a_drawn_root_key_is_shown_once_and_not_in_the_log(tmp_path: Path) -> None:
    """On standard output, before the line that says ready; not at the next start."""
    outputs = []
    for _ in range(2):
        command = [penstock_command(), "serve", "--data", str(tmp_path / "data"), "--auth", "on"]
        command += ["--http", "127.0.0.1:0", "--kafka", "off", "--log-level", "debug"]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready"):
                break
        process.terminate()
        rest, log = process.communicate(timeout=30)
        outputs.append(("".join(lines) + rest, log))
    (first, first_log), (second, second_log) = outputs
    secret = secret_in(first)
    assert len(secret) >= 32
    assert first.count(secret) == 1
    assert secret not in first_log + second + second_log
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert not [path for path in files if leaks({"secret": secret}, path.read_bytes())]


def secret_in(text: str) -> str:
    """The longest word of what was shown: no key id and no address has as many letters."""
    words: list[Any] = text.replace("=", " ").replace('"', " ").split()
    return str(max((word for word in words if "://" not in word), key=len))
