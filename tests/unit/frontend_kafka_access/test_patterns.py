"""A pattern assigns no topic that its member may not read, whoever else is in the group and however
rights come and go."""

import msgspec
from tests.unit.frontend_kafka_access.stage import Client, House, allow, deny, kafka_arn, topic_arn

from penstock.model.topic import Topic
from penstock.wire.kafka.generated.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

HEARTBEAT = 68
GROUP = allow("kafka:Read", resource=kafka_arn("group/g"))


class Member:
    def __init__(self, client: Client, name: str, *topics: Topic) -> None:
        self.client = client
        self.name = name
        self.names = {bytes.fromhex(topic.topic_id): topic.name for topic in topics}
        self.epoch = 0
        self.has: set[str] = set()

    async def beat(self) -> set[str]:
        """Says what it has, and returns what it shall have."""
        by_name = {name: topic_id for topic_id, name in self.names.items()}
        owned = [
            ConsumerGroupHeartbeatRequestTopicPartitions(by_name[name], [0]) for name in self.has
        ]
        found = await self.client.ask(
            HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                "g",
                self.name,
                self.epoch,
                rebalance_timeout_ms=60_000,
                subscribed_topic_regex="t-.*",
                topic_partitions=owned,
            ),
        )
        assert found.error_code == 0, found.error_message
        self.epoch = found.member_epoch
        if found.assignment is not None:
            self.has = {self.names[each.topic_id] for each in found.assignment.topic_partitions}
        return self.has


async def settle(*members: Member) -> list[set[str]]:
    for _ in range(4):  # give up, take
        for member in members:
            await member.beat()
    return [member.has for member in members]


async def test_a_pattern_finds_only_what_its_member_may_read(house: House) -> None:
    topics = [await house.topic(name) for name in ("t-a", "t-b", "other")]
    await house.user("ann", GROUP, allow("kafka:Read", resource=topic_arn("t-a")))
    ann = Member(await house.client("ann"), "m-ann", *topics)
    assert await settle(ann) == [{"t-a"}]
    await house.let("ann", GROUP, allow("kafka:Read", resource=topic_arn("t-*")))
    assert await settle(ann) == [{"t-a", "t-b"}]
    await house.let("ann", GROUP, allow("*"), deny("kafka:Read", resource=topic_arn("t-a")))
    assert await settle(ann) == [{"t-b"}]


async def test_members_of_one_group_are_told_each_of_its_own(house: House) -> None:
    topics = [await house.topic(name) for name in ("t-a", "t-b", "t-c")]
    await house.user("ann", GROUP, allow("kafka:Read", resource=topic_arn("t-a")))
    await house.user("bob", allow("*"))
    ann = Member(await house.client("ann"), "m-ann", *topics)
    bob = Member(await house.client("bob"), "m-bob", *topics)
    of_ann, of_bob = await settle(ann, bob)
    assert of_ann <= {"t-a"}
    assert of_ann | of_bob == {"t-a", "t-b", "t-c"}
    assert not of_ann & of_bob
    epochs = (ann.epoch, bob.epoch)
    await settle(ann, bob)
    assert (ann.epoch, bob.epoch) == epochs, "rights that differ move nobody to and fro"
    late = await house.topic("t-d")
    for member in (ann, bob):
        member.names[bytes.fromhex(late.topic_id)] = "t-d"
    of_ann, of_bob = await settle(ann, bob)
    assert "t-d" in of_bob
    assert of_ann <= {"t-a"}


async def test_a_topics_own_policy_counts_when_it_changes(house: House) -> None:
    topic = await house.topic("t-a")
    await house.user("ann", GROUP)
    ann = Member(await house.client("ann"), "m-ann", topic)
    assert await settle(ann) == [set()]
    policy = (
        '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",'
        f'"Action":"kafka:Read","Resource":"{topic.arn}"}}]}}'
    )
    await house.catalog.change(
        topic.account,
        topic.region,
        topic.name,
        lambda found: msgspec.structs.replace(
            found, settings=msgspec.structs.replace(found.settings, policy=policy)
        ),
    )
    assert await settle(ann) == [{"t-a"}]
