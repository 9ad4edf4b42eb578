"""Which partition a message goes to, and the sequence number that follows from where it landed.

Standard queues: the next partition in turn, one turn per send call. A whole batch goes to one
partition, so that it shares one append and one sync.

FIFO queues: order holds within a group, so a group must always meet the same partition: see
model/partitioning.py, which the broker shares.

Sequence number, twenty digits:

    |  17 digits: offset in the partition  | 3 digits: partition |

A group has one partition and offsets only rise, so the number rises within a group; between groups
it says nothing, as with the original."""

from penstock.model.topic import Topic

TURNS_MAX = 10_000  # topics whose turn is remembered; forgetting one only restarts its round

_PARTITION_SPAN = 1_000


class Rotation:
    """Whose turn it is, per topic. Per topic and not once for all: two queues that are sent to
    alternately would otherwise each see only every other partition."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def next(self, topic: Topic) -> int:
        count = topic.partition_count
        if count == 1:
            return 0
        turns = self._turns
        partition = turns.get(topic.topic_id, 0)
        if partition == 0 and len(turns) >= TURNS_MAX:
            turns.clear()
        turns[topic.topic_id] = partition + 1 if partition + 1 < count else 0
        return partition


def sequence_number(partition: int, offset: int) -> str:
    assert partition < _PARTITION_SPAN, "three digits hold the partition"
    return f"{offset:017d}{partition:03d}"
