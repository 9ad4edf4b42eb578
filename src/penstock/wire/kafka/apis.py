"""The APIs that are served, their versions and codecs, and the headers of requests and responses.

The version ranges are those of Apache Kafka 4.3, because clients choose features by version, and
new clients refuse a broker that has only old versions. There are two exceptions:

- Produce is advertised from version 0, but served from version 3. If the minimum is above 0,
  librdkafka before 2.11 assumes that the broker has no compression, and silently stops compressing.
- The telemetry APIs (71, 72) are missing, because clients call them as soon as a broker has them.

Codecs are imported when first used, so that a server loads only those that its clients need.

    request    ┌────────┬─────────┬─────────┬─────────────┬───────────────┬──────────────┬──────┐
               │ length │ api key │ version │ correlation │ client id     │ tagged       │ body │
               │ i32    │ i16     │ i16     │ id i32      │ i16 + bytes   │ fields       │      │
               └────────┴─────────┴─────────┴─────────────┴───────────────┴──────────────┴──────┘
                        └─ version 0 ─────────────────────┘ … version 1 ──┘ … version 2 ─┘
    response   ┌────────┬─────────────┬───────────────┬──────┐
               │ length │ correlation │ tagged fields │ body │   version 0 has no tagged fields
               └────────┴─────────────┴───────────────┴──────┘

``length`` counts the bytes after it. The length of the client id has two bytes in all versions, so
that any server can read the header of any client."""

import struct
from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.wire.kafka.primitives import (
    BROKEN,
    Buffer,
    Message,
    UnsupportedVersion,
    absent,
    malformed,
    short,
    skip_tags,
)

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


_LENGTH = struct.Struct(">i")
_KEY_VERSION = struct.Struct(">hh")
_HEAD = struct.Struct(">hhi")
_HEAD_1 = struct.Struct(">hhih")  # with the length of the client id
_CLIENT_ID = struct.Struct(">h")
_RESPONSE_HEADERS = (struct.Struct(">i"), struct.Struct(">ix"))  # by header version

LENGTH_BYTES = _LENGTH.size
REQUEST_BYTES_MIN = _HEAD.size


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_at: int  # start of the message


class UnknownApi(UnsupportedVersion):
    """The client sent an API or version that is not served, so the connection is closed."""

    def __init__(self, api_key: int, version: int) -> None:
        api = APIS.get(api_key)
        super().__init__(api.name if api else f"API key {api_key}", version)
        self.api_key = api_key


def parse_request_header(buffer: Buffer, position: int = 0) -> RequestHeader:
    """Parse the header of a request. An ApiVersions request may have any version, any other request
    must have a served version: otherwise UnknownApi is raised."""
    if len(buffer) - position < REQUEST_BYTES_MIN:
        raise short()
    key, version = _KEY_VERSION.unpack_from(buffer, position)
    api = APIS.get(key)
    if api is None or not (api.serves(version) or (key == API_VERSIONS and version >= 0)):
        raise UnknownApi(key, version)
    return decode_request_header(buffer, position, api.request_header_version(version))


def decode_request_header(buffer: Buffer, position: int, header_version: int) -> RequestHeader:
    client_id: str | None = None
    try:
        if header_version == 0:
            key, version, correlation_id = _HEAD.unpack_from(buffer, position)
            position += _HEAD.size
        else:
            key, version, correlation_id, size = _HEAD_1.unpack_from(buffer, position)
            position += _HEAD_1.size
            if size >= 0:
                stop = position + size
                client_id = str(buffer[position:stop], "utf-8")
                position = stop
            elif size != -1:
                raise absent("client_id")
        if header_version >= 2:
            position = skip_tags(buffer, position) if buffer[position] else position + 1
    except BROKEN as error:
        raise malformed("request header", error) from None
    if position > len(buffer):
        raise short()
    return RequestHeader(key, version, correlation_id, client_id, position)


def is_unknown_api_versions(header: RequestHeader) -> bool:
    api = APIS[API_VERSIONS]
    return header.api_key == API_VERSIONS and not api.serves(header.api_version)


def response_header(correlation_id: int, header_version: int) -> bytes:
    return _RESPONSE_HEADERS[header_version].pack(correlation_id)


def encode_response_frame(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    header = response_header(correlation_id, api.response_header_version(version))
    return _LENGTH.pack(len(header) + len(body)) + header + body


def encode_request_frame(
    api: Api, version: int, *, correlation_id: int, client_id: str | None, body: bytes
) -> bytes:
    raw = b"" if client_id is None else client_id.encode()
    head = _HEAD.pack(api.key, version, correlation_id)
    head += _CLIENT_ID.pack(-1 if client_id is None else len(raw)) + raw
    if api.request_header_version(version) >= 2:
        head += b"\x00"
    return _LENGTH.pack(len(head) + len(body)) + head + body


def parse_response_header(buffer: Buffer, header_version: int) -> tuple[int, int]:
    """Return the correlation id, and the position of the body in a frame without its length."""
    try:
        (correlation_id,) = _LENGTH.unpack_from(buffer, 0)
        position = skip_tags(buffer, LENGTH_BYTES) if header_version >= 1 else LENGTH_BYTES
    except BROKEN as error:
        raise malformed("response header", error) from None
    if position > len(buffer):
        raise short()
    return correlation_id, position
