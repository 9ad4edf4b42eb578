"""For the authorization matrix: who calls, what the victim has, and requests made from the schemas
of the protocols, with every field that can name something filled with what the victim has."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import re
import typing
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from botocore.credentials import Credentials
from tests.attacks.frames import Wire, request_class
from tests.attacks.kit import REGION, Operator, exchange, policy, send, signed, sns_form
from tests.harness.server import Server
from tests.unit.broker.partition.test_stream import batch

from penstock.wire.aws.shapes import OPERATIONS
from penstock.wire.aws.sns.protocol import OPERATIONS as SNS_OPERATIONS
from penstock.wire.kafka.fetch import FetchPartition, FetchTopic
from penstock.wire.kafka.produce import ProducePartition, ProduceTopic

CANARY = "canary-5e1f0a"  # in everything that the victim keeps for itself
NODE_ACCOUNT = "000000000000"
SNS_REQUEST_ID = re.compile("<RequestId>[^<]*</RequestId>")


@dataclasses.dataclass(frozen=True)
class Holdings:
    """All that a request can name. The topic of the Kafka requests is the queue."""

    account: str
    queue: str
    queue_url: str
    dead_url: str
    receipt: str
    task: str
    topic_id: bytes
    stream: str
    group: str
    transaction: str
    producer_id: int
    producer_epoch: int
    user: str
    key_id: str
    tenant: str  # for requests about a tenant: never the node's own
    subscription: str  # id, of a subscription of the queue to the SNS topic
    webhook: str  # id, of a webhook on the queue
    device: str  # id, of a device of the app

    @property
    def arn(self) -> str:
        return f"arn:aws:sqs:{REGION}:{self.account}:{self.queue}"

    @property
    def sns_arn(self) -> str:
        """Of the SNS topic, which is called as the queue."""
        return f"arn:aws:sns:{REGION}:{self.account}:{self.queue}"

    @property
    def subscription_arn(self) -> str:
        return f"{self.sns_arn}:{self.subscription}"

    @property
    def app_arn(self) -> str:
        return f"arn:aws:sns:{REGION}:{self.account}:app/GCM/{self.queue}"

    @property
    def device_arn(self) -> str:
        return f"arn:aws:sns:{REGION}:{self.account}:endpoint/GCM/{self.queue}/{self.device}"

    @property
    def dead_arn(self) -> str:
        return f"{self.arn}-dead"

    def missing(self) -> Holdings:
        """The same, of which nothing exists: names of the same length, ids of the same form."""
        gone = self.queue[::-1]
        task = json.loads(base64.b64decode(self.task))
        at = next(name for name in task if "id" in name.lower())
        task = {
            name: value.replace(self.queue, gone) if name != at else value[::-1]
            for name, value in task.items()
        }
        return dataclasses.replace(
            self,
            queue=gone,
            queue_url=self.queue_url.replace(self.queue, gone),
            dead_url=self.dead_url.replace(self.queue, gone),
            task=base64.b64encode(json.dumps(task, separators=(",", ":")).encode()).decode(),
            topic_id=self.topic_id[::-1],
            stream=self.stream[::-1],
            group=self.group[::-1],
            transaction=self.transaction[::-1],
            user=self.user[::-1],
            key_id=self.key_id[::-1],
            tenant=self.tenant[::-1],
            subscription=_other_id(self.subscription),
            webhook=_other_id(self.webhook),
            device=_other_id(self.device),
        )

    def hide(self, text: str) -> str:
        """The text without these names, to be compared with one about other holdings."""
        names = (self.task, self.group, self.transaction, self.stream, self.queue, self.user)
        ids = (self.subscription, self.webhook, self.device, self.topic_id.hex())
        for name in (*names, self.key_id, *ids, self.tenant):
            text = text.replace(name, "*")
        return text


def _other_id(text: str) -> str:
    return str(uuid.UUID(bytes=uuid.UUID(text).bytes[::-1]))


class Someone:
    """A caller of all four protocols. Without credentials: nobody."""

    def __init__(self, server: Server, name: str, credentials: Credentials | None) -> None:
        self.name = name
        self.server = server
        self.credentials = credentials
        self._wire: Wire | None = None
        self._operator = None if credentials is None else Operator(server, credentials)

    def sqs(self, action: str, arguments: Mapping[str, Any]) -> tuple[int, str]:
        body = json.dumps(arguments).encode()
        if self.credentials is None:
            lines = [
                ("Host", self.server.url.removeprefix("http://")),
                ("X-Amz-Target", f"AmazonSQS.{action}"),
                ("Content-Type", "application/x-amz-json-1.0"),
            ]
        else:
            lines = signed(self.server, action, body, credentials=self.credentials)
        status, reply = exchange(self.server, lines, body)
        return status, reply.decode()

    def sns(self, action: str, arguments: Mapping[str, Any]) -> tuple[int, str]:
        body = sns_form(action, arguments)
        if self.credentials is None:
            host = self.server.url.removeprefix("http://")
            lines = [("Host", host), ("Content-Type", "application/x-www-form-urlencoded")]
        else:
            lines = signed(self.server, "", body, credentials=self.credentials, service="sns")
        status, reply = exchange(self.server, lines, body)
        return status, reply.decode()

    def ask_sns(self, action: str, **arguments: Any) -> str:
        """An SNS action that must succeed, without the id of the request."""
        status, reply = self.sns(action, arguments)
        assert status == 200, f"{self.name}: {action}: {status} {reply}"
        return SNS_REQUEST_ID.sub("", reply)

    def ask(self, action: str, **arguments: Any) -> Any:
        """An SQS action that must succeed."""
        status, reply = self.sqs(action, arguments)
        assert status == 200, f"{self.name}: {action}: {status} {reply}"
        return json.loads(reply or "{}")

    def kafka(self, name: str, version: int, request: Any) -> Any:
        """None: the server closed the connection."""
        if self._wire is None:
            self._wire = Wire(self.server)
            if self.credentials is not None:
                self._wire.log_in(self.credentials.access_key, self.credentials.secret_key)
        reply = self._wire.ask_for(name, version, request)
        if reply is None:
            self.close()
        return reply

    def admin(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        """With the whole path. The token is that of the caller's key."""
        headers = {"content-type": "application/json"}
        if self._operator is not None:
            headers["authorization"] = f"Bearer {self._operator.token}"
        host = self.server.admin_url.removeprefix("http://")
        text = None if body is None else json.dumps(body)
        status, reply, _ = send(host, method, path, text, headers)
        return status, reply.decode(errors="replace")

    def close(self) -> None:
        if self._wire is not None:
            self._wire.socket.close()
            self._wire = None


