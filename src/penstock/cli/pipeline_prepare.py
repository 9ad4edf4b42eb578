"""``penstock pipeline doctor`` and ``warm``: check the requirements, and make starts faster."""

from collections.abc import Iterator
from importlib import metadata
from typing import Any, NamedTuple

import click

from penstock.cli.failure import ExitCode, Failure
from penstock.cli.output import Column
from penstock.cli.pipeline_place import (
    checkpoints_of,
    folder_of,
    place_options,
    require_extra,
    writable_above,
)
from penstock.cli.session import Session, Verb, pass_session
from penstock.model.units import size

_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
_COLUMNS = (
    Column("status", " ", form=lambda status: _MARKS[status]),
    Column("check", "CHECK"),
    Column("detail", "FINDING"),
    Column("fix", "DO"),
)
_INSTALL = "pip install 'penstock[spark]'"
_PACKAGES = ("pyspark", "pyarrow", "deltalake", "numpy", "matplotlib")
_LAKE_FREE_BYTES_MIN = 1_073_741_824


class Finding(NamedTuple):
    status: str
    check: str
    detail: str
    fix: str = ""


@click.command(cls=Verb)
@place_options
@pass_session
def doctor(session: Session, lake: str, checkpoint: str | None) -> None:
    """Check that there is all the pipeline needs; exit code 8 when something is missing."""
    findings = [*_packages(), *_java(), *_places(lake, checkpoint)]
    rows: list[dict[str, Any]] = [finding._asdict() for finding in findings]
    session.out.many(rows, columns=_COLUMNS, name="check")
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            yield Finding("ok", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            # Only reports need matplotlib.
            status = "warn" if name == "matplotlib" else "fail"
            yield Finding(status, name, "not installed", _INSTALL)


def _java() -> Iterator[Finding]:
    from penstock.pipeline.java import JavaMissing, find_java

    try:
        java = find_java()
    except JavaMissing as error:
        yield Finding("fail", "java", str(error), _INSTALL)
        return
    shim = ", started through a shim" if java.is_shimmed else ""
    yield Finding("ok", "java", f"{java.version} of {java.origin}: {java.runtime}{shim}")
    try:
        from penstock.pipeline.warm import archive_file

        archive = archive_file(java)
    except metadata.PackageNotFoundError:
        return  # reported by _packages
    if archive.is_file():
        yield Finding("ok", "warm", f"classes are archived, {size(archive.stat().st_size)}")
    else:
        yield Finding("warn", "warm", "sessions start slowly", "penstock pipeline warm")


def _places(lake: str, checkpoint: str | None) -> Iterator[Finding]:
    import shutil

    places = {
        "lake": folder_of(lake, option="--lake"),
        "checkpoint": checkpoints_of(lake, checkpoint),
    }
    for check, folder in places.items():
        there = writable_above(folder)
        if there is None:
            yield Finding("fail", check, f"{folder}: cannot be written", f"--{check} DIR")
            continue
        free = shutil.disk_usage(there).free
        status = "ok" if free >= _LAKE_FREE_BYTES_MIN else "warn"
        made = "" if folder.exists() else ", will be made"
        yield Finding(status, check, f"{folder}{made}; {size(free)} free")


@click.command(cls=Verb)
@pass_session
def warm(session: Session) -> None:
    """Archive Spark's classes once, so that sessions start in half the time.

    Takes half a minute and some 200 MB in the cache folder ($PENSTOCK_CACHE or ~/.cache/penstock).
    To be done again after another Java or Spark was installed.
    """
    require_extra()
    from penstock.pipeline import warm as warming
    from penstock.pipeline.java import JavaMissing, find_java
    from penstock.pipeline.session import SessionFailed

    try:
        archive = warming.warm(find_java(), tell=session.remark)
    except JavaMissing as error:
        raise Failure(str(error), exit_code=ExitCode.UNHEALTHY) from None
    except (SessionFailed, warming.WarmFailed) as error:
        raise Failure("sessions will start as slowly as before", str(error)) from None
    session.out.one({"archive": str(archive), "bytes": archive.stat().st_size}, name="archive")
