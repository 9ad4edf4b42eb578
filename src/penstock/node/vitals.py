"""What the system knows of this process: time on the processor, memory, room on the disk. Read from
the kernel in microseconds; nothing is kept."""

import os
import resource
import shutil
from pathlib import Path

from penstock.frontend.telemetry_writer import Vitals

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def read_vitals(data: Path) -> Vitals:
    """``data``: a folder on the disk in question."""
    times = os.times()
    return Vitals(
        cpu_ms=int((times.user + times.system) * 1_000),
        rss_bytes=_rss_bytes(),
        disk_free_bytes=shutil.disk_usage(data).free,
    )


def _rss_bytes() -> int:
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:  # another system than Linux: the most it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
