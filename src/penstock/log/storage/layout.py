"""Names of the files in a partition's folder.

    format                          "penstock-log 1\\n"
    00000000000000000000.log        batches, one after the other, exactly as they are sent
    00000000000000000000.index      start of a batch every few kibibytes        (rebuildable)
    00000000000000000000.time       the highest timestamp up to that batch      (rebuildable)
    00000000000000000000.check      a checksum of every batch's header          (rebuildable)
    recovery-point                  offset up to which all is synced; whether the stop was clean
    damage                          damaged ranges that were found, as JSON
    low-watermark                   the first offset of a stream that readers may see
    <name>.0.checkpoint  .1.        two generations of a snapshot of the owner's state
    00000000000000000000.restart    decision to drop everything and begin at that offset

A segment is named by the offset of its first record, in twenty digits. The formats are drawn in
docs/formats/log.md and beside the code that packs them.
"""

from pathlib import Path

FORMAT_FILE = "format"
FORMAT_VERSION = 1
FORMAT_PREFIX = b"penstock-log "
RECOVERY_POINT_FILE = "recovery-point"
DAMAGE_FILE = "damage"
LOW_WATERMARK_FILE = "low-watermark"

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_SUFFIX = ".time"
CHECK_SUFFIX = ".check"
CHECKPOINT_SUFFIX = ".checkpoint"
EPOCHS_CHECKPOINT = "epochs"  # the only one known to the log: truncation invalidates it
RESTART_SUFFIX = ".restart"
SIDE_SUFFIXES = (INDEX_SUFFIX, TIME_SUFFIX, CHECK_SUFFIX)

_DIGITS = 20


def segment_path(folder: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    return folder / f"{base_offset:0{_DIGITS}d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """Return the offset in the name of a segment's file; None if the file is not a segment's."""
    stem, dot, suffix = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem) if dot + suffix in (LOG_SUFFIX, *SIDE_SUFFIXES) else None


def format_line(version: int = FORMAT_VERSION) -> bytes:
    return FORMAT_PREFIX + str(version).encode() + b"\n"


def format_version(content: bytes) -> int | None:
    """Return the version of a format line, or None if the content is not such a line."""
    number = content.removeprefix(FORMAT_PREFIX).strip()
    if not content.startswith(FORMAT_PREFIX) or not number.isdigit() or len(number) > 9:
        return None
    return int(number)
