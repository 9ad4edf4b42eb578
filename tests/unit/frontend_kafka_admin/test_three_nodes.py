"""Where partitions are and who leads them, asked of and told to each of three nodes. The store, the
managers, the catalogs and the handlers are real; nodes copy no data."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.frontend.memory import MemoryIdentities
from tests.unit.frontend_kafka_admin.stage import NODE, Admin, HandClock
from tests.unit.manager.cluster import Cluster, Node, topic, until

from penstock.frontend.kafka.config import KafkaConfig
from penstock.frontend.kafka.context import KafkaContext
from penstock.frontend.kafka.ports.cluster import Brokers, KafkaCluster
from penstock.manager import operator_requests
from penstock.manager.decisions import Policy
from penstock.metadata.cluster_entries import PartitionKey, placement_key
from penstock.metadata.sqlite import SqliteStore
from penstock.metadata.store import Store
from penstock.metadata.topics.resource_configs import DynamicConfigs, ResourceConfigs
from penstock.model.errors import LeaderMoved
from penstock.node.cluster.cluster_role import ClusterRoutes
from penstock.node.wiring.kafka_cluster import ClusterBrokers, ClusterChanges
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated import alter_partition_reassignments as alter
from penstock.wire.kafka.generated import describe_quorum, update_features
from penstock.wire.kafka.generated import list_partition_reassignments as listing
from penstock.wire.kafka.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from penstock.wire.kafka.generated.create_topics import CreatableReplicaAssignment
from penstock.wire.kafka.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.kafka.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from penstock.wire.kafka.generated.unregister_broker import UnregisterBrokerRequest

# Nothing moves for the sake of balance: what does move was asked for.
POLICY = Policy(replication_factor=3, in_sync_min=2, is_balancing=False)
NODES = pytest.mark.parametrize("at", [1, 2, 3])
PREFERRED, UNCLEAN = 0, 1
Lists = Sequence[Sequence[int]]


class Three:
    """The admin requests of each node of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.on = {number: self._admin(node) for number, node in cluster.nodes.items()}

    def _admin(self, node: Node) -> Admin:
        absent: Any = None
        role: Any = SimpleNamespace(
            store=node.line,
            catalog=node.catalog,
            policy=POLICY,
            view=node.view,
            routes=ClusterRoutes(node.view),
            manager=node.manager,
            admin=SimpleNamespace(seen=dict(node.view.nodes)),
            replicators=SimpleNamespace(find=lambda _key: None),
        )
        context = KafkaContext(
            broker=absent,
            anywhere=absent,
            catalog=node.catalog,
            groups=absent,
            transactions=absent,
            producer_ids=absent,
            clock=HandClock(),
            config=KafkaConfig(
                advertised=lambda: ("127.0.0.1", 9092),
                node_id=node.number,
                replicas_default=POLICY.replication_factor,
                in_sync_min_default=POLICY.in_sync_min,
            ),
            meter=absent,
            entropy=secrets.token_bytes,
            identities=MemoryIdentities(),
            dynamic=DynamicConfigs(ResourceConfigs(cast(Store, None))),
            nodes=ClusterBrokers(role, node.catalog, ("", "")),
            joined=ClusterChanges(role),
        )
        return Admin(context, node.catalog, HandClock())

    async def create(self, at: int, lists: Lists, **more: Any) -> int:
        given = [CreatableReplicaAssignment(index, nodes) for index, nodes in enumerate(lists)]
        result = await self.on[at].create("t", assignments=given, **more)
        if not result.error_code:
            await self.everywhere(lambda admin: admin.find("t") is not None)
        return result.error_code

    async def everywhere(self, holds: Callable[[Admin], bool]) -> None:
        await until(lambda: all(map(holds, self.on.values())))

    def places(self, at: int) -> dict[int, tuple[int, ...]]:
        """As Metadata tells them."""
        admin = self.on[at]
        topic = admin.stored("t")
        brokers = admin.context.brokers
        return {
            index: tuple(brokers.place(topic, index).replicas)
            for index in range(topic.partition_count)
        }

    async def placed(self, *expected: Sequence[int]) -> None:
        """On every node."""
        wanted = dict(enumerate(map(tuple, expected)))
        await until(lambda: all(self.places(at) == wanted for at in self.on))

    def key(self, index: int = 0) -> PartitionKey:
        return PartitionKey(self.on[1].stored("t").topic_id, index)

    async def led_by(self, leader: int, index: int = 0) -> None:
        await until(
            lambda: all(node.view.rows[self.key(index)].row.leader == leader
                        for node in self.cluster.nodes.values())
        )  # fmt: skip

    async def grow(self, at: int, count: int, lists: Lists | None, **more: bool) -> int:
        given = None if lists is None else list(map(CreatePartitionsAssignment, lists))
        asked = CreatePartitionsRequest([CreatePartitionsTopic("t", count, given)], **more)
        (result,) = (await self.on[at].ask(37, asked)).results
        return int(result.error_code)

    async def reassign(
        self, at: int, *replicas: Sequence[int] | None, **more: bool
    ) -> list[tuple[int, str | None]]:
        wanted = [alter.ReassignablePartition(*pair) for pair in enumerate(replicas)]
        asked = alter.AlterPartitionReassignmentsRequest(
            topics=[alter.ReassignableTopic("t", wanted)], **more
        )
        response = await self.on[at].ask(45, asked)
        assert response.error_code == ErrorCode.NONE
        (topic,) = response.responses
        return [(one.error_code, one.error_message) for one in topic.partitions]

    async def moving(self, at: int, topics: Any = None) -> dict[int, tuple[Any, ...]]:
        asked = listing.ListPartitionReassignmentsRequest(topics=topics)
        response = await self.on[at].ask(46, asked)
        assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
        return {
            one.partition_index: (
                tuple(one.replicas), tuple(one.adding_replicas), tuple(one.removing_replicas)
            )
            for topic in response.topics
            for one in topic.partitions
        }  # fmt: skip

    async def elect(self, at: int, kind: int, indexes: Sequence[int] | None = (0,)) -> list[int]:
        named = None if indexes is None else [TopicPartitions("t", indexes)]
        response = await self.on[at].ask(43, ElectLeadersRequest(kind, named))
        assert response.error_code == ErrorCode.NONE
        return [
            int(one.error_code)
            for topic in response.replica_election_results
            for one in topic.partition_result
        ]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    store = await SqliteStore.open(tmp_path / "metadata.db")
    cluster = Cluster(store, policy=POLICY)
    for number in (1, 2, 3):
        await cluster.join(number)
    yield Three(cluster)
    await cluster.stop()
    await store.close()


