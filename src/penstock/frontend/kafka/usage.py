"""Usage of Kafka clients, counted per tenant.

A request is counted once, for its caller and without a topic, however many topics it names. Records
and bytes are counted per topic, for the topic's owner. Each API is counted under the name that its
operation has in policies."""

from collections.abc import Mapping
from typing import Final

from penstock.frontend.facts.usage import Refusal, UsageTable
from penstock.model.topic import Topic
from penstock.wire.kafka.apis import APIS
from penstock.wire.kafka.faults import ErrorCode

OK: Final = "OK"
NONE: Final = ""
READ: Final = "kafka:Read"
WRITE: Final = "kafka:Write"
_DESCRIBE: Final = "kafka:Describe"
# ``kafka:Connect`` is only a name for usage; policies do not have it.
_APIS_BY_OPERATION: Final[Mapping[str, str]] = {
    "kafka:Alter": (
        "AlterPartitionReassignments AlterReplicaLogDirs AlterUserScramCredentials CreateAcls "
        "CreatePartitions DeleteAcls ElectLeaders UnregisterBroker UpdateFeatures"
    ),
    "kafka:AlterConfigs": "AlterClientQuotas AlterConfigs IncrementalAlterConfigs",
    "kafka:ClusterAction": "WriteTxnMarkers",
    "kafka:Connect": "ApiVersions SaslAuthenticate SaslHandshake",
    "kafka:Create": "CreateTopics",
    "kafka:CreateTokens": "CreateDelegationToken ExpireDelegationToken RenewDelegationToken",
    "kafka:Delete": "DeleteGroups DeleteRecords DeleteShareGroupOffsets DeleteTopics OffsetDelete",
    "kafka:DescribeConfigs": "DescribeClientQuotas DescribeConfigs ListConfigResources",
    "kafka:IdempotentWrite": "InitProducerId",
    READ: (
        "AlterShareGroupOffsets ConsumerGroupHeartbeat Fetch Heartbeat JoinGroup LeaveGroup "
        "OffsetCommit ShareAcknowledge ShareFetch ShareGroupHeartbeat StreamsGroupHeartbeat "
        "SyncGroup TxnOffsetCommit"
    ),
    WRITE: "AddOffsetsToTxn AddPartitionsToTxn EndTxn Produce",
}
_BY_NAME: Final = {
    name: operation for operation, names in _APIS_BY_OPERATION.items() for name in names.split()
}
assert _BY_NAME.keys() <= {api.name for api in APIS.values()}, "an API is not served"
# The operation of each API, by its name. APIs that are not in the table count as Describe.
OPERATIONS: Final[Mapping[str, str]] = {
    api.name: _BY_NAME.get(api.name, _DESCRIBE) for api in APIS.values()
}
DENIALS: Final = frozenset(
    (
        *("CLUSTER_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED"),
        *("DELEGATION_TOKEN_AUTHORIZATION_FAILED", "DELEGATION_TOKEN_OWNER_MISMATCH"),
        *("SASL_AUTHENTICATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    )
)
assert ErrorCode.__members__.keys() >= DENIALS, "a denial is not an error code"
_THROTTLED: Final = ErrorCode.THROTTLING_QUOTA_EXCEEDED.name


class KafkaUsage:
    def __init__(self, table: UsageTable, *, region: str) -> None:
        self._table = table
        self._region = region  # of all topics that Kafka clients name

    def requested(self, account: str, api: str, code: str, seconds: float) -> None:
        """Count one request. ``code`` is the error code of the whole reply, or OK."""
        key = (account, self._region, NONE, OPERATIONS.get(api, NONE))
        if code == OK:
            self._table.request(key, seconds)
        elif code in DENIALS:
            self._table.reject(key, Refusal.DENIED)
        else:
            self._table.reject(key, Refusal.THROTTLED if code == _THROTTLED else Refusal.FAILED)

    def produced(self, topic: Topic, records: int, size_bytes: int) -> None:
        key = (topic.account, topic.region, topic.name, WRITE)
        self._table.move(key, records, size_bytes, 0)

    def fetched(self, topic: Topic, records: int, size_bytes: int) -> None:
        key = (topic.account, topic.region, topic.name, READ)
        self._table.move(key, records, 0, size_bytes)
