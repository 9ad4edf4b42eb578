"""A backup as the admin API knows it: what it is of and what can be asked for. Who answers is
decided where the node is put together (``node/backup_admin.py``)."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class Begun(msgspec.Struct, frozen=True):
    id: str
    at_ms: int  # wall clock: everything that was answered before is in it
    version: str
    node: str
    nodes: Sequence[int]  # of a cluster; none: a node by itself
    account: str
    region: str
    master_key_id: str  # which key opens what is sealed
    partitions: int
    definitions: int
    size_bytes: int  # about


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
    """Of one log. ``data`` is empty when what was asked for is gone: copy it anew from
    ``start_offset``."""

    data: bytes
    base_offset: int
    next_offset: int
    start_offset: int


class BackupPort(Protocol):
    async def begin(self) -> Begun:
        """Raises Throttled when too many are under way, Overloaded when a partition is not led."""
        ...

    async def partitions(
        self, backup_id: str, *, after: int, limit: int
    ) -> Sequence[PartitionCut]: ...

    async def definitions(self, backup_id: str, *, after: int) -> Sequence[Definition]:
        """As many as one answer should hold."""
        ...

    async def read(self, backup_id: str, topic_id: str, partition: int, offset: int) -> Piece: ...

    async def end(self, backup_id: str) -> None: ...
