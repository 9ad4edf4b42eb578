"""Requests of every Kafka API and every SQS action at a chosen size, for ``test_stalls.py``.

Kafka requests are filled by their schema: ``frame(name, shape, n)`` gives a request with ``n``
elements in one array of the schema in total, and one element in every other array. So nested arrays
are tried both ways: one topic with ``n`` partitions, and ``n`` topics with one partition each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from tests.attacks.frames import KEYS

from penstock.wire.kafka.apis import APIS, encode_request_frame
from penstock.wire.kafka.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.kafka.fields import Versions
from penstock.wire.kafka.primitives import ZERO_UUID, Message
from penstock.wire.kafka.produce import ProducePartition, ProduceRequest, ProduceTopic

PARTITIONS_MAX = 10_000
ENTRIES_MAX = 1_000
USERS_MAX = 100

Values = Mapping[str, object]  # by path: the value, or a function of the element's number


# ── Kafka ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shape:
    """An array of a request: where it stands, and the last version that carries it."""

    path: str
    version: int


@dataclass(frozen=True)
class KafkaRow:
    bound: int = PARTITIONS_MAX
    bounds: Mapping[str, int] = field(default_factory=dict)  # by path, where another one holds
    values: Values = field(default_factory=dict)
    build: Callable[[int, str], Message] | None = None  # for requests without a generated schema
    paths: tuple[str, ...] = ()  # of those

    def bound_of(self, path: str) -> int:
        return self.bounds.get(path, self.bound)


def shapes(name: str) -> list[Shape]:
    """Every array of an API's request. A request without any has one shape with an empty path."""
    row, api = KAFKA[name], APIS[KEYS[name]]
    if row.build is not None:
        return [Shape(path, api.version_max) for path in row.paths]
    found = [
        Shape(path, min(versions.last, api.version_max))
        for path, versions in _arrays(_request_class(name), "")
        if versions.last >= api.version_min
    ]
    return found or [Shape("", api.version_max)]


def frame(
    name: str, shape: Shape, count: int, values: Values | None = None, *, correlation_id: int = 7
) -> bytes:
    """A request with ``count`` elements in one array."""
    row, api = KAFKA[name], APIS[KEYS[name]]
    if row.build is not None:
        request = row.build(count, shape.path)
    else:
        given = {**row.values, **(values or {})}
        request = _Filling(shape, count, given).made(_request_class(name), "")
    body = api.codec().encode_request(request, shape.version)
    return encode_request_frame(
        api, shape.version, correlation_id=correlation_id, client_id=None, body=body
    )


@cache
def _fields_of(owner: type[Message]) -> list[tuple[str, str, Versions, type[Message] | None]]:
    """Name, wire type, versions and struct of each field, as the notes on generated classes say."""
    hints = get_type_hints(owner, include_extras=True)
    return [
        (name, hint.__metadata__[0], Versions.parse(hint.__metadata__[1]), _struct_in(hint))
        for name, hint in hints.items()
    ]


def _request_class(name: str) -> type[Message]:
    module = import_module(f"penstock.wire.kafka.generated.{APIS[KEYS[name]].snake}")
    found: type[Message] = getattr(module, f"{name}Request")
    return found


def _arrays(owner: type[Message], path: str) -> Iterator[tuple[str, Versions]]:
    for name, kind, versions, inner in _fields_of(owner):
        if kind.startswith("[]"):
            yield f"{path}{name}", versions
        if inner is not None:
            for below, theirs in _arrays(inner, f"{path}{name}."):
                last = min(versions.last, theirs.last)
                yield below, Versions(max(versions.first, theirs.first), last)


def _struct_in(hint: Any) -> type[Message] | None:
    if isinstance(hint, type) and issubclass(hint, Message):
        return hint
    for part in get_args(hint):
        found = _struct_in(part)
        if found is not None:
            return found
    return None


