"""The data folder, which one process at a time locks and other users of the machine cannot read.

Commands that write a data folder or a backup call ``set_umask`` first, so that each new folder has
mode 0700 and each new file 0600, also those that SQLite, etcd and workers create. ``repair``
changes the modes of existing files."""

import fcntl
import logging
import os
import stat
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.model.errors import CONFLICT, USAGE, SetupError
from penstock.node.keys.keyring import MASTER_NAME
from penstock.telemetry.clock import ClockAnchor, SystemClock, elapsed_trustworthy

log_ = logging.getLogger(__name__)

LOCK_NAME = "lock"
ANCHOR_NAME = "clock.json"
IDENTITY_NAME = "cluster-id"
METADATA_NAME = "metadata.sqlite3"
OTHERS = 0o077  # rights of group and others


def set_umask() -> None:
    os.umask(OTHERS)


def repair(folder: Path, *, but: str = "") -> None:
    """Remove the rights of other users on a folder and its content, except files whose name is
    ``but``. If the mode of a file cannot be changed, a warning is logged."""
    if not folder.stat().st_mode & OTHERS:
        return  # the folder itself is changed last, so its content is private too
    failed: list[tuple[Path, str]] = []
    inside = (
        Path(below, name)
        for below, folders, files in os.walk(folder)
        for name in (*folders, *files)
    )
    for path in (*inside, folder):
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


class FolderUnusable(SetupError):
    pass


def unusable(path: Path, error: OSError) -> FolderUnusable:
    file = next((one for one in (path, *path.parents) if one.is_file()), None)
    what = f"the data folder {path} cannot be used"
    if file is not None:
        what = f"{file} is a file, not a folder"
    return FolderUnusable(
        error.strerror or str(error), "choose another: --data DIR", what=what, code=USAGE
    )


def is_in_use(path: Path) -> bool:
    try:
        lock = os.open(path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def replace_file(file: Path, content: bytes) -> None:
    """Replace a small file atomically, without syncing it."""
    new = file.with_suffix(".new")
    new.write_bytes(content)
    new.replace(file)


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise FolderUnusable(
                "another penstock process has locked the folder",
                "stop that process, or choose another folder: --data DIR",
                what=f"the data folder {path} is in use",
                code=CONFLICT,
            ) from error
        # The key ring rejects a master key that others may read: such a key is not a secret.
        repair(path, but=MASTER_NAME)

    @property
    def metadata_path(self) -> Path:
        return self.path / METADATA_NAME

    def renew_anchor(self, clock: SystemClock) -> int:
        """Store the state of the clock. Returns the wall time since which there was no reboot and
        no change of the clock, as far as this folder shows; the current time if there was one."""
        now = clock.anchor()
        file = self.path / ANCHOR_NAME
        try:
            before = msgspec.json.decode(file.read_bytes(), type=ClockAnchor)
            if elapsed_trustworthy(before, now):
                now = msgspec.structs.replace(now, since_ms=before.since_ms)
        except (OSError, msgspec.MsgspecError):
            pass
        replace_file(file, msgspec.json.encode(now))
        return now.since_ms

    def identity(self, entropy: Callable[[int], bytes]) -> str:
        """Return the random id of this folder, which a single node uses as its Kafka cluster id."""
        file = self.path / IDENTITY_NAME
        try:
            return file.read_text("ascii").strip()
        except OSError:
            text = urlsafe_b64encode(entropy(16)).decode("ascii").rstrip("=")
            replace_file(file, text.encode())
            return text

    def release(self) -> None:
        os.close(self._lock)
