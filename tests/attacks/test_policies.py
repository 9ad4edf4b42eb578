"""Ways around a policy: the admin API instead of SQS, a share instead of its source topic, rules
about an operator, and questions about the policies of other tenants."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.credentials import Credentials
from tests.attacks.frames import Wire
from tests.attacks.kit import (
    EVERYTHING,
    REGION,
    REVOKED_SECONDS_MAX,
    Operator,
    allow,
    code_of,
    policy,
    send,
    sqs_as,
)
from tests.attacks.test_admin import ROUTES
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.frontend.admin.api import ANY, OPERATOR, Route
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_acls import AclCreation
from penstock.wire.kafka.generated.delete_acls import DeleteAclsFilter

OWN = "000000000000"
DENIED = "AccessDenied"
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def user_arn(name: str, account: str = OWN) -> str:
    return f"arn:aws:iam::{account}:user/{name}"


def statement(effect: str, action: str, *principals: str) -> dict[str, Any]:
    return {
        "Effect": effect,
        "Action": action,
        "Principal": {"AWS": list(principals)},
        "Resource": "*",
    }


def attach(client: Any, url: str, *statements: dict[str, Any]) -> None:
    """Set the policy of a queue; without statements, remove it."""
    text = policy(*statements) if statements else ""
    client.set_queue_attributes(QueueUrl=url, Attributes={"Policy": text})


class Denied:
    """A queue with one message and a share of it. Two users may use all queues by their own
    policies; the policy of the queue denies one of them."""

    def __init__(self, server: Server, operator: Operator, root: Any, queue: str) -> None:
        self.queue = queue
        self.url = root.create_queue(QueueName=queue)["QueueUrl"]
        self.share = f"{queue}:readers"
        attributes = {"PenstockStart": "earliest"}
        made = root.create_queue(QueueName=self.share, Attributes=attributes)
        self.share_url = made["QueueUrl"]
        root.send_message(QueueUrl=self.url, MessageBody="for the allowed one")
        self.denied, self.credentials = operator.user(allow("sqs:*"))
        self.allowed, others = operator.user(allow("sqs:*"))
        attach(root, self.url, statement("Deny", "sqs:*", user_arn(self.denied)))
        self.of_denied = Operator(server, self.credentials)
        self.of_allowed = Operator(server, others)


@pytest.fixture(scope="module")
def denied(locked: Server, operator: Operator, root: Any) -> Denied:
    return Denied(locked, operator, root, "denied-by-policy")


# ── The admin API ────────────────────────────────────────────────────────────────────────────
# What a route of the admin API names by the segment before a name.
QUEUES = {"queues"}
NOT_QUEUES = {
    *("backups", "coordinators", "keys", "nodes", "policies", "quotas", "subscriptions"),
    *("tenants", "users"),
}


def kinds_named(route: Route) -> set[str]:
    """The segment before each name in the path of a route."""
    kinds = set()
    for place, part in enumerate(route.path):
        if part == ANY:
            kinds.add(next(each for each in reversed(route.path[:place]) if each != ANY))
    return kinds


ABOUT_QUEUES = [
    name
    for name, route in ROUTES.items()
    if kinds_named(route) & QUEUES and route.right != OPERATOR
]


@pytest.mark.parametrize("name", ROUTES)
def test_each_route_says_what_it_names(name: str) -> None:
    """A new kind of name is added to one of the two sets: a queue's routes are tested below."""
    assert kinds_named(ROUTES[name]) <= QUEUES | NOT_QUEUES


@pytest.mark.parametrize("is_share", [False, True], ids=["queue", "share"])
@pytest.mark.parametrize("name", ABOUT_QUEUES)
def test_the_admin_api_follows_the_policy_of_a_queue(
    denied: Denied, name: str, is_share: bool
) -> None:
    route = ROUTES[name]
    queue = denied.share if is_share else denied.queue
    path = "/".join(queue if part == ANY else part for part in route.path[2:])
    body: dict[str, str] | None = None if route.method == "GET" else {}
    for more in ("", f"?account={OWN}", f"?region={REGION}"):
        status, answer = denied.of_denied.try_(route.method, path + more, body)
        assert status == 403, f"{status} {answer!r}"
        assert b"for the allowed one" not in answer
    status, answer = denied.of_allowed.try_(route.method, path, body)
    assert status not in (401, 403, 404), f"{status} {answer!r}"


def test_routes_that_name_a_queue_were_found() -> None:
    assert len(ABOUT_QUEUES) >= 3


