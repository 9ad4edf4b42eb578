"""Feature levels, which determine what the nodes of a cluster may send to each other and store.

A version of Penstock supports a range of levels. The cluster is at one level, which an operator
raises when every node supports it (``penstock cluster upgrade``); it is never lowered. Until it is
raised, nothing is sent or stored that an older node does not understand, so a cluster can be
upgraded, and downgraded again, node by node.

| level | adds |
| --- | --- |
| 1 | everything that older versions support |
| 2 | a leader sends its followers the end offsets of its logs, so that they know their lag |
| 3 | configs of groups are in the metadata store, no longer rows in ``__groups`` |
| 4 | the low watermark of a stream is a file of each replica, no longer an event in the log |
| 5 | streams groups: rows of kinds 12 to 17 in ``__groups`` |
| 6 | access rules (ACLs) and delegation tokens of Kafka are in the metadata store |
| 7 | configs of brokers, client metrics and client quotas are in the metadata store |
| 8 | push: SNS topics, subscriptions, ordered shares, bookmarks, more reasons of acks |

To add a level, raise LEVEL_MAX, add a row here, and check the level where the new data is sent or
stored. LEVEL_MIN is raised two releases later."""

from typing import Final, NamedTuple

LEVEL_FIRST: Final = 1  # level of nodes that do not know levels
LEVEL_MIN: Final = 1
LEVEL_MAX: Final = 8

LEADERS_SEND_ENDS: Final = 2
GROUP_CONFIGS_STORED: Final = 3
LOW_WATERMARK_FILES: Final = 4
STREAMS_GROUPS: Final = 5
ACLS_STORED: Final = 6
BROKER_CONFIGS_STORED: Final = 7
PUSH: Final = 8


class Levels(NamedTuple):
    lowest: int = LEVEL_MIN
    highest: int = LEVEL_MAX

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"level {self.lowest}"
        return f"levels {self.lowest} to {self.highest}"
