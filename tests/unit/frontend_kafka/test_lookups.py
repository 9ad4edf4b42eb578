"""The APIs that only look: metadata, offsets, cluster, coordinators; and producer ids."""

import asyncio

import pytest
from tests.unit.frontend_kafka.rig import NOW_MS, Rig, batch

from penstock.frontend.kafka.permissions import OF_CLUSTERS, OF_TOPICS, UNASKED, bits
from penstock.model.calls import DeleteRecords
from penstock.model.errors import Overloaded
from penstock.model.levels import STREAMS_GROUPS
from penstock.model.topic import Kind
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from penstock.wire.kafka.generated.api_versions import ApiVersionsRequest
from penstock.wire.kafka.generated.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from penstock.wire.kafka.generated.describe_cluster import DescribeClusterRequest
from penstock.wire.kafka.generated.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
)
from penstock.wire.kafka.generated.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    TopicRequest,
)
from penstock.wire.kafka.generated.find_coordinator import FindCoordinatorRequest
from penstock.wire.kafka.generated.init_producer_id import InitProducerIdRequest
from penstock.wire.kafka.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from penstock.wire.kafka.generated.metadata import MetadataRequest, MetadataRequestTopic
from penstock.wire.kafka.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LIST_OFFSETS = 2
METADATA = 3
FIND_COORDINATOR = 10
API_VERSIONS = 18
DELETE_RECORDS = 21
INIT_PRODUCER_ID = 22
OFFSET_FOR_LEADER_EPOCH = 23
ALTER_REPLICA_LOG_DIRS = 34
DESCRIBE_LOG_DIRS = 35
DESCRIBE_CLUSTER = 60
DESCRIBE_TOPIC_PARTITIONS = 75


def named(*names: str) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


# ── Metadata ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(14))
async def test_metadata_names_the_node_and_every_partitions_leader(version: int) -> None:
    rig = Rig(node_id=5)
    topic = await rig.topic("t", partitions=2)
    answer = await rig.ask(METADATA, version, MetadataRequest(named("t")))
    [node] = answer.brokers
    assert (node.node_id, node.host, node.port) == (5, "broker.test", 9092)
    [found] = answer.topics
    assert (found.error_code, found.name) == (0, "t")
    assert [one.partition_index for one in found.partitions] == [0, 1]
    assert all(one.leader_id == 5 and list(one.isr_nodes) == [5] for one in found.partitions)
    if version >= 1:
        assert answer.controller_id == 5
    if version >= 2:
        assert answer.cluster_id == "c1"
    if version >= 10:
        assert found.topic_id.hex() == topic.topic_id


async def test_null_asks_for_all_topics_and_an_empty_list_for_none() -> None:
    rig = Rig()
    await rig.topic("b")
    await rig.topic("a", kind=Kind.STANDARD)
    await rig.topic("of-others", account="111111111111")

    async def names(version: int, topics: list[MetadataRequestTopic] | None) -> list[str]:
        answer = await rig.ask(METADATA, version, MetadataRequest(topics))
        return [topic.name for topic in answer.topics]

    assert await names(12, None) == ["a", "b"]
    assert await names(12, []) == []
    assert await names(0, []) == ["a", "b"]


async def test_a_topic_asked_for_is_made_where_both_sides_allow_it() -> None:
    rig = Rig(partitions_default=3)
    no_thanks = MetadataRequest(named("new"), allow_auto_topic_creation=False)
    answer = await rig.ask(METADATA, 12, no_thanks)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rig.catalog.all_topics() == []
    answer = await rig.ask(METADATA, 12, MetadataRequest(named("new")))
    assert len(answer.topics[0].partitions) == 3
    [made] = rig.catalog.all_topics()
    assert (made.name, made.kind, made.partition_count) == ("new", Kind.STREAM, 3)


