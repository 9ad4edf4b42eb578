"""Commits the offsets that a query has read for a consumer group, so that lag tools see them.

The query itself continues from Spark's checkpoint. A failed commit (the group has members, or the
principal is not authorized) must not end the query, so it is printed once to stderr and ignored."""

import sys
from collections.abc import Mapping

from penstock.net.kafka_client.client import KafkaClient, KafkaTrouble, Place
from penstock.pipeline.client.group_offsets import Committed, commit_offsets


class GroupCommit:
    def __init__(self, group: str) -> None:
        self._group = group
        self._committed: dict[Place, int] = {}
        self._is_failing = False

    def commit(self, client: KafkaClient, reached: Mapping[Place, int]) -> None:
        """Commit the offsets that changed since the last commit."""
        moved = {place: at for place, at in reached.items() if self._committed.get(place) != at}
        if not moved:
            return
        try:
            offsets = {place: Committed(at) for place, at in moved.items()}
            commit_offsets(client, self._group, offsets)
        except KafkaTrouble as trouble:
            if not self._is_failing:
                self._is_failing = True
                text = f"cannot commit for group {self._group}: {trouble}"
                print(text, file=sys.stderr, flush=True)  # noqa: T201 - a worker has no logger
            return
        self._is_failing = False
        self._committed.update(moved)
