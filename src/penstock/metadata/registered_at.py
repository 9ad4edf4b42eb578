"""The store's revision at which this node registered last, kept in its data folder.

A store only ever gets on, so one that is behind that revision has been set back: restored from a
backup, or begun anew. What its rows say of leaders and epochs was true before, and may be said once
more about something else; single logs find that out only as long as they know later epochs than
their rows (R4b). So a node does not enter such a cluster at all.
"""

import contextlib
import logging
from pathlib import Path

from penstock.log.files import DISK, replace_durably
from penstock.model.errors import PenstockError

log_ = logging.getLogger(__name__)

FILE_NAME = "registered-at"


class StoreSetBack(PenstockError):
    """The store has forgotten what this node remembers."""


class RegisteredAt:
    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME
        self.revision = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.revision = int(self._file.read_text("ascii"))

    def check(self, revision: int) -> None:
        """``revision``: the store's, now. Raises StoreSetBack."""
        if revision < self.revision:
            raise StoreSetBack(
                f"the metadata store is older than this node: it is at revision {revision}, and the"
                f" node registered at {self.revision}. Put the store's own data back; or, if it was"
                f" restored on purpose, remove {self._file} of every node"
            )

    def note(self, revision: int) -> None:
        """Blocks. Without room on the disk the older one stays, which asks for less."""
        self.revision = revision
        try:
            replace_durably(DISK, self._file, f"{revision}\n".encode())
        except OSError as error:
            log_.warning("registration not noted", extra={"reason": str(error)})
