"""Keep the memory that answers are made in.

An answer to a stream's reader is one block of a MiB or more, allocated, filled from a file, written
to a socket and freed. Left alone, the C library gives such a block back to the kernel each time and
gets it anew, page by page and zeroed: measured, that was half of the processor time of a fetch.
Two numbers make it keep some: blocks up to ``BLOCK_BYTES`` come from the heap, and the heap's free
end is given back only beyond ``KEPT_BYTES``, which bounds what is held for nothing.
"""

import ctypes
from typing import Final

from penstock.model.limits import MIB

BLOCK_BYTES: Final = 8 * MIB  # longer than any stretch that the log reads at once
KEPT_BYTES: Final = 64 * MIB

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_blocks() -> bool:
    """False where the C library has no such switch (it is glibc's): then nothing is changed."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
