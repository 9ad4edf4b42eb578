"""The order in which the nodes of a queue are asked for messages. Pure: clock and replies come from
the caller.

Usually this node comes first, because asking it costs no network call. Now and then another node
does, or messages there would wait as long as there are messages here: every fourth time while the
messages found there have waited longer than those here; otherwise half as often each time, down to
every thirty-second time, but at least once a second. The age of a message is measured by the clock
of its own node, so clocks need not agree.
"""

from collections.abc import Sequence
from typing import Final

from penstock.model.message import Delivery

EVERY_MIN: Final = 4
EVERY_MAX: Final = 32
SECONDS_MAX: Final = 1.0
# Ages that differ by less than this, or by less than a quarter, count as equal.
LONGER_MS: Final = 100
LONGER_SHARE: Final = 4
QUEUES_MAX: Final = 10_000  # remembered; then all are forgotten and start again


class _Queue:
    __slots__ = ("begin", "every", "here_ms", "since", "stayed")

    def __init__(self, now_s: float) -> None:
        self.begin = 0  # index of the other node that comes first
        self.every = EVERY_MIN
        self.stayed = 0  # how often this node came first since another did
        self.since = now_s
        self.here_ms = 0  # age of the messages last found here; 0: none were found


class NodeOrder:
    def __init__(self, own_node: int) -> None:
        self._own = own_node
        self._queues: dict[str, _Queue] = {}

    def order(self, topic_id: str, nodes: Sequence[int], *, now_s: float) -> Sequence[int]:
        """Return the nodes in the order to ask them."""
        if len(nodes) < 2:
            return nodes
        queue = self._queues.get(topic_id)
        if queue is None:
            if len(self._queues) >= QUEUES_MAX:
                self._queues.clear()
            queue = self._queues[topic_id] = _Queue(now_s)
        others = [node for node in nodes if node != self._own]
        begin = queue.begin % len(others)
        others = others[begin:] + others[:begin]
        if len(others) == len(nodes):
            queue.begin += 1
            return others
        queue.stayed += 1
        if queue.stayed < queue.every and now_s - queue.since < SECONDS_MAX:
            return [self._own, *others]
        queue.stayed, queue.since = 0, now_s
        queue.begin += 1
        return [*others, self._own]

    def found_here(self, topic_id: str, deliveries: Sequence[Delivery]) -> None:
        queue = self._queues.get(topic_id)
        if queue is not None:
            queue.here_ms = _age_ms(deliveries)

    def found_elsewhere(self, topic_id: str, deliveries: Sequence[Delivery]) -> None:
        """Note the messages of a node that was asked before this one."""
        queue = self._queues.get(topic_id)
        if queue is not None:
            longer_ms = max(LONGER_MS, queue.here_ms // LONGER_SHARE)
            is_older = _age_ms(deliveries) > queue.here_ms + longer_ms
            queue.every = EVERY_MIN if is_older else min(2 * queue.every, EVERY_MAX)


def _age_ms(deliveries: Sequence[Delivery]) -> int:
    """Return how long the first message had waited when it was first leased."""
    if not deliveries:
        return 0
    return deliveries[0].first_leased_at_ms - deliveries[0].record.appended_at_ms
