"""Actions end to end through Frontend.handle, with broker and catalog in memory: what the actions
themselves decide. Time, order and durability are other suites' business."""

import base64
import json
from typing import Any

import msgspec
import pytest
from tests.unit.frontend.memory import Rig

from penstock.frontend.aws.context import FrontendConfig
from penstock.frontend.aws.sqs.actions import ACTIONS
from penstock.model.errors import DiskFull, PurgeInProgress, Throttled
from penstock.model.ports import MoveTask
from penstock.model.topic import Topic
from penstock.wire.aws.shapes import OPERATIONS, QueueRequest

ACCOUNT = "000000000000"
DIVIDED_FIFO = {
    "PenstockPartitions": "4",
    "ContentBasedDeduplication": "true",
    "DeduplicationScope": "messageGroup",
}
Reply = dict[str, Any]


def arn(name: str) -> str:
    return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"


class Client:
    """Speaks JSON to a rig; ``code`` is the query code of a fault, as SDKs report it."""

    def __init__(self, config: FrontendConfig | None = None) -> None:
        self.rig = Rig(config)

    async def call(self, action: str, **fields: Any) -> Reply:
        status, reply, code = await self._ask(action, fields)
        assert status == 200, (code, reply)
        return reply

    async def code(self, action: str, **fields: Any) -> str:
        status, reply, code = await self._ask(action, fields)
        assert status != 200, reply
        return code

    async def _ask(self, action: str, fields: dict[str, Any]) -> tuple[int, Reply, str]:
        reply = await self.rig.ask(
            body=json.dumps(fields).encode(), headers={"x-amz-target": f"AmazonSQS.{action}"}
        )
        code = dict(reply.headers).get("x-amzn-query-error", "").partition(";")[0]
        return reply.status, json.loads(reply.body), code

    async def queue(self, name: str = "q", **attributes: str) -> str:
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        url: str = (await self.call("CreateQueue", QueueName=name, Attributes=attributes))[
            "QueueUrl"
        ]
        return url

    def topic(self, name: str = "q") -> Topic:
        topic = self.rig.catalog.find(ACCOUNT, "us-east-1", name)
        assert topic is not None
        return topic

    def messages(self, name: str = "q") -> dict[int, list[str]]:
        """Bodies by partition."""
        topic_id = self.topic(name).topic_id
        return {
            partition: [record.message.body.decode() for record in log]
            for (owner, partition), log in sorted(self.rig.backend.records.items())
            if owner == topic_id
        }


@pytest.fixture
def client() -> Client:
    return Client()


def test_every_operation_of_the_service_has_an_action() -> None:
    assert ACTIONS.keys() == OPERATIONS.keys()
    assert len(ACTIONS) == 23


@pytest.mark.parametrize(
    "action", [name for name, one in OPERATIONS.items() if issubclass(one.request, QueueRequest)]
)
async def test_every_action_on_a_queue_needs_its_url(client: Client, action: str) -> None:
    assert await client.code(action) == "MissingParameter"
    none = f"http://h/{ACCOUNT}/none"
    assert await client.code(action, QueueUrl=none) == "AWS.SimpleQueueService.NonExistentQueue"


# ── Send ─────────────────────────────────────────────────────────────────────────────────────
async def test_standard_sends_take_turns_and_a_batch_stays_together(client: Client) -> None:
    url = await client.queue(PenstockPartitions="2")
    for body in "abc":
        await client.call("SendMessage", QueueUrl=url, MessageBody=body)
    entries = [{"Id": body, "MessageBody": body} for body in "de"]
    await client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert client.messages() == {0: ["a", "c"], 1: ["b", "d", "e"]}


async def test_a_fifo_batch_is_split_by_group_and_answered_in_order(client: Client) -> None:
    url = await client.queue("q.fifo", **DIVIDED_FIFO)
    groups = ("123456789", "h")  # partitions 2 and another, see test_route.py
    entries = [
        {"Id": f"i{n}", "MessageBody": f"{group}{n}", "MessageGroupId": group}
        for n in range(3)
        for group in groups
    ]
    for n, entry in enumerate(entries):
        entry["Id"] = f"e{n}"
    reply = await client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == [f"e{n}" for n in range(6)]
    assert "Failed" not in reply
    by_partition = client.messages("q.fifo")
    assert sorted(by_partition.values()) == [
        ["1234567890", "1234567891", "1234567892"],
        ["h0", "h1", "h2"],
    ]
    assert by_partition[2] == ["1234567890", "1234567891", "1234567892"]
    numbers = [one["SequenceNumber"] for one in reply["Successful"][::2]]
    assert numbers == [f"{offset:017d}002" for offset in range(3)]


