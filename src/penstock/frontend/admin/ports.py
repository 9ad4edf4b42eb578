"""The health of this node, and interfaces through which the admin API uses the cluster, backups,
the logs of coordinators and subscriptions. ``node.cluster``, ``backup`` and ``node`` implement the
interfaces."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from penstock.model.ports import KeyRing, Subscriptions
from penstock.model.subscription import Subscription
from penstock.model.topic import SkippedRow, Topic
from penstock.model.troubles import WARNINGS, Kind, Trouble
from penstock.telemetry import families
from penstock.telemetry.families import Family, Sample

REASONS_MAX = 100  # more reasons do not help an operator

log_ = logging.getLogger(__name__)


class PartitionState(StrEnum):
    """A problem or a move of a partition. A healthy partition has none of these states."""

    UNDER_REPLICATED = "under_replicated"  # fewer live in-sync replicas than configured
    BELOW_MINIMUM = "below_minimum"  # too few in-sync replicas to accept messages
    LEADERLESS = "leaderless"
    LOST = "lost"  # no replica is known to have everything
    MOVING = "moving"
    MISSING = "missing"  # the topic exists, the partition was not created yet
    ORPHANED = "orphaned"  # neither a topic nor a tombstone exists


class PartitionShown(msgspec.Struct, frozen=True):
    topic_id: str
    partition: int
    topic: str | None  # name; None: the topic does not exist
    account: str | None
    region: str | None
    leader: int | None
    epoch: int
    replicas: Sequence[int]  # in order of preference as leader
    in_sync: Sequence[int]
    in_sync_min: int
    moving_to: Sequence[int] | None
    states: Sequence[PartitionState]


class Safety(msgspec.Struct, frozen=True):
    """Whether a node can stop while all partitions keep accepting messages."""

    is_safe: bool
    leaderless: int  # partitions that have this problem now, as in the next two fields
    below_minimum: int
    missing: int
    nodes: Sequence[Mapping[str, int]]  # the requested: ``node``, and a ``StopRisk`` of the manager


class Upgrade(msgspec.Struct, frozen=True):
    level: int  # the level before
    to: int
    is_done: bool  # False: a dry run, or the manager has not done it yet
    is_dry_run: bool
    obstacles: Sequence[str]  # reasons for a rejection


class Drain(msgspec.Struct, frozen=True):
    node: int
    is_draining: bool
    replicas: int
    leaders: int
    stuck: int  # partitions that no other node can take


class ClusterPort(Protocol):
    async def state(self) -> dict[str, Any]:
        """Return the nodes that are alive or have replicas, the number of partitions in each state,
        and the feature level. For a dead node, the last known values are returned."""

    async def partitions(
        self,
        *,
        topic_id: str | None,
        node: int | None,
        state: PartitionState | None,
        after: tuple[str, int] | None,
        limit: int,
    ) -> tuple[Sequence[PartitionShown], bool]:
        """Return the partitions that follow ``after``, and whether more partitions follow them."""

    async def safety(self, node: int | None) -> Safety:
        """Return the risk of stopping ``node``, or of each single node if ``node`` is None."""

    async def drain(self, node: int) -> Drain:
        """Start to move all replicas of ``node`` to other nodes."""

    async def undrain(self, node: int) -> Drain: ...

    async def decommission(self, node: int) -> Drain:
        """Drain ``node``. Raises Conflict if the other nodes cannot take all its replicas."""

    async def rebalance(self) -> int:
        """Make preferred replicas the leaders where possible. Returns the number of new leaders."""

    async def place(self, topic_id: str, partition: int, replicas: Sequence[int]) -> None: ...

    async def elect_uncleanly(self, topic_id: str, partition: int, node: int) -> None:
        """Elect a replica as leader although it may lack records, which are then lost."""

    async def upgrade(self, to: int | None, *, is_dry_run: bool) -> Upgrade:
        """Raise the feature level to ``to``, by default to the highest that all nodes support."""


class StartedBackup(msgspec.Struct, frozen=True):
    id: str
    at_ms: int  # everything acknowledged before this time is included
    version: str
    node: str
    nodes: Sequence[int]  # of the cluster; empty: not a cluster
    account: str
    region: str
    master_key_id: str  # id of the key that decrypts the secrets in the backup
    partitions: int
    definitions: int
    size_bytes: int  # approximate


class PartitionCut(msgspec.Struct, frozen=True):
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int


class Definition(msgspec.Struct, frozen=True):
    key: str
    value: bytes  # base64 in JSON


class Piece(msgspec.Struct, frozen=True):
    """A part of a log. If the requested records were deleted, ``data`` is empty."""

    data: bytes
    base_offset: int
    next_offset: int
    start_offset: int


class BackupPort(Protocol):
    async def begin(self) -> StartedBackup:
        """Start a backup. Raises Throttled if too many backups are running."""

    async def partitions(
        self, backup_id: str, *, after: int, limit: int
    ) -> Sequence[PartitionCut]: ...

    async def definitions(self, backup_id: str, *, after: int) -> Sequence[Definition]: ...

    async def read(self, backup_id: str, topic_id: str, partition: int, offset: int) -> Piece: ...

    async def end(self, backup_id: str) -> None: ...


class ShownRow(msgspec.Struct, frozen=True):
    offset: int
    key: str  # key and value are hexadecimal, and cut if long
    value: str | None  # None: the row deletes its key
    key_bytes: int
    value_bytes: int
    digest: str
    reason: str | None = None  # why it is unreadable


class CoordinatorLog(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    unreadable: ShownRow | None  # the first; None: all rows are readable
    skipped: Sequence[SkippedRow]
    row: ShownRow | None = None  # at the requested offset


class CoordinatorPort(Protocol):
    async def show(self, topic: str, partition: int, offset: int | None) -> CoordinatorLog:
        """Read a coordinator's whole log, and find the first row that is unreadable, if any."""

    async def skip(self, topic: str, partition: int, offset: int) -> CoordinatorLog:
        """Skip the first unreadable row. Raises Conflict if that row is not at ``offset``."""


