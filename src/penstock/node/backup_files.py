"""The files of a backup, read as those of a stranger: nothing is followed that leads elsewhere, and
nothing is believed that its checksum does not say.

``verify`` reads every byte and finds all there is to find; ``restore`` (``restoring.py``) reads the
same way and stops at the first.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.log.incoming import verified
from penstock.metadata.entry_rules import RULES, prefix_of
from penstock.metadata.moves import MOVES_PREFIX
from penstock.model.errors import Damaged, InvalidRequest
from penstock.model.limits import BATCH_BYTES_MAX, MIB
from penstock.node.backup_admin import PREFIXES
from penstock.node.backup_manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    BackupUnusable,
    FileSum,
    Manifest,
    PartitionPart,
    base_of,
    decode_manifest,
)
from penstock.record.batch import HEADER_BYTES, parse_header

BLOCK_BYTES: Final = 4 * MIB
LINE_BYTES_MAX: Final = 4 * MIB  # the largest value in base64, generously
PARTIAL_PREFIX: Final = ".partial-"  # of a backup that is not finished, and perhaps never will be
_DEFINED: Final = frozenset((*PREFIXES, MOVES_PREFIX))


class Finding(NamedTuple):
    file: str
    reason: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One definition."""

    key: str
    value: bytes


decode_line = msgspec.json.Decoder(Line).decode
encode_line = msgspec.json.Encoder().encode


# ── Opening ──────────────────────────────────────────────────────────────────────────────────


