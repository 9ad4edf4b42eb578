"""May they: what each API needs, and what those who lack it get to know."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka.test_usage_and_audit import noted, trail_on
from tests.unit.frontend_kafka_access.asks import (
    ASKS,
    CLUSTER,
    FREE,
    GROUP,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    NO_TXN,
    OFFSET_DELETE,
    SHARE_ASKS,
    TOPIC,
    TXN,
    Ask,
)
from tests.unit.frontend_kafka_access.stage import (
    OTHER,
    OWN,
    Client,
    House,
    allow,
    codes,
    deny,
    kafka_arn,
    policy,
    topic_arn,
)

from penstock.frontend.kafka.actions import ACTIONS
from penstock.frontend.kafka.permissions import Operation, bits
from penstock.metadata.topics.resource_configs import CLIENT_METRICS, CLIENT_QUOTA
from penstock.model.topic import Kind, Topic
from penstock.net.kafka.listener import HangUp
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated import (
    add_partitions_to_txn,
    consumer_group_heartbeat,
    create_topics,
    delete_topics,
    describe_client_quotas,
    describe_cluster,
    describe_groups,
    describe_share_group_offsets,
    describe_transactions,
    init_producer_id,
    list_config_resources,
    list_groups,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    share_fetch,
    share_group_heartbeat,
    streams_group_describe,
    streams_group_heartbeat,
)
from penstock.wire.kafka.generated.consumer_group_describe import ConsumerGroupDescribeRequest
from penstock.wire.kafka.generated.describe_topic_partitions import DescribeTopicPartitionsRequest
from penstock.wire.kafka.generated.share_group_describe import ShareGroupDescribeRequest
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.slow
REFUSALS = {NO_TOPIC, NO_GROUP, NO_TXN, NO_CLUSTER}
EVERYTHING = allow("*")


def id_of(topic: Topic) -> bytes:
    return bytes.fromhex(topic.topic_id)


async def asked(client: Client, ask: Ask, topic: Topic) -> set[int]:
    return set(codes(await client.ask(ask.key, ask.request(id_of(topic)), ask.version)))


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_each_api_needs_its_right(house: House, ask: Ask) -> None:
    topic = await house.topic()
    await house.user("bob", allow("sqs:*"))
    found = await asked(await house.client("bob"), ask, topic)
    assert found & (REFUSALS | {ErrorCode.UNKNOWN_TOPIC_ID}), "a user without any right"
    others = deny(*ask.also) if ask.also else deny("sqs:*")
    denial = deny(ask.needs, resource=ask.on)
    await house.user("ann", EVERYTHING, denial, others, is_operator=ask.is_operators)
    client = await house.client("ann")
    assert ask.code in await asked(client, ask, topic)
    await house.let("ann", EVERYTHING)
    found = await asked(client, ask, topic)  # on the same connection
    assert ask.code not in found
    assert not REFUSALS & found


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.is_operators], ids=lambda ask: ask.name)
@pytest.mark.parametrize("account", [OWN, OTHER])
async def test_what_belongs_to_all_tenants_is_for_operators(
    house: House, ask: Ask, account: str
) -> None:
    topic = await house.topic()
    await house.user("ann", EVERYTHING, account=account)
    assert await asked(await house.client("ann", account=account), ask, topic) >= {NO_CLUSTER}


async def test_lists_leave_out_what_is_for_operators(house: House) -> None:
    for kind, name, key in (
        (CLIENT_QUOTA, "ip=10.0.0.1", "connection_creation_rate"),
        (CLIENT_QUOTA, "user=ann", "producer_byte_rate"),
        (CLIENT_METRICS, "m", "interval.ms"),
    ):
        await house.context.dynamic.change(kind, name, {key: "1000"})
    for user, is_operator in (("ann", False), ("bob", True)):
        await house.user(user, EVERYTHING, is_operator=is_operator)
        client = await house.client(user)
        reply = await client.ask(48, describe_client_quotas.DescribeClientQuotasRequest())
        kinds = {part.entity_type for entry in reply.entries for part in entry.entity}
        assert kinds == ({"user", "ip"} if is_operator else {"user"})
        asked = list_config_resources.ListConfigResourcesRequest([16])
        listed = [one.resource_name for one in (await client.ask(74, asked)).config_resources]
        assert listed == (["m"] if is_operator else [])


@pytest.mark.parametrize("ask", [ask for ask in ASKS if ask.also], ids=lambda ask: ask.name)
async def test_another_right_does_as_well(house: House, ask: Ask) -> None:
    topic = await house.topic()
    await house.user("ann", *(allow(each) for each in ask.also))
    assert not REFUSALS & await asked(await house.client("ann"), ask, topic)


@pytest.mark.parametrize("ask", SHARE_ASKS, ids=lambda ask: ask.name)
async def test_share_groups_are_asked_about_each_topic(house: House, ask: Ask) -> None:
    topic = await house.topic()
    await house.user("ann", EVERYTHING)
    client = await house.client("ann")
    beat = share_group_heartbeat.ShareGroupHeartbeatRequest
    assert (await client.ask(76, beat("g", "m", 0, None, ["t"]))).error_code == 0
    if ask.key == 79:
        fetch = next(each for each in ASKS if each.name == "ShareFetch")
        assert not REFUSALS & await asked(client, fetch, topic)
    else:
        assert (await client.ask(76, beat("g", "m", -1))).error_code == 0
    await house.let("ann", EVERYTHING, deny(ask.needs, resource=ask.on))
    answer = await client.ask(ask.key, ask.request(id_of(topic)))
    assert ask.code in set(codes(answer))
    if ask.key != 79:  # where the caller has named it itself
        assert id_of(topic) not in set(ids(answer))


def ids(message: Any) -> Iterator[bytes]:
    """Every topic id in an answer."""
    if isinstance(message, msgspec.Struct):
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name == "topic_id":
                yield value
            else:
                yield from ids(value)
    elif isinstance(message, list | tuple):
        for each in message:
            yield from ids(each)


async def test_offsets_are_forgotten_topic_by_topic(house: House) -> None:
    topic = await house.topic()
    await house.user("ann", EVERYTHING)
    client = await house.client("ann")
    await commit(client, "g", topic)
    await house.let("ann", EVERYTHING, deny(OFFSET_DELETE.needs, resource=OFFSET_DELETE.on))
    assert OFFSET_DELETE.code in await asked(client, OFFSET_DELETE, topic)
    await house.let("ann", EVERYTHING)
    assert await asked(client, OFFSET_DELETE, topic) == {0}


def test_every_api_is_in_the_table() -> None:
    assert {ask.key for ask in ASKS} | FREE == set(ACTIONS)


# ── What implies what ────────────────────────────────────────────────────────────────────────


def named(name: str) -> Ask:
    return next(ask for ask in ASKS if ask.name == name)


@pytest.mark.parametrize("right", ["Read", "Write", "Delete", "Alter", "Describe"])
async def test_who_may_do_something_with_a_topic_may_describe_it(house: House, right: str) -> None:
    topic = await house.topic()
    await house.user("ann", allow(f"kafka:{right}", resource=TOPIC))
    client = await house.client("ann")
    assert not REFUSALS & await asked(client, named("ListOffsets"), topic)
    await house.let("ann", allow(f"kafka:{right}", resource=TOPIC), deny("kafka:Describe"))
    assert NO_TOPIC in await asked(client, named("ListOffsets"), topic)


async def test_who_may_set_configs_may_see_them_and_not_the_other_way_round(house: House) -> None:
    topic = await house.topic()
    await house.user("ann", allow("kafka:AlterConfigs"))
    client = await house.client("ann")
    assert not REFUSALS & await asked(client, named("DescribeConfigs of a topic"), topic)
    await house.let("ann", allow("kafka:DescribeConfigs"))
    assert NO_TOPIC in await asked(client, named("AlterConfigs of a topic"), topic)


async def test_who_may_describe_may_not_read(house: House) -> None:
    topic = await house.topic()
    await house.user("ann", allow("kafka:Describe"))
    assert NO_TOPIC in await asked(await house.client("ann"), named("Fetch"), topic)


@pytest.mark.parametrize(
    ("blocks", "is_allowed"),
    [
        ((allow("kafka:IdempotentWrite", resource=CLUSTER),), True),
        ((allow("kafka:Write", resource=topic_arn("some-*")),), True),
        ((allow("kafka:*", resource=GROUP),), True),  # by its action; what it is on shows later
        ((allow("kafka:Read"),), False),
        ((deny("kafka:Write"),), False),
    ],
)
async def test_a_number_to_write_with_is_for_those_who_may_write_somewhere(
    house: House, blocks: tuple[dict[str, Any], ...], is_allowed: bool
) -> None:
    await house.user("ann", *blocks)
    client = await house.client("ann")
    found = await client.ask(22, init_producer_id.InitProducerIdRequest(None, 0))
    assert found.error_code == (0 if is_allowed else NO_CLUSTER)


async def test_the_policy_of_a_queue_counts(house: House) -> None:
    queue = await house.topic("t", kind=Kind.STANDARD)
    await house.user("ann")
    client = await house.client("ann")
    assert NO_TOPIC in await asked(client, named("Fetch"), queue)

    async def attach(text: str) -> None:
        await house.catalog.change(
            queue.account,
            queue.region,
            queue.name,
            lambda topic: topic.with_settings(now_ms=1, policy=text),
        )

    principal = {"AWS": f"arn:aws:iam::{queue.account}:user/ann"}
    await attach(policy(allow("kafka:Read", "kafka:Write", Principal=principal)))
    assert not REFUSALS & await asked(client, named("Fetch"), queue)
    found = await client.ask(22, init_producer_id.InitProducerIdRequest(None, 0))
    assert found.error_code == 0
    await house.let("ann", EVERYTHING)
    await attach(policy(deny("kafka:Read", Principal="*")))
    assert NO_TOPIC in await asked(client, named("Fetch"), queue)


async def test_a_rule_may_ask_for_the_address(house: House) -> None:
    topic = await house.topic()
    where = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}
    await house.user("ann", {**EVERYTHING, "Condition": where})
    near = await house.client("ann", peer="10.1.2.3")
    far = await house.client("ann", peer="192.0.2.1")
    assert not REFUSALS & await asked(near, named("Fetch"), topic)
    assert NO_TOPIC in await asked(far, named("Fetch"), topic)
    assert not REFUSALS & await asked(near, named("Fetch"), topic)


async def test_topics_of_the_node_are_for_operators(house: House) -> None:
    await house.user("ann", EVERYTHING)
    client = await house.client("ann")
    fetch = FetchRequest(0, 1, [FetchTopic("__groups", ZERO_UUID, [FetchPartition(0, 0, 1_000)])])
    assert NO_TOPIC in set(codes(await client.ask(1, fetch, 12)))
    listed = await client.ask(3, metadata.MetadataRequest(topics=None))
    assert [each.name for each in listed.topics] == ["__consumer_offsets"]
    root = await house.root()
    assert NO_TOPIC not in set(codes(await root.ask(1, fetch, 12)))
    listed = await root.ask(3, metadata.MetadataRequest(topics=None))
    assert "__groups" in [each.name for each in listed.topics]


async def test_what_moves_partitions_is_written_by_programs_of_operators_alone(
    house: House,
) -> None:
    await house.user("ann", EVERYTHING)
    ann, root = await house.client("ann"), await house.root()
    wanted = create_topics.CreatableTopic("__plans", 1, -1)
    make = create_topics.CreateTopicsRequest([wanted], timeout_ms=1_000)
    records = memoryview(batch(b"plan"))
    write = ProduceRequest(
        None, -1, 1_000, [ProduceTopic("__plans", ZERO_UUID, [ProducePartition(0, records)])]
    )
    assert NO_TOPIC in set(codes(await ann.ask(19, make)))
    assert set(codes(await root.ask(19, make))) == {0}
    assert set(codes(await ann.ask(0, write, 12))) == {NO_TOPIC}
    assert set(codes(await root.ask(0, write, 12))) == {0}


# ── What is not told ─────────────────────────────────────────────────────────────────────────


async def test_lists_show_what_may_be_described(house: House) -> None:
    for name in ("mine", "theirs"):
        await house.topic(name)
    await house.user("ann", allow("kafka:Describe", resource=topic_arn("mine")))
    client = await house.client("ann")
    found = await client.ask(3, metadata.MetadataRequest(topics=None))
    assert [each.name for each in found.topics] == ["mine"]
    pages = await client.ask(75, DescribeTopicPartitionsRequest())
    assert [each.name for each in pages.topics] == ["mine"]


async def test_a_topic_is_refused_whether_or_not_it_is_there(house: House) -> None:
    await house.topic("there")
    await house.user("ann", allow("kafka:Write", resource=topic_arn("mine")))
    client = await house.client("ann")
    for name in ("there", "not-there"):
        topics = [metadata.MetadataRequestTopic(ZERO_UUID, name)]
        found = await client.ask(3, metadata.MetadataRequest(topics, True))
        assert [each.error_code for each in found.topics] == [NO_TOPIC]
    assert house.context.catalog.find("000000000000", "us-east-1", "not-there") is None


async def commit(client: Client, group_id: str, topic: Topic) -> None:
    partition = offset_commit.OffsetCommitRequestPartition(0, 1)
    of = offset_commit.OffsetCommitRequestTopic("", id_of(topic), [partition])
    found = await client.ask(8, offset_commit.OffsetCommitRequest(group_id, -1, "", topics=[of]))
    assert not any(codes(found)), found


async def test_groups_are_listed_for_those_who_may_describe_them(house: House) -> None:
    topic = await house.topic()
    root = await house.root()
    for group_id in ("mine", "theirs"):
        await commit(root, group_id, topic)
    await house.user("ann", allow("kafka:Describe", resource=kafka_arn("group/mine")))
    client = await house.client("ann")
    found = await client.ask(16, list_groups.ListGroupsRequest())
    assert [each.group_id for each in found.groups] == ["mine"]
    await house.let("ann", allow("kafka:Describe", resource=CLUSTER))
    found = await client.ask(16, list_groups.ListGroupsRequest())
    assert sorted(each.group_id for each in found.groups) == ["mine", "theirs"]


async def test_transactions_are_listed_for_those_who_may_describe_them(house: House) -> None:
    root = await house.root()
    for transactional_id in ("mine", "theirs"):
        asked_for = init_producer_id.InitProducerIdRequest(transactional_id, 1_000)
        assert (await root.ask(22, asked_for)).error_code == 0
    await house.user("ann", allow("kafka:Describe", resource=kafka_arn("txn/mine")))
    client = await house.client("ann")
    found = await client.ask(66, list_transactions.ListTransactionsRequest())
    assert [each.transactional_id for each in found.transaction_states] == ["mine"]


async def test_a_group_is_not_described_to_those_who_may_not_know_its_topics(
    house: House,
) -> None:
    await house.topic()
    root = await house.root()
    beat = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        "c", "m", 0, rebalance_timeout_ms=1_000, subscribed_topic_names=["t"], topic_partitions=[]
    )
    assert (await root.ask(68, beat)).error_code == 0
    share = share_group_heartbeat.ShareGroupHeartbeatRequest("s", "m", 0, None, ["t"])
    assert (await root.ask(76, share)).error_code == 0
    groups = allow("kafka:Describe", resource=kafka_arn("group/*"))
    await house.user("ann", groups)
    client = await house.client("ann")
    for key, request in ((69, ConsumerGroupDescribeRequest), (77, ShareGroupDescribeRequest)):
        (found,) = (await client.ask(key, request(["c" if key == 69 else "s"]))).groups
        assert (found.error_code, list(found.members)) == (NO_TOPIC, [])
    await house.let("ann", groups, allow("kafka:Describe", resource=TOPIC))
    for key, request in ((69, ConsumerGroupDescribeRequest), (77, ShareGroupDescribeRequest)):
        (found,) = (await client.ask(key, request(["c" if key == 69 else "s"]))).groups
        assert (found.error_code, len(found.members)) == (0, 1)


def counting_of(topic: str) -> streams_group_heartbeat.Topology:
    """A topology with one changelog."""
    changelog = streams_group_heartbeat.TopicInfo("counts")
    part = streams_group_heartbeat.Subtopology("0", [topic], state_changelog_topics=[changelog])
    return streams_group_heartbeat.Topology(0, [part])


async def test_internal_topics_of_streams_groups_are_created_by_those_who_may(
    house: House,
) -> None:
    await house.topic()
    rights = [
        allow("kafka:Read", resource=GROUP),
        allow("kafka:Describe", resource=topic_arn("*")),
    ]
    await house.user("ann", *rights)
    beat = streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        "g",
        "m",
        0,
        rebalance_timeout_ms=1_000,
        topology=counting_of("t"),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )

    async def missing() -> list[str]:
        found = await client.ask(88, beat)
        assert found.error_code == 0
        return [each.status_detail for each in found.status if each.status_code == 3]

    text = "Internal topics are missing: counts"
    async with trail_on(house.stage) as trail:
        house.context.audit = trail
        client = await house.client("ann")
        for _ in range(2):
            assert await missing() == [f"{text}; Unauthorized to CREATE on topics counts."]
        await house.let("ann", *rights, allow("kafka:Create", resource=topic_arn("counts")))
        assert await missing() == [text]
        assert await missing() == [], "it was created"
    entries = [each for each in await noted(house.stage) if each.action == "kafka:CreateTopic"]
    assert [each.outcome for each in entries] == ["denied", "denied", "ok"]
    assert {each.resource for each in entries} == {topic_arn("counts")}
    assert {each.principal.rpartition("/")[2] for each in entries} == {"ann"}


async def test_a_streams_group_is_not_described_to_those_who_may_not_know_its_topics(
    house: House,
) -> None:
    await house.topic()
    root = await house.root()
    beat = streams_group_heartbeat.StreamsGroupHeartbeatRequest(
        "g",
        "m",
        0,
        rebalance_timeout_ms=1_000,
        topology=counting_of("t"),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    assert (await root.ask(88, beat)).error_code == 0
    rights = [allow("kafka:Describe", resource=GROUP), allow("kafka:Describe", resource=TOPIC)]
    await house.user("ann", *rights)
    client = await house.client("ann")
    asked = streams_group_describe.StreamsGroupDescribeRequest(["g"])
    (found,) = (await client.ask(89, asked)).groups
    assert (found.error_code, found.topology, list(found.members)) == (NO_TOPIC, None, [])
    await house.let("ann", *rights, allow("kafka:Describe", resource=topic_arn("counts")))
    (found,) = (await client.ask(89, asked)).groups
    assert (found.error_code, len(found.members)) == (0, 1)


async def test_answers_about_everything_leave_out_topics_that_may_not_be_described(
    house: House,
) -> None:
    topics = [await house.topic(name) for name in ("mine", "theirs")]
    root = await house.root()
    for topic in topics:
        await commit(root, "g", topic)
    beat = share_group_heartbeat.ShareGroupHeartbeatRequest("s", "m", 0, None, ["mine", "theirs"])
    assert (await root.ask(76, beat)).error_code == 0
    numbered = await root.ask(22, init_producer_id.InitProducerIdRequest("x", 10_000))
    added = add_partitions_to_txn.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_producer_id=numbered.producer_id,
        v3_and_below_producer_epoch=numbered.producer_epoch,
        v3_and_below_topics=[
            add_partitions_to_txn.AddPartitionsToTxnTopic(name, [0]) for name in ("mine", "theirs")
        ],
    )
    assert set(codes(await root.ask(24, added, 3))) == {0}

    async def named_to(client: Client) -> list[list[str]]:
        of_group = offset_fetch.OffsetFetchRequestGroup("g", topics=None)
        offsets = await client.ask(9, offset_fetch.OffsetFetchRequest(groups=[of_group]), 9)
        of_share = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup("s", None)
        asked_for = describe_share_group_offsets.DescribeShareGroupOffsetsRequest([of_share])
        shares = await client.ask(90, asked_for)
        transactions = await client.ask(
            65, describe_transactions.DescribeTransactionsRequest(["x"])
        )
        return [
            sorted(each.name for each in offsets.groups[0].topics),
            sorted(each.topic_name for each in shares.groups[0].topics),
            sorted(each.topic for each in transactions.transaction_states[0].topics),
        ]

    assert await named_to(root) == [["mine", "theirs"]] * 3
    others = allow("kafka:Describe", resource="arn:penstock:*")
    await house.user("ann", others, allow("kafka:Describe", resource=topic_arn("mine")))
    assert await named_to(await house.client("ann")) == [["mine"]] * 3


async def test_a_topic_that_is_not_there_is_refused_as_one_that_is(house: House) -> None:
    await house.user("ann", allow("kafka:Describe"))
    client = await house.client("ann")
    states = [delete_topics.DeleteTopicState("not-there", ZERO_UUID)]
    found = await client.ask(20, delete_topics.DeleteTopicsRequest(topics=states))
    assert set(codes(found)) == {NO_TOPIC}


# ── Bits ─────────────────────────────────────────────────────────────────────────────────────


async def test_the_bits_say_what_the_caller_may(house: House) -> None:
    await house.topic()
    await house.user(
        "ann",
        allow("kafka:Read", "kafka:AlterConfigs", resource=TOPIC),
        allow("kafka:Delete", resource=GROUP),
        allow("kafka:Describe", "kafka:Create", resource=CLUSTER),
        allow("kafka:Write", resource=TXN),
    )
    client = await house.client("ann")
    found = await client.ask(
        3,
        metadata.MetadataRequest(None, include_topic_authorized_operations=True),
    )
    expected = (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.ALTER_CONFIGS,
        Operation.DESCRIBE_CONFIGS,
    )
    assert [each.topic_authorized_operations for each in found.topics] == [bits(expected)]
    (group,) = (await client.ask(15, describe_groups.DescribeGroupsRequest(["g"], True))).groups
    assert group.authorized_operations == bits((Operation.DELETE, Operation.DESCRIBE))
    cluster = await client.ask(60, describe_cluster.DescribeClusterRequest(True))
    expected_bits = bits((Operation.DESCRIBE, Operation.CREATE))
    assert cluster.cluster_authorized_operations == expected_bits
    older = await client.ask(
        3, metadata.MetadataRequest([], include_cluster_authorized_operations=True), 9
    )
    assert older.cluster_authorized_operations == expected_bits
    await house.let("ann", allow("kafka:Create", resource=CLUSTER))
    cluster = await client.ask(60, describe_cluster.DescribeClusterRequest(True))
    assert cluster.cluster_authorized_operations == 0


# ── While they wait ──────────────────────────────────────────────────────────────────────────


async def parked(house: House) -> None:
    async with asyncio.timeout(10):
        while not len(house.context.parked):
            await asyncio.sleep(0.005)


async def test_a_fetch_that_waits_gives_out_nothing_once_the_right_is_gone(house: House) -> None:
    topic = await house.topic()
    root = await house.root()
    await house.user("ann", allow("kafka:Read"))
    client = await house.client("ann")
    waiting = asyncio.create_task(
        client.ask(1, FetchRequest(30_000, 1, [FetchTopic("", id_of(topic), [at(0)])]))
    )
    await parked(house)
    await house.let("ann", allow("kafka:Describe"))
    assert not REFUSALS & await asked(root, named("Produce"), topic)
    ((one,),) = (each.partitions for each in (await waiting).topics)
    assert one.error_code == NO_TOPIC
    assert not one.records


def at(offset: int) -> FetchPartition:
    return FetchPartition(0, offset, 1_000)


async def test_a_fetch_that_waits_ends_with_its_user(house: House) -> None:
    topic = await house.topic()
    root = await house.root()
    await house.user("ann", allow("kafka:Read"))
    client = await house.client("ann")
    waiting = asyncio.create_task(
        client.ask(1, FetchRequest(30_000, 1, [FetchTopic("", id_of(topic), [at(0)])]))
    )
    await parked(house)
    await house.identities.delete_user("000000000000", "ann")
    assert not REFUSALS & await asked(root, named("Produce"), topic)
    with pytest.raises(HangUp):
        await waiting


async def test_a_share_fetch_that_waits_leases_nothing_once_the_right_is_gone(
    house: House,
) -> None:
    topic = await house.topic()
    root = await house.root()
    await house.user("ann", EVERYTHING)
    client = await house.client("ann")
    beat = share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"])
    assert (await client.ask(76, beat)).error_code == 0
    request = share_fetch.ShareFetchRequest(
        "g",
        "m",
        0,
        max_wait_ms=30_000,
        min_bytes=1,
        max_records=10,
        topics=[share_fetch.FetchTopic(id_of(topic), [share_fetch.FetchPartition(0)])],
    )
    waiting = asyncio.create_task(client.ask(78, request))
    await parked(house)
    await house.let("ann", EVERYTHING, deny("kafka:Read", resource=TOPIC))
    assert not REFUSALS & await asked(root, named("Produce"), topic)
    ((one,),) = (each.partitions for each in (await waiting).responses)
    assert (one.error_code, list(one.acquired_records)) == (NO_TOPIC, [])
    await house.user("bob", EVERYTHING)
    other = await house.client("bob")
    beat = share_group_heartbeat.ShareGroupHeartbeatRequest("g", "n", 0, None, ["t"])
    assert (await other.ask(76, beat)).error_code == 0
    again = await other.ask(78, replaced(request, member_id="n", max_wait_ms=0))
    ((one,),) = (each.partitions for each in again.responses)
    assert len(one.acquired_records) == 1  # it was given back


def replaced(request: Any, **fields: Any) -> Any:
    return msgspec.structs.replace(request, **fields)


async def test_a_fetch_session_is_its_callers_alone(house: House) -> None:
    topic = await house.topic()
    for name in ("ann", "bob"):
        await house.user(name, allow("kafka:Read"))
    ann, bob = await house.client("ann"), await house.client("bob")
    begin = FetchRequest(
        0, 0, [FetchTopic("", id_of(topic), [at(0)])], session_id=0, session_epoch=0
    )
    found = await ann.ask(1, begin)
    assert found.session_id > 0
    go_on = FetchRequest(0, 0, [], session_id=found.session_id, session_epoch=1)
    stolen = await bob.ask(1, go_on)
    assert stolen.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    end = FetchRequest(0, 0, [], session_id=found.session_id, session_epoch=-1)
    await bob.ask(1, end)
    assert (await ann.ask(1, go_on)).error_code == 0  # nobody else has ended it
    await house.let("ann", allow("kafka:Describe"))
    later = await ann.ask(1, FetchRequest(0, 0, [], session_id=found.session_id, session_epoch=2))
    assert NO_TOPIC in set(codes(later))


async def test_rights_in_another_account_are_of_no_use_here(house: House) -> None:
    topic = await house.topic()
    await house.user("eve", EVERYTHING, account=OTHER)
    client = await house.client("eve", account=OTHER)
    unknown = {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    for name in ("Produce", "Produce by name", "Fetch", "Fetch by name", "ListOffsets"):
        assert unknown & await asked(client, named(name), topic), name
    elsewhere = replace(named("Metadata by id"), code=ErrorCode.UNKNOWN_TOPIC_ID)
    assert elsewhere.code in await asked(client, elsewhere, topic)
