"""Reading the files of a backup. They are not trusted: links are not followed, and nothing is used
whose checksum does not match.

``verify`` reads everything and returns all problems; ``restore`` stops at the first one.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.backup.admin import PREFIXES
from penstock.backup.manifest import (
    MANIFEST_BYTES_MAX,
    MANIFEST_NAME,
    BackupUnusable,
    FileSum,
    Manifest,
    PartitionPart,
    base_of,
    decode_manifest,
)
from penstock.log.storage.scan import verified
from penstock.metadata.serving.entry_rules import RULES, prefix_of
from penstock.metadata.topics.move_tasks import MOVES_PREFIX
from penstock.model.errors import Damaged, InvalidRequest
from penstock.model.limits import BATCH_BYTES_MAX, MIB
from penstock.record.batch import HEADER_BYTES, parse_header

BLOCK_BYTES: Final = 4 * MIB
LINE_BYTES_MAX: Final = 4 * MIB  # more than the largest value in base64
PARTIAL_PREFIX: Final = ".partial-"  # of an unfinished backup
_DEFINED: Final = frozenset((*PREFIXES, MOVES_PREFIX))


class Finding(NamedTuple):
    file: str
    reason: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: bytes


decode_line = msgspec.json.Decoder(Line).decode
encode_line = msgspec.json.Encoder().encode


# ── Opening ──────────────────────────────────────────────────────────────────────────────────


def open_inside(root: Path, path: str) -> int:
    """Open a regular file below the root. Raises BackupUnusable for anything else."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(parent, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without waiting for the writer of a pipe of that name.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise BackupUnusable(f"{path}: missing") from None
    except OSError as error:
        # A link causes ELOOP or ENOTDIR.
        raise BackupUnusable(f"{path}: not a readable regular file ({error.strerror})") from None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BackupUnusable(f"{path}: not a regular file")
    return fd


def read_manifest(root: Path) -> Manifest:
    """Raises BackupUnusable."""
    if not root.is_dir():
        raise BackupUnusable(f"{root}: no such folder")
    fd = open_inside(root, MANIFEST_NAME)
    with os.fdopen(fd, "rb") as file:
        content = file.read(MANIFEST_BYTES_MAX + 1)
    if len(content) > MANIFEST_BYTES_MAX:
        raise BackupUnusable(f"{MANIFEST_NAME}: longer than {MANIFEST_BYTES_MAX} bytes")
    return decode_manifest(content)


def backups_in(folder: Path) -> list[Path]:
    """Return the finished backups, oldest first: their names are times."""
    if not folder.is_dir():
        raise BackupUnusable(f"{folder}: no such folder")
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
    """Yield a file in blocks. Raises BackupUnusable, at the latest instead of the last block, if
    size or checksum differ from the manifest."""
    fd = open_inside(root, file.path)
    summed = hashlib.sha256()
    left = file.size_bytes
    with os.fdopen(fd, "rb", buffering=0) as opened:
        size = os.fstat(fd).st_size
        if size != file.size_bytes:
            raise BackupUnusable(f"{file.path}: has {size} bytes instead of {file.size_bytes}")
        while left:
            block = opened.read(min(BLOCK_BYTES, left))
            if not block:
                raise BackupUnusable(f"{file.path}: ended {left} bytes too early")
            summed.update(block)
            left -= len(block)
            if not left and summed.hexdigest() != file.sha256:
                break
            yield block
    if summed.hexdigest() != file.sha256:
        raise BackupUnusable(f"{file.path}: the checksum does not match")


def batches_of(root: Path, file: FileSum) -> Iterator[bytes]:
    """Yield a file in pieces of whole batches."""
    rest = b""
    for block in blocks_of(root, file):
        data = rest + block
        end = _whole(data, file.path)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        raise BackupUnusable(f"{file.path}: ends within a batch")


def _whole(data: bytes, path: str) -> int:
    """Return the length of the whole batches."""
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
    """Yield the definitions, each checked against the rules of its kind. Raises BackupUnusable."""
    path, rest, count = manifest.definitions.path, b"", 0
    for block in blocks_of(root, manifest.definitions):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise BackupUnusable(f"{path}: a line of more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            count += 1
            yield _definition(line, f"{path}:{count}")
    if rest:
        raise BackupUnusable(f"{path}: ends within a line")
    if count != manifest.definition_count:
        raise BackupUnusable(f"{path}: {count} lines instead of {manifest.definition_count}")


def _definition(line: bytes, place: str) -> Line:
    try:
        found = decode_line(line)
        prefix = prefix_of(found.key)
        if prefix not in _DEFINED:
            raise BackupUnusable(f"{place}: {found.key} is not allowed in a backup")
        right = RULES[prefix].key_of(found.key, found.value)
    except (msgspec.MsgspecError, ValueError, Damaged, InvalidRequest) as error:
        raise BackupUnusable(f"{place}: cannot be read: {error}") from None
    if right != found.key:
        raise BackupUnusable(f"{place}: {found.key} is not the key of its value")
    return found


# ── Verifying ────────────────────────────────────────────────────────────────────────────────


def verify(root: Path, *, progress: Callable[[int], None] = lambda _bytes: None) -> list[Finding]:
    """Return all problems; none: the backup is intact. ``progress`` is called with the number of
    bytes verified so far."""
    try:
        manifest = read_manifest(root)
    except BackupUnusable as error:
        return [_finding(str(error))]
    findings = _unknown_files(root, manifest)
    done = 0
    try:
        for _ in definitions_of(root, manifest):
            pass
    except BackupUnusable as error:
        findings.append(_finding(str(error)))
    for part in manifest.partitions:
        findings += _verify_partition(root, part)
        done += part.size_bytes
        progress(done)
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
            findings.append(Finding(file.path, f"ends at offset {offset} instead of {end}"))
    if not findings and epoch != part.last_epoch:
        findings.append(
            Finding(MANIFEST_NAME, f"{part.topic_id}/{part.partition} ends in epoch {epoch}")
        )
    return findings


def _unknown_files(root: Path, manifest: Manifest) -> list[Finding]:
    """Return the files that the manifest does not name."""
    known = {MANIFEST_NAME, *(file.path for file in manifest.files())}
    return [
        Finding(path, "not part of the backup")
        for folder, folders, names in os.walk(root)
        for name in (*names, *(one for one in folders if (Path(folder) / one).is_symlink()))
        if (path := (Path(folder) / name).relative_to(root).as_posix()) not in known
    ]


def _finding(text: str) -> Finding:
    file, _, reason = text.partition(": ")
    return Finding(file, reason)