# ── What there is ────────────────────────────────────────────────────────────────────────────


def holdings(owner: Someone, operator: Operator, name: str, *, denied: str = "") -> Holdings:
    """A queue in use, which is a topic as well: a message waiting and one leased, dead letters and
    a task that moves them, tags, a policy, a group with an offset, a transaction, a user, a
    webhook; an SNS topic, to which the queue is subscribed; an app with a device."""
    account = NODE_ACCOUNT
    arn = f"arn:aws:sqs:{REGION}:{account}:{name}"
    keeps_out = policy(
        {
            "Sid": "in",
            "Effect": "Deny",
            "Principal": {"AWS": f"arn:aws:iam::{account}:user/{denied or CANARY}"},
            "Action": "*",
            "Resource": "*",
        }
    )

    def create(suffix: str, **attributes: str) -> str:
        return str(
            owner.ask(
                "CreateQueue",
                QueueName=f"{name}{suffix}",
                Attributes={"Policy": keeps_out, **attributes},
                tags={"owner": CANARY},
            )["QueueUrl"]
        )

    def redrive(suffix: str) -> str:
        return json.dumps({"deadLetterTargetArn": f"{arn}{suffix}", "maxReceiveCount": 9})

    dead, moved = create("-dead"), create("-moved")
    queue = create("", RedrivePolicy=redrive("-dead"))
    create("-sink", RedrivePolicy=redrive("-moved"))
    for _ in range(2):
        owner.ask("SendMessage", QueueUrl=queue, MessageBody=CANARY)
    (leased,) = owner.ask("ReceiveMessage", QueueUrl=queue, VisibilityTimeout=900)["Messages"]
    entries = [{"Id": f"{number}", "MessageBody": CANARY} for number in range(10)]
    owner.ask("SendMessageBatch", QueueUrl=dead, Entries=entries)
    for _ in range(3):
        owner.ask("SendMessageBatch", QueueUrl=moved, Entries=entries)
    task = owner.ask(
        "StartMessageMoveTask",
        SourceArn=f"{arn}-moved",
        DestinationArn=f"{arn}-sink",
        MaxNumberOfMessagesPerSecond=1,
    )["TaskHandle"]
    metadata = owner.kafka("Metadata", 12, kafka_named("Metadata", topics=[{"name": name}]))
    made = {
        "account": account,
        "queue": name,
        "queue_url": queue,
        "dead_url": dead,
        "receipt": leased["ReceiptHandle"],
        "task": task,
        "topic_id": metadata.topics[0].topic_id,
        "stream": f"{name}-stream",
        "group": f"{name}-group",
        "transaction": f"{name}-txn",
    }
    stream = {"name": made["stream"], "num_partitions": 1, "replication_factor": 1}
    owner.kafka("CreateTopics", 7, kafka_named("CreateTopics", topics=[stream], timeout_ms=1_000))
    begun = owner.kafka(
        "InitProducerId",
        4,
        kafka_named(
            "InitProducerId", transactional_id=made["transaction"], transaction_timeout_ms=60_000
        ),
    )
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": CANARY}
    topics = [{"name": name, "partitions": [partition]}]
    commit = kafka_named("OffsetCommit", group_id=made["group"], topics=topics)
    owner.kafka("OffsetCommit", 8, commit)
    user, credentials = operator.user(
        {"Sid": "c", "Effect": "Deny", "Action": "*", "Resource": "*"}
    )
    webhook = {"source": name, "endpoint": f"http://127.0.0.1:1024/{CANARY}", "paused": True}
    secret = {"auth": {"type": "bearer", "token": CANARY}}
    status, reply = owner.admin("POST", "/api/v1/subscriptions", {**webhook, "settings": secret})
    assert status == 201, reply
    return Holdings(
        **made,
        **_sns_holdings(owner, name, arn, keeps_out),
        webhook=json.loads(reply)["id"],
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
        user=user,
        key_id=str(credentials.access_key),
        tenant=operator.tenant(),
    )