# ── Created where they are wanted ────────────────────────────────────────────────────────────
@NODES
async def test_a_topic_is_created_on_the_nodes_given(three: Three, at: int) -> None:
    assert await three.create(at, [[2, 3, 1], [3, 1, 2]]) == ErrorCode.NONE
    await three.placed([2, 3, 1], [3, 1, 2])
    await three.led_by(2, 0)
    await three.led_by(3, 1)
    assert await three.create(at, [[1, 2, 3]]) == ErrorCode.TOPIC_ALREADY_EXISTS


@NODES
async def test_a_topic_with_one_replica_is_on_one_node(three: Three, at: int) -> None:
    assert await three.create(at, [[1], [1]]) == ErrorCode.NONE
    await three.placed([1], [1])
    configs = {one.name: one for one in (await three.on[at].describe("t")).configs}
    assert configs["min.insync.replicas"].value == "1", "there are no more replicas"
    assert configs["penstock.placement"].value == "manual"
    result = await three.on[at].create("u", partitions=1)
    assert result.replication_factor == 3


@pytest.mark.parametrize(
    ("lists", "more", "code"),
    [
        ([[1, 2, 9]], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 2, 2]], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1], []], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1, 2], [1]], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[-1]], {}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([[1]], {"partitions": 1}, ErrorCode.INVALID_REQUEST),
        ([[1]], {"replicas": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_impossible_assignments_create_nothing(
    three: Three, lists: Lists, more: dict[str, int], code: ErrorCode
) -> None:
    for at in three.on:
        assert await three.create(at, lists, **more) == code
    assert three.on[1].find("t") is None
    assert not three.cluster.view.rows


async def test_a_gap_between_partitions_is_rejected(three: Three) -> None:
    given = [CreatableReplicaAssignment(index, [1]) for index in (0, 2)]
    result = await three.on[1].create("t", assignments=given)
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_a_dry_run_places_nothing(three: Three) -> None:
    result = await three.on[1].create(
        "t", assignments=[CreatableReplicaAssignment(0, [1])], is_dry=True
    )
    assert result.error_code == ErrorCode.NONE
    assert three.on[1].find("t") is None
    assert not three.cluster.view.rows


async def test_the_slower_of_two_topics_of_one_name_leaves_nothing_behind(three: Three) -> None:
    codes = await asyncio.gather(three.create(1, [[1], [2]]), three.create(2, [[3], [3]]))
    assert sorted(codes) == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]
    topic_id = three.on[3].stored("t").topic_id
    await until(lambda: {key.topic_id for key in three.cluster.view.rows} == {topic_id})


@NODES
async def test_partitions_are_added_on_the_nodes_given(three: Three, at: int) -> None:
    await three.create(at, [[1, 2]])
    assert await three.grow(at, 3, [[3, 1], [2, 3]], validate_only=True) == ErrorCode.NONE
    assert await three.grow(at, 3, [[3, 1], [2, 3]]) == ErrorCode.NONE
    await three.everywhere(lambda admin: admin.stored("t").partition_count == 3)
    await three.placed([1, 2], [3, 1], [2, 3])
    for lists in ([], [[1, 2], [1, 2]], [[1]], [[1, 2, 3]], [[1, 1]], [[1, 9]]):
        assert await three.grow(at, 4, lists) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, lists
    assert await three.grow(at, 4, None) == ErrorCode.NONE
    await three.everywhere(lambda admin: admin.stored("t").partition_count == 4)
    await until(lambda: len(three.places(at)[3]) == 2)


# ── Moved ────────────────────────────────────────────────────────────────────────────────────
@NODES
async def test_a_partition_gets_another_preferred_leader(three: Three, at: int) -> None:
    await three.create(at, [[1, 2, 3]])
    assert await three.reassign(at, [1, 2, 3]) == [(0, None)]
    assert await three.reassign(at, [2, 3, 1]) == [(0, None)]
    await three.placed([2, 3, 1])
    await three.led_by(2)
    await until_ended(three)


@NODES
async def test_a_partition_moves_to_fewer_and_to_more_nodes(three: Three, at: int) -> None:
    await three.create(at, [[1, 2, 3], [1, 2, 3]])
    assert await three.reassign(at, [3, 2]) == [(0, None)]
    await three.placed([3, 2], [1, 2, 3])
    await until_ended(three)
    assert three.cluster.view.rows[three.key()].row.in_sync_min == 2
    assert await three.reassign(at, [3, 2, 1], [2, 1]) == [(0, None), (0, None)]
    await three.placed([3, 2, 1], [2, 1])
    (code, reason) = (await three.reassign(at, [1]))[0]
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason is not None
    assert "at least 2 replicas" in reason


async def until_ended(three: Three) -> None:
    for at in three.on:
        async with asyncio.timeout(30):
            while await three.moving(at):
                await asyncio.sleep(0.005)


async def begun(three: Three) -> None:
    """A move from nodes 1 and 2 to 3 and 2 that goes on until its new replica is in sync."""
    for node in three.cluster.nodes.values():
        node.is_catching_up = False
    await three.create(1, [[1, 2], [1, 2]])
    await until(lambda: three.key() in three.cluster.view.rows)
    assert await three.reassign(2, [3, 2]) == [(0, None)]
    await three.placed([1, 2, 3], [1, 2])


@NODES
async def test_a_move_is_listed_until_it_ends(three: Three, at: int) -> None:
    await begun(three)
    shown = {0: ((1, 2, 3), (3,), (1,))}
    assert await three.moving(at) == shown
    asked = listing.ListPartitionReassignmentsTopics
    assert await three.moving(at, [asked("t", [0, 1, 7]), asked("none", [0])]) == shown
    assert await three.moving(at, [asked("t", [1])]) == {}
    for node in three.cluster.nodes.values():
        node.is_catching_up = True
        node.look()
    await three.placed([3, 2], [1, 2])
    await three.led_by(3)
    await until_ended(three)


@NODES
async def test_a_move_is_cancelled(three: Three, at: int) -> None:
    await begun(three)
    assert await three.reassign(at, None, None) == [
        (0, None),
        (ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.message),
    ]
    assert await three.cluster.store.get(placement_key(three.key())) is None
    await three.placed([1, 2], [1, 2])
    assert await three.moving(at) == {}


@NODES
async def test_the_number_of_replicas_changes_only_if_allowed(three: Three, at: int) -> None:
    await begun(three)
    fixed = {"allow_replication_factor_change": False}
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    refused = (
        "The replication factor is changed from 2 to 3, but AllowReplicationFactorChange is false."
    )
    assert await three.reassign(at, [1, 2, 3], [3, 2, 1], **fixed) == [(code, refused)] * 2
    assert await three.reassign(at, [3, 2], [2, 1], **fixed) == [(0, None)] * 2


async def test_impossible_moves_are_rejected(three: Three) -> None:
    await three.create(1, [[1, 2, 3]])
    for at in three.on:
        for replicas in ([], [1, 1, 2], [1, 2, 9]):
            ((code, _),) = await three.reassign(at, replicas)
            assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, replicas
        (_, (code, _)) = await three.reassign(at, [1, 2, 3], [1, 2, 3])
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# ── Leaders ──────────────────────────────────────────────────────────────────────────────────
async def led_by_another(three: Three) -> None:
    """Node 3 leads, and node 2 is preferred."""
    await three.create(1, [[2, 3, 1]])
    await until(lambda: three.key() in three.cluster.view.rows)
    await operator_requests.elect_uncleanly(three.cluster.store, three.key(), 3)
    await three.led_by(3)
    await until(lambda: len(three.cluster.view.rows[three.key()].row.in_sync) == 3)


@NODES
async def test_the_preferred_leader_is_elected(three: Three, at: int) -> None:
    await led_by_another(three)
    assert await three.elect(at, UNCLEAN) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert await three.elect(at, PREFERRED, (0, 1)) == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await three.led_by(2)
    assert await three.elect(at, PREFERRED) == [ErrorCode.ELECTION_NOT_NEEDED]
    assert await three.elect(at, PREFERRED, None) == []


@NODES
async def test_preferred_leaders_of_all_partitions_are_elected(three: Three, at: int) -> None:
    await led_by_another(three)
    assert await three.elect(at, PREFERRED, None) == [0]
    await three.led_by(2)


async def test_a_preferred_leader_that_is_stopped_is_not_available(three: Three) -> None:
    await led_by_another(three)
    await three.cluster.kill(2)
    for at in (1, 3):
        assert await three.elect(at, PREFERRED) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]
        assert await three.elect(at, PREFERRED, None) == [ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE]


