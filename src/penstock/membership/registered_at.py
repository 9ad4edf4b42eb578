"""The store's revision of this node's last registration, kept in its data folder.

A store's revision only increases, so a store with a lower one has been set back: restored from a
backup, or created again. Its rows describe old leaders and epochs, and new ones may reuse the same
epochs; a log detects that only while it has later epochs than its row (R4b). So a node does not
enter such a cluster at all.
"""

import contextlib
import logging
from pathlib import Path

from penstock.log.storage.files import DISK, replace_durably
from penstock.model.errors import PenstockError

log_ = logging.getLogger(__name__)

FILE_NAME = "registered-at"


class StoreSetBack(PenstockError):
    """The store is older than this node's last registration."""


class RegisteredAt:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.revision = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.revision = int(self._file.read_text("ascii"))

    def check(self, revision: int) -> None:
        """Compare with the present revision of the store. Raises StoreSetBack."""
        if revision < self.revision:
            raise StoreSetBack(
                f"the metadata store is older than this node: the store is at revision {revision},"
                f" the node registered at {self.revision}. Restore the store's newest data; or, if"
                f" an older state was restored on purpose, remove {self._file} on every node"
            )

    def note(self, revision: int) -> None:
        """Store the revision; blocks. If that fails, the old one stays, which is less strict."""
        self.revision = revision
        try:
            replace_durably(DISK, self._file, f"{revision}\n".encode())
        except OSError as error:
            log_.warning("registration revision not stored", extra={"reason": str(error)})
