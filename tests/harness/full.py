"""Large sets of examples: ``make test`` tries a part of each set, ``make faults`` all of it.

``FULL=1`` selects the full sets. Otherwise ``ROTATION`` chooses the part. Its default comes from
the commit, so that other commits try other parts. The end of a failed run prints the number: with
the same ``ROTATION`` a run tries the same part again.

A test that uses this module has the mark ``full_set``, by which ``make faults`` finds it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def _number_of_commit() -> int:
    """Return a number made from the commit's hash; 0 outside of a git checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout[:6], 16) if done.returncode == 0 else 0


FULL = os.environ.get("FULL") == "1"
# Workers of pytest-xdist inherit the number: all of them must collect the same tests.
ROTATION = int(os.environ.setdefault("ROTATION", str(_number_of_commit())))


def part(
    items: Sequence[T], count: int, *, rotation: int = ROTATION, is_full: bool = FULL
) -> Sequence[T]:
    """Return about ``count`` of the items, evenly spread over the set; all of them with FULL=1."""
    stride = 1 if is_full else -(-len(items) // count)
    return items[rotation % stride :: stride]