class Deliveries(Protocol):
    async def __call__(self, one: Subscription, *, count: int) -> Sequence[Any]:
        """Return the newest attempts of a subscription, the newest first. An attempt is a struct or
        a dictionary that JSON can represent."""


@dataclass(frozen=True, kw_only=True)
class PushPorts:
    subscriptions: Subscriptions
    ring: KeyRing  # encrypts the secrets of webhooks
    entropy: Callable[[int], bytes]
    find_share: Callable[[Topic, str], Topic | None]  # also those of subscriptions
    deliveries: Deliveries | None = None  # None: attempts are not recorded
    # Whether the URL of an account may become an endpoint.
    is_usable: Callable[[str, str], bool] = lambda _url, _account: True


# ── Health ───────────────────────────────────────────────────────────────────────────────────
# Once a second the node reports its problems (``model/troubles.py``). A blocking problem takes the
# node out of the load balancer; other problems are only shown. One log line is written when a
# problem begins and one when it ends.


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class Health:
    def __init__(self) -> None:
        self.state = State.STARTING
        self._troubles: dict[tuple[Kind, str], Trouble] = {}
        self._counts: Counter[Kind] = Counter()
        # Returns how many topics are open, and how many the start opens.
        self.progress: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def reasons(self) -> list[dict[str, Any]]:
        names = ("kind", "name", "text", "do", "is_blocking")
        return [{name: getattr(one, name) for name in names} for one in self._troubles.values()]

    @property
    def is_ready(self) -> bool:
        is_blocked = any(one.is_blocking for one in self._troubles.values())
        return self.state is State.READY and not is_blocked

    @property
    def percent_started(self) -> int:
        if self.state is not State.STARTING:
            return 100
        opened, total = self.progress()
        return min(100 * opened // total, 100) if total else 0

    def ready(self) -> None:
        assert self.state is State.STARTING, f"{self.state} does not lead to ready"
        self.state = State.READY

    def drain(self) -> None:
        self.state = State.DRAINING

    def show(self, troubles: Sequence[Trouble]) -> None:
        before = self._troubles
        # Blocking problems come first, so that they are never left out.
        kept = sorted(troubles, key=lambda one: not one.is_blocking)[:REASONS_MAX]
        self._troubles = {(one.kind, one.name): one for one in kept}
        self._counts = Counter(one.kind for one in troubles)
        for key, one in self._troubles.items():
            if key not in before:
                facts = {"trouble": one.kind, "do": one.do, **one.facts()}
                level = logging.WARNING if one.kind in WARNINGS else logging.ERROR
                log_.log(level, one.text, extra=facts)
        for key, one in before.items():
            if key not in self._troubles and one.over:
                log_.info(one.over, extra={"trouble": one.kind, **one.facts()})

    def samples(self) -> Iterable[tuple[Family, Sample]]:
        for kind in Kind:
            yield families.TROUBLE, ((kind.value,), self._counts[kind])