def open_inside(root: Path, path: str) -> int:
    """A descriptor of a plain file below the root. Raises BackupUnusable for anything else."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(parent, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without waiting for whoever might write to a pipe of that name.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise BackupUnusable(f"{path}: it is missing") from None
    except OSError as error:
        # A link looks like a loop, or like something that is not a folder.
        raise BackupUnusable(f"{path}: not a plain file to read ({error.strerror})") from None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BackupUnusable(f"{path}: it is not a plain file")
    return fd


def read_manifest(root: Path) -> Manifest:
    """Raises BackupUnusable."""
    if not root.is_dir():
        raise BackupUnusable(f"{root}: there is no such folder")
    fd = open_inside(root, MANIFEST_NAME)
    with os.fdopen(fd, "rb") as file:
        content = file.read(MANIFEST_BYTES_MAX + 1)
    if len(content) > MANIFEST_BYTES_MAX:
        raise BackupUnusable(f"{MANIFEST_NAME}: it is longer than {MANIFEST_BYTES_MAX} bytes")
    return decode_manifest(content)


def backups_in(folder: Path) -> list[Path]:
    """Whole ones, oldest first: their names are times."""
    if not folder.is_dir():
        raise BackupUnusable(f"{folder}: there is no such folder")
    return sorted(
        one
        for one in folder.iterdir()
        if not one.name.startswith(PARTIAL_PREFIX)
        and not one.is_symlink()
        and (one / MANIFEST_NAME).is_file()
    )


def partials_in(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name.startswith(PARTIAL_PREFIX))


# ── Reading ──────────────────────────────────────────────────────────────────────────────────


def blocks_of(root: Path, file: FileSum) -> Iterator[bytes]:
    """All of it, piece by piece. Raises BackupUnusable, at the latest behind the last piece, when
    it is not what the manifest says."""
    fd = open_inside(root, file.path)
    summed = hashlib.sha256()
    left = file.size_bytes
    with os.fdopen(fd, "rb", buffering=0) as opened:
        size = os.fstat(fd).st_size
        if size != file.size_bytes:
            raise BackupUnusable(f"{file.path}: it has {size} bytes instead of {file.size_bytes}")
        while left:
            block = opened.read(min(BLOCK_BYTES, left))
            if not block:
                raise BackupUnusable(f"{file.path}: it ended {left} bytes too early")
            summed.update(block)
            left -= len(block)
            if not left and summed.hexdigest() != file.sha256:
                break
            yield block
    if summed.hexdigest() != file.sha256:
        raise BackupUnusable(f"{file.path}: it was changed: the checksum does not match")


def batches_of(root: Path, file: FileSum) -> Iterator[bytes]:
    """The same, cut where batches end."""
    rest = b""
    for block in blocks_of(root, file):
        data = rest + block
        end = _whole(data, file.path)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        raise BackupUnusable(f"{file.path}: it ends within a batch")


def _whole(data: bytes, path: str) -> int:
    """How far whole batches go."""
    at = 0
    while at + HEADER_BYTES <= len(data):
        total = parse_header(data, at).total_bytes
        if not HEADER_BYTES <= total <= BATCH_BYTES_MAX:
            raise BackupUnusable(f"{path}: a batch of {total} bytes")
        if at + total > len(data):
            break
        at += total
    return at


def definitions_of(root: Path, manifest: Manifest) -> Iterator[Line]:
    """Each is one that may be in a backup, and stands where it belongs. Raises BackupUnusable."""
    path, rest, count = manifest.definitions.path, b"", 0
    for block in blocks_of(root, manifest.definitions):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise BackupUnusable(f"{path}: a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            count += 1
            yield _definition(line, f"{path}:{count}")
    if rest:
        raise BackupUnusable(f"{path}: it ends within a line")
    if count != manifest.definition_count:
        raise BackupUnusable(f"{path}: {count} lines instead of {manifest.definition_count}")


def _definition(line: bytes, place: str) -> Line:
    try:
        found = decode_line(line)
        prefix = prefix_of(found.key)
        if prefix not in _DEFINED:
            raise BackupUnusable(f"{place}: {found.key} does not belong into a backup")
        belongs = RULES[prefix].place(found.key, found.value)
    except (msgspec.MsgspecError, ValueError, Damaged, InvalidRequest) as error:
        raise BackupUnusable(f"{place}: it cannot be read: {error}") from None
    if belongs is not None and belongs != found.key:
        raise BackupUnusable(f"{place}: {found.key} is not where that value belongs")
    return found


# ── Verifying ────────────────────────────────────────────────────────────────────────────────


def verify(root: Path, *, told: Callable[[int], None] = lambda _bytes: None) -> list[Finding]:
    """Everything that is wrong; nothing is: the backup is whole. ``told`` hears how many bytes
    were looked at."""
    try:
        manifest = read_manifest(root)
    except BackupUnusable as error:
        return [_finding(str(error))]
    findings = _strangers(root, manifest)
    done = 0
    try:
        for _ in definitions_of(root, manifest):
            pass
    except BackupUnusable as error:
        findings.append(_finding(str(error)))
    for part in manifest.partitions:
        findings += _verify_partition(root, part)
        done += part.size_bytes
        told(done)
    return findings


def _verify_partition(root: Path, part: PartitionPart) -> list[Finding]:
    findings: list[Finding] = []
    epoch = -1
    for number, file in enumerate(part.files):
        offset = base_of(file)
        assert offset is not None, "checked with the manifest"
        try:
            for data in batches_of(root, file):
                headers = verified(
                    memoryview(data), offset=offset, epoch=epoch, folder=Path(file.path)
                )
                offset, epoch = headers[-1].next_offset, headers[-1].leader_epoch
        except BackupUnusable as error:
            findings.append(_finding(str(error)))
            continue
        except Damaged as error:
            findings.append(Finding(file.path, str(error)))
            continue
        is_last = number == len(part.files) - 1
        end = part.end_offset if is_last else base_of(part.files[number + 1])
        if offset != end:
            findings.append(Finding(file.path, f"it ends at offset {offset} instead of {end}"))
    if not findings and epoch != part.last_epoch:
        findings.append(
            Finding(MANIFEST_NAME, f"{part.topic_id}/{part.partition} ends in epoch {epoch}")
        )
    return findings


def _strangers(root: Path, manifest: Manifest) -> list[Finding]:
    """What the manifest does not know of."""
    known = {MANIFEST_NAME, *(file.path for file in manifest.files())}
    return [
        Finding(path, "it is not part of the backup")
        for folder, folders, names in os.walk(root)
        for name in (*names, *(one for one in folders if (Path(folder) / one).is_symlink()))
        if (path := (Path(folder) / name).relative_to(root).as_posix()) not in known
    ]


def _finding(text: str) -> Finding:
    file, _, reason = text.partition(": ")
    return Finding(file, reason)
