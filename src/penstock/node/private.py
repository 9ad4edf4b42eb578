"""Keep the files of a server unreadable for other users of the machine.

Every command that writes a data folder or a backup starts with ``set_umask``, so that each new
folder has mode 0700 and each new file mode 0600, whoever creates it: this process, SQLite, or etcd
and worker processes, which inherit the umask. ``repair`` does the same for what older versions or
other programs left behind.
"""

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
    """Take all rights of group and others from ``folder`` and everything in it, except files named
    ``but``. The folder itself comes last: when nobody else may enter it, the rest was repaired
    before, and a start does not look at every file. Symbolic links are not followed. A mode that
    cannot be changed is logged: the folder may belong to another user, as the root of a mounted
    volume does."""
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
