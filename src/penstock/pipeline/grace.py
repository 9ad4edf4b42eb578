"""The option ``--grace`` of jobs that close spans of time: how long a span stays open after its
end, to accept late records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from penstock.pipeline.job import JobContext

_NAME: Final = "grace_s"
_SECONDS_MAX: Final = 86_400


def grace_option(span: str, default_ms: int) -> click.Option:
    """Return the option; ``span`` names the open span of time, such as "an hour"."""
    return click.Option(
        ["--grace", _NAME],
        type=click.IntRange(0, _SECONDS_MAX),
        default=default_ms // 1_000,
        show_default=True,
        metavar="SECONDS",
        help=f"how long {span} stays open after its end",
    )


def grace_ms_of(context: JobContext, default_ms: int) -> int:
    """Return the option's value; jobs that the command line did not start have no options."""
    seconds = context.arguments.get(_NAME)
    return default_ms if seconds is None else int(seconds) * 1_000
