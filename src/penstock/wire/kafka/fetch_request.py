"""Fetch requests, encoded by hand; ``fetch`` has the reply and exports both.

    4 isolation · 5 log start · 7 sessions · 9 leader epoch · 11 rack · 12 compact, last fetched
    epoch · 13 topic ids · 15 replica state as a tag · 17, 18 tags of replicas

A requested partition, from version 12 on:

    ┌───────┬──────────────┬────────┬──────────────┬───────────┬───────────┬──────┐
    │ index │ leader epoch │ offset │ last fetched │ log start │ bytes max │ tags │
    │ i32   │ i32          │ i64    │ epoch i32    │ i64       │ i32       │      │
    └───────┴──────────────┴────────┴──────────────┴───────────┴───────────┴──────┘
"""

import struct
from collections.abc import Sequence

from penstock.model.limits import KAFKA_PARTITIONS_MAX
from penstock.wire.kafka.endpoints import (
    encode_tags,
    read_tags,
)
from penstock.wire.kafka.malformed import TooManyEntries, Unencodable, UnsupportedVersion
from penstock.wire.kafka.pieces import (
    encode_count,
    encode_text,
    encode_topic,
    read_count,
    read_topic,
)
from penstock.wire.kafka.primitives import (
    BROKEN,
    INT32S,
    UNFIT,
    UUID_BYTES,
    UVARINT,
    ZERO_UUID,
    Buffer,
    Message,
    absent,
    count_tags,
    malformed,
    not_uuid,
    oversized,
    read_compact_nullable_text,
    read_compact_text,
    read_plain_text,
    read_uvarint,
    short,
)

VERSION_MIN = 4
VERSION_MAX = 18
FLEXIBLE_FROM = 12
_LOG_START_FROM = 5
_SESSION_FROM = 7
_LEADER_EPOCH_FROM = 9
_RACK_FROM = 11
_TOPIC_ID_FROM = 13
_REPLICA_STATE_FROM = 15
_DIRECTORY_FROM = 17
_HIGH_WATERMARK_FROM = 18

_I64 = struct.Struct(">q")
_REPLICA = struct.Struct(">i")
_WANTS = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_SESSION = struct.Struct(">ii")
_REPLICA_STATE = struct.Struct(">iqx")
# partition[, leader epoch], offset[, last fetched epoch][, log start], max bytes
_WANTED_4 = struct.Struct(">iqi")
_WANTED_5 = struct.Struct(">iqqi")
_WANTED_9 = struct.Struct(">iiqqi")
_WANTED_12 = struct.Struct(">iiqiqiB")

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
HIGH_WATERMARK_UNKNOWN = 2**63 - 1


class FetchPartition(Message, frozen=True, gc=False):
    index: int
    offset: int
    bytes_max: int
    current_leader_epoch: int = -1  # −1: not checked
    last_fetched_epoch: int = -1
    log_start_offset: int = -1  # of the log of a follower
    replica_directory_id: bytes = ZERO_UUID
    high_watermark: int = HIGH_WATERMARK_UNKNOWN  # as the follower knows it


class FetchTopic(Message, frozen=True, gc=False):
    """``name`` up to version 12, ``topic_id`` from 13 on."""

    name: str
    topic_id: bytes
    partitions: Sequence[FetchPartition]


class ForgottenTopic(Message, frozen=True, gc=False):
    name: str
    topic_id: bytes
    partitions: Sequence[int]


class FetchRequest(Message, frozen=True, gc=False):
    wait_ms_max: int
    bytes_min: int
    topics: Sequence[FetchTopic]
    bytes_max: int = 2**31 - 1
    isolation_level: int = READ_UNCOMMITTED
    session_id: int = 0
    session_epoch: int = -1
    forgotten_topics: Sequence[ForgottenTopic] = ()
    rack_id: str = ""
    replica_id: int = -1  # −1: a consumer
    replica_epoch: int = -1
    cluster_id: str | None = None


def _check_version(what: str, version: int) -> None:
    if not VERSION_MIN <= version <= VERSION_MAX:
        raise UnsupportedVersion(what, version)


# ── Request ──────────────────────────────────────────────────────────────────────────────────


def decode_fetch_request(buffer: Buffer, position: int, version: int) -> FetchRequest:
    _check_version("FetchRequest", version)
    try:
        return _read_request(bytes(buffer), position, version)
    except BROKEN as error:
        raise malformed("FetchRequest", error) from None


