"""Logs of coordinators as the admin API uses them; implemented by ``node``."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.model.topic import SkippedRow


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
        """Read the whole log. Raises NotFound for a topic, partition or row that does not exist."""
        ...

    async def skip(self, topic: str, partition: int, offset: int) -> CoordinatorLog:
        """Skip the unreadable row at this offset, for good, and return the log. Raises Conflict if
        that row is not the unreadable one."""
        ...
