"""The lake: a folder of Delta tables that all jobs write to and any Delta reader can open.

A table is a set of Parquet files and a log of commits; there is no catalog service. Executors
write part files (``parts.py``), then the driver names them all in **one commit**, together with the
number of the micro-batch (``table.py``). So a commit is atomic, and a commit that is retried, after
a kill between the table's commit and Spark's, finds its number and does nothing. Tables of records
are checkpoints as well: ``end_offsets`` returns the offsets to continue at.

A read takes the list of files from the log and passes it to Spark's Parquet reader. A lake's folder
must be local or mounted on all executors; object stores are not supported unless mounted."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.pipeline.arrow_map import map_in_arrow
from penstock.pipeline.parts import PART_SCHEMA, part_batches, read_parts, write_parts
from penstock.pipeline.table import (
    Commit,
    Ends,
    LakeError,
    LakeFenced,
    RecordsRepeated,
    SchemaConflict,
    Table,
    TableMissing,
    TopicRemade,
    job_of,
    query_app,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Commit",
    "Ends",
    "Lake",
    "LakeError",
    "LakeFenced",
    "RecordsRepeated",
    "SchemaConflict",
    "Table",
    "TableMissing",
    "TopicRemade",
    "job_of",
    "query_app",
]


class Lake:
    """All tables in one folder."""

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise LakeError(f"a lake must be a local folder, not the URL {path}: mount it first")
        self.path = Path(path).absolute()

    def table(self, name: str) -> "Table":
        return Table(self.path, name)

    def tables(self, under: str = "") -> list[str]:
        """Return the names of all tables, or of those in the folder ``under``."""
        root = self.path / under
        logs = sorted(root.glob("**/_delta_log")) if root.is_dir() else []
        return [str(log.parent.relative_to(self.path)) for log in logs]

    def exists(self, table: str) -> bool:
        return self.table(table).exists()

    def append(
        self,
        rows: "DataFrame | pa.Table",
        table: str,
        *,
        app: str,
        batch_id: int,
        partition_by: Sequence[str] = (),
        is_tracked: bool = False,
        turn: int | None = None,
        replace_where: str | None = None,
    ) -> Commit:
        """Append the rows of a DataFrame, or a few rows of the driver, once for each
        (app, batch_id).

        ``turn`` is ``turn_of`` plus 1: the commit is rejected if another query took this turn, so
        rows can contain the turn as an increasing number. ``replace_where`` is a condition on
        partition columns: the commit also removes the files that it selects."""
        target = self.table(table)
        if target.has(app, batch_id):
            return Commit(target.version, batch_id, is_new=False)
        target.ensure(rows.schema, partition_by)
        if isinstance(rows, pa.Table):
            batches = rows.to_batches()
            parts = write_parts(batches, target.path, partition_by, is_tracked=is_tracked)
        else:
            root, by = target.path, tuple(partition_by)

            def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return part_batches(batches, root, by, is_tracked=is_tracked)

            parts = read_parts(map_in_arrow(rows, write, PART_SCHEMA))
        return target.commit(
            parts,
            app=app,
            batch_id=batch_id,
            is_tracked=is_tracked,
            turn=turn,
            replace_where=replace_where,
        )

    def read(
        self,
        spark: "SparkSession",
        table: str,
        where: str | None = None,
        *,
        files: str | None = None,
    ) -> "DataFrame":
        """Read the current version. ``where`` is a SQL condition on rows; ``files`` only on files.

        Files are pruned by partition values and by minima and maxima of plain columns. If ``where``
        is too complex for pruning, ``files`` can be a simpler condition."""
        return self.table(table).read(spark, where, files=files)

    def version_of(self, table: str, app: str) -> int | None:
        return self.table(table).version_of(app)

    def end_offsets(self, table: str, job: str) -> Ends:
        return self.table(table).end_offsets(job)
