"""Share groups on three nodes: every leader serves its partitions, whoever coordinates the group,
and every node knows the configs of groups."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    KafkaException,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from tests.attacks.frames import Wire
from tests.compat.kafka.confluent import SECONDS_MAX
from tests.e2e.test_cluster_kafka import Produced, made
from tests.harness.cluster import ClusterNode, PenstockCluster
from tests.harness.etcd import LACKING
from tests.harness.patience import eventually

from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from penstock.wire.kafka.generated.describe_configs import DescribeConfigsResource
from penstock.wire.kafka.generated.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequestGroup,
)
from penstock.wire.kafka.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
)
from penstock.wire.kafka.generated.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.compat,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]

PARTITIONS = 6
GROUP = 32  # the type of a resource
LOCK = "share.record.lock.duration.ms"
RETRIED = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)  # by every client


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockCluster]:
    with PenstockCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def admin_of(node: ClusterNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.kafka})


def leaders(cluster: PenstockCluster, topic: str) -> dict[int, int]:
    """Partition to node number, as Metadata says."""
    node = next(iter(cluster.nodes.values()))
    found = admin_of(node).list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
    return {index: one.leader for index, one in found.items()}


def coordinator(cluster: PenstockCluster, group: str) -> int:
    """The node that coordinates a group."""
    with Wire(next(node for node in cluster.nodes.values() if node.is_running)) as wire:
        (found,) = wire.ask("FindCoordinator", 6, coordinator_keys=[group]).coordinators
    return int(found.node_id)


def set_config(node: ClusterNode, group: str, name: str, value: str) -> int:
    """IncrementalAlterConfigs of a group, at one node."""
    resource = AlterConfigsResource(GROUP, group, [AlterableConfig(name, 0, value)])
    with Wire(node) as wire:
        (found,) = wire.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses
    return int(found.error_code)


def shown(node: ClusterNode, group: str) -> dict[str, tuple[str, int]]:
    """What one node says is set for a group: name to value and source."""
    resource = DescribeConfigsResource(GROUP, group, None)
    with Wire(node) as wire:
        (found,) = wire.ask("DescribeConfigs", 4, resources=[resource]).results
    assert found.error_code == 0, found.error_message
    return {
        each.name: (each.value, each.config_source)
        for each in found.configs
        if each.config_source == 8
    }


def knows(node: ClusterNode, group: str, name: str) -> bool:
    return name in shown(node, group)


def shows(node: ClusterNode, group: str, wanted: dict[str, tuple[str, int]]) -> bool:
    return shown(node, group) == wanted


class Members:
    """Three members that accept everything, in threads of their own."""

    def __init__(self, cluster: PenstockCluster, group: str, topic: str, count: int = 3) -> None:
        self.accepted: Counter[str] = Counter()
        self.unsure: Counter[str] = Counter()  # their leader went away during the acknowledgement
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._args = (cluster.bootstrap, group, topic)
        self._threads = [
            threading.Thread(target=self._run, name=f"member {at}") for at in range(count)
        ]

    def __enter__(self) -> Members:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        bootstrap, group, topic = self._args
        made: Any = ShareConsumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "share.acknowledgement.mode": "explicit",
                "log_level": 2,
            }
        )
        made.subscribe([topic])
        try:
            while not self._end.is_set():
                self._poll(made)
        finally:
            made.close()

    def _poll(self, made: Any) -> None:
        messages = [message for message in made.poll(0.2) if message.error() is None]
        for message in messages:
            made.acknowledge(message, AcknowledgeType.ACCEPT)
        if not messages:
            return
        try:
            results = made.commit_sync(timeout=SECONDS_MAX)
            failed = {(tp.topic, tp.partition) for tp, error in results.items() if error}
        except KafkaException:
            failed = {(message.topic(), message.partition()) for message in messages}
        with self._lock:
            for message in messages:
                is_failed = (message.topic(), message.partition()) in failed
                (self.unsure if is_failed else self.accepted)[message.value().decode()] += 1

    def wait_for(self, count: int, seconds: float = 90) -> None:
        def is_done() -> bool:
            with self._lock:
                return len({**self.accepted, **self.unsure}) >= count

        eventually(is_done, seconds=seconds, what=f"{count} records are delivered")

    def check(self, written: list[str]) -> None:
        """Each record was accepted once, or its acknowledgement was lost with its leader."""
        assert set(self.accepted.values()) == {1}
        assert {*self.accepted, *self.unsure} == set(written)


def is_read(cluster: PenstockCluster, group: str) -> bool:
    """Whether the group is finished with every record."""
    asked = [DescribeShareGroupOffsetsRequestGroup(group, None)]
    with Wire(cluster.nodes[coordinator(cluster, group)]) as wire:
        (found,) = wire.ask("DescribeShareGroupOffsets", 1, groups=asked).groups
    if found.error_code in RETRIED:
        return False
    assert found.error_code == 0, found.error_message
    lags = [one.lag for topic in found.topics for one in topic.partitions]
    return len(lags) == PARTITIONS and set(lags) == {0}


def begin(cluster: PenstockCluster, name: str) -> str:
    """A topic, and a group of the same name that reads it from the beginning."""
    made(cluster, name, partitions=PARTITIONS)
    assert set_config(cluster.nodes[1], name, "share.auto.offset.reset", "earliest") == 0
    for each in cluster.nodes.values():
        eventually(
            partial(knows, each, name, "share.auto.offset.reset"),
            seconds=120,
            what=f"node {each.number} knows the configs",
        )
    return name


# ── Delivery ─────────────────────────────────────────────────────────────────────────────────
def test_three_members_accept_every_record_once(cluster: PenstockCluster) -> None:
    name = begin(cluster, "shared")
    produced = Produced(cluster, name)
    produced.send(300)
    with Members(cluster, name, name) as members:
        members.wait_for(300)
        produced.send(300)
        members.wait_for(600)
        eventually(partial(is_read, cluster, name), seconds=120, what="nothing is left")
    assert not members.unsure
    members.check(produced.written)


def test_a_leader_that_is_killed_loses_no_record(cluster: PenstockCluster) -> None:
    name = begin(cluster, "leader-killed")
    group_at = coordinator(cluster, name)
    victim = next(node for node in leaders(cluster, name).values() if node != group_at)
    survive(cluster, name, victim)


def test_a_coordinator_that_is_killed_loses_no_record(cluster: PenstockCluster) -> None:
    name = begin(cluster, "coordinator-killed")
    survive(cluster, name, coordinator(cluster, name))


def survive(cluster: PenstockCluster, name: str, victim: int) -> None:
    # Records whose acknowledgement was lost come again within the test.
    assert set_config(cluster.nodes[victim], name, LOCK, "10000") == 0
    produced = Produced(cluster, name)
    produced.send(200)
    node = cluster.nodes[victim]
    with Members(cluster, name, name) as members:
        members.wait_for(50)
        node.kill()
        produced.send(200)
        members.wait_for(400, seconds=150)
        node.start(seconds=60)
        produced.send(100)
        members.wait_for(500, seconds=150)
        eventually(partial(is_read, cluster, name), seconds=90, what="nothing is left")
    members.check(produced.written)


class Session:
    """A member's share session at one leader."""

    def __init__(self, wire: Wire, group: str, member: str) -> None:
        self._wire = wire
        self._names = (group, member)
        self._epoch = 0

    def fetch(self, topic_id: bytes = b"", partition: int = 0, **fields: Any) -> ShareFetchResponse:
        topics = [FetchTopic(topic_id, [FetchPartition(partition)])] if topic_id else []
        asked = {"max_wait_ms": 5_000, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
        request = ShareFetchRequest(
            *self._names, self._epoch, max_records=1, batch_size=1, topics=topics, **asked
        )
        found: ShareFetchResponse = self._wire.ask_for("ShareFetch", 2, request)
        assert found.error_code == 0, ErrorCode(found.error_code)
        self._epoch += 1
        return found


def join(cluster: PenstockCluster, group: str, topic: str) -> bytes:
    """One member; returns the id of its topic."""
    with Wire(cluster.nodes[coordinator(cluster, group)]) as wire:
        found = wire.ask(
            "ShareGroupHeartbeat",
            1,
            group_id=group,
            member_id="m",
            member_epoch=0,
            subscribed_topic_names=[topic],
        )
    assert found.error_code == 0, found.error_message
    (assigned,) = found.assignment.topic_partitions
    assert sorted(assigned.partitions) == list(range(PARTITIONS))
    return bytes(assigned.topic_id)


def test_the_first_fetch_delivers_at_every_leader(cluster: PenstockCluster) -> None:
    name = begin(cluster, "first-fetch")
    Produced(cluster, name).send(200)
    led = leaders(cluster, name)
    assert set(led.values()) - {coordinator(cluster, name)}, "some leaders do not coordinate"
    topic_id = join(cluster, name, name)
    for partition, number in led.items():
        with Wire(cluster.nodes[number]) as wire:
            found = Session(wire, name, "m").fetch(topic_id, partition)
            ((one,),) = (topic.partitions for topic in found.responses)
            assert one.error_code == 0, one.error_message
            assert len(one.acquired_records) == 1


def test_a_group_that_reads_committed_gets_committed_records_only(
    cluster: PenstockCluster,
) -> None:
    name = begin(cluster, "committed")
    for node in cluster.nodes.values():
        assert set_config(node, name, "share.isolation.level", "read_committed") == 0
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name})
    producer.init_transactions(SECONDS_MAX)
    with Members(cluster, name, name) as members:
        for turn in range(6):
            producer.begin_transaction()
            for number in range(20):
                producer.produce(name, f"{turn}-{number}", key=str(number))
            producer.flush(SECONDS_MAX)
            if turn % 2:
                producer.abort_transaction(SECONDS_MAX)
            else:
                producer.commit_transaction(SECONDS_MAX)
        members.wait_for(60)
        eventually(partial(is_read, cluster, name), seconds=120, what="nothing is left")
    members.check([f"{turn}-{number}" for turn in (0, 2, 4) for number in range(20)])


