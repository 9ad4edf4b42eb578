"""Signatures and policies with real clients, against a server that asks everybody who they are.

Users and keys are made through the admin API, as an operator makes them; every change must be felt
within five seconds."""

from __future__ import annotations

import datetime
import http.client
import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode, urlsplit

import boto3
import botocore.auth
import pytest
from aiobotocore.session import get_session
from botocore import UNSIGNED
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from tests.compat.conftest import REGION
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection
from tests.harness.server import Server

ROOT = Credentials("PENSTOCKTESTROOTKEY1", "root-secret/with+signs=0123456789abcdef")
REVOKED_SECONDS_MAX = 5.0
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"
AWS = Path(sys.prefix) / "awscli" / "bin" / "aws"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("locked")
    secret = folder / "secret"
    secret.write_text(ROOT.secret_key)
    secret.chmod(0o600)
    running = Server(
        folder / "data",
        fsync="never",
        arguments=["--auth", "on"],
        env={
            "PENSTOCK_ROOT_KEY_ID": ROOT.access_key,
            "PENSTOCK_ROOT_SECRET_FILE": str(secret),
        },
    )
    with running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()
        assert ROOT.secret_key not in running.stderr


class Operator:
    """The admin API, as root."""

    def __init__(self, server: Server) -> None:
        self._host = urlsplit(server.admin_url).netloc
        self._token = ""
        login = {"key_id": ROOT.access_key, "secret": ROOT.secret_key}
        self._token = self.ask("POST", "login", login)["token"]

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._token}"}
        if not self._token:
            del headers["authorization"]
        connection = http.client.HTTPConnection(self._host, timeout=10)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, f"/api/v1/{path}", text, headers)
            reply = connection.getresponse()
            data = reply.read()
            assert reply.status < 300, f"{method} {path}: {reply.status} {data!r}"
            return json.loads(data)
        finally:
            connection.close()

    def tenant(self) -> str:
        made = self.ask("POST", "tenants", {"name": f"t-{uuid.uuid4().hex[:12]}"})
        return str(made["account"])

    def user(self, *statements: dict[str, Any], tenant: str = "") -> tuple[str, Credentials]:
        name = f"u-{uuid.uuid4().hex[:12]}"
        policies = {"p": policy(*statements)} if statements else {}
        where = {"tenant": tenant} if tenant else {}
        self.ask("POST", "users", {"name": name, "policies": policies, **where})
        made = self.ask("POST", "keys", {"user": name, **where})
        return name, Credentials(made["key_id"], made["secret"])

    def set_policy(self, user: str, *statements: dict[str, Any]) -> None:
        self.ask("PUT", f"policies/{user}/p", json.loads(policy(*statements)))


@pytest.fixture(scope="module")
def operator(server: Server) -> Operator:
    return Operator(server)


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: str | list[str], resource: str = "*") -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource}


EVERYTHING = allow("*")

Connect = Callable[..., Any]


@pytest.fixture
def connect(server: Server) -> Iterator[Connect]:
    """``connect(credentials)``: a boto3 client that shows each answer as it came."""
    made: list[Any] = []

    def client(credentials: Credentials = ROOT, *, service: str = "sqs", **settings: Any) -> Any:
        config = Config(
            retries={"max_attempts": 0, "mode": "standard"}, read_timeout=30, **settings
        )
        one = boto3.client(
            service,
            endpoint_url=server.url,
            region_name=REGION,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            config=config,
        )
        made.append(one)
        return one

    yield client
    for one in made:
        one.close()


def refusal(call: Callable[[], Any]) -> tuple[str, int, str]:
    with pytest.raises(ClientError) as caught:
        call()
    response = caught.value.response
    status: int = response["ResponseMetadata"]["HTTPStatusCode"]
    return response["Error"]["Code"], status, response["Error"]["Message"]


def is_refused(call: Callable[[], Any], code: str) -> bool:
    try:
        call()
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == code)
    return False


# ── Who ──────────────────────────────────────────────────────────────────────────────────────


