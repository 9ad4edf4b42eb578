"""A self-contained HTML page: style and plots are inline, and there are no scripts or requests. The
page supports light and dark mode, phones and printing. On a phone each row of a table becomes a
card, so that all columns are visible.

Only this module escapes text (``html.escape``), such as the names of queues, which users choose."""

import datetime
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from penstock import __version__

SHORT_MAX: Final = 24  # characters of a cell that is not wrapped: an id, an operation, a time
TILE_MAX: Final = 11  # characters of a tile in large type: half the width of a telephone
ROWS_MAX: Final = 200  # of a table; its last row counts the others, and the CSV has all


class Column(NamedTuple):
    name: str
    title: str
    format: Callable[[Any], str] = str
    is_number: bool = False


def number(name: str, title: str, format: Callable[[Any], str] = str) -> Column:  # noqa: A002
    return Column(name, title, format, is_number=True)


class Table(NamedTuple):
    """A table whose rows map column names to values. Only the first ``ROWS_MAX`` are shown."""

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    totals: Mapping[str, Any] | None = None


class Plot(NamedTuple):
    title: str
    svg: str


class Link(NamedTuple):
    text: str
    file: str


class Section(NamedTuple):
    title: str
    plots: Sequence[Plot] = ()
    table: Table | None = None
    note: str = ""
    links: Sequence[tuple[Link, str]] = ()  # with a description


class Page(NamedTuple):
    title: str
    period: str
    tiles: Sequence[tuple[str, str]]  # name, value
    sections: Sequence[Section]
    notes: Sequence[str] = ()

    def to_html(self, *, now: datetime.datetime, links: Sequence[Link] = ()) -> str:
        made = now.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        title, period = html.escape(self.title), html.escape(self.period)
        heading = f"{title} – {period}" if period else title
        tiles = "".join(_tile(what, much) for what, much in self.tiles)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        nav = f"<nav>{''.join(f'{_anchor(each)} ' for each in links)}</nav>\n" if links else ""
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>{heading}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
            f"{nav}<header><h1>{title}</h1><p>{period}</p></header>\n"
            f"<main>\n{f'<dl>{tiles}</dl>' if tiles else ''}\n"
            f"{''.join(map(_section, self.sections))}</main>\n"
            f"<footer>{notes}<p>Made {made} by Penstock {__version__}. Times are UTC.</p>"
            "</footer>\n</body>\n</html>\n"
        )


def _tile(what: str, much: str) -> str:
    kind = ' class="l"' if len(much) > TILE_MAX else ""
    return f"<div{kind}><dt>{html.escape(what)}</dt><dd>{html.escape(much)}</dd></div>"


def _anchor(link: Link) -> str:
    return f'<a href="{html.escape(quote(link.file), quote=True)}">{html.escape(link.text)}</a>'


def _section(section: Section) -> str:
    note = f"<p>{html.escape(section.note)}</p>\n" if section.note else ""
    plots = "".join(map(_plot, section.plots))
    plots = f'<div class="plots">{plots}</div>\n' if plots else ""
    items = "".join(
        f"<li>{_anchor(each)}{f' <small>{html.escape(about)}</small>' if about else ''}</li>\n"
        for each, about in section.links
    )
    links = f"<ul>\n{items}</ul>\n" if items else ""
    table = "" if section.table is None else _table(section.table)
    heading = f"<h2>{html.escape(section.title)}</h2>\n"
    return f"<section>\n{heading}{note}{plots}{links}{table}</section>\n"


def _plot(plot: Plot) -> str:
    title = html.escape(plot.title)
    svg = plot.svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    return f"<figure><figcaption>{title}</figcaption>{svg}</figure>\n"


def _table(table: Table) -> str:
    if not table.rows:
        return '<p class="none">Nothing.</p>\n'
    head = "".join(_cell("th", column, column.title) for column in table.columns)
    body = "".join(_row(table.columns, row) for row in table.rows[:ROWS_MAX])
    foot = ""
    if len(table.rows) > ROWS_MAX:
        text = f"and {len(table.rows) - ROWS_MAX:,} more rows, which are in the CSV"
        foot += f'<tr><td colspan="{len(table.columns)}">{text}</td></tr>'
    if table.totals is not None:
        foot += _row(table.columns, table.totals)
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody>{foot}</table>\n"


def _row(columns: Sequence[Column], row: Mapping[str, Any]) -> str:
    texts = [c.format(row[c.name]) if c.name in row else "" for c in columns]
    cells = "".join(_cell("td", c, text) for c, text in zip(columns, texts, strict=True))
    return f"<tr>{cells}</tr>\n"


def _cell(tag: str, column: Column, text: str) -> str:
    kind = ' class="n"' if column.is_number else ""
    if not column.is_number and len(text) <= SHORT_MAX:
        kind = ' class="s"'
    # On a phone there is no header row, so each cell shows the name of its column.
    label = f' data-label="{html.escape(column.title, quote=True)}"' if tag == "td" else ""
    return f"<{tag}{kind}{label}>{html.escape(text)}</{tag}>"


_STYLE: Final = """
:root{--ink:#1d232b;--soft:#5c6672;--line:#dfe3e8;--ground:#fff;--card:#f5f7f9}
@media (prefers-color-scheme:dark){
:root{--ink:#e4e8ec;--soft:#9aa4af;--line:#343b44;--ground:#15191e;--card:#1d232a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:78rem;padding:1rem;color:var(--ink);background:var(--ground);
font:16px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:1.6rem;margin:.4rem 0 0}h2{font-size:1.15rem;margin:2rem 0 .6rem}
header p,footer,small,section>p{color:var(--soft)}header p{margin:.1rem 0 1rem}
footer{font-size:.85rem;margin-top:2.5rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.6rem;margin:0}
dl div,figure{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}
dt{font-size:.8rem;color:var(--soft)}
dd{margin:0;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere}.l dd{font-size:1rem;line-height:1.9rem}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,21rem),1fr));gap:.8rem;
margin-bottom:1rem}
figure{margin:0;min-width:0;max-width:44rem}figcaption{font-weight:600;margin-bottom:.4rem}
figcaption small{font-weight:400}
svg{display:block;width:100%;height:auto;font-family:inherit}
nav{font-size:.9rem}nav a{margin-right:1rem}a{color:inherit}
li{margin:.3rem 0}
.none{color:var(--soft)}
table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;vertical-align:top;padding:.35rem .5rem;border-bottom:1px solid var(--line);
overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600;white-space:nowrap}
.s{white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tfoot td{font-weight:600;border-bottom:0}
@media screen and (max-width:48rem){
.l{grid-column:1/-1}
thead{display:none}
table,tbody,tfoot{display:block}
tr{display:grid;grid-template-columns:1fr 1fr;gap:.15rem .8rem;padding:.6rem 0;
border-bottom:1px solid var(--line)}
td{display:block;border:0;padding:0;grid-column:1/-1;text-align:left;white-space:normal}
td.n,td.s{grid-column:auto;text-align:left}
td:empty{display:none}
td::before{content:attr(data-label);display:block;font-size:.75rem;font-weight:400;
color:var(--soft)}
td:not([data-label])::before,td[data-label=""]::before,tfoot td:first-child::before{content:none}
}
@media print{body{max-width:none}nav{display:none}figure,tr{break-inside:avoid}}
"""
