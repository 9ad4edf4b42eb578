"""The commands of ``penstock pipeline``. Only commands that need Spark import it, so the others
work without the extra ``spark``."""

import click

from penstock.cli.command import LazyGroup, Table

COMMANDS: Table = {
    "Run": {
        "list": ("pipeline.watch:list_jobs", "List jobs."),
        "run": ("pipeline.run", "Run one job, once or continuously."),
        "replay": ("pipeline.run", "Send archived messages again (`run replay`)."),
    },
    "Watch": {
        "status": ("pipeline.watch", "Show the status of jobs."),
        "logs": ("pipeline.watch", "Show or follow the log of a job."),
    },
    "Ask": {
        "report": ("pipeline.run", "Write a report from the data in the lake."),
        "verify": ("pipeline.run", "Verify the data in the lake."),
    },
    "Prepare": {
        "doctor": ("pipeline.watch", "Check the requirements of the pipeline."),
        "warm": ("pipeline.watch", "Make Spark sessions start faster."),
        "cluster": ("pipeline.run", "Run a Spark cluster on this machine."),
    },
}


@click.group(cls=LazyGroup, table=COMMANDS)
def pipeline() -> None:
    """Run Spark jobs for archive, billing, audit and analysis on data in a folder, the lake."""