@pytest.mark.parametrize("at", [1, 3])
async def test_an_unclean_election_elects_whoever_is_left(three: Three, at: int) -> None:
    for node in three.cluster.nodes.values():
        node.is_catching_up = False
    await three.create(1, [[2, 3, 1]])
    await until(lambda: three.key() in three.cluster.view.rows)
    await operator_requests.elect_uncleanly(
        three.cluster.store, three.key(), 2
    )  # alone in sync now
    await three.led_by(2)
    await three.cluster.kill(2)
    assert await three.elect(at, UNCLEAN, None if at == 1 else (0,)) == [0]
    await three.led_by(3)


async def test_an_unclean_election_needs_a_replica(three: Three) -> None:
    await three.create(1, [[2]])
    await three.led_by(2)
    await three.cluster.kill(2)
    for at in (1, 3):
        assert await three.elect(at, UNCLEAN) == [ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE]


# ── The cluster ──────────────────────────────────────────────────────────────────────────────
@NODES
async def test_configs_are_those_in_force(three: Three, at: int) -> None:
    configs = {
        one.name: one.value for one in (await three.on[at].describe(str(at), of=NODE)).configs
    }
    for name in ("default", "offsets.topic", "transaction.state.log"):
        assert configs[f"{name}.replication.factor"] == "3"
    assert configs["min.insync.replicas"] == configs["transaction.state.log.min.isr"] == "2"
    other = await three.on[at].describe(str(at % 3 + 1), of=NODE)
    assert other.error_code == ErrorCode.INVALID_REQUEST
    await three.create(at, [[1, 2, 3]])
    assert (await three.on[at].config("t", "min.insync.replicas")).value == "2"
    assert await three.on[at].replace("t", {"min.insync.replicas": "3"}) == (0, None)
    assert (await three.on[at].config("t", "min.insync.replicas")).value == "3"
    assert three.on[at].stored("t").configs["replication.factor"] == "3", "not a config of Kafka"