async def test_a_partition_that_fails_takes_only_its_entries_with_it(client: Client) -> None:
    url = await client.queue("q.fifo", **DIVIDED_FIFO)
    client.rig.backend.broken_partitions[2] = DiskFull("no room")
    entries = [
        {"Id": "bad", "MessageBody": "x", "MessageGroupId": "123456789"},
        {"Id": "good", "MessageBody": "y", "MessageGroupId": "h"},
    ]
    reply = await client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == ["good"]
    [failed] = reply["Failed"]
    assert failed["Id"] == "bad"
    assert failed["Code"] == "ServiceUnavailable"
    assert failed["SenderFault"] is False
    assert client.rig.meter.tallies["sent"] == 1


async def test_a_batch_none_of_which_worked_fails_as_a_call(client: Client) -> None:
    url = await client.queue()
    client.rig.backend.broken = Throttled("slower", retry_after_ms=1)
    entries = [{"Id": "a", "MessageBody": "x"}]
    code = await client.code("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert code == "RequestThrottled"


async def test_a_batch_of_only_bad_entries_is_answered_without_the_broker(client: Client) -> None:
    url = await client.queue()
    entries = [{"Id": "a", "MessageBody": ""}, {"Id": "b", "MessageBody": "x", "DelaySeconds": 901}]
    reply = await client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert "Successful" not in reply
    assert {one["Id"]: one["Code"] for one in reply["Failed"]} == {
        "a": "MissingParameter",
        "b": "InvalidParameterValue",
    }
    assert client.messages() == {}


@pytest.mark.parametrize(
    ("queue_delay", "delay", "stored"),
    [("0", None, None), ("0", 0, None), ("0", 7, 7_000), ("5", None, 5_000), ("5", 0, 0)],
)
async def test_the_delay_in_force_goes_with_the_message(
    client: Client, queue_delay: str, delay: int | None, stored: int | None
) -> None:
    url = await client.queue(DelaySeconds=queue_delay)
    await client.call("SendMessage", QueueUrl=url, MessageBody="x", DelaySeconds=delay)
    [record] = client.rig.backend.records[client.topic().topic_id, 0]
    assert record.message.delay_ms == stored


async def test_a_fifo_message_leaves_the_delay_to_the_queue(client: Client) -> None:
    url = await client.queue("q.fifo", DelaySeconds="5", ContentBasedDeduplication="true")
    await client.call(
        "SendMessage", QueueUrl=url, MessageBody="x", MessageGroupId="g", DelaySeconds=0
    )
    [record] = client.rig.backend.records[client.topic("q.fifo").topic_id, 0]
    assert record.message.delay_ms is None


async def test_content_based_deduplication_hashes_the_body_only(client: Client) -> None:
    url = await client.queue("q.fifo", ContentBasedDeduplication="true")
    attribute = {"n": {"DataType": "String", "StringValue": "v"}}
    for more in ({}, {"MessageAttributes": attribute}, {"MessageDeduplicationId": "mine"}):
        await client.call(
            "SendMessage", QueueUrl=url, MessageBody="abc", MessageGroupId="g", **more
        )
    records = client.rig.backend.records[client.topic("q.fifo").topic_id, 0]
    sha256_of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert [record.message.dedup_id for record in records] == [sha256_of_abc] * 2 + ["mine"]


# ── Receive, delete, visibility ──────────────────────────────────────────────────────────────
async def test_the_queues_settings_are_the_defaults_of_a_receive(client: Client) -> None:
    url = await client.queue(VisibilityTimeout="7", ReceiveMessageWaitTimeSeconds="3")
    await client.call("ReceiveMessage", QueueUrl=url)
    await client.call(
        "ReceiveMessage",
        QueueUrl=url,
        VisibilityTimeout=0,
        WaitTimeSeconds=0,
        MaxNumberOfMessages=10,
        ReceiveRequestAttemptId="only-fifo",
    )
    first, second = client.rig.backend.asked
    assert (first.count, first.lease_ms, first.wait_ms) == (1, 7_000, 3_000)
    assert (second.count, second.lease_ms, second.wait_ms) == (10, 0, 0)
    assert second.attempt_id is None


async def test_deletes_over_several_partitions_are_answered_in_order(client: Client) -> None:
    url = await client.queue(PenstockPartitions="3")
    for body in "abc":
        await client.call("SendMessage", QueueUrl=url, MessageBody=body)
    received = (await client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10))[
        "Messages"
    ]
    entries = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"]} for m in received]
    entries.insert(1, {"Id": "none", "ReceiptHandle": "garbage"})
    reply = await client.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == ["a", "b", "c"]
    assert [(one["Id"], one["Code"]) for one in reply["Failed"]] == [
        ("none", "ReceiptHandleIsInvalid")
    ]
    assert client.messages() == {0: [], 1: [], 2: []}
    assert client.rig.meter.tallies["deleted"] == 3


