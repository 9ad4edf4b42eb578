"""Makes ``spark.read.format("penstock")`` known to Spark with nothing to register: a module of this
kind of name is looked for by PySpark itself. The source is ``penstock.pipeline.source``."""

from penstock.pipeline.source import PenstockSource


class DefaultSource(PenstockSource):
    """The name under which PySpark looks for it."""


__all__ = ["DefaultSource"]
