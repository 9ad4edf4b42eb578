"""The input of the jobs that sum a topic of facts: ``usage`` and ``telemetry``.

A query plans ranges of offsets (``reading/range_source.py``); the tasks of the job fetch the
records, so that these never reach the JVM. The job's tables know where to continue if the
checkpoint was lost."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from penstock.pipeline.client.read_options import parse_read_options
from penstock.pipeline.job import JobContext
from penstock.pipeline.jobs.queries import check_topics, client_of, process, starting_offsets
from penstock.pipeline.reading.range_source import range_stream, records_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH_BYTES: Final = "256m"  # of records, with about twenty rows per kilobyte
_GRACE_S_MAX: Final = 86_400


class FactTopic:
    def __init__(self, context: JobContext, default: str) -> None:
        self._context = context
        self.name = str(context.arguments.get("topic") or default)
        columns = "partition,offset,value"
        self._options = {**context.read_options, "subscribe": self.name, "columns": columns}
        self._parsed = parse_read_options(self._options, is_streaming=False)
        self.connection = self._parsed.connection
        self.reading = records_in(self._parsed)  # from batches of the query to records

    def check(self) -> None:
        check_topics(self._context, [self.name])

    def process(
        self, job: str, take: "Callable[[DataFrame, str, int], None]", *, ends: Mapping[int, int]
    ) -> None:
        """Pass all new batches to ``take``. ``ends``: offsets after the records of the tables."""
        context, begins = self._context, "earliest"
        if ends and not (Path(context.checkpoint_of()) / "metadata").exists():
            with client_of(context) as client:
                begins = starting_offsets(client, [self.name], {self.name: dict(ends)})
        reader = range_stream(context.spark, self._options).option("startingOffsets", begins)
        process(context, job, reader, take, batch_bytes=_BATCH_BYTES)


def fact_options(topic: str, span: str, grace_ms: int) -> tuple[click.Option, ...]:
    """Return the options; ``span`` names the time that stays open, such as "an hour"."""
    return (
        click.Option(
            ["--grace", "grace_s"],
            type=click.IntRange(0, _GRACE_S_MAX),
            default=grace_ms // 1_000,
            show_default=True,
            metavar="SECONDS",
            help=f"time for which {span} stays open after its end",
        ),
        click.Option(["--topic"], default=topic, show_default=True, help="topic, or its mirror"),
    )


def grace_ms_of(context: JobContext, default_ms: int) -> int:
    """Return the option's value; jobs that the command line did not start have no options."""
    seconds = context.arguments.get("grace_s")
    return default_ms if seconds is None else int(seconds) * 1_000
