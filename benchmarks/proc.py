"""What Linux says about a process: the processor time it used, the memory it holds."""

import os
from pathlib import Path

TICKS_PER_S: int = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    # The second field is the name in parentheses and may hold spaces: count from its end.
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_bytes(pid: int, field: str = "VmRSS") -> int:
    """``VmRSS`` is what it holds now, ``VmHWM`` the most it ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1_024
    return 0


def split_cores() -> tuple[set[int], set[int]]:
    """One core for the server, one for the load; the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return {cores[0]}, {cores[-1]}
