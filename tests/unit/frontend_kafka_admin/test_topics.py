import pytest
from tests.unit.frontend_kafka_admin.stage import NODE_ID, Admin

from penstock.frontend.kafka.checks import is_topic_name
from penstock.frontend.kafka.config import PARTITIONS_MAX
from penstock.frontend.kafka.configs.rows import Edit
from penstock.frontend.kafka.configs.topic_configs import with_configs
from penstock.frontend.kafka.errors import ApiError
from penstock.model.topic import Fsync, Kind
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from penstock.wire.kafka.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from penstock.wire.kafka.generated.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)

ELSEWHERE = NODE_ID + 1


async def delete(
    admin: Admin, *states: DeleteTopicState, version: int | None = None
) -> list[DeletableTopicResult]:
    request = DeleteTopicsRequest(topics=states)
    if version is not None and version < 6:
        request = DeleteTopicsRequest(topic_names=[state.name or "" for state in states])
    return list((await admin.ask(20, request, version)).responses)


async def grow(
    admin: Admin, *topics: CreatePartitionsTopic, is_dry: bool = False, version: int | None = None
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(topics, validate_only=is_dry)
    return list((await admin.ask(37, request, version)).results)


# ── CreateTopics ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_made_as_a_stream_in_every_version(admin: Admin, version: int) -> None:
    result = await admin.create("t", {"retention.ms": "1000"}, partitions=5, version=version)
    assert result.error_code == ErrorCode.NONE
    assert result.error_message is None
    topic = admin.stored("t")
    assert (topic.kind, topic.partition_count) == (Kind.STREAM, 5)
    assert topic.configs == {"retention.ms": "1000"}
    assert len(topic.receipt_key) == 32
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (5, 1)
        assert result.configs is not None
        assert {config.config_source for config in result.configs} == {1, 5}
        (retention,) = (c for c in result.configs if c.name == "retention.ms")
        assert (retention.value, retention.config_source) == ("1000", 1)
    if version >= 7:
        assert result.topic_id.hex() == topic.topic_id


async def test_minus_one_leaves_the_number_of_partitions_to_the_node(admin: Admin) -> None:
    assert (await admin.create("t")).num_partitions == 3


async def test_a_dry_run_says_what_would_be_and_makes_nothing(admin: Admin) -> None:
    result = await admin.create("t", partitions=2, is_dry=True)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)
    assert result.topic_id == bytes(16)
    assert admin.find("t") is None


async def test_a_dry_run_finds_what_the_real_one_would_refuse(admin: Admin) -> None:
    await admin.create("t")
    assert (await admin.create("t", is_dry=True)).error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    result = await admin.create("u", {"retention.ms": "soon"}, is_dry=True)
    assert result.error_code == ErrorCode.INVALID_CONFIG


async def test_a_name_is_taken_once_by_streams_and_queues_alike(admin: Admin) -> None:
    await admin.create("t")
    await admin.create_queue("q")
    for name in ("t", "q"):
        result = await admin.create(name)
        assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert result.num_partitions == -1
        assert result.configs == ()


@pytest.mark.parametrize("partitions", [0, -2, PARTITIONS_MAX + 1])
async def test_an_impossible_number_of_partitions_is_refused(admin: Admin, partitions: int) -> None:
    result = await admin.create("t", partitions=partitions)
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert str(partitions) in (result.error_message or "")
    assert admin.find("t") is None


async def test_one_replica_may_be_asked_for_and_more_are_refused(admin: Admin) -> None:
    assert (await admin.create("one", replicas=1)).error_code == ErrorCode.NONE
    for replicas in (0, 2, 3):
        result = await admin.create("more", replicas=replicas)
        assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250, "a\n"])
async def test_names_outside_the_grammar_are_refused(admin: Admin, name: str) -> None:
    result = await admin.create(name)
    assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert not is_topic_name(name)


