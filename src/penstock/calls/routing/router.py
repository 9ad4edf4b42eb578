"""The brokers of all nodes as one ``BrokerPort``: callers need not know which node leads.

A call about one partition goes to its leader, a call about a whole queue to all its leaders. A
message to a standard queue may go to any partition that has a leader. Move tasks run at the leader
of the first partition of their source. That leader also creates the shares of a topic."""

from collections.abc import Callable, Coroutine
from typing import Any

from penstock.calls.routing.appending import Appending, Joining
from penstock.calls.routing.leaders import (
    FollowingListener,
    LeaderChanges,
    Leaders,
    Listener,
    Remove,
)
from penstock.calls.routing.leasing import Leasing
from penstock.model import calls
from penstock.model.errors import PenstockError, TopicNotFound
from penstock.model.ports import MoveTask
from penstock.model.topic import Kind, Topic

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
        self.moves = local.moves
        self.find_share = local.find_share

    async def close(self) -> None:
        await self._leasing.close()
        await self._leaders.close()
        await self._changes.close()

    def call(self, call: calls.BrokerCall[calls.R]) -> Coroutine[Any, Any, calls.R]:
        route = self._routes_of.get(type(call)) or self._add_route(type(call))
        return route(call)

    def _add_route(self, kind: type[calls.BrokerCall[Any]]) -> Route:
        route = self._to_leader if issubclass(kind, calls.PartitionCall) else self._to_leaders
        return self._routes_of.setdefault(kind, route)

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
        """Cancel a move task at any node, because the leader may have changed since it began."""
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
        return self._follow("on_advance", topic, partition, listener)

    def on_available(self, share: Topic, partition: int, listener: Listener) -> Remove:
        return self._follow("on_available", share, partition, listener)

    def _follow(self, add: str, topic: Topic, partition: int, listener: Listener) -> Remove:
        def attach(broker: calls.BrokerPort) -> Remove:
            end: Remove = getattr(broker, add)(topic, partition, listener)
            return end

        follower = FollowingListener(
            self._leaders, self._changes, topic, partition, listener, attach
        )
        return follower.end
