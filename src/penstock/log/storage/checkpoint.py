"""Small files that are replaced as a whole: checkpoints (snapshots of the owner's state), the
recovery point, the low watermark and the list of damage (JSON); see ``docs/formats/log.md``:

    checkpoint      PSCK · version u16 · 0 u16 · generation u64 · length u32 · crc u32 · data
    recovery point  PSRP · version u16 · flags u16 · offset i64 · last segment's base i64
                    · last segment's bytes i64 · crc u32
    low watermark   PSLW · version u16 · 0 u16 · offset i64 · crc u32

Each ``crc`` is the CRC-32C of all other bytes of the file. A checkpoint has two generations: a
write replaces the older one. After a clean stop the recovery point holds the size of the last
segment; the first append changes that size, so the clean flag need not be removed.

Recovery repairs damage, so the next opening would see no trace of it. But a replica must report
that records may be missing, and it can die before it has done so. So these doubts (DOUBT flags)
are written before the repair, and stay until ``Log.settle`` clears them.
"""

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.log.storage.files import (
    CHECKPOINT_SUFFIX,
    DAMAGE_FILE,
    LOW_WATERMARK_FILE,
    RECOVERY_POINT_FILE,
    Disk,
    read_whole,
    replace_durably,
)
from penstock.model.errors import Damaged
from penstock.record.crc32c import crc32c

HEAD = struct.Struct(">4sHHQI")
HEAD_BYTES = 24  # including the crc
MAGIC = b"PSCK"
VERSION = 1  # format version of all three files
GENERATIONS = 2

POINT = struct.Struct(">4sHHqqq")
POINT_MAGIC = b"PSRP"
FLAG_CLEAN = 1
DOUBT_NEW = 2  # no recovery point was found: the log is new, or its state is lost
DOUBT_GARBAGE = 4  # bytes after the last whole batch were cut off
DOUBT_SHORT = 8  # synced records were missing
DOUBT_CRASHED = 16  # the process died instead of being stopped
_DOUBTS = DOUBT_NEW | DOUBT_GARBAGE | DOUBT_SHORT | DOUBT_CRASHED

LOW = struct.Struct(">4sHHq")
LOW_MAGIC = b"PSLW"

_CRC = struct.Struct(">I")
assert (HEAD.size + _CRC.size, POINT.size, LOW.size) == (HEAD_BYTES, 32, 16)

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")


def checkpoint_path(folder: Path, name: str, slot: int) -> Path:
    assert _NAME.match(name), "invalid checkpoint name"
    return folder / f"{name}.{slot}{CHECKPOINT_SUFFIX}"


def write_checkpoint(folder: Path, name: str, data: bytes, disk: Disk) -> None:
    found = [_read(checkpoint_path(folder, name, slot), disk) for slot in range(GENERATIONS)]
    generations = [-1 if each is None else each[0] for each in found]
    slot = generations.index(min(generations))
    head = HEAD.pack(MAGIC, VERSION, 0, max(generations) + 1, len(data))
    crc = crc32c(data, crc32c(head))
    replace_durably(disk, checkpoint_path(folder, name, slot), head + _CRC.pack(crc) + data)


def read_checkpoint(folder: Path, name: str, disk: Disk) -> bytes | None:
    found = [_read(checkpoint_path(folder, name, slot), disk) for slot in range(GENERATIONS)]
    return max((each for each in found if each is not None), default=(0, None))[1]


def remove_checkpoint(folder: Path, name: str, disk: Disk) -> None:
    for slot in range(GENERATIONS):
        disk.unlink(checkpoint_path(folder, name, slot))
    disk.sync_folder(folder)


def is_whole_checkpoint(path: Path, disk: Disk) -> bool:
    return _read(path, disk) is not None


def _read(path: Path, disk: Disk) -> tuple[int, bytes] | None:
    content = read_whole(disk, path)
    if content is None or len(content) < HEAD_BYTES:
        return None
    head, data = content[: HEAD.size], content[HEAD_BYTES:]
    magic, version, _, generation, length = HEAD.unpack(head)
    (crc,) = _CRC.unpack_from(content, HEAD.size)
    if magic != MAGIC or version != VERSION or length != len(data):
        return None
    return (generation, data) if crc32c(data, crc32c(head)) == crc else None


