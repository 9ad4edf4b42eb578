"""Faults of disks: power cuts, full, slow, damaged and empty ones. Each node's folder is on a file
system of its own (``harness.disk``), so that one can be broken without the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.harness.damage import flip_bit
from tests.harness.ledger import now_ns
from tests.lab.faults import START_SECONDS_MAX, Fault
from tests.lab.network import BLKIO, run, run_prefix

FULL_SECONDS = 8.0
SLOW_SECONDS = 10.0
SLOW_WRITES_PER_SECOND = 10
BALLAST = "ballast"


class PowerCut(Fault):
    """F3: all nodes lose their power at once, and every disk forgets what was not synced."""

    name = "F3 power cut of all"
    needs_disks = True

    def inject(self) -> None:
        nodes, disks = self.cluster.nodes, self.cluster.disks
        self.victims, self.silent = tuple(f"n{number}" for number in nodes), tuple(nodes)
        self.injected_at = now_ns()
        for node in nodes.values():
            node.freeze()  # without power, no replies
        for disk in disks.values():
            disk.cut()
        for node in nodes.values():
            node.kill()
        refused = sum(not _is_writable(disk.path) for disk in disks.values())
        self.evidence = f"{refused} disks were shut down" if refused == len(disks) else ""

    def heal(self) -> None:
        for disk in self.cluster.disks.values():
            disk.come_back()
        for node in self.cluster.nodes.values():
            node.start(seconds=START_SECONDS_MAX)


def _is_writable(folder: Path) -> bool:
    try:
        (folder / "probe").write_bytes(b"probe")
    except OSError:
        return False
    return True


class FullDisk(Fault):
    """F10: no room on the leader's disk for a while."""

    name = "F10 full disk of the leader"
    needs_disks = True

    def _chosen(self) -> list[int]:
        return [self.stage.leader()]

    def inject(self) -> None:
        numbers = self._chosen()
        self.victims = tuple(f"n{number}" for number in numbers)
        self.injected_at = now_ns()
        for number in numbers:
            _fill(self.cluster.disks[number].path / BALLAST)
        until = now_ns() + int(FULL_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "the time of a full disk")
        free = {number: self.cluster.disks[number].free_bytes for number in numbers}
        self.evidence = f"bytes free: {free}" if max(free.values()) < 1_048_576 else ""

    def heal(self) -> None:
        for disk in self.cluster.disks.values():
            (disk.path / BALLAST).unlink(missing_ok=True)


class FullDisks(FullDisk):
    """F10: no room on any disk."""

    name = "F10 full disks of all"

    def _chosen(self) -> list[int]:
        return list(self.cluster.nodes)


def _fill(path: Path) -> None:
    """With a file that takes every block there is."""
    with path.open("wb") as ballast:
        step = 64 * 1_048_576
        size = 0
        while step >= 4_096:
            try:
                os.posix_fallocate(ballast.fileno(), size, step)
                size += step
            except OSError:
                step //= 2


class SlowDisk(Fault):
    """F11: a follower's disk takes ten writes a second, so that each sync takes long."""

    name = "F11 slow disk of a follower"
    needs_disks = True

    def inject(self) -> None:
        follower = self.cluster.followers(self.stage.leader())[0]
        self.victims = (f"n{follower}",)
        node, disk = self.cluster.nodes[follower], self.cluster.disks[follower]
        device = run("findmnt", "-n", "-o", "MAJ:MIN", str(disk.path)).strip()
        self._group = BLKIO / f"{run_prefix()}-n{follower}"
        self.injected_at = now_ns()
        self._group.mkdir(exist_ok=True)
        limit = f"{device} {SLOW_WRITES_PER_SECOND}"
        (self._group / "blkio.throttle.write_iops_device").write_text(limit)
        self._pid = node.pid
        (self._group / "cgroup.procs").write_text(str(self._pid))
        before = self._writes(device)
        until = now_ns() + int(SLOW_SECONDS * 1e9)
        self.stage.wait(lambda: now_ns() >= until, "the time of a slow disk")
        written = self._writes(device) - before
        seconds = (now_ns() - self.injected_at) / 1e9
        if 0 < written <= 2 * SLOW_WRITES_PER_SECOND * seconds:
            self.evidence = f"{written} writes in {seconds:.0f} s"

    def _writes(self, device: str) -> int:
        """By processes of the group, to this device."""
        told = (self._group / "blkio.throttle.io_serviced").read_text()
        for line in told.splitlines():
            words = line.split()
            if words[:2] == [device, "Write"]:
                return int(words[2])
        return 0

    def heal(self) -> None:
        if self.cluster.nodes[int(self.victims[0][1:])].is_running:
            (BLKIO / "cgroup.procs").write_text(str(self._pid))
        self._group.rmdir()


class _Damaged(Fault):
    """A node is killed, something is done to its files, and it is started again."""

    needs_disks = False

    def inject(self) -> None:
        self._number = number = self._chosen()
        self.victims, self.silent = (f"n{number}",), (number,)
        node = self.cluster.nodes[number]
        self.injected_at = now_ns()
        node.kill()
        self.evidence = self._damage(node.data)

    def _chosen(self) -> int:
        return self.stage.leader()

    def _damage(self, data: Path) -> str:
        raise AssertionError(f"{self.name} does not say what it does")

    def heal(self) -> None:
        self.cluster.nodes[self._number].start(seconds=START_SECONDS_MAX)


def _segments(data: Path) -> list[Path]:
    """The last one of each partition that has something in it, the largest first."""
    last = [max(folder.glob("*.log"), default=None) for folder in (data / "topics").glob("*/*")]
    found = [path for path in last if path is not None and _used(path) > 0]
    return sorted(found, key=_used, reverse=True)


def _used(path: Path) -> int:
    """Up to the last byte that is not zero: segments have room set aside behind it."""
    return len(path.read_bytes().rstrip(b"\0"))


class TornTail(_Damaged):
    """F12: the last batch of some partitions is there by half."""

    name = "F12 torn tail"

    def _damage(self, data: Path) -> str:
        torn = _segments(data)[:3]
        for path in torn:
            cut = _used(path) - self.stage.chance.randrange(1, 40)
            with path.open("r+b") as segment:
                size = path.stat().st_size
                segment.truncate(cut)
                segment.truncate(size)
        return f"{len(torn)} segments torn" if torn else ""


class FlippedBit(_Damaged):
    """F12: one bit is another than was written, somewhere in some segments."""

    name = "F12 flipped bits"

    def _damage(self, data: Path) -> str:
        flipped = _segments(data)[:3]
        for path in flipped:
            at = self.stage.chance.randrange(_used(path))
            flip_bit(path, at, bit=self.stage.chance.randrange(8))
        return f"a bit flipped in {len(flipped)} segments" if flipped else ""


class WipedDisk(_Damaged):
    """F13: the node comes back with nothing."""

    name = "F13 wiped disk"

    def _damage(self, data: Path) -> str:
        count = len(_segments(data))
        shutil.rmtree(data)
        return f"{count} partitions wiped" if count else ""
