"""Whom to ask first for messages of a queue that several nodes have a part of. Pure: the clock and
what was found are told.

This node, since asking it costs nothing; and now and then another, or what lies elsewhere would
wait for as long as there is something here. How often follows from what comes of it. As long as
what is found there has waited longer than what is found here, nobody else looks after it enough:
every fourth time. When it has not, half as often from then on, down to every thirty-second time; a
second is never let pass without it, for whoever asks rarely can afford to ask elsewhere. How long a
message has waited is told by the clock of its own node, so clocks need not agree.
"""

from collections.abc import Sequence
from typing import Final

from penstock.model.message import Delivery

EVERY_MIN: Final = 4
EVERY_MAX: Final = 32
SECONDS_MAX: Final = 1.0
# Longer by less than this, and by less than a quarter, is as good as equal.
LONGER_MS: Final = 100
LONGER_SHARE: Final = 4
QUEUES_MAX: Final = 10_000  # whose turn is remembered; forgetting one restarts its round


class _Queue:
    __slots__ = ("begin", "every", "here_ms", "since", "stayed")

    def __init__(self, now_s: float) -> None:
        self.begin = 0  # of the others, who comes first
        self.every = EVERY_MIN
        self.stayed = 0  # how often this node has come first since another did
        self.since = now_s
        self.here_ms = 0  # for how long what was last found here had waited; 0: nothing was


class Turns:
    def __init__(self, own_node: int) -> None:
        self._own = own_node
        self._queues: dict[str, _Queue] = {}

    def order(self, topic_id: str, nodes: Sequence[int], *, now_s: float) -> Sequence[int]:
        """The same nodes, in the order to ask them in."""
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
            queue.here_ms = _waited_ms(deliveries)

    def found_elsewhere(self, topic_id: str, deliveries: Sequence[Delivery]) -> None:
        """By asking there before this node."""
        queue = self._queues.get(topic_id)
        if queue is None:
            return
        here_ms = queue.here_ms
        is_neglected = _waited_ms(deliveries) > here_ms + max(LONGER_MS, here_ms // LONGER_SHARE)
        queue.every = EVERY_MIN if is_neglected else min(2 * queue.every, EVERY_MAX)


def _waited_ms(deliveries: Sequence[Delivery]) -> int:
    """Until it was first handed out."""
    if not deliveries:
        return 0
    return deliveries[0].first_leased_at_ms - deliveries[0].record.appended_at_ms