class _Filling:
    """Every text and number in an array differs from those of the other elements."""

    def __init__(self, shape: Shape, count: int, values: Values) -> None:
        self._shape = shape
        self._count = count
        self._values = values
        self._numbers: dict[str, Iterator[int]] = {}

    def made(self, owner: type[Message], path: str) -> Message:
        fields: dict[str, object] = {}
        for name, kind, versions, inner in _fields_of(owner):
            where = f"{path}{name}"
            if self._shape.version not in versions:
                continue
            if kind.startswith("[]") and self._values.get(where, "") is None:
                fields[name] = None
            elif kind.startswith("[]"):
                count = self._count if where == self._shape.path else 1
                fields[name] = [self._element(inner, kind[2:], where) for _ in range(count)]
            elif inner is not None and self._shape.path.startswith(f"{where}."):
                fields[name] = self.made(inner, f"{where}.")
            elif inner is not None or (where not in self._values and not path):
                continue  # a struct that may be absent, or a field of the request itself
            else:
                value = self._value(kind, where)
                if value is not None:
                    fields[name] = value
        return owner(**fields)

    def _element(self, inner: type[Message] | None, kind: str, where: str) -> object:
        return self.made(inner, f"{where}.") if inner else self._value(kind, where)

    def _value(self, kind: str, where: str) -> object:
        number = next(self._numbers.setdefault(where, itertools.count()))
        if where in self._values:
            given = self._values[where]
            return given(number) if callable(given) else given
        if kind == "string":
            return f"{where.rpartition('.')[2]}-{number}"
        if kind in ("int32", "int64"):
            return number
        return None


def _produce(count: int, path: str) -> ProduceRequest:
    inner = count if path == "topics.partitions" else 1
    topics = [
        ProduceTopic(
            "", number.to_bytes(16, "big"), [ProducePartition(n, b"") for n in range(inner)]
        )
        for number in range(count if path == "topics" else 1)
    ]
    return ProduceRequest(None, 1, 1_000, topics)


def _fetch(count: int, path: str) -> FetchRequest:
    inner = count if path == "topics.partitions" else 1
    topics = [
        FetchTopic(
            "", number.to_bytes(16, "big"), [FetchPartition(n, 0, 1_000) for n in range(inner)]
        )
        for number in range(count if path == "topics" else 1)
    ]
    return FetchRequest(0, 1, topics)


