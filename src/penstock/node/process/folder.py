"""The data folder: locked by one process at a time, with an id and an anchor of the clock."""

import fcntl
import os
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import msgspec

from penstock.model.errors import CONFLICT, USAGE, SetupError
from penstock.node.keys.keyring import MASTER_NAME
from penstock.node.process.file_modes import repair
from penstock.telemetry.clock import ClockAnchor, SystemClock, elapsed_trustworthy

LOCK_NAME = "lock"
ANCHOR_NAME = "clock.json"
IDENTITY_NAME = "cluster-id"
METADATA_NAME = "metadata.sqlite3"


class FolderUnusable(SetupError):
    pass


def unusable(path: Path, error: OSError) -> FolderUnusable:
    """``error``: of an access to the data folder at ``path``."""
    file = next((one for one in (path, *path.parents) if one.is_file()), None)
    what = f"the data folder {path} cannot be used"
    if file is not None:
        what = f"{file} is a file, not a folder"
    return FolderUnusable(
        error.strerror or str(error), "choose another: --data DIR", what=what, code=USAGE
    )


def is_in_use(path: Path) -> bool:
    """Return whether a server runs on the data folder. Writes nothing."""
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
                "another penstock process has locked it",
                "stop that process, or choose another folder: --data DIR",
                what=f"the data folder {path} is in use",
                code=CONFLICT,
            ) from error
        # The key ring rejects a master key that others may read: such a key is not a secret.
        repair(path, but=MASTER_NAME)

    @property
    def metadata_path(self) -> Path:
        return self.path / METADATA_NAME

    def renew_anchor(self, clock: SystemClock) -> bool:
        """Store the relation of wall clock and boot clock. Returns whether the wall clock has run
        evenly since the last process did so."""
        now = clock.anchor()
        file = self.path / ANCHOR_NAME
        try:
            before = msgspec.json.decode(file.read_bytes(), type=ClockAnchor)
            is_trusted = elapsed_trustworthy(before, now)
        except (OSError, msgspec.MsgspecError):
            is_trusted = False
        new = file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(now))
        new.replace(file)
        return is_trusted

    def identity(self, entropy: Callable[[int], bytes]) -> str:
        """Return the random id of this folder, the cluster id for Kafka clients of a single
        node."""
        file = self.path / IDENTITY_NAME
        try:
            return file.read_text("ascii").strip()
        except OSError:
            text = urlsafe_b64encode(entropy(16)).decode("ascii").rstrip("=")
            new = file.with_suffix(".new")
            new.write_text(text, "ascii")
            new.replace(file)
            return text

    def release(self) -> None:
        os.close(self._lock)
