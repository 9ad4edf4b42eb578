"""Two accounts with the same names for everything: neither finds, moves or ends what is the
other's."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.frontend_kafka.rig import batch
from tests.unit.frontend_kafka_access.stage import OTHER, OWN, Client, House, allow, codes

from penstock.model.names import scoped_id, split_scoped
from penstock.model.topic import Kind, Topic
from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.generated import (
    add_partitions_to_txn,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_topics,
    delete_groups,
    describe_groups,
    describe_log_dirs,
    describe_transactions,
    end_txn,
    init_producer_id,
    join_group,
    list_groups,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    share_fetch,
    share_group_heartbeat,
)
from penstock.wire.kafka.primitives import ZERO_UUID
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

IDS = st.one_of(st.text(max_size=30), st.from_regex(r"[0-9]{12}/.{0,5}", fullmatch=True))
ACCOUNTS = st.from_regex(r"[0-9]{12}", fullmatch=True)


@given(account=ACCOUNTS, own=ACCOUNTS, plain_id=IDS)
def test_an_id_is_found_again_by_its_account(account: str, own: str, plain_id: str) -> None:
    scoped = scoped_id(account, plain_id, own_account=own)
    if plain_id:
        assert split_scoped(scoped, own_account=own) == (account, plain_id)
    else:
        assert scoped == ""


@given(one=st.tuples(ACCOUNTS, IDS), other=st.tuples(ACCOUNTS, IDS), own=ACCOUNTS)
def test_no_two_accounts_share_an_id(
    one: tuple[str, str], other: tuple[str, str], own: str
) -> None:
    if one != other and one[1] and other[1]:
        assert scoped_id(*one, own_account=own) != scoped_id(*other, own_account=own)


# ── Two tenants ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def both(house: House) -> tuple[Client, Client]:
    """ann in the node's own account, bob in another, each allowed everything."""
    await house.user("ann", allow("*"))
    await house.user("bob", allow("*"), account=OTHER)
    return await house.client("ann"), await house.client("bob", account=OTHER)


async def send(client: Client, name: str, *values: bytes) -> set[int]:
    partition = ProducePartition(0, memoryview(batch(*values)))
    request = ProduceRequest(None, -1, 1_000, [ProduceTopic(name, ZERO_UUID, [partition])])
    return set(codes(await client.ask(0, request, 12)))


async def size(client: Client, name: str) -> tuple[int, int]:
    topics = [FetchTopic(name, ZERO_UUID, [FetchPartition(0, 0, 100_000)])]
    ((one,),) = (
        each.partitions for each in (await client.ask(1, FetchRequest(0, 1, topics), 12)).topics
    )
    return one.error_code, one.high_watermark


async def make(client: Client, name: str = "t") -> None:
    asked = create_topics.CreateTopicsRequest([create_topics.CreatableTopic(name, 1, 1)])
    (made,) = (await client.ask(19, asked)).topics
    assert made.error_code == 0, made


async def names(client: Client) -> list[str]:
    found = await client.ask(3, metadata.MetadataRequest(topics=None))
    return [each.name for each in found.topics if not each.is_internal]


async def test_topics_of_the_same_name_are_two(house: House, both: tuple[Client, Client]) -> None:
    for client in both:
        await make(client)
    ann, bob = both
    assert await send(ann, "t", b"a", b"b") == {0}
    assert await size(ann, "t") == (0, 2)
    assert await size(bob, "t") == (0, 0)
    assert await send(bob, "t", b"c") == {0}
    assert (await size(ann, "t"), await size(bob, "t")) == ((0, 2), (0, 1))
    mine, theirs = (house.catalog.find(each, "us-east-1", "t") for each in (OWN, OTHER))
    assert mine is not None
    assert theirs is not None
    assert mine.topic_id != theirs.topic_id
    await make(ann, "only-ann")
    assert await names(bob) == ["t"]
    assert await size(bob, "only-ann") == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    dirs = await bob.ask(35, describe_log_dirs.DescribeLogDirsRequest(None))
    assert [topic.name for each in dirs.results for topic in each.topics] == ["t"]


