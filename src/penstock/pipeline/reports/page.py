"""One page that needs nothing beside it: style and plots stand in it, nothing is fetched, nothing
runs. It follows the reader's choice of light or dark, fits a telephone, and prints.

All text of others, names of queues above all, goes through ``html.escape`` here and nowhere else.
"""

import datetime
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock import __version__

ROWS_MAX: Final = 200  # of a table; the rest is summed up in its last row, and whole in the CSV


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text that is meant to be read. ``totals`` stand below, ``left_out`` rows are
    somewhere else."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, str]]
    totals: Mapping[str, str] | None = None
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    plots: Sequence[Plot] = ()
    table: Table | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    period: str
    tiles: Sequence[tuple[str, str]]  # what, how much
    sections: Sequence[Section]
    notes: Sequence[str] = ()

    def to_html(self, *, now: datetime.datetime) -> str:
        made = now.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        title, period = html.escape(self.title), html.escape(self.period)
        tiles = "".join(
            f"<div><dt>{html.escape(what)}</dt><dd>{html.escape(much)}</dd></div>"
            for what, much in self.tiles
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{title} – {period}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
            f"<header><h1>{title}</h1><p>{period}</p></header>\n"
            f"<main>\n<dl>{tiles}</dl>\n{''.join(map(_section, self.sections))}</main>\n"
            f"<footer>{notes}<p>Made {made} by Penstock {__version__}. Times are UTC.</p>"
            "</footer>\n</body>\n</html>\n"
        )


def _section(section: Section) -> str:
    plots = "".join(map(_plot, section.plots))
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>\n"]
    if section.note:
        parts.append(f"<p>{html.escape(section.note)}</p>\n")
    if plots:
        parts.append(f'<div class="plots">{plots}</div>\n')
    if section.table is not None:
        parts.append(_table(section.table))
    parts.append("</section>\n")
    return "".join(parts)


def _plot(plot: Plot) -> str:
    note = f" <small>{html.escape(plot.note)}</small>" if plot.note else ""
    caption = f"<figcaption>{html.escape(plot.title)}{note}</figcaption>"
    label = html.escape(plot.title, quote=True)
    svg = plot.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    return f"<figure>{caption}{svg}</figure>\n"


def _table(table: Table) -> str:
    if not table.rows:
        return '<p class="none">Nothing.</p>\n'
    head = "".join(_cell("th", column, column.title) for column in table.columns)
    body = "".join(_row(table.columns, row) for row in table.rows)
    foot = ""
    if table.left_out:
        text = f"and {table.left_out:,} more rows, which are in the CSV"
        foot += f'<tr><td colspan="{len(table.columns)}">{text}</td></tr>'
    if table.totals is not None:
        foot += _row(table.columns, table.totals)
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>'
        f"{foot}</table></div>\n"
    )


def _row(columns: Sequence[Column], row: Mapping[str, str]) -> str:
    cells = "".join(_cell("td", column, row.get(column.name, "")) for column in columns)
    return f"<tr>{cells}</tr>\n"


def _cell(tag: str, column: Column, text: str) -> str:
    kind = ' class="n"' if column.is_number else ""
    return f"<{tag}{kind}>{html.escape(text)}</{tag}>"


_STYLE: Final = """
:root{--ink:#1d232b;--soft:#5c6672;--line:#dfe3e8;--ground:#fff;--card:#f5f7f9}
@media (prefers-color-scheme:dark){
:root{--ink:#e4e8ec;--soft:#9aa4af;--line:#343b44;--ground:#15191e;--card:#1d232a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;color:var(--ink);background:var(--ground);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;margin:.4rem 0 0}h2{font-size:1.15rem;margin:2rem 0 .6rem}
header p,footer,small,section>p{color:var(--soft)}header p{margin:.1rem 0 1rem}
footer{font-size:.85rem;margin-top:2.5rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:0}
dl div,figure{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}
dt{font-size:.8rem;color:var(--soft)}
dd{margin:0;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));gap:.8rem;
margin-bottom:1rem}
figure{margin:0;min-width:0;max-width:44rem}figcaption{font-weight:600;margin-bottom:.4rem}
figcaption small{font-weight:400}
svg{display:block;width:100%;height:auto;font-family:inherit}
.wide{overflow-x:auto}.none{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);
white-space:nowrap;max-width:24rem;overflow:hidden;text-overflow:ellipsis}
th{color:var(--soft);font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}
tfoot td{font-weight:600;border-bottom:0}
@media print{body{max-width:none}.wide{overflow:visible}section,figure{break-inside:avoid}}
"""
