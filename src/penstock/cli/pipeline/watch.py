"""``penstock pipeline list``, ``status`` and ``logs``: show jobs without starting Spark."""

import time
from collections.abc import Iterator
from typing import Any

import click

from penstock.cli.command import Session, Verb
from penstock.cli.pipeline.folders import checkpoints_of, place_options, require_extra
from penstock.cli.terminal.failure import NotFound
from penstock.cli.terminal.output import Column, columns, duration
from penstock.pipeline.job import is_job_name
from penstock.pipeline.registry import jobs_of
from penstock.pipeline.runs.logs import NAME, read_log
from penstock.pipeline.runs.status import Kind, is_claimed, statuses

_LIST_COLUMNS = columns("job, modes, state, summary WHAT IT DOES")
_STATUS_COLUMNS = (
    *columns("job, kind, state"),
    Column("pid", "PID", form=str),
    *columns("mode, started_at_ms STARTED"),
    Column("quiet_s", "LAST SIGN", form=lambda seconds: f"{duration(seconds)} ago"),
    *columns("last_batch# BATCH, rows#"),
    Column("rows_per_s", "ROWS/S", is_number=True, form=lambda rate: f"{rate:,.0f}"),
    *columns("lag#, restarts#, error LAST ERROR"),
)


@click.command("list", cls=Verb)
@place_options
def list_jobs(session: Session, lake: str, checkpoint: str | None) -> None:
    """List the jobs with the state of each."""
    require_extra()
    found = statuses(checkpoints_of(lake, checkpoint))
    known = {each.job: each for each in found if each.kind is Kind.JOB}
    session.out.many(
        (
            {
                "job": name,
                "modes": ", ".join(sorted(job.modes)),
                "state": known[name].state.value if name in known else None,
                "summary": job.summary,
            }
            for name, job in jobs_of("run").items()
        ),
        columns=_LIST_COLUMNS,
        name="job",
    )


@click.command(cls=Verb)
@place_options
def status(session: Session, lake: str, checkpoint: str | None) -> None:
    """Show the status of jobs that are running or have ended.

    A job in state `dead` was killed, or its machine failed: the next run continues from there.
    """
    found = statuses(checkpoints_of(lake, checkpoint))
    session.out.many(_status_rows(found), columns=_STATUS_COLUMNS, name="job")


def _status_rows(found: list[Any]) -> Iterator[dict[str, Any]]:
    import msgspec

    now_ms = int(time.time() * 1_000)
    for each in found:
        row = msgspec.to_builtins(each)
        row["quiet_s"] = max(0, now_ms - each.updated_at_ms) // 1_000
        row["error"] = each.error or None
        yield row


@click.command(cls=Verb)
@click.option("-f", "--follow", "is_following", is_flag=True, help="follow until the job ends")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0, max=100_000),
    default=100,
    show_default=True,
    help="number of last lines",
)
@place_options
def logs(
    session: Session, job: str, is_following: bool, count: int, lake: str, checkpoint: str | None
) -> None:
    """Print the log of a job and of Spark."""
    root = checkpoints_of(lake, checkpoint)
    folder = root / job
    if not is_job_name(job) or not (folder / NAME).is_file():
        raise NotFound(
            f"no log of job '{job}'",
            f"the job has not run with {root}",
            "list jobs with `penstock pipeline status`, or use another --lake or --checkpoint",
        )
    lines = read_log(
        folder / NAME, count=count, is_over=lambda: not is_following or not is_claimed(folder)
    )
    for line in lines:
        session.out.line(line)
        if is_following:
            session.out.flush()
