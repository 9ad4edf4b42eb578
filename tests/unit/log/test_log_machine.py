"""Random histories of a log against a list: appends, rolls, syncs, drops, clean stops, crashes.

A crash is modelled at its worst: of each file everything behind the last synced byte is gone, or
some of it stayed as it happened to be written back."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.log.stage import QuickDisk, make_batch, open_log, read_all

from penstock.log.log import LogConfig, OffsetOutOfRange

CONFIG = LogConfig(
    segment_bytes_max=500,
    segment_age_ms_max=10**9,
    index_interval_bytes=128,
    tail_bytes_max=250,
)


class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="log-machine-"))
        self.folder = self.root / "0"
        self.generation = 0
        self.batches: dict[int, bytes] = {}  # the model: what was appended and not dropped
        self.synced_bytes: dict[str, int] = {}
        self.log = open_log(self.folder, CONFIG, disk=QuickDisk())
        self.durable = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            shutil.rmtree(self.root)

    @rule(count=st.integers(1, 3), size=st.integers(8, 200))
    def append(self, count: int, size: int) -> None:
        base_offset = self.log.end_offset
        batch = make_batch(base_offset, count=count, size=size)
        assert self.log.append(batch, now_ms=1_000) == base_offset
        self.batches[base_offset] = batch

    @rule()
    def roll(self) -> None:
        self.log.roll(now_ms=1_000)

    @rule(appends_meanwhile=st.integers(0, 2))
    def sync(self, appends_meanwhile: int) -> None:
        job = self.log.begin_sync()
        if job is None:
            return
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("*.log")}
        for _ in range(appends_meanwhile):
            self.append(1, 20)
        job.run()
        self.log.finish_sync(job)
        self.synced_bytes = sizes
        self.durable = job.end_offset
        assert self.log.durable_offset == job.end_offset

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.log.start_offset, self.log.end_offset))
        before = self.log.size_bytes
        freed = self.log.detach_before(offset).remove()
        assert self.log.size_bytes == before - freed
        assert self.log.start_offset <= max(offset, self.log.segments()[0].base_offset)
        start = self.log.start_offset
        self.batches = {base: batch for base, batch in self.batches.items() if base >= start}

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.log = open_log(self.folder, CONFIG, disk=QuickDisk())
        assert self.log.recovery.was_clean
        self._after_start()

    @rule(kept=st.integers(0, 300))
    def crash(self, kept: int) -> None:
        """Power is cut; ``kept`` unsynced bytes of each file made it to the disk all the same."""
        self.generation += 1
        target = self.root / str(self.generation)
        shutil.copytree(self.folder, target)
        for path in target.glob("*.log"):
            synced = self.synced_bytes.get(path.name, 0)
            with path.open("r+b") as file:
                file.truncate(min(path.stat().st_size, synced + kept))
        self.log.close(clean=False)
        shutil.rmtree(self.folder)
        self.folder = target
        self.log = open_log(target, CONFIG, disk=QuickDisk())
        report = self.log.recovery
        assert report.end_offset >= report.recovery_point
        assert self.log.end_offset >= self.durable, "what was synced is there"
        assert report.damage == (), "a crash is no damage"
        end = self.log.end_offset
        self.batches = {base: batch for base, batch in self.batches.items() if base < end}
        self._after_start()

    def _after_start(self) -> None:
        self.durable = self.log.end_offset
        assert self.log.durable_offset == self.log.end_offset
        self.synced_bytes = {path.name: path.stat().st_size for path in self.folder.glob("*.log")}

    @invariant()
    def reads_return_what_was_appended(self) -> None:
        if not hasattr(self, "log"):
            return
        assert read_all(self.log) == (self.batches, [])
        assert sum(info.bytes for info in self.log.segments()) == self.log.size_bytes

    @rule(data=st.data(), bytes_max=st.integers(0, 700))
    def read(self, data: st.DataObject, bytes_max: int) -> None:
        start = data.draw(st.integers(max(0, self.log.start_offset - 2), self.log.end_offset + 2))
        if not self.log.start_offset <= start <= self.log.end_offset:
            with pytest.raises(OffsetOutOfRange):
                self.log.read(start, bytes_max=bytes_max)
            return
        holders = [base for base in self.batches if base <= start]
        if start == self.log.end_offset:
            assert self.log.read(start, bytes_max=bytes_max) == []
            return
        batches = self.log.read(start, bytes_max=bytes_max)
        assert batches[0] == self.batches[max(holders)]
        assert len(batches) == 1 or sum(map(len, batches)) <= bytes_max


LogMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestLogMachine = LogMachine.TestCase
