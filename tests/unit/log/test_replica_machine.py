"""Random histories of a replica's log that dies at any disk operation, by a kill or a power cut.

The model is a list of batches. Whatever happens, an opened log is a run of those batches from its
start on: never a hole, never a byte of something else, never less than was synced and not cut off
since; and nothing that a crash alone can do is taken for damage or for a broken promise of the
disk."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.unit.log.power import Killed, PowerDisk
from tests.unit.log.stage import make_batch, open_log, read_all

from penstock.log.log import Log, LogConfig
from penstock.log.readable import read_epochs, write_epochs
from penstock.log.storage.checkpoint import DOUBT_CRASHED, DOUBT_GARBAGE, DOUBT_SHORT
from penstock.record.batch import parse_header

CONFIG = LogConfig(
    segment_bytes_max=500, segment_age_ms_max=10**9, index_interval_bytes=128, tail_bytes_max=250
)
# When it dies, if at all: before which disk operation, and what of the unsynced is left by whom.
DEATHS = st.one_of(
    st.none(), st.tuples(st.integers(0, 45), st.one_of(st.none(), st.integers(0, 2**32)))
)
Death = tuple[int, int | None] | None


class ReplicaMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="replica-machine-"))
        self.generation = 0
        self.folder = self.root / "0"
        self.folder.mkdir()
        self.disk = PowerDisk(self.folder)
        self.log = open_log(self.folder, CONFIG, disk=self.disk)
        self.log.settle()
        self.epoch = 0
        # The model: batches in order; below which offset they may not be lost any more.
        self.begins = 0
        self.batches: list[bytes] = []
        self.kept = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close(clean=False)
            self.disk.close_files()
            shutil.rmtree(self.root)

    @property
    def end(self) -> int:
        return parse_header(self.batches[-1]).next_offset if self.batches else self.begins

    def next_batch(self, count: int, size: int) -> bytes:
        return make_batch(self.end, count=count, size=size, epoch=self.epoch)

    # ── What happens to it ───────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 3), size=st.integers(8, 200), death=DEATHS)
    def append(self, count: int, size: int, death: Death) -> None:
        batch = self.next_batch(count, size)
        self.batches.append(batch)
        self.run(lambda log: log.append(batch, now_ms=1_000), death)

    @rule(sizes=st.lists(st.integers(8, 200), min_size=1, max_size=8), death=DEATHS)
    def append_copied(self, sizes: list[int], death: Death) -> None:
        sent = []
        for size in sizes:
            sent.append(self.next_batch(1, size))
            self.batches.append(sent[-1])
        data = memoryview(b"".join(sent))
        self.run(lambda log: log.append_copied(data, now_ms=1_000), death)

    @rule()
    def follow_another_leader(self) -> None:
        self.epoch += 1

    @rule(death=DEATHS)
    def roll(self, death: Death) -> None:
        self.run(lambda log: log.roll(now_ms=1_000), death)

    @rule(death=DEATHS)
    def sync(self, death: Death) -> None:
        def sync(log: Log) -> None:
            job = log.begin_sync()
            if job is not None:
                job.run()
                log.finish_sync(job)
            self.kept = log.durable_offset
            assert self.kept == self.end

        self.run(sync, death)

    @precondition(lambda self: self.batches)
    @rule(back=st.integers(1, 12), death=DEATHS)
    def truncate(self, back: int, death: Death) -> None:
        to = max(self.begins, self.end - back)
        keep = [batch for batch in self.batches if parse_header(batch).next_offset <= to]
        end = parse_header(keep[-1]).next_offset if keep else self.begins
        self.kept = min(self.kept, end)

        def truncate(log: Log) -> None:
            assert log.truncate(to) == end
            assert (log.end_offset, log.durable_offset) == (end, end)
            self.batches, self.kept = keep, end

        self.run(truncate, death)

    @rule(at=st.integers(0, 60), death=DEATHS)
    def restart(self, at: int, death: Death) -> None:
        before = self.begins, self.batches, self.kept

        def restart(log: Log) -> None:
            log.restart(at)
            self.begins, self.batches, self.kept = at, [], at

        # Dying on the way leaves all of the old one or nothing of it.
        self.begins, self.batches, self.kept = at, [], at
        self.run(restart, death, otherwise=before)

    @rule(death=DEATHS)
    def save_epochs(self, death: Death) -> None:
        end = self.log.end_offset
        self.run(lambda log: write_epochs(log, read_epochs(log), end), death)

    @rule()
    def stop_and_start(self) -> None:
        self.log.close()
        self.log = open_log(self.folder, CONFIG, disk=self.disk)
        assert self.log.recovery.was_clean
        self.kept = self.end

    # ── Dying ────────────────────────────────────────────────────────────────────────────────

    def run(
        self,
        operation: Callable[[Log], object],
        death: Death,
        otherwise: tuple[int, list[bytes], int] | None = None,
    ) -> None:
        """``otherwise``: a second state that dying may leave."""
        if death is not None:
            self.disk.dies_at = self.disk.operations + death[0]
        try:
            operation(self.log)
        except Killed:
            assert death is not None
            self.open_again(death[1], otherwise)
        self.disk.dies_at = None

    def open_again(self, seed: int | None, otherwise: tuple[int, list[bytes], int] | None) -> None:
        self.generation += 1
        target = self.root / str(self.generation)
        chance = None if seed is None else Random(seed)
        self.disk.left_behind(self.folder, target, chance)
        self.log.close(clean=False)
        self.disk.close_files()
        shutil.rmtree(self.folder)
        self.folder, self.disk = target, PowerDisk(target)
        self.log = open_log(target, CONFIG, disk=self.disk)
        report = self.log.recovery
        assert report.damage == (), "a crash is no damage"
        assert not report.doubts & DOUBT_SHORT
        assert (not report.doubts & DOUBT_CRASHED) == report.was_clean
        assert seed is not None or not report.doubts & DOUBT_GARBAGE, "a kill tears nothing"
        self.log.settle()
        if otherwise is not None and (self.log.start_offset, self.log.end_offset) != (
            self.begins,
            self.begins,
        ):
            self.begins, self.batches, self.kept = otherwise
        end = self.log.end_offset
        assert end >= self.kept, "what was synced is there"
        self.epoch += end < self.end  # no leader resumes an epoch; others send the same again
        self.batches = [one for one in self.batches if parse_header(one).base_offset < end]
        assert end == self.end, "it ends with a whole batch"
        self.kept = end

    # ── What holds ───────────────────────────────────────────────────────────────────────────

    @invariant()
    def it_is_what_the_model_is(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.start_offset, log.end_offset) == (self.begins, self.end)
        expected = {parse_header(batch).base_offset: batch for batch in self.batches}
        assert read_all(log) == (expected, [])
        headers = [parse_header(batch) for batch in self.batches]
        times = [header.max_timestamp for header in headers]
        assert log.last_timestamp_ms == max(times, default=-1)
        assert log.size_bytes == sum(map(len, self.batches))
        epochs: dict[int, int] = {}
        for header in headers:
            epochs.setdefault(header.leader_epoch, header.base_offset)
        assert read_epochs(log) == list(epochs.items())
        if headers:
            assert log.last_epoch == headers[-1].leader_epoch


ReplicaMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestReplicaMachine = ReplicaMachine.TestCase