def test_whoever_has_the_key_is_let_in(connect: Connect, queue_name: Callable[..., str]) -> None:
    sqs = connect()
    url = sqs.create_queue(QueueName=queue_name())["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="hällo ☃  two  blanks")
    got = sqs.receive_message(QueueUrl=url, AttributeNames=["SenderId"], WaitTimeSeconds=5)
    (message,) = got["Messages"]
    assert message["Body"] == "hällo ☃  two  blanks"
    identity = connect(service="sts").get_caller_identity()
    assert identity["Arn"] == f"arn:aws:iam::{identity['Account']}:user/root"
    assert message["Attributes"]["SenderId"] == identity["UserId"]
    assert f"/{identity['Account']}/" in url


async def test_the_asyncio_sdk_signs_as_well(
    server: Server, queue_name: Callable[..., str]
) -> None:
    async with get_session().create_client(
        "sqs",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id=ROOT.access_key,
        aws_secret_access_key=ROOT.secret_key,
    ) as sqs:
        url = (await sqs.create_queue(QueueName=queue_name()))["QueueUrl"]
        sent = await sqs.send_message(QueueUrl=url, MessageBody="x")
        (message,) = (await sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5))["Messages"]
        assert message["MessageId"] == sent["MessageId"]


@pytest.mark.slow
@pytest.mark.skipif(not AWS.exists(), reason=f"no AWS command line at {AWS}")
def test_the_aws_command_line_signs_as_well(server: Server, tmp_path: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": ROOT.access_key,
        "AWS_SECRET_ACCESS_KEY": ROOT.secret_key,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_PAGER": "",
    }
    command = [str(AWS), "--endpoint-url", server.url, "--output", "json"]
    asked = [*command, "sts", "get-caller-identity"]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["Arn"].endswith(":user/root")
    asked = [*command, "sqs", "create-queue", "--queue-name", "by-command-line"]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert "/by-command-line" in json.loads(done.stdout)["QueueUrl"]


def test_a_wrong_secret_is_refused(connect: Connect) -> None:
    sqs = connect(Credentials(ROOT.access_key, "another-secret"))
    code, status, message = refusal(sqs.list_queues)
    assert (code, status) == ("SignatureDoesNotMatch", 403)
    assert "does not match the signature you provided" in message


def test_an_unknown_key_is_refused(connect: Connect) -> None:
    for key in ("PENSTOCKNOSUCHKEY001", "000000000000"):
        sqs = connect(Credentials(key, ROOT.secret_key))
        assert refusal(sqs.list_queues)[:2] == ("InvalidClientTokenId", 403)


def test_a_session_token_is_of_no_use(server: Server) -> None:
    sqs = boto3.client(
        "sqs",
        endpoint_url=server.url,
        region_name=REGION,
        aws_access_key_id=ROOT.access_key,
        aws_secret_access_key=ROOT.secret_key,
        aws_session_token="token",
    )
    assert refusal(sqs.list_queues)[0] == "InvalidClientTokenId"
    sqs.close()


def test_an_unsigned_request_is_refused(connect: Connect) -> None:
    sqs = connect(signature_version=UNSIGNED)
    assert refusal(sqs.list_queues)[:2] == ("MissingAuthenticationToken", 403)


@pytest.mark.parametrize(
    ("minutes", "words"), [(-16, "Signature expired: "), (16, "Signature not yet current: ")]
)
def test_a_clock_that_is_off_is_refused(connect: Connect, minutes: int, words: str) -> None:
    sqs = connect()
    off = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
    with patch.object(botocore.auth, "get_current_datetime", lambda: off):
        code, status, message = refusal(sqs.list_queues)
    assert (code, status) == ("SignatureDoesNotMatch", 403)
    assert message.startswith(words)
    near = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes * 0.8)
    with patch.object(botocore.auth, "get_current_datetime", lambda: near):
        sqs.list_queues()


# ── Keys come and go ─────────────────────────────────────────────────────────────────────────


def test_a_disabled_key_ends_soon_and_can_come_back(connect: Connect, operator: Operator) -> None:
    _, credentials = operator.user(EVERYTHING)
    sqs = connect(credentials)
    sqs.list_queues()
    operator.ask("PATCH", f"keys/{credentials.access_key}", {"status": "disabled"})
    eventually(
        lambda: is_refused(sqs.list_queues, "InvalidClientTokenId"),
        seconds=REVOKED_SECONDS_MAX,
        what="a disabled key is refused",
    )
    operator.ask("PATCH", f"keys/{credentials.access_key}", {"status": "active"})
    eventually(
        lambda: not is_refused(sqs.list_queues, "InvalidClientTokenId"),
        seconds=REVOKED_SECONDS_MAX,
        what="an enabled key is let in",
    )


