"""The files of a backup: the manifest, which describes all other files, and functions to read and
verify them.

    <backup>/manifest            penstock-backup 2 <sha256 of what follows>\\n, then JSON
    <backup>/definitions.jsonl   one entry of the metadata store per line: key, value in base64
    <backup>/topics/<topic id>/<partition>/<first offset>.log    batches, as in logs

A folder without a manifest is not a backup. The manifest has its own checksum and the size and
SHA-256 of every file. A backup may come from anywhere, so it is not trusted: each file name in the
manifest must have one of the forms above, symbolic links are rejected, and no file is used whose
checksum does not match. The number in the first line is the format version, one of FORMATS."""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.backup.admin import PREFIXES
from penstock.log.storage.scan import verified
from penstock.metadata.serving.entry_rules import RULES, prefix_of
from penstock.metadata.topics.catalog import MOVES_PREFIX
from penstock.model.errors import Damaged, InvalidRequest, PenstockError
from penstock.model.limits import BATCH_BYTES_MAX, MIB
from penstock.record.batch import HEADER_BYTES, parse_header

MANIFEST_NAME: Final = "manifest"
DEFINITIONS_NAME: Final = "definitions.jsonl"
TOPICS_NAME: Final = "topics"
FORMAT: Final = 2
FORMATS: Final = (1, FORMAT)  # formats that can be read; format 1 has no low watermarks
MANIFEST_BYTES_MAX: Final = 256 * MIB  # enough for a million files

_HEAD = re.compile(rb"penstock-backup ([0-9]{1,6}) ([0-9a-f]{64})\n")
_HEAD_BYTES_MAX = 128
_TOPIC_ID = re.compile(r"[0-9a-f]{32}\Z")
_SHA = re.compile(r"[0-9a-f]{64}\Z")
_OFFSET_MAX = 2**63 - 1
_INDEX_MAX = 2**31 - 1
BLOCK_BYTES: Final = 4 * MIB
LINE_BYTES_MAX: Final = 4 * MIB  # more than the largest value in base64
PARTIAL_PREFIX: Final = ".partial-"  # of an unfinished backup
_DEFINED: Final = frozenset((*PREFIXES, MOVES_PREFIX))


class BackupUnusable(PenstockError):
    """Raised if a backup does not exist or is damaged. The text names the file and the reason."""


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    size_bytes: int
    sha256: str


class PartitionPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    last_epoch: int  # leader epoch of the last batch; -1: no batch
    files: Sequence[FileSum] = ()
    low_watermark: int = 0  # the first visible offset, if above start_offset

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: str  # of the server
    node: str
    nodes: Sequence[int]  # of a cluster; empty: a single node
    account: str
    region: str
    at_ms: int  # wall clock; everything acknowledged before is included
    finished_at_ms: int
    master_key_id: str
    definitions: FileSum
    definition_count: int
    partitions: Sequence[PartitionPart]

    @property
    def size_bytes(self) -> int:
        return self.definitions.size_bytes + sum(one.size_bytes for one in self.partitions)

    def files(self) -> Sequence[FileSum]:
        return [self.definitions, *(file for one in self.partitions for file in one.files)]


def log_path(topic_id: str, partition: int, base_offset: int) -> str:
    return f"{TOPICS_NAME}/{topic_id}/{partition}/{base_offset:020d}.log"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Manifest).decode


