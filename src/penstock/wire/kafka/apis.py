"""The APIs that are served, their versions, and where their codecs are.

The ranges are those of Apache Kafka 4.3, because clients choose features by them: new clients
refuse a broker that only has old versions. Two rows differ from what we support:

- Produce is advertised from 0 but served from 3 on. librdkafka before 2.11 takes a minimum above 0
  for a broker without compression and silently stops compressing.
- Telemetry (71, 72) is missing: both large clients call it as soon as it is there.

Codecs are imported when first used: a server that only produces and fetches loads no others."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.wire.kafka.primitives import Buffer, Message

PRODUCE = 0
FETCH = 1
SASL_HANDSHAKE = 17
API_VERSIONS = 18
SASL_AUTHENTICATE = 36
SHARE_FETCH = 78

_GENERATED = "penstock.wire.kafka.generated."
_BY_HAND: Mapping[int, str] = {
    PRODUCE: "penstock.wire.kafka.produce",
    FETCH: "penstock.wire.kafka.fetch",
}


class Codec(NamedTuple):
    """Importers of the codec's module know the exact message classes."""

    decode_request: Callable[[Buffer, int, int], Message]
    encode_response: Callable[[Any, int], bytes]
    encode_request: Callable[[Any, int], bytes]
    decode_response: Callable[[Buffer, int, int], Message]


class Api(NamedTuple):
    key: int
    name: str
    snake: str
    advertised_min: int
    version_min: int  # the first version that is served
    version_max: int
    flexible_from: int | None

    def serves(self, version: int) -> bool:
        return self.version_min <= version <= self.version_max

    def is_flexible(self, version: int) -> bool:
        return self.flexible_from is not None and version >= self.flexible_from

    def request_header_version(self, version: int) -> int:
        return 2 if self.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        # A client that sends ApiVersions does not know the server's versions yet, so this header
        # never changes.
        return 1 if self.is_flexible(version) and self.key != API_VERSIONS else 0

    def codec(self) -> Codec:
        module = import_module(_BY_HAND.get(self.key, _GENERATED + self.snake))
        return Codec(
            getattr(module, f"decode_{self.snake}_request"),
            getattr(module, f"encode_{self.snake}_response"),
            getattr(module, f"encode_{self.snake}_request"),
            getattr(module, f"decode_{self.snake}_response"),
        )

    def response_class(self) -> Any:
        return getattr(import_module(_GENERATED + self.snake), f"{self.name}Response")


# key, name, first and last version, first flexible version
_ROWS: tuple[tuple[int, str, int, int, int | None], ...] = (
    (0, "Produce", 3, 13, 9),
    (1, "Fetch", 4, 18, 12),
    (2, "ListOffsets", 1, 11, 6),
    (3, "Metadata", 0, 13, 9),
    (8, "OffsetCommit", 2, 10, 8),
    (9, "OffsetFetch", 1, 10, 6),
    (10, "FindCoordinator", 0, 6, 3),
    (11, "JoinGroup", 0, 9, 6),
    (12, "Heartbeat", 0, 4, 4),
    (13, "LeaveGroup", 0, 5, 4),
    (14, "SyncGroup", 0, 5, 4),
    (15, "DescribeGroups", 0, 6, 5),
    (16, "ListGroups", 0, 5, 3),
    (17, "SaslHandshake", 0, 1, None),
    (18, "ApiVersions", 0, 4, 3),
    (19, "CreateTopics", 2, 7, 5),
    (20, "DeleteTopics", 1, 6, 4),
    (21, "DeleteRecords", 0, 2, 2),
    (22, "InitProducerId", 0, 5, 2),
    (23, "OffsetForLeaderEpoch", 2, 4, 4),
    (24, "AddPartitionsToTxn", 0, 5, 3),
    (25, "AddOffsetsToTxn", 0, 4, 3),
    (26, "EndTxn", 0, 5, 3),
    (27, "WriteTxnMarkers", 1, 2, 1),
    (28, "TxnOffsetCommit", 0, 5, 3),
    (29, "DescribeAcls", 1, 3, 2),
    (30, "CreateAcls", 1, 3, 2),
    (31, "DeleteAcls", 1, 3, 2),
    (32, "DescribeConfigs", 1, 4, 4),
    (33, "AlterConfigs", 0, 2, 2),
    (34, "AlterReplicaLogDirs", 1, 2, 2),
    (35, "DescribeLogDirs", 1, 5, 2),
    (36, "SaslAuthenticate", 0, 2, 2),
    (37, "CreatePartitions", 0, 3, 2),
    (38, "CreateDelegationToken", 1, 3, 2),
    (39, "RenewDelegationToken", 1, 2, 2),
    (40, "ExpireDelegationToken", 1, 2, 2),
    (41, "DescribeDelegationToken", 1, 3, 2),
    (42, "DeleteGroups", 0, 2, 2),
    (43, "ElectLeaders", 0, 2, 2),
    (44, "IncrementalAlterConfigs", 0, 1, 1),
    (45, "AlterPartitionReassignments", 0, 1, 0),
    (46, "ListPartitionReassignments", 0, 0, 0),
    (47, "OffsetDelete", 0, 0, None),
    (48, "DescribeClientQuotas", 0, 1, 1),
    (49, "AlterClientQuotas", 0, 1, 1),
    (50, "DescribeUserScramCredentials", 0, 0, 0),
    (51, "AlterUserScramCredentials", 0, 0, 0),
    (55, "DescribeQuorum", 0, 2, 0),
    (57, "UpdateFeatures", 0, 2, 0),
    (60, "DescribeCluster", 0, 2, 0),
    (61, "DescribeProducers", 0, 0, 0),
    (64, "UnregisterBroker", 0, 0, 0),
    (65, "DescribeTransactions", 0, 0, 0),
    (66, "ListTransactions", 0, 2, 0),
    (68, "ConsumerGroupHeartbeat", 0, 1, 0),
    (69, "ConsumerGroupDescribe", 0, 1, 0),
    (74, "ListConfigResources", 0, 1, 0),
    (75, "DescribeTopicPartitions", 0, 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1, 0),
    (77, "ShareGroupDescribe", 1, 1, 0),
    (78, "ShareFetch", 1, 2, 0),
    (79, "ShareAcknowledge", 1, 2, 0),
    (88, "StreamsGroupHeartbeat", 0, 0, 0),
    (89, "StreamsGroupDescribe", 0, 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 1, 0),
    (91, "AlterShareGroupOffsets", 0, 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0, 0),
)
_ADVERTISED_MIN: Mapping[int, int] = {PRODUCE: 0}


def _snake(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name)[1:]


APIS: Mapping[int, Api] = MappingProxyType(
    {
        key: Api(key, name, _snake(name), _ADVERTISED_MIN.get(key, first), first, last, flexible)
        for key, name, first, last, flexible in _ROWS
    }
)
