"""Prints results as a table for people or as JSON for programs.

Without ``-o`` a terminal gets a table. A pipe gets one JSON object (``json``) for a single item,
and one JSON object per line (``ndjson``) for several items, so that its reader need not wait for
the last item. ``-o json`` prints several items as one array. Fields may be added, but a field
is never renamed. The library rich is imported only to draw on a terminal."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TextIO

import click

from penstock.cli.terminal.options import option, several, some_seconds
from penstock.model.units import size

FORMATS = ("table", "json", "ndjson", "name")

Json = dict[str, Any]
Row = Mapping[str, Any]
Form = Callable[[Any], str]

_FOLDED_WIDTH_MIN = 12
_INTERVALS = some_seconds(0.1, 3_600)
_STYLES = {"✗": "red", "!": "yellow", "✓": "green"}  # colours of the marks of findings


class Column(NamedTuple):
    key: str
    title: str
    is_number: bool = False
    form: Form | None = None

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        if value is None:
            return "-"
        if self.form is not None:
            return self.form(value)
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, int):
            return f"{value:,}"
        return value if isinstance(value, str) else to_json(value)


def field(key: str) -> Column:
    unit = _unit_of(key)
    return Column(key, key.removesuffix(unit).replace("_", " "), form=_UNITS.get(unit))


def columns(text: str, **forms: Form) -> tuple[Column, ...]:
    """Parse the columns of a table from a text such as ``name, size_bytes# DISK``. A ``#`` marks a
    number. A column without a title gets its key in capitals. The unit at the end of a key, such as
    ``_at_ms`` or ``_bytes``, selects the format, unless ``forms`` gives one for the key."""
    made = []
    for part in text.split(","):
        mark, _, title = part.strip().partition(" ")
        key = mark.removesuffix("#")
        form = forms.get(key) or _UNITS.get(_unit_of(key))
        made.append(Column(key, title or key.upper().replace("_", " "), key != mark, form))
    return tuple(made)


def _unit_of(key: str) -> str:
    ends = (unit for unit in _UNITS if key.endswith(unit) and not key.endswith("_per_s"))
    return next(ends, "")


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: 43s, 5m 3s, 2h 10m, 4d 1h."""
    whole = int(seconds)
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    for (unit, unit_s), (below, below_s) in pairwise(units):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{whole // unit_s}{unit} {rest}{below}" if rest else f"{whole // unit_s}{unit}"
    return f"{whole}s"


def moment(at_ms: int, form: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(form)


def time_of_day(at_ms: int) -> str:
    return moment(at_ms, "%H:%M:%S UTC")


def none_of(what: str, prefix: str = "") -> str:
    return f"no {what} that start with '{prefix}'" if prefix else f"no {what}"


def one_line(text: str, width: int) -> str:
    """Shorten a message body for a table cell, with control characters made visible."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


_UNITS: dict[str, Form] = {
    "_at_ms": moment,
    "_at_s": lambda at_s: moment(at_s * 1_000),
    "_s": duration,
    "_bytes": size,
}


def is_drawing(stream: TextIO) -> bool:
    """Return True if the stream is a terminal and not the log of a CI job."""
    return stream.isatty() and not os.environ.get("CI")


class Output:
    def __init__(self, chosen: str | None, *, stream: TextIO | None = None) -> None:
        self._chosen = chosen
        self._stream = stream or sys.stdout

    @property
    def is_table(self) -> bool:
        return self.format_of("json") == "table"

    @property
    def is_for_people(self) -> bool:
        return self.is_table and self._stream.isatty()

    def format_of(self, otherwise: str) -> str:
        if self._chosen is not None:
            return self._chosen
        return "table" if self._stream.isatty() else otherwise

    def one(
        self,
        item: Row,
        *,
        columns: Sequence[Column] = (),
        name: str = "name",
        lines: Sequence[str] = (),
    ) -> None:
        """Print an item. The table format prints ``lines`` if given, else one line per field."""
        form = self.format_of("json")
        if form == "table" and lines:
            self.line("\n".join(lines))
        elif form == "table":
            shown = columns or [field(key) for key in item]
            width = max((len(column.title) for column in shown), default=0)
            for column in shown:
                self.line(f"{column.title.ljust(width)}  {column.text(item)}".rstrip())
        elif form == "json":
            self.line(json.dumps(item, ensure_ascii=False, indent=2))
        else:
            self._machine(item, form, name)

    def many(
        self,
        items: Iterable[Row],
        *,
        columns: Sequence[Column],
        name: str = "name",
        empty: str = "nothing found",
    ) -> None:
        """Print items. If there are none, a terminal shows ``empty`` and a pipe gets nothing."""
        form = self.format_of("ndjson")
        if form == "table":
            rows = list(items)
            if rows:
                self._table(rows, columns)
            elif self.is_for_people:
                self.line(empty)
        elif form == "json":
            self.line(json.dumps(list(items), ensure_ascii=False, indent=2))
        else:
            for item in items:
                self._machine(item, form, name)

    def streamed(self, item: Row, *, text: str, name: str = "name") -> None:
        """Print one item of a stream immediately: ``text`` on a terminal, JSON otherwise."""
        form = self.format_of("ndjson")
        if form == "table":
            self.line(text)
        else:
            self._machine(item, "name" if form == "name" else "ndjson", name)
        self._stream.flush()

    def line(self, text: str) -> None:
        self._stream.write(text + "\n")

    def flush(self) -> None:
        self._stream.flush()

    def _machine(self, item: Row, form: str, name: str) -> None:
        if form == "name":
            self.line(str(item.get(name, "")))
        else:
            self.line(to_json(item))

    def _table(self, items: Sequence[Row], columns: Sequence[Column]) -> None:
        cells = [[column.text(item) for column in columns] for item in items]
        if is_drawing(self._stream):
            from rich.console import Console

            Console(file=self._stream).print(rich_table(columns, cells))
            return
        titles = [column.title for column in columns]
        widths = [max(map(len, cut)) for cut in zip(titles, *cells, strict=True)]
        for row in [titles, *cells]:
            padded = (
                cell.rjust(width) if column.is_number else cell.ljust(width)
                for cell, width, column in zip(row, widths, columns, strict=True)
            )
            self.line("  ".join(padded).rstrip())


def rich_table(columns: Sequence[Column], cells: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    # If the table is too wide, text is folded but numbers are not: they could be misread.
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        if column.is_number:
            table.add_column(column.title, justify="right", no_wrap=True)
            continue
        width = max((len(row[number]) for row in cells), default=0)
        table.add_column(column.title, overflow="fold", min_width=min(width, _FOLDED_WIDTH_MIN))
    for row in cells:
        # Text, because a body may contain [markup]. rich omits colours if NO_COLOR is set.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    return table


def watch_options(help_text: str) -> Callable[[Any], Any]:
    return several(
        click.option("--watch", is_flag=True, help=help_text),
        option("--interval", _INTERVALS, "time between samples", default="2s", metavar="DURATION"),
        option("--samples", click.IntRange(min=1), "with --watch: number of samples to print"),
    )


def watch_rows(
    out: Output,
    rows: Callable[[], Iterable[Row]],
    columns: Sequence[Column],
    interval_s: float,
    samples_max: int | None,
    *,
    name: str = "name",
) -> None:
    if out.is_table and is_drawing(sys.stdout):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(), auto_refresh=False) as live:
            for _ in ticks(interval_s, samples_max):
                cells = [[column.text(row) for column in columns] for row in rows()]
                live.update(rich_table(columns, cells), refresh=True)
        return
    for _ in ticks(interval_s, samples_max):
        at_ms = int(time.time() * 1_000)
        for row in rows():
            text = "  ".join(f"{column.title} {column.text(row)}" for column in columns)
            out.streamed({"at_ms": at_ms, **row}, text=text, name=name)


def ticks(interval_s: float, count_max: int | None) -> Iterable[int]:
    """Yield 0, 1, 2 … at a fixed interval. Ticks that were missed are skipped."""
    start_s = time.monotonic()
    number = 0
    while count_max is None or number < count_max:
        yield number
        number += 1
        if number == count_max:
            return
        time.sleep(interval_s - (time.monotonic() - start_s) % interval_s)


@contextmanager
def progress_bar(
    label: str, *, total: int | None = None, is_quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """Yield a function that updates a progress bar with the number done and, optionally, the total.
    The bar is drawn on stderr if that is a terminal, unless --quiet, NO_COLOR or CI is set."""
    if is_quiet or os.environ.get("NO_COLOR") or not is_drawing(sys.stderr):
        yield lambda *_: None
        return
    from rich import progress
    from rich.console import Console

    with progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done, of=None: bar.update(task, completed=done, total=of or total)


Status = Literal["ok", "warn", "fail"]
_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
FINDING_COLUMNS = (
    Column("status", " ", form=_MARKS.__getitem__),
    *columns("check, detail FINDING, fix DO"),
)


class Finding(NamedTuple):
    check: str
    status: Status
    detail: str
    fix: str = ""


def installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
