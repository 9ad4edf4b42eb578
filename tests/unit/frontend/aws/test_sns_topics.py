"""Topics that adopt a stream, the settings of a topic's stream, and other actions on topics."""

from urllib.parse import urlencode
from xml.etree import ElementTree

import msgspec
import pytest
from tests.unit.frontend.aws.test_sns import ACCOUNT, TOPIC, Client, entries
from tests.unit.frontend.aws.test_sns_subscriptions import Site, topic

from penstock.frontend.aws.context import FrontendConfig
from penstock.model.topic import DedupScope, Kind, Topic


@pytest.fixture
def site() -> Site:
    return Site()


async def kafka_topic(site: Site, name: str = "events", **fields: object) -> Topic:
    made = Topic("f" * 32, ACCOUNT, "us-east-1", name, Kind.STREAM, 3, 1, 1, b"r" * 32)
    return await site.rig.catalog.create(msgspec.structs.replace(made, **fields))


def adopting(stream: str = "events", **attributes: str) -> dict[str, str]:
    return entries("Attributes", {"PenstockStream": stream, **attributes})


async def test_an_existing_stream_becomes_a_topic_and_stays_when_the_topic_is_deleted(
    site: Site,
) -> None:
    stream = await kafka_topic(site, configs={"retention.ms": "5"})
    assert await site.client.topic(**adopting(DisplayName="d")) == TOPIC
    assert await site.client.topic(**adopting()) == TOPIC
    found = topic(site)
    assert (found.topic_id, found.configs) == (stream.topic_id, stream.configs)
    shown = await site.client.attributes("GetTopicAttributes", TopicArn=TOPIC)
    assert (shown["PenstockStream"], shown["DisplayName"]) == ("events", "d")
    refusal = await site.client.refused("CreateTopic", Name="other", **adopting())
    text = "PenstockStream: The stream events is the SNS topic orders"
    assert refusal[2] == f"Invalid parameter: Attributes Reason: {text}"
    await site.client.subscribe()
    for name, values in {
        "ArchivePolicy": ('{"MessageRetentionPeriod":"2"}', "{}"),
        "KmsMasterKeyId": ("k",),
    }.items():
        for value in values:
            change = {"TopicArn": TOPIC, "AttributeName": name, "AttributeValue": value}
            await site.client.call("SetTopicAttributes", **change)
    await site.client.call("DeleteTopic", TopicArn=TOPIC)
    left = site.rig.catalog.find(ACCOUNT, "us-east-1", "events")
    assert left is not None
    assert msgspec.structs.replace(left, modified_at_ms=1) == stream
    assert not site.rig.subscriptions.of_topic(stream.topic_id)


@pytest.mark.parametrize(
    ("kind", "configs", "attributes", "text"),
    [
        (Kind.STANDARD, {}, {}, "PenstockStream: The stream events does not exist"),
        (
            Kind.STREAM,
            {"cleanup.policy": "compact"},
            {},
            "PenstockStream: The stream events is compacted, so it cannot be an SNS topic",
        ),
        (
            Kind.STREAM,
            {},
            {"PenstockPartitions": "3"},
            (
                "PenstockStream: cannot be given with FifoTopic, PenstockPartitions or"
                " PenstockRetentionMs."
            ),
        ),
    ],
)
async def test_other_streams_are_not_adopted(
    site: Site, kind: Kind, configs: dict[str, str], attributes: dict[str, str], text: str
) -> None:
    await kafka_topic(site, kind=kind, configs=configs)
    refusal = await site.client.refused("CreateTopic", Name="orders", **adopting(**attributes))
    assert refusal == (400, "InvalidParameter", f"Invalid parameter: Attributes Reason: {text}")


