"""Finds the archive of Spark's classes, with which a JVM starts in half the time. ``runs/warm.py``
creates the archive.

An archive fits one Java and one set of jars; its name in the cache folder is a hash of both, and
the JVM ignores an archive that does not fit. It has two layers: the classes of Spark, and those of
the JDK if the runtime does not already have an archive of them."""

import hashlib
import sys
from importlib import metadata
from pathlib import Path

from penstock.pipeline.spark.java import Java, cache_folder

BASE = "java.jsa"
TOP = "spark.jsa"
# The JVM reports an archive that does not fit on standard output, between other output.
QUIET = ("-Xlog:disable",)


def archive_folder(java: Java) -> Path:
    parts = (str(java.runtime), java.version, metadata.version("pyspark"), sys.prefix)
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / name


def archive_file(java: Java) -> Path:
    return archive_folder(java) / TOP


def archive_options(java: Java) -> list[str]:
    """Return the JVM options to use the archive, or none before ``warm`` has run."""
    top = archive_file(java)
    if not top.is_file():
        return []
    return [f"-XX:SharedArchiveFile={layers(java, top)}", *QUIET]


def has_base_archive(java: Java) -> bool:
    return (java.runtime / "lib" / "server" / "classes.jsa").is_file()


def layers(java: Java, top: Path | None) -> str:
    base = [] if has_base_archive(java) else [archive_folder(java) / BASE]
    return ":".join(str(layer) for layer in (*base, *([top] if top is not None else [])))
