"""A power cut under load: the disk forgets whatever was not synced, and nothing answered may be
among it. The server's folder is on a file system of its own that is shut down under its feet.

The second test is the control: the same cut with ``--fsync never`` must lose messages. Without it
the first could pass because the cut did nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.harness import ledger as L  # noqa: N812
from tests.harness.checker import check
from tests.harness.disk import LoopDisk, unavailable
from tests.harness.full import FULL
from tests.harness.ledger import now_ns
from tests.harness.load import Load
from tests.harness.server import Server, stable_port

CUTS = 3 if FULL else 2
PROGRESS_SECONDS_MAX = 20.0
LACKING = unavailable()

pytestmark = pytest.mark.skipif(LACKING is not None, reason=LACKING or "")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path, mib=256) as mounted:
        yield mounted


@pytest.fixture
def ledgers(tmp_path: Path) -> Path:
    folder = tmp_path / "ledgers"  # not on the disk that forgets
    folder.mkdir()
    return folder


def _cut(server: Server, disk: LoopDisk, load: Load) -> None:
    load.gate.close()
    calls_open = load.calls_open
    cut_at = now_ns()  # before: an answer given after this may rest on a lease that is gone
    # A machine without power sends no replies. This one could: an fdatasync that is under way while
    # ext4 is shut down may return success for bytes that are not on the disk.
    server.freeze()
    disk.cut()
    server.kill()
    load.note(L.Fault(cut_at, "cut", calls_open))
    disk.come_back()
    server.start()
    load.note(L.Started(now_ns()))
    load.gate.open()


@pytest.mark.slow
def test_nothing_answered_is_lost_by_power_cuts(disk: LoopDisk, ledgers: Path, seed: str) -> None:
    chance = Random(f"cuts-{seed}")
    with Server(disk.path / "data", fsync="always", port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        try:
            standard = load.create_queue("cut-standard")
            fifo = load.create_queue("cut-groups.fifo")
            for number in range(2):
                load.producer(f"ps{number}", standard)
                load.producer(f"pf{number}", fifo, groups=10)
            load.consumer("cs", standard)
            load.consumer("cf", fifo)
            load.start()
            for _ in range(CUTS):
                calls = chance.randrange(100, 500)
                assert load.gate.wait_progress(calls, seconds=PROGRESS_SECONDS_MAX)
                _cut(server, disk, load)
            assert load.gate.wait_progress(100, seconds=PROGRESS_SECONDS_MAX), "no work after heal"
            load.end()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
        print(verdict.text())
        assert server.stop() == 0, server.stderr_tail()
    verdict.assert_clean()
    assert verdict.coverage.faults_under_load == CUTS, verdict.coverage
    assert verdict.coverage.sends_ok > 50 * CUTS, verdict.coverage


def test_the_same_cut_loses_messages_that_nobody_synced(
    disk: LoopDisk, ledgers: Path, seed: str
) -> None:
    with Server(disk.path / "data", fsync="never", port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        try:
            queue = load.create_queue("cut-unsynced")
            producer = load.producer("p", queue)
            producer.send(1)
            disk.sync()  # the queue itself and its first message are to survive
            for _ in range(50):
                producer.send(10)
            _cut(server, disk, load)
            load.drain()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
    assert verdict.counts["LOST"] == 500, verdict.text()
    assert verdict.coverage.deliveries == 1, verdict.text()
    assert not {name for name, count in verdict.counts.items() if count} - {"LOST"}, verdict.text()