# ── Configs ──────────────────────────────────────────────────────────────────────────────────
def test_a_changed_lock_holds_for_the_next_lease_at_every_leader(
    cluster: PenstockCluster,
) -> None:
    name = begin(cluster, "locks")
    Produced(cluster, name).send(200)
    topic_id = join(cluster, name, name)
    led = leaders(cluster, name)
    with contextlib.ExitStack() as stack:
        wires = {at: stack.enter_context(Wire(cluster.nodes[one])) for at, one in led.items()}
        sessions = {at: Session(wire, name, f"m{at}") for at, wire in wires.items()}
        check_locks(cluster, name, topic_id, sessions)


def check_locks(
    cluster: PenstockCluster, name: str, topic_id: bytes, sessions: dict[int, Session]
) -> None:
    for partition, session in sessions.items():
        assert session.fetch(topic_id, partition).acquisition_lock_timeout_ms == 30_000
    assert set_config(cluster.nodes[1], name, LOCK, "15000") == 0
    for node in cluster.nodes.values():
        eventually(
            partial(knows, node, name, LOCK),
            seconds=120,
            what=f"node {node.number} knows the change",
        )
    for session in sessions.values():
        assert session.fetch().acquisition_lock_timeout_ms == 15_000


def test_every_node_changes_and_shows_the_configs_of_a_group(cluster: PenstockCluster) -> None:
    names = (
        "share.delivery.count.limit",
        "consumer.session.timeout.ms",
        "streams.num.standby.replicas",
    )
    values = ("3", "50000", "1")
    for node, name, value in zip(cluster.nodes.values(), names, values, strict=True):
        assert set_config(node, "configured", name, value) == 0
        assert shown(node, "configured")[name] == (value, 8), "seen where it was changed"
    wanted = {name: (value, 8) for name, value in zip(names, values, strict=True)}
    for node in cluster.nodes.values():
        eventually(
            partial(shows, node, "configured", wanted),
            seconds=120,
            what=f"node {node.number} shows all",
        )


