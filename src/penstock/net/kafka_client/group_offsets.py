"""Reads and commits the offsets of a consumer group without joining the group. The Spark sink and
replays of messages also store their progress as committed offsets."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.net.kafka_client.client import KafkaClient, KafkaRefused, Place, by_topic

_OFFSET_COMMIT, _OFFSET_FETCH, _DESCRIBE_SHARE_OFFSETS = 8, 9, 90
_COMMIT_BY_NAME_MAX: Final = 9  # newer commits name topics by id
_FETCH_ONE_GROUP_MAX: Final = 7  # newer requests name several groups


class Committed(NamedTuple):
    offset: int
    metadata: str = ""


def committed_offsets(client: KafkaClient, group: str) -> dict[Place, Committed]:
    from penstock.wire.kafka.generated.offset_fetch import OffsetFetchRequest

    request = OffsetFetchRequest(group_id=group, topics=None)

    def fetch() -> dict[Place, Committed]:
        node = client.coordinator(group)
        reply = client.call(_OFFSET_FETCH, request, node=node, version_max=_FETCH_ONE_GROUP_MAX)
        _check(reply.error_code, group)
        found = {}
        for topic in reply.topics:
            for part in topic.partitions:
                place = Place(topic.name, part.partition_index)
                _check(part.error_code, group, place)
                found[place] = Committed(part.committed_offset, part.metadata or "")
        return {place: each for place, each in found.items() if each.offset >= 0}

    return client.retried(fetch)


def share_starts(client: KafkaClient, group: str) -> dict[Place, int]:
    """Return, for each partition, the offset before which a share group has finished all records,
    or -1 if the group has not read the partition."""
    from penstock.wire.kafka.generated import describe_share_group_offsets as api

    groups = [api.DescribeShareGroupOffsetsRequestGroup(group, None)]
    request = api.DescribeShareGroupOffsetsRequest(groups=groups)
    reply = client.call(_DESCRIBE_SHARE_OFFSETS, request, node=client.coordinator(group))
    found = {}
    for each in reply.groups:
        _check(each.error_code, group, message=each.error_message)
        for topic in each.topics:
            for part in topic.partitions:
                place = Place(topic.topic_name, part.partition_index)
                _check(part.error_code, group, place)
                found[place] = part.start_offset
    return found


def commit_offsets(client: KafkaClient, group: str, offsets: Mapping[Place, Committed]) -> None:
    """Commit offsets for a group. The group must not have members."""
    from penstock.wire.kafka.generated import offset_commit as api

    topics = [
        api.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                api.OffsetCommitRequestPartition(
                    number,
                    offsets[Place(topic, number)].offset,
                    committed_metadata=offsets[Place(topic, number)].metadata,
                )
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(offsets).items()
    ]
    request = api.OffsetCommitRequest(group_id=group, topics=topics)

    def commit() -> None:
        node = client.coordinator(group)
        reply = client.call(_OFFSET_COMMIT, request, node=node, version_max=_COMMIT_BY_NAME_MAX)
        for topic in reply.topics:
            for part in topic.partitions:
                _check(part.error_code, group, Place(topic.name, part.partition_index))

    client.retried(commit)


def _check(code: int, group: str, place: Place | None = None, message: str | None = None) -> None:
    if code:
        where = f": {place.topic}, partition {place.partition}" if place else ""
        raise KafkaRefused(code, message or "", subject=f"group {group}{where}")
