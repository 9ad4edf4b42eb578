"""Settings of glibc's allocator, so that it keeps the memory of replies.

A reply to a fetch is a block of a MiB or more that is allocated, filled, sent and freed. By default
glibc returns such a block to the kernel each time, and gets new zeroed pages for the next:
measured, half of the CPU time of a fetch. With these settings blocks up to BLOCK_BYTES come from
the heap, and the free end of the heap is returned to the kernel only above KEPT_BYTES."""

import ctypes
from typing import Final

from penstock.model.limits import MIB

BLOCK_BYTES: Final = 8 * MIB  # more than one read of a log
KEPT_BYTES: Final = 64 * MIB

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_blocks() -> bool:
    """Apply the settings. Returns False if the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, BLOCK_BYTES) and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES))