async def test_attributes_set_the_retention_of_the_stream(site: Site) -> None:
    retention = entries("Attributes", {"PenstockRetentionMs": "7200000", "PenstockPartitions": "2"})
    await site.client.topic(**retention)
    assert (topic(site).configs, topic(site).partition_count) == ({"retention.ms": "7200000"}, 2)

    async def set_to(name: str, value: str) -> None:
        change = {"TopicArn": TOPIC, "AttributeName": name, "AttributeValue": value}
        await site.client.call("SetTopicAttributes", **change)

    await set_to("ArchivePolicy", '{"MessageRetentionPeriod":"2"}')
    assert topic(site).configs == {"retention.ms": str(2 * 86_400_000)}
    await set_to("DisplayName", "d")
    site.rig.clock.now_ms += 3 * 86_400_000
    shown = await site.client.attributes("GetTopicAttributes", TopicArn=TOPIC)
    assert shown["BeginningArchiveTime"] == "2023-11-15T22:13:20.000Z", "two days ago"
    await set_to("ArchivePolicy", "{}")
    assert topic(site).configs == {"retention.ms": "7200000"}
    await set_to("KmsMasterKeyId", "k")
    assert topic(site).settings.kms_key == "k"
    await set_to("KmsMasterKeyId", "")
    assert topic(site).settings.kms_key is None


async def test_a_fifo_topic_deduplicates_per_group_if_asked(site: Site) -> None:
    scope = {"FifoTopic": "true", "FifoThroughputScope": "MessageGroup", "PenstockPartitions": "2"}
    arn = await site.client.topic("o.fifo", **entries("Attributes", scope))
    [stream] = site.rig.catalog.sns_topics(ACCOUNT, "us-east-1")
    assert (stream.dedup_scope, stream.partition_count) == (DedupScope.GROUP, 2)
    change = {"AttributeName": "FifoThroughputScope", "AttributeValue": "Topic"}
    refusal = await site.client.refused("SetTopicAttributes", TopicArn=arn, **change)
    text = "FifoThroughputScope: a topic with 2 partitions needs MessageGroup."
    assert refusal == (400, "InvalidParameter", f"Invalid parameter: {text}")


async def test_data_protection_needs_development_mode() -> None:
    client = Client(FrontendConfig(is_dev=False))
    await client.topic()
    fields = {"DataProtectionPolicy": '{"Name":"p"}'}
    text = "Invalid parameter: DataProtectionPolicy Reason: this server does not inspect messages"
    refusal = await client.refused("PutDataProtectionPolicy", ResourceArn=TOPIC, **fields)
    assert refusal == (400, "InvalidParameter", text)
    assert (await client.refused("CreateTopic", Name="new", **fields))[2] == text


async def test_a_valid_phone_number_needs_a_gateway(site: Site) -> None:
    refusal = await site.client.refused("Publish", PhoneNumber="+15551234567", Message="m")
    assert refusal[1] == "InvalidAction"


async def test_a_repeated_publish_is_not_published_twice(site: Site) -> None:
    await site.client.topic()
    form = {"Action": "Publish", "Version": "2010-03-31", "TopicArn": TOPIC, "Message": "m"}
    ids = set()
    for attempt in ("attempt=1; max=3", "attempt=2; max=3"):
        headers = {"amz-sdk-invocation-id": "i", "amz-sdk-request": attempt}
        reply = await site.rig.ask(body=urlencode(form).encode(), headers=headers)
        root = ElementTree.fromstring(reply.body)
        ids.add(next(one.text for one in root.iter() if one.tag.endswith("MessageId")))
    assert len(ids) == 1
    assert sum(map(len, site.rig.backend.records.values())) == 1


@pytest.mark.parametrize("name", ["KmsMasterKeyId", "ArchivePolicy", "SQSSuccessFeedbackRoleArn"])
async def test_attributes_have_a_limit(site: Site, name: str) -> None:
    await site.client.topic()
    change = {"TopicArn": TOPIC, "AttributeName": name, "AttributeValue": "x" * 2_049}
    refusal = await site.client.refused("SetTopicAttributes", **change)
    assert refusal[2] == f"Invalid parameter: {name}: must have at most 2,048 characters."
