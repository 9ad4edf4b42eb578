"""One tenant that takes as much as the server allows. Each test fills one thing that all tenants
have in common; then another tenant must still be served in full: log in, create a queue, commit in
a new group, start a transaction."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from tests.attacks.frames import KEYS, Wire
from tests.attacks.kit import EVERYTHING, ROOT, Operator, signed, sqs_as
from tests.harness.patience import eventually
from tests.harness.raw_http import RawConnection
from tests.harness.server import Server

from penstock.wire.kafka.apis import APIS, parse_response_header
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated import (
    create_topics,
    incremental_alter_configs,
    offset_commit,
)
from penstock.wire.kafka.generated.create_partitions import CreatePartitionsTopic

INVALID_COMMIT_OFFSET_SIZE = 28
POLICY_VIOLATION = 44
GROUP_MAX_SIZE_REACHED = 81
GROUP_RESOURCE = 32
_numbers = itertools.count(1)


def start(folder: Path) -> Server:
    secret = folder / "secret"
    secret.write_text(str(ROOT.secret_key))
    secret.chmod(0o600)
    env = {
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    arguments = ["--auth", "on"]
    return Server(folder / "data", fsync="never", kafka_port=0, arguments=arguments, env=env)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start(tmp_path_factory.mktemp("shared")) as server:
        yield server
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()


@pytest.fixture(scope="module")
def root(shared: Server) -> Operator:
    return Operator(shared)


class Tenant:
    def __init__(self, server: Server, root: Operator) -> None:
        self.server = server
        self.root = root
        self.account = root.tenant()
        _, self.credentials = root.user(EVERYTHING, tenant=self.account)
        self.sqs = sqs_as(server, self.credentials)

    def limit(self, **quotas: int) -> None:
        self.root.ask("PATCH", f"quotas/{self.account}", {"quotas": quotas})

    def quotas(self) -> Any:
        return self.root.ask("GET", f"quotas/{self.account}")

    def used(self, field: str) -> int:
        return int(self.quotas()["used"][field])

    def wire(self) -> Wire:
        wire = Wire(self.server)
        assert log_in(wire, self.credentials) == 0
        return wire

    def topic(self, wire: Wire, name: str, partitions: int) -> Any:
        asked = create_topics.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1
        )
        (made,) = wire.ask("CreateTopics", 5, topics=[asked], timeout_ms=30_000).topics
        return made

    def commit(self, wire: Wire, group: str, topic: str, *, metadata: str = "") -> int:
        place = offset_commit.OffsetCommitRequestPartition(
            partition_index=0, committed_offset=0, committed_metadata=metadata
        )
        asked = offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[place])
        (made,) = wire.ask("OffsetCommit", 7, group_id=group, topics=[asked]).topics
        return int(made.partitions[0].error_code)

    def begin(self, wire: Wire, transactional_id: str) -> int:
        made = wire.ask(
            "InitProducerId",
            4,
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
        )
        return int(made.error_code)

    def fetch_session(self, wire: Wire, topic: str) -> int:
        """The id of a new session, 0 if there is none."""
        places = [FetchPartition(0, 0, 1_000)]
        asked = FetchRequest(
            0, 0, [FetchTopic(topic, bytes(16), places)], session_id=0, session_epoch=0
        )
        api, version = APIS[KEYS["Fetch"]], 11
        wire.send(wire.frame("Fetch", version, api.codec().encode_request(asked, version)))
        reply = wire.read_frame()
        assert reply is not None
        _, at = parse_response_header(reply, api.response_header_version(version))
        made: Any = api.codec().decode_response(reply, at, version)
        assert made.error_code == 0
        return int(made.session_id)

    def configure(self, wire: Wire, group: str) -> int:
        config = incremental_alter_configs.AlterableConfig(
            name="share.auto.offset.reset", config_operation=0, value="earliest"
        )
        asked = incremental_alter_configs.AlterConfigsResource(
            resource_type=GROUP_RESOURCE, resource_name=group, configs=[config]
        )
        (made,) = wire.ask("IncrementalAlterConfigs", 1, resources=[asked]).responses
        return int(made.error_code)


def log_in(wire: Wire, credentials: Credentials) -> int:
    assert wire.ask("SaslHandshake", 1, mechanism="PLAIN").error_code == 0
    token = f"\0{credentials.access_key}\0{credentials.secret_key}".encode()
    return int(wire.ask("SaslAuthenticate", 2, auth_bytes=token).error_code)


@pytest.fixture
def greedy(shared: Server, root: Operator) -> Iterator[Tenant]:
    tenant = Tenant(shared, root)
    yield tenant
    tenant.sqs.close()


@pytest.fixture
def other_is_served(shared: Server, root: Operator) -> Iterator[Callable[[], None]]:
    """Call it while the greedy tenant holds what it has."""
    tenant = Tenant(shared, root)

    def check() -> None:
        name = f"other-{next(_numbers)}"
        url = tenant.sqs.create_queue(QueueName=name)["QueueUrl"]
        tenant.sqs.send_message(QueueUrl=url, MessageBody="m")
        assert tenant.sqs.receive_message(QueueUrl=url, WaitTimeSeconds=1)["Messages"]
        with tenant.wire() as wire:
            assert tenant.commit(wire, f"g-{name}", name) == 0
            assert tenant.begin(wire, f"t-{name}") == 0

    yield check
    tenant.sqs.close()


def test_partitions(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    with greedy.wire() as wire:
        assert greedy.topic(wire, "big", 499).error_code == 0
        refused = greedy.topic(wire, "more", 2)
        assert refused.error_code == POLICY_VIOLATION
        assert "499 of 500 partitions" in refused.error_message
        grown = wire.ask(
            "CreatePartitions",
            2,
            topics=[CreatePartitionsTopic(name="big", count=501, assignments=None)],
            timeout_ms=30_000,
        ).results[0]
        assert grown.error_code == POLICY_VIOLATION
        assert "499 of 500 partitions" in grown.error_message
        assert greedy.topic(wire, "last", 1).error_code == 0
    with pytest.raises(ClientError, match="500 of 500 partitions") as raised:
        greedy.sqs.create_queue(QueueName="q")
    assert raised.value.response["Error"]["Code"] == "OverLimit"
    found = greedy.quotas()
    assert (found["used"]["partitions_max"], found["quotas"]["partitions_max"]) == (500, 500)
    assert found["shares"]["partitions_max"] >= 500
    other_is_served()
    with greedy.wire() as wire:
        names = ["big", "last"]
        wire.ask("DeleteTopics", 5, topic_names=names, timeout_ms=30_000)
        assert greedy.used("partitions_max") == 0
        assert greedy.topic(wire, "again", 2).error_code == 0


def test_queues(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    assert greedy.quotas()["quotas"]["queues_max"] == 500
    greedy.limit(queues_max=3)
    for number in range(3):
        greedy.sqs.create_queue(QueueName=f"q{number}")
    with pytest.raises(ClientError, match="3 of 3 queues and topics"):
        greedy.sqs.create_queue(QueueName="q3")
    other_is_served()


def test_groups(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    """The default of 500, over all coordinator partitions together."""
    greedy.sqs.create_queue(QueueName="q")
    with greedy.wire() as wire:
        codes = [greedy.commit(wire, f"g{number}", "q") for number in range(501)]
        assert set(codes[:500]) == {0}
        assert codes[500] == GROUP_MAX_SIZE_REACHED
        joined = wire.ask(
            "ConsumerGroupHeartbeat",
            1,
            group_id="one-more",
            member_id="m",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["q"],
            topic_partitions=[],
        )
        assert joined.error_code == GROUP_MAX_SIZE_REACHED
        assert "500 of 500 groups" in joined.error_message
        assert greedy.commit(wire, "g7", "q") == 0, "groups that exist go on"
        assert (greedy.used("groups_max"), greedy.quotas()["shares"]["groups_max"]) == (500, 1_000)
        other_is_served()
        wire.ask("DeleteGroups", 2, groups_names=["g7"])
        assert greedy.used("groups_max") == 499
        assert greedy.commit(wire, "one-more", "q") == 0


def test_settings_of_groups(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    greedy.limit(groups_max=3)
    with greedy.wire() as wire:
        codes = [greedy.configure(wire, f"g{number}") for number in range(4)]
        assert codes == [0, 0, 0, GROUP_MAX_SIZE_REACHED]
        assert greedy.configure(wire, "g1") == 0
    other_is_served()


def test_bytes_of_offsets(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    assert greedy.quotas()["quotas"]["offset_bytes_max"] == 16 * 1_024**2
    greedy.limit(offset_bytes_max=40_000)
    greedy.sqs.create_queue(QueueName="q")
    with greedy.wire() as wire:
        codes = [greedy.commit(wire, f"g{n}", "q", metadata="m" * 4_000) for n in range(11)]
        assert codes == [0] * 9 + [INVALID_COMMIT_OFFSET_SIZE] * 2
        assert greedy.commit(wire, "g0", "q", metadata="n" * 4_000) == 0, "not larger than before"
        assert greedy.used("offset_bytes_max") == 9 * 4_128
        other_is_served()
        assert greedy.commit(wire, "g0", "q") == 0
        assert greedy.commit(wire, "g10", "q", metadata="m" * 4_000) == 0


def test_transactional_ids(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    """The default of 1,000, over all coordinator partitions together."""
    with greedy.wire() as wire:
        codes = [greedy.begin(wire, f"t{number}") for number in range(1_001)]
        assert set(codes[:1_000]) == {0}
        assert codes[1_000] == POLICY_VIOLATION
        assert greedy.begin(wire, "t7") == 0
        assert greedy.used("transactional_ids_max") == 1_000
        other_is_served()


def test_what_was_taken_counts_after_a_restart(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        greedy = Tenant(server, Operator(server))
        greedy.limit(groups_max=2, transactional_ids_max=2, partitions_max=2)
        for name in ("a", "b"):
            greedy.sqs.create_queue(QueueName=name)
        with greedy.wire() as wire:
            for name in ("a", "b"):
                assert greedy.commit(wire, name, "a") == greedy.begin(wire, name) == 0
        server.restart()
        greedy.root = Operator(server)
        with greedy.wire() as wire:
            assert greedy.commit(wire, "c", "a") == GROUP_MAX_SIZE_REACHED
            assert greedy.begin(wire, "c") == POLICY_VIOLATION
            assert greedy.topic(wire, "c", 1).error_code == POLICY_VIOLATION
        used = greedy.quotas()["used"]
        assert [used[f"{n}_max"] for n in ("groups", "transactional_ids", "partitions")] == [2] * 3
        greedy.sqs.close()


def test_connections(shared: Server, greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    """On both ports, up to the default of 1,000."""
    body = b"{}"
    lines = signed(shared, "ListQueues", body, credentials=greedy.credentials)
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    text = f"POST / HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    with ExitStack() as stack:
        for _ in range(1_000):
            connection = stack.enter_context(RawConnection(shared.port))
            connection.send(text)
            assert connection.read_reply().statuses == [200]
        assert greedy.used("connections_max") == 1_000
        with RawConnection(shared.port) as connection:
            connection.send(text)
            reply = connection.read_reply()
            assert reply.statuses == [403]
            assert b"1,000 of 1,000 connections" in reply.data
        with Wire(shared) as wire:
            assert log_in(wire, greedy.credentials) != 0
        other_is_served()


def test_long_polls(shared: Server, greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    greedy.limit(waits_max=5)
    url = greedy.sqs.create_queue(QueueName="q")["QueueUrl"]
    body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20}).encode()
    lines = signed(shared, "ReceiveMessage", body, credentials=greedy.credentials)
    head = "".join(f"{name}: {value}\r\n" for name, value in lines)
    text = f"POST / HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(RawConnection(shared.port)).send(text)
        eventually(lambda: greedy.used("waits_max") == 5, seconds=15, what="five waiting calls")
        with RawConnection(shared.port) as connection:
            connection.send(text)
            reply = connection.read_reply()
            assert reply.statuses == [403]
            assert b"5 of 5 allowed long polls" in reply.data
        other_is_served()


def test_fetch_sessions(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    """A tenth of 1,000. Beyond its share a tenant is served without a session."""
    greedy.sqs.create_queue(QueueName="q")
    with greedy.wire() as wire:
        ids = [greedy.fetch_session(wire, "q") for _ in range(101)]
        assert all(ids[:100])
        assert ids[100] == 0
        other_is_served()


def test_tails(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    """Eight of 64."""
    greedy.sqs.create_queue(QueueName="q")
    operator = Operator(greedy.server, greedy.credentials)
    path = "queues/q/messages?wait_ms=3000"
    with ThreadPoolExecutor(9) as pool:
        replies = list(pool.map(lambda _: operator.try_("GET", path), range(9)))
    assert sorted(status for status, _ in replies) == [200] * 8 + [429]
    (refused,) = (body for status, body in replies if status == 429)
    assert b"This tenant has 8 of 8 requests waiting" in refused
    other_is_served()


def test_stored_bytes(greedy: Tenant, other_is_served: Callable[[], None]) -> None:
    found = greedy.quotas()
    assert found["quotas"]["stored_bytes_max"] == 10 * 1_024**3
    assert found["shares"]["stored_bytes_max"] > 0
    greedy.limit(stored_bytes_max=3_000_000)
    url = greedy.sqs.create_queue(QueueName="q")["QueueUrl"]

    def refusal() -> Any:
        try:
            greedy.sqs.send_message(QueueUrl=url, MessageBody="m" * 200_000)
        except ClientError as error:
            return error.response["Error"]
        return None

    error = eventually(refusal, seconds=60, what="the quota of bytes")
    assert error["Code"] == "OverLimit"
    assert "of 3,000,000 bytes used" in error["Message"]
    other_is_served()


def test_only_the_nodes_own_tenant_has_no_defaults(greedy: Tenant) -> None:
    found = greedy.quotas()
    assert found["limits"]["tenant_requests"] == {"per_s": 2_000.0, "burst": 4_000.0}
    assert "tenant_requests" in found["defaults"]
    own = greedy.root.ask("GET", "quotas/000000000000")
    assert own["limits"]["tenant_requests"]["per_s"] == 0
    assert set(own["quotas"].values()) == {0}