async def test_visibility_of_a_gone_message_names_its_receipt(client: Client) -> None:
    url = await client.queue()
    await client.call("SendMessage", QueueUrl=url, MessageBody="x")
    [message] = (await client.call("ReceiveMessage", QueueUrl=url))["Messages"]
    receipt = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
    await client.call("ChangeMessageVisibility", **receipt, VisibilityTimeout=5)
    await client.call("DeleteMessage", **receipt)
    code = await client.code("ChangeMessageVisibility", **receipt, VisibilityTimeout=5)
    assert code == "InvalidParameterValue"
    assert await client.code("ChangeMessageVisibility", **receipt) == "MissingParameter"


async def test_a_visibility_batch_tells_bad_receipts_from_bad_times(client: Client) -> None:
    url = await client.queue()
    for body in "ab":
        await client.call("SendMessage", QueueUrl=url, MessageBody=body)
    received = (await client.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=2))[
        "Messages"
    ]
    first, second = (message["ReceiptHandle"] for message in received)
    await client.call("DeleteMessage", QueueUrl=url, ReceiptHandle=second)
    entries = [
        {"Id": "good", "ReceiptHandle": first, "VisibilityTimeout": 5},
        {"Id": "gone", "ReceiptHandle": second, "VisibilityTimeout": 5},
        {"Id": "long", "ReceiptHandle": first, "VisibilityTimeout": 43_201},
        {"Id": "none", "ReceiptHandle": "garbage", "VisibilityTimeout": 5},
        {"Id": "void", "ReceiptHandle": first},
    ]
    reply = await client.call("ChangeMessageVisibilityBatch", QueueUrl=url, Entries=entries)
    assert [one["Id"] for one in reply["Successful"]] == ["good"]
    assert {one["Id"]: one["Code"] for one in reply["Failed"]} == {
        "gone": "InvalidParameterValue",
        "long": "InvalidParameterValue",
        "none": "ReceiptHandleIsInvalid",
        "void": "MissingParameter",
    }
    none = await client.call(
        "ChangeMessageVisibilityBatch", QueueUrl=url, Entries=[entries[2], entries[3]]
    )
    assert "Successful" not in none


async def test_only_attributes_asked_for_are_shown(client: Client) -> None:
    url = await client.queue()
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("a.x", "a.y", "b")}
    for _ in range(2):
        await client.call(
            "SendMessage", QueueUrl=url, MessageBody="x", MessageAttributes=attributes
        )
    names = {"MessageAttributeNames": ["a.*"], "MessageSystemAttributeNames": ["SentTimestamp"]}
    [message] = (await client.call("ReceiveMessage", QueueUrl=url, **names))["Messages"]
    assert set(message["MessageAttributes"]) == {"a.x", "a.y"}
    assert message["Attributes"] == {"SentTimestamp": "1700000000000"}
    [bare] = (await client.call("ReceiveMessage", QueueUrl=url))["Messages"]
    assert set(bare) == {"MessageId", "ReceiptHandle", "MD5OfBody", "Body"}


# ── Queues ───────────────────────────────────────────────────────────────────────────────────
async def test_a_new_queue_gets_an_id_a_key_and_the_default_partitions() -> None:
    client = Client(FrontendConfig(partitions_default=3))
    await client.queue("one")
    await client.queue("two", PenstockPartitions="5")
    one, two = client.topic("one"), client.topic("two")
    assert (one.partition_count, two.partition_count) == (3, 5)
    assert len(one.topic_id) == 32
    assert len(one.receipt_key) == 32
    assert one.topic_id != two.topic_id