def test_a_rotated_key_works_beside_the_old_one_until_that_is_disabled(
    connect: Connect, operator: Operator
) -> None:
    _, old = operator.user(EVERYTHING)
    made = operator.ask("POST", f"keys/{old.access_key}/rotate", {})
    new = Credentials(made["key_id"], made["secret"])
    before, after = connect(old), connect(new)
    before.list_queues()
    after.list_queues()
    operator.ask("PATCH", f"keys/{old.access_key}", {"status": "disabled"})
    eventually(
        lambda: is_refused(before.list_queues, "InvalidClientTokenId"),
        seconds=REVOKED_SECONDS_MAX,
        what="the old key is refused",
    )
    after.list_queues()
    mixed = connect(Credentials(new.access_key, str(old.secret_key)))
    assert refusal(mixed.list_queues)[0] == "SignatureDoesNotMatch"


def test_a_deleted_user_ends_soon(connect: Connect, operator: Operator) -> None:
    name, credentials = operator.user(EVERYTHING)
    sqs = connect(credentials)
    sqs.list_queues()
    operator.ask("DELETE", f"users/{name}")
    eventually(
        lambda: is_refused(sqs.list_queues, "InvalidClientTokenId"),
        seconds=REVOKED_SECONDS_MAX,
        what="the keys of a deleted user are refused",
    )


def test_a_suspended_tenant_is_refused_and_loses_nothing(
    connect: Connect, operator: Operator, queue_name: Callable[..., str]
) -> None:
    tenant = operator.tenant()
    _, credentials = operator.user(EVERYTHING, tenant=tenant)
    sqs = connect(credentials)
    url = sqs.create_queue(QueueName=queue_name())["QueueUrl"]
    operator.ask("PATCH", f"tenants/{tenant}", {"is_suspended": True})
    eventually(
        lambda: is_refused(sqs.list_queues, "AccessDenied"),
        seconds=REVOKED_SECONDS_MAX,
        what="a suspended tenant is refused",
    )
    operator.ask("PATCH", f"tenants/{tenant}", {"is_suspended": False})
    eventually(
        lambda: not is_refused(sqs.list_queues, "AccessDenied"),
        seconds=REVOKED_SECONDS_MAX,
        what="a tenant comes back",
    )
    assert sqs.list_queues()["QueueUrls"] == [url]


# ── Presigned URLs and requests by hand ──────────────────────────────────────────────────────


def fetch(server: Server, url: str, *, method: str = "GET") -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    try:
        connection.request(method, f"{parts.path or '/'}?{parts.query}")
        reply = connection.getresponse()
        return reply.status, reply.read().decode()
    finally:
        connection.close()


def presigned(
    server: Server, path: str, *, method: str = "GET", expires: int = 60, **fields: str
) -> str:
    text = urlencode({"Version": "2012-11-05", **fields})
    request = AWSRequest(method, f"{server.url}{path}?{text.replace('+', '%20')}")
    SigV4QueryAuth(ROOT, "sqs", REGION, expires=expires).add_auth(request)
    return str(request.url)


def code_of(text: str) -> str:
    found = re.search("<Code>(.*?)</Code>", text)
    return "" if found is None else found[1]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_presigned_url_is_good_for_what_it_says(
    server: Server, connect: Connect, queue_name: Callable[..., str], method: str
) -> None:
    sqs = connect()
    url = sqs.create_queue(QueueName=queue_name())["QueueUrl"]
    path = urlsplit(url).path
    body = "a b+c&d=ü/~"
    link = presigned(server, path, method=method, Action="SendMessage", MessageBody=body)
    assert fetch(server, link, method=method)[0] == 200
    (message,) = sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == body
    other = "POST" if method == "GET" else "GET"
    for spoilt, how in (
        (link.replace("SendMessage", "PurgeQueue"), method),
        (link.replace("a%20b", "a%20c"), method),
        (link.replace("b%2Bc", "b+c"), method),
        (link, other),
    ):
        status, text = fetch(server, spoilt, method=how)
        assert (status, code_of(text)) == (403, "SignatureDoesNotMatch"), spoilt


