"""A job's log: what the JVM prints and what the runner says, in one bounded file.

The JVM gets the end of a pipe as its standard output and error; a thread moves what arrives into
``job.log``. So Spark's log, the traceback of a Python worker and a last word of a dying JVM are all
in one place, in order. When the file is full it becomes ``job.log.1`` and so on; the oldest goes.
A full disk loses lines, never the job: the pipe is emptied whatever happens.
"""

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
KEPT_MAX = 3  # full files beside the one being written
_READ_BYTES = 65_536
_LOOK_AGAIN_S = 0.25
_LAST_WORDS_S_MAX = 2.0
_TAIL_LINES_MAX = 100_000


class JobLog:
    """``with JobLog(folder) as log: ... log.descriptor`` is where a child may write."""

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
        # The pipe ends when the last child that had it is gone; one that lingers is not waited for.
        self._thread.join(timeout=_LAST_WORDS_S_MAX)
        with self._lock:
            self._is_closed = True
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def line(self, text: str) -> None:
        """One line of the runner itself."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
        self._append(f"{now}Z INFO penstock: {printable(text)}\n".encode())

    def text(self) -> TextIO:
        """A stand-in for ``sys.stderr``: what Python libraries print belongs here, too."""
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
                pass  # as said above: lines are lost, and that is all

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
    """Never closed: a library may keep it and print after the job."""

    def __init__(self, append: Callable[[bytes], None]) -> None:
        super().__init__()
        self._append = append

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._append(text.encode("utf-8", "backslashreplace"))
        return len(text)


def read_log(path: Path, *, count: int, is_over: Callable[[], bool]) -> Iterator[str]:
    """The last ``count`` lines, then those that are added, across the file's being replaced, until
    the writer is said to be over."""
    pause = threading.Event()  # never set: another process writes, and gives no sign
    file = path.open(encoding="utf-8", errors="replace")
    try:
        kept: deque[str] = deque(_lines_before(path), maxlen=min(count, _TAIL_LINES_MAX))
        kept.extend(_whole_lines(file))
        yield from kept
        while True:
            was_over = is_over()  # asked first: what was written before is still to be read
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
    """Of the full file before this one: the newest may just have been begun."""
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
            file.seek(at)  # the rest of it is still to come
            return
        yield printable(line[:-1])


def _is_replaced(handle: int, path: Path) -> bool:
    try:
        return path.stat().st_ino != os.fstat(handle).st_ino
    except FileNotFoundError:
        return False  # between the renaming and the new file
