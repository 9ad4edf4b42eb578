"""The commands of ``penstock pipeline`` that do not run jobs, and the folders of the pipeline. The
lake is the folder with the pipeline's data. It is never in a server's data folder, because it
outlives servers. By default it contains the checkpoints of jobs, so that both move together."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import msgspec

from penstock.cli.command import Session, Verb
from penstock.cli.terminal.failure import ExitCode, Failure, Misuse, NotFound, Unhealthy
from penstock.cli.terminal.options import option
from penstock.cli.terminal.output import (
    FINDING_COLUMNS,
    Finding,
    Status,
    columns,
    duration,
    installed_version,
)
from penstock.model.units import size
from penstock.pipeline.job import is_job_name
from penstock.pipeline.registry import jobs_of
from penstock.pipeline.runs.logs import NAME, read_log
from penstock.pipeline.runs.status import Kind, is_claimed, statuses

_LAKE_DEFAULT = "penstock-lake"
_NEEDED = ("pyspark", "pyarrow", "deltalake", "numpy")
_INSTALL = "pip install 'penstock[spark]'"
_LAKE_FREE_BYTES_MIN = 1_073_741_824
_LIST_COLUMNS = columns("job, modes, state, summary WHAT IT DOES")
_STATUS_COLUMNS = columns(
    "job, kind, state, pid, mode, started_at_ms STARTED, quiet_s LAST SIGN, last_batch# BATCH,"
    " rows#, rows_per_s# ROWS/S, lag#, restarts#, error LAST ERROR",
    pid=str,
    quiet_s=lambda seconds: f"{duration(seconds)} ago",
    rows_per_s="{:,.0f}".format,
)


def require_extra() -> None:
    if any(find_spec(name) is None for name in _NEEDED):
        raise Failure(f"the pipeline is not installed: run {_INSTALL}")


def place_params() -> list[click.Option]:
    lake = f"folder of the pipeline's data [env PENSTOCK_LAKE, default ./{_LAKE_DEFAULT}]"
    checkpoint = "folder of offsets, status and logs of jobs [default: in the lake]"
    more: dict[str, Any] = {"metavar": "DIR", "envvar": "PENSTOCK_LAKE", "default": _LAKE_DEFAULT}
    return [
        click.Option(["--lake"], help=lake, **more),
        click.Option(
            ["--checkpoint"], metavar="DIR", envvar="PENSTOCK_CHECKPOINT", help=checkpoint
        ),
    ]


def place_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command.__dict__.setdefault("__click_params__", []).extend(reversed(place_params()))
    return command


def folder_of(text: str, *, option: str) -> Path:
    if "://" in text:
        raise Misuse(
            f"cannot use {option} '{text}'",
            "it is a URL, and the pipeline writes to folders only",
            'mount the object store as a folder; see docs/pipeline.md, "Object stores"',
        )
    return Path(text).expanduser().absolute()


def checkpoints_of(lake: str, checkpoint: str | None) -> Path:
    if checkpoint is not None:
        return folder_of(checkpoint, option="--checkpoint")
    return folder_of(lake, option="--lake") / "_checkpoints"


def writable_above(folder: Path) -> Path | None:
    """Return the nearest existing folder at or above ``folder`` if it is writable, else None."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK) else None


def require_writable(folder: Path, *, option: str) -> None:
    if writable_above(folder) is None:
        why = "it is a file" if folder.is_file() else "it is not writable"
        raise Misuse(f"cannot use folder {folder}", why, f"choose another folder with {option} DIR")


@click.command("list", cls=Verb)
@place_options
def list_jobs(session: Session, lake: str, checkpoint: str | None) -> None:
    """List the jobs and their states."""
    require_extra()
    found = statuses(checkpoints_of(lake, checkpoint))
    known = {each.job: each for each in found if each.kind is Kind.JOB}
    rows = []
    for name, job in jobs_of("run").items():
        state = known[name].state.value if name in known else None
        modes = ", ".join(sorted(job.modes))
        rows.append({"job": name, "modes": modes, "state": state, "summary": job.summary})
    session.out.many(rows, columns=_LIST_COLUMNS, name="job")