async def test_a_node_that_makes_no_topics_says_that_there_is_none() -> None:
    rig = Rig(auto_create=False)
    answer = await rig.ask(METADATA, 12, MetadataRequest(named("new")))
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__consumer_offsets", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_some_names_make_no_topic(name: str, code: ErrorCode) -> None:
    rig = Rig()
    answer = await rig.ask(METADATA, 12, MetadataRequest(named(name)))
    assert answer.topics[0].error_code == code
    assert rig.catalog.all_topics() == []


async def test_topics_are_found_by_id() -> None:
    rig = Rig()
    topic = await rig.topic("t")
    by_id = [
        MetadataRequestTopic(bytes.fromhex(topic.topic_id), None),
        MetadataRequestTopic(bytes(15) + b"\xff", None),
    ]
    found, gone = (await rig.ask(METADATA, 12, MetadataRequest(by_id))).topics
    assert (found.error_code, found.name) == (0, "t")
    assert (gone.error_code, gone.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    early = (await rig.ask(METADATA, 11, MetadataRequest(by_id))).topics
    assert [each.error_code for each in early] == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("name", [None, "", "other", "not a name"])
async def test_a_request_with_an_id_ignores_names(version: int, name: str | None) -> None:
    rig = Rig()
    topic, unknown = await rig.topic("t"), bytes(15) + b"\xff"
    topic_id = bytes.fromhex(topic.topic_id)
    await rig.topic("other")
    asked = [
        MetadataRequestTopic(topic_id, name),
        MetadataRequestTopic(name="other"),  # no id: no reply
        MetadataRequestTopic(unknown, "other"),
        MetadataRequestTopic(topic_id, "t"),
    ]
    found = (await rig.ask(METADATA, version, MetadataRequest(asked))).topics
    assert [(each.error_code, each.name, each.topic_id) for each in found] == [
        (0, "t", topic_id),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown),
    ]
    assert len(found[0].partitions) == topic.partition_count
    assert len(rig.catalog.all_topics()) == 2, "no topic was created by its name"


async def test_operations_are_listed_when_asked_for() -> None:
    rig = Rig()
    await rig.topic("t")
    plain = await rig.ask(METADATA, 9, MetadataRequest(named("t")))
    assert plain.topics[0].topic_authorized_operations == UNASKED
    asked = MetadataRequest(named("t", "no", "x/y"), False, True, True)
    answer = await rig.ask(METADATA, 9, asked)
    assert [(each.error_code, each.topic_authorized_operations) for each in answer.topics] == [
        (ErrorCode.NONE, bits(OF_TOPICS)),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, bits(OF_TOPICS)),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, bits(OF_TOPICS)),
    ]
    assert bits(OF_TOPICS) == 0xDF8
    assert answer.cluster_authorized_operations == bits(OF_CLUSTERS) == 0x1FA0


# ── Offsets ──────────────────────────────────────────────────────────────────────────────────


async def listed(
    rig: Rig, timestamp: int, *, version: int = 11, isolation: int = 0, index: int = 0
) -> ListOffsetsPartitionResponse:
    asked = ListOffsetsPartition(index, -1, timestamp)
    request = ListOffsetsRequest(-1, isolation, [ListOffsetsTopic("t", [asked])])
    answer = await rig.ask(LIST_OFFSETS, version, request)
    [one] = answer.topics[0].partitions
    assert isinstance(one, ListOffsetsPartitionResponse)
    return one


async def test_each_time_has_its_offset() -> None:
    rig = Rig()
    partition = rig.partition(await rig.topic("t"))
    partition.append(batch(b"a", b"b", at_ms=NOW_MS))
    partition.append(batch(b"c", at_ms=NOW_MS + 100))
    partition.append(batch(b"d", at_ms=NOW_MS + 50))
    partition.start_offset = 1
    found = {
        time: (one.offset, one.timestamp)
        for time in (-1, -2, -3, -4, -5, -6, NOW_MS + 1, NOW_MS + 101)
        for one in [await listed(rig, time)]
    }
    assert found == {
        -1: (4, -1),
        -2: (1, -1),
        -3: (2, NOW_MS + 100),
        -4: (1, -1),
        -5: (-1, -1),
        -6: (-1, -1),
        NOW_MS + 1: (2, NOW_MS + 100),
        NOW_MS + 101: (-1, -1),
    }