def _sns_holdings(owner: Someone, name: str, queue_arn: str, policy_text: str) -> dict[str, Any]:
    tags = [{"Key": "owner", "Value": CANARY}]
    attributes = {"DisplayName": CANARY, "Policy": policy_text}
    owner.ask_sns("CreateTopic", Name=name, Attributes=attributes, Tags=tags)
    sns = queue_arn.replace(":sqs:", ":sns:")
    attributes = {"FilterPolicy": json.dumps({"kind": [CANARY]})}
    subscribed = owner.ask_sns(
        "Subscribe", TopicArn=sns, Protocol="sqs", Endpoint=queue_arn, Attributes=attributes
    )
    credential = {"PlatformCredential": CANARY}
    owner.ask_sns("CreatePlatformApplication", Name=name, Platform="GCM", Attributes=credential)
    app = sns.replace(f":{name}", f":app/GCM/{name}")
    device = owner.ask_sns(
        "CreatePlatformEndpoint", PlatformApplicationArn=app, Token=CANARY, CustomUserData=CANARY
    )
    return {"subscription": _uuid_in(subscribed), "device": _uuid_in(device)}


def _uuid_in(reply: str) -> str:
    found = re.search(r"[:/]([0-9a-f-]{36})<", reply)
    assert found is not None, reply
    return found[1]


