"""Writes a job's log, which has the output of the JVM and the lines of the runner.

The JVM writes its standard output and error to a pipe; a thread copies the pipe to ``job.log``. A
full file is renamed to ``job.log.1`` and so on; the oldest is deleted. If the disk is full, lines
are lost, but the job continues: the pipe is always emptied."""

import io
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from penstock.telemetry.logs import printable

NAME = "job.log"
BYTES_MAX = 8 * 1_048_576  # of one file
KEPT_MAX = 3  # full files, in addition to the current one
_READ_BYTES = 65_536
_LOOK_AGAIN_S = 0.25
_LAST_WORDS_S_MAX = 2.0
_TAIL_LINES_MAX = 100_000


class JobLog:
    """A context manager that writes a job's log. Child processes write to ``descriptor``."""

    def __init__(self, folder: Path, *, bytes_max: int = BYTES_MAX) -> None:
        self.path = folder / NAME
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._handle: int | None = None
        self._written = 0
        self._is_closed = False
        self._reader, self.descriptor = os.pipe()
        self._thread = threading.Thread(target=self._move, name="job log", daemon=True)

    def __enter__(self) -> "JobLog":
        self._open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
        # The pipe closes when the last child that has it ends; waits only briefly for children.
        self._thread.join(timeout=_LAST_WORDS_S_MAX)
        with self._lock:
            self._is_closed = True
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def line(self, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        self._append(f"{now}Z INFO penstock: {printable(text)}\n".encode())

    def text(self) -> TextIO:
        """Return a replacement for ``sys.stderr``, so that output of Python libraries is logged."""
        return _LogText(self._append)

    def _move(self) -> None:
        rest = b""
        while data := os.read(self._reader, _READ_BYTES):
            whole, found, rest = (rest + data).rpartition(b"\n")
            self._append(whole + found)
            if len(rest) > _READ_BYTES:
                self._append(rest)
                rest = b""
        self._append(rest)
        os.close(self._reader)

    def _append(self, data: bytes) -> None:
        with self._lock:
            if self._is_closed:
                return
            try:
                if self._handle is None or self._written >= self._bytes_max:
                    self._roll()
                assert self._handle is not None
                self._written += os.write(self._handle, data)
            except OSError:
                pass  # only lines are lost

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._handle = os.open(self.path, flags, 0o600)
        self._written = os.fstat(self._handle).st_size

    def _roll(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        for number in range(KEPT_MAX, 0, -1):
            older = self.path.with_name(f"{NAME}.{number}")
            newer = self.path.with_name(f"{NAME}.{number - 1}") if number > 1 else self.path
            if newer.exists():
                newer.replace(older)
        self._open()


class _LogText(io.TextIOBase, TextIO):
    """A text stream that is never closed, because a library may write to it after the job."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        super().__init__()
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._append(text.encode("utf-8", "backslashreplace"))
        return len(text)


def read_log(path: Path, *, count: int, is_over: Callable[[], bool]) -> Iterator[str]:
    """Yield the last ``count`` lines, then new lines until ``is_over`` returns True."""
    pause = threading.Event()  # never set: the writer is another process and cannot notify
    file = path.open(encoding="utf-8", errors="replace")
    try:
        kept: deque[str] = deque(_lines_before(path), maxlen=min(count, _TAIL_LINES_MAX))
        kept.extend(_whole_lines(file))
        yield from kept
        while True:
            was_over = is_over()  # checked first, so that the last lines are still read
            yield from _whole_lines(file)
            if _is_replaced(file.fileno(), path):
                file.close()
                file = path.open(encoding="utf-8", errors="replace")
                continue
            if was_over:
                return
            pause.wait(_LOOK_AGAIN_S)
    finally:
        file.close()


def _lines_before(path: Path) -> Iterator[str]:
    """Yield the lines of the previous log file, because the current file may be almost empty."""
    try:
        with path.with_name(f"{path.name}.1").open(encoding="utf-8", errors="replace") as file:
            yield from _whole_lines(file)
    except FileNotFoundError:
        return


def _whole_lines(file: TextIO) -> Iterator[str]:
    while True:
        at = file.tell()
        line = file.readline()
        if not line.endswith("\n"):
            file.seek(at)  # the rest of the line is not written yet
            return
        yield printable(line[:-1])


def _is_replaced(handle: int, path: Path) -> bool:
    try:
        return path.stat().st_ino != os.fstat(handle).st_ino
    except FileNotFoundError:
        return False  # renamed, and the new file is not created yet
