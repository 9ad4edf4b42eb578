"""Every job under SIGKILL of its driver and of its Python workers: nothing is lost, and nothing is
there twice. ``make test`` kills two jobs, ``make faults`` all of them;
``python -m benchmarks.pipeline.kills`` kills each often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.harness.full import FULL
from tests.pipeline.killed_jobs import CASES
from tests.pipeline.killing import Stage, Tally, stage_in, undone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The plain stream into one table, and the job that commits to the most tables in a row.
IN_EVERY_RUN = ("archive", "billing")
ONCE = ("billing",)  # by `make test`: each of its kills ends a JVM, where the archive's share one


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("kills"), spark) as found:
        yield found


def test_what_is_missing_and_what_is_there_twice_is_counted_and_refused() -> None:
    tally = Tally("any", kills=Counter({"after": 2}), replays=1)
    tally.compare(Counter("abc"), Counter("bca"))
    tally.assert_exact(2)
    with pytest.raises(AssertionError, match="kills"):
        tally.assert_exact(3)
    with pytest.raises(AssertionError, match="nothing proved"):
        Tally("any", kills=Counter({"after": 2})).assert_exact(2)
    tally.compare(Counter("abc"), Counter("bccc"))
    assert (tally.lost, tally.doubled) == (1, 2)
    with pytest.raises(AssertionError):
        tally.assert_exact(2)


def test_batches_that_were_planned_and_are_not_done_are_found_in_any_query(tmp_path: Path) -> None:
    assert undone(tmp_path / "none") == set()
    for query, log, batch in (
        ("a", "offsets", 0), ("a", "offsets", 1), ("a", "commits", 0), ("b", "offsets", 7),
    ):  # fmt: skip
        folder = tmp_path / query / log
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(batch)).touch()
        (folder / f".{batch}.crc").touch()
    assert undone(tmp_path) == {1, 7}


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "job",
    [
        pytest.param(job, marks=() if job in IN_EVERY_RUN else pytest.mark.faults_only)
        for job in CASES
    ],
)
def test_a_job_that_is_killed_leaves_every_row_there_once(stage: Stage, job: str) -> None:
    kills = 1 if job in ONCE and not FULL else 2
    tally = stage.disturb(CASES[job], kills=kills, seed=2)
    tally.assert_exact(kills)


@pytest.mark.slow_kills
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("job", list(CASES))
def test_a_job_that_is_killed_twenty_times_leaves_every_row_there_once(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, job: str
) -> None:
    with stage_in(tmp_path_factory.mktemp("kills"), spark) as stage:
        stage.disturb(CASES[job], kills=20, seed=20).assert_exact(20)
