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


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def tool(cluster: PenstockCluster, name: str, *arguments: str, at: int = 1, code: int = 0) -> str:
    """What a tool prints, asked of one node."""
    command = ["java", "-Xmx256m", "-cp", f"{LIB}/*", f"{PACKAGE}.{name}"]
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
