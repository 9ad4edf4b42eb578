"""The largest policies that are accepted: no request that they are weighed for, and no request that
sets one, keeps the event loop busy for more than 20 ms."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.credentials import Credentials
from tests.attacks.kit import Operator, exchange, send, signed
from tests.attacks.stalls import LoopServer

from penstock.access.evaluation import STATEMENTS_MAX, Kind, compile_policy
from penstock.metadata.security.identity_entries import POLICIES_BYTES_MAX, POLICY_BYTES_MAX

Statement = dict[str, Any]
Shape = Callable[[int], Statement]
_names = itertools.count()


def _deny(**more: object) -> Statement:
    return {"Effect": "Deny", "Action": "*", "Resource": "*", **more}


def _where(operator: str, key: str, values: list[str]) -> Statement:
    return _deny(Condition={operator: {key: values}})


# None of them denies anything that is asked here; each is slow in its own way.
SHAPES: dict[str, Shape] = {
    "statements": lambda _: _deny(Action="s:a"),
    "actions": lambda n: _deny(Action=[f"s:*{n:x}{i:x}" for i in range(200)]),
    "resources": lambda n: _deny(Resource=[f"arn:*{n:x}{i:x}x" for i in range(200)]),
    "stars": lambda n: _deny(Resource=[f"arn:{'*a' * 1_000}{n}" for _ in range(2)]),
    "question-marks": lambda n: _deny(Resource=[f"arn:*{'a?' * 20}{n}b{i}*" for i in range(50)]),
    "arns": lambda n: _where(
        "ArnLike", "aws:PrincipalArn", [f"arn:*:*:{n}*:*:*{i}" for i in range(200)]
    ),
    "addresses": lambda n: _where(
        "IpAddress", "aws:SourceIp", [f"10.{n % 250}.{i}.0/24" for i in range(200)]
    ),
    "times": lambda n: _where(
        "DateEquals", "aws:CurrentTime", [f"2001-01-{1 + i % 28:02}" for i in range(200)]
    ),
}


def text_of(shape: Shape, size: int, kind: Kind, number: int = 0) -> str:
    """A policy of that many characters at most. ``number`` makes it differ from others."""
    allow: Statement = {"Sid": f"n{number}", "Effect": "Allow", "Action": "*", "Resource": "*"}
    who = {"Principal": "*"} if kind is Kind.RESOURCE else {}
    statements = [{**allow, **who}]
    total = len(json.dumps(statements[0])) + 40
    while len(statements) < STATEMENTS_MAX[kind]:
        statement = {**shape(len(statements)), **who}
        total += len(json.dumps(statement, separators=(",", ":"))) + 1
        if total > size:
            break
        statements.append(statement)
    return json.dumps({"Statement": statements}, separators=(",", ":"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopServer]:
    with LoopServer(tmp_path_factory.mktemp("policies"), is_auth_on=True) as running:
        yield running


def ask(server: LoopServer, credentials: Credentials, action: str, **fields: object) -> Any:
    body = json.dumps(fields).encode()
    status, reply = exchange(server, signed(server, action, body, credentials=credentials), body)
    assert status == 200, reply[:300]
    return json.loads(reply or b"{}")


def queue_with(server: LoopServer, policy: str) -> str:
    """The URL of a new queue, whose policy is set without a stall."""
    name = f"queue-{next(_names)}"
    url = str(ask(server, server.root, "CreateQueue", QueueName=name)["QueueUrl"])
    gc.collect()
    gc.freeze()
    with server.watch() as turns:
        ask(server, server.root, "SetQueueAttributes", QueueUrl=url, Attributes={"Policy": policy})
    turns.check()
    return url


@pytest.mark.parametrize("shape", SHAPES)
def test_large_policies_are_weighed_without_a_stall(server: LoopServer, shape: str) -> None:
    """A user who was never seen, on a queue that was never used: nothing is compiled yet."""
    operator = Operator(server, server.root)
    name = f"user-{next(_names)}"
    operator.ask("POST", "users", {"name": name})
    for number in range(POLICIES_BYTES_MAX // POLICY_BYTES_MAX):
        text = text_of(SHAPES[shape], POLICY_BYTES_MAX, Kind.IDENTITY, next(_names))
        path = f"/api/v1/policies/{name}/p{number}"
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {operator.token}",
        }
        status, reply, _ = send(operator.host, "PUT", path, text, headers)
        assert status == 200, reply
    made = operator.ask("POST", "keys", {"user": name})
    credentials = Credentials(made["key_id"], made["secret"])
    queue_policy = text_of(SHAPES[shape], POLICY_BYTES_MAX, Kind.RESOURCE, next(_names))
    url = queue_with(server, queue_policy)
    compile_policy.cache_clear()
    gc.collect()
    gc.freeze()
    with server.watch() as first:
        ask(server, credentials, "SendMessage", QueueUrl=url, MessageBody="x")
    with server.watch() as second:
        ask(server, credentials, "SendMessage", QueueUrl=url, MessageBody="x")
    print(f"{shape}: {first.longest_ms:.1f} ms, then {second.longest_ms:.1f} ms")
    first.check()
    second.check()
