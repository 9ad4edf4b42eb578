"""Writes a report as a page to a file, or its rows as CSV; and the options of all reports.

In a folder of reports (the working folder, or ``--out DIR``) pages have links to one another, and
``penstock-reports.html`` lists them. A page that is written to a named file has no links, because
users may mail it without the others."""

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
from penstock.pipeline.job import Job, JobContext, JobMisused, Mode
from penstock.pipeline.reports.page import Link, Page, Section

PREFIX: Final = "penstock-"
INVOICE_PREFIX: Final = f"{PREFIX}invoice-"
INDEX: Final = f"{PREFIX}reports.html"
PAGES_MAX: Final = 2_000  # in an index
_HEAD_CHARACTERS: Final = 1_000
_TITLE: Final = re.compile(r"<title>(.*?) – (.*?)</title>")


OUT: Final = click.Option(
    ["--out"],
    metavar="FILE|DIR",
    help="file to write, or folder of linked pages [default: current folder]",
)
_CSV: Final = click.Option(["--csv", "is_csv"], is_flag=True, help="write only the rows, as CSV")


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
    """Write the page, or with ``--csv`` the rows, which go to standard output without ``--out``."""
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
    """Write pages by their names, and the index if they go to a folder of reports."""
    now = datetime.datetime.now(datetime.UTC)
    out = Path(context.arguments.get("out") or ".").expanduser().absolute()
    if not (out.is_dir() or str(context.arguments.get("out")).endswith("/")):
        if len(pages) != 1:
            raise JobMisused(
                f"--out {out} is one file, and there are {len(pages)} pages: --out DIR"
            )
        for page in pages.values():
            _put(out, page.to_html(now=now))
        context.progress.note(f"report written: {out}")
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobMisused(f"cannot make folder {out}: {error.strerror}") from None
    files = {f"{PREFIX}{quote(name, safe='')}.html": page for name, page in pages.items()}
    for file, page in files.items():
        _put(out / file, page.to_html(now=now, links=_links(out, but=file)))
        context.progress.note(f"report written: {out / file}")
    _put(out / INDEX, _index(out).to_html(now=now))
    context.progress.note(f"all reports: {out / INDEX}")


def _links(folder: Path, *, but: str) -> list[Link]:
    """Return a page's links to the index and to other reports. Only the index links to invoices,
    and invoices have no links, because they are sent to customers."""
    if but.startswith(INVOICE_PREFIX):
        return []
    linked = [(title, file) for file, (title, _) in _known(folder).items() if file != but]
    others = [Link(title, file) for title, file in linked if not file.startswith(INVOICE_PREFIX)]
    return [Link("All reports", INDEX), *others]


def _index(folder: Path) -> Page:
    found = _known(folder)
    invoices = {file: about for file, about in found.items() if file.startswith(INVOICE_PREFIX)}
    reports = {file: about for file, about in found.items() if file not in invoices}
    sections = [
        Section(heading, links=[(Link(title, file), about) for file, (title, about) in those])
        for heading, those in (("Reports", reports.items()), ("Invoices", invoices.items()))
        if those
    ]
    return Page("Reports", "", [], sections)


def _known(folder: Path) -> dict[str, tuple[str, str]]:
    """Return title and period of each page in a folder, by the name of its file."""
    found = {}
    for path in sorted(folder.glob(f"{PREFIX}*.html"))[:PAGES_MAX]:
        with path.open(encoding="utf-8", errors="replace") as file:
            match = _TITLE.search(file.read(_HEAD_CHARACTERS))
        if match is not None and path.name != INDEX:
            found[path.name] = html.unescape(match[1]), html.unescape(match[2])
    return found


def _put(target: Path, text: str) -> None:
    """Raises JobMisused."""
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