def encode_manifest(manifest: Manifest) -> bytes:
    body = msgspec.json.format(_encode(manifest), indent=1) + b"\n"
    return f"penstock-backup {FORMAT} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def decode_manifest(content: bytes) -> Manifest:
    head = _HEAD.match(content[:_HEAD_BYTES_MAX])
    if head is None:
        raise BackupUnusable(f"{MANIFEST_NAME}: this file is not the manifest of a backup")
    if int(head[1]) not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise BackupUnusable(
            f"{MANIFEST_NAME}: format {int(head[1])} is not supported (supported: {known})"
        )
    body = content[head.end() :]
    if hashlib.sha256(body).hexdigest().encode() != head[2]:
        raise BackupUnusable(f"{MANIFEST_NAME}: the checksum does not match")
    try:
        manifest = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupUnusable(f"{MANIFEST_NAME}: the content is invalid: {error}") from None
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    _check_file(manifest.definitions, DEFINITIONS_NAME)
    seen: set[tuple[str, int]] = set()
    for one in manifest.partitions:
        place = (one.topic_id, one.partition)
        if _TOPIC_ID.match(one.topic_id) is None or not 0 <= one.partition <= _INDEX_MAX:
            raise BackupUnusable(
                f"{MANIFEST_NAME}: {one.topic_id!r}/{one.partition} is not a valid partition"
            )
        if place in seen:
            raise BackupUnusable(f"{MANIFEST_NAME}: {one.topic_id}/{one.partition} is listed twice")
        seen.add(place)
        _check_partition(one)


def _check_partition(one: PartitionPart) -> None:
    what = f"{MANIFEST_NAME}: partition {one.topic_id}/{one.partition}"
    if not 0 <= one.start_offset <= one.end_offset <= _OFFSET_MAX:
        raise BackupUnusable(f"{what} has invalid offsets {one.start_offset} to {one.end_offset}")
    if not 0 <= one.low_watermark <= one.end_offset:
        raise BackupUnusable(f"{what} has the invalid low watermark {one.low_watermark}")
    if bool(one.files) != (one.start_offset < one.end_offset):
        raise BackupUnusable(f"{what} has {len(one.files)} files, which does not match its offsets")
    if not -1 <= one.last_epoch <= _INDEX_MAX:
        raise BackupUnusable(f"{what} has the invalid last epoch {one.last_epoch}")
    at = one.start_offset
    for number, file in enumerate(one.files):
        base = base_of(file)
        if base is None or (base != at if not number else not at < base < one.end_offset):
            raise BackupUnusable(
                f"{what} has a file with a wrong offset in its name: {file.path!r}"
            )
        _check_file(file, log_path(one.topic_id, one.partition, base))
        at = base


def base_of(file: FileSum) -> int | None:
    """Return the first offset of a log file from its name, or None if the name is invalid."""
    stem = file.path.rpartition("/")[2].removesuffix(".log")
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def _check_file(file: FileSum, path: str) -> None:
    if file.path != path:
        raise BackupUnusable(f"{MANIFEST_NAME}: the file name {file.path!r} is not allowed")
    if file.size_bytes < 0 or _SHA.match(file.sha256) is None:
        raise BackupUnusable(f"{MANIFEST_NAME}: {path} has an invalid size or checksum")


class Finding(NamedTuple):
    file: str
    reason: str


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: bytes


decode_line = msgspec.json.Decoder(Line).decode
encode_line = msgspec.json.Encoder().encode


