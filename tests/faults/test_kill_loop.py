"""kill -9 in a loop, under load, on a standard and a FIFO queue; then every promise is counted.

The process dies without a goodbye and the kernel lives on, so what was written is there. What is
tried is recovery: the torn tail of the log, leases and deletes half told, clients that do not know
whether their call was done. ``make faults`` kills twice as often as ``make test``. Longer runs:
PENSTOCK_FAULTS_KILLS=200."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from tests.harness import ledger as L  # noqa: N812
from tests.harness.checker import check
from tests.harness.full import FULL
from tests.harness.ledger import now_ns
from tests.harness.load import Load
from tests.harness.server import Server, stable_port

KILLS = int(os.environ.get("PENSTOCK_FAULTS_KILLS", "8" if FULL else "4"))
PROGRESS_SECONDS_MAX = 15.0


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * KILLS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_no_promise_is_broken_by_kills_under_load(
    tmp_path: Path, seed: str, partitions: int
) -> None:
    chance = Random(f"kills-{seed}")
    kills = KILLS if partitions == 1 else KILLS // 2
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with Server(tmp_path / "data", partitions=partitions, port=stable_port()) as server:
        load = Load(server.port, ledgers, seed=seed)
        try:
            _build_load(load)
            load.start()
            for _ in range(kills):
                _run_and_kill(server, load, chance)
            assert load.gate.wait_progress(200, seconds=PROGRESS_SECONDS_MAX), "no work after heal"
            load.end()
            verdict = check(load.events(), log=server.stderr)
        finally:
            load.close()
        print(verdict.text())
        assert server.stop() == 0, server.stderr_tail()
        server.assert_no_traceback()
    verdict.assert_clean()

    # A clean verdict counts only for a run that was hit while it worked.
    seen = verdict.coverage
    assert seen.faults == kills
    assert seen.faults_under_load == kills, seen
    assert seen.sends_ok > 50 * kills, seen
    assert seen.deletes_ok > 25 * kills, seen
    assert seen.sends_retried + seen.sends_unknown > 0, seen
    assert seen.redeliveries > 0, seen
    assert seen.extends > 0, seen
    assert seen.releases > 0, seen


def _build_load(load: Load) -> None:
    standard = load.create_queue("kill-standard")
    fifo = load.create_queue("kill-groups.fifo")
    for number in range(2):
        load.producer(f"ps{number}", standard)
        load.producer(f"pf{number}", fifo, groups=20)
        load.consumer(f"cs{number}", standard)
        load.consumer(f"cf{number}", fifo)


def _run_and_kill(server: Server, load: Load, chance: Random) -> None:
    """Let work flow, kill in the middle of it, bring the server back."""
    calls = chance.randrange(100, 900)
    assert load.gate.wait_progress(calls, seconds=PROGRESS_SECONDS_MAX), (
        f"fewer than {calls} calls answered in {PROGRESS_SECONDS_MAX} s\n{server.stderr_tail()}"
    )
    load.gate.close()
    calls_open = load.calls_open
    server.kill()
    load.note(L.Fault(now_ns(), "kill", calls_open))
    server.start()
    load.note(L.Started(now_ns()))
    load.gate.open()
