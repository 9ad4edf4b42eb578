"""A batch job for tests: says where the executors of a cluster have our code from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.pipeline.arrow_map import map_in_arrow, schema_of
from penstock.pipeline.job import Job, JobContext

if TYPE_CHECKING:
    import pyarrow as pa


def run(context: JobContext) -> None:
    def place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow

        import penstock

        for batch in batches:
            paths: list[Any] = [penstock.__file__] * batch.num_rows
            yield pyarrow.record_batch([batch.column(0), pyarrow.array(paths)], ["id", "path"])

    numbers = context.spark.range(0, 1_000, numPartitions=4)
    rows = map_in_arrow(numbers, place, schema_of("id long, path string"))
    with context.progress.tasks("adding"):
        context.lake.append(rows, "probe", app="probe:1", batch_id=0)
        total = context.spark.range(0, 1_000, 1, 8).agg({"id": "sum"}).collect()[0][0]
    context.show([{"total": total}])


JOB = Job(name="probe", summary="Where executors have our code from.", run=run)