@pytest.mark.parametrize(
    ("guard_ms", "later_ms", "is_free"),
    [
        (60_000, 59_999, False),
        (60_000, 60_000, True),
        (10_000, 9_999, False),
        (10_000, 10_000, True),
    ],
)
async def test_a_deleted_name_stays_taken_for_as_long_as_the_settings_say(
    guard_ms: int, later_ms: int, is_free: bool
) -> None:
    client = Client(FrontendConfig(recreate_guard_ms=guard_ms))
    await client.call("DeleteQueue", QueueUrl=await client.queue())
    client.rig.clock.now_ms += later_ms
    if is_free:
        await client.queue()
    else:
        code = await client.code("CreateQueue", QueueName="q")
        assert code == "AWS.SimpleQueueService.QueueDeletedRecently"


async def test_without_a_guard_a_name_is_free_at_once(client: Client) -> None:
    await client.call("DeleteQueue", QueueUrl=await client.queue())
    await client.queue()


async def test_a_purge_that_failed_may_be_tried_again(client: Client) -> None:
    url = await client.queue()
    client.rig.backend.broken = DiskFull("no room")
    assert await client.code("PurgeQueue", QueueUrl=url) == "ServiceUnavailable"
    client.rig.backend.broken = None
    await client.call("PurgeQueue", QueueUrl=url)
    code = "AWS.SimpleQueueService.PurgeQueueInProgress"
    assert await client.code("PurgeQueue", QueueUrl=url) == code
    client.rig.clock.now_ms += 60_000
    client.rig.backend.broken = PurgeInProgress("the broker says so")
    assert await client.code("PurgeQueue", QueueUrl=url) == code
    client.rig.backend.broken = None
    assert await client.code("PurgeQueue", QueueUrl=url) == code


async def test_counts_are_asked_for_only_when_shown(client: Client) -> None:
    url = await client.queue()
    await client.call("SendMessage", QueueUrl=url, MessageBody="x")
    names = ["ApproximateNumberOfMessages"]
    reply = await client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    assert reply == {"Attributes": {"ApproximateNumberOfMessages": "1"}}
    assert await client.call("GetQueueAttributes", QueueUrl=url) == {}


async def test_a_refused_setting_changes_nothing(client: Client) -> None:
    url = await client.queue()
    before = client.topic()
    given = {"VisibilityTimeout": "5", "DelaySeconds": "9999"}
    code = await client.code("SetQueueAttributes", QueueUrl=url, Attributes=given)
    assert code == "InvalidAttributeValue"
    assert client.topic() == before


async def test_only_a_standard_queue_can_be_its_own_dead_letter_target(client: Client) -> None:
    def own_target(name: str) -> dict[str, str]:
        policy = {"deadLetterTargetArn": client.topic(name).arn, "maxReceiveCount": 1}
        return {"RedrivePolicy": json.dumps(policy)}

    url = await client.queue("q")
    await client.call("SetQueueAttributes", QueueUrl=url, Attributes=own_target("q"))
    fifo = await client.queue("q.fifo")
    given = own_target("q.fifo")
    code = await client.code("SetQueueAttributes", QueueUrl=fifo, Attributes=given)
    assert code == "InvalidParameterValue"


async def test_creating_again_names_the_attribute_that_differs(client: Client) -> None:
    url = await client.queue(VisibilityTimeout="5")
    assert await client.queue() == url
    code = await client.code("CreateQueue", QueueName="q", Attributes={"VisibilityTimeout": "6"})
    assert code == "QueueAlreadyExists"
    assert await client.code("CreateQueue", QueueName="a b") == "InvalidParameterValue"
    assert await client.code("CreateQueue") == "MissingParameter"


async def test_a_queue_made_at_the_same_time_by_someone_else_is_as_good(client: Client) -> None:
    url = await client.queue()
    find, answers = client.rig.catalog.find, iter([None])
    client.rig.catalog.find = lambda *key: next(answers, find(*key))  # type: ignore[method-assign]
    assert await client.queue() == url


async def test_the_dead_letter_target_has_a_say(client: Client) -> None:
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [arn("friend")]}
    await client.queue("dead", RedriveAllowPolicy=json.dumps(allow))
    await client.queue("dead.fifo")
    policies = {
        name: json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": 1})
        for name in ("dead", "dead.fifo", "none")
    }
    await client.queue("friend", RedrivePolicy=policies["dead"])
    for policy in policies.values():
        code = await client.code(
            "CreateQueue", QueueName="stranger", Attributes={"RedrivePolicy": policy}
        )
        assert code == "InvalidParameterValue"
    url = await client.queue("later")
    await client.call("SetQueueAttributes", QueueUrl=url, Attributes={"RedrivePolicy": ""})
    reply = await client.call("ListDeadLetterSourceQueues", QueueUrl=f"http://h/{ACCOUNT}/dead")
    assert reply["queueUrls"] == [f"http://queues.test:9324/{ACCOUNT}/friend"]


