"""SPLIT and GHOST, on the disks of nodes that have ended: every copy of a partition has the same
batches, byte for byte, as far as all of them reach, and no copy is missing.

Segments are read here by the format's description and not by our own code. Copies may begin at
different offsets (what is finished is dropped in each one's own time) and end at different ones
(what was not committed when the power went), and their segments may be cut elsewhere; between the
last beginning and the first end nothing may differ."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = struct.Struct(">qi")  # base offset, length of what follows
_LAST_DELTA = struct.Struct(">i")
_LAST_DELTA_AT = 23
_BATCH_BYTES_MIN = 61


@dataclass(frozen=True, slots=True)
class Batch:
    base: int
    next: int
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
            (delta,) = _LAST_DELTA.unpack_from(data, at + _LAST_DELTA_AT)
            yield Batch(base, base + delta + 1, hashlib.sha256(data[at:end]).digest())
            at = end


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


def compare(folders: Mapping[str, Mapping[str, Path]]) -> Compared:
    """``folders``: of each partition, each node's copy."""
    found = Compared()
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
    return found
