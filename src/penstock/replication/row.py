"""What the coordination store says of one partition: who has it, who is up to date, who leads.

A row is changed only by compare-and-swap on its version (R1), so any number of nodes may propose
changes at any time. What a node has read of it is a ``View``: true once, perhaps not any more.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

NOBODY: Final = -1
_NO_SESSIONS: Final[Mapping[int, int]] = MappingProxyType({})


class PartitionRow(msgspec.Struct, frozen=True):
    replicas: tuple[int, ...]  # node ids, in the order of preference
    in_sync: frozenset[int]  # they hold everything that is committed, unless they are also in
    lost: frozenset[int] = frozenset()  # these, who have said that they may not
    leader: int = NOBODY
    # The leader's registration when it was elected: a process that came after it may not lead.
    leader_incarnation: int = 0
    epoch: int = 0
    in_sync_min: int = 1
    watermark_floor: int = 0  # committed for sure; a log that ends below has lost something

    def __post_init__(self) -> None:
        assert self.in_sync, "somebody holds what is committed"
        assert self.lost <= self.in_sync, "only of those in sync anything is expected"
        assert self.in_sync <= set(self.replicas), "in sync are only those that have it"

    @property
    def whole(self) -> frozenset[int]:
        """Whoever holds everything that is committed."""
        return self.in_sync - self.lost


class View(NamedTuple):
    """A row as it was read. ``revision`` is that of the store when it was read, ``version`` the
    one in which the row was last changed."""

    revision: int
    version: int
    row: PartitionRow


class Change(NamedTuple):
    """For the store to carry out if the row still has this version and each of these nodes still
    the registration (its incarnation) that was counted on."""

    version: int
    row: PartitionRow
    incarnations: Mapping[int, int] = _NO_SESSIONS