async def test_permissions_are_statements_that_come_and_go(client: Client) -> None:
    url = await client.queue()
    grant = {
        "QueueUrl": url,
        "Label": "share",
        "AWSAccountIds": ["111111111111"],
        "Actions": ["SendMessage"],
    }
    await client.call("AddPermission", **grant)
    policy = json.loads(client.topic().settings.policy or "")
    assert policy["Id"] == f"{arn('q')}/SQSDefaultPolicy"
    assert policy["Statement"][0]["Sid"] == "share"
    assert await client.code("AddPermission", **grant) == "InvalidParameterValue"
    for lacking in ("Label", "AWSAccountIds", "Actions"):
        assert await client.code("AddPermission", **{**grant, lacking: None}) == "MissingParameter"
    await client.call("RemovePermission", QueueUrl=url, Label="share")
    assert client.topic().settings.policy is None
    assert await client.code("RemovePermission", QueueUrl=url) == "MissingParameter"


async def test_tags_come_and_go(client: Client) -> None:
    url = await client.queue()
    await client.call("TagQueue", QueueUrl=url, Tags={"a": "1", "b": ""})
    await client.call("UntagQueue", QueueUrl=url, TagKeys=["a", "never"])
    assert await client.call("ListQueueTags", QueueUrl=url) == {"Tags": {"b": ""}}
    await client.call("UntagQueue", QueueUrl=url, TagKeys=["b"])
    assert await client.call("ListQueueTags", QueueUrl=url) == {}


async def test_tag_rejections_are_worded_as_by_sqs(client: Client) -> None:
    url = await client.queue()
    rejections = [
        (
            "TagQueue",
            {"QueueUrl": url, "Tags": {"a": None}},
            "the parameter 'value' may not be null",
        ),
        (
            "CreateQueue",
            {"QueueName": "new", "tags": {"a": None}},
            "the parameter 'value' may not be null",
        ),
    ]
    rejections += [
        (
            "UntagQueue",
            {"QueueUrl": url, "TagKeys": keys},
            "Tag keys must be between 1 and 128 characters in length.",
        )
        for keys in ([], [""], ["a", ""], ["x" * 129])
    ]
    for action, fields, message in rejections:
        status, reply, code = await client._ask(action, fields)
        assert (status, code, reply["message"]) == (400, "InvalidParameterValue", message)
    assert await client.code("UntagQueue", QueueUrl=url) == "MissingParameter"
    assert await client.call("ListQueueTags", QueueUrl=url) == {}
    assert await client.call("ListQueues") == {"QueueUrls": [url]}


@pytest.mark.parametrize(
    ("keys", "code"), [("", "MissingParameter"), ("&TagKey.1=", "InvalidParameterValue")]
)
async def test_tag_keys_of_the_query_protocol(client: Client, keys: str, code: str) -> None:
    url = await client.queue()
    reply = await client.rig.ask(
        body=f"Action=UntagQueue&QueueUrl={url}{keys}".encode(),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert reply.status == 400
    assert f"<Code>{code}</Code>".encode() in reply.body


@pytest.mark.parametrize("resource", ["$queue", "/123456789012/queue", "any text", "*queue"])
async def test_a_queues_policy_may_name_any_text_as_its_resource(
    client: Client, resource: str
) -> None:
    url = await client.queue()
    condition = {"ArnLike": {"aws:SourceArn": resource}, "ArnEquals": {"aws:PrincipalArn": "x"}}
    policy = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "sqs:SendMessage",
                "Resource": resource,
                "Condition": condition,
            },
        }
    )
    await client.call("SetQueueAttributes", QueueUrl=url, Attributes={"Policy": policy})
    found = await client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["Policy"])
    assert found["Attributes"]["Policy"] == policy


async def test_attribute_names_may_have_letters_of_any_script(client: Client) -> None:
    url = await client.queue()

    def send(name: str) -> dict[str, Any]:
        value = {"DataType": "String", "StringValue": "v"}
        return {"QueueUrl": url, "MessageBody": "b", "MessageAttributes": {name: value}}

    await client.call("SendMessage", **send("attr.1øßä"))
    assert await client.code("SendMessage", **send("§")) == "InvalidParameterValue"


