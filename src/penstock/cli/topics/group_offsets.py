"""Reads and writes the committed offsets of a consumer group without being a member. The
coordinator allows writing only while the group has no members."""

from collections.abc import Mapping

from penstock.cli.clients.kafka import Kafka, Place, by_topic, check
from penstock.cli.terminal.failure import Conflict

_OFFSET_COMMIT, _OFFSET_FETCH, _DESCRIBE_SHARE_OFFSETS = 8, 9, 90
_COMMIT_BY_NAME_MAX = 9  # later versions name topics by id
_ONE_GROUP_MAX = 7  # later versions request several groups
_IDLE_STATES = frozenset(("empty", "dead"))


def committed(kafka: Kafka, group: str) -> dict[Place, int]:
    """Return all offsets that a group has committed."""
    from penstock.wire.kafka.generated.offset_fetch import OffsetFetchRequest

    what = f"cannot read the offsets of group '{group}'"
    node = kafka.coordinator(group, what=what)
    request = OffsetFetchRequest(group_id=group, topics=None)
    reply = kafka.call(_OFFSET_FETCH, request, node=node, version_max=_ONE_GROUP_MAX)
    check(what, reply.error_code)
    found = {}
    for topic in reply.topics:
        for part in topic.partitions:
            check(f"{what}: {topic.name}, {part.partition_index}", part.error_code)
            if part.committed_offset >= 0:
                found[Place(topic.name, part.partition_index)] = part.committed_offset
    return found


def share_starts(kafka: Kafka, group: str) -> dict[Place, int]:
    """Return the first record of each partition that a share group has not finished."""
    from penstock.wire.kafka.generated import describe_share_group_offsets as api

    what = f"cannot read the offsets of group '{group}'"
    node = kafka.coordinator(group, what=what)
    groups = [api.DescribeShareGroupOffsetsRequestGroup(group, None)]
    request = api.DescribeShareGroupOffsetsRequest(groups=groups)
    (found,) = kafka.call(_DESCRIBE_SHARE_OFFSETS, request, node=node).groups
    check(what, found.error_code, found.error_message)
    starts = {}
    for topic in found.topics:
        for part in topic.partitions:
            check(f"{what}: {topic.topic_name}, {part.partition_index}", part.error_code)
            if part.start_offset >= 0:
                starts[Place(topic.topic_name, part.partition_index)] = part.start_offset
    return starts


def commit(kafka: Kafka, group: str, offsets: Mapping[Place, int], *, what: str) -> None:
    from penstock.wire.kafka.generated import offset_commit as api

    topics = [
        api.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                api.OffsetCommitRequestPartition(place.partition, offset)
                for place, offset in offsets.items()
                if place.topic == topic
            ],
        )
        for topic in by_topic(offsets)
    ]
    request = api.OffsetCommitRequest(group_id=group, topics=topics)
    node = kafka.coordinator(group, what=what)
    reply = kafka.call(_OFFSET_COMMIT, request, node=node, version_max=_COMMIT_BY_NAME_MAX)
    for topic in reply.topics:
        for part in topic.partitions:
            check(f"{what}: {topic.name}, {part.partition_index}", part.error_code)


def check_idle(kafka: Kafka, group: str, *, what: str) -> None:
    """Raise Failure if the group has members, because the coordinator would refuse a commit."""
    node = kafka.coordinator(group, what=what)
    for each in kafka.groups([node], what=what):
        if each.name == group and each.state.lower() not in _IDLE_STATES:
            raise Conflict(
                what,
                f"group '{group}' has members",
                f"stop the members first (see `penstock group show {group}`), or omit --group",
            )
