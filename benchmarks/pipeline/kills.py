"""Kills jobs of the pipeline with SIGKILL, again and again, and compares tables with the truth.

    python -m benchmarks.pipeline.kills [--job NAME]... [--kills 20] [--seed N]

``tests/pipeline/killing.py`` says how a kill is done, ``tests/pipeline/killed_jobs.py`` what is
killed and what must come of it. One line for each job:

    kills        of driver and JVM, or of Python workers
    replays hit  kills after which something that was done had to be found done; none is a failure,
                 because such a run would have proved nothing
    rows         that are missing, or there more than once, in all tables and topics of the job;
                 of sums, by how much they are too small or too large

A job that fails is told of with its reason, and the others are killed all the same; the exit code
is then 1. With the classes of Spark archived (``penstock pipeline warm``) it takes half the time.
"""

import argparse
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.pipeline.killed_jobs import CASES
from tests.pipeline.killing import Stage, Tally, stage_in
from tests.pipeline.topics import send as send

from penstock.pipeline.session import close_session, open_session

HEAD = ("job", "kills", "replays hit", "rows lost", "rows doubled", "of driver", "of workers", "s")


def line_of(tally: Tally, seconds: float) -> tuple[str, ...]:
    kills, workers = tally.kills.total(), tally.kills["worker"]
    numbers = (kills, tally.replays, tally.lost, tally.doubled, kills - workers, workers)
    return (tally.job, *map(str, numbers), f"{seconds:.0f}")


def show(cells: tuple[str, ...]) -> None:
    widths = (14, *(max(6, len(name) + 2) for name in HEAD[1:]))
    first, *rest = (
        cell.ljust(width) if number == 0 else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    print(first + "".join(rest), flush=True)


def kill(stage: Stage, job: str, *, kills: int, seed: int) -> bool:
    """Whether nothing was lost or doubled, and something was proved."""
    begin = time.monotonic()
    try:
        tally = stage.disturb(CASES[job], kills=kills, seed=seed)
        show(line_of(tally, time.monotonic() - begin))
        tally.assert_exact(kills)
    except Exception:
        traceback.print_exc()
        print(f"{job}: FAILED", flush=True)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="kill jobs and compare tables with the truth")
    parser.add_argument("--job", action="append", choices=list(CASES), help="only this; repeatable")
    parser.add_argument("--kills", type=int, default=20, help="of each job [20]")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    wish = parser.parse_args()
    if wish.kills < 1:
        parser.error("--kills: at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left running
    print(f"seed {wish.seed}")
    show(HEAD)
    spark = open_session("kills", master="local[2,4]", is_short=True)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            stage_in(Path(folder), spark) as stage,
        ):
            done = [kill(stage, job, kills=wish.kills, seed=wish.seed) for job in wish.job or CASES]
    finally:
        close_session(spark)
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