def state_of(root: Someone, has: Holdings) -> dict[str, Any]:
    """All that a caller could have changed."""
    shown = root.ask("GetQueueAttributes", QueueUrl=has.queue_url, AttributeNames=["All"])
    tasks = root.ask("ListMessageMoveTasks", SourceArn=f"{has.arn}-moved")["Results"]
    dead = root.ask("GetQueueAttributes", QueueUrl=has.dead_url, AttributeNames=["All"])
    offsets = root.kafka(
        "OffsetFetch", 7, kafka_named("OffsetFetch", group_id=has.group, topics=None)
    )
    of_topic = [{"resource_type": 2, "resource_name": has.queue}]
    configs = root.kafka("DescribeConfigs", 4, kafka_named("DescribeConfigs", resources=of_topic))
    partition = [{"partition_index": 0, "timestamp": -1}]
    ends = kafka_named("ListOffsets", topics=[{"name": has.queue, "partitions": partition}])
    acls = kafka_named(
        "DescribeAcls",
        resource_type_filter=1,
        pattern_type_filter=1,
        operation=1,
        permission_type=1,
    )
    transactions = kafka_named("DescribeTransactions", transactional_ids=[has.transaction])
    sns_topic = [{"name": f"sns.{has.queue}", "partitions": partition}]
    published = root.kafka("ListOffsets", 7, kafka_named("ListOffsets", topics=sns_topic))
    subscription = {"SubscriptionArn": has.subscription_arn}
    status, reply = root.admin("GET", f"/api/v1/subscriptions/{has.webhook}")
    assert status == 200, reply
    webhook = json.loads(reply)
    return {
        "topic": root.ask_sns("GetTopicAttributes", TopicArn=has.sns_arn),
        "topic tags": root.ask_sns("ListTagsForResource", ResourceArn=has.sns_arn),
        "protection": root.ask_sns("GetDataProtectionPolicy", ResourceArn=has.sns_arn),
        "published": msgspec.to_builtins(published),
        "subscription": root.ask_sns("GetSubscriptionAttributes", **subscription),
        "webhook": {name: webhook[name] for name in ("endpoint", "paused", "replays", "settings")},
        "app": root.ask_sns("GetPlatformApplicationAttributes", PlatformApplicationArn=has.app_arn),
        "device": root.ask_sns("GetEndpointAttributes", EndpointArn=has.device_arn),
        "attributes": shown["Attributes"],
        "tags": root.ask("ListQueueTags", QueueUrl=has.queue_url)["Tags"],
        "dead": dead["Attributes"],
        "tasks": [each["Status"].startswith("CANCEL") for each in tasks],
        "offsets": msgspec.to_builtins(offsets),
        "configs": msgspec.to_builtins(configs),
        "end": msgspec.to_builtins(root.kafka("ListOffsets", 7, ends)),
        "rules": msgspec.to_builtins(root.kafka("DescribeAcls", 3, acls)),
        "transaction": msgspec.to_builtins(root.kafka("DescribeTransactions", 0, transactions)),
        "user": root.admin("GET", f"/api/v1/users/{has.user}"),
        "tenant": root.admin("GET", f"/api/v1/tenants/{has.tenant}"),
        "quotas": root.admin("GET", f"/api/v1/quotas/{has.tenant}"),
    }


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────

_SQS: Mapping[str, Callable[[Holdings, random.Random], Any]] = {
    "QueueUrl": lambda has, _: has.queue_url,
    "QueueName": lambda has, _: has.queue,
    "QueueOwnerAWSAccountId": lambda has, _: has.account,
    "SourceArn": lambda has, _: has.dead_arn,
    "TaskHandle": lambda has, _: has.task,
    "ReceiptHandle": lambda has, _: has.receipt,
    "Id": lambda _, rng: f"{rng.randrange(100)}",
    "MessageBody": lambda _, rng: f"planted {rng.randrange(100)}",
    "Attributes": lambda _, rng: {"VisibilityTimeout": f"{rng.randrange(30)}"},
    "Tags": lambda _, __: {"owner": "changed"},
    "tags": lambda _, __: {"owner": "changed"},
    "TagKeys": lambda _, __: ["owner"],
    "Label": lambda _, __: "in",
    "AWSAccountIds": lambda has, _: [has.account],
    "Actions": lambda _, rng: [rng.choice(["*", "SendMessage", "ReceiveMessage"])],
    "VisibilityTimeout": lambda _, rng: rng.randrange(30),
}
# What may be left out, and is in every other request.
_SQS_OPTIONAL: Mapping[str, Callable[[random.Random], Any]] = {
    "AttributeNames": lambda _: ["All"],
    "MessageSystemAttributeNames": lambda _: ["All"],
    "MessageAttributeNames": lambda _: ["All"],
    "MaxNumberOfMessages": lambda rng: rng.randint(1, 10),
    "MaxNumberOfMessagesPerSecond": lambda rng: rng.randint(1, 500),
    "DelaySeconds": lambda rng: rng.randint(0, 900),
    "MessageAttributes": lambda _: {"a": {"DataType": "String", "StringValue": "planted"}},
}
# Left out: they are for other kinds of queues, or need something that came before.
_SQS_UNUSED = {
    "DestinationArn",
    "MaxResults",
    "MessageDeduplicationId",
    "MessageGroupId",
    "MessageSystemAttributes",
    "NextToken",
    "QueueNamePrefix",
    "ReceiveRequestAttemptId",
    "WaitTimeSeconds",
}


