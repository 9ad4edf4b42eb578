"""Calls with which one node takes a backup's positions of all of them: numbers 0x0500-0x05FF.

``hold`` comes first, on every node; then ``take``, stage by stage; then ``hold`` again, which lets
crossings go and goes on keeping what is copied. Why so is said in ``broker/hold.py`` and
``broker/cutting.py``.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.wire.internal.calls import Call


class HoldAsked(msgspec.Struct, frozen=True, array_like=True):
    holder: str  # the same in every call of one backup
    crossings_ms: int  # 0: let them go
    segments_ms: int


class HoldTold(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool


class Taken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How far one partition goes, as its leader knows it."""

    topic_id: str
    index: int
    start_offset: int
    end_offset: int  # everything below is committed
    epoch: int
    is_settled: bool  # False: there may be more that is committed
    size_bytes: int  # of all segments: about what there is to copy


class TakeAsked(msgspec.Struct, frozen=True, array_like=True):
    holder: str
    stage: int


class TakeTold(msgspec.Struct, frozen=True, array_like=True):
    is_held: bool  # crossings, up to now
    taken: Sequence[Taken] = ()


HOLD: Final = Call(0x0500, "backup.hold", HoldAsked, HoldTold, is_idempotent=True)
TAKE: Final = Call(0x0501, "backup.take", TakeAsked, TakeTold, is_idempotent=True)