def open_inside(root: Path, path: str) -> int:
    """Open a regular file below ``root``. Symbolic links are rejected, not followed."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, name = path.split("/")
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(parent, flags, dir_fd=folder)
            os.close(folder)
            folder = inner
        # O_NONBLOCK, because opening a named pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise BackupUnusable(f"{path}: the file is missing") from None
    except OSError as error:
        # A link causes ELOOP or ENOTDIR.
        raise BackupUnusable(f"{path}: this is not a regular file ({error.strerror})") from None
    finally:
        os.close(folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BackupUnusable(f"{path}: this is not a regular file")
    return fd


def read_manifest(root: Path) -> Manifest:
    if not root.is_dir():
        raise BackupUnusable(f"{root}: the folder does not exist")
    fd = open_inside(root, MANIFEST_NAME)
    with os.fdopen(fd, "rb") as file:
        content = file.read(MANIFEST_BYTES_MAX + 1)
    if len(content) > MANIFEST_BYTES_MAX:
        raise BackupUnusable(f"{MANIFEST_NAME}: the file has more than {MANIFEST_BYTES_MAX} bytes")
    return decode_manifest(content)


def backups_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise BackupUnusable(f"{folder}: the folder does not exist")
    return sorted(
        one
        for one in folder.iterdir()
        if not one.name.startswith(PARTIAL_PREFIX)
        and not one.is_symlink()
        and (one / MANIFEST_NAME).is_file()
    )


def partials_in(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.name.startswith(PARTIAL_PREFIX))


def blocks_of(root: Path, file: FileSum) -> Iterator[bytes]:
    """Yield the content of a file in blocks, but the last block only if the checksum matches."""
    fd = open_inside(root, file.path)
    summed = hashlib.sha256()
    left = file.size_bytes
    with os.fdopen(fd, "rb", buffering=0) as opened:
        size = os.fstat(fd).st_size
        if size != file.size_bytes:
            raise BackupUnusable(f"{file.path}: size is {size} bytes instead of {file.size_bytes}")
        while left:
            block = opened.read(min(BLOCK_BYTES, left))
            if not block:
                raise BackupUnusable(f"{file.path}: the file ended {left} bytes too early")
            summed.update(block)
            left -= len(block)
            if not left and summed.hexdigest() != file.sha256:
                break
            yield block
    if summed.hexdigest() != file.sha256:
        raise BackupUnusable(f"{file.path}: the checksum does not match")


def batches_of(root: Path, file: FileSum) -> Iterator[bytes]:
    rest = b""
    for block in blocks_of(root, file):
        data = rest + block
        end = _whole(data, file.path)
        if end:
            yield data[:end]
        rest = data[end:]
    if rest:
        raise BackupUnusable(f"{file.path}: the file ends within a batch")


def _whole(data: bytes, path: str) -> int:
    at = 0
    while at + HEADER_BYTES <= len(data):
        total = parse_header(data, at).total_bytes
        if not HEADER_BYTES <= total <= BATCH_BYTES_MAX:
            raise BackupUnusable(f"{path}: a batch has the invalid length {total}")
        if at + total > len(data):
            break
        at += total
    return at


def definitions_of(root: Path, manifest: Manifest) -> Iterator[Line]:
    path, rest, count = manifest.definitions.path, b"", 0
    for block in blocks_of(root, manifest.definitions):
        *lines, rest = (rest + block).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise BackupUnusable(f"{path}: a line has more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            count += 1
            yield _definition(line, f"{path}:{count}")
    if rest:
        raise BackupUnusable(f"{path}: the file ends within a line")
    if count != manifest.definition_count:
        raise BackupUnusable(f"{path}: found {count} lines instead of {manifest.definition_count}")


def _definition(line: bytes, place: str) -> Line:
    try:
        found = decode_line(line)
        prefix = prefix_of(found.key)
        if prefix not in _DEFINED:
            raise BackupUnusable(f"{place}: the key {found.key} is not allowed in a backup")
        right = RULES[prefix].key_of(found.key, found.value)
    except (msgspec.MsgspecError, ValueError, Damaged, InvalidRequest) as error:
        raise BackupUnusable(f"{place}: the line is invalid: {error}") from None
    if right != found.key:
        raise BackupUnusable(f"{place}: the key {found.key} does not match the value")
    return found


def verify(root: Path, *, progress: Callable[[int], None] = lambda _bytes: None) -> list[Finding]:
    """Return the problems found in a backup. ``progress`` gets the number of verified bytes."""
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
            findings.append(Finding(file.path, f"the file ends at offset {offset}, not {end}"))
    if not findings and epoch != part.last_epoch:
        findings.append(
            Finding(MANIFEST_NAME, f"{part.topic_id}/{part.partition} really ends in epoch {epoch}")
        )
    return findings


def _unknown_files(root: Path, manifest: Manifest) -> list[Finding]:
    known = {MANIFEST_NAME, *(file.path for file in manifest.files())}
    return [
        Finding(path, "this file is not part of the backup")
        for folder, folders, names in os.walk(root)
        for name in (*names, *(one for one in folders if (Path(folder) / one).is_symlink()))
        if (path := (Path(folder) / name).relative_to(root).as_posix()) not in known
    ]


def _finding(text: str) -> Finding:
    file, _, reason = text.partition(": ")
    return Finding(file, reason)
