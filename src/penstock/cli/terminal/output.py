"""Writes results: the same data as a table for people or as JSON for programs.

Without ``-o`` the format depends on stdout. On a terminal: a table. Otherwise one item is one JSON
object (``json``), several items are one JSON object per line (``ndjson``), so that a pipe can
process them before the command is done. ``-o json`` of several items is one array. ``-o name``
prints only the identifying field, one per line. Field names are stable: new ones may be added, none
renamed. ``-o table`` into a pipe is plain aligned text; rich is imported only to draw on a
terminal."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

from penstock.model.units import size

FORMATS = ("table", "json", "ndjson", "name")

Row = Mapping[str, Any]

_FOLDED_WIDTH_MIN = 12
_STYLES = {"✗": "red", "!": "yellow", "✓": "green"}  # marks of results


class Column(NamedTuple):
    key: str
    title: str
    is_number: bool = False
    form: Callable[[Any], str] | None = None

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        if value is None:
            return "-"
        return self.form(value) if self.form is not None else _plain(value)


def field(key: str) -> Column:
    """Return a column titled by the field's name, and formatted by the unit in it."""
    unit = _unit_of(key)
    return Column(key, key.removesuffix(unit).replace("_", " "), form=_UNITS.get(unit))


def columns(text: str) -> tuple[Column, ...]:
    """Return the columns of a table, written as ``key TITLE, key# TITLE, key``. A ``#`` marks a
    number; the title is the key in capitals if none is given. The unit in a key, such as ``_at_ms``
    or ``_bytes``, gives its format."""
    made = []
    for part in text.split(","):
        mark, _, title = part.strip().partition(" ")
        key = mark.removesuffix("#")
        form = _UNITS.get(_unit_of(key))
        made.append(Column(key, title or key.upper().replace("_", " "), key != mark, form))
    return tuple(made)


def _unit_of(key: str) -> str:
    ends = (unit for unit in _UNITS if key.endswith(unit) and not key.endswith("_per_s"))
    return next(ends, "")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value
    return to_json(value)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(", ", ": "))


def duration(seconds: float) -> str:
    """Return the two largest units: 43s, 5m 3s, 2h 10m, 4d 1h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    for unit, below, unit_s, below_s in (
        ("d", "h", 86_400, 3_600),
        ("h", "m", 3_600, 60),
        ("m", "s", 60, 1),
    ):
        if whole >= unit_s:
            rest = whole % unit_s // below_s
            return f"{whole // unit_s}{unit} {rest}{below}" if rest else f"{whole // unit_s}{unit}"
    raise AssertionError("unreachable: a minute or more matched above")


def moment(at_ms: int) -> str:
    return _time(at_ms, "%Y-%m-%d %H:%M:%S UTC")


def time_of_day(at_ms: int) -> str:
    """Return the time without its date, for times at most hours away."""
    return _time(at_ms, "%H:%M:%S UTC")


def _time(at_ms: int, form: str) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1_000, UTC).strftime(form)


def none_of(what: str, prefix: str = "") -> str:
    return f"no {what} that start with '{prefix}'" if prefix else f"no {what}"


def one_line(text: str, width: int) -> str:
    """Shorten a message body for a table cell, with control characters made visible."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


_UNITS: dict[str, Callable[[Any], str]] = {
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
        """True if a person reads a table on a terminal; only then an empty result is stated."""
        return self.is_table and self._stream.isatty()

    def format_of(self, otherwise: str) -> str:
        if self._chosen is not None:
            return self._chosen
        return "table" if self._stream.isatty() else otherwise

    def one(self, item: Row, *, columns: Sequence[Column] = (), name: str = "name") -> None:
        """Print one item; as a table, with one line per field."""
        form = self.format_of("json")
        if form == "table":
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
        """Print items. ``empty`` is shown on a terminal if there are none; a pipe gets no line."""
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
        """Print one of an unknown number of items. A table cannot be laid out, so a terminal gets
        ``text`` and everything else a JSON line, flushed at once."""
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

    # If the table is too wide, names and bodies are folded; a folded number could be misread.
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