async def test_an_id_of_another_account_is_of_no_topic(
    house: House, both: tuple[Client, Client]
) -> None:
    topic = await house.topic()
    _, bob = both
    topic_id = bytes.fromhex(topic.topic_id)
    fetch = FetchRequest(0, 1, [FetchTopic("", topic_id, [FetchPartition(0, 0, 1)])])
    assert ErrorCode.UNKNOWN_TOPIC_ID in set(codes(await bob.ask(1, fetch)))
    by_id = [metadata.MetadataRequestTopic(topic_id, None)]
    found = await bob.ask(3, metadata.MetadataRequest(by_id))
    assert [each.error_code for each in found.topics] == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_a_topic_is_made_in_the_account_that_names_it(
    house: House, both: tuple[Client, Client]
) -> None:
    _, bob = both
    asked = metadata.MetadataRequest([metadata.MetadataRequestTopic(ZERO_UUID, "new")], True)
    assert (await bob.ask(3, asked)).topics[0].error_code == 0
    assert house.catalog.find(OTHER, "us-east-1", "new") is not None
    assert house.catalog.find(OWN, "us-east-1", "new") is None


# ── Groups ───────────────────────────────────────────────────────────────────────────────────


async def commit(client: Client, group_id: str, offset: int) -> set[int]:
    partition = offset_commit.OffsetCommitRequestPartition(0, offset)
    topic = offset_commit.OffsetCommitRequestTopic("t", partitions=[partition])
    request = offset_commit.OffsetCommitRequest(group_id, -1, "", topics=[topic])
    return set(codes(await client.ask(8, request, 9)))


async def committed(client: Client, group_id: str) -> int:
    topic = offset_fetch.OffsetFetchRequestTopics("t", partition_indexes=[0])
    group = offset_fetch.OffsetFetchRequestGroup(group_id, topics=[topic])
    found = await client.ask(9, offset_fetch.OffsetFetchRequest(groups=[group]), 9)
    assert not any(codes(found))
    offset: int = found.groups[0].topics[0].partitions[0].committed_offset
    return offset


async def groups_of(client: Client) -> list[str]:
    found = await client.ask(16, list_groups.ListGroupsRequest())
    return sorted(each.group_id for each in found.groups)


async def test_groups_of_the_same_name_are_two(both: tuple[Client, Client]) -> None:
    ann, bob = both
    for client in both:
        await make(client)
    assert await commit(ann, "g", 5) == {0}
    assert await committed(bob, "g") == -1
    assert await commit(bob, "g", 7) == {0}
    assert (await committed(ann, "g"), await committed(bob, "g")) == (5, 7)
    await commit(ann, "only-ann", 1)
    assert await groups_of(ann) == ["g", "only-ann"]
    assert await groups_of(bob) == ["g"]
    (gone,) = (await bob.ask(42, delete_groups.DeleteGroupsRequest(["g"]))).results
    assert gone.error_code == 0
    assert await committed(ann, "g") == 5
    (gone,) = (await bob.ask(42, delete_groups.DeleteGroupsRequest(["only-ann"]))).results
    assert gone.error_code == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("spelling", [f"{OTHER}/g", f"{OWN}/g", f"{OTHER}/{OWN}/g"])
async def test_no_spelling_reaches_the_group_of_another(
    both: tuple[Client, Client], spelling: str
) -> None:
    for client in both:
        await make(client)
        await commit(client, "g", 5)
    for client in both:
        assert await committed(client, spelling) == -1
        assert await commit(client, spelling, 9) == {0}
        assert await groups_of(client) == sorted(["g", spelling])
        assert await committed(client, "g") == 5


async def test_members_of_the_same_group_in_two_accounts_do_not_meet(
    both: tuple[Client, Client],
) -> None:
    for client in both:
        protocol = join_group.JoinGroupRequestProtocol("range", b"")
        asked = join_group.JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", [protocol])
        joined = await client.ask(11, asked, 3)
        assert (joined.error_code, len(joined.members)) == (0, 1)
    (found,) = (await both[1].ask(15, describe_groups.DescribeGroupsRequest(["g"]))).groups
    assert (found.error_code, found.group_id, len(found.members)) == (0, "g", 1)


async def test_a_group_that_is_assigned_here_reads_topics_of_its_own_account(
    house: House, both: tuple[Client, Client]
) -> None:
    for client in both:
        await make(client)
    for client, account in zip(both, (OWN, OTHER), strict=True):
        asked = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "g",
            "m",
            0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        found = await client.ask(68, asked)
        topic = house.catalog.find(account, "us-east-1", "t")
        assert topic is not None
        assert [each.topic_id.hex() for each in found.assignment.topic_partitions] == [
            topic.topic_id
        ]
        described = await client.ask(
            69, consumer_group_describe.ConsumerGroupDescribeRequest(["g"])
        )
        (group,) = described.groups
        assert (group.error_code, group.group_id, len(group.members)) == (0, "g", 1)


