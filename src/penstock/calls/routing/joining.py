"""A call to all leaders of a topic, whose replies are joined."""

import asyncio
from typing import Any

from msgspec.structs import replace

from penstock.calls.routing.leaders import AttemptFailed, Leaders, Led, place_of
from penstock.model.calls import BrokerCall, LeadersCall
from penstock.model.errors import NotLeader, PenstockError
from penstock.wire.internal.broker_calls import RULES


class Joining:
    """One such call. The replies of an attempt are kept for the next attempts."""

    def __init__(self, leaders: Leaders, call: LeadersCall[Any]) -> None:
        rule = RULES[type(call)]
        assert rule.join is not None, f"{type(call).__name__} has replies that can be joined"
        self._join = rule.join
        self._repeated = rule.repeated
        self._leaders = leaders
        self._call = call
        self._replies: dict[int, Any] = {}  # reply or error, by node
        self._covered: dict[int, set[int]] = {}  # the partitions of each reply
        self._asked: set[int] = set()

    async def attempt(self, _call: BrokerCall[Any]) -> Any:
        """Call the nodes that have not replied or lead more partitions now, all at the same time.
        Raises AttemptFailed if a node did not reply or a partition has no leader."""
        topic = self._call.topic
        led = self._leaders.led(topic, range(topic.partition_count))
        nodes: dict[int, set[int]] = {}
        error: PenstockError | None = None
        for partition, one in led.items():
            if one is not None:
                nodes.setdefault(one[0], set()).add(partition)
            elif error is None:
                error = NotLeader(place_of(topic, partition))
        missing = [
            node
            for node, leads in nodes.items()
            if node not in self._replies or not leads <= self._covered[node]
        ]
        for node, reply in zip(
            missing, await asyncio.gather(*(self._ask(node, led) for node in missing)), strict=True
        ):
            if isinstance(reply, AttemptFailed):
                error = reply.error
            else:
                self._replies[node], self._covered[node] = reply, nodes[node]
        if error is not None:
            raise AttemptFailed(error, topic, led)
        return self._joined([self._replies[node] for node in nodes])

    async def _ask(self, node: int, led: Led) -> Any:
        """Return the reply, the error that the node raised, or AttemptFailed."""
        is_repeated = node in self._asked
        self._asked.add(node)
        counted_on = [
            (partition, one[1])
            for partition, one in led.items()
            if one is not None and one[0] == node
        ]
        call = replace(self._call, counted_on=counted_on)
        try:
            return await self._leaders.send(node, call)
        except PenstockError as error:
            if is_repeated and self._repeated is not None and isinstance(error, self._repeated):
                return None  # an earlier attempt was carried out; its reply was lost
            try:
                return self._leaders.failed(error, node, call, call.topic, led)
            except PenstockError as final:
                return final

    def _joined(self, replies: list[Any]) -> Any:
        errors = [each for each in replies if isinstance(each, PenstockError)]
        for error in errors:
            # In a repeated call some nodes have carried out their part before.
            is_repeated = self._repeated is not None and isinstance(error, self._repeated)
            if not is_repeated or len(errors) == len(replies):
                raise error
        return self._join([each for each in replies if not isinstance(each, PenstockError)])