def test_a_waiting_tail_ends_when_a_policy_denies_it(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    queue = name()
    url = root.create_queue(QueueName=queue)["QueueUrl"]
    user, credentials = operator.user(allow("sqs:*"))
    theirs = Operator(locked, credentials)
    tail = http.client.HTTPConnection(theirs.host, timeout=REVOKED_SECONDS_MAX)
    path = f"/api/v1/queues/{queue}/messages?wait_ms=12000"
    tail.request("GET", path, headers={"authorization": f"Bearer {theirs.token}"})
    operator.ask("GET", "info")  # came later, so the tail has been let in
    attach(root, url, statement("Deny", "sqs:*", user_arn(user)))
    root.send_message(QueueUrl=url, MessageBody="after the deny")
    assert tail.getresponse().status == 403
    tail.close()


# ── Questions about policies ─────────────────────────────────────────────────────────────────
def test_a_question_tells_nothing_about_queues_of_other_tenants(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    tenant = operator.tenant()
    user, credentials = operator.user(EVERYTHING, tenant=tenant)
    theirs = Operator(locked, credentials)
    principal = user_arn(user, tenant)
    policies: dict[str, list[dict[str, Any]]] = {
        "denies": [statement("Deny", "sqs:*", principal)],
        "allows": [statement("Allow", "sqs:*", principal)],
        "silent": [],
    }
    asked: dict[str, str] = {"missing": name()}
    for kind, statements in policies.items():
        asked[kind] = name()
        url = root.create_queue(QueueName=asked[kind])["QueueUrl"]
        attach(root, url, *statements)

    def told(who: Operator, kind: str, **more: str) -> Any:
        arn = f"arn:aws:sqs:{REGION}:{OWN}:{asked[kind]}"
        question = {"user": user, "action": "sqs:SendMessage", "resource": arn, **more}
        answer = who.ask("POST", "policies/test", question)
        assert answer.pop("resource") == arn
        return answer

    missing = told(theirs, "missing")
    assert missing["is_allowed"] is False
    for kind in policies:
        assert told(theirs, kind) == missing, kind
    # An operator is told.
    assert told(operator, "denies", tenant=tenant)["is_explicit"] is True
    assert told(operator, "allows", tenant=tenant)["is_allowed"] is True


# ── Shares ───────────────────────────────────────────────────────────────────────────────────
def test_a_deny_on_a_topic_applies_to_shares_that_exist(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    source = name()
    url = root.create_queue(QueueName=source)["QueueUrl"]
    users = [operator.user(allow("sqs:*")) for _ in range(2)]
    reader, other = (sqs_as(locked, credentials) for _, credentials in users)
    share = reader.create_queue(QueueName=f"{source}:g")["QueueUrl"]
    root.send_message(QueueUrl=url, MessageBody="before")
    (message,) = reader.receive_message(QueueUrl=share, WaitTimeSeconds=5)["Messages"]
    handle = message["ReceiptHandle"]
    calls: list[tuple[Any, dict[str, Any]]] = [
        (reader.receive_message, {"QueueUrl": share}),
        (reader.get_queue_attributes, {"QueueUrl": share, "AttributeNames": ["All"]}),
        (reader.get_queue_url, {"QueueName": f"{source}:g"}),
        (
            reader.change_message_visibility,
            {"QueueUrl": share, "ReceiptHandle": handle, "VisibilityTimeout": 30},
        ),
        (reader.delete_message, {"QueueUrl": share, "ReceiptHandle": handle}),
    ]
    for call, arguments in calls[:-1]:
        assert code_of(call, **arguments) == ""
    attach(root, url, statement("Deny", "sqs:*", user_arn(users[0][0])))
    for call, arguments in calls:
        assert code_of(call, **arguments) == DENIED, arguments
    assert code_of(other.receive_message, QueueUrl=share) == ""
    attach(root, url)
    for call, arguments in calls:
        assert code_of(call, **arguments) == ""
    for client in (reader, other):
        client.close()


def test_a_receive_that_waits_on_a_share_ends_with_a_deny_on_its_source(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    source = name()
    url = root.create_queue(QueueName=source)["QueueUrl"]
    user, credentials = operator.user(allow("sqs:*"))
    reader = sqs_as(locked, credentials)
    share = reader.create_queue(QueueName=f"{source}:g")["QueueUrl"]
    found: list[str] = []

    def receive() -> None:
        found.append(code_of(reader.receive_message, QueueUrl=share, WaitTimeSeconds=10))

    def waits() -> int:
        headers = {"authorization": f"Bearer {operator.token}"}
        text = send(operator.host, "GET", "/metrics", None, headers)[1].decode()
        return int(float(text.partition("\npenstock_waits ")[2].partition("\n")[0]))

    waiting = threading.Thread(target=receive)
    waiting.start()
    eventually(lambda: waits() == 1, seconds=5.0, what="parked")
    attach(root, url, statement("Deny", "sqs:*", user_arn(user)))
    root.send_message(QueueUrl=url, MessageBody="after the deny")
    waiting.join(15)
    assert found == [DENIED]
    reader.close()


def test_a_deny_on_a_topic_applies_to_a_share_that_another_tenant_may_use(
    locked: Server, operator: Operator, root: Any, name: Callable[..., str]
) -> None:
    source = name()
    url = root.create_queue(QueueName=source)["QueueUrl"]
    share = root.create_queue(QueueName=f"{source}:g")["QueueUrl"]
    tenant = operator.tenant()
    user, credentials = operator.user(EVERYTHING, tenant=tenant)
    theirs = sqs_as(locked, credentials)
    attach(root, share, statement("Allow", "sqs:ReceiveMessage", user_arn(user, tenant)))
    assert code_of(theirs.receive_message, QueueUrl=share) == ""
    attach(root, url, statement("Deny", "sqs:ReceiveMessage", user_arn(user, tenant)))
    assert code_of(theirs.receive_message, QueueUrl=share) == DENIED
    theirs.close()


# ── Rules about an operator ──────────────────────────────────────────────────────────────────
ALL_TOPICS = {"resource_type": 2, "resource_name": "*", "resource_pattern_type": 3, "host": "*"}
ALL_GROUPS = {**ALL_TOPICS, "resource_type": 3}
THE_CLUSTER = {**ALL_TOPICS, "resource_type": 4, "resource_name": "kafka-cluster"}
EVERY_RULE: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ALL, DENY = 2, 2


def kafka_as(server: Server, credentials: Credentials) -> Wire:
    wire = Wire(server)
    assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
    token = f"\0{credentials.access_key}\0{credentials.secret_key}".encode()
    assert wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0
    return wire


def create_rule(wire: Wire, what: dict[str, Any], user: str, permission: int) -> int:
    rule = AclCreation(**what, principal=f"User:{user}", operation=ALL, permission_type=permission)
    (result,) = wire.ask("CreateAcls", 3, creations=[rule]).results
    return int(result.error_code)


def delete_rules(wire: Wire, user: str | None) -> list[tuple[str, int]]:
    """Delete all rules of a user, or of all users; the principal and error code of each rule."""
    wanted = DeleteAclsFilter(**EVERY_RULE, principal_filter=user and f"User:{user}")
    (found,) = wire.ask("DeleteAcls", 3, filters=[wanted]).filter_results
    assert found.error_code == 0
    return sorted((each.principal, each.error_code) for each in found.matching_acls)


@pytest.fixture
def chief(operator: Operator) -> Iterator[tuple[str, Credentials]]:
    """An operator of its own, so that rules made here stop nobody else."""
    name = "chief-of-rules"
    policies = {"p": policy(EVERYTHING)}
    operator.ask("POST", "users", {"name": name, "is_operator": True, "policies": policies})
    made = operator.ask("POST", "keys", {"user": name})
    yield name, Credentials(made["key_id"], made["secret"])
    operator.ask("DELETE", f"users/{name}")


def test_rules_bind_no_operator(
    locked: Server, operator: Operator, root: Any, chief: tuple[str, Credentials]
) -> None:
    """A user who may make rules cannot take rights from an operator."""
    root.create_queue(QueueName="seen-by-operators")
    _, credentials = operator.user(allow("kafka:*"))
    with kafka_as(locked, credentials) as theirs, kafka_as(locked, chief[1]) as own:

        def is_seen(wire: Wire) -> bool:
            topics = wire.ask("Metadata", 12, topics=None).topics
            return "seen-by-operators" in [topic.name for topic in topics]

        assert is_seen(own)
        assert is_seen(theirs)
        try:
            for what in (ALL_TOPICS, ALL_GROUPS, THE_CLUSTER):
                assert create_rule(theirs, what, chief[0], DENY) == 0
            assert create_rule(theirs, ALL_TOPICS, "*", DENY) == 0
            eventually(
                lambda: not is_seen(theirs), seconds=REVOKED_SECONDS_MAX, what="the rule holds"
            )
            assert is_seen(own)
        finally:
            found = delete_rules(own, None)
        assert {(f"User:{name}", 0) for name in ("*", chief[0])} <= set(found)
        eventually(lambda: is_seen(theirs), seconds=REVOKED_SECONDS_MAX, what="the rule is gone")
