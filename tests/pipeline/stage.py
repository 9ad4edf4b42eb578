"""What a job is given in tests: a real context, and a display that remembers what it was told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.harness.full import FULL
from tests.harness.server import Server

from penstock.pipeline.job import JobContext, Mode
from penstock.pipeline.lake import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Queries of tests read a few rows: to compile each query to Java code costs more than it saves.
# `make faults` has them compiled, as they are in production.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
QUERIES = {} if FULL else INTERPRETED


@dataclass
class Notes:
    texts: list[str] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)

    def note(self, text: str) -> None:
        self.texts.append(text)

    def show(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.rows += rows

    @contextmanager
    def tasks(self, label: str) -> Iterator[None]:
        yield


def context_of(
    spark: SparkSession,
    server: Server,
    lake: Lake,
    folder: Path,
    notes: Notes | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    security: Mapping[str, str] | None = None,
    **arguments: Any,
) -> JobContext:
    notes = notes or Notes()
    return JobContext(
        spark=spark,
        server=server.kafka,
        lake=lake,
        checkpoint=folder,
        progress=notes,
        mode=Mode.ONCE,
        since_ms=since_ms,
        until_ms=until_ms,
        arguments=arguments,
        security=security or {},
        show=notes.show,
    )
