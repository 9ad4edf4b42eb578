"""Apache Kafka's own command line tools against three nodes: they move partitions, elect leaders
and show the cluster. Skipped unless the tools' jars are there; ``python -m benchmarks.kafka`` has
Maven fetch them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.kafka.systems.apache import LIB, TOOLS_JAR
from confluent_kafka.admin import AdminClient
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
    pytest.mark.skipif(
        shutil.which("java") is None or not (LIB / TOOLS_JAR).exists(),
        reason="needs java and Kafka's jars in benchmarks/.cache",
    ),
]
TOOL_SECONDS_MAX = 120
PACKAGE = "org.apache.kafka.tools"
CONFIGS = "kafka.admin.ConfigCommand"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def tool(cluster: PenstockCluster, name: str, *arguments: str, at: int = 1, code: int = 0) -> str:
    """What a tool prints, asked of one node."""
    full_name = name if name == CONFIGS else f"{PACKAGE}.{name}"
    command = ["java", "-Xmx256m", "-cp", f"{LIB}/*", full_name]
    server = ("--bootstrap-server", cluster.nodes[at].kafka)
    before = server if name in ("FeatureCommand", "MetadataQuorumCommand") else ()
    after = () if before else server
    done = subprocess.run(
        [*command, *before, *arguments, *after],
        check=False,
        capture_output=True,
        text=True,
        timeout=TOOL_SECONDS_MAX,
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    return said


def places(cluster: PenstockCluster, topic: str) -> dict[int, list[int]]:
    found = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10)
    return {index: one.replicas for index, one in found.topics[topic].partitions.items()}


def test_a_topic_is_created_and_its_partitions_are_moved(
    cluster: PenstockCluster, tmp_path: Path
) -> None:
    tool(cluster, "TopicCommand", "--create", "--topic", "t", "--replica-assignment", "2:3,3:1")
    eventually(
        lambda: places(cluster, "t") == {0: [2, 3], 1: [3, 1]}, seconds=30, what="it is there"
    )
    wanted = {0: [1, 3], 1: [2, 1]}
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps(
            {
                "version": 1,
                "partitions": [
                    {"topic": "t", "partition": index, "replicas": replicas}
                    for index, replicas in wanted.items()
                ],
            }
        )
    )
    command = "reassign.ReassignPartitionsCommand"
    file = ("--reassignment-json-file", str(plan))
    said = tool(cluster, command, *file, "--execute", at=2)
    assert "Successfully started partition reassignments for t-0,t-1" in said

    def is_complete() -> bool:
        said = tool(cluster, command, *file, "--verify", "--preserve-throttles", at=3)
        return all(f"Reassignment of partition t-{index} is completed." in said for index in wanted)

    eventually(is_complete, seconds=60, what="the moves are complete")
    assert places(cluster, "t") == wanted
    assert "No partition reassignments found." in tool(cluster, command, "--list")
    # Without --preserve-throttles, throttles of brokers and topics are cleared at the end.
    said = tool(cluster, command, *file, "--verify", at=2)
    assert "Clearing broker-level throttles on brokers 1,2,3" in said
    assert "Clearing topic-level throttles on topic t" in said


def test_leaders_are_elected(cluster: PenstockCluster) -> None:
    tool(cluster, "TopicCommand", "--create", "--topic", "led", "--replica-assignment", "2:3:1")
    for at in (1, 2, 3):
        said = tool(
            cluster,
            "LeaderElectionCommand",
            *("--election-type", "preferred", "--topic", "led", "--partition", "0"),
            at=at,
        )
        assert "Valid replica already elected for partitions led-0" in said


def test_the_cluster_is_shown(cluster: PenstockCluster) -> None:
    tool(cluster, "TopicCommand", "--create", "--topic", "shown", "--replica-assignment", "2:3")
    eventually(lambda: places(cluster, "shown") == {0: [2, 3]}, seconds=30, what="it is there")
    said = tool(cluster, "LogDirsCommand", "--describe", "--topic-list", "shown")
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    held = {
        one["broker"]: [part["partition"] for part in one["logDirs"][0]["partitions"]]
        for one in json.loads(line)["brokers"]
    }
    assert held == {1: [], 2: ["shown-0"], 3: ["shown-0"]}
    said = tool(cluster, "FeatureCommand", "describe")
    for name, level in (("group.version", 1), ("share.version", 1), ("transaction.version", 2)):
        assert f"Feature: {name}" in said
        assert f"FinalizedVersionLevel: {level}" in said
    said = tool(cluster, "MetadataQuorumCommand", "describe", "--status")
    assert "LeaderId:" in said
    said = tool(cluster, "MetadataQuorumCommand", "describe", "--replication")
    assert said.count("Follower") == 2
    said = tool(cluster, "ClusterTool", "unregister", "--id", "9", code=1)
    assert "BrokerIdNotRegisteredException" in said or "no node 9" in said


def described(cluster: PenstockCluster, *of: str, at: int = 1) -> str:
    return tool(cluster, CONFIGS, *of, "--describe", at=at)


def altered(cluster: PenstockCluster, *what: str, at: int = 1, code: int = 0) -> str:
    return tool(cluster, CONFIGS, *what, at=at, code=code)


@pytest.mark.parametrize(
    ("of", "config", "at"),
    [
        (("--entity-type", "brokers", "--entity-name", "2"), "log.retention.ms=5000000", 2),
        (("--entity-type", "brokers", "--entity-default"), "log.roll.ms=700000", 1),
        (("--broker-defaults",), "log.cleaner.threads=2", 3),
        (("--entity-type", "broker-loggers", "--entity-name", "3"), "penstock.frontend=DEBUG", 3),
        (("--entity-type", "topics", "--entity-name", "tuned"), "compression.gzip.level=3", 2),
        (("--entity-type", "clients", "--entity-name", "app"), "producer_byte_rate=5000.0", 1),
        (("--entity-type", "users", "--entity-name", "ann"), "consumer_byte_rate=6000.0", 2),
        (("--entity-type", "users", "--entity-default"), "request_percentage=50.0", 3),
        (("--entity-type", "ips", "--entity-name", "10.0.0.1"), "connection_creation_rate=7.0", 1),
        (("--entity-type", "client-metrics", "--entity-name", "m"), "interval.ms=1000", 2),
    ],
    ids=lambda value: " ".join(value[1::2]) if isinstance(value, tuple) else "",
)
def test_configs_are_set_described_and_deleted(
    cluster: PenstockCluster, of: tuple[str, ...], config: str, at: int
) -> None:
    if "topics" in of:
        tool(cluster, "TopicCommand", "--create", "--if-not-exists", "--topic", "tuned")
    name, _, value = config.partition("=")
    value = value.removesuffix(".0") if name.endswith("_byte_rate") else value
    said = altered(cluster, *of, "--alter", "--add-config", f"{name}={value}", at=at)
    assert "Completed updating" in said

    def is_shown() -> bool:
        return config in described(cluster, *of, at=at)

    eventually(is_shown, seconds=30, what=f"{config} is shown")
    altered(cluster, *of, "--alter", "--delete-config", name, at=at)
    eventually(lambda: not is_shown(), seconds=30, what=f"{config} is gone")


def test_client_metrics_are_listed(cluster: PenstockCluster) -> None:
    command = "ClientMetricsCommand"
    tool(cluster, command, "--alter", "--name", "sub", "--interval", "2000", "--metrics", "org.")
    assert "sub" in tool(cluster, command, "--list", at=2)
    said = tool(cluster, command, "--describe", "--name", "sub", at=3)
    assert "interval.ms=2000" in said
    tool(cluster, command, "--delete", "--name", "sub")
    eventually(
        lambda: "sub" not in tool(cluster, command, "--list", at=2), seconds=30, what="it is gone"
    )


def test_a_read_only_config_is_refused_in_the_words_of_kafka(cluster: PenstockCluster) -> None:
    of = ("--entity-type", "brokers", "--entity-name", "1")
    said = altered(cluster, *of, "--alter", "--add-config", "log.dirs=/x", code=1)
    assert "Cannot update these configs dynamically: [log.dirs]" in said
