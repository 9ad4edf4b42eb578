"""What lies in a partition's folder, by name.

    format                          "penstock-log 1\\n"
    00000000000000000000.log        batches, back to back, exactly as they travel
    00000000000000000000.index      where every n-th kibibyte's batch starts    (rebuildable)
    00000000000000000000.time       the highest timestamp up to that batch      (rebuildable)
    00000000000000000000.check      a checksum of every batch's header          (rebuildable)
    recovery-point                  up to which offset all is on disk; whether the stop was clean
    damage                          ranges found unreadable and reported, as JSON
    low-watermark                   the first offset of a stream that readers may see
    <name>.0.checkpoint  .1.        two generations of a caller's snapshot
    00000000000000000000.restart    decided: all this goes, and the log begins at that offset

A segment is named by the offset of its first record, in twenty digits. The drawings stand in
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
EPOCHS_CHECKPOINT = "epochs"  # the one that the log itself has to know: a cut voids it
RESTART_SUFFIX = ".restart"
SIDE_SUFFIXES = (INDEX_SUFFIX, TIME_SUFFIX, CHECK_SUFFIX)

_DIGITS = 20


def segment_path(folder: Path, base_offset: int, suffix: str = LOG_SUFFIX) -> Path:
    return folder / f"{base_offset:0{_DIGITS}d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """The offset a segment's file is named by; None when it is no segment's file."""
    stem, dot, suffix = name.partition(".")
    if len(stem) != _DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem) if dot + suffix in (LOG_SUFFIX, *SIDE_SUFFIXES) else None


def format_line(version: int = FORMAT_VERSION) -> bytes:
    return FORMAT_PREFIX + str(version).encode() + b"\n"


def format_version(content: bytes) -> int | None:
    """None when the content is not such a line."""
    number = content.removeprefix(FORMAT_PREFIX).strip()
    if not content.startswith(FORMAT_PREFIX) or not number.isdigit() or len(number) > 9:
        return None
    return int(number)
