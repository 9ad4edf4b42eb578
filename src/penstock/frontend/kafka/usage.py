"""What Kafka clients use, counted for their tenants.

A request of theirs may name a thousand topics. It is counted once, for whoever asks and under no
topic; the records and bytes that it moved are counted with each topic, for its owner. Operations
are those that policies name: what an API mostly asks for.
"""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.usage import Refusal, UsageTable
from penstock.model.topic import Topic
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode

OK: Final = "OK"
NONE: Final = ""
READ: Final = "kafka:Read"
WRITE: Final = "kafka:Write"
_DESCRIBE: Final = "kafka:Describe"
_ALTER: Final = "kafka:Alter"
_TOKENS: Final = "kafka:CreateTokens"
_CONNECT: Final = "kafka:Connect"  # which no policy is about
_BY_NAME: Final[Mapping[str, str]] = {
    "AddOffsetsToTxn": WRITE,
    "AddPartitionsToTxn": WRITE,
    "AlterClientQuotas": "kafka:AlterConfigs",
    "AlterConfigs": "kafka:AlterConfigs",
    "AlterPartitionReassignments": _ALTER,
    "AlterReplicaLogDirs": _ALTER,
    "AlterShareGroupOffsets": READ,
    "AlterUserScramCredentials": _ALTER,
    "ApiVersions": _CONNECT,
    "ConsumerGroupHeartbeat": READ,
    "CreateAcls": _ALTER,
    "CreateDelegationToken": _TOKENS,
    "CreatePartitions": _ALTER,
    "CreateTopics": "kafka:Create",
    "DeleteAcls": _ALTER,
    "DeleteGroups": "kafka:Delete",
    "DeleteRecords": "kafka:Delete",
    "DeleteShareGroupOffsets": "kafka:Delete",
    "DeleteTopics": "kafka:Delete",
    "DescribeClientQuotas": "kafka:DescribeConfigs",
    "DescribeConfigs": "kafka:DescribeConfigs",
    "ElectLeaders": _ALTER,
    "EndTxn": WRITE,
    "ExpireDelegationToken": _TOKENS,
    "Fetch": READ,
    "Heartbeat": READ,
    "IncrementalAlterConfigs": "kafka:AlterConfigs",
    "InitProducerId": "kafka:IdempotentWrite",
    "JoinGroup": READ,
    "LeaveGroup": READ,
    "ListConfigResources": "kafka:DescribeConfigs",
    "OffsetCommit": READ,
    "OffsetDelete": "kafka:Delete",
    "Produce": WRITE,
    "RenewDelegationToken": _TOKENS,
    "SaslAuthenticate": _CONNECT,
    "SaslHandshake": _CONNECT,
    "ShareAcknowledge": READ,
    "ShareFetch": READ,
    "ShareGroupHeartbeat": READ,
    "StreamsGroupHeartbeat": READ,
    "SyncGroup": READ,
    "TxnOffsetCommit": READ,
    "UnregisterBroker": _ALTER,
    "UpdateFeatures": _ALTER,
    "WriteTxnMarkers": "kafka:ClusterAction",
}
assert _BY_NAME.keys() <= {api.name for api in APIS.values()}, "an API that nobody serves"
# By the name of the API; the others only look.
OPERATIONS: Final[Mapping[str, str]] = {
    api.name: _BY_NAME.get(api.name, _DESCRIBE) for api in APIS.values()
}
DENIALS: Final = frozenset(
    code.name
    for code in (
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)
_THROTTLED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED.name


class KafkaUsage:
    def __init__(self, table: UsageTable, *, region: str) -> None:
        """``region``: where all names of Kafka clients are."""
        self._table = table
        self._region = region

    def answered(self, account: str, api: str, code: str, seconds: float) -> None:
        """One request, with the code of its answer as a whole; those of its parts stand in it."""
        key = (account, self._region, NONE, OPERATIONS.get(api, NONE))
        if code == OK:
            self._table.request(key, seconds)
        elif code in DENIALS:
            self._table.refuse(key, Refusal.DENIED)
        else:
            self._table.refuse(key, Refusal.THROTTLED if code == _THROTTLED else Refusal.FAILED)

    def produced(self, topic: Topic, records: int, size_bytes: int) -> None:
        key = (topic.account, topic.region, topic.name, WRITE)
        self._table.move(key, records, size_bytes, 0)

    def fetched(self, topic: Topic, records: int, size_bytes: int) -> None:
        key = (topic.account, topic.region, topic.name, READ)
        self._table.move(key, records, 0, size_bytes)
