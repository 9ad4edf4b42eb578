"""Apache Kafka's own command line tools against three nodes. What a tool has done or shown is
compared with what another client says. ``tests/harness/kafka_tools.py`` runs the tools; the tests
are skipped where their jars cannot be had."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, ShareConsumer, TopicPartition
from kafka.admin import ConfigResourceType as Kind
from tests.harness.cluster import PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.kafka_site import NOBODY, SECONDS_MAX, Site, rows
from tests.harness.kafka_tools import KafkaTools
from tests.harness.patience import eventually

from penstock.wire.kafka.apis import APIS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]
GROUPS = "consumer.group.ConsumerGroupCommand"
SHARE_GROUPS = "consumer.group.ShareGroupCommand"
REASSIGN = "reassign.ReassignPartitionsCommand"
FOLLOWER = "follower.replication.throttled"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, kafka_tools: KafkaTools) -> Iterator[Site]:
    with (
        PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster,
        closing(Site(cluster, kafka_tools)) as site,
    ):
        yield site


def written(file: Path, content: Mapping[str, Any]) -> str:
    file.write_text(json.dumps(content))
    return str(file)


# ── Topics and configs ───────────────────────────────────────────────────────────────────────


def test_topics_are_created_shown_changed_and_deleted(site: Site) -> None:
    create = ("--create", "--topic", "made", "--partitions", "2", "--replication-factor", "2")
    said = site.tool("TopicCommand", *create, "--config", "retention.ms=1000")
    assert "Created topic made." in said
    eventually(
        lambda: [len(set(nodes)) for nodes in site.replicas("made").values()] == [2, 2],
        seconds=120,
        what="the node that is asked knows where it is",
    )
    assert "already exists" in site.tool("TopicCommand", *create, at=2, code=1)
    assert "made" in site.tool("TopicCommand", "--list", at=3).split()

    eventually(lambda: NOBODY not in site.leaders("made").values(), seconds=120, what="it is led")
    said = site.tool("TopicCommand", "--describe", "--topic", "made", at=2)
    assert "PartitionCount: 2\tReplicationFactor: 2\tConfigs: " in said
    assert "retention.ms=1000" in said
    for index, nodes in site.replicas("made").items():
        assert (
            f"Partition: {index}\tLeader: {site.leaders('made')[index]}\tReplicas: "
            + ",".join(map(str, nodes))
            in said
        )

    site.tool("TopicCommand", "--alter", "--topic", "made", "--partitions", "3", at=3)
    eventually(lambda: len(site.replicas("made")) == 3, seconds=120, what="it has grown")
    said = site.tool("TopicCommand", "--alter", "--topic", "made", "--partitions", "1", code=1)
    assert "The topic made currently has 3 partition(s); 1 would not be an increase." in said
    site.tool("TopicCommand", "--delete", "--topic", "made", at=2)
    eventually(lambda: not site.replicas("made"), seconds=120, what="it is gone")
    assert "does not exist" in site.tool("TopicCommand", "--describe", "--topic", "made", code=1)


def test_configs_of_topics_and_groups_are_changed(site: Site) -> None:
    site.topic("configured")
    of_topic = ("--entity-type", "topics", "--entity-name", "configured")
    change = ("--alter", "--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    site.tool("ConfigCommand", *of_topic, *change)
    site.await_config(Kind.TOPIC, "configured", "retention.ms", "5000")
    site.await_config(Kind.TOPIC, "configured", "cleanup.policy", "compact,delete")
    said = site.tool("ConfigCommand", *of_topic, "--describe", at=2)
    assert "retention.ms=5000 sensitive=false" in said
    site.tool("ConfigCommand", *of_topic, "--alter", "--delete-config", "retention.ms", at=3)
    site.await_config(Kind.TOPIC, "configured", "retention.ms", None)
    wrong = ("--alter", "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in site.tool("ConfigCommand", *of_topic, *wrong, code=1)

    of_group = ("--entity-type", "groups", "--entity-name", "configured-group")
    change = ("--alter", "--add-config", "consumer.session.timeout.ms=50000")
    site.tool("ConfigCommand", *of_group, *change)
    site.await_config(Kind.GROUP, "configured-group", "consumer.session.timeout.ms", "50000")
    for at in (1, 2, 3):
        said = site.tool("ConfigCommand", *of_group, "--describe", at=at)
        assert "consumer.session.timeout.ms=50000" in said


@pytest.mark.parametrize(
    ("of", "config", "seen"),
    [
        ("brokers --entity-name 2", "log.retention.ms=5000000", (Kind.BROKER, "2")),
        ("brokers --entity-default", "log.roll.ms=700000", (Kind.BROKER, "3")),
        ("broker-loggers --entity-name 3", "penstock.frontend=DEBUG", (Kind.BROKER_LOGGER, "3")),
        ("client-metrics --entity-name m", "interval.ms=1000", (Kind.CLIENT_METRICS, "m")),
        # Quotas: the clients of other makes do not know them.
        ("clients --entity-name app", "producer_byte_rate=5000.0", None),
        ("users --entity-name ann", "consumer_byte_rate=6000.0", None),
        ("users --entity-default", "request_percentage=50.0", None),
        ("ips --entity-name 10.0.0.1", "connection_creation_rate=7.0", None),
    ],
    ids=lambda value: value.replace(" ", "") if isinstance(value, str) else "",
)
def test_configs_of_other_kinds_are_changed(
    site: Site, of: str, config: str, seen: tuple[Kind, str] | None
) -> None:
    entity = ("--entity-type", *of.split())
    name, _, value = config.partition("=")

    def is_described() -> bool:
        return config in site.tool("ConfigCommand", *entity, "--describe", at=3)

    said = site.tool("ConfigCommand", *entity, "--alter", "--add-config", config, at=2)
    assert "Completed updating" in said
    eventually(is_described, seconds=120, what=f"{config} is described")
    if seen is not None:
        site.await_config(*seen, name, value)
    site.tool("ConfigCommand", *entity, "--alter", "--delete-config", name, at=1)
    eventually(lambda: not is_described(), seconds=120, what=f"{config} is gone")
    if seen is not None:
        site.await_config(*seen, name, "INFO" if seen[0] is Kind.BROKER_LOGGER else None)


def test_a_read_only_config_is_rejected_in_the_words_of_kafka(site: Site) -> None:
    of = ("--entity-type", "brokers", "--entity-name", "1")
    said = site.tool("ConfigCommand", *of, "--alter", "--add-config", "log.dirs=/x", code=1)
    assert "Cannot update these configs dynamically: [log.dirs]" in said


def test_client_metrics_are_subscribed_to(site: Site) -> None:
    command = "ClientMetricsCommand"
    site.tool(command, "--alter", "--name", "sub", "--interval", "2000", "--metrics", "org.")
    site.await_config(Kind.CLIENT_METRICS, "sub", "interval.ms", "2000")
    site.await_config(Kind.CLIENT_METRICS, "sub", "metrics", "org.")
    assert "sub" in site.tool(command, "--list", at=2).split()
    assert "interval.ms=2000" in site.tool(command, "--describe", "--name", "sub", at=3)
    site.tool(command, "--delete", "--name", "sub")
    site.await_config(Kind.CLIENT_METRICS, "sub", "interval.ms", None)
    assert "sub" not in site.tool(command, "--list").split()


# ── Groups ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumer_groups_are_shown_reset_and_deleted(site: Site, protocol: str) -> None:
    topic = group = f"grouped-{protocol}"
    site.topic(topic, partitions=2)
    for partition in range(2):
        site.send(topic, 10, partition=partition)
    consumer = Consumer(
        {
            "bootstrap.servers": site.bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.2) is not None, seconds=60, what="records are read")
    consumer.commit(
        offsets=[TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 7)], asynchronous=False
    )
    assert group in site.tool(GROUPS, "--list").split()
    assert site.groups(at=2)[group] == (protocol.title(), "consumer")
    shown = rows(site.tool(GROUPS, "--describe", "--group", group, at=2), "GROUP")
    assert {(row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in shown} == {
        ("0", "4", "6"),
        ("1", "7", "3"),
    }
    (member,) = rows(site.tool(GROUPS, "--describe", "--group", group, "--members", at=3), "GROUP")
    assert member["#PARTITIONS"] == "2"
    (state,) = rows(site.tool(GROUPS, "--describe", "--group", group, "--state"), "GROUP")
    assert "Stable" in state.values()
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest")
    said = site.tool(GROUPS, *reset, "--execute", code=None)
    assert site.committed(group, topic) == {0: 4, 1: 7}, said  # it has a member
    consumer.close()

    eventually(
        lambda: "no active members" in site.tool(GROUPS, "--describe", "--group", group),
        seconds=60,
        what="the group is empty",
    )
    site.tool(GROUPS, *reset, "--dry-run", at=2)
    assert site.committed(group, topic) == {0: 4, 1: 7}
    site.tool(GROUPS, *reset, "--execute", at=3)
    assert site.committed(group, topic) == {0: 0, 1: 0}
    delete = ("--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    assert "Successful" in site.tool(GROUPS, *delete)
    assert site.committed(group, topic) == {0: 0}
    said = site.tool(GROUPS, "--delete", "--group", group, at=2)
    assert "was successful" in said
    assert site.committed(group, topic) == {}
    assert group not in site.tool(GROUPS, "--list", at=3).split()
    assert group not in site.groups()


def test_share_groups_are_shown_reset_and_deleted(site: Site) -> None:
    site.topic("shared")
    site.send("shared", 10)
    reset = ("--reset-offsets", "--group", "shares", "--topic", "shared", "--to-earliest")
    site.tool(SHARE_GROUPS, *reset, "--execute")
    assert "shares" in site.tool(SHARE_GROUPS, "--list", at=2).split()
    assert site.groups("--share", at=3) == {"shares": ("Share", "share")}
    member = ShareConsumer({"bootstrap.servers": site.bootstrap, "group.id": "shares"})
    member.subscribe(["shared"])
    got: list[bytes | None] = []

    def read() -> bool:
        got.extend(message.value() for message in member.poll(0.2))
        return len(got) == 10

    eventually(read, seconds=60, what="the member reads from the beginning")
    described = ("--describe", "--group", "shares")
    (one,) = rows(site.tool(SHARE_GROUPS, *described, "--members", at=3), "GROUP")
    assert one["#PARTITIONS"] == "1"
    (state,) = rows(site.tool(SHARE_GROUPS, *described, "--state"), "GROUP")
    assert "Stable" in state.values()
    member.close()
    eventually(
        lambda: "Empty" in site.tool(SHARE_GROUPS, *described, "--state"),
        seconds=60,
        what="the group is empty",
    )
    (offsets,) = rows(site.tool(SHARE_GROUPS, *described, "--offsets", at=2), "GROUP")
    assert (offsets["TOPIC"], offsets["PARTITION"]) == ("shared", "0")
    gone = ("--delete-offsets", "--group", "shares", "--topic", "shared")
    assert "Successful" in site.tool(SHARE_GROUPS, *gone, at=3)
    site.tool(SHARE_GROUPS, "--delete", "--group", "shares")
    assert "shares" not in site.tool(SHARE_GROUPS, "--list", at=2).split()
    assert "shares" not in site.groups()


# ── Transactions ─────────────────────────────────────────────────────────────────────────────


def test_transactions_are_shown_and_aborted(site: Site) -> None:
    site.topic("transacted")
    producer = site.send("transacted", 2, transactional_id="tx")
    (row,) = rows(site.tool("TransactionsCommand", "list"), "TransactionalId")
    assert (row["TransactionalId"], row["TransactionState"]) == ("tx", "Ongoing")
    describe = ("describe", "--transactional-id", "tx")
    said = site.tool("TransactionsCommand", *describe, at=2)
    assert "Ongoing" in said
    assert "transacted-0" in said
    place = ("--topic", "transacted", "--partition", "0")
    (shown,) = rows(
        site.tool("TransactionsCommand", "describe-producers", *place, at=3), "ProducerId"
    )
    assert shown["ProducerId"] == row["ProducerId"]
    assert shown["CurrentTransactionStartOffset"] == "0"
    for node in site.cluster.nodes:  # leaders and followers
        said = site.tool("TransactionsCommand", "find-hanging", "--broker-id", str(node))
        assert "transacted" not in said
    # The producer's own coordinator is told nothing: an abort of one partition is the last resort.
    abort = ("abort", *place, "--start-offset", "0")
    site.tool("TransactionsCommand", *abort)
    assert site.ends("transacted") == (0, 3)
    assert site.first_committed("transacted") == 3  # the end: both records are aborted
    del producer


def test_a_transaction_is_ended_by_its_id(site: Site) -> None:
    site.topic("ended")
    producer = site.send("ended", 2, transactional_id="forced")
    terminate = ("forceTerminateTransaction", "--transactionalId", "forced")
    site.tool("TransactionsCommand", *terminate, at=2)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(SECONDS_MAX)
    assert refused.value.args[0].fatal()
    assert site.ends("ended") == (0, 3)
    assert site.first_committed("ended") == 3
    said = site.tool("TransactionsCommand", "describe", "--transactional-id", "forced", at=3)
    assert "Empty" in said


# ── Records ──────────────────────────────────────────────────────────────────────────────────


def test_offsets_are_told_and_records_deleted(site: Site, tmp_path: Path) -> None:
    site.topic("counted", partitions=2)
    site.send("counted", 10)
    site.send("counted", 3, partition=1)
    said = site.tool("GetOffsetShell", "--topic", "counted")
    assert said.split()[-2:] == ["counted:0:10", "counted:1:3"]
    partitions = [{"topic": "counted", "partition": 0, "offset": 4}]
    file = written(tmp_path / "offsets.json", {"version": 1, "partitions": partitions})
    said = site.tool("DeleteRecordsCommand", "--offset-json-file", file, at=2)
    assert "low_watermark: 4" in said
    assert site.ends("counted") == (4, 10)
    early = ("--topic", "counted", "--time", "earliest")
    said = site.tool("GetOffsetShell", *early, at=3)
    assert said.split()[-2:] == ["counted:0:4", "counted:1:0"]


# ── Where replicas are ───────────────────────────────────────────────────────────────────────


def created(site: Site, name: str, *lists: Sequence[int]) -> None:
    """On these nodes, by partition."""
    text = ",".join(":".join(map(str, nodes)) for nodes in lists)
    site.tool("TopicCommand", "--create", "--topic", name, "--replica-assignment", text)
    wanted = {index: list(nodes) for index, nodes in enumerate(lists)}
    eventually(lambda: site.replicas(name) == wanted, seconds=120, what="it is there")


def test_partitions_are_moved(site: Site, tmp_path: Path) -> None:
    created(site, "moved", (2, 3), (3, 1))
    site.send("moved", 10)
    topics = written(tmp_path / "topics.json", {"version": 1, "topics": [{"topic": "moved"}]})
    generate = ("--topics-to-move-json-file", topics, "--broker-list", "1,2", "--generate")
    said = site.tool(REASSIGN, *generate)
    proposed = said.split("Proposed partition reassignment configuration")[1]
    plan = json.loads(proposed.strip().splitlines()[0])
    assert {node for one in plan["partitions"] for node in one["replicas"]} == {1, 2}

    wanted = {0: [1, 3], 1: [2, 1]}
    partitions = [
        {"topic": "moved", "partition": index, "replicas": nodes} for index, nodes in wanted.items()
    ]
    file = (
        "--reassignment-json-file",
        written(tmp_path / "plan.json", {"version": 1, "partitions": partitions}),
    )
    said = site.tool(REASSIGN, *file, "--execute", "--throttle", "50000000", at=2)
    assert "Successfully started partition reassignments for moved-0,moved-1" in said

    def is_complete() -> bool:
        said = site.tool(REASSIGN, *file, "--verify", "--preserve-throttles", at=3)
        return all(f"partition moved-{index} is completed." in said for index in wanted)

    eventually(is_complete, seconds=60, what="the moves are complete")
    assert site.replicas("moved") == wanted
    assert "No partition reassignments found." in site.tool(REASSIGN, "--list")
    assert site.ends("moved") == (0, 10)
    # Without --preserve-throttles, the throttles that --execute has set are cleared at the end.
    of_broker = (Kind.BROKER, "1", f"{FOLLOWER}.rate")
    of_topic = (Kind.TOPIC, "moved", f"{FOLLOWER}.replicas")
    site.await_config(*of_broker, "50000000")
    site.await_config(*of_topic, "0:1,1:2")
    said = site.tool(REASSIGN, *file, "--verify", at=2)
    assert "Clearing broker-level throttles on brokers 1,2,3" in said
    assert "Clearing topic-level throttles on topic moved" in said
    site.await_config(*of_broker, None)
    site.await_config(*of_topic, None)


def test_leaders_are_elected(site: Site, tmp_path: Path) -> None:
    created(site, "led", (2, 3, 1))
    eventually(lambda: site.leaders("led") == {0: 2}, seconds=120, what="the first leads")
    preferred = ("--election-type", "preferred")
    place = ("--topic", "led", "--partition", "0")
    for at in (1, 2, 3):
        said = site.tool("LeaderElectionCommand", *preferred, *place, at=at)
        assert "Valid replica already elected for partitions led-0" in said
    node = site.cluster.nodes[2]
    node.stop()
    eventually(lambda: site.leaders("led")[0] in (1, 3), seconds=60, what="another leads")
    said = site.tool("LeaderElectionCommand", *preferred, *place, at=3, code=1)
    assert "PreferredLeaderNotAvailableException" in said
    node.start()
    file = written(tmp_path / "led.json", {"partitions": [{"topic": "led", "partition": 0}]})

    def is_elected() -> bool:
        said = site.tool(
            "LeaderElectionCommand", *preferred, "--path-to-json-file", file, at=3, code=None
        )
        return "PreferredLeaderNotAvailable" not in said and site.leaders("led") == {0: 2}

    eventually(is_elected, seconds=60, what="the preferred one leads again")


def test_folders_of_logs_are_shown(site: Site) -> None:
    created(site, "shown", (2, 3))
    site.send("shown", 1)
    said = site.tool("LogDirsCommand", "--describe", "--topic-list", "shown")
    (line,) = [line for line in said.splitlines() if line.startswith("{")]
    held = {
        one["broker"]: {part["partition"]: part["size"] for part in one["logDirs"][0]["partitions"]}
        for one in json.loads(line)["brokers"]
    }
    assert {node: list(parts) for node, parts in held.items()} == {
        1: [],
        2: ["shown-0"],
        3: ["shown-0"],
    }
    assert held[2]["shown-0"] > 0


# ── The cluster ──────────────────────────────────────────────────────────────────────────────


def test_the_cluster_is_shown(site: Site) -> None:
    said = site.tool("FeatureCommand", "describe")
    for name, level in (("group.version", 1), ("share.version", 1), ("transaction.version", 2)):
        (line,) = [line for line in said.splitlines() if f"Feature: {name}" in line]
        assert f"FinalizedVersionLevel: {level} " in line
    said = site.tool("FeatureCommand", "upgrade", "--feature", "group.version=9", code=1)
    assert "group.version" in said

    said = site.tool("MetadataQuorumCommand", "describe", "--status", at=2)
    (line,) = [line for line in said.splitlines() if line.startswith("LeaderId:")]
    assert int(line.split()[1]) == site.admin.describe_cluster().result(SECONDS_MAX).controller.id
    said = site.tool("MetadataQuorumCommand", "describe", "--replication", at=3)
    assert (said.count("Leader"), said.count("Follower")) == (1, 2)

    found = site.admin.describe_cluster().result(SECONDS_MAX)
    assert f"Cluster ID: {found.cluster_id}" in site.tool("ClusterTool", "cluster-id")
    said = site.tool("ClusterTool", "list-endpoints", at=2)
    for node in site.cluster.nodes.values():
        assert node.kafka.rpartition(":")[2] in said
    said = site.tool("ClusterTool", "unregister", "--id", "9", code=1)
    assert "BrokerIdNotRegisteredException" in said or "no node 9" in said
    said = site.tool("BrokerApiVersionsCommand")
    assert said.count("Produce(0): 0 to ") == 3
    for api in APIS.values():
        assert f"({api.key}): " in said
