"""The log of a replica, as far as replication needs it: its offsets and epochs."""

from dataclasses import KW_ONLY, dataclass

from penstock.replication.epochs import EpochHistory


@dataclass(eq=False)
class ReplicaLog:
    node: int
    incarnation: int
    _: KW_ONLY
    history: EpochHistory
    start_offset: int
    end_offset: int
    durable_offset: int
    high_watermark: int
    low_watermark: int = 0  # as stored on disk; 0 if never

    def __post_init__(self) -> None:
        self.high_watermark = min(self.high_watermark, self.end_offset)

    def appended(self, epoch: int, next_offset: int) -> None:
        """Note that a batch of ``epoch`` was appended, and that the log ends at ``next_offset``."""
        self.history.append(epoch, self.end_offset)
        assert next_offset > self.end_offset, "a batch must have at least one offset"
        self.end_offset = next_offset

    def followed(self, leader_watermark: int) -> int:
        """Advance the high watermark to the leader's, but not beyond the end of this log."""
        self.high_watermark = max(self.high_watermark, min(leader_watermark, self.end_offset))
        return self.high_watermark

    def truncated(self, to: int) -> None:
        assert self.high_watermark <= to <= self.end_offset
        self.end_offset = to
        self.durable_offset = min(self.durable_offset, to)
        self.low_watermark = min(self.low_watermark, to)
        self.history.truncate(to)

    def restarted(self, at: int) -> None:
        self.start_offset = self.end_offset = self.durable_offset = at
        self.high_watermark = at
        self.low_watermark = min(self.low_watermark, at)
        self.history.truncate(-1)

    def trimmed(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.history.trim(start_offset)
