"""A partition's row in the metadata store: its replicas, its in-sync set and its leader. A row is
changed only by compare-and-swap on its version, so any number of nodes may propose changes at any
time. A ``View`` is a row as a node has read it. The rules R1 to R25 are in docs/replication.md."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

NO_NODE: Final = -1
_NO_SESSIONS: Final[Mapping[int, int]] = MappingProxyType({})


class PartitionRow(msgspec.Struct, frozen=True):
    replicas: tuple[int, ...]  # node ids in order of preference
    in_sync: frozenset[int]  # have all committed records, unless in ``lost``
    lost: frozenset[int] = frozenset()  # may lack committed records
    leader: int = NO_NODE
    # The leader's registration at its election. A later process of that node may not lead.
    leader_incarnation: int = 0
    epoch: int = 0
    in_sync_min: int = 1
    watermark_floor: int = 0  # committed offset; a log that ends below it has lost records

    def __post_init__(self) -> None:
        assert self.in_sync, "the in-sync set must not be empty"
        assert self.lost <= self.in_sync, "only in-sync replicas can be marked lost"
        assert self.in_sync <= set(self.replicas), "only replicas can be in sync"

    @property
    def whole(self) -> frozenset[int]:
        """The nodes that have all committed records."""
        return self.in_sync - self.lost


class View(NamedTuple):
    """A partition's row, read at ``revision`` and last changed at ``version``."""

    revision: int
    version: int
    row: PartitionRow


class Change(NamedTuple):
    """A new row for a partition. It is rejected if the version or a node's registration changed."""

    version: int
    row: PartitionRow
    incarnations: Mapping[int, int] = _NO_SESSIONS
