"""Shows the progress of a job: bars on a terminal, otherwise lines.

Both go to stderr; stdout is for results. A log file gets a line only when something has changed and
some seconds have passed, so that a job that runs for months does not fill it."""

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.terminal.output import is_drawing

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from penstock.pipeline.runs.progress import ProgressUpdate

_LINE_S_MIN = 5.0
_LABELS_MAX = 32  # further labels are not shown


def figures(reading: "ProgressUpdate") -> str:
    """Return the numbers that are shown after a bar, or alone without one."""
    parts = []
    if reading.batch is not None:
        parts.append(f"batch {reading.batch:,}")
    if reading.rows_per_s:
        parts.append(f"{reading.rows_per_s:,.0f} rows/s")
    if reading.lag is not None:
        parts.append(f"lag {reading.lag:,}")
    return ", ".join(parts)


class Lines:
    """Progress as lines, for a pipe, a CI log, or a terminal without drawing."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._stream = sys.stderr  # bound now: while a job runs, sys.stderr is the job's log
        self._said: dict[str, float] = {}
        self._lock = threading.Lock()

    def show(self, reading: "ProgressUpdate") -> None:
        now = time.monotonic()
        with self._lock:
            is_whole = reading.total is not None and reading.done >= reading.total
            said = self._said.get(reading.label)
            if said is not None and now - said < _LINE_S_MIN and not is_whole:
                return
            if said is None and len(self._said) >= _LABELS_MAX:
                return
            self._said[reading.label] = now
        of = f" of {reading.total:,}" if reading.total is not None else ""
        rest = figures(reading)
        self._say(
            f"{reading.label}: {reading.done:,}{of} {reading.unit}" + (f", {rest}" if rest else "")
        )

    def note(self, text: str) -> None:
        self._say(text)

    def close(self) -> None:
        pass

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            click.echo(text, file=self._stream)


class Bars:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._bars: RichProgress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(file=sys.stderr),  # bound now, as in Lines
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()
        # Spark takes seconds to start: show movement until there is progress to show.
        self._waiting: TaskID | None = self._bars.add_task("starting", total=None, figures="")
        self._bars.start()

    def show(self, reading: "ProgressUpdate") -> None:
        with self._lock:
            if self._waiting is not None:
                self._bars.remove_task(self._waiting)
                self._waiting = None
            task = self._tasks.get(reading.label)
            if task is None:
                if len(self._tasks) >= _LABELS_MAX:
                    return
                task = self._bars.add_task(reading.label, total=None, figures="")
                self._tasks[reading.label] = task
        changes: dict[str, Any] = {"completed": reading.done, "figures": figures(reading)}
        self._bars.update(task, total=reading.total, **changes)

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._bars.stop()


def display_for(*, is_quiet: bool) -> "Lines | Bars":
    if is_quiet or os.environ.get("NO_COLOR") or not is_drawing(sys.stderr):
        return Lines(is_quiet=is_quiet)
    return Bars()
