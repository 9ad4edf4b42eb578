"""``penstock pipeline``: the table of its commands.

Commands are in separate files that are imported when they run, and only commands that need Spark
import it: everything here works without the extra ``spark``, if only to report that it is
missing."""

import click

from penstock.cli.lazy import Entry, LazyGroup

_RUN = "Run"
_WATCH = "Watch"
_ASK = "Ask"
_PREPARE = "Prepare"

_ENTRIES = {
    "list": Entry("penstock.cli.pipeline_watch:list_jobs", "Which jobs there are.", _RUN),
    "run": Entry("penstock.cli.pipeline_run:run", "Run one job, once or continuously.", _RUN),
    "replay": Entry(
        "penstock.cli.pipeline_run:replay", "Send archived messages again; as `run replay`.", _RUN
    ),
    "status": Entry(
        "penstock.cli.pipeline_watch:status", "What jobs are doing or how they ended.", _WATCH
    ),
    "logs": Entry("penstock.cli.pipeline_watch:logs", "Show or follow the log of a job.", _WATCH),
    "report": Entry("penstock.cli.pipeline_run:report", "Write a report from the lake.", _ASK),
    "verify": Entry("penstock.cli.pipeline_run:verify", "Check what is in the lake.", _ASK),
    "doctor": Entry(
        "penstock.cli.pipeline_prepare:doctor", "Is there all that the pipeline needs?", _PREPARE
    ),
    "warm": Entry(
        "penstock.cli.pipeline_prepare:warm", "Make sessions start in half the time.", _PREPARE
    ),
    "cluster": Entry(
        "penstock.cli.pipeline_run:cluster", "A Spark cluster of several processes.", _PREPARE
    ),
}


@click.group(cls=LazyGroup, entries=_ENTRIES)
def pipeline() -> None:
    """Archive, bill, audit and analyse with Spark, beside the server."""
