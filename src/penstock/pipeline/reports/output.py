"""Writes a report as an HTML page, or its rows as CSV. In a folder of reports (the working folder,
or ``--out DIR``) pages have links to one another, and ``penstock-reports.html`` lists them. A page
that is written to a named file has no links, because users may mail it without the others."""

import csv
import datetime
import html
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from penstock.pipeline.files import replacing
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode, option
from penstock.pipeline.reports.page import Link, Page, Section

PREFIX: Final = "penstock-"
INVOICE_PREFIX: Final = f"{PREFIX}invoice-"
INDEX: Final = f"{PREFIX}reports.html"
PAGES_MAX: Final = 2_000  # in an index
_HEAD_CHARACTERS: Final = 1_000
_TITLE: Final = re.compile(r"<title>(.*?) – (.*?)</title>")


OUT: Final = option(
    "--out", "FILE|DIR", "file or folder to write pages to [default: current folder]"
)
_CSV: Final = option("--csv is_csv", None, "write the rows as CSV instead of a page", is_flag=True)


def report(
    name: str,
    summary: str,
    run: Callable[[JobContext], None],
    options: Sequence[click.Option] = (OUT, _CSV),
) -> Job:
    modes = frozenset((Mode.ONCE,))
    return Job(name, summary, run, options=options, modes=modes, needs_spark=False)


def write(
    context: JobContext,
    name: str,
    page: Page,
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
) -> None:
    """Write the page or, with ``--csv``, the rows (to standard output if there is no ``--out``)."""
    out = context.arguments.get("out")
    if not context.arguments.get("is_csv"):
        write_pages(context, {name: page})
        return
    text = _csv(rows, columns)
    if out is None:
        sys.stdout.write(text)
        return
    target = Path(out).expanduser().absolute()
    _put(target, text)
    context.progress.note(f"report written: {target}")


def write_pages(context: JobContext, pages: Mapping[str, Page]) -> None:
    """Write each page to a file, and an index of all pages if the target is a folder."""
    now = datetime.datetime.now(datetime.UTC)
    out = Path(context.arguments.get("out") or ".").expanduser().absolute()
    if not (out.is_dir() or str(context.arguments.get("out")).endswith("/")):
        if len(pages) != 1:
            raise JobMisused(
                f"--out {out} is a file, but there are {len(pages)} pages: use --out DIR/"
            )
        for page in pages.values():
            _put(out, page.to_html(now=now))
        context.progress.note(f"report written: {out}")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobMisused(f"cannot create folder {out}: {error.strerror}") from None
    files = {f"{PREFIX}{quote(name, safe='')}.html": page for name, page in pages.items()}
    for file, page in files.items():
        links: list[Link] = []
        # Only the index links to invoices, and these have no links: they are sent to customers.
        if not file.startswith(INVOICE_PREFIX):
            reports = [link for link, _ in _known(out, is_invoice=False) if link.file != file]
            links = [Link("All reports", INDEX), *reports]
        _put(out / file, page.to_html(now=now, links=links))
        context.progress.note(f"report written: {out / file}")
    kinds = (("Reports", _known(out, is_invoice=False)), ("Invoices", _known(out, is_invoice=True)))
    sections = [Section(heading, links=links) for heading, links in kinds if links]
    _put(out / INDEX, Page("Reports", "", [], sections).to_html(now=now))
    context.progress.note(f"all reports: {out / INDEX}")


def _known(folder: Path, *, is_invoice: bool) -> list[tuple[Link, str]]:
    found = []
    for path in sorted(folder.glob(f"{PREFIX}*.html"))[:PAGES_MAX]:
        if path.name == INDEX or path.name.startswith(INVOICE_PREFIX) != is_invoice:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            match = _TITLE.search(file.read(_HEAD_CHARACTERS))
        if match is not None:
            found.append((Link(html.unescape(match[1]), path.name), html.unescape(match[2])))
    return found


def _put(target: Path, text: str) -> None:
    try:
        with replacing(target, mode=0o644) as file:  # a user may be reading the old page
            file.write(text.encode())
    except OSError as error:
        raise JobMisused(f"cannot write {target}: {error.strerror}") from None


def _csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(row.get(name)) for name in columns} for row in rows)
    return buffer.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # A spreadsheet would run these as formulas, and tenants choose the names.
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return value
