"""The machine the figures come from: without it they mean nothing."""

import os
import platform
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec

SYNC_PROBES = 50


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    measured_at: str
    load_average: float  # at the start: anything near the number of cores spoils the figures
    fdatasync_us: int  # median for a small append to the data folder: what fsync always pays

    @property
    def title(self) -> str:
        return (
            f"{self.cpu}, {self.cores} cores, {self.memory_gb:.0f} GB, Linux {self.kernel}, "
            f"Python {self.python}, fdatasync {self.fdatasync_us} µs, {self.measured_at[:10]}"
        )


def describe(data_folder: Path) -> Machine:
    return Machine(
        cpu=_cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        kernel=platform.release(),
        python=platform.python_version(),
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        load_average=os.getloadavg()[0],
        fdatasync_us=_fdatasync_us(data_folder),
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


def _fdatasync_us(folder: Path) -> int:
    probe = folder / "fdatasync-probe"
    times_ns = []
    with probe.open("wb", buffering=0) as file:
        for _ in range(SYNC_PROBES):
            file.write(b"x" * 512)
            start_ns = time.perf_counter_ns()
            os.fdatasync(file.fileno())
            times_ns.append(time.perf_counter_ns() - start_ns)
    probe.unlink()
    return sorted(times_ns)[SYNC_PROBES // 2] // 1_000
