"""Ranges of a log that cannot be read: they are recorded and reported, never served."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.log.storage.files import Disk, read_whole, replace_durably
from penstock.log.storage.layout import DAMAGE_FILE
from penstock.model.errors import Damaged

DAMAGE_MAX = 1_000  # ranges recorded per partition; more would add nothing to the report


class Damage(msgspec.Struct, frozen=True):
    """A damaged range of bytes in one file, and the offsets that were stored there."""

    file: str
    position: int
    size_bytes: int
    first_offset: int
    next_offset: int  # where readable records continue
    reason: str


class DamagedRange(Damaged):
    """A read met damage. Offsets from ``first_offset`` to before ``next_offset`` are lost."""

    def __init__(self, folder: Path, damage: Damage) -> None:
        super().__init__(str(folder / damage.file), damage.position, damage.reason)
        self.damage = damage
        self.first_offset = damage.first_offset
        self.next_offset = damage.next_offset


_decode = msgspec.json.Decoder(list[Damage]).decode


def load_damage(folder: Path, disk: Disk) -> list[Damage]:
    """Return the recorded damage. An unreadable list counts as empty: reads find damage again."""
    content = read_whole(disk, folder / DAMAGE_FILE)
    if content is None:
        return []
    try:
        return _decode(content)
    except msgspec.DecodeError:
        return []


def save_damage(folder: Path, damage: Sequence[Damage], disk: Disk) -> None:
    replace_durably(disk, folder / DAMAGE_FILE, msgspec.json.encode(list(damage[:DAMAGE_MAX])))


def merge_damage(known: Sequence[Damage], found: Sequence[Damage]) -> list[Damage]:
    """Merge, sorted by offset; a range found twice keeps its first description."""
    merged: dict[tuple[str, int], Damage] = {}
    for damage in (*known, *found):
        merged.setdefault((damage.file, damage.position), damage)
    return sorted(merged.values(), key=lambda damage: damage.first_offset)[:DAMAGE_MAX]
