"""Spark's daemon of Python workers, whose workers can be stopped inside a replay: between a chunk's
answer and the note of its place.

Workers are forked from the daemon, so what is put in place here is in place in all of them. The
folder in the variable below is how the driver says that they are to stop (``hold``), and how they
say that they have (``held``).
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from penstock.pipeline.archive import replaying

FOLDER = "KILLED_REPLAY_FOLDER"


def main() -> None:
    from pyspark.daemon import manager

    folder, note = Path(os.environ[FOLDER]), replaying.commit_position

    def note_or_stop(*arguments: Any) -> None:
        if (folder / "hold").exists():
            (folder / "held").touch()
            threading.Event().wait()
        note(*arguments)

    setattr(replaying, "commit_position", note_or_stop)  # noqa: B010  of any signature
    manager()


if __name__ == "__main__":
    main()
