"""What the attacks have in common: who knocks (root, users of tenants, nobody), how a request is
signed by hand so that it can be spoilt afterwards, and how one is thrown at a server byte by byte.
"""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from tests.harness.raw_http import RawConnection, RawReply
from tests.harness.server import Server

REGION = "us-east-1"
ROOT = Credentials("PENSTOCKATTACKROOT01", "root-canary/4b1d+e7a9=0c52f38d6b90a1e4")
REVOKED_SECONDS_MAX = 5.0
NO_QUEUE = "AWS.SimpleQueueService.NonExistentQueue"


class Operator:
    """The admin API, as root."""

    def __init__(self, server: Server, credentials: Credentials = ROOT) -> None:
        self.host = urlsplit(server.admin_url).netloc
        self.token = ""
        login = {"key_id": credentials.access_key, "secret": credentials.secret_key}
        self.token = str(self.ask("POST", "login", login)["token"])

    def ask(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.try_(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer!r}"
        return json.loads(answer)

    def try_(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        text = None if body is None else json.dumps(body)
        return send(self.host, method, f"/api/v1/{path}", text, headers)[:2]

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


def send(
    host: str,
    method: str,
    path: str,
    body: str | bytes | None,
    headers: dict[str, str],
    *,
    seconds: float = 15,
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body, and headers with their names in lower case."""
    connection = http.client.HTTPConnection(host, timeout=seconds)
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        data = reply.read()
        return reply.status, data, {name.lower(): value for name, value in reply.getheaders()}
    finally:
        connection.close()


def policy(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: str | list[str], resource: str = "*") -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource}


EVERYTHING = allow("*")


def sqs_as(server: Server, credentials: Credentials, *, url: str = "", **more: Any) -> Any:
    """A boto3 client that shows each answer as it came."""
    return boto3.client(
        "sqs",
        endpoint_url=url or server.url,
        region_name=REGION,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(retries={"max_attempts": 0, "mode": "standard"}, read_timeout=30),
        **more,
    )


def code_of(call: Any, **arguments: Any) -> str:
    """The error that a call ends with; empty when it does not."""
    try:
        call(**arguments)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


# ── Bytes ────────────────────────────────────────────────────────────────────────────────────


def signed(
    server: Server,
    target: str,
    body: bytes,
    *,
    path: str = "/",
    credentials: Credentials = ROOT,
    headers: dict[str, str] | None = None,
    region: str = REGION,
    service: str = "sqs",
) -> list[tuple[str, str]]:
    """The headers of a well signed JSON request, or of a form if there is no target, to be sent as
    they are or spoilt, in order."""
    host = urlsplit(server.url).netloc
    kind = "application/x-amz-json-1.0" if target else "application/x-www-form-urlencoded"
    given = {"Host": host, "Content-Type": kind, **(headers or {})}
    if target:
        given["X-Amz-Target"] = f"AmazonSQS.{target}"
    request = AWSRequest("POST", f"http://{host}{path}", headers=given, data=body)
    SigV4Auth(credentials, service, region).add_auth(request)
    return list(request.headers.items())


# Fields of SNS requests that are maps. Other objects are structs.
SNS_MAPS = {
    "Attributes": ("key", "value"),
    "attributes": ("key", "value"),
    "MessageAttributes": ("Name", "Value"),
}


def sns_form(action: str, arguments: Mapping[str, Any]) -> bytes:
    """The body of a request to SNS."""
    fields = {"Action": action, "Version": "2010-03-31"}

    def add(name: str, value: Any, pair: tuple[str, str] | None = None) -> None:
        if isinstance(value, list):
            for number, each in enumerate(value, 1):
                add(f"{name}.member.{number}", each)
        elif isinstance(value, Mapping):
            for number, (key, each) in enumerate(value.items(), 1):
                if pair is None:
                    add(f"{name}.{key}".lstrip("."), each, SNS_MAPS.get(key))
                else:
                    fields[f"{name}.entry.{number}.{pair[0]}"] = key
                    add(f"{name}.entry.{number}.{pair[1]}", each)
        elif value is not None:
            fields[name] = str(value).lower() if isinstance(value, bool) else str(value)

    add("", arguments)
    return urlencode(fields).encode()


def exchange(
    server: Server, lines: list[tuple[str, str]], body: bytes, *, path: str = "/"
) -> tuple[int, bytes]:
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    text = f"POST {path} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    with RawConnection(server.port) as connection:
        connection.send(text.encode("latin-1") + body)
        reply = connection.read_reply()
    return reply.statuses[0], reply.data.partition(b"\r\n\r\n")[2]


def throw(port: int, data: bytes, *, seconds: float = 15.0) -> RawReply:
    """Everything at once, and all that comes back until the server closes."""
    with RawConnection(port, seconds=seconds) as connection:
        connection.send(data)
        return connection.read_until_closed()