def sqs_request(action: str, has: Holdings, rng: random.Random, **given: Any) -> dict[str, Any]:
    """Whatever the shape of the request can carry. A field that nobody knows fails the test."""
    return {**_sqs_fields(OPERATIONS[action].request, has, rng), **given}


def _sqs_fields(shape: type[Any], has: Holdings, rng: random.Random) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in _SQS:
            made[name] = _SQS[name](has, rng)
        elif name == "Entries":
            made[name] = [_sqs_fields(_struct_in(field.type), has, rng)]
        elif name in _SQS_OPTIONAL:
            if rng.random() < 0.5:
                made[name] = _SQS_OPTIONAL[name](rng)
        else:
            assert name in _SQS_UNUSED, f"say what to put into {name} of {shape.__name__}"
    return made


# ── SNS ──────────────────────────────────────────────────────────────────────────────────────

_SNS: Mapping[str, Callable[[Holdings], Any]] = {
    "TopicArn": lambda has: has.sns_arn,
    "ResourceArn": lambda has: has.sns_arn,
    "SubscriptionArn": lambda has: has.subscription_arn,
    "PlatformApplicationArn": lambda has: has.app_arn,
    "EndpointArn": lambda has: has.device_arn,
    "Name": lambda has: has.queue,
    "Tags": lambda _: [{"Key": "owner", "Value": "changed"}],
    "TagKeys": lambda _: ["owner"],
    "Label": lambda _: "in",
    "AWSAccountId": lambda has: [has.account],
    "ActionName": lambda _: ["Publish"],
    "AttributeName": lambda _: "DisplayName",
    "AttributeValue": lambda _: "changed",
    "DataProtectionPolicy": lambda _: '{"Name": "changed"}',
    "Protocol": lambda _: "sqs",
    "Endpoint": lambda has: has.dead_arn,
    "Token": lambda _: "0" * 288,
    "Message": lambda _: "planted",
    "Subject": lambda _: "planted",
    "Id": lambda _: "1",
    "Platform": lambda _: "GCM",
    "PhoneNumber": lambda _: "+15555550100",
    "phoneNumber": lambda _: "+15555550100",
    "OneTimePassword": lambda _: "000000",
    "CustomUserData": lambda _: "planted",
}
# Left out: they are for other kinds of topics, may be absent, or need something that came before.
_SNS_UNUSED = {
    "Attributes",
    "AuthenticateOnUnsubscribe",
    "LanguageCode",
    "MaxResults",
    "MessageAttributes",
    "MessageDeduplicationId",
    "MessageGroupId",
    "MessageStructure",
    "NextToken",
    "ReturnSubscriptionArn",
    "TargetArn",
    "attributes",
    "nextToken",
}


def sns_request(action: str, has: Holdings, given: Mapping[str, Any]) -> dict[str, Any]:
    return {**_sns_fields(SNS_OPERATIONS[action].request, has), **given}


def _sns_fields(shape: type[Any], has: Holdings) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for field in msgspec.structs.fields(shape):
        name = field.encode_name
        if name in _SNS:
            made[name] = _SNS[name](has)
        elif name == "PublishBatchRequestEntries":
            made[name] = [_sns_fields(_struct_in(field.type), has)]
        else:
            assert name in _SNS_UNUSED, f"say what to put into {name} of {shape.__name__}"
    return made