async def test_stopped_nodes_are_shown_and_unregistered_when_empty(three: Three) -> None:
    async def fenced(at: int, *, is_asked: bool = True) -> list[int]:
        asked = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=is_asked)
        brokers = (await three.on[at].ask(60, asked)).brokers
        return [one.broker_id for one in brokers if one.is_fenced]

    async def unregister(at: int, node: int) -> int:
        return int((await three.on[at].ask(64, UnregisterBrokerRequest(node))).error_code)

    await three.create(1, [[2, 1], [1, 2]])
    await three.placed([2, 1], [1, 2])
    assert await fenced(1) == []
    assert await unregister(1, 3) == ErrorCode.INVALID_REQUEST, "it is alive, though empty"
    await three.cluster.kill(2)
    for at in (1, 3):
        assert (await fenced(at), await fenced(at, is_asked=False)) == ([2], [])
        assert await unregister(at, 2) == ErrorCode.INVALID_REQUEST, "it has replicas"
        assert await unregister(at, 9) == ErrorCode.BROKER_ID_NOT_REGISTERED
    await operator_requests.drain(three.cluster.store, 2)
    await until(
        lambda: not any(2 in view.row.replicas for view in three.cluster.view.rows.values())
    )
    assert await fenced(3) == [2], "it is being drained"
    assert await unregister(3, 2) == ErrorCode.NONE
    assert (await fenced(1), await fenced(3)) == ([], [])


