"""Dropping a whole log and starting it empty at another offset. A crash at any point leaves the old
log or the new one.

    <at>.restart                    made, folder synced: the decision
    segments, side files, rewritten segments, checkpoints, list of damage    removed
    <at>.log                        made, empty; folder synced
    recovery-point                  replaced: this offset
    <at>.restart                    removed, folder synced: done

While the mark exists, each opening of the log performs the restart from its beginning: nothing is
appended to the new log before the mark is gone. Checkpoints are removed because they are snapshots
of state folded from removed records; the owner writes new ones afterwards.
"""

from pathlib import Path

from penstock.log.replacement import SWAP_SUFFIX, clear_rewritten, has_rewrite
from penstock.log.storage.checkpoint import DOUBT_NEW, RecoveryPoint, read_point, write_point
from penstock.log.storage.files import Disk, replace_durably
from penstock.log.storage.layout import (
    CHECKPOINT_SUFFIX,
    DAMAGE_FILE,
    RESTART_SUFFIX,
    base_offset_of,
    segment_path,
)


def restart_path(folder: Path, at: int) -> Path:
    return segment_path(folder, at, RESTART_SUFFIX)


def announce_restart(disk: Disk, folder: Path, at: int) -> None:
    """Create the mark: from here on the restart will happen, even after a crash."""
    replace_durably(disk, restart_path(folder, at), b"")


def carry_out_restart(disk: Disk, folder: Path, at: int) -> None:
    """Replace the folder's content by an empty log that begins at ``at``."""
    point = read_point(folder, disk)
    doubts = DOUBT_NEW if point is None else point.doubts
    if has_rewrite(disk, folder):
        clear_rewritten(disk, folder)
    for name in reversed(disk.names(folder)):
        is_segment = base_offset_of(name) is not None
        if is_segment or name == DAMAGE_FILE or name.endswith((CHECKPOINT_SUFFIX, SWAP_SUFFIX)):
            disk.unlink(folder / name)
    disk.close(disk.open(segment_path(folder, at)))
    disk.sync_folder(folder)
    write_point(folder, RecoveryPoint(at, doubts=doubts), disk)
    disk.unlink(restart_path(folder, at))
    disk.sync_folder(folder)


def finish_restart(disk: Disk, folder: Path) -> None:
    """Perform a pending restart. Called at opening, before any other file is read."""
    for name in disk.names(folder):
        stem = name.removesuffix(RESTART_SUFFIX)
        if stem != name and stem.isdigit():
            carry_out_restart(disk, folder, int(stem))
