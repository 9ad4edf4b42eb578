"""A foreign row in the log of a coordinator: the server says which row it is and is not ready, only
an operator can skip the row, and after that everything else is there. On one node and on three."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tests.attacks.kit import EVERYTHING, ROOT, Operator, send, sqs_as
from tests.compat.conftest import sqs_client
from tests.e2e.test_cluster_cli import penstock
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually
from tests.harness.server import Server

from penstock.calls.internal.client import InternalClient
from penstock.calls.internal.connection import NodeEnd
from penstock.cli.terminal.failure import ExitCode
from penstock.log.log import Log, LogConfig
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.topics.catalog import TOPICS_PREFIX
from penstock.model.calls import AppendBatches
from penstock.model.levels import Levels
from penstock.model.ports import BatchAppended
from penstock.model.topic import partition_of_group
from penstock.net.kafka_client.client import KafkaClient, Place, Security
from penstock.record.batch import encode_batch, split_batches
from penstock.record.record import encode_record, iter_records
from penstock.wire.facts.audit import AuditRecord, decode
from penstock.wire.internal.broker_calls import ANY_EPOCH, wire_of

GROUPS, PARTITIONS = "__groups", 4
SECONDS_MAX = 60.0
ABSENT = {KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR}
PARTITION = 2  # the one with the foreign row: three groups are in it, two in others
_SOME = [f"group-{number}" for number in range(40)]
_THERE = [name for name in _SOME if partition_of_group(name, PARTITIONS) == PARTITION]
_ELSEWHERE = [name for name in _SOME if partition_of_group(name, PARTITIONS) != PARTITION]
NAMES = [*_THERE[:3], *_ELSEWHERE[:2]]
SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": str(ROOT.access_key),
    "sasl.password": str(ROOT.secret_key),
}


def foreign(offset: int, epoch: int = 0) -> bytes:
    record = encode_record(offset_delta=0, timestamp_delta=0, key=b"k", value=b"a message")
    now_ms = int(time.time() * 1_000)
    return encode_batch(
        [record],
        base_offset=offset,
        leader_epoch=epoch,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        attributes=0,
    )


class Group:
    """A consumer group that commits and reads offsets without members."""

    def __init__(self, bootstrap: str, name: str, **more: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": name, "enable.auto.commit": False, **more}
        )

    def commit(self, offset: int) -> None:
        """Commit, again while a coordinator that has just begun to lead is not there yet."""
        place = TopicPartition("work", 0, offset)

        def is_done() -> bool:
            try:
                done = self._consumer.commit(offsets=[place], asynchronous=False) or []
            except KafkaException as error:
                if error.args[0].code() not in ABSENT:
                    raise
                return False
            return [one.error for one in done] == [None]

        eventually(is_done, seconds=SECONDS_MAX, what="a commit")

    def committed(self) -> int:
        (found,) = self._consumer.committed([TopicPartition("work", 0)], timeout=SECONDS_MAX)
        return int(found.offset)

    def close(self) -> None:
        self._consumer.close()


def commit_all(bootstrap: str, base: int, **more: str) -> None:
    for number, name in enumerate(NAMES):
        group = Group(bootstrap, name, **more)
        group.commit(base + number)
        group.close()


def committed_by_all(bootstrap: str, **more: str) -> list[int]:
    found = []
    for name in NAMES:
        group = Group(bootstrap, name, **more)
        found.append(group.committed())
        group.close()
    return found


def expected(base: int) -> list[int]:
    return [base + number for number in range(len(NAMES))]


def reason_of(readyz: tuple[int, str], partition: int) -> str:
    """Return the reason of a node whose coordinator met an unreadable row. Empty if it is ready
    or has another trouble, such as a coordinator that was elected and has not read its rows yet."""
    status, text = readyz
    found = {(one["kind"], one["name"]): one for one in json.loads(text)["reasons"]}
    reason = found.get(("row_unreadable", f"coordinator {GROUPS}/{partition}"))
    if reason is None:
        return ""
    assert (status, reason["is_blocking"]) == (503, True)
    return f"{reason['text']}; do: {reason['do']}"


# ── One node ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    secret = tmp_path / "secret"
    secret.write_text(str(ROOT.secret_key))
    env = {
        "PENSTOCK_ROOT_KEY_ID": str(ROOT.access_key),
        "PENSTOCK_ROOT_SECRET_FILE": str(secret),
    }
    server = Server(tmp_path / "data", kafka_port=0, arguments=("--auth", "on"), env=env)
    with server as running:
        yield running
        assert running.stop() == 0, running.stderr_tail()
        running.assert_no_traceback()


def append_offline(data: Path, partition: int) -> int:
    """Append a foreign row to the files of a stopped server; its offset."""

    async def topic_id() -> str:
        store = await SqliteStore.open(data / "metadata.sqlite3")
        entries, _ = await store.list(TOPICS_PREFIX)
        await store.close()
        topics = [json.loads(entry.value) for entry in entries]
        return next(str(one["topic_id"]) for one in topics if one["name"] == GROUPS)

    folder = data / "topics" / asyncio.run(topic_id()) / str(partition)
    log = Log.open(folder, LogConfig(), now_ms=int(time.time() * 1_000))
    offset = log.end_offset
    log.append(foreign(offset, log.last_epoch), now_ms=int(time.time() * 1_000))
    log.close(clean=True)
    return offset


def run_as(server: Server, credentials: Any, *args: str) -> Any:
    env = {
        "PENSTOCK_ENDPOINT": server.url,
        "PENSTOCK_ADMIN": server.admin_url,
        "PENSTOCK_KEY_ID": str(credentials.access_key),
        "PENSTOCK_SECRET": str(credentials.secret_key),
    }
    return penstock(*args, env=env)


def noted(server: Server, action: str) -> list[AuditRecord]:
    trail = Place("__audit", 0)
    security = Security(
        "SASL_PLAINTEXT", "SCRAM-SHA-256", str(ROOT.access_key), str(ROOT.secret_key)
    )
    with KafkaClient(server.kafka, security=security, timeout_s=10.0) as client:
        found = client.fetch({trail: 0}, wait_ms=0, partition_bytes_max=8 * 1_048_576)[trail]
    values = [
        record.value or b""
        for data in split_batches([found.records])
        for record in iter_records(data)
    ]
    return [record for record in map(decode, values) if record.action == action]


def test_one_node_names_the_row_and_serves_once_an_operator_has_skipped_it(server: Server) -> None:
    sqs = sqs_as(server, ROOT)
    sqs.create_queue(QueueName="work")
    sqs.close()
    commit_all(server.kafka, 100, **SASL)
    partition = PARTITION
    assert server.stop() == 0
    offset = append_offline(server.data, partition)
    server.start()

    reason = reason_of(server.readyz(), partition)
    assert f"{GROUPS}/{partition}: the row at offset {offset} is unreadable" in reason
    assert f"penstock coordinator skip {GROUPS} {partition} {offset}" in reason
    (line,) = [one for one in server.stderr.splitlines() if '"coordinator out of service"' in one]
    told = json.loads(line)
    assert (told["topic"], told["partition"], told["offset"]) == (GROUPS, partition, offset)
    checked = run_as(server, ROOT, "doctor")
    assert checked.code == ExitCode.UNHEALTHY
    assert f"the row at offset {offset}" in checked.out

    operator = Operator(server)
    _, user = operator.user(EVERYTHING)
    path = f"coordinators/{GROUPS}/{partition}"
    theirs = Operator(server, user)
    assert theirs.try_("GET", path)[0] == 403
    assert theirs.try_("POST", f"{path}/skip", {"offset": offset})[0] == 403
    host = urlsplit(server.admin_url).netloc
    headers = {"content-type": "application/json"}
    body = json.dumps({"offset": offset})
    assert send(host, "POST", f"/api/v1/{path}/skip", body, headers)[0] == 401
    wrong = run_as(server, ROOT, "coordinator", "skip", GROUPS, str(partition), str(offset - 1))
    assert wrong.code == ExitCode.CONFLICT
    assert f"is at offset {offset}, not {offset - 1}" in wrong.err
    assert reason_of(server.readyz(), partition) == reason, "nothing was skipped"

    shown = run_as(server, ROOT, "coordinator", "show", GROUPS, str(partition)).json
    assert (shown["unreadable"]["offset"], shown["unreadable"]["key"]) == (offset, "6b")
    show = ("coordinator", "show", GROUPS, str(partition), "-o", "table")
    table = run_as(server, ROOT, *show).out
    assert f"out of service: the row at offset {offset} is unreadable" in table
    assert "the row with key 6b has an unknown kind" in table
    done = run_as(server, ROOT, "coordinator", "skip", GROUPS, str(partition), str(offset))
    assert (done.code, done.json["unreadable"]) == (0, None)
    assert committed_by_all(server.kafka, **SASL) == expected(100)
    eventually(lambda: server.readyz()[0] == 200, seconds=SECONDS_MAX, what="ready")
    commit_all(server.kafka, 200, **SASL)

    def results() -> list[str]:
        return [record.outcome for record in noted(server, "admin:SkipRow")]

    eventually(lambda: sorted(results()) == ["denied", "denied", "failed", "ok"],
               seconds=SECONDS_MAX, what="all attempts noted")  # fmt: skip
    (ok,) = [one for one in noted(server, "admin:SkipRow") if one.outcome == "ok"]
    assert ok.principal.endswith(":user/root")
    assert ok.resource.endswith(f"coordinator/{GROUPS}/{partition}")
    assert dict(ok.params)["offset"] in (offset, str(offset))
    server.restart()
    assert server.readyz()[0] == 200
    assert committed_by_all(server.kafka, **SASL) == expected(200)


# ── Three nodes ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path) as cluster:
        yield cluster


def place_of(node: ClusterNode, partition: int) -> dict[str, Any]:
    """The partition as the node knows it."""
    host = urlsplit(node.admin_url).netloc
    path = f"/api/v1/cluster/partitions?topic={GROUPS}"
    status, answer, _ = send(host, "GET", path, None, {})
    assert status == 200
    found = json.loads(answer)["partitions"]
    return next(dict(one) for one in found if one["partition"] == partition)


def append_to_leader(node: ClusterNode, partition: int) -> int:
    """Append a foreign row as a node of the cluster could; its offset."""
    internal = node.arguments[node.arguments.index("--internal") + 1]
    host, _, port = internal.rpartition(":")
    topic_id = place_of(node, partition)["topic_id"]

    async def append() -> int:
        client = InternalClient(host, int(port), NodeEnd("x", "penstock", levels=Levels()))
        request = (topic_id, 0, partition, ANY_EPOCH, -1, (foreign(0),))
        try:
            form = wire_of(AppendBatches)
            appended: BatchAppended = await client.call(form, request, timeout_ms=10_000)
        finally:
            await client.close()
        return appended.base_offset

    return asyncio.run(append())


@pytest.mark.slow
@pytest.mark.skipif(LACKING is not None, reason=str(LACKING))
def test_three_nodes_skip_the_row_whoever_leads(cluster: PenstockCluster) -> None:
    sqs = sqs_client(cluster.nodes[1].url)
    sqs.create_queue(QueueName="work")
    sqs.close()
    eventually(
        lambda: None not in (place_of(cluster.nodes[1], at)["leader"] for at in range(PARTITIONS)),
        seconds=SECONDS_MAX,
        what="leaders of all groups",
    )
    commit_all(cluster.bootstrap, 100)
    partition = PARTITION
    first = cluster.nodes[place_of(cluster.nodes[1], partition)["leader"]]
    offset = append_to_leader(first, partition)
    first.kill()  # another node leads, and reads the row
    others = [node for node in cluster.nodes.values() if node is not first]

    def not_ready() -> list[ClusterNode]:
        return [node for node in others if reason_of(node.readyz(), partition)]

    (second,) = eventually(not_ready, seconds=SECONDS_MAX, what="the new leader is not ready")
    (third,) = [node for node in others if node is not second]
    assert f"the row at offset {offset}" in reason_of(second.readyz(), partition)
    assert third.readyz()[0] == 200, "a node that does not lead the partition serves"
    first.start()

    # Whichever node is asked, and it is not the one that leads.
    env = {"PENSTOCK_ENDPOINT": third.url, "PENSTOCK_ADMIN": third.admin_url}
    command = ("coordinator", "skip", GROUPS, str(partition))
    wrong = penstock(*command, str(offset + 1), env=env)
    assert wrong.code == ExitCode.CONFLICT
    done = penstock(*command, str(offset), env=env)
    assert (done.code, done.json["unreadable"]) == (0, None), done
    eventually(lambda: second.readyz()[0] == 200, seconds=SECONDS_MAX, what="the leader is ready")
    assert committed_by_all(cluster.bootstrap) == expected(100)

    eventually(
        lambda: len(place_of(second, partition)["in_sync"]) == 3,
        seconds=SECONDS_MAX,
        what="all in sync",
    )
    leader = cluster.nodes[place_of(second, partition)["leader"]]
    leader.kill()
    rest = [node for node in cluster.nodes.values() if node is not leader]
    eventually(
        lambda: place_of(rest[0], partition)["leader"] not in (None, leader.number),
        seconds=SECONDS_MAX,
        what="another leader",
    )
    bootstrap = ",".join(node.kafka for node in rest)
    assert committed_by_all(bootstrap) == expected(100)
    commit_all(bootstrap, 300)
    assert committed_by_all(bootstrap) == expected(300)
    assert [reason_of(node.readyz(), partition) for node in rest] == ["", ""]
