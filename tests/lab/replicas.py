"""SPLIT and GHOST, on the disks of nodes that have ended: every copy of a partition has the same
batches, byte for byte, as far as all of them reach, every copy reaches as far as was known to be
committed, and none is missing.

Segments are read here by the format's description and not by our own code. Copies may begin at
different offsets (what is finished is dropped in each one's own time) and end at different ones
(what was not committed when the power went), and their segments may be cut elsewhere; between the
last beginning and the first end nothing may differ. A batch counts only if its own checksum is
right: what is damaged ends a copy, and is then missed. What copies are folded into is compared by
``states``."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import crc32c

_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_EPOCH = struct.Struct(">i")  # of the leader that took it
_EPOCH_AT = 12
_CRC = struct.Struct(">I")  # CRC-32C of everything behind it
_CRC_AT = 17
_SEALED_AT = 21
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_BATCH_BYTES_MIN = 61


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    next: int
    epoch: int
    digest: bytes


def batches(folder: Path) -> Iterator[Batch]:
    """Of one copy, in order. Ends at the first thing that is no batch: a tail that was being
    written, or room that was set aside for one."""
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        at = 0
        while at + _BATCH_BYTES_MIN <= len(data):
            base, length = _HEAD.unpack_from(data, at)
            end = at + _HEAD.size + length
            if length < _BATCH_BYTES_MIN - _HEAD.size or end > len(data):
                break
            if (
                crc32c.crc32c(data[at + _SEALED_AT : end])
                != _CRC.unpack_from(data, at + _CRC_AT)[0]
            ):
                return
            (delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
            (epoch,) = _EPOCH.unpack_from(data, at + _EPOCH_AT)
            yield Batch(base, base + delta + 1, epoch, hashlib.sha256(data[at:end]).digest())
            at = end


def has_batches(folder: Path) -> bool:
    return next(batches(folder), None) is not None


def last_epoch(folder: Path) -> int:
    """The latest that a copy knows of; -1 of an empty one."""
    return max((batch.epoch for batch in batches(folder)), default=-1)


def difference(copies: Mapping[str, list[Batch]]) -> str | None:
    """The first place in which copies differ, in words; None when they agree."""
    if any(not copy for copy in copies.values()):
        return None  # nothing that all have
    start = max(copy[0].base for copy in copies.values())
    end = min(copy[-1].next for copy in copies.values())
    common = {
        name: [batch for batch in copy if batch.base >= start and batch.next <= end]
        for name, copy in copies.items()
    }
    (first, expected), *others = common.items()
    for name, copy in others:
        for one, two in zip(expected, copy, strict=False):
            if one != two:
                return f"{first} has {_shown(one)} where {name} has {_shown(two)}"
        if len(copy) != len(expected):
            return f"{first} has {len(expected)} batches below {end}, {name} {len(copy)}"
    return None


def _shown(batch: Batch) -> str:
    return f"[{batch.base}, {batch.next}) {batch.digest[:4].hex()}"


@dataclass
class Compared:
    partitions: int = 0
    batches: int = 0
    split: list[str] = field(default_factory=list)
    ghost: list[str] = field(default_factory=list)


def compare(
    folders: Mapping[str, Mapping[str, Path]], committed: Mapping[str, int] | None = None
) -> Compared:
    """``folders``: of each partition, each node's copy, of nodes that are in sync. ``committed``:
    as far as that was told by somebody, the offset below which everything is."""
    found = Compared()
    known = committed or {}
    for partition, by_node in folders.items():
        missing = [node for node, folder in by_node.items() if not folder.is_dir()]
        if missing:
            found.ghost.append(f"{partition}: no copy on {', '.join(missing)}")
        copies = {
            node: list(batches(folder)) for node, folder in by_node.items() if node not in missing
        }
        found.partitions += 1
        found.batches += sum(map(len, copies.values()))
        why = difference(copies) if len(copies) > 1 else None
        if why is not None:
            found.split.append(f"{partition}: {why}")
        for node, copy in copies.items():
            end, told = copy[-1].next if copy else 0, known.get(partition, 0)
            if end < told:
                found.split.append(f"{partition}: {node} ends at {end}, committed was {told}")
    return found
