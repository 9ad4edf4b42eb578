"""Replaces a file atomically, so that readers see either the old content or all of the new."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(target: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Open a temporary file, which replaces ``target`` if the block ends without an exception."""
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        Path(draft).chmod(mode)
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
