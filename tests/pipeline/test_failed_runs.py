"""How ``penstock pipeline run`` tells of a job that Spark refuses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.cli import main
from penstock.pipeline.runs.status import read_status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_job_that_cannot_work_fails_at_once_in_a_few_lines(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(1).count()  # the session of this thread: the job asks for it
    job = "tests.pipeline.sample_jobs:BROKEN"
    arguments = ("--endpoint", "http://127.0.0.1:9", "--lake", str(tmp_path))
    assert main.run(("pipeline", "run", job, *arguments)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: job 'broken' failed"
    assert lines[1].startswith("  why: [UNRESOLVED_COLUMN")
    assert "penstock pipeline logs broken" in lines[2]
    assert len(lines) == 3
    status = read_status(tmp_path / "_checkpoints" / "broken")
    assert status is not None
    assert status.state == "failed"
    assert status.error.startswith("[UNRESOLVED_COLUMN")
    assert status.restarts == 0
