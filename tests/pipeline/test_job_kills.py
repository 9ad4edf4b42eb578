"""Every job under SIGKILL of its driver and of its Python workers: nothing is lost, and nothing is
there twice. Few kills of each here; ``python -m benchmarks.pipeline.kills`` does it often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.killed_jobs import CASES
from tests.pipeline.killing import Stage, stage_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[Stage]:
    with stage_in(tmp_path_factory.mktemp("kills"), spark) as found:
        yield found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", list(CASES))
def test_a_job_that_is_killed_twice_leaves_every_row_there_once(stage: Stage, job: str) -> None:
    tally = stage.disturb(CASES[job], kills=2, seed=2)
    tally.assert_exact(2)


@pytest.mark.slow_kills
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("job", list(CASES))
def test_a_job_that_is_killed_twenty_times_leaves_every_row_there_once(
    tmp_path_factory: pytest.TempPathFactory, spark: SparkSession, job: str
) -> None:
    with stage_in(tmp_path_factory.mktemp("kills"), spark) as stage:
        stage.disturb(CASES[job], kills=20, seed=20).assert_exact(20)