def _read_request(data: bytes, position: int, version: int) -> FetchRequest:
    is_compact = version >= FLEXIBLE_FROM
    replica_id = replica_epoch = -1
    if version < _REPLICA_STATE_FROM:
        (replica_id,) = _REPLICA.unpack_from(data, position)
        position += _REPLICA.size
    wait_ms_max, bytes_min, bytes_max, isolation = _WANTS.unpack_from(data, position)
    position += _WANTS.size
    session_id, session_epoch = 0, -1
    if version >= _SESSION_FROM:
        session_id, session_epoch = _SESSION.unpack_from(data, position)
        position += _SESSION.size
    read_topics = _read_compact_topics if is_compact else _read_plain_topics
    topics, position = read_topics(data, position, version)
    forgotten: Sequence[ForgottenTopic] = ()
    if version >= _SESSION_FROM:
        forgotten, position = _read_forgotten(data, position, version)
    rack_id = ""
    if version >= _RACK_FROM:
        read_text = read_compact_text if is_compact else read_plain_text
        rack_id, position = read_text(data, position)
    cluster_id: str | None = None
    if is_compact and not data[position]:
        position += 1
    elif is_compact:
        tags, position = read_tags(memoryview(data), position)
        if 0 in tags:
            cluster_id, _ = read_compact_nullable_text(tags[0], 0)
        if 1 in tags and version >= _REPLICA_STATE_FROM:
            replica_id, replica_epoch = _REPLICA_STATE.unpack_from(tags[1], 0)
    if position > len(data):
        raise short()
    return FetchRequest(
        wait_ms_max,
        bytes_min,
        topics,
        bytes_max,
        isolation,
        session_id,
        session_epoch,
        forgotten,
        rack_id,
        replica_id,
        replica_epoch,
        cluster_id,
    )


def _read_plain_topics(
    data: bytes, position: int, version: int
) -> tuple[Sequence[FetchTopic], int]:
    layout = _WANTED_4 if version < _LOG_START_FROM else _WANTED_5
    if version >= _LEADER_EPOCH_FROM:
        layout = _WANTED_9
    topics = []
    partition_count = 0
    count, position = read_count(data, position, 6, False)
    _check_bound("topics", count)
    for _ in range(count):
        name, _, position = read_topic(data, position, is_id=False, is_compact=False)
        count, position = read_count(data, position, layout.size, False)
        partition_count += count
        _check_bound("partitions", partition_count)
        partitions = []
        for _ in range(count):
            fields = layout.unpack_from(data, position)
            position += layout.size
            if version >= _LEADER_EPOCH_FROM:
                index, epoch, offset, start, bytes_max = fields
                partitions.append(FetchPartition(index, offset, bytes_max, epoch, -1, start))
            elif version >= _LOG_START_FROM:
                index, offset, start, bytes_max = fields
                partitions.append(FetchPartition(index, offset, bytes_max, -1, -1, start))
            else:
                index, offset, bytes_max = fields
                partitions.append(FetchPartition(index, offset, bytes_max))
        topics.append(FetchTopic(name, ZERO_UUID, tuple(partitions)))
    return tuple(topics), position


def _read_compact_topics(
    data: bytes, position: int, version: int
) -> tuple[Sequence[FetchTopic], int]:
    is_id = version >= _TOPIC_ID_FROM
    end = len(data)
    topics = []
    partition_count = tag_count = 0
    count, position = read_count(data, position, 3, True)
    _check_bound("topics", count)
    for _ in range(count):
        name, topic_id, position = read_topic(data, position, is_id=is_id, is_compact=True)
        count = data[position]
        position += 1
        if count > 127:
            count, position = read_uvarint(data, position - 1)
        if not 1 <= count <= (end - position) // _WANTED_12.size + 1:
            raise oversized("partitions")
        partition_count += count - 1
        _check_bound("partitions", partition_count)
        partitions = []
        for _ in range(count - 1):
            # The byte after the fields is the number of tagged fields, nearly always 0.
            index, epoch, offset, last_epoch, start, bytes_max, tagged = _WANTED_12.unpack_from(
                data, position
            )
            position += _WANTED_12.size
            directory, watermark = ZERO_UUID, HIGH_WATERMARK_UNKNOWN
            if tagged:
                tag_count += tagged
                _check_bound("tags", tag_count)
                tags, position = read_tags(memoryview(data), position - 1)
                directory, watermark = _replica_tags(tags, version)
            partitions.append(
                FetchPartition(
                    index, offset, bytes_max, epoch, last_epoch, start, directory, watermark
                )
            )
        if data[position]:
            tag_count, position = count_tags(data, position, tag_count)
        else:
            position += 1
        topics.append(FetchTopic(name, topic_id, tuple(partitions)))
    return tuple(topics), position


def _check_bound(name: str, count: int) -> None:
    if count > KAFKA_PARTITIONS_MAX:
        raise TooManyEntries(name, count, KAFKA_PARTITIONS_MAX)


