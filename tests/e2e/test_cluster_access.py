"""Access on three nodes: what one node changes, every other node follows, and a client learns no
more from three nodes than from one."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.credentials import Credentials
from tests.attacks.frames import Wire
from tests.attacks.kit import (
    REVOKED_SECONDS_MAX,
    ROOT,
    Operator,
    allow,
    code_of,
    policy,
    sqs_as,
)
from tests.attacks.test_logins import begin, fields_of, say, scram_first
from tests.attacks.test_passwords import put_password
from tests.attacks.test_policies import (
    ALL_TOPICS,
    DENIED,
    DENY,
    attach,
    create_rule,
    delete_rules,
    kafka_as,
    statement,
    user_arn,
)
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

READY_SECONDS_MAX = 200.0


class Nodes:
    """Three nodes that ask everybody who they are, and root on each of them."""

    def __init__(self, cluster: PenstockCluster) -> None:
        self.servers = list(cluster.nodes.values())
        self.operators = [Operator(server) for server in self.servers]
        self.roots = [sqs_as(server, ROOT) for server in self.servers]

    def sqs(self, credentials: Credentials) -> list[Any]:
        return [sqs_as(server, credentials) for server in self.servers]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    folder: Path = tmp_path_factory.mktemp("cluster")
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        "PENSTOCK_AUTH__MODE": "on",
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    with PenstockCluster(folder, fsync="never", env=env) as cluster:
        yield Nodes(cluster)


def felt(what: str, check: Callable[[], bool]) -> None:
    """Every change is felt by every node within five seconds."""
    eventually(check, seconds=REVOKED_SECONDS_MAX, what=what)


def test_a_deny_set_on_one_node_holds_on_all(nodes: Nodes) -> None:
    user, credentials = nodes.operators[0].user(allow("sqs:*"))
    clients = nodes.sqs(credentials)
    felt("the key", lambda: not any(code_of(client.list_queues) for client in clients))
    root = nodes.roots[0]

    def is_created() -> bool:
        return code_of(root.create_queue, QueueName="source") == ""

    eventually(is_created, seconds=READY_SECONDS_MAX, what="a queue")
    source = root.get_queue_url(QueueName="source")["QueueUrl"]
    share = clients[1].create_queue(QueueName="source:readers")["QueueUrl"]

    def told() -> list[str]:
        return [code_of(client.receive_message, QueueUrl=share) for client in clients]

    felt("the share", lambda: told() == [""] * 3)
    admins = [Operator(server, credentials) for server in nodes.servers]
    paths = [
        f"queues/{name}{rest}"
        for name in ("source", "source:readers")
        for rest in ("", "/messages")
    ]
    for admin in admins:
        assert [admin.try_("GET", path)[0] for path in paths] == [200] * len(paths)
    attach(nodes.roots[2], source, statement("Deny", "sqs:*", user_arn(user)))
    felt("the deny", lambda: told() == [DENIED] * 3)
    for admin in admins:
        assert [admin.try_("GET", path)[0] for path in paths] == [403] * len(paths)
    for client in clients:
        client.close()


def test_a_rule_made_on_one_node_holds_on_all_and_for_no_operator(nodes: Nodes) -> None:
    _, credentials = nodes.operators[0].user(allow("kafka:*"))
    made = {"name": "chief", "is_operator": True, "policies": {"p": policy(allow("*"))}}
    nodes.operators[1].ask("POST", "users", made)
    key = nodes.operators[1].ask("POST", "keys", {"user": "chief"})
    chief = Credentials(key["key_id"], key["secret"])
    felt("the keys", lambda: all(is_let_in(server, chief) for server in nodes.servers))
    felt("the keys", lambda: all(is_let_in(server, credentials) for server in nodes.servers))
    root = nodes.roots[0]
    eventually(
        lambda: code_of(root.create_queue, QueueName="ruled") == "",
        seconds=READY_SECONDS_MAX,
        what="a queue",
    )

    def seen(who: Credentials) -> list[bool]:
        return [is_seen(server, who, "ruled") for server in nodes.servers]

    felt("the queue", lambda: seen(credentials) == seen(chief) == [True] * 3)
    with kafka_as(nodes.servers[0], credentials) as wire:
        assert create_rule(wire, ALL_TOPICS, "*", DENY) == 0
    felt("the rule", lambda: seen(credentials) == [False] * 3)
    assert seen(chief) == [True] * 3
    with kafka_as(nodes.servers[2], chief) as wire:
        assert delete_rules(wire, "*") == [("User:*", 0)]
    felt("the end of the rule", lambda: seen(credentials) == [True] * 3)


def test_a_key_for_metrics_reads_the_metrics_of_every_node_and_nothing_else(nodes: Nodes) -> None:
    user, scraper = nodes.operators[0].user(allow("admin:Metrics"))
    _, other = nodes.operators[0].user(allow("sqs:*"))

    def told(who: Credentials, path: str) -> list[int]:
        return [status_of(server.admin_url + path, who) for server in nodes.servers]

    felt("the key", lambda: told(scraper, "/metrics") == [200] * 3)
    assert told(scraper, "/metrics/objects") == [200] * 3
    for path in ("config", "queues", "users", "keys", "cluster", "tenants"):
        assert told(scraper, f"/api/v1/{path}") == [403] * 3, path
    felt("the key of another user", lambda: told(other, "/api/v1/queues") == [200] * 3)
    assert told(other, "/metrics") == told(other, "/metrics/objects") == [403] * 3
    nodes.operators[2].ask("DELETE", f"policies/{user}/p")
    felt("the end of the right", lambda: told(scraper, "/metrics") == [403] * 3)


def status_of(url: str, credentials: Credentials) -> int:
    """As Prometheus asks: HTTP Basic, with the key in each request."""
    both = f"{credentials.access_key}:{credentials.secret_key}".encode()
    headers = {"authorization": f"Basic {base64.b64encode(both).decode()}"}
    try:
        with urlopen(Request(url, headers=headers)) as reply:
            return int(reply.status)
    except HTTPError as error:
        return error.code


def is_let_in(server: Any, credentials: Credentials) -> bool:
    with Wire(server) as wire:
        wire.ask("SaslHandshake", 1, mechanism="PLAIN")
        token = f"\0{credentials.access_key}\0{credentials.secret_key}".encode()
        return bool(wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code == 0)


def is_seen(server: Any, credentials: Credentials, name: str) -> bool:
    with kafka_as(server, credentials) as wire:
        return name in [topic.name for topic in wire.ask("Metadata", 12, topics=None).topics]


def test_a_made_up_user_looks_the_same_on_every_node(nodes: Nodes) -> None:
    for number, iterations in enumerate((4_096, 8_192, 12_000, 16_384)):
        user, _ = nodes.operators[number % 3].user()
        path = f"users/{user}/password"
        assert put_password(nodes.operators[number % 3], path, iterations) == 200
    for operator in nodes.operators:
        assert put_password(operator, "users/root/password", 16_385) == 400

    def shown(server: Any, name: str) -> tuple[str, str]:
        with Wire(server) as wire:
            begin(wire, "SCRAM-SHA-256")
            fields = fields_of(say(wire, scram_first(name, "12345678"))[1])
            return fields["s"], fields["i"]

    names = [f"nobody-{number}" for number in range(20)]
    names += [f"{number:012}/nobody" for number in range(1, 6)]

    def found() -> list[list[tuple[str, str]]]:
        return [[shown(server, name) for name in names] for server in nodes.servers]

    felt("the passwords", lambda: (seen := found())[0] == seen[1] == seen[2])
    assert {count for _, count in found()[0]} <= {"4096", "8192", "12000", "16384"}
    assert len({count for _, count in found()[0]}) > 1