def test_a_presigned_url_ends(server: Server) -> None:
    then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=90)
    with patch.object(botocore.auth, "get_current_datetime", lambda: then):
        ended = presigned(server, "/", Action="ListQueues", expires=60)
        running = presigned(server, "/", Action="ListQueues", expires=600)
    status, text = fetch(server, ended)
    assert (status, code_of(text)) == (403, "SignatureDoesNotMatch")
    assert "Signature expired" in text
    assert fetch(server, running)[0] == 200
    too_long = presigned(server, "/", Action="ListQueues", expires=604_801)
    status, text = fetch(server, too_long)
    assert (status, code_of(text)) == (400, "IncompleteSignature")


def signed_lines(
    server: Server, body: bytes, *, path: str = "/", target: str = "AmazonSQS.ListQueues"
) -> dict[str, str]:
    host = urlsplit(server.url).netloc
    headers = {
        "Host": host,
        "X-Amz-Target": target,
        "Content-Type": "application/x-amz-json-1.0",
        "X-Note": "one",
    }
    request = AWSRequest("POST", f"http://{host}{path}", headers=headers, data=body)
    SigV4Auth(ROOT, "sqs", REGION).add_auth(request)
    return dict(request.headers.items())


def exchange(
    server: Server,
    lines: dict[str, str],
    body: bytes,
    *,
    path: str = "/",
    more: tuple[tuple[str, str], ...] = (),
) -> tuple[int, bytes]:
    pairs = [*lines.items(), *more, ("Content-Length", str(len(body)))]
    head = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    with RawConnection(server.port) as connection:
        connection.send(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        reply = connection.read_reply()
        return reply.statuses[0], reply.data


def test_a_request_by_hand_is_good_as_it_was_signed_and_only_so(server: Server) -> None:
    body = b'{"QueueNamePrefix":"x"}'
    lines = signed_lines(server, body)
    assert exchange(server, lines, body)[0] == 200
    assert exchange(server, {**lines, "X-Note": "  one "}, body)[0] == 200
    without = {name: value for name, value in lines.items() if name != "X-Note"}
    tampered = [
        exchange(server, lines, body.replace(b"x", b"y")),
        exchange(server, {**lines, "X-Amz-Target": "AmazonSQS.PurgeQueue"}, body),
        exchange(server, {**lines, "X-Note": "two"}, body),
        exchange(server, without, body),
        exchange(server, lines, body, path="/000000000000/q"),
        exchange(server, lines, body, path="/?Action=ListQueues"),
        exchange(server, lines, body, more=(("X-Note", "one"),)),
        exchange(server, {**lines, "X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD"}, body),
    ]
    for status, data in tampered:
        assert status == 403, data
        assert b"InvalidSignatureException" in data
    assert exchange(server, lines, body, more=(("X-Amz-Date", lines["X-Amz-Date"]),))[0] == 400
    both = (("Authorization", lines["Authorization"]),)
    assert exchange(server, lines, body, more=both)[0] == 400


def test_a_header_signed_with_two_values_may_come_in_two_lines(server: Server) -> None:
    body = b"{}"
    host = urlsplit(server.url).netloc
    headers = {"Host": host, "X-Amz-Target": "AmazonSQS.ListQueues", "X-Note": "one,two"}
    request = AWSRequest("POST", f"http://{host}/", headers=headers, data=body)
    SigV4Auth(ROOT, "sqs", REGION).add_auth(request)
    lines = dict(request.headers.items())
    assert exchange(server, lines, body)[0] == 200
    split = {**lines, "X-Note": "one"}
    assert exchange(server, split, body, more=(("x-note", "two"),))[0] == 200
    assert exchange(server, {**lines, "X-Note": "two"}, body, more=(("x-note", "one"),))[0] == 403


def test_signing_in_two_ways_at_once_is_refused(server: Server) -> None:
    link = urlsplit(presigned(server, "/", method="POST", Action="ListQueues"))
    path = f"{link.path}?{link.query}"
    lines = signed_lines(server, b"", path=path)
    status, data = exchange(server, lines, b"", path=path)
    assert (status, b"IncompleteSignature" in data) == (400, True)


def test_a_form_is_signed_like_anything_else(server: Server) -> None:
    body = urlencode({"Action": "ListQueues", "Version": "2012-11-05"}).encode()
    host = urlsplit(server.url).netloc
    headers = {"Host": host, "Content-Type": "application/x-www-form-urlencoded"}
    request = AWSRequest("POST", f"http://{host}/", headers=headers, data=body)
    SigV4Auth(ROOT, "sqs", REGION).add_auth(request)
    lines = dict(request.headers.items())
    status, data = exchange(server, lines, body)
    assert (status, b"<ListQueuesResponse" in data) == (200, True)
    status, data = exchange(server, lines, body + b"&MaxResults=1")
    assert (status, b"<Code>SignatureDoesNotMatch</Code>" in data) == (403, True)


def test_nothing_is_reset_by_strangers(server: Server) -> None:
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=10)
    connection.request("POST", "/_penstock/reset")
    assert connection.getresponse().status == 403
    connection.close()


