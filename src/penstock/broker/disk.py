"""How much may still be appended before the reserve of the disk is touched.

Sends stop at the reserve; leases and acks are written from it, so that consumers can always drain
a full disk. Asking the file system on every send would cost more than the send's own append, so
one answer is spent down byte by byte and renewed once a second or when it is used up.
"""

import os
from pathlib import Path

from penstock.model import limits
from penstock.model.ports import Clock

RESERVE_SHARE = 0.05  # of small disks, where the fixed reserve would be most of the space
CHECK_INTERVAL_MS = 1_000


class DiskBudget:
    def __init__(
        self, folder: Path, clock: Clock, *, reserve_bytes_max: int = limits.DISK_RESERVE_BYTES
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._reserve_bytes_max = reserve_bytes_max
        self._left_bytes = 0
        self._next_check_ms = 0
        self.free_bytes = 0
        self.size_bytes = 0
        self._measure()

    def admits(self, append_bytes: int) -> bool:
        """Whether this many bytes of messages may be appended; counts them as spent if so."""
        self._left_bytes -= append_bytes
        if self._left_bytes < 0 or self._clock.mono_ms() >= self._next_check_ms:
            self._measure()
            self._left_bytes -= append_bytes
        return self._left_bytes >= 0

    @property
    def is_low(self) -> bool:
        self._measure()
        return self._left_bytes <= 0

    def _measure(self) -> None:
        state = os.statvfs(self._folder)
        self.free_bytes = state.f_bavail * state.f_frsize
        self.size_bytes = state.f_blocks * state.f_frsize
        reserve = min(self._reserve_bytes_max, int(self.size_bytes * RESERVE_SHARE))
        self._left_bytes = self.free_bytes - reserve
        self._next_check_ms = self._clock.mono_ms() + CHECK_INTERVAL_MS