@click.command(cls=Verb)
@place_options
def status(session: Session, lake: str, checkpoint: str | None) -> None:
    """Show the status of jobs that are running or have ended.

    A job in state `dead` was killed, or its machine failed: the next run continues its work."""
    now_ms = int(time.time() * 1_000)
    rows = []
    for each in statuses(checkpoints_of(lake, checkpoint)):
        quiet_s = max(0, now_ms - each.updated_at_ms) // 1_000
        rows.append({**msgspec.to_builtins(each), "quiet_s": quiet_s, "error": each.error or None})
    session.out.many(rows, columns=_STATUS_COLUMNS, name="job")


@click.command(cls=Verb)
@click.option("-f", "--follow", "is_following", is_flag=True, help="print new lines as they arrive")
@option("-n --lines count", click.IntRange(min=0, max=100_000), "last lines to print", default=100)
@place_options
def logs(
    session: Session, job: str, is_following: bool, count: int, lake: str, checkpoint: str | None
) -> None:
    """Print the log of a job, which includes the log of Spark."""
    root = checkpoints_of(lake, checkpoint)
    folder = root / job
    if not is_job_name(job) or not (folder / NAME).is_file():
        raise NotFound(
            f"job '{job}' has no log",
            f"the job has not run with the checkpoints in {root}",
            "list jobs with `penstock pipeline status`, or use another --lake or --checkpoint",
        )
    lines = read_log(
        folder / NAME, count=count, is_over=lambda: not is_following or not is_claimed(folder)
    )
    for line in lines:
        session.out.line(line)
        if is_following:
            session.out.flush()


@click.command(cls=Verb)
@place_options
def doctor(session: Session, lake: str, checkpoint: str | None) -> None:
    """Check the requirements of the pipeline. Exit code 8 if a check fails."""
    findings = [*_packages(), *_java(), *_places(lake, checkpoint)]
    rows: list[dict[str, Any]] = [finding._asdict() for finding in findings]
    session.out.many(rows, columns=FINDING_COLUMNS, name="check")
    if any(finding.status == "fail" for finding in findings):
        raise click.exceptions.Exit(ExitCode.UNHEALTHY)


def _packages() -> Iterator[Finding]:
    for name in (*_NEEDED, "matplotlib"):
        version = installed_version(name)
        if version is not None:
            yield Finding(name, "ok", version)
        else:  # only reports need matplotlib
            status: Status = "warn" if name == "matplotlib" else "fail"
            yield Finding(name, status, "not installed", _INSTALL)


def _java() -> Iterator[Finding]:
    from penstock.pipeline.spark.java import JavaMissing, archive_file, find_java

    try:
        java = find_java()
    except JavaMissing as error:
        yield Finding("java", "fail", str(error), _INSTALL)
        return
    shim = ", started through a shim" if java.is_shimmed else ""
    yield Finding("java", "ok", f"{java.version} of {java.origin}: {java.runtime}{shim}")
    try:
        archive = archive_file(java)
    except metadata.PackageNotFoundError:
        return  # reported by _packages
    if archive.is_file():
        yield Finding("warm", "ok", f"classes are archived, {size(archive.stat().st_size)}")
    else:
        yield Finding("warm", "warn", "Spark sessions start slowly", "run `penstock pipeline warm`")


def _places(lake: str, checkpoint: str | None) -> Iterator[Finding]:
    lakes, checkpoints = folder_of(lake, option="--lake"), checkpoints_of(lake, checkpoint)
    for check, folder in (("lake", lakes), ("checkpoint", checkpoints)):
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
    """Archive the Java classes of Spark, so that Spark sessions start in half the time.

    This takes about 30 seconds and 200 MB in the cache folder ($PENSTOCK_CACHE or
    ~/.cache/penstock). Run it again after an upgrade of Java or Spark."""
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
