"""The logs of coordinators as the admin API knows them: whether all rows are readable, and the one
change that an operator may make. Implemented by ``node/coordinator_admin.py``."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.model.topic import SkippedRow


class ShownRow(msgspec.Struct, frozen=True):
    offset: int
    key: str  # in hex, as is the value; a long one is cut
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
    unreadable: ShownRow | None  # the first one; None: all rows are readable
    skipped: Sequence[SkippedRow]
    row: ShownRow | None = None  # the one at the offset that was asked for


class CoordinatorPort(Protocol):
    async def show(self, topic: str, partition: int, offset: int | None) -> CoordinatorLog:
        """Read the whole log. Raises NotFound for a topic, partition or row that does not exist."""
        ...

    async def skip(self, topic: str, partition: int, offset: int) -> CoordinatorLog:
        """Skip the unreadable row at this offset, for good; the log as it is then. Raises Conflict
        if another row, or none, is the one that is unreadable."""
        ...
