"""Counters of the replicas of a node, for metrics. They are raised for each call between nodes and
each change of a row, never for a record."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.replication.row import Change, View
from penstock.wire.internal.node_calls import PartitionReply, ReplyKind


@dataclass(slots=True)
class ReplicationCounts:
    # As a follower:
    fetches_asked: int = 0
    fetches_unanswered: int = 0  # no such node, or no reply in time
    bytes_in: int = 0
    truncations: int = 0  # logs that diverged from their leader's
    restarts: int = 0  # logs that ended before their leader's log begins
    # As a leader:
    fetches_served: int = 0
    bytes_out: int = 0
    joined: int = 0  # in-sync sets, by followers that have caught up
    left: int = 0  # by followers that lag or are gone
    refused: int = 0  # changes of in-sync sets that the store rejected or did not confirm
    # As either:
    epochs: int = 0  # new leader epochs of replicas here

    def in_sync_changed(self, before: View | None, change: Change) -> None:
        if before is not None:
            self.joined += len(change.row.whole - before.row.whole)
            self.left += len(before.row.whole - change.row.whole)

    def received(self, replies: Sequence[PartitionReply]) -> None:
        for reply in replies:
            self.bytes_in += len(reply.data)
            self.truncations += reply.kind is ReplyKind.DIVERGE
            self.restarts += reply.kind is ReplyKind.BEHIND

    def served(self, replies: Sequence[PartitionReply]) -> None:
        self.fetches_served += 1
        for reply in replies:
            self.bytes_out += len(reply.data)
