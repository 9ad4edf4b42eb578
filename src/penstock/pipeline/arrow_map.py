"""``map_in_arrow``: ``DataFrame.mapInArrow`` on an installation without pandas.

PySpark's method passes Arrow batches to a function and never makes a pandas object, but fails if
pandas is not installed, because it uses the decorator of pandas functions. This module builds the
same plan without that decorator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def map_in_arrow(
    df: DataFrame,
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: StructType | str,
) -> DataFrame:
    """Apply ``function`` to the batches of each partition, in the executors."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
    from pyspark.sql.pandas import functions
    from pyspark.util import PythonEvalType

    assert isinstance(df, ClassicDataFrame), "a plan is only built in the driver's own process"
    make: Any = vars(functions)["vectorized_udf"]  # has no type in PySpark
    mapped = make(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF, "pandas")
    column = mapped(*[df[name] for name in df.columns])
    return ClassicDataFrame(df._jdf.mapInArrow(column._jc, False, None), df.sparkSession)
