"""Where a report goes: a page into a file, or its rows as CSV; the options that all share."""

import csv
import datetime
import io
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from penstock.pipeline.job import JobContext, JobMisused
from penstock.pipeline.reports.page import Page


def options() -> tuple[click.Option, ...]:
    return (
        click.Option(["--out"], metavar="FILE", help="where to write [default: ./NAME.html]"),
        click.Option(["--csv", "is_csv"], is_flag=True, help="the rows alone, as CSV"),
    )


def write(
    context: JobContext,
    name: str,
    page: Page,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
) -> None:
    """As the options of the command say. CSV goes to the standard output if no file is named."""
    out = context.arguments.get("out")
    if context.arguments.get("is_csv"):
        text = _csv(rows, columns)
        if out is None:
            sys.stdout.write(text)
            return
    else:
        text = page.to_html(now=datetime.datetime.now(datetime.UTC))
    target = Path(out or f"penstock-{name}.html").expanduser().absolute()
    try:
        _replace(target, text)
    except OSError as error:
        raise JobMisused(f"cannot write {target}: {error.strerror}") from None
    context.progress.note(f"report written: {target}")


def _csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(row.get(name)) for name in columns} for row in rows)
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # A spreadsheet would take these for formulas, and names are chosen by others.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value


def _replace(target: Path, text: str) -> None:
    """In full or not at all: somebody may be looking at the one before."""
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(draft).chmod(0o644)
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
