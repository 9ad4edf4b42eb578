"""The manifest of a backup: one file, written last, that describes and protects all others.

    <backup>/manifest            penstock-backup 2 <sha256 of what follows>\\n, then JSON
    <backup>/definitions.jsonl   one entry of the metadata store per line: key, value in base64
    <backup>/topics/<topic id>/<partition>/<first offset>.log    batches, as in logs

A folder without a manifest is not a backup. The manifest has the size and SHA-256 of every file and
its own checksum, so that a changed, short or missing file is detected. It may come from anywhere,
so it is not trusted: each name in it must be one of the above, built from an id and numbers.

Another layout needs another number in the first line; this version reads those in FORMATS.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from penstock.model.errors import PenstockError
from penstock.model.limits import MIB

MANIFEST_NAME: Final = "manifest"
DEFINITIONS_NAME: Final = "definitions.jsonl"
TOPICS_NAME: Final = "topics"
FORMAT: Final = 2
FORMATS: Final = (1, FORMAT)  # readable; format 1 has no low watermarks
MANIFEST_BYTES_MAX: Final = 256 * MIB  # of a million files

_HEAD = re.compile(rb"penstock-backup ([0-9]{1,6}) ([0-9a-f]{64})\n")
_HEAD_BYTES_MAX = 128
_TOPIC_ID = re.compile(r"[0-9a-f]{32}\Z")
_SHA = re.compile(r"[0-9a-f]{64}\Z")
_OFFSET_MAX = 2**63 - 1
_INDEX_MAX = 2**31 - 1


class BackupUnusable(PenstockError):
    """There is no backup, or it is not intact. The text names the file and the reason."""


class FileSum(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    size_bytes: int
    sha256: str


class PartitionPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic_id: str
    partition: int
    start_offset: int
    end_offset: int
    last_epoch: int  # of its last batch; -1: no batch
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
    """Raises BackupUnusable."""
    head = _HEAD.match(content[:_HEAD_BYTES_MAX])
    if head is None:
        raise BackupUnusable(f"{MANIFEST_NAME}: not the manifest of a backup")
    if int(head[1]) not in FORMATS:
        known = " and ".join(map(str, FORMATS))
        raise BackupUnusable(
            f"{MANIFEST_NAME}: format {int(head[1])} is not supported, only {known}"
        )
    body = content[head.end() :]
    if hashlib.sha256(body).hexdigest().encode() != head[2]:
        raise BackupUnusable(f"{MANIFEST_NAME}: the checksum does not match")
    try:
        manifest = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BackupUnusable(f"{MANIFEST_NAME}: cannot be read: {error}") from None
    _check(manifest)
    return manifest


def _check(manifest: Manifest) -> None:
    _check_file(manifest.definitions, DEFINITIONS_NAME)
    seen: set[tuple[str, int]] = set()
    for one in manifest.partitions:
        place = (one.topic_id, one.partition)
        if _TOPIC_ID.match(one.topic_id) is None or not 0 <= one.partition <= _INDEX_MAX:
            raise BackupUnusable(
                f"{MANIFEST_NAME}: {one.topic_id!r}/{one.partition} is not a partition"
            )
        if place in seen:
            raise BackupUnusable(f"{MANIFEST_NAME}: {one.topic_id}/{one.partition} occurs twice")
        seen.add(place)
        _check_partition(one)


def _check_partition(one: PartitionPart) -> None:
    what = f"{MANIFEST_NAME}: {one.topic_id}/{one.partition}"
    if not 0 <= one.start_offset <= one.end_offset <= _OFFSET_MAX:
        raise BackupUnusable(f"{what} has offsets from {one.start_offset} to {one.end_offset}")
    if not 0 <= one.low_watermark <= one.end_offset:
        raise BackupUnusable(f"{what} has a low watermark of {one.low_watermark}")
    if bool(one.files) != (one.start_offset < one.end_offset):
        raise BackupUnusable(f"{what} has {len(one.files)} files")
    if not -1 <= one.last_epoch <= _INDEX_MAX:
        raise BackupUnusable(f"{what} has the last epoch {one.last_epoch}")
    at = one.start_offset
    for number, file in enumerate(one.files):
        base = base_of(file)
        if base is None or (base != at if not number else not at < base < one.end_offset):
            raise BackupUnusable(f"{what} has a misplaced file: {file.path!r}")
        _check_file(file, log_path(one.topic_id, one.partition, base))
        at = base


def base_of(file: FileSum) -> int | None:
    """Return the first offset in a log file, from its name."""
    stem = file.path.rpartition("/")[2].removesuffix(".log")
    return int(stem) if len(stem) == 20 and stem.isascii() and stem.isdigit() else None


def _check_file(file: FileSum, path: str) -> None:
    if file.path != path:
        raise BackupUnusable(f"{MANIFEST_NAME}: a file is not allowed at {file.path!r}")
    if file.size_bytes < 0 or _SHA.match(file.sha256) is None:
        raise BackupUnusable(f"{MANIFEST_NAME}: {path} has no size or no checksum")