async def test_offsets_of_a_topic_that_is_read_outlive_their_retention_in_every_account(
    house: House, both: tuple[Client, Client]
) -> None:
    for client in both:
        await make(client)
        await make(client, "left")
        beat: Any = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            "g",
            "m",
            0,
            rebalance_timeout_ms=10**9,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        )
        found = await client.ask(68, beat)
        partition = offset_commit.OffsetCommitRequestPartition(0, 5)
        for name in ("t", "left"):
            topic = offset_commit.OffsetCommitRequestTopic(name, partitions=[partition])
            request = offset_commit.OffsetCommitRequest(
                "g", found.member_epoch, "m", topics=[topic]
            )
            assert not any(codes(await client.ask(8, request, 9)))
    house.clock.wall += 8 * 24 * 3_600_000
    house.context.groups.expire()  # type: ignore[attr-defined]
    for client in both:
        everything = offset_fetch.OffsetFetchRequestGroup("g", topics=None)
        found = await client.ask(9, offset_fetch.OffsetFetchRequest(groups=[everything]), 9)
        assert [each.name for each in found.groups[0].topics] == ["t"]


# ── Shares ───────────────────────────────────────────────────────────────────────────────────


async def test_share_groups_of_the_same_name_lease_from_their_own_topics(
    house: House, both: tuple[Client, Client]
) -> None:
    for client, value in zip(both, (b"ann's", b"bob's"), strict=True):
        await make(client)
        beat = share_group_heartbeat.ShareGroupHeartbeatRequest("g", "m", 0, None, ["t"])
        assert (await client.ask(76, beat)).error_code == 0
        assert await send(client, "t", value) == {0}
    for client, account, value in zip(both, (OWN, OTHER), (b"ann's", b"bob's"), strict=True):
        topic = house.catalog.find(account, "us-east-1", "t")
        assert topic is not None
        found = await client.ask(78, share_ask(topic))
        ((one,),) = (each.partitions for each in found.responses)
        assert value in bytes(one.records or b"")
        assert len(one.acquired_records) == 1
    topic = house.catalog.find(OWN, "us-east-1", "t")
    assert topic is not None
    again = msgspec.structs.replace(share_ask(topic), share_session_epoch=1)
    assert ErrorCode.UNKNOWN_TOPIC_ID in set(codes(await both[1].ask(78, again)))


def share_ask(topic: Topic) -> share_fetch.ShareFetchRequest:
    partitions = [share_fetch.FetchPartition(0)]
    return share_fetch.ShareFetchRequest(
        "g",
        "m",
        0,
        max_records=10,
        batch_size=10,
        topics=[share_fetch.FetchTopic(bytes.fromhex(topic.topic_id), partitions)],
    )


# ── Transactions ─────────────────────────────────────────────────────────────────────────────


async def test_a_transactional_id_is_one_accounts_own(both: tuple[Client, Client]) -> None:
    ann, bob = both
    first = await ann.ask(22, init_producer_id.InitProducerIdRequest("x", 10_000))
    second = await bob.ask(22, init_producer_id.InitProducerIdRequest("x", 10_000))
    assert first.error_code == second.error_code == 0
    assert first.producer_id != second.producer_id
    await make(ann)
    await make(bob)
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopic("t", [0])]

    def add(of: Any) -> Any:
        return add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=of.producer_id,
            v3_and_below_producer_epoch=of.producer_epoch,
            v3_and_below_topics=topics,
        )

    assert set(codes(await ann.ask(24, add(first), 3))) == {0}  # nobody has fenced her
    stolen = set(codes(await bob.ask(24, add(first), 3)))
    assert stolen - {0} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    listed = await bob.ask(66, list_transactions.ListTransactionsRequest())
    assert [each.producer_id for each in listed.transaction_states] == [second.producer_id]
    for client, state in ((ann, "Ongoing"), (bob, "Empty")):
        asked = describe_transactions.DescribeTransactionsRequest(["x"])
        (found,) = (await client.ask(65, asked)).transaction_states
        assert (found.transactional_id, found.transaction_state) == ("x", state)
    ended = await bob.ask(
        26, end_txn.EndTxnRequest("x", first.producer_id, first.producer_epoch, True), 3
    )
    assert ended.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    other_spelling = describe_transactions.DescribeTransactionsRequest([f"{OTHER}/x"])
    (found,) = (await ann.ask(65, other_spelling)).transaction_states
    assert found.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_a_queue_of_another_account_is_no_topic_here(
    house: House, both: tuple[Client, Client]
) -> None:
    await house.topic("q", kind=Kind.STANDARD)
    assert await names(both[0]) == ["q"]
    assert await names(both[1]) == []
