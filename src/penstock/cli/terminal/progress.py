"""A progress bar on stderr, for people only.

It is drawn if stderr is a terminal and none of ``--quiet``, ``NO_COLOR``, ``CI`` is set; otherwise
every call here does nothing and rich is never imported."""

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from penstock.cli.terminal.output import is_drawing

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Progress:
    def __init__(self, label: str, *, total: int | None = None, is_quiet: bool = False) -> None:
        self._label = label
        self._total = total
        self._is_shown = not is_quiet and not os.environ.get("NO_COLOR") and is_drawing(sys.stderr)
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> "Progress":
        if self._is_shown:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total)
        return self

    def update(self, done: int, *, total: int | None = None) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total or self._total)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
