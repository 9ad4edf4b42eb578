"""Modes of the files of a server, so that other users of the machine cannot read them.

Commands that write a data folder or a backup call ``set_umask`` first: then each new folder has
mode 0700 and each new file 0600, also those of SQLite, etcd and worker processes, which inherit it.
``repair`` changes the modes of existing files, of older versions or other programs."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

log_ = logging.getLogger(__name__)

OTHERS = 0o077


def set_umask() -> None:
    os.umask(OTHERS)


def repair(folder: Path, *, but: str = "") -> None:
    """Remove all rights of group and others from a folder and its content, except files named
    ``but``. The folder itself comes last: if it is private, the rest was repaired before, and not
    every file has to be checked. Symbolic links are not followed. A mode that cannot be changed is
    logged: the root of a mounted volume may belong to another user."""
    if not folder.stat().st_mode & OTHERS:
        return
    failed: list[tuple[Path, str]] = []
    for path in (*_inside(folder), folder):
        try:
            mode = path.stat().st_mode if path == folder else path.lstat().st_mode
            if mode & OTHERS and not stat.S_ISLNK(mode) and (path.name != but or path == folder):
                path.chmod(stat.S_IMODE(mode) & ~OTHERS)
        except FileNotFoundError:
            continue
        except OSError as error:
            failed.append((path, error.strerror or str(error)))
    if failed:
        path, reason = failed[0]
        log_.warning(
            "file modes not repaired: other users may read the data folder",
            extra={"path": str(path), "reason": reason, "count": len(failed)},
        )


def _inside(folder: Path) -> Iterator[Path]:
    for below, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(below, name)
