"""The brokers of all nodes as one ``BrokerPort``, so that callers need not know which node leads.

A call about one partition goes to its leader, a call about a whole queue to all its leaders, whose
replies are joined. A task that moves messages runs at the leader of the first partition of its
source queue. The leader of a topic's first partition also creates its shares (share groups).

A message to a standard queue may go to any partition that has a leader. Sending a message to
another node costs about twice as much as storing it locally. So a node stores messages in the
partitions that it leads itself, round robin. A node that leads none sends to the partition
that the caller chose, or to the next one whose leader is reachable. A node whose own partition has
rejected a message (full disk, damage) does the same for one second."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from penstock.calls.routing.leaders import (
    AttemptFailed,
    FollowingListener,
    LeaderChanges,
    Leaders,
    Led,
    Listener,
    Remove,
    Routes,
    place_of,
)
from penstock.calls.routing.leasing import Leasing
from penstock.model import calls
from penstock.model.errors import DiskFull, NotLeader, Overloaded, PenstockError, TopicNotFound
from penstock.model.message import Appended
from penstock.model.ports import MoveTask
from penstock.model.topic import Kind, Topic
from penstock.wire.internal.broker_calls import RULES

TURNS_MAX: Final = 10_000  # queues whose next partition is remembered; with more, all restart
REFUSED_MAX: Final = 10_000  # queues whose local partitions are avoided; then all are used again
REFUSED_SECONDS: Final = 1.0

Route = Callable[[Any], Coroutine[Any, Any, Any]]


class Router:
    def __init__(self, leaders: Leaders, find_arn: Callable[[str], Topic | None]) -> None:
        self._leaders = leaders
        self._find_arn = find_arn
        self._changes = LeaderChanges(leaders.routes)
        self._appending = Appending(leaders)
        self._leasing = Leasing(leaders, self._changes)
        local = leaders.local
        # When this node is draining, ends the receives that are parked at several nodes. The broker
        # ends only those at its own partitions.
        self.end_waits = self._leasing.end_waits
        self._routes_of: dict[type[calls.BrokerCall[Any]], Route] = {
            calls.Append: self._append,
            calls.Lease: self._leasing.lease,
            calls.StartMove: self._start_move,
            calls.CancelMove: self._cancel_move,
            calls.CloseShare: local.call,  # deletes an entry of the catalog
        }
        for kind in RULES:
            route = self._to_leader if issubclass(kind, calls.PartitionCall) else self._to_leaders
            self._routes_of.setdefault(kind, route)
        self._follow = partial(FollowingListener, leaders, self._changes)
        self.moves = local.moves
        self.find_share = local.find_share

    async def close(self) -> None:
        await self._leasing.close()
        await self._leaders.close()
        await self._changes.close()

    def call(self, call: calls.BrokerCall[calls.R]) -> Coroutine[Any, Any, calls.R]:
        return self._routes_of[type(call)](call)

    def _to_leader(self, call: calls.PartitionCall[calls.R]) -> Coroutine[Any, Any, calls.R]:
        return self._leaders.at_leader(call.topic, call.partition, call)

    def _to_leaders(self, call: calls.LeadersCall[calls.R]) -> Coroutine[Any, Any, calls.R]:
        return self._leaders.retry(call, Joining(self._leaders, call).attempt)

    def _append(self, call: calls.Append) -> Coroutine[Any, Any, Any]:
        topic = call.topic
        if topic.partition_count > 1 and topic.kind is Kind.STANDARD:
            return self._leaders.retry(call, self._appending.attempt)
        return self._leaders.at_leader(topic, call.partition, call)

    def _start_move(self, call: calls.StartMove) -> Coroutine[Any, Any, None]:
        source = self._find_arn(call.task.source_arn)
        if source is None:
            raise TopicNotFound(call.task.source_arn)
        return self._leaders.at_leader(source, 0, call)

    async def _cancel_move(self, call: calls.CancelMove) -> MoveTask | None:
        """Cancel a task that moves messages, at any node: the leader may have changed."""
        error: PenstockError | None = None
        leaders = self._leaders
        for node in sorted(leaders.routes.nodes(), key=lambda node: node != leaders.own_node):
            try:
                task = await leaders.send(node, call)
            except PenstockError as failed:
                error = failed
                continue
            if task is not None:
                return task
        if error is not None:
            raise error  # the task may run at a node that did not reply
        return None

    def on_advance(self, topic: Topic, partition: int, listener: Listener) -> Remove:
        return self._follow(topic, partition, listener, lambda broker: broker.on_advance).end

    def on_available(self, share: Topic, partition: int, listener: Listener) -> Remove:
        return self._follow(share, partition, listener, lambda broker: broker.on_available).end


class Appending:
    def __init__(self, leaders: Leaders) -> None:
        self._leaders = leaders
        now = asyncio.get_running_loop().time
        self._nearby = LocalPartitions(leaders.own_node, leaders.routes, now)

    async def attempt(self, call: calls.Append) -> Sequence[Appended]:
        """Append to a partition led by this node if there is one; otherwise to the partition that
        the call names, or to the next one whose leader is reachable."""
        topic, count, leaders = call.topic, call.topic.partition_count, self._leaders
        here = self._here(call)
        if here is not None:
            # Other nodes are tried only if the call was certainly not carried out.
            try:
                return await leaders.local.call(_at(call, here))
            except NotLeader as error:
                leaders.note(error)
            except DiskFull:
                self._nearby.refused(topic)
            except Overloaded:
                self._nearby.refused(topic)
                raise
        tried = leaders.led(topic, range(count))
        last: PenstockError = NotLeader(place_of(topic, call.partition))
        away: set[int] = set()
        for step in range(count):
            partition = (call.partition + step) % count
            led = tried[partition]
            if led is None or led[0] in away:
                continue
            try:
                return await leaders.send(led[0], _at(call, partition))
            except PenstockError as error:
                last = leaders.failed(error, led[0], call, topic, tried).error
                if not isinstance(last, NotLeader):
                    away.add(led[0])
        raise AttemptFailed(last, topic, tried)

    def _here(self, call: calls.Append) -> int | None:
        led = self._leaders.routes.leader(call.topic, call.partition)
        if led is not None and led[0] == self._leaders.own_node:
            return call.partition
        # Only the partition that got a message before knows its deduplication id (dead letters).
        if any(each.dedup_id is not None for each in call.messages):
            return None
        return self._nearby.partition(call.topic)


def _at(call: calls.Append, partition: int) -> calls.Append:
    if partition == call.partition:
        return call
    return calls.Append(call.topic, partition, call.messages)


class LocalPartitions:
    def __init__(self, own_node: int, routes: Routes, now: Callable[[], float]) -> None:
        self._own = own_node
        self._leader = routes.leader
        self._now = now
        self._turns: dict[str, int] = {}  # the partition to try first, by topic
        self._refused: dict[str, float] = {}  # end of the pause, by topic

    def partition(self, topic: Topic) -> int | None:
        topic_id = topic.topic_id
        if self._refused and (until := self._refused.get(topic_id)) is not None:
            if self._now() < until:
                return None
            del self._refused[topic_id]
        own, leader, turns = self._own, self._leader, self._turns
        count = topic.partition_count
        begin = turns.get(topic_id, 0)
        for at in range(begin, begin + count):
            partition = at % count
            led = leader(topic, partition)
            if led is not None and led[0] == own:
                if len(turns) >= TURNS_MAX and topic_id not in turns:
                    turns.clear()
                turns[topic_id] = partition + 1
                return partition
        return None

    def refused(self, topic: Topic) -> None:
        if len(self._refused) >= REFUSED_MAX:
            self._refused.clear()
        self._refused[topic.topic_id] = self._now() + REFUSED_SECONDS


class Joining:
    """A call to all leaders of a topic. A retry keeps the replies that have already arrived."""

    def __init__(self, leaders: Leaders, call: calls.LeadersCall[Any]) -> None:
        rule = RULES[type(call)]
        assert rule.join is not None, f"{type(call).__name__} has replies that can be joined"
        self._join = rule.join
        self._repeated = rule.repeated
        self._leaders = leaders
        self._call = call
        self._replies: dict[int, Any] = {}  # reply or error, by node
        self._covered: dict[int, set[int]] = {}  # the partitions of each reply
        self._asked: set[int] = set()

    async def attempt(self, _call: calls.BrokerCall[Any]) -> Any:
        """Call in parallel the nodes whose replies are missing or do not cover all their
        partitions. Raises AttemptFailed if a node did not reply or a partition has no leader."""
        topic = self._call.topic
        led = self._leaders.led(topic, range(topic.partition_count))
        nodes: dict[int, set[int]] = {}
        error: PenstockError | None = None
        for partition, one in led.items():
            if one is not None:
                nodes.setdefault(one[0], set()).add(partition)
            elif error is None:
                error = NotLeader(place_of(topic, partition))
        none: set[int] = set()
        missing = [node for node, leads in nodes.items() if leads - self._covered.get(node, none)]
        replies = await asyncio.gather(*(self._ask(node, led) for node in missing))
        for node, reply in zip(missing, replies, strict=True):
            if isinstance(reply, AttemptFailed):
                error = reply.error
            else:
                self._replies[node], self._covered[node] = reply, nodes[node]
        if error is not None:
            raise AttemptFailed(error, topic, led)
        return self._joined([self._replies[node] for node in nodes])

    async def _ask(self, node: int, led: Led) -> Any:
        is_repeated = node in self._asked
        self._asked.add(node)
        counted_on = [(each, one[1]) for each, one in led.items() if one and one[0] == node]
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