async def test_a_deduplication_id_on_a_standard_queue_fails_its_own_entry_only(
    client: Client,
) -> None:
    url = await client.queue()
    status, reply, code = await client._ask(
        "SendMessage", {"QueueUrl": url, "MessageBody": "b", "MessageDeduplicationId": "d"}
    )
    assert (status, code) == (400, "InvalidParameterValue")
    assert reply["message"] == (
        "Value d for parameter MessageDeduplicationId is invalid. Reason: The request include "
        "parameter that is not valid for this queue type."
    )
    entries = [
        {"Id": "bad", "MessageBody": "b", "MessageDeduplicationId": "d"},
        {"Id": "good", "MessageBody": "c"},
    ]
    found = await client.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert [entry["Id"] for entry in found["Successful"]] == ["good"]
    assert [(entry["Id"], entry["SenderFault"]) for entry in found["Failed"]] == [("bad", True)]
    assert client.messages() == {0: ["c"]}


async def test_the_host_of_a_queue_url_is_ignored(client: Client) -> None:
    await client.queue()
    url = f"https://other.example.com:1234/{ACCOUNT}/q"
    found = await client.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["QueueArn"])
    assert found["Attributes"]["QueueArn"] == arn("q")


@pytest.mark.parametrize(
    "tags",
    [{"": "v"}, {"k" * 129: "v"}, {"k": "v" * 257}, {f"k{n}": "v" for n in range(51)}],
)
async def test_tags_out_of_bounds_are_refused(client: Client, tags: dict[str, str]) -> None:
    url = await client.queue()
    assert await client.code("TagQueue", QueueUrl=url, Tags=tags) == "InvalidParameterValue"
    code = await client.code("CreateQueue", QueueName="other", tags=tags)
    assert code == "InvalidParameterValue"


# ── Move tasks ───────────────────────────────────────────────────────────────────────────────
async def dead_letter_arn(client: Client) -> str:
    await client.queue("dead")
    arn = client.topic("dead").arn
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    await client.queue("source", RedrivePolicy=policy)
    return arn


async def test_a_task_is_started_listed_and_cancelled(client: Client) -> None:
    arn = await dead_letter_arn(client)
    handle = (await client.call("StartMessageMoveTask", SourceArn=arn))["TaskHandle"]
    assert json.loads(base64.b64decode(handle))["sourceArn"] == arn
    code = await client.code("StartMessageMoveTask", SourceArn=arn)
    assert code == "InvalidParameterValue", "one active task per source"
    [listed] = (await client.call("ListMessageMoveTasks", SourceArn=arn))["Results"]
    assert listed["TaskHandle"] == handle
    assert listed["Status"] == "RUNNING"
    assert "DestinationArn" not in listed
    reply = await client.call("CancelMessageMoveTask", TaskHandle=handle)
    assert reply == {"ApproximateNumberOfMessagesMoved": 0}


async def test_an_ended_task_shows_no_handle_and_cannot_be_cancelled(client: Client) -> None:
    arn = await dead_letter_arn(client)
    handle = (await client.call("StartMessageMoveTask", SourceArn=arn))["TaskHandle"]
    backend = client.rig.backend
    ended: MoveTask = msgspec.structs.replace(
        backend.tasks[0], status="FAILED", failure_reason="why"
    )
    backend.tasks[0] = ended
    [listed] = (await client.call("ListMessageMoveTasks", SourceArn=arn))["Results"]
    assert "TaskHandle" not in listed
    assert (listed["Status"], listed["FailureReason"]) == ("FAILED", "why")
    code = await client.code("CancelMessageMoveTask", TaskHandle=handle)
    assert code == "ResourceNotFoundException"


@pytest.mark.parametrize(
    "handle",
    ["!", "e30=", base64.b64encode(b'{"taskId":1,"sourceArn":2}').decode(), "W10=", "A" * 5_000],
)
async def test_a_handle_we_did_not_make_is_refused(client: Client, handle: str) -> None:
    code = await client.code("CancelMessageMoveTask", TaskHandle=handle)
    assert code == "InvalidParameterValue"


async def test_the_destination_must_be_another_queue_of_the_same_kind(client: Client) -> None:
    arn = await dead_letter_arn(client)
    await client.queue("other.fifo")
    for destination, code in [
        (client.topic("other.fifo").arn, "InvalidParameterValue"),
        (arn, "InvalidParameterValue"),
        (arn + "-not", "ResourceNotFoundException"),
    ]:
        assert code == await client.code(
            "StartMessageMoveTask", SourceArn=arn, DestinationArn=destination
        )
