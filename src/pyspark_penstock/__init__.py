"""``spark.read.format("penstock")``: PySpark looks for modules called ``pyspark_*`` by itself.

Spark runs that search, and all Python workers, with ``PYSPARK_PYTHON``, or with ``python3`` from
``PATH``. A job started as ``.venv/bin/python job.py`` has its packages in neither, and Spark
reports DATA_SOURCE_NOT_FOUND. So a job imports this module before it creates its session, or calls
``register`` afterwards.
"""

import os
import sys
from typing import TYPE_CHECKING

from penstock.pipeline.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON_DEFAULT = "python3"  # what PySpark runs without PYSPARK_PYTHON

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class DefaultSource(PenstockSource):
    """The name under which PySpark looks for it."""


def register(spark: "SparkSession") -> None:
    """Make ``format("penstock")`` known to a session that exists already."""
    context = spark.sparkContext
    if context.pythonExec == _PYTHON_DEFAULT:
        context.pythonExec = os.environ["PYSPARK_PYTHON"]
    spark.dataSource.register(PenstockSource)


__all__ = ["DefaultSource", "register"]
