"""``penstock pipeline doctor`` and ``warm``: check the requirements, and make starts faster."""

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import click

from penstock.cli.command import Session, Verb
from penstock.cli.pipeline.folders import (
    checkpoints_of,
    folder_of,
    place_options,
    require_extra,
    writable_above,
)
from penstock.cli.terminal.failure import ExitCode, Failure, Unhealthy
from penstock.cli.terminal.output import FINDING_COLUMNS, Finding, Status, installed_version
from penstock.model.units import size

_INSTALL = "pip install 'penstock[spark]'"
_PACKAGES = ("pyspark", "pyarrow", "deltalake", "numpy", "matplotlib")
_LAKE_FREE_BYTES_MIN = 1_073_741_824


@click.command(cls=Verb)
@place_options
def doctor(session: Session, lake: str, checkpoint: str | None) -> None:
    """Check the requirements of the pipeline. Exit code 8 if something is missing."""
    findings = [*_packages(), *_java(), *_places(lake, checkpoint)]
    rows: list[dict[str, Any]] = [finding._asdict() for finding in findings]
    session.out.many(rows, columns=FINDING_COLUMNS, name="check")
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        version = installed_version(name)
        if version is not None:
            yield Finding(name, "ok", version)
        else:  # only reports need matplotlib
            status: Status = "warn" if name == "matplotlib" else "fail"
            yield Finding(name, status, "not installed", _INSTALL)


def _java() -> Iterator[Finding]:
    from penstock.pipeline.spark.java import JavaMissing, find_java

    try:
        java = find_java()
    except JavaMissing as error:
        yield Finding("java", "fail", str(error), _INSTALL)
        return
    shim = ", started through a shim" if java.is_shimmed else ""
    yield Finding("java", "ok", f"{java.version} of {java.origin}: {java.runtime}{shim}")
    try:
        from penstock.pipeline.spark.class_archive import archive_file

        archive = archive_file(java)
    except metadata.PackageNotFoundError:
        return  # reported by _packages
    if archive.is_file():
        yield Finding("warm", "ok", f"classes are archived, {size(archive.stat().st_size)}")
    else:
        yield Finding("warm", "warn", "sessions start slowly", "run `penstock pipeline warm`")


def _places(lake: str, checkpoint: str | None) -> Iterator[Finding]:
    import shutil

    places = {
        "lake": folder_of(lake, option="--lake"),
        "checkpoint": checkpoints_of(lake, checkpoint),
    }
    for check, folder in places.items():
        there = writable_above(folder)
        if there is None:
            yield Finding(check, "fail", f"{folder} is not writable", f"use another --{check} DIR")
            continue
        free = shutil.disk_usage(there).free
        status: Status = "ok" if free >= _LAKE_FREE_BYTES_MIN else "warn"
        made = "" if folder.exists() else ", will be created"
        yield Finding(check, status, f"{folder}{made}; {size(free)} free")


@click.command(cls=Verb)
def warm(session: Session) -> None:
    """Archive the Java classes of Spark, so that sessions start in half the time.

    This takes about 30 seconds and 200 MB in the cache folder ($PENSTOCK_CACHE or
    ~/.cache/penstock). Run it again after an upgrade of Java or Spark.
    """
    require_extra()
    from penstock.pipeline.runs import warm as warming
    from penstock.pipeline.session import SessionFailed
    from penstock.pipeline.spark.java import JavaMissing, find_java

    try:
        archive = warming.warm(find_java(), note=session.remark)
    except JavaMissing as error:
        raise Unhealthy(str(error)) from None
    except (SessionFailed, warming.WarmFailed) as error:
        raise Failure("cannot archive the Java classes of Spark", str(error)) from None
    session.out.one({"archive": str(archive), "bytes": archive.stat().st_size}, name="archive")
