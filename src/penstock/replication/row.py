"""A partition's row in the coordination store: its replicas, its in-sync set and its leader.

A row is changed only by compare-and-swap on its version (R1), so any number of nodes may propose
changes at any time. A ``View`` is a row as a node has read it, which may be outdated.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

NO_NODE: Final = -1
_NO_SESSIONS: Final[Mapping[int, int]] = MappingProxyType({})


class PartitionRow(msgspec.Struct, frozen=True):
    replicas: tuple[int, ...]  # node ids, in the order of preference
    in_sync: frozenset[int]  # have everything that is committed, unless in ``lost``
    lost: frozenset[int] = frozenset()  # have declared that they may lack committed records
    leader: int = NO_NODE
    # The leader's registration when it was elected: a later process of that node may not lead.
    leader_incarnation: int = 0
    epoch: int = 0
    in_sync_min: int = 1
    watermark_floor: int = 0  # known to be committed; a log that ends below it has lost records

    def __post_init__(self) -> None:
        assert self.in_sync, "the in-sync set must not be empty"
        assert self.lost <= self.in_sync, "only in-sync replicas can be marked lost"
        assert self.in_sync <= set(self.replicas), "only replicas can be in sync"

    @property
    def whole(self) -> frozenset[int]:
        """The nodes that have everything that is committed."""
        return self.in_sync - self.lost


class View(NamedTuple):
    """A row as it was read; ``version``: the revision in which it was last changed."""

    revision: int
    version: int
    row: PartitionRow


class Change(NamedTuple):
    """Applied if the row has this version and the nodes have these registrations."""

    version: int
    row: PartitionRow
    incarnations: Mapping[int, int] = _NO_SESSIONS