async def test_committed_readers_see_the_end_at_the_last_stable_offset() -> None:
    rig = Rig()
    partition = rig.partition(await rig.topic("t"))
    for _ in range(3):
        partition.append(batch(b"a"))
    partition.stable_offset = 2
    assert (await listed(rig, -1)).offset == 3
    assert (await listed(rig, -1, isolation=1)).offset == 2
    partition.stable_offset = 0
    assert (await listed(rig, NOW_MS, isolation=1)).offset == -1


@pytest.mark.parametrize(
    ("timestamp", "version", "code"),
    [
        (-3, 6, ErrorCode.UNSUPPORTED_VERSION),
        (-3, 7, ErrorCode.NONE),
        (-4, 7, ErrorCode.UNSUPPORTED_VERSION),
        (-6, 10, ErrorCode.UNSUPPORTED_VERSION),
        (-7, 11, ErrorCode.UNSUPPORTED_VERSION),
        (-1, 1, ErrorCode.NONE),
    ],
)
async def test_special_times_are_known_from_some_version_on(
    timestamp: int, version: int, code: ErrorCode
) -> None:
    rig = Rig()
    await rig.topic("t")
    assert (await listed(rig, timestamp, version=version)).error_code == code


async def test_offsets_of_what_is_not_there() -> None:
    rig = Rig()
    assert (await listed(rig, -1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    topic = await rig.topic("t")
    assert (await listed(rig, -1, index=1)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    rig.partition(topic).broken = Overloaded("later")
    assert (await listed(rig, -1)).error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("current", "epoch", "expected"),
    [
        (-1, 0, (0, 0, 2)),
        (0, 0, (0, 0, 2)),
        (-1, 3, (0, -1, -1)),
        (3, 0, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
    ],
)
async def test_the_one_epoch_ends_at_the_high_watermark(
    current: int, epoch: int, expected: tuple[int, int, int]
) -> None:
    rig = Rig()
    rig.partition(await rig.topic("t")).append(batch(b"a", b"b"))
    asked = OffsetForLeaderTopic("t", [OffsetForLeaderPartition(0, current, epoch)])
    answer = await rig.ask(OFFSET_FOR_LEADER_EPOCH, 4, OffsetForLeaderEpochRequest(-1, [asked]))
    [one] = answer.topics[0].partitions
    assert (one.error_code, one.leader_epoch, one.end_offset) == expected


@pytest.mark.parametrize(
    ("name", "before", "expected"),
    [
        ("t", 1, (0, 1)),
        ("t", -1, (0, 2)),
        ("t", 3, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
        ("t", -2, (ErrorCode.OFFSET_OUT_OF_RANGE, -1)),
        ("compacted", 1, (ErrorCode.POLICY_VIOLATION, -1)),
        ("queue", 1, (ErrorCode.POLICY_VIOLATION, -1)),
        ("__groups", 1, (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)),
        ("none", 1, (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)),
    ],
)
async def test_records_are_deleted_where_a_topic_lets_them_be(
    name: str, before: int, expected: tuple[int, int]
) -> None:
    rig = Rig()
    topics = [
        await rig.topic("t"),
        await rig.topic("compacted", configs={"cleanup.policy": "compact"}),
        await rig.topic("queue", kind=Kind.STANDARD),
        await rig.topic("__groups"),
    ]
    for topic in topics:
        rig.partition(topic).append(batch(b"a", b"b"))
    asked = DeleteRecordsTopic(name, [DeleteRecordsPartition(0, before)])
    answer = await rig.ask(DELETE_RECORDS, 2, DeleteRecordsRequest([asked], 1_000))
    [one] = answer.topics[0].partitions
    assert (one.error_code, one.low_watermark) == expected


async def test_a_deletion_that_replicas_do_not_store_in_time_is_answered_with_7() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=3)
    for index in range(3):
        rig.partition(topic, index).append(batch(b"a", b"b"))
    delete, began = rig.streams.delete_records, asyncio.Event()

    async def slow(call: DeleteRecords) -> int:
        if call.partition == 1:
            began.set()
            await asyncio.Event().wait()
        else:
            await began.wait()  # all of a request are begun together
        return await delete(call)

    rig.streams.delete_records = slow  # type: ignore[method-assign]
    asked = DeleteRecordsTopic("t", [DeleteRecordsPartition(index, 1) for index in range(3)])
    answer = await rig.ask(DELETE_RECORDS, 2, DeleteRecordsRequest([asked], 200))
    assert [(one.error_code, one.low_watermark) for one in answer.topics[0].partitions] == [
        (0, 1),
        (ErrorCode.REQUEST_TIMED_OUT, -1),
        (0, 1),
    ]


# ── Producers, cluster, coordinators ─────────────────────────────────────────────────────────


async def test_every_producer_gets_an_id_of_its_own() -> None:
    rig = Rig()
    answers = [
        await rig.ask(INIT_PRODUCER_ID, version, InitProducerIdRequest(None, 60_000))
        for version in range(6)
    ]
    assert [each.producer_id for each in answers] == list(range(4_000, 4_006))
    assert {(each.error_code, each.producer_epoch) for each in answers} == {(0, 0)}


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (1, ErrorCode.NONE),
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
async def test_the_cluster_is_described(endpoint_type: int, code: ErrorCode) -> None:
    answer = await Rig().ask(DESCRIBE_CLUSTER, 2, DescribeClusterRequest(True, endpoint_type))
    assert answer.error_code == code
    if not code:
        assert (answer.cluster_id, answer.controller_id) == ("c1", 1)
        assert [(node.host, node.port) for node in answer.brokers] == [("broker.test", 9092)]
        assert answer.cluster_authorized_operations == bits(OF_CLUSTERS)


@pytest.mark.parametrize(
    ("version", "key_type"),
    [(0, 0), *((version, key_type) for version in range(1, 7) for key_type in (0, 1, 2, 3))],
)
async def test_this_node_coordinates_groups_transactions_and_shares(
    version: int, key_type: int
) -> None:
    is_batched = version >= 4
    asked = (
        FindCoordinatorRequest(key_type=key_type, coordinator_keys=["g"])
        if is_batched
        else FindCoordinatorRequest("g", key_type)
    )
    answer = await Rig().ask(FIND_COORDINATOR, version, asked)
    found = answer.coordinators[0] if is_batched else answer
    here = (0, 1, "broker.test", 9092)
    nowhere = (ErrorCode.INVALID_REQUEST, -1, "", -1)
    expected = here if key_type < 3 else nowhere
    assert (found.error_code, found.node_id, found.host, found.port) == expected
    if key_type < 3:
        assert found.error_message == ""  # not null, as in Kafka


async def test_log_dirs_tell_the_bytes_of_each_partition() -> None:
    rig = Rig()
    topic = await rig.topic("t", partitions=2)
    rig.partition(topic, 1).append(batch(b"a"))
    await rig.topic("other")
    size = len(batch(b"a"))

    async def sizes(asked: DescribeLogDirsRequest) -> dict[str, list[tuple[int, int]]]:
        [result] = (await rig.ask(DESCRIBE_LOG_DIRS, 4, asked)).results
        return {
            each.name: [(one.partition_index, one.partition_size) for one in each.partitions]
            for each in result.topics
        }

    assert await sizes(DescribeLogDirsRequest(None)) == {
        "other": [(0, 0)],
        "t": [(0, 0), (1, size)],
    }
    some = [DescribableLogDirTopic("t", [1, 9]), DescribableLogDirTopic("none", [0])]
    assert await sizes(DescribeLogDirsRequest(some)) == {"t": [(1, size)]}


@pytest.mark.parametrize("version", [4, 5])
async def test_log_dirs_tell_the_size_of_the_disk(version: int) -> None:
    rig = Rig()
    rig.context.volume = lambda: (1_000, 10)
    [result] = (await rig.ask(DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(None))).results
    assert (result.total_bytes, result.usable_bytes) == (1_000, 10)


@pytest.mark.parametrize("version", [1, 2])
async def test_the_only_folder_of_a_node_is_the_one_it_has(version: int) -> None:
    rig = Rig()
    await rig.topic("t")

    async def altered(path: str) -> list[int]:
        topics = [AlterReplicaLogDirTopic("t", [0, 1]), AlterReplicaLogDirTopic("none", [0])]
        asked = AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, topics)])
        results = (await rig.ask(ALTER_REPLICA_LOG_DIRS, version, asked)).results
        return [one.error_code for topic in results for one in topic.partitions]

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await altered(rig.context.config.log_dir) == [ErrorCode.NONE, unknown, unknown]
    assert await altered(f"{rig.context.config.log_dir}/") == [ErrorCode.NONE, unknown, unknown]
    assert await altered("/elsewhere") == [ErrorCode.LOG_DIR_NOT_FOUND] * 3