def _replica_tags(tags: dict[int, bytes], version: int) -> tuple[bytes, int]:
    directory = ZERO_UUID
    watermark = HIGH_WATERMARK_UNKNOWN
    if version >= _DIRECTORY_FROM and 0 in tags:
        directory = tags[0]
        if len(directory) != UUID_BYTES:
            raise absent("replica_directory_id")
    if version >= _HIGH_WATERMARK_FROM and 1 in tags:
        (watermark,) = _I64.unpack_from(tags[1], 0)
    return directory, watermark


def _read_forgotten(
    data: bytes, position: int, version: int
) -> tuple[Sequence[ForgottenTopic], int]:
    is_compact = version >= FLEXIBLE_FROM
    topics = []
    partition_count = tags = 0
    count, position = read_count(data, position, 3, is_compact)
    _check_bound("forgotten_topics", count)
    for _ in range(count):
        name, topic_id, position = read_topic(
            data, position, is_id=version >= _TOPIC_ID_FROM, is_compact=is_compact
        )
        count, position = read_count(data, position, 4, is_compact)
        partition_count += count
        _check_bound("partitions", partition_count)
        partitions = INT32S[count].unpack_from(data, position)
        position += 4 * count
        if is_compact:
            tags, position = count_tags(data, position, tags)
        topics.append(ForgottenTopic(name, topic_id, partitions))
    return tuple(topics), position


def encode_fetch_request(value: FetchRequest, version: int) -> bytes:
    _check_version("FetchRequest", version)
    try:
        return b"".join(_request_parts(value, version))
    except UNFIT as error:
        raise Unencodable(f"FetchRequest version {version}: {error}") from error


def _request_parts(value: FetchRequest, version: int) -> list[bytes]:
    is_compact = version >= FLEXIBLE_FROM
    end = b"\x00" if is_compact else b""
    parts = [_REPLICA.pack(value.replica_id)] if version < _REPLICA_STATE_FROM else []
    parts.append(
        _WANTS.pack(value.wait_ms_max, value.bytes_min, value.bytes_max, value.isolation_level)
    )
    if version >= _SESSION_FROM:
        parts.append(_SESSION.pack(value.session_id, value.session_epoch))
    parts.append(encode_count(len(value.topics), is_compact))
    for topic in value.topics:
        parts.append(
            encode_topic(
                topic.name, topic.topic_id, is_id=version >= _TOPIC_ID_FROM, is_compact=is_compact
            )
        )
        parts.append(encode_count(len(topic.partitions), is_compact))
        parts += [_wanted(each, version) for each in topic.partitions]
        parts.append(end)
    if version >= _SESSION_FROM:
        parts.append(encode_count(len(value.forgotten_topics), is_compact))
        for gone in value.forgotten_topics:
            count = len(gone.partitions)
            parts += (
                encode_topic(
                    gone.name, gone.topic_id, is_id=version >= _TOPIC_ID_FROM, is_compact=is_compact
                ),
                encode_count(count, is_compact),
            )
            parts += (INT32S[count].pack(*gone.partitions), end)
    if version >= _RACK_FROM:
        parts.append(encode_text(value.rack_id, is_compact))
    if is_compact:
        tags = []
        if value.cluster_id is not None:
            text = encode_text(value.cluster_id, True)
            tags.append(UVARINT[0] + UVARINT[len(text)] + text)
        if version >= _REPLICA_STATE_FROM and (value.replica_id, value.replica_epoch) != (-1, -1):
            state = _REPLICA_STATE.pack(value.replica_id, value.replica_epoch)
            tags.append(UVARINT[1] + UVARINT[len(state)] + state)
        parts.append(encode_tags(tags))
    return parts


def _wanted(each: FetchPartition, version: int) -> bytes:
    if version < _LOG_START_FROM:
        return _WANTED_4.pack(each.index, each.offset, each.bytes_max)
    if version < _LEADER_EPOCH_FROM:
        return _WANTED_5.pack(each.index, each.offset, each.log_start_offset, each.bytes_max)
    epoch = each.current_leader_epoch
    start = each.log_start_offset
    if version < FLEXIBLE_FROM:
        return _WANTED_9.pack(each.index, epoch, each.offset, start, each.bytes_max)
    tags = []
    if version >= _DIRECTORY_FROM and each.replica_directory_id != ZERO_UUID:
        if len(each.replica_directory_id) != UUID_BYTES:
            raise not_uuid("replica_directory_id")
        tags.append(UVARINT[0] + UVARINT[UUID_BYTES] + each.replica_directory_id)
    if version >= _HIGH_WATERMARK_FROM and each.high_watermark != HIGH_WATERMARK_UNKNOWN:
        tags.append(UVARINT[1] + UVARINT[8] + _I64.pack(each.high_watermark))
    head = _WANTED_12.pack(
        each.index, epoch, each.offset, each.last_fetched_epoch, start, each.bytes_max, len(tags)
    )
    return head + b"".join(tags)