# ── Offsets of a new group ───────────────────────────────────────────────────────────────────
def test_a_new_group_begins_where_it_was_told_to_also_after_its_coordinator_was_killed(
    cluster: PenstockCluster,
) -> None:
    name = "told-where"
    made(cluster, name, partitions=PARTITIONS)
    produced = Produced(cluster, name)
    produced.send(120)
    at = coordinator(cluster, name)
    partitions = [AlterShareGroupOffsetsRequestPartition(one, 10) for one in range(PARTITIONS)]
    topics = [AlterShareGroupOffsetsRequestTopic(name, partitions)]
    with Wire(cluster.nodes[at]) as wire:
        found = wire.ask("AlterShareGroupOffsets", 0, group_id=name, topics=topics)
    assert found.error_code == 0, found.error_message
    assert {one.error_code for topic in found.responses for one in topic.partitions} == {0}
    skipped = sum(min(10, end) for end in ends(cluster, name).values())
    cluster.nodes[at].kill()
    cluster.nodes[at].start(seconds=60)
    with Members(cluster, name, name) as members:
        members.wait_for(120 - skipped)
        produced.send(30)
        members.wait_for(150 - skipped)
    assert len(members.accepted) == 150 - skipped
    assert set(members.accepted.values()) == {1}


def ends(cluster: PenstockCluster, topic: str) -> dict[int, int]:
    """Partition to the number of records in it."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "ends"})
    try:
        return {
            one: consumer.get_watermark_offsets(TopicPartition(topic, one), SECONDS_MAX)[1]
            for one in range(PARTITIONS)
        }
    finally:
        consumer.close()