@pytest.mark.parametrize("version", [3, 4])
async def test_features_in_force_are_announced(version: int) -> None:
    found = await Rig().ask(API_VERSIONS, version, ApiVersionsRequest("me", "1"))
    levels = {one.name: one.max_version_level for one in found.finalized_features}
    assert levels == {
        "group.version": 1,
        "share.version": 1,
        "streams.version": 1,
        "transaction.version": 2,
    }
    supported = {one.name: (one.min_version, one.max_version) for one in found.supported_features}
    assert {name: last for name, (_, last) in supported.items()} == levels
    assert all(first >= 1 for first, _ in supported.values()), "older clients fail at 0"


async def test_streams_groups_are_announced_once_all_nodes_know_them() -> None:
    rig = Rig()
    epochs = []
    levels = [0]
    rig.context.level = lambda: levels[-1]
    for level, is_announced in ((STREAMS_GROUPS - 1, False), (STREAMS_GROUPS, True)):
        levels.append(level)
        found = await rig.ask(API_VERSIONS, 4, ApiVersionsRequest("me", "1"))
        for features in (found.finalized_features, found.supported_features):
            assert ("streams.version" in {one.name for one in features}) == is_announced
        epochs.append(found.finalized_features_epoch)
    assert epochs[0] < epochs[1], "clients take the newer list"


async def test_partitions_are_described_page_by_page() -> None:
    rig = Rig()
    await rig.topic("a", partitions=3)
    await rig.topic("b", partitions=2)
    asked = [TopicRequest("b"), TopicRequest("a"), TopicRequest("no"), TopicRequest("x/y")]
    cursor = None
    pages = []
    while True:
        answer = await rig.ask(
            DESCRIBE_TOPIC_PARTITIONS, 0, DescribeTopicPartitionsRequest(asked, 2, cursor)
        )
        pages.append(
            [
                (each.name, each.error_code, [one.partition_index for one in each.partitions])
                for each in answer.topics
            ]
        )
        for each in answer.topics:
            assert each.topic_authorized_operations == bits(OF_TOPICS)  # also of unknown topics
            for one in each.partitions:
                assert list(one.eligible_leader_replicas) == list(one.last_known_elr) == []
        if answer.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequestCursor(
            answer.next_cursor.topic_name, answer.next_cursor.partition_index
        )
    assert pages == [
        [("a", 0, [0, 1])],
        [("a", 0, [2]), ("b", 0, [0])],
        [("b", 0, [1]), ("no", 3, []), ("x/y", 17, [])],
    ]