class RecoveryPoint(NamedTuple):
    """The offset below which everything was synced, including side files of closed segments."""

    offset: int
    is_clean: bool = False
    last_base: int = 0
    last_bytes: int = 0
    doubts: int = 0  # found at an opening and not settled


def write_point(folder: Path, point: RecoveryPoint, disk: Disk) -> None:
    flags = point.doubts | (FLAG_CLEAN if point.is_clean else 0)
    fields = (flags, point.offset, point.last_base, point.last_bytes)
    raw = POINT.pack(POINT_MAGIC, VERSION, *fields)
    replace_durably(disk, folder / RECOVERY_POINT_FILE, raw + _CRC.pack(crc32c(raw)))


def read_point(folder: Path, disk: Disk) -> RecoveryPoint | None:
    """Return the recovery point, or None if it is missing or damaged."""
    content = read_whole(disk, folder / RECOVERY_POINT_FILE)
    fields = None if content is None else _unpacked(content, POINT, POINT_MAGIC)
    if fields is None:
        return None
    flags, offset, last_base, last_bytes = fields
    is_clean = bool(flags & FLAG_CLEAN)
    return RecoveryPoint(offset, is_clean, last_base, last_bytes, flags & _DOUBTS)


def write_low_watermark(folder: Path, offset: int, disk: Disk) -> None:
    raw = LOW.pack(LOW_MAGIC, VERSION, 0, offset)
    replace_durably(disk, folder / LOW_WATERMARK_FILE, raw + _CRC.pack(crc32c(raw)))


def read_low_watermark(folder: Path, disk: Disk) -> int:
    path = folder / LOW_WATERMARK_FILE
    content = read_whole(disk, path)
    if content is None:
        return 0
    fields = _unpacked(content, LOW, LOW_MAGIC)
    if fields is None or fields[1] < 0:
        raise Damaged(str(path), 0, "the low watermark file is corrupt")
    return fields[1]


def _unpacked(content: bytes, layout: struct.Struct, magic: bytes) -> tuple[int, ...] | None:
    raw = content[: layout.size]
    if len(raw) < layout.size or content[layout.size :] != _CRC.pack(crc32c(raw)):
        return None
    fields = layout.unpack(raw)
    return fields[2:] if fields[:2] == (magic, VERSION) else None


DAMAGE_MAX = 1_000  # ranges recorded per partition; more would add nothing to the report


class Damage(msgspec.Struct, frozen=True):
    file: str
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int  # where readable records continue
    reason: str


class DamagedRange(Damaged):
    """A read found damage. The offsets in [``first_offset``, ``next_offset``) are lost."""

    def __init__(self, folder: Path, damage: Damage) -> None:
        super().__init__(str(folder / damage.file), damage.position, damage.reason)
        self.damage = damage
        self.first_offset, self.next_offset = damage.first_offset, damage.next_offset


_decode = msgspec.json.Decoder(list[Damage]).decode


def load_damage(folder: Path, disk: Disk) -> list[Damage]:
    """Return the recorded damage, or nothing if the file is unreadable: reads find damage again."""
    try:
        return _decode(read_whole(disk, folder / DAMAGE_FILE) or b"[]")
    except msgspec.DecodeError:
        return []


def save_damage(folder: Path, damage: Sequence[Damage], disk: Disk) -> None:
    replace_durably(disk, folder / DAMAGE_FILE, msgspec.json.encode(list(damage[:DAMAGE_MAX])))


def merge_damage(known: Sequence[Damage], found: Sequence[Damage]) -> list[Damage]:
    """Return all damage, sorted by offset. A range in both lists is taken from ``known``."""
    merged: dict[tuple[str, int], Damage] = {}
    for damage in (*known, *found):
        merged.setdefault((damage.file, damage.position), damage)
    return sorted(merged.values(), key=lambda damage: damage.first_offset)[:DAMAGE_MAX]
