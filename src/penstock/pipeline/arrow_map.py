"""Helpers for Arrow schemas and batches, and ``map_in_arrow``, which is ``DataFrame.mapInArrow``
without pandas. PySpark's method needs pandas only because it uses the decorator for pandas
functions. This module builds the same query plan without that decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def schema_of(text: str) -> pa.Schema:
    """Parse a schema in Spark's notation, such as "topic string, offset long"."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "long": pa.int64(),
        "double": pa.float64(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "list<string>": pa.list_(pa.string()),
        "list<long>": pa.list_(pa.int64()),
    }
    fields = [field.split() for field in text.split(",")]
    return pa.schema([(name, types[kind]) for name, kind in fields])


def batch_of(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def add_up(rows: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    # A task has one core: threads would take time from other tasks.
    grouped = rows.group_by(list(keys), use_threads=False)
    summed = grouped.aggregate([(name, "sum") for name in sums])
    # Results are named <name>_sum; the order of columns depends on the version of PyArrow.
    columns = [summed.column(name) for name in keys]
    columns += [summed.column(f"{name}_sum") for name in sums]
    return pa.table(columns, names=[*keys, *sums])


class Folding:
    """Collects tables, and aggregates them with ``fold`` after every ``rows_max`` rows, so that
    memory depends on the number of groups and not on the number of rows."""

    def __init__(self, fold: Callable[[pa.Table], pa.Table], rows_max: int) -> None:
        self._fold = fold
        self._rows_max = rows_max
        self._tables: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += table.num_rows
        if self._rows >= self._rows_max:
            self.result(table.schema)

    def result(self, schema: pa.Schema) -> pa.Table:
        import pyarrow as pa

        folded = self._fold(pa.concat_tables([schema.empty_table(), *self._tables]))
        self._tables, self._rows = [folded], 0
        return folded


def map_in_arrow(
    df: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.pandas import functions
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.util import PythonEvalType

    assert isinstance(df, ClassicDataFrame), "plans are built in the driver process only"
    make: Any = vars(functions)["vectorized_udf"]  # has no type in PySpark
    row = from_arrow_schema(schema)
    mapped = make(function, row, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, "pandas")
    column = mapped(*[df[name] for name in df.columns])
    return ClassicDataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)