# Every API that is served. Names that are made up are those of topics and groups that do not exist.
KAFKA: dict[str, KafkaRow] = {
    "Produce": KafkaRow(build=_produce, paths=("topics", "topics.partitions")),
    "Fetch": KafkaRow(build=_fetch, paths=("topics", "topics.partitions")),
    "ListOffsets": KafkaRow(),
    "Metadata": KafkaRow(values={"topics.topic_id": ZERO_UUID, "allow_auto_topic_creation": False}),
    "OffsetCommit": KafkaRow(values={"group_id": "g"}),
    "OffsetFetch": KafkaRow(bounds={"groups": ENTRIES_MAX}, values={"group_id": "g"}),
    "FindCoordinator": KafkaRow(ENTRIES_MAX),
    "JoinGroup": KafkaRow(ENTRIES_MAX, values={"group_id": "g", "protocol_type": "consumer"}),
    "Heartbeat": KafkaRow(),
    "LeaveGroup": KafkaRow(ENTRIES_MAX, values={"group_id": "g"}),
    "SyncGroup": KafkaRow(ENTRIES_MAX, values={"group_id": "g"}),
    "DescribeGroups": KafkaRow(ENTRIES_MAX),
    "ListGroups": KafkaRow(ENTRIES_MAX),
    "SaslHandshake": KafkaRow(values={"mechanism": "PLAIN"}),
    "ApiVersions": KafkaRow(values={"client_software_name": "a", "client_software_version": "1"}),
    "CreateTopics": KafkaRow(
        ENTRIES_MAX,
        bounds=dict.fromkeys(
            ("topics.assignments", "topics.assignments.broker_ids"), PARTITIONS_MAX
        ),
        values={
            "topics.name": lambda number: f"not valid {number}",
            "topics.num_partitions": -1,
            "topics.replication_factor": -1,
        },
    ),
    "DeleteTopics": KafkaRow(
        ENTRIES_MAX,
        values={"topics.name": lambda number: f"gone-{number}", "topics.topic_id": ZERO_UUID},
    ),
    "DeleteRecords": KafkaRow(values={"timeout_ms": 1_000}),
    "InitProducerId": KafkaRow(),
    "OffsetForLeaderEpoch": KafkaRow(values={"replica_id": -1}),
    "AddPartitionsToTxn": KafkaRow(bounds={"transactions": ENTRIES_MAX}),
    "AddOffsetsToTxn": KafkaRow(values={"transactional_id": "t", "group_id": "g"}),
    "EndTxn": KafkaRow(values={"transactional_id": "t"}),
    "WriteTxnMarkers": KafkaRow(bounds={"markers": ENTRIES_MAX}),
    "TxnOffsetCommit": KafkaRow(values={"transactional_id": "t", "group_id": "g"}),
    "DescribeAcls": KafkaRow(
        values={
            "resource_type_filter": 1,
            "pattern_type_filter": 1,
            "operation": 1,
            "permission_type": 1,
        }
    ),
    "CreateAcls": KafkaRow(
        ENTRIES_MAX,
        values={
            "creations.resource_type": 2,
            "creations.resource_pattern_type": 3,
            "creations.principal": lambda number: f"User:nobody-{number}",
            "creations.host": "*",
            "creations.operation": 3,
            "creations.permission_type": 3,
        },
    ),
    "DeleteAcls": KafkaRow(
        ENTRIES_MAX,
        values={
            "filters.resource_type_filter": 2,
            "filters.pattern_type_filter": 3,
            "filters.operation": 1,
            "filters.permission_type": 1,
        },
    ),
    "DescribeConfigs": KafkaRow(
        ENTRIES_MAX,
        bounds={"resources.configuration_keys": PARTITIONS_MAX},
        values={"resources.resource_type": 2},
    ),
    "AlterConfigs": KafkaRow(ENTRIES_MAX, values={"resources.resource_type": 2}),
    "AlterReplicaLogDirs": KafkaRow(bounds={"dirs": ENTRIES_MAX}),
    "DescribeLogDirs": KafkaRow(),
    "SaslAuthenticate": KafkaRow(values={"auth_bytes": b""}),
    "CreatePartitions": KafkaRow(
        ENTRIES_MAX,
        bounds=dict.fromkeys(
            ("topics.assignments", "topics.assignments.broker_ids"), PARTITIONS_MAX
        ),
        values={"topics.count": 2},
    ),
    "CreateDelegationToken": KafkaRow(
        ENTRIES_MAX, values={"owner_principal_name": None, "renewers.principal_type": "User"}
    ),
    "RenewDelegationToken": KafkaRow(values={"hmac": bytes(64)}),
    "ExpireDelegationToken": KafkaRow(values={"hmac": bytes(64)}),
    "DescribeDelegationToken": KafkaRow(ENTRIES_MAX, values={"owners.principal_type": "User"}),
    "DeleteGroups": KafkaRow(ENTRIES_MAX),
    "ElectLeaders": KafkaRow(),
    "IncrementalAlterConfigs": KafkaRow(ENTRIES_MAX, values={"resources.resource_type": 2}),
    "AlterPartitionReassignments": KafkaRow(),
    "ListPartitionReassignments": KafkaRow(),
    "OffsetDelete": KafkaRow(values={"group_id": "g"}),
    "DescribeUserScramCredentials": KafkaRow(ENTRIES_MAX),
    "AlterUserScramCredentials": KafkaRow(
        USERS_MAX,
        values={
            "deletions.mechanism": 1,
            "upsertions.mechanism": 1,
            "upsertions.iterations": 4_096,
            "upsertions.salt": bytes(16),
            "upsertions.salted_password": bytes(32),
        },
    ),
    "DescribeClientQuotas": KafkaRow(ENTRIES_MAX, values={"components.entity_type": "user"}),
    "AlterClientQuotas": KafkaRow(
        ENTRIES_MAX,
        values={
            "entries.entity.entity_type": "user",
            "entries.ops.key": "producer_byte_rate",
            "entries.ops.value": 1e9,
            "entries.ops.remove": False,
        },
    ),
    "ListConfigResources": KafkaRow(ENTRIES_MAX, values={"resource_types": 2}),
    "DescribeQuorum": KafkaRow(),
    "UpdateFeatures": KafkaRow(
        ENTRIES_MAX,
        values={
            "feature_updates.feature": "group.version",
            "feature_updates.max_version_level": 1,
        },
    ),
    "DescribeCluster": KafkaRow(),
    "DescribeProducers": KafkaRow(),
    "UnregisterBroker": KafkaRow(values={"broker_id": 99}),
    "DescribeTransactions": KafkaRow(ENTRIES_MAX),
    "ListTransactions": KafkaRow(ENTRIES_MAX),
    "ConsumerGroupHeartbeat": KafkaRow(
        values={
            "group_id": "modern",
            "rebalance_timeout_ms": 10_000,
            "subscribed_topic_regex": "here-.*",
            "topic_partitions.topic_id": lambda number: number.to_bytes(16, "big"),
        },
    ),
    "ConsumerGroupDescribe": KafkaRow(ENTRIES_MAX),
    "DescribeTopicPartitions": KafkaRow(values={"response_partition_limit": 2_000}),
    "ShareGroupHeartbeat": KafkaRow(values={"group_id": "share"}),
    "ShareGroupDescribe": KafkaRow(ENTRIES_MAX),
    "ShareFetch": KafkaRow(
        values={
            "group_id": "share",
            "member_id": "A" * 22,
            "topics.topic_id": lambda number: number.to_bytes(16, "big"),
            "forgotten_topics_data.topic_id": lambda number: number.to_bytes(16, "big"),
            "topics.partitions.acknowledgement_batches.acknowledge_types": 1,
        }
    ),
    "ShareAcknowledge": KafkaRow(
        values={
            "group_id": "share",
            "member_id": "A" * 22,
            "topics.topic_id": lambda number: number.to_bytes(16, "big"),
            "topics.partitions.acknowledgement_batches.acknowledge_types": 1,
        }
    ),
    "StreamsGroupHeartbeat": KafkaRow(
        ENTRIES_MAX,
        bounds={
            "topology.subtopologies.source_topics": PARTITIONS_MAX,
            "topology.subtopologies.copartition_groups.source_topics": PARTITIONS_MAX,
            "topology.subtopologies.state_changelog_topics.topic_configs": PARTITIONS_MAX,
            "topology.subtopologies.repartition_source_topics.topic_configs": PARTITIONS_MAX,
            "active_tasks.partitions": PARTITIONS_MAX,
            "standby_tasks.partitions": PARTITIONS_MAX,
            "warmup_tasks.partitions": PARTITIONS_MAX,
        },
        values={
            "group_id": "streams",
            "member_id": "A" * 22,
            "rebalance_timeout_ms": 10_000,
            "topology.subtopologies.state_changelog_topics.partitions": 0,
            **dict.fromkeys(
                (
                    f"topology.subtopologies.copartition_groups.{name}"
                    for name in ("source_topics", "source_topic_regex", "repartition_source_topics")
                ),
                0,  # the index of a topic of the subtopology
            ),
        },
    ),
    "StreamsGroupDescribe": KafkaRow(ENTRIES_MAX),
    "DescribeShareGroupOffsets": KafkaRow(bounds={"groups": ENTRIES_MAX}),
    "AlterShareGroupOffsets": KafkaRow(values={"group_id": "share"}),
    "DeleteShareGroupOffsets": KafkaRow(values={"group_id": "share"}),
}