# ── May they ─────────────────────────────────────────────────────────────────────────────────


def test_a_user_may_what_its_policy_says_and_changes_are_felt_soon(
    connect: Connect, operator: Operator, queue_name: Callable[..., str]
) -> None:
    root = connect()
    url = root.create_queue(QueueName=queue_name())["QueueUrl"]
    names = ["QueueArn"]
    arn = root.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]["QueueArn"]
    name, credentials = operator.user(allow("sqs:SendMessage", arn))
    sqs = connect(credentials)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    entries = [{"Id": "1", "MessageBody": "y"}]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 1
    code, status, message = refusal(lambda: sqs.receive_message(QueueUrl=url))
    assert (code, status) == ("AccessDenied", 403)
    assert f"user/{name} is not authorized to perform: sqs:receivemessage" in message
    assert refusal(sqs.list_queues)[0] == "AccessDenied"
    operator.set_policy(name, allow("sqs:ReceiveMessage", arn))
    eventually(
        lambda: is_refused(lambda: sqs.send_message(QueueUrl=url, MessageBody="z"), "AccessDenied"),
        seconds=REVOKED_SECONDS_MAX,
        what="a right taken back is gone",
    )
    sqs.receive_message(QueueUrl=url)


def test_tenants_do_not_see_each_other_unless_both_agree(
    connect: Connect, operator: Operator, queue_name: Callable[..., str]
) -> None:
    ours = connect()
    tenant = operator.tenant()
    _, credentials = operator.user(EVERYTHING, tenant=tenant)
    theirs = connect(credentials)
    name = queue_name()
    url = ours.create_queue(QueueName=name)["QueueUrl"]
    missing = url.replace(name, "no-such-queue")
    told = [
        refusal(lambda u=u: theirs.send_message(QueueUrl=u, MessageBody="x"))  # type: ignore[misc]
        for u in (url, missing)
    ]
    assert told[0] == told[1]
    assert told[0][0] == NO_QUEUE
    assert url not in theirs.list_queues().get("QueueUrls", [])
    ours.add_permission(
        QueueUrl=url, Label="friend", AWSAccountIds=[tenant], Actions=["SendMessage"]
    )
    theirs.send_message(QueueUrl=url, MessageBody="from a friend")
    assert refusal(lambda: theirs.receive_message(QueueUrl=url))[0] == "AccessDenied"
    (message,) = ours.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]
    assert message["Body"] == "from a friend"
    ours.remove_permission(QueueUrl=url, Label="friend")
    assert refusal(lambda: theirs.send_message(QueueUrl=url, MessageBody="x"))[0] == NO_QUEUE


def test_a_receive_that_waits_is_not_answered_after_its_key_is_gone(
    connect: Connect, operator: Operator, queue_name: Callable[..., str]
) -> None:
    root = connect()
    name = queue_name()
    url = root.create_queue(QueueName=name)["QueueUrl"]
    _, credentials = operator.user(EVERYTHING)
    waiting, asking = connect(credentials), connect(credentials)
    with ThreadPoolExecutor(1) as pool:
        parked = pool.submit(waiting.receive_message, QueueUrl=url, WaitTimeSeconds=10)
        eventually(
            lambda: operator.ask("GET", f"queues/{name}")["stats"]["waits"] == 1,
            seconds=5,
            what="the receive is parked",
        )
        operator.ask("PATCH", f"keys/{credentials.access_key}", {"status": "disabled"})
        eventually(
            lambda: is_refused(asking.list_queues, "InvalidClientTokenId"),
            seconds=REVOKED_SECONDS_MAX,
            what="a disabled key is refused",
        )
        root.send_message(QueueUrl=url, MessageBody="not for you")
        assert is_refused(lambda: parked.result(timeout=15), "InvalidClientTokenId")
