"""Writes a backup to a folder.

A backup is written to ``.partial-<name>`` and renamed to ``<name>`` when everything is on disk, so
a folder with its final name is a complete backup. Every batch is verified before it is written.
``Source`` provides the data. It is the admin API, or a substitute in tests."""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from penstock.backup.manifest import (
    DEFINITIONS_NAME,
    MANIFEST_NAME,
    PARTIAL_PREFIX,
    TOPICS_NAME,
    BackupUnusable,
    FileSum,
    Line,
    Manifest,
    PartitionPart,
    decode_line,
    encode_line,
    encode_manifest,
    log_path,
)
from penstock.frontend.admin.ports import Definition, PartitionCut, Piece, StartedBackup
from penstock.log.storage.files import DISK
from penstock.log.storage.scan import verified
from penstock.metadata.topics.catalog import TOPICS_PREFIX
from penstock.model.errors import Damaged, TopicNotFound
from penstock.model.limits import MIB
from penstock.model.topic import Topic

FILE_BYTES: Final = 64 * MIB  # plus the rest of the last piece

_decode_topic = msgspec.json.Decoder(Topic).decode


class Source(Protocol):
    def begin(self) -> StartedBackup: ...

    def definitions(self) -> Iterator[Definition]: ...

    def partitions(self) -> Iterator[PartitionCut]: ...

    def read(self, topic_id: str, partition: int, offset: int) -> Piece: ...

    def end(self) -> None: ...


class Pace:
    """A limit on the average number of bytes per second; 0 means no limit."""

    def __init__(
        self,
        bytes_per_s: int,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._started = now()
        self._bytes = 0

    def passed(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes_per_s:
            early = self._bytes / self._bytes_per_s - (self._now() - self._started)
            if early > 0:
                self._sleep(early)


def write_backup(
    source: Source,
    folder: Path,
    *,
    pace: Pace,
    now_ms: Callable[[], int],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Path, Manifest]:
    """Write a new backup below ``folder``. ``progress`` is called with the number of bytes written
    and the approximate total. Any error, including Ctrl-C, removes the unfinished backup."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = source.begin()
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(begun.at_ms / 1_000))}-{begun.id[:6]}"
    partial = folder / (PARTIAL_PREFIX + name)
    try:
        partial.mkdir(mode=0o700)
        manifest = _Writing(source, partial, begun, pace, progress).run(now_ms)
        final = folder / name
        partial.rename(final)
        DISK.sync_folder(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        # Optional: an idle backup times out on the server.
        with contextlib.suppress(Exception):
            source.end()
    return final, manifest


@dataclass(eq=False)
class _Writing:
    source: Source
    root: Path
    begun: StartedBackup
    pace: Pace
    progress: Callable[[int, int], None]
    done_bytes: int = 0
    gone: set[str] = field(default_factory=set)  # topics deleted meanwhile

    def run(self, now_ms: Callable[[], int]) -> Manifest:
        begun = self.begun
        definitions, count = self._write_definitions(
            Line(one.key, one.value) for one in self.source.definitions()
        )
        parts = []
        for cut in self.source.partitions():
            part = None if cut.topic_id in self.gone else self._copy(cut)
            if part is not None:
                parts.append(part)
        if self.gone:
            parts = [one for one in parts if one.topic_id not in self.gone]
            definitions, count = self._forget_gone()
        copied = ("version", "node", "nodes", "account", "region", "at_ms", "master_key_id")
        manifest = Manifest(
            **{name: getattr(begun, name) for name in copied},
            finished_at_ms=now_ms(),
            definitions=definitions,
            definition_count=count,
            partitions=parts,
        )
        for below, _, _ in os.walk(self.root / TOPICS_NAME):
            DISK.sync_folder(Path(below))
        with _NewFile(self.root, MANIFEST_NAME) as file:
            file.write(encode_manifest(manifest))
        DISK.sync_folder(self.root)
        return manifest

    def _write_definitions(self, lines: Iterator[Line]) -> tuple[FileSum, int]:
        count = 0
        with _NewFile(self.root, DEFINITIONS_NAME) as file:
            for line in lines:
                file.write(encode_line(line) + b"\n")
                count += 1
        return file.summed, count

    def _forget_gone(self) -> tuple[FileSum, int]:
        for topic_id in self.gone:
            shutil.rmtree(self.root / TOPICS_NAME / topic_id, ignore_errors=True)
        path = self.root / DEFINITIONS_NAME
        with path.open("rb") as before:
            path.unlink()  # the open file can still be read
            lines = (decode_line(line) for line in before)
            return self._write_definitions(line for line in lines if not self._is_gone(line))

    def _is_gone(self, line: Line) -> bool:
        if not line.key.startswith(TOPICS_PREFIX):
            return False
        topic = _decode_topic(line.value)
        return (topic.source_id or topic.topic_id) in self.gone

    def _copy(self, cut: PartitionCut) -> PartitionPart | None:
        start = cut.start_offset
        while True:
            try:
                copied = self._copy_from(cut, start)
            except TopicNotFound:
                self.gone.add(cut.topic_id)
                return None
            if isinstance(copied, PartitionPart):
                return copied
            assert copied > start, "records are removed at the start only"
            start = copied

    def _copy_from(self, cut: PartitionCut, start: int) -> PartitionPart | int:
        """Copy a log and return the description of the copy. If the server has deleted records
        that were not copied yet, stop and return the log's new start offset."""
        topic_id, partition, end = cut.topic_id, cut.partition, cut.end_offset
        shutil.rmtree(self.root / TOPICS_NAME / topic_id / str(partition), ignore_errors=True)
        files: list[FileSum] = []
        at, base, epoch = start, start, -1
        while at < end:
            with contextlib.ExitStack() as stack:
                file: _NewFile | None = None
                while at < end and (file is None or file.size_bytes < FILE_BYTES):
                    piece = self.source.read(topic_id, partition, at)
                    if not piece.data:
                        return piece.start_offset
                    if file is None:
                        first = piece.base_offset if at == start else at
                        base = first if at == start else base
                        path = log_path(topic_id, partition, first)
                        file = stack.enter_context(_NewFile(self.root, path))
                        at = first
                    at, epoch = self._write(file, piece, at, epoch)
            assert file is not None, "at least one piece was read"
            files.append(file.summed)
        return PartitionPart(topic_id, partition, base, max(at, base), epoch, files, start)

    def _write(self, file: "_NewFile", piece: Piece, at: int, epoch: int) -> tuple[int, int]:
        try:
            headers = verified(
                memoryview(piece.data), offset=at, epoch=epoch, folder=Path(file.path)
            )
        except Damaged as error:
            raise BackupUnusable(f"the server sent invalid batches: {error}") from error
        file.write(piece.data)
        self.done_bytes += len(piece.data)
        self.progress(self.done_bytes, max(self.begun.size_bytes, self.done_bytes))
        self.pace.passed(len(piece.data))
        return headers[-1].next_offset, headers[-1].leader_epoch


class _NewFile:
    def __init__(self, root: Path, path: str) -> None:
        self.path = path
        self._place = root / path
        self._sum = hashlib.sha256()
        self.size_bytes = 0
        self._file: BinaryIO

    def __enter__(self) -> "_NewFile":
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file = self._place.open("xb")
        return self

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._sum.update(data)
        self.size_bytes += len(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._file.flush()
                os.fsync(self._file.fileno())

    @property
    def summed(self) -> FileSum:
        return FileSum(self.path, self.size_bytes, self._sum.hexdigest())
