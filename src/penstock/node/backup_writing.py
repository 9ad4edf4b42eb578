"""Writing a backup to a folder, from whoever hands it out.

    .partial-<name>/…      while it is written
    <name>/…               once everything is on disk, the manifest last

So whatever has a name has everything: dying in between leaves a folder that nobody takes for a
backup. Every batch is checked before it is written, for an error that is copied is noticed when it
is too late.

Where the pieces come from is ``Source``'s to say: an admin API in the program, anything in a test.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import msgspec

from penstock.frontend.admin.backup_port import Begun, Definition, PartitionCut, Piece
from penstock.log.incoming import verified
from penstock.metadata.catalog import TOPICS_PREFIX
from penstock.model.errors import Damaged, TopicNotFound
from penstock.model.limits import MIB
from penstock.model.topic import Topic
from penstock.node.backup_files import PARTIAL_PREFIX, Line, decode_line, encode_line
from penstock.node.backup_manifest import (
    DEFINITIONS_NAME,
    MANIFEST_NAME,
    TOPICS_NAME,
    BackupUnusable,
    FileSum,
    Manifest,
    PartitionPart,
    encode_manifest,
    log_path,
)

FILE_BYTES: Final = 64 * MIB  # and what one piece has beyond

_decode_topic = msgspec.json.Decoder(Topic).decode


class Source(Protocol):
    def begin(self) -> Begun: ...

    def definitions(self) -> Iterator[Definition]: ...

    def partitions(self) -> Iterator[PartitionCut]: ...

    def read(self, topic_id: str, partition: int, offset: int) -> Piece:
        """Raises TopicNotFound for a topic that was deleted meanwhile."""
        ...

    def end(self) -> None: ...


class Pace:
    """Not more bytes a second than this, from the first on; 0: as fast as it goes."""

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
    told: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Path, Manifest]:
    """A new backup below ``folder``. ``told`` hears how many bytes are done, and of how many there
    are about. Whatever ends it early, Ctrl-C included, leaves nothing behind."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = source.begin()
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(begun.at_ms / 1_000))}-{begun.id[:6]}"
    partial = folder / (PARTIAL_PREFIX + name)
    try:
        # Messages are nobody else's business, sealed or not.
        partial.mkdir(mode=0o700)
        manifest = _Writing(source, partial, begun, pace, told).run(now_ms)
        final = folder / name
        partial.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        # The server forgets it by itself; saying so is a courtesy.
        with contextlib.suppress(Exception):
            source.end()
    return final, manifest


class _Writing:
    def __init__(
        self,
        source: Source,
        root: Path,
        begun: Begun,
        pace: Pace,
        told: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._root = root
        self._begun = begun
        self._pace = pace
        self._told = told
        self._done_bytes = 0
        self._gone: set[str] = set()  # topics that were deleted meanwhile

    def run(self, now_ms: Callable[[], int]) -> Manifest:
        begun = self._begun
        definitions, count = self._write_definitions(
            Line(one.key, one.value) for one in self._source.definitions()
        )
        parts = []
        for cut in self._source.partitions():
            part = None if cut.topic_id in self._gone else self._copy(cut)
            if part is not None:
                parts.append(part)
        if self._gone:
            parts = [one for one in parts if one.topic_id not in self._gone]
            definitions, count = self._forget_gone()
        manifest = Manifest(
            version=begun.version,
            node=begun.node,
            nodes=begun.nodes,
            account=begun.account,
            region=begun.region,
            at_ms=begun.at_ms,
            finished_at_ms=now_ms(),
            master_key_id=begun.master_key_id,
            definitions=definitions,
            definition_count=count,
            partitions=parts,
        )
        for below, _, _ in os.walk(self._root / TOPICS_NAME):
            sync_folder(Path(below))
        with _NewFile(self._root, MANIFEST_NAME) as file:
            file.write(encode_manifest(manifest))
        sync_folder(self._root)
        return manifest

    # ── Definitions ──────────────────────────────────────────────────────────────────────────

    def _write_definitions(self, lines: Iterator[Line]) -> tuple[FileSum, int]:
        count = 0
        with _NewFile(self._root, DEFINITIONS_NAME) as file:
            for line in lines:
                file.write(encode_line(line) + b"\n")
                count += 1
        return file.summed, count

    def _forget_gone(self) -> tuple[FileSum, int]:
        """The definitions again, without topics that have no logs any more and their shares."""
        for topic_id in self._gone:
            shutil.rmtree(self._root / TOPICS_NAME / topic_id, ignore_errors=True)
        path = self._root / DEFINITIONS_NAME
        with path.open("rb") as before:
            path.unlink()  # it is still open here
            lines = (decode_line(line) for line in before)
            return self._write_definitions(line for line in lines if not self._is_gone(line))

    def _is_gone(self, line: Line) -> bool:
        if not line.key.startswith(TOPICS_PREFIX):
            return False
        topic = _decode_topic(line.value)
        return (topic.source_id or topic.topic_id) in self._gone

    # ── Logs ─────────────────────────────────────────────────────────────────────────────────

    def _copy(self, cut: PartitionCut) -> PartitionPart | None:
        """None: its topic is gone."""
        start = cut.start_offset
        while True:
            try:
                copied = self._copy_from(cut, start)
            except TopicNotFound:
                self._gone.add(cut.topic_id)
                return None
            if isinstance(copied, PartitionPart):
                return copied
            assert copied > start, "what is gone is gone from the start"
            start = copied

    def _copy_from(self, cut: PartitionCut, start: int) -> PartitionPart | int:
        """Where to begin anew instead, when the beginning was dropped while it was copied."""
        topic_id, partition, end = cut.topic_id, cut.partition, cut.end_offset
        shutil.rmtree(self._root / TOPICS_NAME / topic_id / str(partition), ignore_errors=True)
        files: list[FileSum] = []
        at, base, epoch = start, start, -1
        while at < end:
            with contextlib.ExitStack() as stack:
                file: _NewFile | None = None
                while at < end and (file is None or file.size_bytes < FILE_BYTES):
                    piece = self._source.read(topic_id, partition, at)
                    if not piece.data:
                        return piece.start_offset
                    if file is None:
                        first = piece.base_offset if at == start else at
                        base = first if at == start else base
                        path = log_path(topic_id, partition, first)
                        file = stack.enter_context(_NewFile(self._root, path))
                        at = first
                    at, epoch = self._write(file, piece, at, epoch)
            assert file is not None, "something was read"
            files.append(file.summed)
        return PartitionPart(topic_id, partition, base, max(at, base), epoch, files, start)

    def _write(self, file: "_NewFile", piece: Piece, at: int, epoch: int) -> tuple[int, int]:
        try:
            headers = verified(
                memoryview(piece.data), offset=at, epoch=epoch, folder=Path(file.path)
            )
        except Damaged as error:
            raise BackupUnusable(f"what the server sent is not in order: {error}") from error
        file.write(piece.data)
        self._done_bytes += len(piece.data)
        self._told(self._done_bytes, max(self._begun.size_bytes, self._done_bytes))
        self._pace.passed(len(piece.data))
        return headers[-1].next_offset, headers[-1].leader_epoch


class _NewFile:
    """On disk when it is left, with its sum."""

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


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
