"""What was allowed once and is no longer: keys, rights, users, tenants, passwords, tokens. Every
change must be felt within five seconds by those who are connected already; how long it took is
printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.credentials import Credentials
from tests.attacks.frames import Wire
from tests.attacks.kit import (
    EVERYTHING,
    REVOKED_SECONDS_MAX,
    Operator,
    allow,
    code_of,
    policy,
    sqs_as,
)
from tests.harness.patience import eventually
from tests.harness.server import Server


class Member:
    """A user of a tenant of its own, connected in every way there is."""

    def __init__(self, server: Server, operator: Operator, queue: str) -> None:
        self.tenant = operator.tenant()
        self.name, self.credentials = operator.user(EVERYTHING, tenant=self.tenant)
        self.sqs = sqs_as(server, self.credentials)
        self.url = self.sqs.create_queue(QueueName=queue)["QueueUrl"]
        self.queue = queue
        self.wire = logged_in(server, self.credentials)
        self.admin = Operator(server, self.credentials)

    def may_send(self) -> bool:
        return code_of(self.sqs.send_message, QueueUrl=self.url, MessageBody="x") == ""

    def may_produce(self) -> bool:
        """Whether the topic is shown on the connection that was logged in before."""
        try:
            reply = self.wire.ask("Metadata", 12, topics=None)
        except OSError:
            return False
        return reply is not None and self.queue in [topic.name for topic in reply.topics]

    def may_administer(self) -> bool:
        return self.admin.try_("GET", "users")[0] == 200

    def close(self) -> None:
        self.sqs.close()
        self.wire.socket.close()


def logged_in(server: Server, credentials: Credentials) -> Wire:
    wire = Wire(server)
    assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
    token = f"\0{credentials.access_key}\0{credentials.secret_key}".encode()
    assert wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0
    return wire


Revoke = Callable[[Operator, Member], Any]
ONLY_LISTS = json.loads(policy(allow("sqs:ListQueues")))
DENY = json.loads(policy({"Effect": "Deny", "Action": "*", "Resource": "*"}))


def tenant_of(member: Member) -> str:
    return f"?tenant={member.tenant}"


REVOKED: dict[str, Revoke] = {
    "key-disabled": lambda operator, member: operator.ask(
        "PATCH", f"keys/{member.credentials.access_key}", {"status": "disabled"}
    ),
    "key-deleted": lambda operator, member: operator.ask(
        "DELETE", f"keys/{member.credentials.access_key}"
    ),
    "user-deleted": lambda operator, member: operator.ask(
        "DELETE", f"users/{member.name}{tenant_of(member)}"
    ),
    "right-taken": lambda operator, member: operator.ask(
        "PUT", f"policies/{member.name}/p{tenant_of(member)}", ONLY_LISTS
    ),
    "right-denied": lambda operator, member: operator.ask(
        "PUT", f"policies/{member.name}/q{tenant_of(member)}", DENY
    ),
    "policy-removed": lambda operator, member: operator.ask(
        "DELETE", f"policies/{member.name}/p{tenant_of(member)}"
    ),
    "tenant-suspended": lambda operator, member: operator.ask(
        "PATCH", f"tenants/{member.tenant}", {"is_suspended": True}
    ),
}


@pytest.mark.parametrize("how", REVOKED)
def test_what_is_revoked_ends_everywhere_within_five_seconds(
    locked: Server, operator: Operator, name: Callable[..., str], how: str
) -> None:
    member = Member(locked, operator, name())
    ways = {
        "sqs": member.may_send,
        "kafka": member.may_produce,
        "admin": member.may_administer,
    }
    try:
        assert all(may() for may in ways.values()), {way: may() for way, may in ways.items()}
        began = time.monotonic()
        REVOKED[how](operator, member)
        took = {}
        for way, may in ways.items():
            left = REVOKED_SECONDS_MAX - (time.monotonic() - began)
            eventually(lambda may=may: not may(), seconds=left, what=f"{how} is felt in {way}")  # type: ignore[misc]
            took[way] = f"{(time.monotonic() - began) * 1_000:.0f} ms"
        print(how, took)
    finally:
        member.close()


def test_a_right_given_comes_as_soon(
    locked: Server, operator: Operator, name: Callable[..., str]
) -> None:
    """A refusal is not remembered for longer than a permission."""
    member = Member(locked, operator, name())
    try:
        path = f"policies/{member.name}/p{tenant_of(member)}"
        operator.ask("PUT", path, ONLY_LISTS)
        eventually(lambda: not member.may_send(), seconds=REVOKED_SECONDS_MAX, what="taken")
        operator.ask("PUT", path, json.loads(policy(EVERYTHING)))
        eventually(member.may_send, seconds=REVOKED_SECONDS_MAX, what="given")
        eventually(member.may_produce, seconds=REVOKED_SECONDS_MAX, what="given, in Kafka")
    finally:
        member.close()


def test_a_permission_of_a_queue_ends_with_the_queues_policy(
    root: Any, stranger: Any, operator: Operator, name: Callable[..., str]
) -> None:
    url = root.create_queue(QueueName=name())["QueueUrl"]
    account = stranger.create_queue(QueueName=name())["QueueUrl"].split("/")[-2]
    root.add_permission(
        QueueUrl=url, Label="friend", AWSAccountIds=[account], Actions=["SendMessage"]
    )
    assert code_of(stranger.send_message, QueueUrl=url, MessageBody="x") == ""
    began = time.monotonic()
    root.remove_permission(QueueUrl=url, Label="friend")
    eventually(
        lambda: code_of(stranger.send_message, QueueUrl=url, MessageBody="x") != "",
        seconds=REVOKED_SECONDS_MAX - (time.monotonic() - began),
        what="the permission is gone",
    )
