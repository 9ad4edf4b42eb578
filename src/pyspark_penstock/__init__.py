"""Makes ``spark.read.format("penstock")`` work. PySpark imports all modules named ``pyspark_*``.

Spark runs this import, and all Python workers, with the program in ``PYSPARK_PYTHON``, or else
``python3``. If a job is started as ``.venv/bin/python job.py``, that may be a Python without
Penstock, and Spark reports DATA_SOURCE_NOT_FOUND. So a job must import this module before it
creates its session, or call ``register`` afterwards."""

import os
import sys
from typing import TYPE_CHECKING

from penstock.pipeline.source import PenstockSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON_DEFAULT = "python3"  # what PySpark runs without PYSPARK_PYTHON

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class DefaultSource(PenstockSource):
    """The data source, under the class name that PySpark looks for."""


def register(spark: "SparkSession") -> None:
    """Register ``format("penstock")`` in a Spark session that already exists."""
    context = spark.sparkContext
    if context.pythonExec == _PYTHON_DEFAULT:
        context.pythonExec = os.environ["PYSPARK_PYTHON"]
    spark.dataSource.register(PenstockSource)


__all__ = ["DefaultSource", "register"]
