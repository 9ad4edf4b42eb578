"""Calls by which one node gets the positions of a backup from all nodes: numbers 0x0500-0x05FF.

First HOLD on every node; then POSITIONS, stage by stage; then HOLD again, which releases crossings
(messages that move between logs) and still keeps the segments that are copied.
``broker/context/context.py`` and ``broker/backup_positions.py`` explain why."""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call


class HoldRequest(msgspec.Struct, frozen=True, array_like=True):
    holder: str  # the same in all calls of a backup
    crossings_ms: int  # 0: release crossings
    segments_ms: int


class HoldReply(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool


class PartitionPositions(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The positions of one partition, as its leader knows them."""

    topic_id: str
    index: int
    start_offset: int
    end_offset: int  # all records below are committed
    epoch: int
    is_settled: bool  # False: more records may be committed
    size_bytes: int  # of all segments: about the size of the copy


class PositionsRequest(msgspec.Struct, frozen=True, array_like=True):
    holder: str
    stage: int


class PositionsReply(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool  # crossings were held until now
    positions: Sequence[PartitionPositions] = ()


HOLD: Final = Call(0x0500, "backup.hold", HoldRequest, HoldReply, is_idempotent=True)
POSITIONS: Final = Call(0x0501, "backup.take", PositionsRequest, PositionsReply, is_idempotent=True)
