"""Apache Kafka's tools for access rules and delegation tokens, on one node and on three. Rules and
tokens are created at the first node; clients of the last node are bound by the rules and log in by
token. Skipped without the tools' jars, like ``test_kafka_tools.py``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from tests.attacks.frames import Wire
from tests.attacks.kit import ROOT, Operator, allow, policy
from tests.attacks.test_batches import batch
from tests.e2e.test_cluster_cli import penstock
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.kafka_tools import KafkaTools
from tests.harness.patience import eventually
from tests.harness.server import Server
from tests.unit.frontend_kafka_access.stage import codes

from penstock.model.levels import ACLS_STORED
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = [pytest.mark.slow, pytest.mark.compat]
NEEDS_ETCD = pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
SECONDS_MAX = 200
FELT_SECONDS_MAX = 10
DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


def auth_env(folder: Path) -> dict[str, str]:
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    return {
        "PENSTOCK_AUTH__MODE": "on",
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }


class Place:
    """One node or three, with the tools. Tools ask the first node unless a test names another."""

    def __init__(self, nodes: Sequence[Server], folder: Path, tools: KafkaTools) -> None:
        self.first, self.last = nodes[0], nodes[-1]
        self.operator = Operator(self.first)
        self._folder = folder
        self._tools = tools
        self._topics = 0

    def tool(
        self,
        name: str,
        *arguments: str,
        login: Mapping[str, str],
        code: int | None = 0,
        at: Server | None = None,
        is_token: bool = False,
    ) -> str:
        """Return the output of a tool that logs in. ``is_token``: by a delegation token."""
        module = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required"
            f' username="{login["sasl.username"]}" password="{login["sasl.password"]}"'
            f"{' tokenauth=true' if is_token else ''};"
        )
        file = self._folder / "client.properties"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
            f"sasl.jaas.config={module}\n"
        )
        config = ("--command-config", str(file))
        return self._tools.run(name, *arguments, *config, at=(at or self.first).kafka, code=code)

    def acls(self, *arguments: str, code: int = 0) -> str:
        return self.tool("AclCommand", *arguments, login=ROOT_LOGIN, code=code)

    def user(self, name: str, *, is_allowed: bool = True) -> Mapping[str, str]:
        policies = {"p": policy(allow("kafka:*"))} if is_allowed else {}
        self.operator.ask("POST", "users", {"name": name, "policies": policies})
        key = self.operator.ask("POST", "keys", {"user": name})
        login = login_of(key["key_id"], key["secret"])
        eventually(
            lambda: is_let_in(self.last, login),
            seconds=FELT_SECONDS_MAX,
            what="the user can log in at the last node",
        )
        return login

    def topic(self) -> str:
        self._topics += 1
        name = f"t{self._topics}"
        producer = Producer(config(self.first, ROOT_LOGIN))
        assert produced(producer, name) is None
        return name


def login_of(name: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": name,
        "sasl.password": password,
    }


ROOT_LOGIN = login_of(str(ROOT.access_key), str(ROOT.secret_key))


def config(server: Server, login: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    return {"bootstrap.servers": server.kafka, **login}


def is_let_in(server: Server, login: Mapping[str, str]) -> bool:
    try:
        AdminClient(config(server, login)).list_topics(timeout=5)
    except KafkaException:
        return False
    return True


@pytest.fixture(scope="module", params=["one", pytest.param("three", marks=NEEDS_ETCD)])
def place(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_tools: KafkaTools,
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    env = auth_env(folder)
    if request.param == "one":
        with Server(folder / "data", kafka_port=0, env=env) as server:
            yield Place([server], folder, kafka_tools)
    else:
        with PenstockCluster(folder, fsync="never", env=env) as cluster:
            yield Place(list(cluster.nodes.values()), folder, kafka_tools)


# ── Clients ──────────────────────────────────────────────────────────────────────────────────


def produced(producer: Producer, topic: str) -> int | None:
    """Return the error code of one record; None if the record was written."""
    errors: list[KafkaError | None] = []
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(SECONDS_MAX)
    (error,) = errors
    return None if error is None else error.code()


def denied_of(server: Server, login: Mapping[str, str], topic: str) -> set[str]:
    """Return the names of the requests about a topic that a node denies."""
    partition = ProducePartition(0, memoryview(batch()))
    requests: Mapping[str, tuple[int, Any]] = {
        "Metadata": (12, MetadataRequest([MetadataRequestTopic(name=topic)])),
        "Produce": (
            12,
            ProduceRequest(None, -1, 1_000, [ProduceTopic(topic, ZERO_UUID, [partition])]),
        ),
        "Fetch": (
            12,
            FetchRequest(0, 1, [FetchTopic(topic, ZERO_UUID, [FetchPartition(0, 0, 1)])]),
        ),
    }
    with Wire(server) as wire:
        wire.log_in(login["sasl.username"], login["sasl.password"])
        return {
            name
            for name, (version, request) in requests.items()
            if DENIED in set(codes(wire.ask_for(name, version, request)))
        }


def felt(place: Place, login: Mapping[str, str], topic: str, denied: set[str]) -> None:
    """Wait until the last node denies these requests and no others."""
    eventually(
        lambda: denied_of(place.last, login, topic) == denied,
        seconds=SECONDS_MAX,
        what=f"denied on {topic}: {denied or 'nothing'}",
    )


# ── Rules ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("operation", "denied"),
    [("All", {"Metadata", "Produce", "Fetch"}), ("Read", {"Fetch"}), ("Write", {"Produce"})],
)
def test_what_is_denied_to_everybody_is_denied(
    place: Place, operation: str, denied: set[str]
) -> None:
    topic = place.topic()
    login = place.user(f"ann-{operation.lower()}")
    felt(place, login, topic, set())
    about = ("--topic", topic, "--operation", operation)
    said = place.acls("--add", *about, "--deny-principal", "User:*")
    assert "principal=User:*, host=*" in said
    place.acls("--add", *about, "--allow-principal", f"User:ann-{operation.lower()}")
    felt(place, login, topic, denied)
    felt(place, ROOT_LOGIN, topic, set())  # an operator
    if "Produce" in denied:
        client = Producer({**config(place.last, login), "message.timeout.ms": "20000"})
        assert produced(client, topic) == DENIED
    place.acls("--remove", "--force", *about, "--deny-principal", "User:*")
    felt(place, login, topic, set())


def test_a_rule_is_made_before_its_user_and_for_names_that_begin_alike(place: Place) -> None:
    topic = place.topic()
    about = ("--topic", "t", "--resource-pattern-type", "prefixed", "--operation", "All")
    place.acls("--add", *about, "--allow-principal", "User:bob")
    place.acls("--add", "--topic", topic, "--operation", "Write", "--deny-principal", "User:bob")
    login = place.user("bob", is_allowed=False)
    felt(place, login, topic, {"Produce"})
    other = place.topic()
    felt(place, login, other, set())
    place.acls("--remove", "--force", "--topic", topic)
    felt(place, login, topic, set())
    place.acls("--remove", "--force", "--topic", "t", "--resource-pattern-type", "prefixed")
    felt(place, login, topic, {"Metadata", "Produce", "Fetch"})


def test_every_kind_of_rule_is_shown_and_removed(place: Place) -> None:
    place.acls(
        "--add",
        "--delegation-token",
        "token",
        "--operation",
        "Describe",
        "--allow-principal",
        "Group:staff",
        "--allow-host",
        "host.example.org",
    )
    place.acls(
        "--add",
        "--user-principal",
        "User:ann",
        "--operation",
        "CreateTokens",
        "--allow-principal",
        "User:CN=a,OU=b:c",
    )
    place.acls(
        "--add",
        "--transactional-id",
        "*",
        "--operation",
        "TwoPhaseCommit",
        "--deny-principal",
        "User:*",
    )
    place.acls("--add", "--cluster", "--operation", "All", "--allow-principal", "User:later")
    said = place.acls("--list")
    for part in (
        "resourceType=DELEGATION_TOKEN, name=token, patternType=LITERAL",
        "(principal=Group:staff, host=host.example.org, operation=DESCRIBE, permissionType=ALLOW)",
        "resourceType=USER, name=User:ann, patternType=LITERAL",
        "(principal=User:CN=a,OU=b:c, host=*, operation=CREATE_TOKENS, permissionType=ALLOW)",
        "resourceType=TRANSACTIONAL_ID, name=*, patternType=LITERAL",
        "(principal=User:*, host=*, operation=TWO_PHASE_COMMIT, permissionType=DENY)",
        "(principal=User:later, host=*, operation=ALL, permissionType=ALLOW)",
    ):
        assert part in said, said
    found = place.acls("--list", "--transactional-id", "x", "--resource-pattern-type", "match")
    assert "TWO_PHASE_COMMIT" in found
    for kind in ("--delegation-token", "--user-principal", "--transactional-id"):
        name = {"--delegation-token": "token", "--user-principal": "User:ann"}.get(kind, "*")
        place.acls("--remove", "--force", kind, name)
    place.acls("--remove", "--force", "--cluster")
    assert "User:later" not in place.acls("--list")


# ── Delegation tokens ────────────────────────────────────────────────────────────────────────


def test_a_java_client_logs_in_by_a_token_until_the_token_ends(place: Place) -> None:
    topic = place.topic()
    login = place.user("driver")
    other = place.user("other")
    create = ("--create", "--max-life-time-period", "3600000")
    said = token_tool(place, *create, "--renewer-principal", "User:renewer", login=login)
    token_id, hmac = next(
        line.split()[:2] for line in said.splitlines() if "User:driver" in line.split()
    )
    by_token = login_of(token_id, hmac)
    describe = ("--describe", "--owner-principal", "User:driver")  # without an owner: no token

    def topics_listed() -> str:
        return place.tool(
            "TopicCommand", "--list", login=by_token, code=None, at=place.last, is_token=True
        )

    def is_shown(login: Mapping[str, str] = login) -> bool:
        return token_id in token_tool(place, *describe, login=login)

    eventually(is_shown, seconds=SECONDS_MAX, what="the token is shown")
    eventually(
        lambda: topic in topics_listed().split(), seconds=SECONDS_MAX, what="the client logs in"
    )
    refused = token_tool(place, *describe, login=by_token, code=1, is_token=True)
    assert "Delegation Token requests are not allowed" in refused
    assert not is_shown(other)
    period = ("--renew", "--renew-time-period", "60000", "--hmac", hmac)
    assert "Completed renew operation" in token_tool(place, *period, login=login)
    mismatch = token_tool(place, *period, login=other, code=1)
    assert "Specified Principal is not valid Owner/Renewer" in mismatch
    token_tool(place, "--expire", "--expiry-time-period", "-1", "--hmac", hmac, login=login)
    eventually(lambda: not is_shown(), seconds=SECONDS_MAX, what="the token is gone")
    eventually(
        lambda: "The credentials were not accepted" in topics_listed(),
        seconds=SECONDS_MAX,
        what="the token is refused",
    )


def token_tool(
    place: Place, *arguments: str, login: Mapping[str, str], code: int = 0, is_token: bool = False
) -> str:
    return place.tool(
        "DelegationTokenCommand", *arguments, login=login, code=code, is_token=is_token
    )


# ── From the version before ──────────────────────────────────────────────────────────────────

SETTING = "PENSTOCK_CLUSTER__FEATURE_LEVEL_MAX"


@NEEDS_ETCD
def test_rules_of_the_version_before_hold_while_and_after_the_level_is_raised(
    kafka_tools: KafkaTools, tmp_path: Path
) -> None:
    env = {**auth_env(tmp_path), SETTING: str(ACLS_STORED - 1)}
    with PenstockCluster(tmp_path, fsync="never", env=env) as cluster:
        place = Place(list(cluster.nodes.values()), tmp_path, kafka_tools)
        topic = place.topic()
        login = place.user("ann", is_allowed=False)
        about = ("--add", "--topic", topic)
        for operation in ("Read", "Write"):
            place.acls(*about, "--operation", operation, "--allow-principal", "User:ann")
        refused = place.acls(*about, "--operation", "Write", "--deny-principal", "User:*", code=1)
        assert f"needs feature level {ACLS_STORED}" in refused
        felt(place, login, topic, set())
        for node in cluster.nodes.values():
            assert node.stop() == 0
            del node.env[SETTING]
            node.start(seconds=SECONDS_MAX)
        place = Place(list(cluster.nodes.values()), tmp_path, kafka_tools)
        felt(place, login, topic, set())
        operator = {
            "PENSTOCK_KEY_ID": str(ROOT.access_key),
            "PENSTOCK_SECRET": str(ROOT.secret_key),
        }
        env = {"PENSTOCK_ENDPOINT": cluster.nodes[1].url, **operator}
        raised = penstock("cluster", "upgrade", env=env)
        assert raised.code == 0, raised
        felt(place, login, topic, set())
        place.acls(*about, "--operation", "Write", "--deny-principal", "User:*")
        felt(place, login, topic, {"Produce"})
        assert place.acls("--list", "--topic", topic).count("principal=") == 3
        place.acls("--remove", "--force", "--topic", topic)
        felt(place, login, topic, {"Metadata", "Produce", "Fetch"})
        assert "kafka-acls" not in place.operator.ask("GET", "policies/ann")["policies"]
