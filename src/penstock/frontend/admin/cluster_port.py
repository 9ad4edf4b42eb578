"""The cluster as the admin API knows it: what can be asked and what can be wished for. Who answers
is decided where the node is put together (``node/cluster_admin.py``)."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class PartitionState(StrEnum):
    """What an operator may want to know of a partition. Without any of them it is as it should
    be."""

    UNDER_REPLICATED = "under_replicated"  # fewer than wanted have everything and are alive
    BELOW_MINIMUM = "below_minimum"  # too few for anything to be sent
    LEADERLESS = "leaderless"
    LOST = "lost"  # nobody is known to have everything
    MOVING = "moving"
    MISSING = "missing"  # its topic is there, it has not been created yet
    ORPHANED = "orphaned"  # there is neither a topic nor a tombstone for it


class PartitionShown(msgspec.Struct, frozen=True):
    topic_id: str
    partition: int
    topic: str | None  # by name; None: there is no such topic
    account: str | None
    region: str | None
    leader: int | None
    epoch: int
    replicas: Sequence[int]  # in the order of preference
    in_sync: Sequence[int]  # those that have everything
    in_sync_min: int
    moving_to: Sequence[int] | None
    states: Sequence[PartitionState]


class StopRisk(msgspec.Struct, frozen=True):
    """What would become of partitions if a node stopped now."""

    node: int
    unavailable: int  # nobody else who is alive has everything
    unsendable: int  # others have it, but too few for anything to be sent
    only_here: int  # as their topics want it: waiting does not help these


class Safety(msgspec.Struct, frozen=True):
    """Whether a node may stop without any partition refusing to be written to."""

    is_safe: bool
    leaderless: int  # now, whoever stops
    below_minimum: int  # now, whoever stops
    missing: int  # now, whoever stops
    nodes: Sequence[StopRisk]  # of whom it was asked


class NodeShown(msgspec.Struct, frozen=True):
    """A node that is alive, or that partitions are still said to be on. Of one that is not alive
    the words are those that were last heard."""

    node: int
    name: str
    is_alive: bool
    is_leaving: bool
    is_draining: bool
    is_manager: bool
    internal: str
    http: str
    kafka: str
    version: str
    feature_level: int  # the highest it speaks
    rack: str
    leaders: int  # partitions it leads
    preferred: int  # partitions it should lead
    replicas: int  # partitions it holds
    behind: int  # of these, those that do not have everything
    feature_level_min: int = 1  # the lowest it speaks


class PartitionCounts(msgspec.Struct, frozen=True):
    total: int
    under_replicated: int
    below_minimum: int
    leaderless: int
    lost: int
    moving: int
    missing: int
    orphaned: int


class LevelShown(msgspec.Struct, frozen=True):
    in_force: int
    wanted: int | None  # while it is being raised
    latest: int  # the highest that all nodes speak


class Upgrade(msgspec.Struct, frozen=True):
    """The feature level, raised or to be raised."""

    level: int  # before
    to: int
    is_done: bool  # False: a dry run, or whoever manages has not come to it yet
    is_dry_run: bool
    obstacles: Sequence[str]  # why it would be refused, a sentence each


class ClusterShown(msgspec.Struct, frozen=True):
    node: int  # that answers
    manager: int | None
    trouble: str | None  # why this may be old
    partitions: PartitionCounts
    nodes: Sequence[NodeShown]
    level: LevelShown


class Drain(msgspec.Struct, frozen=True):
    """How far a node is from being empty."""

    node: int
    is_draining: bool
    replicas: int
    leaders: int
    stuck: int  # partitions for which there is no other node


class ClusterPort(Protocol):
    """Raises NotFound, Conflict, InvalidRequest and Overloaded with a sentence each."""

    async def state(self) -> ClusterShown: ...

    async def partitions(
        self,
        *,
        topic_id: str | None,
        node: int | None,
        state: PartitionState | None,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[Sequence[PartitionShown], bool]:
        """By topic id and number, those behind ``after``; and whether there are more."""
        ...

    async def safety(self, node: int | None) -> Safety:
        """If this node stopped; None: if any single one did."""
        ...

    async def drain(self, node: int) -> Drain:
        """Nothing shall be on this node any more, as far as there are others."""
        ...

    async def undrain(self, node: int) -> Drain: ...

    async def decommission(self, node: int) -> Drain:
        """A drain that is refused when it could not come to an end."""
        ...

    async def rebalance(self) -> int:
        """The first replica leads wherever it can. Returns how many leaders changed."""
        ...

    async def place(self, topic_id: str, partition: int, replicas: Sequence[int]) -> None: ...

    async def elect_uncleanly(self, topic_id: str, partition: int, node: int) -> None:
        """What this node does not have is lost."""
        ...

    async def upgrade(self, to: int | None, *, is_dry_run: bool) -> Upgrade:
        """Raise the feature level; None: to the highest that all nodes speak."""
        ...
