"""The lake: a folder of Delta tables that all jobs write to and any Delta reader can open.

A table is a set of Parquet files and a log of commits; there is no catalog service. Executors
write part files (``parts.py``), then the driver names them all in **one commit**, together with the
number of the micro-batch (``table.py``). So a commit is atomic, and a commit that is retried, after
a kill between the table's commit and Spark's, finds its number and does nothing. Tables of records
are checkpoints as well: ``end_offsets`` returns the offsets to continue at.

A read takes the list of files from the log and passes it to Spark's Parquet reader. A lake's folder
must be local or mounted on all executors; object stores are not supported unless mounted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline.arrow_map import map_in_arrow
from penstock.pipeline.parts import PART_SCHEMA, Part, part_batches, write_parts
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
    import pyarrow as pa
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
            raise LakeError(f"a lake is a folder, and {path} is an address: mount it first")
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
        df: "DataFrame",
        table: str,
        *,
        app: str,
        batch_id: int,
        partition_by: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        is_tracked: bool = False,
        turn: int | None = None,
        replace_where: str | None = None,
    ) -> Commit:
        """Append the rows of a DataFrame, once for each (app, batch_id).

        ``turn`` is ``turn_of`` plus 1: the commit is rejected if another query took this turn, so
        rows can contain the turn as an increasing number. ``replace_where`` is a condition on
        partition columns: the commit also removes the files that it selects."""
        target = self.table(table)
        done = target.version_of(app)
        if done is not None and done >= batch_id:
            return Commit(target.version, batch_id, is_new=False)
        target.ensure(df.schema, partition_by)
        root, by = str(target.path), tuple(partition_by)

        def write(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
            return part_batches(batches, root, by, is_tracked=is_tracked)

        rows = map_in_arrow(df, write, PART_SCHEMA).collect()
        parts = [Part.from_row(tuple(row)) for row in rows]
        return target.commit(
            parts,
            app=app,
            batch_id=batch_id,
            metadata=metadata,
            is_tracked=is_tracked,
            turn=turn,
            replace_where=replace_where,
        )

    def append_arrow(
        self,
        rows: "pa.Table",
        table: str,
        *,
        app: str,
        batch_id: int,
        partition_by: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        replace_where: str | None = None,
    ) -> Commit:
        """Append a few rows of the driver, as ``append`` does. Needs no Spark."""
        target = self.table(table)
        done = target.version_of(app)
        if done is not None and done >= batch_id:
            return Commit(target.version, batch_id, is_new=False)
        target.ensure_arrow(rows.schema, partition_by)
        parts = write_parts(rows.to_batches(), target.path, partition_by, is_tracked=False)
        return target.commit(
            parts, app=app, batch_id=batch_id, metadata=metadata, replace_where=replace_where
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
