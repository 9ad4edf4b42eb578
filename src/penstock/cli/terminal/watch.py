"""Rows that are shown again and again, as ``queue stats --watch`` does."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from penstock.cli.terminal import quantity
from penstock.cli.terminal.output import Column, Output, Row, is_drawing, rich_table

Rows = Callable[[], Iterable[Row]]


def watch_options(help_text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    options = (
        click.option("--watch", is_flag=True, help=help_text),
        click.option(
            "--interval",
            type=quantity.some_seconds(0.1, 3_600),
            default="2s",
            show_default=True,
            metavar="DURATION",
            help="interval of samples",
        ),
        click.option(
            "--samples", type=click.IntRange(min=1), help="with --watch: number of samples"
        ),
    )

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def watch_rows(
    out: Output,
    rows: Rows,
    columns: Sequence[Column],
    interval_s: float,
    samples_max: int | None,
    *,
    name: str = "name",
) -> None:
    """Show rows at regular times: as a live table on a terminal, otherwise as lines."""
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
            item: dict[str, Any] = {"at_ms": at_ms, **row}
            out.streamed(item, text=text, name=name)


def ticks(interval_s: float, count_max: int | None) -> Iterable[int]:
    """Yield 0, 1, 2 … at regular times; a late tick is dropped, not repeated."""
    start_s = time.monotonic()
    number = 0
    while count_max is None or number < count_max:
        yield number
        number += 1
        if number == count_max:
            return
        elapsed_s = time.monotonic() - start_s
        time.sleep(interval_s - elapsed_s % interval_s)
