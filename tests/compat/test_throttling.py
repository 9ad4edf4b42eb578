"""Limits and quotas as clients meet them: refused in a way that SDKs know, gone after a pause, and
never anybody else's trouble. They are set from the shell, as an operator sets them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.compat.conftest import REGION
from tests.harness.patience import eventually
from tests.harness.server import Server, penstock_command

ROOT_KEY_ID = "PENSTOCKTESTROOTKEY2"
ROOT_SECRET = "root-secret-of-the-throttling-test-0123456789"
HOLDS_WITHIN_SECONDS = 5.0


class Key(NamedTuple):
    key_id: str
    secret: str


ROOT = Key(ROOT_KEY_ID, ROOT_SECRET)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limited")
    secret = folder / "secret"
    secret.write_text(ROOT_SECRET)
    secret.chmod(0o600)
    running = Server(
        folder / "data",
        fsync="never",
        arguments=["--auth", "on"],
        env={"PENSTOCK_ROOT_KEY_ID": ROOT_KEY_ID, "PENSTOCK_ROOT_SECRET_FILE": str(secret)},
    )
    with running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def penstock(server: Server, *args: str, key: Key | None = ROOT) -> Any:
    """The program at a shell; its answer as JSON."""
    env = {n: v for n, v in os.environ.items() if not n.startswith(("PENSTOCK_", "AWS_"))}
    env |= {"PENSTOCK_ENDPOINT": server.url, "PENSTOCK_ADMIN": server.admin_url}
    if key is not None:
        env |= {"PENSTOCK_KEY_ID": key.key_id, "PENSTOCK_SECRET": key.secret}
    done = subprocess.run(
        [penstock_command(), "--output", "json", *args],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{args}: {done.stderr}"
    return json.loads(done.stdout) if done.stdout.strip() else None


class Account(NamedTuple):
    name: str
    key: Key


@pytest.fixture
def new_tenant(server: Server) -> Callable[[], Account]:
    """A tenant with one user who may do everything, and its key."""

    def make() -> Account:
        name = f"t-{uuid.uuid4().hex[:10]}"
        penstock(server, "tenant", "create", name)
        penstock(server, "user", "create", "ann", "--tenant", name, "--administrator")
        made = penstock(server, "key", "create", "ann", "--tenant", name)
        return Account(name, Key(made["key_id"], made["secret"]))

    return make


Connect = Callable[..., Any]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    with ExitStack() as closing:

        def client(key: Key, *, url: str = "", attempts: int = 1, mode: str = "standard") -> Any:
            config = Config(
                retries={"total_max_attempts": attempts, "mode": mode},
                connect_timeout=5,
                read_timeout=30,
                max_pool_connections=50,
            )
            one = boto3.client(
                "sqs",
                endpoint_url=url or server.url,
                region_name=REGION,
                aws_access_key_id=key.key_id,
                aws_secret_access_key=key.secret,
                config=config,
            )
            closing.callback(one.close)
            return one

        yield client


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return "OK"


def refusal(client: Any) -> dict[str, Any]:
    try:
        client.list_queues()
    except ClientError as error:
        return dict(error.response)
    return {}


def flood(client: Any, url: str, count: int) -> list[str]:
    def send(number: int) -> str:
        return code_of(lambda: client.send_message(QueueUrl=url, MessageBody=str(number)))

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(send, range(count)))


def test_above_its_limit_a_tenant_is_refused_and_told_when_to_come_again(
    server: Server, new_tenant: Callable[[], Account], connect: Connect
) -> None:
    tenant = new_tenant()
    client = connect(tenant.key)
    url = client.create_queue(QueueName="q")["QueueUrl"]
    penstock(server, "quota", "set", tenant.name, "--requests-per-second", "5", "--burst", "5")
    codes = flood(client, url, 40)
    assert set(codes) == {"OK", "RequestThrottled"}
    response = eventually(lambda: refusal(client), seconds=5, what="a refusal")["ResponseMetadata"]
    assert response["HTTPStatusCode"] == 403
    assert 1 <= int(response["HTTPHeaders"]["retry-after"]) <= 60
    assert 1 <= int(response["HTTPHeaders"]["x-amz-retry-after"]) <= 60_000


@pytest.mark.parametrize("mode", ["standard", "legacy", "adaptive"])
def test_an_sdk_that_retries_gets_everything_through(
    server: Server, new_tenant: Callable[[], Account], connect: Connect, mode: str
) -> None:
    tenant = new_tenant()
    url = connect(tenant.key).create_queue(QueueName="q")["QueueUrl"]
    penstock(server, "quota", "set", tenant.name, "--requests-per-second", "20", "--burst", "20")
    patient = connect(tenant.key, attempts=12, mode=mode)
    started = time.monotonic()
    assert flood(patient, url, 60) == ["OK"] * 60
    assert time.monotonic() - started > 1.5, "sixty do not fit into twenty a second and a burst"
    penstock(server, "quota", "set", tenant.name, "--requests-per-second", "0")

    def count() -> int:
        asked = ["ApproximateNumberOfMessages"]
        got = patient.get_queue_attributes(QueueUrl=url, AttributeNames=asked)["Attributes"]
        return int(got["ApproximateNumberOfMessages"])

    eventually(lambda: count() == 60, seconds=5, what="each message once")


def test_a_tenant_that_floods_leaves_the_other_alone(
    server: Server, new_tenant: Callable[[], Account], connect: Connect
) -> None:
    noisy, quiet = new_tenant(), new_tenant()
    penstock(server, "quota", "set", noisy.name, "--requests-per-second", "10", "--burst", "10")
    noisy_client, quiet_client = connect(noisy.key), connect(quiet.key)
    noisy_url = eventually(
        lambda: _created(noisy_client), seconds=5, what="a queue of the noisy one"
    )
    quiet_url = quiet_client.create_queue(QueueName="q")["QueueUrl"]
    over = threading.Event()
    refused: list[str] = []

    def make_noise() -> None:
        while not over.is_set():
            refused.extend(c for c in flood(noisy_client, noisy_url, 16) if c != "OK")

    with ThreadPoolExecutor(1) as pool:
        noise = pool.submit(make_noise)
        try:
            assert flood(quiet_client, quiet_url, 100) == ["OK"] * 100
        finally:
            over.set()
        noise.result()
    assert set(refused) == {"RequestThrottled"}


def _created(client: Any) -> str:
    try:
        return str(client.create_queue(QueueName="q")["QueueUrl"])
    except ClientError:
        return ""


def test_limits_that_an_operator_changes_hold_within_seconds(
    server: Server, new_tenant: Callable[[], Account], connect: Connect
) -> None:
    tenant = new_tenant()
    client = connect(tenant.key)
    url = client.create_queue(QueueName="q")["QueueUrl"]

    def is_limited() -> bool:
        return "RequestThrottled" in flood(client, url, 30)

    assert not is_limited()
    set_at = time.monotonic()
    penstock(server, "quota", "set", tenant.name, "--requests-per-second", "2")
    eventually(is_limited, seconds=HOLDS_WITHIN_SECONDS, what="the new limit")
    penstock(server, "quota", "set", tenant.name, "--requests-per-second", "0")
    eventually(lambda: not is_limited(), seconds=HOLDS_WITHIN_SECONDS, what="no limit again")
    assert time.monotonic() - set_at < 30
    penstock(server, "quota", "set", tenant.name, "--operation", "sqs:ListQueues=1:1")
    assert "RequestThrottled" in [code_of(client.list_queues) for _ in range(5)]
    assert not is_limited(), "another operation"


def test_queues_stored_bytes_and_long_polls_have_an_end(
    server: Server, new_tenant: Callable[[], Account], connect: Connect
) -> None:
    tenant = new_tenant()
    client = connect(tenant.key)
    penstock(server, "quota", "set", tenant.name, "--queues-max", "2", "--waits-max", "3")
    urls = [client.create_queue(QueueName=f"q{number}")["QueueUrl"] for number in range(2)]
    assert code_of(lambda: client.create_queue(QueueName="q2")) == "OverLimit"
    assert client.create_queue(QueueName="q1")["QueueUrl"] == urls[1], "it is there already"
    client.delete_queue(QueueUrl=urls[1])
    client.create_queue(QueueName="q2")

    def poll(_: int) -> str:
        return code_of(lambda: client.receive_message(QueueUrl=urls[0], WaitTimeSeconds=8))

    with ThreadPoolExecutor(6) as pool:
        codes = sorted(pool.map(poll, range(6)))
    assert codes == ["OK"] * 3 + ["RequestThrottled"] * 3

    penstock(server, "quota", "set", tenant.name, "--stored-bytes-max", "300KiB")
    body = "x" * 100_000

    def is_full() -> bool:
        return code_of(lambda: client.send_message(QueueUrl=urls[0], MessageBody=body)) != "OK"

    eventually(is_full, seconds=2 * HOLDS_WITHIN_SECONDS, what="the quota of bytes")
    refused = code_of(lambda: client.send_message(QueueUrl=urls[0], MessageBody=body))
    assert refused == "OverLimit"
    assert client.receive_message(QueueUrl=urls[0])["Messages"], "what is there can be had"


def test_connections_of_a_tenant_have_an_end(
    server: Server, new_tenant: Callable[[], Account], connect: Connect
) -> None:
    tenant = new_tenant()
    penstock(server, "quota", "set", tenant.name, "--connections-max", "2")
    clients = [connect(tenant.key) for _ in range(4)]
    codes = [code_of(client.list_queues) for client in clients]
    assert codes == ["OK", "OK", "RequestThrottled", "RequestThrottled"]
    assert [code_of(client.list_queues) for client in clients[:2]] == ["OK", "OK"]
    clients[0].close()
    eventually(
        lambda: code_of(clients[2].list_queues) == "OK", seconds=5, what="the place that was left"
    )


@contextmanager
def answer_eater(port: int, *, eats: int) -> Iterator[str]:
    """A proxy that passes each request on and lets its answer come back, but for the first ones:
    of those the connection breaks when the answer has come. ``Connection: close`` keeps it at one
    request each."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = [eats]

    def carry(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", port)) as inner:
            client.settimeout(10)
            inner.settimeout(10)
            data = b""
            while not _is_whole(data):
                data += client.recv(65_536)
            head, mark, body = data.partition(b"\r\n\r\n")
            inner.sendall(head + b"\r\nConnection: close" + mark + body)
            answer = b""
            while part := inner.recv(65_536):
                answer += part
            assert answer.startswith(b"HTTP/1.1 200"), answer
            if left[0] > 0:
                left[0] -= 1
                return
            client.sendall(answer)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            carry(client)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _is_whole(data: bytes) -> bool:
    head, mark, body = data.partition(b"\r\n\r\n")
    if not mark:
        return False
    lengths = [
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    return len(body) >= (lengths[0] if lengths else 0)


@pytest.mark.parametrize("mode", ["standard", "legacy"])
def test_a_message_whose_answer_was_lost_is_sent_again_and_stored_once(
    server: Server, new_tenant: Callable[[], Account], connect: Connect, mode: str
) -> None:
    tenant = new_tenant()
    direct = connect(tenant.key)
    url = direct.create_queue(QueueName="q")["QueueUrl"]
    with answer_eater(server.port, eats=2) as proxy:
        client = connect(tenant.key, url=proxy, attempts=5, mode=mode)
        sent = client.send_message(QueueUrl=url, MessageBody="once")
        assert sent["ResponseMetadata"]["RetryAttempts"] == 2
    received = direct.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert [message["MessageId"] for message in received] == [sent["MessageId"]]
    assert "Messages" not in direct.receive_message(QueueUrl=url, MaxNumberOfMessages=10)


def test_kafka_clients_are_told_of_the_same_quotas(tmp_path: Path) -> None:
    """Without authentication everybody is of the node's own tenant, which can have quotas too."""
    with Server(tmp_path, fsync="never", kafka_port=0) as server:
        penstock(server, "quota", "set", "default", "--queues-max", "1", key=None)
        admin = AdminClient({"bootstrap.servers": server.kafka})
        admin.create_topics([NewTopic("one", 1, 1)])["one"].result(10)
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([NewTopic("two", 1, 1)])["two"].result(10)
        assert refused.value.args[0].name() == "POLICY_VIOLATION"
        penstock(server, "quota", "set", "default", "--stored-bytes-max", "1000", key=None)
        failures: list[str] = []
        producer = Producer({"bootstrap.servers": server.kafka, "message.timeout.ms": 5_000})

        def is_refused() -> bool:
            producer.produce(
                "one",
                b"x" * 2_000,
                on_delivery=lambda error, _: failures.append("" if error is None else error.name()),
            )
            producer.flush(10)
            return failures[-1] == "POLICY_VIOLATION"

        eventually(is_refused, seconds=2 * HOLDS_WITHIN_SECONDS, what="the quota of bytes")
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
