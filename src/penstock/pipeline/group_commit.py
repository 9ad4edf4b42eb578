"""Commits the offsets that a query has read for a consumer group, so that lag tools see them.

The query itself continues from Spark's checkpoint. A failed commit (the group has members, or the
principal is not authorized) must not end the query, so it is printed once to stderr and ignored.
"""

import sys
from collections.abc import Mapping

from penstock.net.kafka_client import KafkaClient, KafkaRefused, KafkaTrouble, Place, by_topic

_OFFSET_COMMIT = 8
_BY_NAME_MAX = 9  # newer commits name topics by id


class GroupCommit:
    def __init__(self, group: str) -> None:
        self._group = group
        self._told: dict[Place, int] = {}
        self._is_complaining = False

    def commit(self, client: KafkaClient, offsets: Mapping[Place, int]) -> None:
        """Commit the offsets that changed since the last commit."""
        moved = {place: at for place, at in offsets.items() if self._told.get(place) != at}
        if not moved:
            return
        try:
            commit_offsets(client, self._group, moved)
        except KafkaTrouble as trouble:
            if not self._is_complaining:
                self._is_complaining = True
                text = f"cannot commit for group {self._group}: {trouble}"
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - a worker has no logger
            return
        self._is_complaining = False
        self._told.update(moved)


def commit_offsets(client: KafkaClient, group: str, offsets: Mapping[Place, int]) -> None:
    """Commit without joining the group, which must have no members. Raises KafkaTrouble."""
    from penstock.wire.kafka.generated import offset_commit as api

    topics = [
        api.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                api.OffsetCommitRequestPartition(number, offsets[Place(topic, number)])
                for number in numbers
            ],
        )
        for topic, numbers in by_topic(offsets).items()
    ]
    request = api.OffsetCommitRequest(group_id=group, topics=topics)

    def ask() -> None:
        node = client.coordinator(group)
        reply = client.call(_OFFSET_COMMIT, request, node=node, version_max=_BY_NAME_MAX)
        for topic in reply.topics:
            for part in topic.partitions:
                if part.error_code:
                    raise KafkaRefused(part.error_code, subject=f"group {group}, {topic.name}")

    client.retried(ask)
