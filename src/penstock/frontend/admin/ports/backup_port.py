"""Backups as the admin API uses them; implemented by ``backup``."""

from collections.abc import Sequence
from typing import Protocol

import msgspec


class StartedBackup(msgspec.Struct, frozen=True):
    id: str
    at_ms: int  # wall clock: every request with an earlier reply is included
    version: str
    node: str
    nodes: Sequence[int]  # of the cluster; empty: not a cluster
    account: str
    region: str
    master_key_id: str  # of the key that decrypts secrets
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
    """A part of one log. ``data`` is empty if the requested offset was deleted: copy again from
    ``start_offset``."""

    data: bytes
    base_offset: int
    next_offset: int
    start_offset: int


class BackupPort(Protocol):
    async def begin(self) -> StartedBackup:
        """Raises Throttled if too many backups run, Overloaded if a partition has no leader."""
        ...

    async def partitions(
        self, backup_id: str, *, after: int, limit: int
    ) -> Sequence[PartitionCut]: ...

    async def definitions(self, backup_id: str, *, after: int) -> Sequence[Definition]:
        """Return one page."""
        ...

    async def read(self, backup_id: str, topic_id: str, partition: int, offset: int) -> Piece: ...

    async def end(self, backup_id: str) -> None: ...