@NODES
async def test_the_manager_is_shown_as_the_leader_of_the_metadata(three: Three, at: int) -> None:
    await until(lambda: len(three.cluster.managing) == 1)
    await until(lambda: three.on[at].context.brokers.controller > 0)
    topics = [
        describe_quorum.DescribeQuorumRequestTopicData(
            name, [describe_quorum.DescribeQuorumRequestPartitionData(index)]
        )
        for name, index in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("t", 0))
    ]
    response = await three.on[at].ask(55, describe_quorum.DescribeQuorumRequest(topics))
    codes = [topic.partitions[0].error_code for topic in response.topics]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes == [ErrorCode.NONE, unknown, unknown]
    metadata = response.topics[0].partitions[0]
    assert [metadata.leader_id] == three.cluster.managing
    assert metadata.leader_epoch > 0
    assert metadata.high_watermark >= metadata.leader_epoch
    assert [one.replica_id for one in metadata.current_voters] == [1, 2, 3]
    assert {one.log_end_offset for one in metadata.current_voters} == {metadata.high_watermark}
    empty = await three.on[at].ask(55, describe_quorum.DescribeQuorumRequest(()))
    assert (empty.error_code, empty.topics) == (ErrorCode.NONE, ())


@pytest.mark.parametrize("version", range(3))
async def test_only_levels_in_force_can_be_asked_for(three: Three, version: int) -> None:
    async def update(*updates: tuple[str, int]) -> int:
        given = [update_features.FeatureUpdateKey(*pair) for pair in updates]
        request = update_features.UpdateFeaturesRequest(feature_updates=given)
        response = await three.on[1].ask(57, request, version)
        assert bool(response.error_message) == bool(response.error_code)
        names = [one.feature for one in response.results]
        is_shown = version < 2 and not response.error_code
        assert names == ([name for name, _ in updates] if is_shown else [])
        return int(response.error_code)

    good = (("group.version", 1), ("transaction.version", 2))
    assert await update(*good) == ErrorCode.NONE
    for bad in (("metadata.version", 30), ("group.version", 2), ("share.version", 0)):
        assert await update(*good, bad) == ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.parametrize(
    ("alone", "clustered"), [(Brokers, ClusterBrokers), (KafkaCluster, ClusterChanges)]
)
def test_a_cluster_answers_every_question_itself(alone: type, clustered: type) -> None:
    """What a node by itself answers would be wrong for a cluster."""
    questions = {name for name in vars(alone) if not name.startswith("_")}
    assert questions
    assert questions <= vars(clustered).keys()


async def test_only_the_leader_knows_where_an_epoch_ends(three: Three) -> None:
    """The leader's high watermark may be below what a client has read from the leader before."""
    with pytest.raises(LeaderMoved):
        three.on[1].context.brokers.epoch_end(topic("led", 1), 0, 0)