# ── SQS ──────────────────────────────────────────────────────────────────────────────────────

KIB, MIB = 1_024, 1_048_576


def _entries(**more: object) -> list[dict[str, object]]:
    return [{"Id": str(number), **more} for number in range(10)]


def _names(count: int, prefix: str) -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


# By action: the body of one request at the largest size that is served. ``QueueUrl`` is filled in.
SQS: dict[str, dict[str, Any]] = {
    "AddPermission": {
        "Label": "l",
        "AWSAccountIds": [str(10**11 + number) for number in range(7)],
        "Actions": ["SendMessage"],
    },
    "CancelMessageMoveTask": {"TaskHandle": "x" * KIB},
    "ChangeMessageVisibility": {"ReceiptHandle": "x" * KIB, "VisibilityTimeout": 1},
    "ChangeMessageVisibilityBatch": {
        "Entries": _entries(ReceiptHandle="x" * KIB, VisibilityTimeout=1)
    },
    "CreateQueue": {
        "QueueName": "made",
        "tags": dict.fromkeys(_names(50, "tag"), "v" * 256),
    },
    "DeleteMessage": {"ReceiptHandle": "x" * KIB},
    "DeleteMessageBatch": {"Entries": _entries(ReceiptHandle="x" * KIB)},
    "DeleteQueue": {},
    "GetQueueAttributes": {"AttributeNames": ["All"] * 20},
    "GetQueueUrl": {"QueueName": "made"},
    "ListDeadLetterSourceQueues": {"MaxResults": 1_000},
    "ListMessageMoveTasks": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:made"},
    "ListQueueTags": {},
    "ListQueues": {"MaxResults": 1_000},
    "PurgeQueue": {},
    "ReceiveMessage": {"MaxNumberOfMessages": 10, "AttributeNames": ["All"]},
    "RemovePermission": {"Label": "l"},
    "SendMessage": {"MessageBody": "x" * (MIB - KIB)},
    "SendMessageBatch": {"Entries": _entries(MessageBody="x" * 100 * KIB)},
    "SetQueueAttributes": {"Attributes": {"VisibilityTimeout": "30"}},
    "StartMessageMoveTask": {"SourceArn": "arn:aws:sqs:us-east-1:000000000000:made"},
    "TagQueue": {"Tags": dict.fromkeys(_names(50, "tag"), "v" * 256)},
    "UntagQueue": {"TagKeys": _names(50, "tag")},
}
