"""What the replicas of a node have done, in numbers that only grow: for the meter, which asks at a
scrape. Raised for each call between nodes and each change of a row, never for a record."""

from collections.abc import Sequence

from penstock.replication.row import Change, View
from penstock.wire.internal.replica_calls import AnswerKind, Told


class ReplicationCounts:
    __slots__ = (
        "bytes_in",
        "bytes_out",
        "epochs",
        "fetches_asked",
        "fetches_served",
        "fetches_unanswered",
        "joined",
        "left",
        "refused",
        "restarts",
        "truncations",
    )

    def __init__(self) -> None:
        # As a follower:
        self.fetches_asked = 0
        self.fetches_unanswered = 0  # of these: no node there, or no answer in time
        self.bytes_in = 0
        self.truncations = 0  # histories that parted: cut to where the leader agrees
        self.restarts = 0  # begun anew, because the leader's log begins behind
        # As a leader:
        self.fetches_served = 0
        self.bytes_out = 0
        self.joined = 0  # in-sync sets, by a follower that has caught up
        self.left = 0  # by one that lags or is gone
        self.refused = 0  # changes of in-sync sets that the store refused or did not answer
        # As either:
        self.epochs = 0  # new leader epochs of what is held here, whoever leads

    def in_sync_changed(self, before: View | None, change: Change) -> None:
        """The store has carried it out."""
        if before is not None:
            self.joined += len(change.row.whole - before.row.whole)
            self.left += len(before.row.whole - change.row.whole)

    def answered(self, told: Sequence[Told]) -> None:
        """A fetch of this node's followers."""
        for one in told:
            self.bytes_in += len(one.data)
            self.truncations += one.kind is AnswerKind.DIVERGE
            self.restarts += one.kind is AnswerKind.BEHIND

    def served(self, told: Sequence[Told]) -> None:
        """A fetch of another node's."""
        self.fetches_served += 1
        for one in told:
            self.bytes_out += len(one.data)
