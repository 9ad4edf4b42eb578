"""Feature levels: what the nodes of a cluster may say to each other and write down.

A version of Penstock speaks a range of levels; the cluster is at one of them, which an operator
raises once every node can (``penstock cluster upgrade``). Until then nothing is sent or written
that an older node would not understand, so that a cluster can be upgraded node by node, and back
again as long as the level was not raised. It is never lowered.

| level | adds |
| --- | --- |
| 1 | everything before there were levels |
| 2 | a leader tells its followers where its logs end: they know how far they are behind |
| 3 | configs of groups are in the metadata store, no longer rows in ``__groups`` |
| 4 | the low watermark of a stream is a file of each replica, no longer an event in the log |
| 5 | streams groups: rows of kinds 12 to 17 in ``__groups`` |
| 6 | access rules (ACLs) and delegation tokens of Kafka are in the metadata store |
| 7 | configs of brokers, client metrics and client quotas are in the metadata store |

A new one: raise LEVEL_MAX, name what it adds here, and ask for it where that is sent or written.
LEVEL_MIN follows in the release after next.
"""

from typing import Final, NamedTuple

LEVEL_FIRST: Final = 1  # of a cluster that says nothing of levels
LEVEL_MIN: Final = 1
LEVEL_MAX: Final = 7

LEADERS_TELL_ENDS: Final = 2
GROUP_CONFIGS_STORED: Final = 3
LOW_WATERMARK_FILES: Final = 4
STREAMS_GROUPS: Final = 5
ACLS_STORED: Final = 6
BROKER_CONFIGS_STORED: Final = 7


class Levels(NamedTuple):
    """Those that a node speaks."""

    lowest: int = LEVEL_MIN
    highest: int = LEVEL_MAX

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"level {self.lowest}"
        return f"levels {self.lowest} to {self.highest}"
