"""The rows of the authorization matrix: for each SQS action, SNS action, Kafka API and admin route,
only what cannot be derived from its schema. A new one without a row fails the test."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from tests.attacks.kit import EVERYTHING
from tests.attacks.matrix import CANARY, Holdings

from penstock.wire.kafka.faults import ErrorCode
from penstock.wire.kafka.generated.streams_group_heartbeat import Subtopology, Topology

Given = Mapping[str, Any]
Of = Callable[[Holdings], Any]

# ── SQS ──────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class SqsRow:
    given: Mapping[str, Of] = dataclasses.field(default_factory=dict)
    without: frozenset[str] = frozenset()
    # Not about a queue of somebody's: another tenant is served, with what is its own.
    is_own: bool = False
    # Not about one queue: the policy of a queue has no say.
    is_general: bool = False


SQS: Mapping[str, SqsRow] = {
    "AddPermission": SqsRow({"Label": lambda _: "more"}),
    "CancelMessageMoveTask": SqsRow(),
    "ChangeMessageVisibility": SqsRow(),
    "ChangeMessageVisibilityBatch": SqsRow(),
    "CreateQueue": SqsRow(without=frozenset({"Attributes", "tags"}), is_own=True),
    "DeleteMessage": SqsRow(),
    "DeleteMessageBatch": SqsRow(),
    "DeleteQueue": SqsRow(),
    "GetQueueAttributes": SqsRow(),
    "GetQueueUrl": SqsRow(),
    "ListDeadLetterSourceQueues": SqsRow({"QueueUrl": lambda has: has.dead_url}),
    "ListMessageMoveTasks": SqsRow({"SourceArn": lambda has: f"{has.arn}-moved"}),
    "ListQueueTags": SqsRow(),
    "ListQueues": SqsRow(is_own=True, is_general=True),
    "PurgeQueue": SqsRow(),
    "ReceiveMessage": SqsRow(),
    "RemovePermission": SqsRow(),
    "SendMessage": SqsRow(),
    "SendMessageBatch": SqsRow(),
    "SetQueueAttributes": SqsRow(),
    "StartMessageMoveTask": SqsRow(),
    "TagQueue": SqsRow(),
    "UntagQueue": SqsRow(),
}

# ── SNS ──────────────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass(frozen=True)
class SnsRow:
    given: Mapping[str, Of] = dataclasses.field(default_factory=dict)
    without: frozenset[str] = frozenset()
    # Not about a topic of somebody's: another tenant is served, with what is its own.
    is_own: bool = False
    # Not about one topic: the policy of a topic has no say.
    is_general: bool = False
    # What belongs to another account is deleted as what does not exist: nothing happens.
    is_idempotent: bool = False
    # Codes by which those who may are told of the state of things.
    passes: frozenset[str] = frozenset()


_PLAIN_TOPIC = SnsRow()
_OWN_BOOK = SnsRow(is_own=True, is_general=True)
_BOOK = SnsRow(is_general=True)
_NUMBER = SnsRow(
    is_own=True,
    is_general=True,
    passes=frozenset({"ResourceNotFound", "Throttled", "VerificationException"}),
)

SNS: Mapping[str, SnsRow] = {
    "AddPermission": SnsRow({"Label": lambda _: "more"}),
    "CheckIfPhoneNumberIsOptedOut": _OWN_BOOK,
    # Nobody has the token, which is the proof also for topics of other accounts.
    "ConfirmSubscription": SnsRow(is_own=True, passes=frozenset({"InvalidParameter"})),
    "CreatePlatformApplication": dataclasses.replace(
        _OWN_BOOK, given={"Attributes": lambda _: {"PlatformCredential": CANARY}}
    ),
    "CreatePlatformEndpoint": dataclasses.replace(_BOOK, given={"Token": lambda _: "another"}),
    "CreateSMSSandboxPhoneNumber": _NUMBER,
    "CreateTopic": SnsRow(without=frozenset({"Tags", "DataProtectionPolicy"}), is_own=True),
    "DeleteEndpoint": SnsRow(is_general=True, is_idempotent=True),
    "DeletePlatformApplication": SnsRow(is_general=True, is_idempotent=True),
    "DeleteSMSSandboxPhoneNumber": _NUMBER,
    "DeleteTopic": _PLAIN_TOPIC,
    "GetDataProtectionPolicy": _PLAIN_TOPIC,
    "GetEndpointAttributes": _BOOK,
    "GetPlatformApplicationAttributes": _BOOK,
    "GetSMSAttributes": _OWN_BOOK,
    "GetSMSSandboxAccountStatus": _OWN_BOOK,
    "GetSubscriptionAttributes": _PLAIN_TOPIC,
    "GetTopicAttributes": _PLAIN_TOPIC,
    "ListEndpointsByPlatformApplication": _BOOK,
    "ListOriginationNumbers": _OWN_BOOK,
    "ListPhoneNumbersOptedOut": _OWN_BOOK,
    "ListPlatformApplications": _OWN_BOOK,
    "ListSMSSandboxPhoneNumbers": _OWN_BOOK,
    "ListSubscriptions": SnsRow(is_own=True, is_general=True),
    "ListSubscriptionsByTopic": _PLAIN_TOPIC,
    "ListTagsForResource": _PLAIN_TOPIC,
    "ListTopics": SnsRow(is_own=True, is_general=True),
    "OptInPhoneNumber": _OWN_BOOK,
    "Publish": SnsRow(without=frozenset({"PhoneNumber"})),
    "PublishBatch": _PLAIN_TOPIC,
    "PutDataProtectionPolicy": _PLAIN_TOPIC,
    "RemovePermission": _PLAIN_TOPIC,
    "SetEndpointAttributes": dataclasses.replace(
        _BOOK, given={"Attributes": lambda _: {"CustomUserData": "planted"}}
    ),
    "SetPlatformApplicationAttributes": dataclasses.replace(
        _BOOK, given={"Attributes": lambda _: {"PlatformCredential": "planted"}}
    ),
    "SetSMSAttributes": dataclasses.replace(
        _OWN_BOOK, given={"attributes": lambda _: {"DefaultSMSType": "Promotional"}}
    ),
    "SetSubscriptionAttributes": SnsRow(
        {"AttributeName": lambda _: "RawMessageDelivery", "AttributeValue": lambda _: "true"}
    ),
    "SetTopicAttributes": _PLAIN_TOPIC,
    "Subscribe": _PLAIN_TOPIC,
    "TagResource": _PLAIN_TOPIC,
    # Strangers do not know the random id.
    "Unsubscribe": SnsRow(
        {"SubscriptionArn": lambda has: f"{has.sns_arn}:{has.missing().subscription}"},
        is_idempotent=True,
    ),
    "UntagResource": _PLAIN_TOPIC,
    "VerifySMSSandboxPhoneNumber": _NUMBER,
}

# ── Kafka ────────────────────────────────────────────────────────────────────────────────────


class On(Enum):
    """What the right is about, with the code that says it is missing."""

    TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
    TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    USER = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    NAMES = "names"  # a list, which leaves out what the caller may not see
    NOTHING = "nothing"  # every known caller is answered
    LOGIN = "login"  # what comes before the caller is known: see test_logins.py


TOPIC_DENIED = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED})
ZERO_UUID = bytes(16)
MEMBER = "0f8fad5b-d9cb-469f-a165-70867728950e"


@dataclasses.dataclass(frozen=True)
class KafkaRow:
    on: On
    given: Given = dataclasses.field(default_factory=dict)  # by field, at any depth
    # Codes by which the owner is told of the state of things: the request was understood, and
    # nothing was refused for want of a right.
    passes: frozenset[int] = frozenset()
    # Further codes for those without any right.
    also: frozenset[int] = frozenset()
    # What a queue that denies the caller answers, though everything else is allowed: empty for a
    # list, which leaves the queue out. None: the request is not about a queue.
    denied: frozenset[int] | None = None
    version_min: int = 0


def _topic(**more: Any) -> KafkaRow:
    return KafkaRow(On.TOPIC, denied=TOPIC_DENIED, **more)


def _stream(has: Holdings) -> str:
    return has.stream


_SHARE: Given = {"group_id": lambda has: f"{has.group}-share", "member_id": MEMBER}
_NO_GROUP = frozenset({ErrorCode.GROUP_ID_NOT_FOUND})
_NO_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})
_CONFIG: Given = {"name": "retention.ms", "value": "86400000"}

KAFKA: Mapping[str, KafkaRow] = {
    "Produce": _topic(),
    "Fetch": _topic(),
    "ListOffsets": _topic(),
    "Metadata": _topic(given={"topic_id": ZERO_UUID}),
    "OffsetCommit": KafkaRow(On.GROUP, denied=TOPIC_DENIED),
    "OffsetFetch": KafkaRow(On.GROUP, denied=TOPIC_DENIED),
    "FindCoordinator": KafkaRow(On.GROUP),
    "JoinGroup": KafkaRow(
        On.GROUP,
        given={"protocol_type": "consumer", "name": "range"},
        passes=frozenset({ErrorCode.MEMBER_ID_REQUIRED}),
        version_min=4,
    ),
    "Heartbeat": KafkaRow(On.GROUP, passes=_NO_MEMBER),
    "LeaveGroup": KafkaRow(On.GROUP, passes=_NO_MEMBER),
    "SyncGroup": KafkaRow(On.GROUP, passes=_NO_MEMBER | {ErrorCode.INCONSISTENT_GROUP_PROTOCOL}),
    "DescribeGroups": KafkaRow(On.GROUP),
    "ListGroups": KafkaRow(On.NAMES),
    "SaslHandshake": KafkaRow(On.LOGIN),
    "ApiVersions": KafkaRow(
        On.NOTHING, given={"client_software_name": "matrix", "client_software_version": "1"}
    ),
    "CreateTopics": KafkaRow(
        On.TOPIC,
        given={"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()},
        passes=frozenset({ErrorCode.TOPIC_ALREADY_EXISTS}),
    ),
    "DeleteTopics": _topic(given={"topic_id": ZERO_UUID}),
    # Of a queue, records are deleted by its consumers.
    "DeleteRecords": _topic(passes=frozenset({ErrorCode.POLICY_VIOLATION})),
    "InitProducerId": KafkaRow(On.TRANSACTION, given={"producer_id": -1, "producer_epoch": -1}),
    "OffsetForLeaderEpoch": _topic(),
    "AddPartitionsToTxn": KafkaRow(
        On.TRANSACTION,
        given={"name": _stream, "verify_only": False},
        also=frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
    ),
    "AddOffsetsToTxn": KafkaRow(On.TRANSACTION),
    "EndTxn": KafkaRow(On.TRANSACTION, passes=frozenset({ErrorCode.INVALID_TXN_STATE})),
    "WriteTxnMarkers": KafkaRow(On.CLUSTER, given={"name": _stream}),
    "TxnOffsetCommit": KafkaRow(
        On.TRANSACTION,
        denied=TOPIC_DENIED,
        passes=frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}),
    ),
    "DescribeAcls": KafkaRow(On.CLUSTER),
    "CreateAcls": KafkaRow(On.CLUSTER),
    "DeleteAcls": KafkaRow(On.CLUSTER),
    "DescribeConfigs": _topic(),
    "AlterConfigs": _topic(given=_CONFIG),
    "AlterReplicaLogDirs": KafkaRow(
        On.CLUSTER,
        passes=frozenset({ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
    ),
    "DescribeLogDirs": KafkaRow(
        On.NAMES,
        also=frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED}),
        denied=frozenset(),
    ),
    "SaslAuthenticate": KafkaRow(On.LOGIN),
    "CreatePartitions": _topic(given={"count": 2, "assignments": None}),
    # A token of another user: no policy allows it.
    "CreateDelegationToken": KafkaRow(
        On.USER,
        given={
            "owner_principal_type": "User",
            "owner_principal_name": lambda has: has.user,
            "renewers": (),
        },
        passes=frozenset({ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED}),
        version_min=3,
    ),
    "RenewDelegationToken": KafkaRow(
        On.NOTHING, passes=frozenset({ErrorCode.DELEGATION_TOKEN_NOT_FOUND})
    ),
    "ExpireDelegationToken": KafkaRow(
        On.NOTHING, passes=frozenset({ErrorCode.DELEGATION_TOKEN_NOT_FOUND})
    ),
    "DescribeDelegationToken": KafkaRow(On.NAMES, given={"owners": None}),
    "DeleteGroups": KafkaRow(On.GROUP),
    "ElectLeaders": KafkaRow(On.CLUSTER, passes=frozenset({ErrorCode.ELECTION_NOT_NEEDED})),
    "IncrementalAlterConfigs": _topic(given=_CONFIG),
    "AlterPartitionReassignments": KafkaRow(On.CLUSTER, given={"replicas": (1,)}),
    "ListPartitionReassignments": KafkaRow(On.CLUSTER),
    "OffsetDelete": KafkaRow(On.GROUP, denied=TOPIC_DENIED),
    "DescribeUserScramCredentials": KafkaRow(
        On.CLUSTER,
        given={"name": lambda has: has.user},
        passes=frozenset({ErrorCode.RESOURCE_NOT_FOUND}),
    ),
    "AlterUserScramCredentials": KafkaRow(
        On.CLUSTER,
        given={
            "name": lambda has: has.user,
            "mechanism": 1,
            "iterations": 8_192,
            "salt": bytes(16),
            "salted_password": bytes(32),
            "deletions": (),
        },
    ),
    "DescribeClientQuotas": KafkaRow(On.CLUSTER, given={"entity_type": "user", "match_type": 0}),
    "AlterClientQuotas": KafkaRow(
        On.CLUSTER,
        given={
            "entity_type": "user",
            "entity_name": "ann",
            "key": "producer_byte_rate",
            "value": 1e9,
            "remove": True,
        },
    ),
    "ListConfigResources": KafkaRow(On.CLUSTER, given={"resource_types": (2,)}),
    "DescribeQuorum": KafkaRow(
        On.CLUSTER, passes=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    ),
    "UpdateFeatures": KafkaRow(On.CLUSTER, passes=frozenset({ErrorCode.INVALID_UPDATE_VERSION})),
    "DescribeCluster": KafkaRow(On.NOTHING),
    "DescribeProducers": _topic(),
    "UnregisterBroker": KafkaRow(
        On.CLUSTER,
        given={"broker_id": 99},
        passes=frozenset({ErrorCode.BROKER_ID_NOT_REGISTERED}),
    ),
    "DescribeTransactions": KafkaRow(On.TRANSACTION),
    "ListTransactions": KafkaRow(On.NAMES, given={"transactional_id_pattern": None}),
    "ConsumerGroupHeartbeat": KafkaRow(
        On.GROUP,
        given={
            "group_id": lambda has: f"{has.group}-new",
            "member_id": MEMBER,
            "topic_partitions": (),
            "subscribed_topic_regex": None,
        },
        denied=TOPIC_DENIED,
    ),
    "ConsumerGroupDescribe": KafkaRow(On.GROUP, passes=_NO_GROUP),
    "DescribeTopicPartitions": _topic(given={"cursor": None, "response_partition_limit": 10}),
    "ShareGroupHeartbeat": KafkaRow(On.GROUP, given=_SHARE, denied=TOPIC_DENIED),
    "ShareGroupDescribe": KafkaRow(On.GROUP, passes=_NO_GROUP),
    "ShareFetch": KafkaRow(
        On.GROUP,
        given={
            **_SHARE,
            "forgotten_topics_data": (),
            "acknowledgement_batches": (),
            "max_records": 10,
            "batch_size": 10,
            "max_bytes": 1_000,
            "is_renew_ack": False,
        },
        # No member of the group has subscribed to it.
        passes=frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
        denied=TOPIC_DENIED,
    ),
    "ShareAcknowledge": KafkaRow(
        On.GROUP,
        given={**_SHARE, "share_session_epoch": 1, "is_renew_ack": False},
        passes=frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND}),
    ),
    "StreamsGroupHeartbeat": KafkaRow(
        On.GROUP,
        given={
            "group_id": lambda has: f"{has.group}-streams",
            "member_id": MEMBER,
            "topology": lambda has: Topology(0, [Subtopology("0", [has.queue])]),
            "active_tasks": (),
            "standby_tasks": (),
            "warmup_tasks": (),
            "client_tags": (),
            "task_offsets": None,
            "task_end_offsets": None,
            "shutdown_application": False,
        },
        denied=TOPIC_DENIED,
    ),
    "StreamsGroupDescribe": KafkaRow(On.GROUP, passes=_NO_GROUP),
    "DescribeShareGroupOffsets": KafkaRow(On.GROUP, passes=_NO_GROUP),
    "AlterShareGroupOffsets": KafkaRow(On.GROUP, passes=_NO_GROUP),
    "DeleteShareGroupOffsets": KafkaRow(On.GROUP, passes=_NO_GROUP),
}

# ── Admin API ────────────────────────────────────────────────────────────────────────────────


class For(Enum):
    EVERYBODY = "everybody"
    KNOWN = "known"  # every known caller; what is another's is left out
    TENANT = "tenant"  # those with the right, in the tenant that is asked about
    OPERATOR = "operator"


@dataclasses.dataclass(frozen=True)
class AdminRow:
    for_: For
    body: Of | None = None
    query: Of | None = None
    # Statuses by which those who may are told of the state of things.
    passes: frozenset[int] = frozenset()
    is_queue: bool = False  # the policy of the queue counts
    # For the caller's own tenant only, whatever is named: another tenant is served with its own.
    is_own: bool = False


def _of_tenant(has: Holdings) -> str:
    return f"tenant={has.account}"


def _of_account(has: Holdings) -> str:
    return f"account={has.account}"


_PASSWORD = {
    "mechanism": "SCRAM-SHA-256",
    "iterations": 8_192,
    "salt": base64.b64encode(bytes(16)).decode(),
    "stored_key": base64.b64encode(bytes(32)).decode(),
    "server_key": base64.b64encode(bytes(32)).decode(),
}
_OPERATOR = AdminRow(For.OPERATOR)
_NO_CLUSTER = AdminRow(For.OPERATOR, passes=frozenset({404, 409}))
_KEYS = AdminRow(For.TENANT)
_USERS = AdminRow(For.TENANT, query=_of_tenant)


_WEBHOOK = AdminRow(For.TENANT)


def _webhook(body: Of) -> AdminRow:
    """Sends messages of the queue."""
    return AdminRow(For.TENANT, body=body, is_queue=True)


def _users(body: Of) -> AdminRow:
    return AdminRow(For.TENANT, body=body, query=_of_tenant)


def _queue(**more: Any) -> AdminRow:
    return AdminRow(For.TENANT, query=_of_account, is_queue=True, **more)


def _placed(has: Holdings) -> dict[str, Any]:
    return {"topic": has.queue, "partition": 0}


ADMIN: Mapping[str, AdminRow] = {
    "GET healthz": AdminRow(For.EVERYBODY),
    "GET readyz": AdminRow(For.EVERYBODY),
    "GET startupz": AdminRow(For.EVERYBODY),
    # Refused for a secret that is wrong, which is no right that is missing: see test_admin.py.
    "POST login": AdminRow(
        For.EVERYBODY, body=lambda has: {"key_id": has.key_id, "secret": "guessed"}
    ),
    "GET metrics": _OPERATOR,
    "GET metrics/objects": AdminRow(For.TENANT, query=_of_account),
    "GET info": AdminRow(For.KNOWN),
    "GET config": _OPERATOR,
    "GET callees": _OPERATOR,
    "GET cluster": _NO_CLUSTER,
    "GET cluster/partitions": _NO_CLUSTER,
    "GET cluster/safety": _NO_CLUSTER,
    "POST cluster/nodes/*/drain": _NO_CLUSTER,
    "POST cluster/nodes/*/undrain": _NO_CLUSTER,
    "POST cluster/nodes/*/decommission": _NO_CLUSTER,
    "POST cluster/rebalance": _NO_CLUSTER,
    "POST cluster/place": dataclasses.replace(
        _NO_CLUSTER, body=lambda has: {**_placed(has), "replicas": [1]}
    ),
    "POST cluster/unclean-elect": dataclasses.replace(
        _NO_CLUSTER, body=lambda has: {**_placed(has), "node": 1}
    ),
    "POST cluster/upgrade": dataclasses.replace(_NO_CLUSTER, body=lambda _: {"dry_run": True}),
    "POST backups": _OPERATOR,
    "GET backups/*/partitions": _OPERATOR,
    "GET backups/*/definitions": _OPERATOR,
    "GET backups/*/records": AdminRow(
        For.OPERATOR,
        query=lambda has: f"topic_id={has.topic_id.hex()}&partition=0&offset=0",
    ),
    "DELETE backups/*": _OPERATOR,
    "GET coordinators/*/*": _OPERATOR,
    # Every row is readable, and only an unreadable one is skipped.
    "POST coordinators/*/*/skip": AdminRow(
        For.OPERATOR, body=lambda _: {"offset": 0}, passes=frozenset({400, 409})
    ),
    "GET queues": AdminRow(For.TENANT, query=_of_account),
    "GET queues/*": _queue(),
    "GET queues/*/messages": _queue(),
    "GET queues/*/explain": _queue(),
    "POST queues/*/rotate": _queue(passes=frozenset({400, 409})),  # it is not encrypted
    "GET subscriptions": AdminRow(
        For.TENANT, query=lambda has: f"account={has.account}&source={has.queue}"
    ),
    "GET subscriptions/*": _WEBHOOK,
    "GET subscriptions/*/deliveries": _WEBHOOK,
    "POST subscriptions": AdminRow(
        For.TENANT,
        body=lambda has: {"source": has.arn, "endpoint": "http://127.0.0.1:1024/planted"},
        is_queue=True,
    ),
    "PATCH subscriptions/*": _webhook(lambda _: {"timeout_ms": 1_000}),
    "POST subscriptions/*/pause": _WEBHOOK,
    "POST subscriptions/*/resume": _WEBHOOK,
    "POST subscriptions/*/rotate": _WEBHOOK,
    "POST subscriptions/*/confirm": _WEBHOOK,
    "DELETE subscriptions/*": _WEBHOOK,
    "POST subscriptions/*/test": _webhook(lambda _: {"body": "planted"}),
    "POST subscriptions/*/redeliver": _webhook(lambda _: {"partition": 0, "offset": 0}),
    "POST subscriptions/*/replay": _webhook(lambda _: {"earliest": True}),
    "GET tenants": AdminRow(For.TENANT, is_own=True),
    "POST tenants": AdminRow(For.OPERATOR, body=lambda has: {"name": f"{has.queue}-tenant"}),
    "GET tenants/*": _OPERATOR,
    "PATCH tenants/*": AdminRow(For.OPERATOR, body=lambda _: {"is_suspended": True}),
    "DELETE tenants/*": _OPERATOR,
    "GET quotas/*": _OPERATOR,
    "PATCH quotas/*": AdminRow(For.OPERATOR, body=lambda _: {"quotas": {"queues_max": 1}}),
    "GET users": _USERS,
    "POST users": AdminRow(
        For.TENANT, body=lambda has: {"name": f"{has.queue}-user", "tenant": has.account}
    ),
    "GET users/*": _USERS,
    "DELETE users/*": _USERS,
    "PUT users/*/password": _users(lambda _: {"credentials": [_PASSWORD]}),
    "DELETE users/*/password": _USERS,
    "GET keys": AdminRow(For.TENANT, query=_of_tenant),
    "POST keys": AdminRow(For.TENANT, body=lambda has: {"user": has.user, "tenant": has.account}),
    "GET keys/*": _KEYS,
    "PATCH keys/*": dataclasses.replace(_KEYS, body=lambda _: {"status": "disabled"}),
    "DELETE keys/*": _KEYS,
    "POST keys/*/rotate": _KEYS,
    "POST policies/test": AdminRow(
        For.TENANT,
        body=lambda has: {
            "user": has.user,
            "tenant": has.account,
            "action": "sqs:SendMessage",
            "resource": has.arn,
        },
    ),
    "GET policies/*": _USERS,
    "GET policies/*/*": _USERS,
    "PUT policies/*/*": _users(lambda _: {"Version": "2012-10-17", "Statement": [EVERYTHING]}),
    "DELETE policies/*/*": _USERS,
}