async def test_names_of_the_whole_grammar_are_taken(admin: Admin) -> None:
    for name in ("a", "...", "_schemas", "A-z_0.9", "orders.fifo", "x" * 249):
        assert (await admin.create(name)).error_code == ErrorCode.NONE


async def test_names_of_the_node_are_refused(admin: Admin) -> None:
    assert (await admin.create("__groups")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_partitions_may_be_assigned_to_this_node_only(admin: Admin) -> None:
    here = [CreatableReplicaAssignment(index, (NODE_ID,)) for index in (1, 0)]
    assert (await admin.create("t", assignments=here)).num_partitions == 2
    for wrong in (
        [CreatableReplicaAssignment(0, (ELSEWHERE,))],
        [CreatableReplicaAssignment(0, (NODE_ID, ELSEWHERE))],
        [CreatableReplicaAssignment(0, ())],
        [CreatableReplicaAssignment(1, (NODE_ID,))],
        [CreatableReplicaAssignment(0, (NODE_ID,))] * 2,
    ):
        result = await admin.create("u", assignments=wrong)
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    result = await admin.create("u", partitions=2, assignments=here)
    assert result.error_code == ErrorCode.INVALID_REQUEST


async def test_one_refused_topic_does_not_stop_the_others(admin: Admin) -> None:
    def wanted(name: str) -> CreatableTopic:
        return CreatableTopic(name, -1, -1)

    request = CreateTopicsRequest([wanted(n) for n in ("a", "b/", "twice", "c", "twice")])
    results = (await admin.ask(19, request)).topics
    assert [(r.name, ErrorCode(r.error_code).name) for r in results] == [
        ("a", "NONE"),
        ("b/", "INVALID_TOPIC_EXCEPTION"),
        ("twice", "INVALID_REQUEST"),
        ("c", "NONE"),
    ]
    assert admin.find("twice") is None


@pytest.mark.parametrize(
    "configs",
    [{"no.such": "1"}, {"retention.ms": None}, {"retention.ms": "-2"}, {"cleanup.policy": "x"}],
)
async def test_bad_configs_are_refused_by_name(
    admin: Admin, configs: dict[str, str | None]
) -> None:
    result = await admin.create("t", configs)
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert next(iter(configs)) in (result.error_message or "")
    assert admin.find("t") is None


async def test_a_topic_may_be_made_as_a_queue(admin: Admin) -> None:
    result = await admin.create("q", {"penstock.queue": "true", "penstock.fsync": "never"})
    assert result.error_code == ErrorCode.NONE
    topic = admin.stored("q")
    assert (topic.kind, topic.fsync) == (Kind.STANDARD, Fsync.NEVER)
    assert topic.settings.retention_ms == 7 * 24 * 3_600_000
    assert topic.configs == {}


# ── DeleteTopics ─────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(1, 7))
async def test_topics_are_deleted_by_name_in_every_version(admin: Admin, version: int) -> None:
    await admin.create("t")
    await admin.create_queue("q")
    results = await delete(
        admin, *(DeleteTopicState(name) for name in ("t", "q", "none")), version=version
    )
    assert [(r.name, r.error_code) for r in results] == [
        ("t", ErrorCode.NONE),
        ("q", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert admin.find("t") is None
    assert admin.find("q") is None


async def test_a_topic_is_deleted_by_the_id_of_its_incarnation(admin: Admin) -> None:
    old_id = (await admin.create("t")).topic_id
    (result,) = await delete(admin, DeleteTopicState(topic_id=old_id))
    assert (result.name, result.topic_id, result.error_code) == ("t", old_id, ErrorCode.NONE)
    new_id = (await admin.create("t")).topic_id
    assert new_id != old_id
    (result,) = await delete(admin, DeleteTopicState(topic_id=old_id))
    assert (result.name, result.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert admin.find("t") is not None


async def test_a_topic_to_delete_has_exactly_one_of_name_and_id(admin: Admin) -> None:
    topic_id = (await admin.create("t")).topic_id
    results = await delete(admin, DeleteTopicState(), DeleteTopicState("t", topic_id))
    assert [r.error_code for r in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert admin.find("t") is not None


async def test_the_topics_of_the_node_cannot_be_deleted(admin: Admin) -> None:
    topic = await admin.create_internal("__groups")
    results = await delete(
        admin,
        DeleteTopicState("__groups"),
        DeleteTopicState(topic_id=bytes.fromhex(topic.topic_id)),
    )
    assert [r.error_code for r in results] == [ErrorCode.INVALID_TOPIC_EXCEPTION] * 2
    assert admin.find("__groups") is not None


# ── CreatePartitions ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("version", range(4))
async def test_a_topic_grows_in_every_version(admin: Admin, version: int) -> None:
    await admin.create("t", partitions=2)
    admin.clock.wall += 5
    (result,) = await grow(admin, CreatePartitionsTopic("t", 4, None), version=version)
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert admin.stored("t").partition_count == 4
    assert admin.stored("t").modified_at_ms == admin.clock.wall


async def test_a_dry_run_grows_nothing(admin: Admin) -> None:
    await admin.create("t", partitions=2)
    (result,) = await grow(admin, CreatePartitionsTopic("t", 4, None), is_dry=True)
    assert result.error_code == ErrorCode.NONE
    (result,) = await grow(admin, CreatePartitionsTopic("t", 2, None), is_dry=True)
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert admin.stored("t").partition_count == 2


async def test_partitions_never_become_fewer_nor_too_many(admin: Admin) -> None:
    await admin.create("t", partitions=2)
    for count in (-1, 0, 1, 2, PARTITIONS_MAX + 1):
        (result,) = await grow(admin, CreatePartitionsTopic("t", count, None))
        assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert admin.stored("t").partition_count == 2


async def test_queues_grow_up_to_their_own_bound_and_fifo_queues_never(admin: Admin) -> None:
    await admin.create_queue("q")
    await admin.create_queue("q.fifo", kind=Kind.FIFO)
    results = await grow(
        admin, CreatePartitionsTopic("q", 64, None), CreatePartitionsTopic("q.fifo", 2, None)
    )
    assert [r.error_code for r in results] == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS]
    (result,) = await grow(admin, CreatePartitionsTopic("q", 65, None))
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert admin.stored("q").partition_count == 64
    assert admin.stored("q.fifo").partition_count == 1


async def test_a_fifo_stream_neither_grows_nor_becomes_a_queue(admin: Admin) -> None:
    topic = await admin.create_queue("t", kind=Kind.FIFO_STREAM)
    (result,) = await grow(admin, CreatePartitionsTopic("t", 2, None))
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    edit = Edit({"penstock.queue": "true"})
    with pytest.raises(ApiError, match="FIFO topic"):
        with_configs(topic, edit, now_ms=0, defaults={})


async def test_new_partitions_may_be_assigned_to_this_node_only(admin: Admin) -> None:
    await admin.create("t", partitions=1)
    here, there = (CreatePartitionsAssignment((node,)) for node in (NODE_ID, ELSEWHERE))
    for wrong in ((here,), (here, there)):
        (result,) = await grow(admin, CreatePartitionsTopic("t", 3, wrong))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    (result,) = await grow(admin, CreatePartitionsTopic("t", 3, (here, here)))
    assert result.error_code == ErrorCode.NONE


async def test_what_cannot_grow_is_told_for_each_topic(admin: Admin) -> None:
    await admin.create("t", partitions=1)
    await admin.create_internal("__groups")
    results = await grow(
        admin,
        CreatePartitionsTopic("none", 3, None),
        CreatePartitionsTopic("t", 3, None),
        CreatePartitionsTopic("t", 4, None),
        CreatePartitionsTopic("__groups", 8, None),
    )
    assert [(r.name, r.error_code) for r in results] == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", ErrorCode.INVALID_REQUEST),
        ("__groups", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert admin.stored("t").partition_count == 1
