"""The disk space that appends may still use. Sends are rejected when only the reserve is left.
Leases and acks may use the reserve, so that consumers can empty the queues of a full disk. Free
space is measured once a second; in between, the bytes of each send are subtracted from it.

The disk counts as full from the first rejected append until an append of that size would fit with
space to spare (1 % of the reserve). Otherwise the state would alternate with message sizes."""

import os
from pathlib import Path

from penstock.model import limits, troubles
from penstock.model.ports import Clock
from penstock.model.troubles import Trouble

CHECK_INTERVAL_MS = 1_000


def reserve_of(size_bytes: int, configured_bytes: int) -> int:
    """Return the number of bytes to keep free. If ``configured_bytes`` is 0, use the default."""
    small = int(size_bytes * limits.DISK_RESERVE_SHARE)
    return configured_bytes or min(limits.DISK_RESERVE_BYTES, small)


class DiskBudget:
    def __init__(self, folder: Path, clock: Clock, *, reserve_bytes: int = 0) -> None:
        self._folder = folder
        self._clock = clock
        self._configured_bytes = reserve_bytes
        self._left_bytes = 0
        self._next_check_ms = 0
        self._rejected_bytes = 0  # largest append rejected while full; 0: not full
        self._was_low = False
        self.reserve_bytes = 0
        self.free_bytes = 0
        self.size_bytes = 0
        self._measure()

    def admits(self, append_bytes: int) -> bool:
        """Return whether ``append_bytes`` may be appended. If so, count them as used."""
        self._left_bytes -= append_bytes
        if self._left_bytes < 0 or self._clock.mono_ms() >= self._next_check_ms:
            self._measure()
            self._left_bytes -= append_bytes
            if self._left_bytes < 0:
                self._rejected_bytes = max(self._rejected_bytes, append_bytes, 1)
        return self._left_bytes >= 0

    @property
    def is_low(self) -> bool:
        self._measure()
        return self._left_bytes <= 0

    @property
    def refusal(self) -> str:
        text = self._filled(troubles.DISK_FULL).text
        return f"{text[0].upper()}{text[1:]}. To fix: {troubles.DISK_DO}."

    def trouble(self) -> Trouble | None:
        self._measure()
        spare_bytes = self.reserve_bytes // 100
        if self._left_bytes <= 0:
            self._rejected_bytes = max(self._rejected_bytes, 1)
        elif self._left_bytes >= self._rejected_bytes + spare_bytes:
            self._rejected_bytes = 0
        low_bytes = self.reserve_bytes + (spare_bytes if self._was_low else 0)
        self._was_low = self._left_bytes < low_bytes
        if self._rejected_bytes:
            return self._filled(troubles.DISK_FULL)
        if self._was_low:
            return self._filled(troubles.DISK_LOW)
        return None

    def _filled(self, row: Trouble) -> Trouble:
        return row.filled(
            free_bytes=self.free_bytes, reserve_bytes=self.reserve_bytes, facts=self._facts
        )

    def _facts(self) -> dict[str, object]:
        return {
            "free_bytes": self.free_bytes,
            "reserve_bytes": self.reserve_bytes,
            "folder": str(self._folder),
        }

    def _measure(self) -> None:
        state = os.statvfs(self._folder)
        self.free_bytes = state.f_bavail * state.f_frsize
        self.size_bytes = state.f_blocks * state.f_frsize
        self.reserve_bytes = reserve_of(self.size_bytes, self._configured_bytes)
        self._left_bytes = self.free_bytes - self.reserve_bytes
        self._next_check_ms = self._clock.mono_ms() + CHECK_INTERVAL_MS