def _struct_in(kind: Any) -> type[Any]:
    """The struct that a field holds, or a sequence of them."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    inside, *_ = (each for each in typing.get_args(kind) if each is not type(None))
    return _struct_in(inside)


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────

# By the name of the field. ``name`` is a topic's wherever the struct is one of topics.
_KAFKA: Mapping[str, Callable[[Holdings], Any]] = {
    "topic": lambda has: has.queue,
    "topic_name": lambda has: has.queue,
    "topic_names": lambda has: [has.queue],
    "topic_id": lambda has: has.topic_id,
    "subscribed_topic_names": lambda has: [has.queue],
    "group_id": lambda has: has.group,
    "group_ids": lambda has: [has.group],
    "groups_names": lambda has: [has.group],
    "key": lambda has: has.group,
    "coordinator_keys": lambda has: [has.group],
    "transactional_id": lambda has: has.transaction,
    "transactional_ids": lambda has: [has.transaction],
    "v3_and_below_transactional_id": lambda has: has.transaction,
    "producer_id": lambda has: has.producer_id,
    "v3_and_below_producer_id": lambda has: has.producer_id,
    "producer_epoch": lambda has: has.producer_epoch,
    "v3_and_below_producer_epoch": lambda has: has.producer_epoch,
    "partition_indexes": lambda _: [0],
    "resource_type": lambda _: 2,
    "resource_type_filter": lambda _: 2,
    "resource_name": lambda has: has.queue,
    "resource_name_filter": lambda has: has.queue,
    "resource_pattern_type": lambda _: 3,
    "pattern_type_filter": lambda _: 3,
    "principal": lambda has: f"User:{has.user}",
    "host": lambda _: "*",
    "operation": lambda _: 3,
    "permission_type": lambda _: 3,
    "timeout_ms": lambda _: 1_000,
    "session_timeout_ms": lambda _: 10_000,
    "rebalance_timeout_ms": lambda _: 10_000,
    "transaction_timeout_ms": lambda _: 60_000,
    "committed_metadata": lambda _: "planted",
}
_TOPIC_STRUCT = re.compile("Topic(?!Config)")
_RANGE = re.compile(r"(\d+)(\+|-(\d+))?")


def kafka_request(
    name: str, version: int, has: Holdings, rng: random.Random, given: Mapping[str, Any]
) -> Any:
    """The request of a version, as its schema has it. ``given``: values by field, at any depth;
    callables are asked with the holdings."""
    if name == "Produce":
        partitions = [ProducePartition(0, batch("planted"))]
        topics: Any = [ProduceTopic(has.queue, has.topic_id, partitions)]
        return request_class(name)(None, rng.choice((1, -1)), 1_000, topics)
    if name == "Fetch":
        topics = [FetchTopic(has.queue, has.topic_id, [FetchPartition(0, 0, 1_000)])]
        return request_class(name)(0, rng.randrange(2), topics)
    return _kafka_struct(request_class(name), version, has, rng, given)


def _kafka_struct(
    struct: type[Any], version: int, has: Holdings, rng: random.Random, given: Mapping[str, Any]
) -> Any:
    made: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        kind = typing.get_args(hint)[0]
        wire, versions = hint.__metadata__[:2]
        if not _carries(versions, version):
            continue
        if name in given:
            value = given[name]
            made[name] = value(has) if callable(value) else value
        elif name in _KAFKA:
            made[name] = _KAFKA[name](has)
        elif name == "name" and _TOPIC_STRUCT.search(struct.__name__):
            made[name] = has.queue
        elif wire.startswith("[]") and wire[2].isupper():
            made[name] = [_kafka_struct(_struct_in(kind), version, has, rng, given)]
        elif wire == "[]int32" and name == "partitions":
            made[name] = [0]
        elif wire == "[]string" and name == "groups":
            made[name] = [has.group]
        elif kind is bool:
            made[name] = rng.random() < 0.5
    return struct(**made)


def _carries(versions: str, version: int) -> bool:
    found = _RANGE.fullmatch(versions)
    assert found is not None, versions
    first, rest, last = found.groups()
    if rest == "+":
        return version >= int(first)
    return int(first) <= version <= int(last or first)


def kafka_named(name: str, **given: Any) -> Any:
    """A request with just these fields; structs as dicts."""

    def made(struct: type[Any], fields: Mapping[str, Any]) -> Any:
        kinds = typing.get_type_hints(struct)
        return struct(
            **{
                field: [made(_struct_in(kinds[field]), each) for each in value]
                if isinstance(value, list) and value and isinstance(value[0], dict)
                else value
                for field, value in fields.items()
            }
        )

    return made(request_class(name), given)


def codes_in(reply: Any) -> set[int]:
    """Every error code of a reply, at any depth."""
    if isinstance(reply, Mapping):
        own = {code for name, code in reply.items() if name.endswith("error_code")}
        return own.union(*(codes_in(each) for each in reply.values()), set())
    if isinstance(reply, Sequence) and not isinstance(reply, str | bytes):
        return set().union(*(codes_in(each) for each in reply))
    return set()


def plain(reply: Any) -> Any:
    """A decoded reply as maps and lists, ids in hex."""
    return msgspec.to_builtins(reply, builtin_types=(bytes,))


def text_of(reply: Any) -> str:
    """The same as text."""
    return json.dumps(plain(reply), default=_hex, sort_keys=True)


def _hex(value: Any) -> Any:
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else str(value)
