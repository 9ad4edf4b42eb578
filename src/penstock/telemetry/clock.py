"""The clock of a node, and a check whether its values before and after a restart can be compared.

Leases and delays use CLOCK_BOOTTIME. Unlike CLOCK_MONOTONIC, it continues while a laptop sleeps, so
a lease does not last longer because the lid was closed. CLOCK_BOOTTIME starts again when the
machine reboots. So a node that restarts subtracts the elapsed time from its leases only if the
machine has not rebooted and the wall clock was not set since they began."""

import time
from pathlib import Path

import msgspec

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JUMP_MS_MAX = 1_000  # slewing by a time daemon stays below this; a step does not


class ClockAnchor(msgspec.Struct, frozen=True):
    boot_id: str  # empty if the kernel has none; then the clock is never trusted
    offset_ms: int  # wall clock minus boot clock: constant unless the wall clock is set
    since_ms: int = 0  # wall time; since then there was no reboot and no change of the wall clock


class SystemClock:
    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def mono_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def anchor(self) -> ClockAnchor:
        """Return the clock's state, to be stored at a clean stop and compared at the next start."""
        try:
            boot_id = BOOT_ID.read_text("ascii").strip()
        except OSError:
            boot_id = ""
        wall_ms = self.wall_ms()
        return ClockAnchor(boot_id, wall_ms - self.mono_ms(), wall_ms)


def elapsed_trustworthy(before: ClockAnchor, now: ClockAnchor) -> bool:
    """Return whether there was no reboot and no change of the wall clock between two anchors."""
    if not before.boot_id or before.boot_id != now.boot_id:
        return False
    return abs(before.offset_ms - now.offset_ms) <= JUMP_MS_MAX
