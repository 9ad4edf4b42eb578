"""When the positions that nodes have told make a cut, and when they do not."""

import msgspec
import pytest

from penstock.backup.admin import _confirmed
from penstock.metadata.cluster_entries import PartitionKey
from penstock.model.errors import Overloaded
from penstock.model.topic import Kind, Topic
from penstock.replication.row import PartitionRow
from penstock.wire.internal.node_calls import PartitionPositions

KEY = PartitionKey("a" * 32, 0)
ROW = PartitionRow((1, 2), frozenset((1, 2)), leader=2, epoch=5)
TAKEN = PartitionPositions(KEY.topic_id, 0, 0, 10, 5, True, 100)


class Topics:
    def __init__(self, *ids: str) -> None:
        self._topics = [
            Topic(
                topic_id=topic_id,
                account="000000000000",
                region="us-east-1",
                name=topic_id[:4],
                kind=Kind.STANDARD,
                partition_count=1,
                created_at_ms=1,
                modified_at_ms=1,
                receipt_key=b"k" * 32,
            )
            for topic_id in ids
        ]

    def all_topics(self) -> list[Topic]:
        return self._topics

    def find_id(self, topic_id: str) -> Topic | None:
        return next((one for one in self._topics if one.topic_id == topic_id), None)


HERE = Topics(KEY.topic_id).find_id


def test_the_leader_of_the_epoch_that_is_in_the_store_is_believed() -> None:
    stale = msgspec.structs.replace(TAKEN, epoch=4, end_offset=7)
    assert _confirmed([KEY], {KEY: ROW}, {KEY: [(1, stale), (2, TAKEN)]}, HERE) == [TAKEN]


@pytest.mark.parametrize(
    "told",
    [
        [],
        [(1, TAKEN)],
        [(2, msgspec.structs.replace(TAKEN, epoch=4))],
        [(2, msgspec.structs.replace(TAKEN, epoch=6))],
        [(2, msgspec.structs.replace(TAKEN, is_settled=False))],
    ],
)
def test_nobody_else_is(told: list[tuple[int, PartitionPositions]]) -> None:
    with pytest.raises(Overloaded, match=str(KEY)):
        _confirmed([KEY], {KEY: ROW}, {KEY: told}, HERE)


def test_what_is_deleted_or_was_never_written_to_is_not_missed() -> None:
    assert _confirmed([KEY], {}, {}, HERE) == []
    assert _confirmed([KEY], {KEY: ROW}, {}, Topics().find_id) == []
