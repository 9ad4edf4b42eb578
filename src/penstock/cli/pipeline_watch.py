"""``penstock pipeline list``, ``status`` and ``logs``: show jobs without starting Spark."""

import time
from collections.abc import Iterator
from typing import Any

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column, duration, moment
from penstock.cli.pipeline_place import checkpoints_of, place_options, require_extra
from penstock.cli.session import Session, Verb, pass_session

_LIST_COLUMNS = (
    Column("job", "JOB"),
    Column("modes", "MODES"),
    Column("state", "STATE"),
    Column("summary", "WHAT IT DOES"),
)
_STATUS_COLUMNS = (
    Column("job", "JOB"),
    Column("kind", "KIND"),
    Column("state", "STATE"),
    Column("pid", "PID", form=str),
    Column("mode", "MODE"),
    Column("started_at_ms", "STARTED", form=moment),
    Column("quiet_s", "LAST SIGN", form=lambda seconds: f"{duration(seconds)} ago"),
    Column("last_batch", "BATCH", is_number=True),
    Column("rows", "ROWS", is_number=True),
    Column("rows_per_s", "ROWS/S", is_number=True, form=lambda rate: f"{rate:,.0f}"),
    Column("lag", "LAG", is_number=True),
    Column("restarts", "RESTARTS", is_number=True),
    Column("error", "LAST ERROR"),
)


@click.command("list", cls=Verb)
@place_options
@pass_session
def list_jobs(session: Session, lake: str, checkpoint: str | None) -> None:
    """Which jobs there are, and how each one stands."""
    require_extra()
    from penstock.pipeline.registry import jobs_of
    from penstock.pipeline.status import Kind, statuses

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
@pass_session
def status(session: Session, lake: str, checkpoint: str | None) -> None:
    """What jobs are doing, or how they ended.

    A job that is `dead` was killed, or its machine was: the next run goes on where it was.
    """
    from penstock.pipeline.status import statuses

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
@click.argument("job")
@click.option("-f", "--follow", "is_following", is_flag=True, help="go on until the job has ended")
@click.option(
    "-n",
    "--lines",
    "count",
    type=click.IntRange(min=0, max=100_000),
    default=100,
    show_default=True,
    help="so many of the last ones",
)
@place_options
@pass_session
def logs(
    session: Session, job: str, is_following: bool, count: int, lake: str, checkpoint: str | None
) -> None:
    """Show the log of a job: what Spark said, and what the job did."""
    from penstock.pipeline.job import is_job_name
    from penstock.pipeline.logs import NAME, read_log
    from penstock.pipeline.status import is_claimed

    root = checkpoints_of(lake, checkpoint)
    folder = root / job
    if not is_job_name(job) or not (folder / NAME).is_file():
        raise Failure(
            f"no log of job '{job}'",
            f"it has not run on {root}",
            "see which have with `penstock pipeline status`; another place: --lake or --checkpoint",
            exit_code=ExitCode.NOT_FOUND,
        )
    lines = read_log(
        folder / NAME,
        count=count,
        is_over=lambda: not is_following or not is_claimed(folder),
    )
    for line in lines:
        session.out.line(line)
        if is_following:
            session.out.flush()
